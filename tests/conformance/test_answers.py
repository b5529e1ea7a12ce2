"""What acknowledgements say and how long they may be: reason codes, reason strings, maximum packet size (MQTT 5.0)."""

from __future__ import annotations

import select
from collections.abc import Callable

import pytest

from tests.conformance.conftest import PACKET_BYTES_MAX, Broker, Connect
from tests.conformance.raw_client import (
    CONNACK,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Client,
    Closed,
    Packet,
    Will,
    acknowledge,
    connect,
    disconnect,
    packet,
    publish,
    subscribe,
    unsubscribe,
)

TOO_DEEP = "/".join("a" * 200)
"""More levels than the server takes (limits.topic_levels): well-formed, and refused."""
OUTSIDE = "$SYS/of/the/server"
"""A topic that clients may not publish to."""

PROVOKED: dict[str, tuple[bytes, int, Callable[[Packet], bool]]] = {
    "puback": (publish(OUTSIDE, b"", version=5, qos=1, packet_id=1), PUBACK, lambda got: got.reason >= 0x80),
    "pubrec": (publish(OUTSIDE, b"", version=5, qos=2, packet_id=1), PUBREC, lambda got: got.reason >= 0x80),
    "pubrel": (acknowledge(PUBREC, 9), PUBREL, lambda got: got.reason == 0x92),
    "pubcomp": (acknowledge(PUBREL, 9), PUBCOMP, lambda got: got.reason == 0x92),
    "suback": (subscribe(1, (TOO_DEEP, 0), version=5), SUBACK, lambda got: got.reasons[0] >= 0x80),
    "unsuback": (unsubscribe(1, "never/subscribed", version=5), UNSUBACK, lambda got: got.reasons == [0x11]),
}
SAID = {"reason_string", "user_property"}


@pytest.mark.parametrize(("sent", "kind", "is_refusal"), PROVOKED.values(), ids=PROVOKED)
@pytest.mark.parametrize("asked", [0, 1, None], ids=["not asked", "asked", "default"])
def test_refusals_say_why_to_who_asks(
    connected: Connect, sent: bytes, kind: int, is_refusal: Callable[[Packet], bool], asked: int | None
) -> None:
    """v5 [MQTT-3.1.2-29] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1] [MQTT-3.9.3-2] [MQTT-3.11.3-2]:
    a code of each packet's table, and words only where they were asked for"""
    client = connected(version=5, properties_=None if asked is None else {"request_problem_information": asked})
    client.send(sent)
    answer = client.take(kind)
    assert is_refusal(answer)
    assert set(answer.properties) <= (set() if asked == 0 else SAID)
    client.ping()


@pytest.mark.parametrize(("sent", "kind", "is_refusal"), PROVOKED.values(), ids=PROVOKED)
@pytest.mark.parametrize("room", [16, 20, 60])
def test_no_acknowledgement_is_over_the_client_s_maximum(
    connected: Connect, sent: bytes, kind: int, is_refusal: Callable[[Packet], bool], room: int
) -> None:
    """v5 [MQTT-3.1.2-24] [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2] [MQTT-3.6.2-3]
    [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2]"""
    client = connected("small", 5, properties_={"maximum_packet_size": room, "request_problem_information": 1})
    client.send(sent)
    answer = client.take(kind)
    assert is_refusal(answer)
    assert answer.size <= room


@pytest.mark.parametrize("room", [16, 20, 60, 200])
def test_disconnect_is_not_over_the_client_s_maximum(connected: Connect, room: int) -> None:
    """v5 [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.1.2-24]: it says as much as there is room for"""
    client = connected("small", 5, properties_={"maximum_packet_size": room})
    client.send(packet(PINGREQ, 1, b""))
    (answer,) = client.closed()
    assert (answer.kind, answer.reason) == (DISCONNECT, 0x81)
    assert answer.size <= room


@pytest.mark.parametrize("room", [*range(1, 60), 100])
@pytest.mark.parametrize("client_id", ["given", ""])
def test_connack_is_not_over_the_client_s_maximum(client: Connect, room: int, client_id: str) -> None:
    """v5 [MQTT-3.1.2-24] [MQTT-3.2.2-19] [MQTT-3.2.2-20]: a client without room for it gets a reason where that fits"""
    opened = client(5)
    opened.send(connect(client_id, version=5, properties_={"maximum_packet_size": room}))
    try:
        answer = opened.next()
    except Closed:
        assert room < 5
        return
    assert answer.kind == CONNACK
    assert answer.size <= room
    assert answer.reason == (0 if room >= (16 if client_id else 48) else 0x95), "16 and 48 are what it takes"
    assert ("assigned_client_identifier" in answer.properties) is (not client_id and not answer.reason)


