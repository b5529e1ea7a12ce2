"""The QoS handshakes both ways, redelivery and packet identifiers (sections 2.2.1, 3.3 to 3.7, 4.3 to 4.6)."""

from __future__ import annotations

import pytest

from tests.conformance.conftest import Connect
from tests.conformance.raw_client import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Client, acknowledge, publish

PERSISTENT = {"session_expiry_interval": 60}


def persistent(version: int) -> dict[str, object]:
    return {"clean": False, "properties_": PERSISTENT if version == 5 else None}


# --- from the client


def test_qos_0_is_not_answered(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-4.3.1-1] [MQTT-3.3.4-1], v3 [MQTT-2.3.1-5], v5 [MQTT-2.2.1-2]"""
    client = connected(version=version)
    client.publish(topic, b"x", 0)
    client.nothing()


@pytest.mark.parametrize("packet_id", [1, 255, 256, 65_535])
def test_puback_has_the_identifier(connected: Connect, version: int, topic: str, packet_id: int) -> None:
    """[MQTT-3.3.4-1] v3 [MQTT-2.3.1-6] [MQTT-4.3.2-2], v5 [MQTT-2.2.1-5] [MQTT-4.3.2-4] [MQTT-3.4.2-1]"""
    client = connected(version=version)
    client.send(publish(topic, b"x", version=version, qos=1, packet_id=packet_id))
    answer = client.next()
    assert (answer.kind, answer.packet_id) == (PUBACK, packet_id)
    assert answer.reason in (0, 0x10)


def test_an_identifier_is_free_after_puback(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-2.3.1-2] [MQTT-4.3.2-2], v5 [MQTT-4.3.2-5]: a PUBLISH that follows is a new message, DUP or not"""
    client, watching = connected(version=version), connected(version=version)
    watching.subscribe(topic, 1)
    for n in range(3):
        client.send(publish(topic, b"%d" % n, version=version, qos=1, packet_id=5, dup=n == 2))
        assert client.take(PUBACK).packet_id == 5
    assert watching.messages(3) == [b"0", b"1", b"2"]


def test_dup_is_not_passed_on(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-3.3.1-3]"""
    client, watching = connected(version=version), connected(version=version)
    watching.subscribe(topic, 2)
    client.send(publish(topic, b"x", version=version, qos=1, packet_id=5, dup=True))
    assert not watching.message().dup


def test_acknowledgements_come_in_order(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3]: PUBACK and PUBREC each in the order of the PUBLISH packets"""
    client = connected(version=version)
    client.send(*[publish(topic, b"x", version=version, qos=1 + n % 2, packet_id=n) for n in range(1, 20)])
    answers = [client.next() for _ in range(19)]
    assert [a.packet_id for a in answers if a.kind == PUBACK] == list(range(2, 20, 2))
    assert [a.packet_id for a in answers if a.kind == PUBREC] == list(range(1, 20, 2))


def test_qos_2_is_delivered_once(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-4.3.3-2], v5 [MQTT-4.3.3-8] [MQTT-4.3.3-10] [MQTT-4.3.3-11] [MQTT-4.3.3-12]: until PUBREL the same
    identifier is the same message"""
    client, watching = connected(version=version), connected(version=version)
    watching.subscribe(topic, 2)
    for dup in (False, True, True):
        client.send(publish(topic, b"once", version=version, qos=2, packet_id=3, dup=dup))
        answer = client.take(PUBREC)
        assert (answer.packet_id, answer.reason < 0x80) == (3, True)
    client.send(acknowledge(PUBREL, 3))
    answer = client.take(PUBCOMP)
    assert (answer.packet_id, answer.reason) == (3, 0)
    client.send(publish(topic, b"new", version=version, qos=2, packet_id=3))
    assert client.take(PUBREC).packet_id == 3
    client.send(acknowledge(PUBREL, 3))
    client.take(PUBCOMP)
    assert watching.messages(2) == [b"once", b"new"]
    watching.nothing()


def test_pubrel_for_an_unknown_identifier(connected: Connect, version: int) -> None:
    """v3 [MQTT-4.3.3-2], v5 [MQTT-4.3.3-11] [MQTT-3.7.2-1]: PUBCOMP; in MQTT 5 it says 0x92"""
    client = connected(version=version)
    client.send(acknowledge(PUBREL, 999))
    answer = client.take(PUBCOMP)
    assert (answer.packet_id, answer.reason) == (999, 0x92 if version == 5 else 0)


def test_pubrel_may_come_again(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-4.3.3-2], v5 [MQTT-4.3.3-11]: when its PUBCOMP was lost"""
    client = connected(version=version)
    client.publish(topic, b"x", 2)
    client.send(acknowledge(PUBREL, 1))
    assert client.take(PUBCOMP).packet_id == 1


