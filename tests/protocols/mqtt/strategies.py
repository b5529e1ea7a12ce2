"""Hypothesis strategies for packets of every version, and one packet of each kind with its bytes.

Each is made once: Hypothesis looks into a strategy before it draws from it for the first time, which takes longer than
drawing.
"""

import functools

from hypothesis import strategies as st

from weft.protocols.mqtt import packets as reason_codes
from weft.protocols.mqtt.packets import (
    NO_PROPERTIES,
    TABLE,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Kind,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
    Will,
)

IDS = st.integers(1, 65_535)
QOS = st.integers(0, 2)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
TOPIC_TEXT = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20)
TOPICS = TOPIC_TEXT.map(str.encode)
PLAIN_FILTERS = st.lists(st.sampled_from(["a", "", "é", "+", "$x"]), min_size=2, max_size=4).map("/".join)
FILTERS = PLAIN_FILTERS | PLAIN_FILTERS.map("$share/g/".__add__)
WILL_PAYLOADS = st.binary(max_size=20)
PAYLOADS = st.binary(max_size=300)
USER_NAMES = st.none() | TEXT
PASSWORDS = st.none() | st.binary(max_size=8)

VALUES: dict[Kind, st.SearchStrategy[object]] = {
    Kind.FLAG: st.booleans(),
    Kind.BYTE: st.integers(0, 1),
    Kind.TWO_BYTES: IDS,
    Kind.FOUR_BYTES: st.integers(1, 2**32 - 1),
    Kind.VARIABLE: st.integers(1, 268_435_455),
    Kind.TEXT: TEXT,
    Kind.BINARY: st.binary(max_size=20),
    Kind.PAIR: st.tuples(TEXT, TEXT),
}
LISTS = {kind: st.lists(values, max_size=3) for kind, values in VALUES.items()}


@functools.cache
@st.composite
def properties(draw: st.DrawFn, packet: PacketType) -> Properties:
    found: dict[str, object] = {}
    for name, kind, packets in TABLE.values():
        if packet not in packets or not draw(st.booleans()):
            continue
        if name == "response_topic":
            found[name] = draw(TOPIC_TEXT)
        elif kind is Kind.PAIR or (kind is Kind.VARIABLE and packet is PacketType.PUBLISH):
            found[name] = tuple(draw(LISTS[kind]))
        else:
            found[name] = (draw(VALUES[kind]),) if kind is Kind.VARIABLE else draw(VALUES[kind])
    if "authentication_data" in found and "authentication_method" not in found:
        del found["authentication_data"]
    made = Properties(**found)  # type: ignore[arg-type]
    return NO_PROPERTIES if made == NO_PROPERTIES else made


@functools.cache
def properties_of(packet: PacketType, version: int) -> st.SearchStrategy[Properties]:
    return properties(packet) if version == Version.V5 else st.just(NO_PROPERTIES)


@functools.cache
def wills(version: int) -> st.SearchStrategy[Will | None]:
    made = st.builds(Will, TOPICS, WILL_PAYLOADS, QOS, st.booleans(), properties_of(PacketType.WILL, version))
    return st.none() | made


@functools.cache
@st.composite
def connects(draw: st.DrawFn, version: int = Version.V311) -> Connect:
    username = draw(USER_NAMES)
    password = draw(PASSWORDS) if username is not None or version == Version.V5 else None
    return Connect(
        draw(TEXT),
        draw(st.booleans()),
        draw(st.integers(0, 65_535)),
        draw(wills(version)),
        username,
        password,
        version,
        draw(properties_of(PacketType.CONNECT, version)),
    )


@functools.cache
@st.composite
def publishes(draw: st.DrawFn, version: int = Version.V311) -> Publish:
    qos = draw(QOS)
    extra = draw(properties_of(PacketType.PUBLISH, version))
    topic = b"" if extra.topic_alias and draw(st.booleans()) else draw(TOPICS)
    return Publish(
        topic,
        draw(PAYLOADS),
        qos,
        draw(IDS) if qos else 0,
        draw(st.booleans()),
        bool(qos) and draw(st.booleans()),
        extra,
    )