@pytest.mark.parametrize("room", [3, 4, 20, 40, 100])
def test_a_refusing_connack_is_not_over_the_client_s_maximum(client: Connect, room: int) -> None:
    """v5 [MQTT-3.2.2-19] [MQTT-3.2.2-7] [MQTT-3.1.2-24]"""
    opened = client(5)
    said = {"maximum_packet_size": room, "authentication_method": "SCRAM-SHA-1"}
    opened.send(connect("small", version=5, properties_=said))
    packets = opened.closed()
    assert [each.reason for each in packets] == ([] if room < 5 else [0x95] if room < 16 else [0x8C])
    assert all(each.size <= room for each in packets)


@pytest.mark.parametrize("count", [5, 92, 93, 400])
def test_suback_and_unsuback_that_cannot_be_small(connected: Connect, count: int) -> None:
    """v5 [MQTT-3.1.2-24]: a code for each filter is more than the client takes; nothing longer may be sent"""
    names = [f"live/{n}" for n in range(count)]
    for sent, kind in (
        (subscribe(1, *[(name, 0) for name in names], version=5), SUBACK),
        (unsubscribe(2, *names, version=5), UNSUBACK),
    ):
        client = connected("small", 5, properties_={"maximum_packet_size": 100})
        client.send(sent)
        if count > 92:
            client.refused(0x95)
        else:
            answer = client.next()
            assert (answer.kind, len(answer.reasons), answer.size <= 100) == (kind, count, True)


# --- CONNACK


def refused(client: Client, sent: bytes) -> Packet:
    client.send(sent)
    (answer,) = client.closed()
    assert answer.kind == CONNACK
    return answer


LONG_ID = "x" * 5000
REFUSED: dict[str, tuple[dict[str, object], int]] = {
    "method": ({"properties_": {"authentication_method": "x"}}, 0x8C),
    "identifier": ({"client_id": LONG_ID}, 0x85),
    "protocol": ({"properties_": b"\x21\x00\x00"}, 0x82),
    "malformed": ({"flags": 0b11}, 0x81),
    "will topic": ({"will": Will("a/#")}, 0x90),
}


@pytest.mark.parametrize(("options", "code"), REFUSED.values(), ids=REFUSED)
def test_connack_says_why(client: Connect, connected: Connect, client_id: str, options: dict, code: int) -> None:  # type: ignore[type-arg]
    """v5 [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT-3.2.2-8] [MQTT-3.1.3-8] [MQTT-3.1.4-2]: with the code of the table,
    session present 0 although there is a session, which stays"""
    kept = {"session_expiry_interval": 60}
    connected(client_id, 5, properties_=kept).disconnect()
    sent = connect(**{"client_id": client_id, "version": 5, "clean": False, **options})
    answer = refused(client(5), sent)
    assert (answer.reason, answer.session_present) == (code, False)
    assert client(5).connect(client_id, clean=False).session_present


def test_identifiers_that_are_too_long_in_3_1_1(client: Connect) -> None:
    """v3 [MQTT-3.1.3-9] [MQTT-3.2.2-4] [MQTT-3.2.2-5]: return code 2, then closed"""
    answer = refused(client(4), connect(LONG_ID, version=4))
    assert (answer.reason, answer.session_present) == (2, False)


@pytest.mark.parametrize("asked", [None, 0, 1])
def test_response_information_only_for_who_asks(client: Connect, asked: int | None) -> None:
    """v5 [MQTT-3.1.2-28]: a server may give none even then (section 3.1.2.11.6), and this one has none"""
    said = None if asked is None else {"request_response_information": asked}
    assert "response_information" not in client(5).connect("", properties_=said).properties


def test_every_ping_is_answered(connected: Connect, version: int) -> None:
    """[MQTT-3.12.4-1]: once each, with nothing in it, also right behind each other"""
    client = connected(version=version)
    client.send(*[packet(PINGREQ, 0, b"")] * 500)
    assert [(answer.kind, answer.body) for answer in (client.next() for _ in range(500))] == [(13, b"")] * 500
    client.nothing()


# --- How a server ends a connection: what it says, what may follow, and that it closes (section 3.14)


CAUSES: dict[str, tuple[Callable[[int], bytes], int]] = {
    "malformed": (lambda _: packet(PINGREQ, 1, b""), 0x81),
    "not for servers": (lambda _: packet(13, 0, b""), 0x82),
    "too large": (lambda version: publish("live/a", bytes(PACKET_BYTES_MAX), version=version)[:50], 0x95),
    "topic with a wildcard": (lambda version: publish("a/#", b"", version=version), 0x90),
    "no filter": (lambda version: subscribe(1, version=version), 0x82),
}


