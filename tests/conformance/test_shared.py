"""Shared subscriptions (MQTT 5.0 section 4.8.2)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.conftest import Connect
from tests.conformance.raw_client import PUBACK, PUBLISH, PUBREC, PUBREL, Client, acknowledge

PERSISTENT = {"session_expiry_interval": 60}


def gather(clients: list[Client], count: int) -> dict[int, list[bytes]]:
    """What each client gets of ``count`` messages, and no more."""
    found: dict[int, list[bytes]] = {index: [] for index in range(len(clients))}
    for _ in range(count * len(clients) * 4):
        for index, client in enumerate(clients):
            try:
                found[index].append(client.message(0.05).payload)
            except TimeoutError:
                continue
        if sum(map(len, found.values())) >= count:
            break
    for client in clients:
        client.nothing()
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(connected: Connect, topic: str, qos: int) -> None:
    """v5 section 4.8.2, [MQTT-4.8.2-3]"""
    members = [connected(version=5) for _ in range(3)]
    for member in members:
        assert member.subscribe(f"$share/group/{topic}", qos) == qos
    publisher = connected(version=5)
    for n in range(30):
        publisher.publish(topic, b"%d" % n, qos)
    found = gather(members, 30)
    counted = Counter(payload for payloads in found.values() for payload in payloads)
    assert counted == Counter(b"%d" % n for n in range(30))
    assert all(found.values()), "all of them take part"


def test_groups_are_independent(connected: Connect, topic: str) -> None:
    """v5 section 4.8.2: one copy to each group and to each ordinary subscription"""
    one, two, plain = (connected(version=5) for _ in range(3))
    one.subscribe(f"$share/one/{topic}", 1)
    two.subscribe(f"$share/two/{topic}", 1)
    plain.subscribe(topic, 1)
    plain.publish(topic, b"x", 1)
    for client in (one, two, plain):
        assert client.message().payload == b"x"
        client.nothing()


def test_a_member_with_an_ordinary_subscription_gets_both(connected: Connect, topic: str) -> None:
    """v5 section 4.8.2: they are different subscriptions"""
    client = connected(version=5)
    client.subscribe(f"$share/group/{topic}", 1, {"subscription_identifier": 1})
    client.subscribe(topic, 1, {"subscription_identifier": 2})
    client.publish(topic, b"x", 1)
    identifiers = client.message().properties["subscription_identifier"]
    if len(identifiers) == 1:
        identifiers += client.message().properties["subscription_identifier"]
    assert sorted(identifiers) == [1, 2]


def test_different_filters_under_one_name_are_different_subscriptions(connected: Connect, topic: str) -> None:
    """v5 section 4.8.2: a shared subscription is the share name together with the filter"""
    one, two = connected(version=5), connected(version=5)
    one.subscribe(f"$share/group/{topic}/a", 1)
    two.subscribe(f"$share/group/{topic}/+", 1)
    one.publish(f"{topic}/a", b"x", 1)
    assert one.message().payload == b"x"
    assert two.message().payload == b"x"


@pytest.mark.parametrize("granted", [0, 1])
def test_the_member_s_qos_holds(connected: Connect, topic: str, granted: int) -> None:
    """v5 [MQTT-4.8.2-3]"""
    client = connected(version=5)
    client.subscribe(f"$share/group/{topic}", granted)
    client.publish(topic, b"x", 2)
    assert client.message().qos == granted


def test_no_retained_messages_for_shared_subscriptions(connected: Connect, topic: str) -> None:
    """v5 section 3.3.1.3 and 3.8.4: retained messages are not sent when a shared subscription is made"""
    client = connected(version=5)
    client.publish(topic, b"kept", 1, retain=True)
    client.subscribe(f"$share/group/{topic}", 1)
    client.nothing()


def test_a_member_that_leaves_gets_no_more(connected: Connect, topic: str) -> None:
    """[MQTT-3.10.4-2], v5 section 4.8.2"""
    one, two = connected(version=5), connected(version=5)
    for client in (one, two):
        client.subscribe(f"$share/group/{topic}", 1)
    assert one.unsubscribe(f"$share/group/{topic}").reasons == [0]
    publisher = connected(version=5)
    for n in range(4):
        publisher.publish(topic, b"%d" % n, 1)
    assert two.messages(4) == [b"0", b"1", b"2", b"3"]
    one.nothing()


def test_a_member_that_is_gone_gets_no_more(connected: Connect, topic: str) -> None:
    """v5 section 4.8.2: its session has ended with the connection"""
    one, two = connected(version=5), connected(version=5)
    for client in (one, two):
        client.subscribe(f"$share/group/{topic}", 1)
    one.disconnect()
    publisher = connected(version=5)
    for n in range(4):
        publisher.publish(topic, b"%d" % n, 1)
    assert two.messages(4) == [b"0", b"1", b"2", b"3"]


def test_nothing_is_lost_when_a_member_s_session_ends(connected: Connect, topic: str) -> None:
    """v5 [MQTT-4.8.2-5] is about QoS 2; at QoS 1 what a member never acknowledged may go to another, and nothing
    comes twice to one"""
    one, two = connected(version=5), connected(version=5)
    for client in (one, two):
        client.subscribe(f"$share/group/{topic}", 1)
    publisher = connected(version=5)
    for n in range(10):
        publisher.publish(topic, b"%d" % n, 1)
    one.vanish()
    got = []
    try:
        while True:
            got.append(two.message(0.5).payload)
    except TimeoutError:
        pass
    assert len(got) == len(set(got))
    assert len(got) >= 4


def test_qos_2_is_completed_with_the_member_that_has_it(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-4.8.2-4]: when the member comes back, not with another in between"""
    one = connected(client_id, 5, properties_=PERSISTENT)
    one.subscribe(f"$share/group/{topic}", 2)
    two = connected(version=5)
    two.subscribe(f"$share/group/{topic}", 2)
    publisher = connected(version=5)
    for n in range(6):
        publisher.publish(topic, b"%d" % n, 2)
    theirs = one.message(acknowledged=False)
    mine = set()
    try:
        while True:
            mine.add(two.message(0.3).payload)
    except TimeoutError:
        pass
    assert theirs.payload not in mine
    one.vanish()
    two.nothing()
    again = connected(client_id, 5, clean=False, properties_=PERSISTENT)
    redelivered = again.take(PUBLISH)
    assert (redelivered.packet_id, redelivered.payload, redelivered.dup) == (theirs.packet_id, theirs.payload, True)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("answered", [False, True], ids=["sent", "released"])