@functools.cache
@st.composite
def subscriptions(draw: st.DrawFn, version: int) -> Subscription:
    topic_filter, qos = draw(FILTERS), draw(QOS)
    if version != Version.V5:
        return Subscription(topic_filter, qos)
    no_local = draw(st.booleans()) and not topic_filter.startswith("$share/")
    return Subscription(topic_filter, qos, no_local, draw(st.booleans()), draw(st.integers(0, 2)))


@functools.cache
def packets(version: int) -> st.SearchStrategy[Packet]:
    """Every packet that the version has, server's and client's."""
    in_5 = version == Version.V5

    def some(codes: frozenset[int], before_5: list[int]) -> st.SearchStrategy[tuple[int, ...]]:
        return st.lists(st.sampled_from(sorted(codes) if in_5 else before_5), min_size=1, max_size=4).map(tuple)

    def answer(kind: type, packet: PacketType, codes: frozenset[int]) -> st.SearchStrategy[Packet]:
        return st.builds(
            kind, IDS, st.sampled_from(sorted(codes)) if in_5 else st.just(0), properties_of(packet, version)
        )

    refusals = sorted(reason_codes.CONNACK_CODES) if in_5 else list(range(6))
    kinds: list[st.SearchStrategy[Packet]] = [
        connects(version),
        publishes(version),
        st.builds(ConnAck, st.just(False), st.sampled_from(refusals), properties_of(PacketType.CONNACK, version)),
        st.builds(ConnAck, st.just(version != Version.V31), st.just(0), properties_of(PacketType.CONNACK, version)),
        answer(PubAck, PacketType.PUBACK, reason_codes.PUBLISH_ANSWER_CODES),
        answer(PubRec, PacketType.PUBREC, reason_codes.PUBLISH_ANSWER_CODES),
        answer(PubRel, PacketType.PUBREL, reason_codes.RELEASE_CODES),
        answer(PubComp, PacketType.PUBCOMP, reason_codes.RELEASE_CODES),
        st.builds(
            Subscribe,
            IDS,
            st.lists(subscriptions(version), min_size=1, max_size=4).map(tuple),
            properties_of(PacketType.SUBSCRIBE, version),
        ),
        st.builds(
            SubAck, IDS, some(reason_codes.SUBACK_CODES, [0, 1, 2, 0x80]), properties_of(PacketType.SUBACK, version)
        ),
        st.builds(
            Unsubscribe,
            IDS,
            st.lists(FILTERS, min_size=1, max_size=4).map(tuple),
            properties_of(PacketType.UNSUBSCRIBE, version),
        ),
        st.builds(
            UnsubAck,
            IDS,
            some(reason_codes.UNSUBACK_CODES, [0]) if in_5 else st.just(()),
            properties_of(PacketType.UNSUBACK, version),
        ),
        st.sampled_from([PingReq(), PingResp(), Disconnect()]),
    ]
    if in_5:
        kinds += [
            st.builds(
                Disconnect, st.sampled_from(sorted(reason_codes.DISCONNECT_CODES)), properties(PacketType.DISCONNECT)
            ),
            st.builds(Auth, st.sampled_from(sorted(reason_codes.AUTH_CODES)), properties(PacketType.AUTH)),
        ]
    return st.one_of(kinds)


PACKETS = packets(Version.V311)
VERSIONS = st.sampled_from(list(Version))

