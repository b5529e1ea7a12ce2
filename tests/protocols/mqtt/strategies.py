"""Hypothesis strategies for packets, and one packet of each kind with its bytes."""

from hypothesis import strategies as st

from protocols.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)

IDS = st.integers(1, 65_535)
QOS = st.integers(0, 2)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
TOPICS = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20).map(
    str.encode
)
FILTERS = st.lists(st.sampled_from(["a", "", "é", "+", "$x"]), min_size=2, max_size=4).map("/".join)
WILLS = st.builds(Will, TOPICS, st.binary(max_size=20), QOS, st.booleans())


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    username = draw(st.none() | TEXT)
    password = draw(st.none() | st.binary(max_size=8)) if username is not None else None
    will = draw(st.none() | WILLS)
    return Connect(draw(TEXT), draw(st.booleans()), draw(st.integers(0, 65_535)), will, username, password)


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    qos = draw(QOS)
    return Publish(
        draw(TOPICS), draw(st.binary(max_size=300)), qos,
        draw(IDS) if qos else 0, draw(st.booleans()), bool(qos) and draw(st.booleans()),
    )  # fmt: skip


PACKETS: st.SearchStrategy[Packet] = st.one_of(
    connects(),
    publishes(),
    st.builds(ConnAck, st.just(False), st.integers(0, 5)),
    st.just(ConnAck(True, 0)),
    *(st.builds(kind, IDS) for kind in (PubAck, PubRec, PubRel, PubComp, UnsubAck)),
    st.builds(Subscribe, IDS, st.lists(st.tuples(FILTERS, QOS), min_size=1, max_size=4).map(tuple)),
    st.builds(SubAck, IDS, st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1, max_size=4).map(tuple)),
    st.builds(Unsubscribe, IDS, st.lists(FILTERS, min_size=1, max_size=4).map(tuple)),
    st.sampled_from([PingReq(), PingResp(), Disconnect()]),
)

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
    ("82 0e 000a 0003 612f62 01 0003 632f64 02", Subscribe(10, (("a/b", 1), ("c/d", 2)))),  # figure 3.23
    ("90 05 000a 00 02 80", SubAck(10, (0, 2, 0x80))),  # figure 3.26
    ("a2 0c 000a 0003 612f62 0003 632f64", Unsubscribe(10, ("a/b", "c/d"))),  # figure 3.30
    ("b0 02 000a", UnsubAck(10)),
    ("c0 00", PingReq()),
    ("d0 00", PingResp()),
    ("e0 00", Disconnect()),
]