@pytest.mark.parametrize("kind", [PUBACK, PUBCOMP], ids=["puback", "pubcomp"])
def test_acknowledgements_for_unknown_identifiers_are_overlooked(connected: Connect, version: int, kind: int) -> None:
    """v3 section 4.3, v5 section 4.3: they may answer what was sent twice"""
    client = connected(version=version)
    client.send(acknowledge(kind, 999))
    client.ping()


def test_pubrec_for_an_unknown_identifier(connected: Connect, version: int) -> None:
    """v3 [MQTT-4.3.3-1], v5 [MQTT-3.6.2-1]: PUBREL ends it; in MQTT 5 it says 0x92"""
    client = connected(version=version)
    client.send(acknowledge(PUBREC, 999))
    answer = client.take(PUBREL)
    assert (answer.packet_id, answer.reason) == (999, 0x92 if version == 5 else 0)


@pytest.mark.parametrize("code", [0x80, 0x87, 0x97])
def test_a_refusing_pubrec_for_an_unknown_identifier(connected: Connect, code: int) -> None:
    """v5 [MQTT-4.3.3-4]: PUBREL answers a PUBREC below 0x80 only"""
    client = connected(version=5)
    client.send(acknowledge(PUBREC, 999, reason=code))
    client.nothing()


WRONG_ANSWERS = {
    "PUBREC for QoS 1": (1, PUBREC),
    "PUBCOMP for QoS 1": (1, PUBCOMP),
    "PUBACK for QoS 2": (2, PUBACK),
    "PUBCOMP before PUBREL": (2, PUBCOMP),
}


@pytest.mark.parametrize("wrong", WRONG_ANSWERS)
def test_an_acknowledgement_of_the_wrong_kind(
    connected: Connect, version: int, topic: str, client_id: str, wrong: str
) -> None:
    """v3 [MQTT-4.8.0-1] [MQTT-4.3.2-2] [MQTT-4.3.3-2], v5 [MQTT-4.13.1-1] [MQTT-4.3.2-3] [MQTT-4.3.3-3]: a protocol
    error; the delivery stays unacknowledged and comes again, and takes no place in the window for good"""
    qos, kind = WRONG_ANSWERS[wrong]
    client = connected(client_id, version, **persistent(version))
    client.subscribe(topic, qos)
    publisher = connected(version=version)
    publisher.publish(topic, b"first", qos)
    first = client.message(acknowledged=False)
    client.send(acknowledge(kind, first.packet_id))
    client.refused(0x82)
    client = again(client, connected, client_id)
    repeated = client.message()
    assert (repeated.payload, repeated.dup, repeated.packet_id) == (b"first", True, first.packet_id)
    publisher.publish(topic, b"second", qos)
    assert client.message().payload == b"second"
    client = again(client, connected, client_id)
    client.nothing()


