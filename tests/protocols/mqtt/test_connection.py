from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.mqtt.strategies import VECTORS, packets
from weft.protocols.mqtt.connection import Connection, ConnectionState, ServerLimits
from weft.protocols.mqtt.decoder import decode
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import (
    NO_PROPERTIES,
    Auth,
    ConnAck,
    Connect,
    ConnectRefused,
    Disconnect,
    MalformedPacket,
    MqttError,
    Packet,
    PingReq,
    PingResp,
    Properties,
    ProtocolViolation,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)

MAY_COME = (Publish, PubAck, PubRec, PubRel, PubComp, Subscribe, Unsubscribe, PingReq, Disconnect)
LIMIT = 1 << 20


def connected(limits: ServerLimits | None = None, **fields: object) -> Connection:
    connection = Connection(limits)
    connection.receive(Connect("a", **fields))  # type: ignore[arg-type]
    return connection


def connected_5(limits: ServerLimits | None = None, **properties: object) -> Connection:
    return connected(limits, version=5, properties=Properties(**properties))  # type: ignore[arg-type]


def refused(packet: Connect, limits: ServerLimits | None = None) -> ConnectRefused:
    with pytest.raises(ConnectRefused) as caught:
        Connection(limits).receive(packet)
    assert caught.value.version == packet.version
    return caught.value


def violation(connection: Connection, packet: Packet) -> ProtocolViolation:
    with pytest.raises(ProtocolViolation) as caught:
        connection.receive(packet)
    return caught.value


def read(data: bytes, version: int = 5) -> Packet:
    decoded = decode(data, 0, LIMIT, version)
    assert decoded is not None
    assert decoded[1] == len(data)
    return decoded[0]


@pytest.mark.parametrize("packet", [packet for _, packet in VECTORS if not isinstance(packet, Connect)])
def test_connect_must_come_first(packet: Packet) -> None:
    """v5 [MQTT-3.1.0-1]; v3 [MQTT-3.1.0-1]."""
    with pytest.raises(ProtocolViolation, match=r"before CONNECT \[MQTT-3\.1\.0-1\]"):
        Connection().receive(packet)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_second_connect_is_a_violation(version: int) -> None:
    """v5 [MQTT-3.1.0-2]; v3 [MQTT-3.1.0-2]."""
    connection = connected(version=version)
    error = violation(connection, Connect("a", version=version))
    assert "a second CONNECT [MQTT-3.1.0-2]" in str(error)
    words = connection.last_words(error)
    assert (read(words).code == ReasonCode.PROTOCOL_ERROR) if version == 5 else not words  # type: ignore[attr-defined]


def test_a_second_connect_is_a_violation_even_where_it_is_faulty() -> None:
    """v5 [MQTT-3.1.0-2]."""
    connection = connected(version=5)
    with pytest.raises(ConnectRefused) as caught:
        decode(bytes.fromhex("10 0d 0004 4d515454 06 02 003c 0001 61"), 0, LIMIT, 5)
    reported = read(connection.last_words(caught.value))
    assert isinstance(reported, Disconnect)
    assert reported.code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("packet", [packet for _, packet in VECTORS if isinstance(packet, MAY_COME)])
def test_what_a_client_may_send(packet: Packet, version: int) -> None:
    connection = connected(version=version)
    assert connection.receive(packet) == packet
    assert connection.state is (ConnectionState.CLOSED if isinstance(packet, Disconnect) else ConnectionState.OPEN)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("packet", [ConnAck(False, 0), SubAck(1, (0,)), UnsubAck(1), PingResp()])
def test_what_only_servers_send(packet: Packet, version: int) -> None:
    with pytest.raises(ProtocolViolation, match="is nothing that a client may send here"):
        connected(version=version).receive(packet)


def test_nothing_comes_after_disconnect() -> None:
    connection = connected()
    connection.receive(Disconnect())
    with pytest.raises(ProtocolViolation, match="PINGREQ after DISCONNECT"):
        connection.receive(PingReq())


@pytest.mark.parametrize("version", [4, 5])
def test_identifiers_of_23_letters_and_digits_are_taken(version: int) -> None:
    """v5 [MQTT-3.1.3-5]; v3 [MQTT-3.1.3-5]."""
    for client_id in ("0", "0123456789abcdefghijklm", "NOPQRSTUVWXYZnopqrstuvw"):
        Connection().receive(Connect(client_id, version=version))


def test_an_empty_identifier_needs_clean_session_in_3_1_1() -> None:
    """v3 [MQTT-3.1.3-7], [MQTT-3.1.3-8], [MQTT-3.2.2-4]."""
    Connection().receive(Connect("", clean_start=True))
    error = refused(Connect("", clean_start=False))
    assert error.code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert Connection().last_words(error) == bytes.fromhex("20 02 00 02")