VECTORS: list[tuple[str, Packet]] = [
    ("10 0d 0004 4d515454 04 02 003c 0001 61", Connect("a", keep_alive_s=60)),
    (
        "10 1d 0004 4d515454 04 ee 000a 0001 61 0003 772f31 0002 6279 0001 75 0002 0070",  # all but the reserved flag
        Connect("a", True, 10, Will(b"w/1", b"by", 1, True), "u", b"\0p"),
    ),
    ("10 0c 0004 4d515454 04 02 0000 0000", Connect("")),
    ("20 02 01 00", ConnAck(True, 0)),
    ("20 02 00 02", ConnAck(False, 2)),
    ("30 07 0003 612f62 6869", Publish(b"a/b", b"hi")),
    ("31 05 0003 612f62", Publish(b"a/b", b"", retain=True)),
    ("3a 09 0003 612f62 000a 6869", Publish(b"a/b", b"hi", 1, 10, dup=True)),
    ("34 07 0003 612f62 ffff", Publish(b"a/b", b"", 2, 65_535)),
    ("40 02 000a", PubAck(10)),
    ("50 02 000a", PubRec(10)),
    ("62 02 000a", PubRel(10)),
    ("70 02 000a", PubComp(10)),
    ("82 0e 000a 0003 612f62 01 0003 632f64 02", Subscribe(10, (Subscription("a/b", 1), Subscription("c/d", 2)))),
    ("90 05 000a 00 02 80", SubAck(10, (0, 2, 0x80))),  # figure 3.26
    ("a2 0c 000a 0003 612f62 0003 632f64", Unsubscribe(10, ("a/b", "c/d"))),  # figure 3.30
    ("b0 02 000a", UnsubAck(10)),
    ("c0 00", PingReq()),
    ("d0 00", PingResp()),
    ("e0 00", Disconnect()),
]

VECTORS_5: list[tuple[str, Packet]] = [
    ("10 0e 0004 4d515454 05 02 003c 00 0001 61", Connect("a", keep_alive_s=60, version=5)),
    (  # a password but no user name
        "10 17 0004 4d515454 05 42 000a 05 11 0000000a 0000 0003 706173",
        Connect("", True, 10, None, None, b"pas", 5, Properties(session_expiry_interval=10)),
    ),
    (
        "10 22 0004 4d515454 05 04 0000 07 17 00 19 01 21 0014 0001 61 05 18 00000005 0003 772f31 0000",
        Connect(
            "a",
            False,
            0,
            Will(b"w/1", b"", properties=Properties(will_delay_interval=5)),
            version=5,
            properties=Properties(
                request_problem_information=False, request_response_information=True, receive_maximum=20
            ),
        ),
    ),
    ("20 03 00 00 00", ConnAck(False, 0)),
    ("20 06 00 00 03 21 0005", ConnAck(False, 0, Properties(receive_maximum=5))),
    ("20 09 00 8c 06 1f 0003 6e6f6e", ConnAck(False, 0x8C, Properties(reason_string="non"))),
    ("30 08 0003 612f62 00 6869", Publish(b"a/b", b"hi")),
    ("32 0c 0003 612f62 000a 03 23 0001 68", Publish(b"a/b", b"h", 1, 10, properties=Properties(topic_alias=1))),
    ("30 06 0000 03 23 0001", Publish(b"", b"", properties=Properties(topic_alias=1))),
    (
        "30 1c 0001 61 18 01 01 02 0000003c 0b 01 0b 8001 26 0001 6b 0001 76 26 0000 0000",
        Publish(
            b"a",
            b"",
            properties=Properties(
                payload_format_indicator=1,
                message_expiry_interval=60,
                subscription_identifiers=(1, 128),
                user_properties=(("k", "v"), ("", "")),
            ),
        ),
    ),
    ("40 02 000a", PubAck(10)),
    ("40 03 000a 10", PubAck(10, 0x10)),
    ("50 08 000a 97 04 1f 0001 71", PubRec(10, 0x97, Properties(reason_string="q"))),
    ("62 03 000a 92", PubRel(10, 0x92)),
    ("70 02 000a", PubComp(10)),
    (
        "82 0c 000a 02 0b 05 0004 612f622f 1d",
        Subscribe(10, (Subscription("a/b/", 1, True, True, 1),), Properties(subscription_identifiers=(5,))),
    ),
    ("90 05 000a 00 01 9e", SubAck(10, (1, 0x9E))),
    ("a2 08 000a 00 0003 612f62", Unsubscribe(10, ("a/b",))),
    ("b0 05 000a 00 00 11", UnsubAck(10, (0, 0x11))),
    ("c0 00", PingReq()),
    ("d0 00", PingResp()),
    ("e0 00", Disconnect()),
    ("e0 01 04", Disconnect(4)),
    ("e0 07 00 05 11 00000000", Disconnect(0, Properties(session_expiry_interval=0))),
    ("f0 00", Auth()),
    ("f0 06 18 04 15 0001 78", Auth(0x18, Properties(authentication_method="x"))),
]