def test_puback_after_pubrec(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """v3 [MQTT-4.3.3-1], v5 [MQTT-4.3.3-5]: it is no PUBCOMP, and PUBREL comes again"""
    client = connected(client_id, version, **persistent(version))
    client.subscribe(topic, 2)
    connected(version=version).publish(topic, b"x", 2)
    message = client.message(acknowledged=False)
    client.send(acknowledge(PUBREC, message.packet_id))
    assert client.take(PUBREL).packet_id == message.packet_id
    client.send(acknowledge(PUBACK, message.packet_id))
    client.refused(0x82)
    client = again(client, connected, client_id)
    assert client.next().kind == PUBREL
    client.send(acknowledge(PUBCOMP, message.packet_id))
    client.nothing()


def test_identifiers_of_both_directions_are_independent(connected: Connect, version: int, topic: str) -> None:
    """v3 section 2.3.1, v5 section 2.2.1"""
    client = connected(version=version)
    client.subscribe(topic, 2)
    other = connected(version=version)
    other.publish(topic, b"there", 2)
    theirs = client.take(PUBLISH)
    client.send(publish(topic, b"back", version=version, qos=2, packet_id=theirs.packet_id))
    assert client.take(PUBREC).packet_id == theirs.packet_id
    client.send(acknowledge(PUBREC, theirs.packet_id))
    assert client.take(PUBREL).packet_id == theirs.packet_id
    client.send(acknowledge(PUBREL, theirs.packet_id))
    assert client.take(PUBCOMP).packet_id == theirs.packet_id
    client.send(acknowledge(PUBCOMP, theirs.packet_id))
    assert client.message().payload == b"back"


def test_a_quarter_of_all_identifiers_open_at_once(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-2.3.1-2] [MQTT-4.3.3-2], v5 [MQTT-4.3.3-8]: as many QoS 2 messages as the server takes"""
    client = connected(version=version)
    count = 16_000 if version == 4 else 50
    client.send(*[publish(topic, b"", version=version, qos=2, packet_id=n) for n in range(1, count)])
    assert [client.take(PUBREC).packet_id for _ in range(1, count)] == list(range(1, count))
    client.send(*[acknowledge(PUBREL, n) for n in range(1, count)])
    assert [client.take(PUBCOMP).packet_id for _ in range(1, count)] == list(range(1, count))


# --- to the client


def test_deliveries_use_different_identifiers(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-2.3.1-4], v5 [MQTT-2.2.1-4] [MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-4.3.2-2] [MQTT-4.3.3-2]"""
    client, publisher = connected(version=version), connected(version=version)
    client.subscribe(topic, 2)
    for n in range(20):
        publisher.publish(topic, b"%d" % n, 1 + n % 2)
    messages = [client.take(PUBLISH) for _ in range(20)]
    assert [message.payload for message in messages] == [b"%d" % n for n in range(20)]
    assert len({message.packet_id for message in messages}) == 20
    assert not any(message.dup for message in messages)


def test_a_delivery_at_qos_0_is_topic_and_payload(connected: Connect, version: int, live: str) -> None:
    """v3 [MQTT-2.3.1-5] [MQTT-4.3.1-1], v5 [MQTT-2.2.1-2] [MQTT-4.3.1-1]: no identifier in between, no DUP"""
    client = connected(version=version)
    client.subscribe(live, 0)
    for qos in (0, 1, 2):
        client.publish(live, b"payload", qos)
        message = client.message()
        middle = b"\x00" if version == 5 else b""
        assert message.body == len(live).to_bytes(2, "big") + live.encode() + middle + b"payload"
        assert message.flags == 0


def test_qos_2_to_the_client(connected: Connect, version: int, topic: str) -> None:
    """v3 [MQTT-4.3.3-1] [MQTT-3.6.1-1], v5 [MQTT-4.3.3-4] [MQTT-4.3.3-5] [MQTT-4.3.3-6]"""
    client = connected(version=version)
    client.subscribe(topic, 2)
    client.publish(topic, b"x", 2)
    message = client.take(PUBLISH)
    client.send(acknowledge(PUBREC, message.packet_id))
    release = client.next()
    assert (release.kind, release.packet_id, release.flags) == (PUBREL, message.packet_id, 2)
    client.send(acknowledge(PUBREC, message.packet_id))
    assert client.take(PUBREL).packet_id == message.packet_id
    client.send(acknowledge(PUBCOMP, message.packet_id))
    client.nothing()


def test_pubrels_come_in_the_order_of_pubrecs(connected: Connect, version: int, topic: str) -> None:
    """[MQTT-4.6.0-4]"""
    client = connected(version=version)
    client.subscribe(topic, 2)
    for n in range(5):
        client.publish(topic, b"%d" % n, 2)
    order = [client.take(PUBLISH).packet_id for _ in range(5)][::-1]
    for packet_id in order:
        client.send(acknowledge(PUBREC, packet_id))
    assert [client.take(PUBREL).packet_id for _ in range(5)] == order


def test_nothing_is_sent_again_on_a_connection_that_lasts(connected: Connect, version: int, topic: str) -> None:
    """v5 [MQTT-4.4.0-1]; in 3.1.1 a server may, this one does not"""
    client = connected(version=version)
    client.subscribe(topic, 2)
    client.publish(topic, b"1", 1)
    client.publish(topic, b"2", 2)
    for _ in range(2):
        client.take(PUBLISH)
    client.nothing(1.0)


# --- again, after a reconnect


def again(client: Client, connected: Connect, client_id: str) -> Client:
    client.drop()
    return connected(client_id, client.version, **persistent(client.version))


def test_unacknowledged_qos_1_is_sent_again(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.6.0-1], v3 [MQTT-2.3.1-3], v5 [MQTT-4.3.2-3]: same identifiers, DUP,
    same order"""
    client = connected(client_id, version, **persistent(version))
    client.subscribe(topic, 1)
    publisher = connected(version=version)
    for n in range(5):
        publisher.publish(topic, b"%d" % n, 1)
    first = [client.take(PUBLISH) for _ in range(5)]
    client.send(acknowledge(PUBACK, first[1].packet_id))
    client.ping()
    for _ in range(2):
        client = again(client, connected, client_id)
        second = [client.take(PUBLISH) for _ in range(4)]
        expected = [message for n, message in enumerate(first) if n != 1]
        assert [(m.packet_id, m.payload, m.qos) for m in second] == [(m.packet_id, m.payload, m.qos) for m in expected]
        assert all(message.dup for message in second)
        client.nothing()
    for message in second:
        client.send(acknowledge(PUBACK, message.packet_id))
    client.ping()
    again(client, connected, client_id).nothing()


def test_unacknowledged_qos_2_is_sent_again(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1], v3 [MQTT-4.3.3-1], v5 [MQTT-4.3.3-3]"""
    client = connected(client_id, version, **persistent(version))
    client.subscribe(topic, 2)
    connected(version=version).publish(topic, b"x", 2)
    first = client.take(PUBLISH)
    assert not first.dup
    client = again(client, connected, client_id)
    second = client.take(PUBLISH)
    assert (second.packet_id, second.payload, second.qos, second.dup) == (first.packet_id, b"x", 2, True)
    client.send(acknowledge(PUBREC, second.packet_id))
    assert client.take(PUBREL).packet_id == first.packet_id
    client.send(acknowledge(PUBCOMP, first.packet_id))
    client.ping()
    again(client, connected, client_id).nothing()


def test_pubrel_is_sent_again_and_the_message_is_not(
    connected: Connect, version: int, topic: str, client_id: str
) -> None:
    """[MQTT-4.4.0-1], v3 [MQTT-4.3.3-1], v5 [MQTT-4.3.3-5] [MQTT-4.3.3-6]"""
    client = connected(client_id, version, **persistent(version))
    client.subscribe(topic, 2)
    connected(version=version).publish(topic, b"x", 2)
    message = client.take(PUBLISH)
    client.send(acknowledge(PUBREC, message.packet_id))
    client.take(PUBREL)
    for _ in range(2):
        client = again(client, connected, client_id)
        release = client.next()
        assert (release.kind, release.packet_id) == (PUBREL, message.packet_id)
        client.nothing()
    client.send(acknowledge(PUBCOMP, message.packet_id))
    client.ping()
    again(client, connected, client_id).nothing()


def test_qos_2_from_the_client_across_a_reconnect(connected: Connect, version: int, topic: str, client_id: str) -> None:
    """v3 [MQTT-4.3.3-2] [MQTT-3.1.2-4], v5 [MQTT-4.3.3-10] [MQTT-3.1.2-5]: the identifier is part of the session"""
    watching = connected(version=version)
    watching.subscribe(topic, 2)
    client = connected(client_id, version, **persistent(version))
    client.send(publish(topic, b"once", version=version, qos=2, packet_id=9))
    client.take(PUBREC)
    client = again(client, connected, client_id)
    client.send(publish(topic, b"once", version=version, qos=2, packet_id=9, dup=True))
    assert client.take(PUBREC).packet_id == 9
    client = again(client, connected, client_id)
    client.send(acknowledge(PUBREL, 9))
    answer = client.take(PUBCOMP)
    assert (answer.packet_id, answer.reason) == (9, 0)
    assert watching.message().payload == b"once"
    watching.nothing()


def test_a_new_session_knows_no_old_qos_2_identifier(
    connected: Connect, version: int, topic: str, client_id: str
) -> None:
    """v3 [MQTT-3.1.2-6], v5 [MQTT-3.1.2-4]"""
    watching = connected(version=version)
    watching.subscribe(topic, 2)
    unfinished = connected(client_id, version, clean=True)
    unfinished.send(publish(topic, b"0", version=version, qos=2, packet_id=9))
    unfinished.take(PUBREC)
    unfinished.drop()
    client = connected(client_id, version, clean=True)
    client.send(publish(topic, b"1", version=version, qos=2, packet_id=9))
    client.take(PUBREC)
    client.send(acknowledge(PUBREL, 9))
    client.take(PUBCOMP)
    while watching.message().payload != b"1":  # whether the first one is delivered is the server's choice
        continue


# --- MQTT 5: negative acknowledgements


@pytest.mark.parametrize("qos", [1, 2])
def test_a_negative_acknowledgement_ends_the_delivery(connected: Connect, topic: str, client_id: str, qos: int) -> None:
    """v5 [MQTT-4.4.0-2] [MQTT-4.3.3-4]: not sent again, no PUBREL, the next one continues"""
    client = connected(client_id, 5, properties_=PERSISTENT)
    client.subscribe(topic, qos)
    publisher = connected(version=5)
    publisher.publish(topic, b"bad", qos)
    message = client.take(PUBLISH)
    client.send(acknowledge(PUBACK if qos == 1 else PUBREC, message.packet_id, reason=0x83))
    client.nothing()
    client = again(client, connected, client_id)
    client.nothing()
    publisher.publish(topic, b"good", qos)
    assert client.message().payload == b"good"


def test_no_matching_subscribers(connected: Connect, live: str) -> None:
    """v5 section 3.4.2.1 and 3.5.2.1: 0x10 may be said, and never when a client got it"""
    client = connected(version=5)
    answer = client.publish(live, b"x", 1)
    assert answer is not None
    assert answer.reason in (0, 0x10)
    client.subscribe(live, 0)
    answer = client.publish(live, b"x", 1)
    assert answer is not None
    assert answer.reason == 0


def test_short_forms_of_acknowledgements(connected: Connect, topic: str) -> None:
    """v5 section 3.4.2.1: reason 0 may be left out, by both sides"""
    client = connected(version=5)
    client.subscribe(topic, 2)
    client.send(publish(topic, b"x", version=5, qos=2, packet_id=4))
    client.take(PUBREC)
    client.send(acknowledge(PUBREL, 4, reason=0))
    client.take(PUBCOMP)
    message = client.take(PUBLISH)
    client.send(acknowledge(PUBREC, message.packet_id, reason=0, properties_={}))
    client.take(PUBREL)
    client.send(acknowledge(PUBCOMP, message.packet_id, reason=0))
    client.ping()


def test_a_pubrel_that_gives_up(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.6.2-1]: 0x92 is the only other code of PUBREL and PUBCOMP"""
    client = connected(version=5)
    client.send(acknowledge(PUBREL, 77, reason=0x92))
    assert client.take(PUBCOMP).packet_id == 77