def test_an_empty_identifier_is_none_in_3_1_and_the_servers_choice_in_5() -> None:
    assert refused(Connect("", version=3)).code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    Connection().receive(Connect("", clean_start=False, version=5))


@pytest.mark.parametrize("version", [3, 4, 5])
def test_identifiers_have_a_bound(version: int) -> None:
    """v5 [MQTT-3.1.3-8]; v3 [MQTT-3.1.3-9]."""
    Connection().receive(Connect("é" * 512, version=version))
    error = refused(Connect("é" * 513, version=version))
    assert error.code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


@pytest.mark.parametrize("version", [3, 4, 5])
def test_silence_is_allowed_for_one_and_a_half_keep_alives(version: int) -> None:
    """v5 [MQTT-3.1.2-22], [MQTT-3.2.2-22]; v3 [MQTT-3.1.2-24]."""
    assert connected(keep_alive_s=10, version=version).silence_s_max == 15
    assert connected(keep_alive_s=0, version=version).silence_s_max is None


@pytest.mark.parametrize(
    ("asked", "reported", "silence_s_max"), [(0, 30, 45), (60, 30, 45), (30, None, 45), (10, None, 15)]
)
def test_the_server_may_shorten_the_keep_alive(asked: int, reported: int | None, silence_s_max: float) -> None:
    """v5 [MQTT-3.1.2-21], [MQTT-3.2.2-21]."""
    limits = ServerLimits(keep_alive_s_max=30)
    connection = connected(limits, version=5, keep_alive_s=asked)
    assert connection.server_keep_alive == connection.announcement().server_keep_alive == reported
    assert connection.silence_s_max == silence_s_max
    assert connected(limits, keep_alive_s=60).silence_s_max == 90  # a server cannot tell a client of 3.1.1


# --- MQTT 5.0


def test_enhanced_authentication_is_refused() -> None:
    """v5 [MQTT-3.2.2-6], [MQTT-3.2.2-8], [MQTT-4.12.0-1], [MQTT-4.12.0-4], [MQTT-4.12.0-6]."""
    error = refused(Connect("a", version=5, properties=Properties(authentication_method="SCRAM-SHA-1")))
    assert error.code is ReasonCode.BAD_AUTHENTICATION_METHOD
    answer = read(Connection().last_words(error))
    assert isinstance(answer, ConnAck)
    assert (answer.session_present, answer.code) == (False, 0x8C)
    assert answer.properties.authentication_method is None
    assert violation(connected(version=5), Auth(0x18)).code is ReasonCode.PROTOCOL_ERROR


def test_a_will_that_the_server_cannot_keep_is_refused() -> None:
    """v5 [MQTT-3.2.2-12], [MQTT-3.2.2-13]."""
    limits = ServerLimits(maximum_qos=1, retain_available=False)
    loud = Connect("a", version=5, will=Will(b"w", b"", qos=2))
    kept = Connect("a", version=5, will=Will(b"w", b"", retain=True))
    assert refused(loud, limits).code is ReasonCode.QOS_NOT_SUPPORTED
    assert refused(kept, limits).code is ReasonCode.RETAIN_NOT_SUPPORTED
    Connection().receive(loud)
    Connection().receive(kept)


def test_what_the_client_says_of_itself() -> None:
    connection = connected_5(
        receive_maximum=7, maximum_packet_size=100, topic_alias_maximum=3, request_problem_information=False
    )
    assert (connection.client_receive_maximum, connection.client_packet_bytes_max) == (7, 100)
    assert (connection.client_topic_alias_maximum, connection.problem_information) == (3, False)
    silent = connected_5()
    assert (silent.client_receive_maximum, silent.client_packet_bytes_max) == (65_535, 268_435_460)
    assert (silent.client_topic_alias_maximum, silent.problem_information) == (0, True)


def test_what_the_server_says_of_itself() -> None:
    """v5 [MQTT-3.1.2-28], [MQTT-3.2.2-9]."""
    assert connected_5(request_response_information=False).announcement() == NO_PROPERTIES
    assert connected_5().announcement() == NO_PROPERTIES
    assert connected(ServerLimits(maximum_qos=0)).announcement() is NO_PROPERTIES  # not before 5.0
    limits = ServerLimits(
        receive_maximum=10,
        topic_alias_maximum=5,
        maximum_qos=1,
        maximum_packet_size=1000,
        retain_available=False,
        wildcard_subscription_available=False,
        subscription_identifier_available=False,
        shared_subscription_available=False,
    )
    said = connected_5(limits).announcement(assigned_client_identifier="x", session_expiry_interval=60)
    assert said == Properties(
        receive_maximum=10,
        topic_alias_maximum=5,
        maximum_qos=1,
        maximum_packet_size=1000,
        retain_available=False,
        wildcard_subscription_available=False,
        subscription_identifier_available=False,
        shared_subscription_available=False,
        assigned_client_identifier="x",
        session_expiry_interval=60,
    )


