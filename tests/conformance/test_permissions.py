"""A node whose users and access rules forbid something: the answers, and what is not delivered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import Broker, Connect
from tests.conformance.raw_client import (
    CONNACK,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    Client,
    Closed,
    Will,
    acknowledge,
    connect,
    publish,
    subscribe,
)
from weft.edge_node.access.users import hasher

ACL = """\
topic readwrite live/#
topic readwrite kept/#
topic read guarded/#
topic read $SYS/#
topic deny live/secret/#
user press
topic readwrite guarded/#
topic readwrite live/#
"""
NOT_AUTHORIZED = 0x87


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The one of this module: ``guarded/#`` may be read, and published to by a user named press alone, and no client
    else knows of ``live/secret/#``."""
    directory = tmp_path_factory.mktemp("permissions")
    (directory / "acl").write_text(ACL)
    (directory / "users").write_text(f"press:{hasher().hash('right')}\n")
    (directory / "users").chmod(0o600)
    started = Broker(directory, "auth: {users_file: users, acl_file: acl}\n")
    started.start()
    yield started
    started.kill()


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_that_is_not_permitted(connected: Connect, version: int, client_id: str, qos: int) -> None:
    """v3 [MQTT-3.3.5-2], v5 [MQTT-3.4.2-1] [MQTT-3.5.2-1]: MQTT 5 says so; 3.1.1 acknowledges all the same, or closes.
    No client gets the message either way"""
    watching = connected(version=version)
    watching.subscribe("guarded/#", 2)
    client = connected(client_id, version)
    try:
        answer = client.publish(f"guarded/{client_id}", b"no", qos)
    except Closed:
        assert version == 4
    else:
        assert answer is not None
        assert answer.reason == (NOT_AUTHORIZED if version == 5 else 0)
    watching.nothing()


def test_a_publish_at_qos_0_that_is_not_permitted(connected: Connect, version: int, client_id: str) -> None:
    """v3 [MQTT-3.3.5-2], v5 section 3.3.5: left out without a word, and the next one is taken"""
    watching = connected(version=version)
    watching.subscribe("guarded/#", 0)
    watching.subscribe("live/+", 0)
    client = connected(version=version)
    client.publish(f"guarded/{client_id}", b"no")
    client.publish(f"live/{client_id}", b"yes")
    assert watching.message().payload == b"yes"
    watching.nothing()


@pytest.mark.parametrize("persistent", [False, True])
def test_an_identifier_is_free_after_a_refusing_pubrec(
    connected: Connect, topic: str, client_id: str, persistent: bool
) -> None:
    """v5 [MQTT-4.3.3-9]: the same identifier is a new message; a PUBREL for the refused one is unknown"""
    watching = connected(version=5)
    watching.subscribe(topic, 2)
    session = {"session_expiry_interval": 60 * persistent}
    client = connected(client_id, 5, properties_=session)
    for dup in (False, True):
        client.send(publish("guarded/x", b"no", version=5, qos=2, packet_id=7, dup=dup))
        refused = client.take(PUBREC)
        assert (refused.packet_id, refused.reason) == (7, NOT_AUTHORIZED)
    client.send(acknowledge(PUBREL, 7))
    assert client.take(PUBCOMP).reason == 0x92
    for payload in (b"1", b"2"):
        client.send(publish("guarded/x", b"no", version=5, qos=2, packet_id=7))
        assert client.take(PUBREC).reason == NOT_AUTHORIZED
        client.send(publish(topic, payload, version=5, qos=2, packet_id=7))
        taken = client.take(PUBREC)
        assert (taken.packet_id, taken.reason) == (7, 0)
        client.send(acknowledge(PUBREL, 7))
        done = client.take(PUBCOMP)
        assert (done.packet_id, done.reason) == (7, 0)
    assert watching.messages(2) == [b"1", b"2"]
    watching.nothing()