@pytest.mark.parametrize(("wrong", "code"), CAUSES.values(), ids=CAUSES)
def test_nothing_follows_disconnect(
    connected: Connect, version: int, live: str, wrong: Callable[[int], bytes], code: int
) -> None:
    """v5 [MQTT-3.14.4-1]: DISCONNECT is the last packet, though messages for the client keep coming; in MQTT 3.1.1
    there is none"""
    client, publisher = connected(version=version), connected(version=version)
    client.subscribe(live, 0)
    flood = [publish(live, b"%d" % n, version=version) for n in range(200)]
    publisher.send(*flood)
    client.send(wrong(version))
    publisher.send(*flood)
    publisher.ping()
    got = client.closed()
    if version == 5:
        assert got[-1].kind == DISCONNECT
        assert got[-1].reason == code
        got.pop()
    assert {message.kind for message in got} <= {PUBLISH}


def test_nothing_follows_disconnect_of_a_take_over(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-3.14.4-1] [MQTT-3.1.4-3]: what comes after it is the new connection's"""
    session = {"session_expiry_interval": 60}
    first = connected(client_id, 5, properties_=session)
    first.subscribe(topic, 1)
    publisher = connected(version=5)
    publisher.send(*[publish(topic, b"%d" % n, version=5, qos=1, packet_id=n) for n in range(1, 21)])
    second = connected(client_id, 5, clean=False, properties_=session)
    for _ in range(20):
        publisher.take(PUBACK)
    before = first.closed()
    assert (before[-1].kind, before[-1].reason) == (DISCONNECT, 0x8E)
    assert {message.kind for message in before[:-1]} <= {PUBLISH}
    assert second.messages(20) == [b"%d" % n for n in range(1, 21)]


def send_for_ever(client: Client) -> None:
    """Until the other side says that it does not read any more."""
    for _ in range(200):
        client.send(packet(PINGREQ, 0, b""))
        select.select([], [], [], 0.01)


@pytest.mark.parametrize("wrong", [packet(PINGREQ, 1, b""), packet(13, 0, b"")], ids=["malformed", "not for servers"])
def test_the_connection_is_closed_in_both_directions(connected: Connect, version: int, wrong: bytes) -> None:
    """v5 [MQTT-3.14.4-2] [MQTT-4.13.1-1], v3 [MQTT-4.8.0-1]: the server does not wait for the client to close"""
    client = connected(version=version)
    client.send(wrong)
    client.closed()
    with pytest.raises(ConnectionError):
        send_for_ever(client)


def test_the_server_closes_after_the_client_s_disconnect(connected: Connect, version: int) -> None:
    """Section 3.14.4: though the client has not; and nothing is answered"""
    client = connected(version=version)
    client.send(disconnect(), packet(PINGREQ, 0, b""))
    assert client.closed() == []


def test_a_node_that_stops_says_so(own_broker: Broker, version: int) -> None:
    """v5 [MQTT-3.14.4-1] [MQTT-3.14.4-2]: 0x8B, and nothing behind it"""
    clients = [Client(own_broker.port, version) for _ in range(3)]
    for client in clients:
        client.connect("")
    own_broker.stop()
    for client in clients:
        reports = [(each.kind, each.reason) for each in client.closed()]
        assert reports == ([(DISCONNECT, 0x8B)] if version == 5 else [])


def test_from_no_session_to_one_is_told_as_a_protocol_error(
    connected: Connect, client: Connect, client_id: str
) -> None:
    """v5 section 3.14.2.2.2: DISCONNECT may not give a session to who connected without; and the will comes"""
    watching = connected(version=5)
    watching.subscribe(f"live/{client_id}")
    leaving = connected(client_id, 5, will=Will(f"live/{client_id}"))
    leaving.send(disconnect(0, {"session_expiry_interval": 60}))
    leaving.refused(0x82)
    assert watching.message().payload == b"gone"
    assert not client(5).connect(client_id, clean=False).session_present


def test_acknowledgements_behind_a_violation_are_not_processed(
    connected: Connect, version: int, topic: str, client_id: str
) -> None:
    """v5 [MQTT-4.13.1-1], v3 [MQTT-4.8.0-1]: the connection ends where the fault is, so the message comes again"""
    expiry = {"session_expiry_interval": 60} if version == 5 else None
    client = connected(client_id, version, clean=False, properties_=expiry)
    client.subscribe(topic, 1)
    connected(version=version).publish(topic, b"x", 1)
    message = client.take(PUBLISH)
    client.send(packet(PINGREQ, 1, b""), acknowledge(PUBACK, message.packet_id))
    client.closed()
    again = connected(client_id, version, clean=False, properties_=expiry).take(PUBLISH)
    assert (again.packet_id, again.payload, again.dup) == (message.packet_id, b"x", True)