def alias(topic: bytes, number: int) -> Publish:
    return Publish(topic, b"", properties=Properties(topic_alias=number))


def test_topic_aliases_stand_for_the_last_topic_they_came_with() -> None:
    """v5 [MQTT-3.3.2-12]."""
    connection = connected_5(ServerLimits(topic_alias_maximum=2))

    def topic(packet: Publish) -> bytes:
        received = connection.receive(packet)
        assert isinstance(received, Publish)
        assert received.properties is NO_PROPERTIES
        return received.topic

    assert topic(alias(b"a", 1)) == topic(alias(b"", 1)) == b"a"
    assert topic(alias(b"b", 2)) == topic(alias(b"", 2)) == b"b"
    assert topic(alias(b"c", 1)) == topic(alias(b"", 1)) == b"c"
    assert topic(Publish(b"d", b"")) == b"d"
    assert topic(alias(b"", 2)) == b"b"


def test_topic_aliases_are_bounded_and_the_connections_own() -> None:
    """v5 [MQTT-3.2.2-17], [MQTT-3.2.2-18], [MQTT-3.3.2-7], [MQTT-3.3.2-9]."""
    limits = ServerLimits(topic_alias_maximum=2)
    connected_5(limits).receive(alias(b"a", 1))
    assert violation(connected_5(limits), alias(b"", 1)).code is ReasonCode.PROTOCOL_ERROR
    assert violation(connected_5(limits), alias(b"a", 3)).code is ReasonCode.TOPIC_ALIAS_INVALID
    assert violation(connected_5(), alias(b"a", 1)).code is ReasonCode.TOPIC_ALIAS_INVALID


def test_publishes_are_held_to_the_limits() -> None:
    """v5 [MQTT-3.2.2-11], [MQTT-3.2.2-14], [MQTT-3.3.4-6]."""
    connection = connected_5(ServerLimits(maximum_qos=1, retain_available=False))
    assert violation(connection, Publish(b"a", b"", 2, 1)).code is ReasonCode.QOS_NOT_SUPPORTED
    assert violation(connection, Publish(b"a", b"", retain=True)).code is ReasonCode.RETAIN_NOT_SUPPORTED
    numbered = Publish(b"a", b"", properties=Properties(subscription_identifiers=(1,)))
    assert violation(connected_5(), numbered).code is ReasonCode.PROTOCOL_ERROR


def test_any_qos_may_be_subscribed_at_whatever_the_maximum() -> None:
    """v5 [MQTT-3.2.2-10]."""
    connection = connected_5(ServerLimits(maximum_qos=0))
    connection.receive(Subscribe(1, tuple(Subscription("a", qos) for qos in (0, 1, 2))))


def test_subscriptions_are_held_to_the_limits() -> None:
    limits = ServerLimits(
        wildcard_subscription_available=False,
        subscription_identifier_available=False,
        shared_subscription_available=False,
    )
    numbered = Subscribe(1, (Subscription("a"),), Properties(subscription_identifiers=(1,)))
    cases = {
        ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: numbered,
        ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Subscribe(1, (Subscription("$share/g/a"),)),
        ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Subscribe(1, (Subscription("a/+"),)),
    }
    for code, packet in cases.items():
        assert violation(connected_5(limits), packet).code is code
        connected_5().receive(packet)
    connected_5(limits).receive(Subscribe(1, (Subscription("a"),)))


def test_more_than_the_receive_maximum_is_taken() -> None:
    """v5 [MQTT-3.3.4-7]: it is no error; the connection's owner stops reading instead"""
    connection = connected_5(ServerLimits(receive_maximum=3))
    assert connection.answers_due_max == 3
    for packet_id in range(1, 10):
        connection.receive(Publish(b"a", b"", 1 + packet_id % 2, packet_id))
    assert connected(ServerLimits(receive_maximum=3)).answers_due_max == 65_535, "before 5.0 there is none"


@pytest.mark.parametrize("code", [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x99])
def test_reason_codes_with_which_clients_leave(code: int) -> None:
    """v5 [MQTT-3.14.2-1]."""
    connection = connected(version=5)
    connection.receive(Disconnect(code))
    assert connection.state is ConnectionState.CLOSED