def test_refused_and_taken_publishes_of_one_read(connected: Connect, topic: str, client_id: str) -> None:
    """v5 [MQTT-4.6.0-2] [MQTT-3.4.2-1]: answers in order, each with its own code; and what was refused gives its place
    in the receive maximum back [MQTT-4.9.0-1]"""
    client = connected(client_id, 5, properties_={"session_expiry_interval": 60})
    client.subscribe(topic, 1)
    sent = [
        publish(topic if n % 5 == 0 else "guarded/x", b"%d" % n, version=5, qos=1, packet_id=n) for n in range(1, 41)
    ]
    for _ in range(60):
        client.send(*sent)
        answers = [client.take(PUBACK) for _ in sent]
        assert [(a.packet_id, a.reason) for a in answers] == [
            (n, 0 if n % 5 == 0 else NOT_AUTHORIZED) for n in range(1, 41)
        ]
        assert client.messages(8) == [b"%d" % n for n in range(5, 41, 5)]


def test_a_subscription_that_is_not_permitted(connected: Connect, version: int, client_id: str) -> None:
    """v3 [MQTT-3.9.3-2] [MQTT-3.8.4-5], v5 [MQTT-3.8.4-7] [MQTT-3.9.3-2]: a failure in its place, the others hold"""
    client = connected(version=version)
    filters = [(f"live/{client_id}", 1), ("live/secret/#", 1), ("#", 1), ("elsewhere", 1), (f"live/{client_id}/+", 2)]
    client.send(subscribe(3, *filters, version=version))
    no = NOT_AUTHORIZED if version == 5 else 0x80
    assert client.take(SUBACK).reasons == [1, no, no, no, 2]
    client.publish(f"live/{client_id}", b"x", 1)
    assert client.message().payload == b"x"


@pytest.mark.parametrize("retain", [False, True])
def test_a_wider_filter_gets_only_what_may_be_read(
    connected: Connect, version: int, client_id: str, retain: bool
) -> None:
    """v5 section 5.4.2, v3 section 5.4.2: a rule that denies part of a filter holds for that part, retained or not"""
    watching, press = connected(version=version), connected(version=version, username="press", password=b"right")
    if not retain:
        watching.subscribe(f"live/+/{client_id}", 1)
    press.publish(f"live/secret/{client_id}", b"no", 1, retain=retain)
    press.publish(f"live/open/{client_id}", b"yes", 1, retain=retain)
    if retain:
        watching.subscribe(f"live/+/{client_id}", 1)
    assert watching.message().payload == b"yes"
    watching.nothing()


@pytest.mark.parametrize(
    ("who", "code_5", "code_3"),
    [
        ({"username": "press", "password": b"wrong"}, 0x86, 4),
        ({"username": "nobody", "password": b"right"}, 0x86, 4),
        ({"username": "press"}, 0x86, 4),
    ],
    ids=["wrong password", "no such user", "no password"],
)
def test_who_is_not_let_in(client: Connect, version: int, who: dict[str, object], code_5: int, code_3: int) -> None:
    """v5 [MQTT-3.1.4-2] [MQTT-3.2.2-7] [MQTT-3.2.2-8] [MQTT-3.1.4-6], v3 [MQTT-3.2.2-4] [MQTT-3.1.4-5] and section
    5.4.1: told, closed, and what came behind is not processed"""
    opened = client(version)
    opened.send(connect("x", version=version, **who), publish("live/a", b"", version=version, qos=1, packet_id=1))  # type: ignore[arg-type]
    (answer,) = opened.closed()
    assert (answer.kind, answer.reason) == (CONNACK, code_5 if version == 5 else code_3)
    assert not answer.session_present


def test_who_has_a_name_may_do_what_it_grants(connected: Connect, version: int, client_id: str) -> None:
    """v3 section 5.4.2, v5 section 5.4.2"""
    press = connected(client_id, version, username="press", password=b"right")
    watching = connected(version=version)
    watching.subscribe("guarded/#", 1)
    answer = press.publish(f"guarded/{client_id}", b"x", 1)
    assert answer is not None
    assert answer.reason == 0
    assert watching.message().payload == b"x"


def test_a_will_that_is_not_permitted(client: Connect, version: int) -> None:
    """v5 [MQTT-3.1.4-2] section 3.1.3.2, v3 section 3.1.4: refused while the client is connected"""
    opened: Client = client(version)
    opened.send(connect("x", version=version, will=Will("guarded/will")))
    (answer,) = opened.closed()
    assert answer.reason == (NOT_AUTHORIZED if version == 5 else 5)