def test_qos_2_goes_to_no_other_when_the_session_ends(  # noqa: PLR0917
    connected: Connect, client: Connect, topic: str, client_id: str, persistent: bool, answered: bool
) -> None:
    """v5 [MQTT-4.8.2-5]: that member may have taken it; what it had not been sent yet goes to the others"""
    session = {"session_expiry_interval": 60 if persistent else 0}
    one = connected(client_id, 5, properties_={**session, "receive_maximum": 1})
    one.subscribe(f"$share/group/{topic}", 2)
    publisher = connected(version=5)
    publisher.publish(topic, b"theirs", 2)
    theirs = one.take(PUBLISH)
    if answered:
        one.send(acknowledge(PUBREC, theirs.packet_id))
        one.take(PUBREL)
    two = connected(version=5)
    two.subscribe(f"$share/group/{topic}", 2)
    one.vanish()
    if persistent:
        client(5).connect(client_id, clean=True)
    publisher.publish(topic, b"later", 2)
    assert two.message().payload == b"later"
    two.nothing()


def test_identifiers_come_with_shared_subscriptions(connected: Connect, topic: str) -> None:
    """v5 [MQTT-3.3.4-3], section 4.8.2: each member's own"""
    members = [connected(version=5) for _ in range(2)]
    for number, member in enumerate(members, 1):
        member.subscribe(f"$share/group/{topic}", 1, {"subscription_identifier": number})
    publisher = connected(version=5)
    for _ in range(4):
        publisher.publish(topic, b"x", 1)
    for number, member in enumerate(members, 1):
        for _ in range(2):
            assert member.message().properties["subscription_identifier"] == [number]


def test_shared_wildcards(connected: Connect, topic: str) -> None:
    """v5 [MQTT-4.8.2-2]: behind the share name comes any filter, and its rules hold"""
    client = connected(version=5)
    for topic_filter in (f"{topic}/+/c", f"{topic}/#"):
        assert client.subscribe(f"$share/group/{topic_filter}", 1) == 1
    client.publish(f"{topic}/b/c", b"both", 1)
    assert client.messages(2) == [b"both", b"both"]
    client.publish(topic, b"one", 1)
    assert client.message().payload == b"one"
    client.nothing()


def test_a_refused_message_goes_to_nobody_else(connected: Connect, topic: str) -> None:
    """v5 [MQTT-4.8.2-6]"""
    one, two = connected(version=5), connected(version=5)
    one.subscribe(f"$share/group/{topic}", 1)
    two.subscribe(f"$share/group/{topic}", 1)
    publisher = connected(version=5)
    publisher.publish(topic, b"x", 1)
    for client, other in ((one, two), (two, one)):
        try:
            message = client.take(PUBLISH, 0.3)
        except TimeoutError:
            continue
        client.send(acknowledge(PUBACK, message.packet_id, reason=0x83))
        other.nothing()
        client.nothing()


def test_an_offline_member_keeps_nobody_waiting(connected: Connect, topic: str, client_id: str) -> None:
    """v5 section 4.8.2: a server may choose among the members; one that is there serves better"""
    away = connected(client_id, 5, properties_=PERSISTENT)
    away.subscribe(f"$share/group/{topic}", 1)
    here = connected(version=5)
    here.subscribe(f"$share/group/{topic}", 1)
    away.vanish()
    publisher = connected(version=5)
    for n in range(6):
        publisher.publish(topic, b"%d" % n, 1)
    got = []
    try:
        while True:
            got.append(here.message(0.5).payload)
    except TimeoutError:
        pass
    back = connected(client_id, 5, clean=False, properties_=PERSISTENT)
    try:
        while True:
            got.append(back.message(0.5).payload)
    except TimeoutError:
        pass
    assert sorted(got) == [b"%d" % n for n in range(6)]


def test_shared_subscriptions_survive_in_the_session(connected: Connect, topic: str, client_id: str) -> None:
    """v5 section 4.1: they are subscriptions of the session; messages are kept while no member is connected"""
    member = connected(client_id, 5, properties_=PERSISTENT)
    member.subscribe(f"$share/group/{topic}", 1)
    member.vanish()
    connected(version=5).publish(topic, b"x", 1)
    again = connected(client_id, 5, clean=False, properties_=PERSISTENT)
    assert again.message().payload == b"x"