@pytest.mark.parametrize("code", [0x87, 0x8B, 0x8E, 0x9C, 0x9D])
def test_reason_codes_that_only_servers_have(code: int) -> None:
    assert violation(connected(version=5), Disconnect(code)).code is ReasonCode.PROTOCOL_ERROR


def test_a_session_that_was_to_end_cannot_be_made_to_last() -> None:
    """Section 3.14.2.2.2: the interval of DISCONNECT may not be other than 0 when that of CONNECT was."""
    longer = Disconnect(0, Properties(session_expiry_interval=60))
    assert violation(connected_5(), longer).code is ReasonCode.PROTOCOL_ERROR
    assert violation(connected_5(session_expiry_interval=0), longer).code is ReasonCode.PROTOCOL_ERROR
    connected_5(session_expiry_interval=5).receive(longer)
    connected_5().receive(Disconnect(0, Properties(session_expiry_interval=0)))


# --- what the client gets


def test_an_error_is_told_in_the_packet_that_its_time_and_version_have() -> None:
    """v5 [MQTT-3.14.0-1], [MQTT-4.13.1-1]; v3 [MQTT-3.1.4-1], [MQTT-3.2.2-6]."""
    malformed = MalformedPacket("bad bytes")
    assert Connection().last_words(malformed) == b""
    assert connected().last_words(malformed) == b""
    reported = read(connected(version=5).last_words(malformed))
    assert reported == Disconnect(0x81, Properties(reason_string="bad bytes"))
    faulty = Connection().last_words(ConnectRefused(ReasonCode.PROTOCOL_ERROR, "x", version=5))
    assert read(faulty) == ConnAck(False, 0x82, Properties(reason_string="x"))
    assert Connection().last_words(ConnectRefused(ReasonCode.SERVER_BUSY, "x")) == bytes.fromhex("20 02 00 03")


def test_a_server_says_why_it_leaves_to_clients_of_5_only() -> None:
    """v5 [MQTT-3.14.0-1], [MQTT-3.14.2-1], [MQTT-3.14.2-2]."""
    reported = read(connected(version=5).farewell(ReasonCode.SESSION_TAKEN_OVER))
    assert reported == Disconnect(0x8E)
    assert connected().farewell(ReasonCode.SESSION_TAKEN_OVER) == b""
    assert Connection().farewell(ReasonCode.SERVER_SHUTTING_DOWN) == b""
    left = connected(version=5)
    left.receive(Disconnect())
    assert left.farewell(ReasonCode.SERVER_SHUTTING_DOWN) == b""


WORDY = Properties(reason_string="because of what takes some words", user_properties=(("k", "v"),))


@pytest.mark.parametrize(
    "packet",
    [
        PubAck(1, 0x10, WORDY),
        PubRec(1, 0x80, WORDY),
        PubComp(1, 0x92, WORDY),
        PubRel(1, 0x92, WORDY),
        SubAck(1, (0x87,), WORDY),
        UnsubAck(1, (0x11,), WORDY),
    ],
)
def test_reason_strings_are_for_those_who_ask_and_have_room(packet: Packet) -> None:
    """v5 [MQTT-3.1.2-24], [MQTT-3.1.2-29], [MQTT-3.4.2-1], [MQTT-3.4.2-2], [MQTT-3.4.2-3], [MQTT-3.5.2-1],
    [MQTT-3.5.2-2], [MQTT-3.5.2-3], [MQTT-3.6.2-1], [MQTT-3.6.2-2], [MQTT-3.6.2-3], [MQTT-3.7.2-1], [MQTT-3.7.2-2],
    [MQTT-3.7.2-3], [MQTT-3.9.2-1], [MQTT-3.9.2-2], [MQTT-3.11.2-1], [MQTT-3.11.2-2]."""
    whole = encode(packet, 5)
    assert connected_5(maximum_packet_size=len(whole)).encode(packet) == whole
    for silent in (connected_5(maximum_packet_size=len(whole) - 1), connected_5(request_problem_information=False)):
        short = read(silent.encode(packet))
        assert short.code == packet.code if hasattr(packet, "code") else short.codes == packet.codes  # type: ignore[attr-defined]
        assert short.properties is NO_PROPERTIES  # type: ignore[attr-defined]
    assert connected().encode(packet) == encode(packet, 4)


