"""What a connection remembers of its publishes: found again by the bytes of their frames, bounded, and forgotten."""

from __future__ import annotations

import pytest

from weft.edge_node.ingest.record import Destination, Gathering, Route
from weft.edge_node.servers.amqp.client import KNOWN_BYTES_MAX, Target, Targets
from weft.protocols.amqp.content import write_content, write_properties
from weft.protocols.amqp.frames import Form, scan
from weft.protocols.amqp.methods import commands, write_method
from weft.protocols.batch import HeaderPairs
from weft.protocols.message_headers import EXPIRES, MESSAGE_ID, REPLY_TO
from weft.protocols.ranges import PackedHeaders

PLAIN = b"\0\0"
ROUTE = Route(Destination((1,), False, False), live=False, marked=False)


class Channel:
    def __init__(self) -> None:
        self.count = 0

    def published(self, count: int) -> None:
        self.count += count


class Clock:
    now = 5
    left = 1

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def targets(clock: Clock) -> Targets:
    found = Targets(clock, lambda _: clock.left > 0)
    found.remember(method("a"), Target(Channel(), b"\0\1", b"a", (("amqp.exchange", "x"),), ROUTE))
    return found


def method(key: str) -> bytes:
    return write_method(commands.Basic.Publish(0, "amq.topic", key), 1)


def headers_of(targets: Targets, properties: bytes) -> object:
    form = targets.find(method("a"), properties)
    assert isinstance(form, Form)
    return form.headers


def identified(number: int) -> bytes:
    return write_properties(((MESSAGE_ID, f"m-{number}"),))


def test_properties_that_come_again_are_read_and_packed_once(targets: Targets) -> None:
    assert not isinstance(headers_of(targets, PLAIN), PackedHeaders)
    headers = headers_of(targets, PLAIN)
    assert isinstance(headers, PackedHeaders)
    assert headers == (("amqp.exchange", "x"),)
    assert headers_of(targets, PLAIN) is headers


def test_a_publisher_of_equal_messages_has_packed_headers_from_the_second_read_on(targets: Targets) -> None:
    message = method("a") + write_content(1, PLAIN, b"body", 1 << 17)
    found = []
    for _ in range(3):
        gathered = Gathering()
        assert scan(message * 2, 0, targets, gathered, 1 << 20) == 2 * len(message)
        (run,) = gathered.groups.values()
        found.append([type(pairs) is PackedHeaders for pairs in run.headers.values()])
    assert found == [[False, False], [True, True], [True, True]]


def test_messages_with_identifiers_of_their_own_are_taken_and_not_remembered(targets: Targets) -> None:
    for number in range(1_000):
        assert headers_of(targets, identified(number)) == ((MESSAGE_ID, f"m-{number}"), ("amqp.exchange", "x"))
    assert len(targets._forms) == 0
    assert len(targets._seen) <= 256


def test_what_is_remembered_is_bounded(targets: Targets) -> None:
    for number in range(1_000):
        for _ in range(2):
            targets.find(method("a"), identified(number))
    frames = [method(f"{number:0200}") for number in range(1_000)]
    for frame in frames:
        targets.remember(frame, Target(Channel(), b"\0\1", b"a", (), ROUTE))
    assert sum(targets.find(frame, PLAIN) is not None for frame in frames) < KNOWN_BYTES_MAX / 1_000


@pytest.mark.parametrize("properties", [b"", b"\xff", b"\x80\x00\x09short", b"\x00\x10\x01u"])
def test_what_is_malformed_or_names_a_user_is_left(targets: Targets, properties: bytes) -> None:
    assert targets.find(method("a"), properties) is None


@pytest.mark.parametrize("headers", [(("CC", "x"),), (("BCC", "x"),), ((REPLY_TO, "amq.rabbitmq.reply-to"),)])
def test_what_goes_elsewhere_than_its_method_says_is_left(targets: Targets, headers: HeaderPairs) -> None:
    assert targets.find(method("a"), write_properties(headers)) is None


def test_properties_are_read_while_the_turn_lasts(targets: Targets, clock: Clock) -> None:
    for _ in range(2):
        assert targets.find(method("a"), PLAIN) is not None
    clock.left = 0
    assert targets.find(method("a"), PLAIN) is not None, "what is known costs nothing"
    assert targets.find(method("a"), identified(1)) is None


def test_a_channel_that_closes_is_forgotten_alone(targets: Targets) -> None:
    other = Channel()
    targets.remember(method("b"), Target(other, b"\0\2", b"b", (), ROUTE))
    targets.forget(other)
    assert targets.find(method("b"), PLAIN) is None
    assert targets.find(method("a"), PLAIN) is not None


def test_each_message_that_expires_has_a_time_of_its_own(targets: Targets, clock: Clock) -> None:
    properties = b"\x01\x00\x011"  # expiration: one millisecond
    data = method("a") + write_content(1, properties, b"body", 4096)
    for _ in range(3):
        clock.now += 1_000
        gathered = Gathering()
        assert scan(data, 0, targets, gathered, 1 << 20) == len(data)
        assert (EXPIRES, clock.now + 1_000_000) in gathered.groups[ROUTE.destination].headers[0]