def test_connack_and_disconnect_may_say_why_to_anybody_with_room() -> None:
    """v5 [MQTT-3.1.2-29], [MQTT-3.2.2-19], [MQTT-3.2.2-20], [MQTT-3.14.2-3], [MQTT-3.14.2-4]."""
    for packet in (ConnAck(False, 0, WORDY), Disconnect(0x8B, WORDY)):
        whole = encode(packet, 5)
        assert connected_5(request_problem_information=False).encode(packet) == whole
        assert read(connected_5(maximum_packet_size=len(whole) - 1).encode(packet)).properties is NO_PROPERTIES  # type: ignore[attr-defined]


def test_a_client_without_room_for_a_reason_is_told_none() -> None:
    """v5 [MQTT-3.1.2-24], [MQTT-3.2.2-19]."""
    narrow = connected_5(maximum_packet_size=40)
    assert narrow.farewell(ReasonCode.SERVER_BUSY, "much to do, " * 9) == bytes.fromhex("e0 01 89")
    connection = Connection()
    refused = Properties(maximum_packet_size=40, authentication_method="x")
    with pytest.raises(ConnectRefused) as caught:
        connection.receive(Connect("a", version=5, properties=refused))
    assert connection.last_words(caught.value) == bytes.fromhex("20 03 00 8c 00")


@pytest.mark.parametrize(("room", "words"), [(5, "20 03 00 95 00"), (4, "")])
def test_a_client_without_room_for_connack_is_refused(room: int, words: str) -> None:
    """v5 [MQTT-3.1.2-24]."""
    connection = Connection()
    with pytest.raises(ConnectRefused) as caught:
        connection.receive(Connect("", version=5, properties=Properties(maximum_packet_size=room)))
    assert connection.last_words(caught.value) == bytes.fromhex(words)


@pytest.mark.parametrize("client_id", ["a", ""])
@pytest.mark.parametrize(
    "limits",
    [
        ServerLimits(),
        ServerLimits(receive_maximum=1000, topic_alias_maximum=64, maximum_packet_size=1 << 20),
        ServerLimits(
            receive_maximum=1,
            topic_alias_maximum=1,
            maximum_qos=1,
            maximum_packet_size=1024,
            keep_alive_s_max=1,
            retain_available=False,
            wildcard_subscription_available=False,
            subscription_identifier_available=False,
            shared_subscription_available=False,
        ),
    ],
    ids=["default", "a node's", "everything"],
)
def test_connack_has_the_room_that_it_was_found_to_need(limits: ServerLimits, client_id: str) -> None:
    """v5 [MQTT-3.1.2-24]: not a byte less is accepted."""
    asked = Connect(client_id, version=5, properties=Properties(maximum_packet_size=1000, session_expiry_interval=9))
    connection = Connection(limits)
    connection.receive(asked)
    said = connection.announcement(
        assigned_client_identifier=None if client_id else "x" * 29, session_expiry_interval=8
    )
    needed = len(connection.encode(ConnAck(False, 0, said)))
    for room, is_refused in ((needed, False), (needed - 1, True)):
        properties = Properties(maximum_packet_size=room, session_expiry_interval=9)
        again = Connection(limits)
        if is_refused:
            with pytest.raises(ConnectRefused):
                again.receive(Connect(client_id, version=5, properties=properties))
        else:
            again.receive(Connect(client_id, version=5, properties=properties))


@pytest.mark.parametrize(
    "make",
    [
        lambda count: Subscribe(1, tuple(Subscription(f"a/{n}", 0) for n in range(count))),
        lambda count: Unsubscribe(1, tuple(f"a/{n}" for n in range(count))),
    ],
    ids=["subscribe", "unsubscribe"],
)
def test_what_cannot_be_answered_in_the_client_s_room_is_refused(make: Callable[[int], Packet]) -> None:
    """v5 [MQTT-3.1.2-24]."""
    connection = connected_5(maximum_packet_size=100)
    connection.receive(make(92))
    assert len(encode(SubAck(1, (0,) * 92), 5)) <= 100
    with pytest.raises(ProtocolViolation) as caught:
        connection.receive(make(93))
    assert caught.value.code == ReasonCode.PACKET_TOO_LARGE


@given(st.lists(packets(5), max_size=12), st.integers(0, 3), st.integers(1, 3))
@settings(deadline=None)
def test_any_packets_leave_a_connection_open_closed_or_at_an_error(
    sent: list[Packet], topic_alias_maximum: int, receive_maximum: int
) -> None:
    connection = Connection(ServerLimits(topic_alias_maximum=topic_alias_maximum, receive_maximum=receive_maximum))
    try:
        for packet in sent:
            received = connection.receive(packet)
            assert not isinstance(received, Publish) or received.topic
    except MqttError as error:
        words = connection.last_words(error)
        assert not words or read(words, connection.version).code >= 0x80  # type: ignore[attr-defined]
