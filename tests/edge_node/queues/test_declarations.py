"""Exchanges, queues and bindings: declared, found again, refused, deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.edge_node.queues.room import Room
from weft.edge_node.access.identity import Permission
from weft.edge_node.queues.definitions import QueueError, Reason
from weft.edge_node.queues.registry import NOW_UNITS


class Restricted:
    """A user who may publish and subscribe only below ``own/``."""

    username = "eve"
    unrestricted = False
    admitted = True

    def may_publish(self, topic: bytes) -> bool:
        return topic.startswith(b"own/")

    def may_subscribe(self, topic_filter: str) -> bool:
        return topic_filter.startswith("own/")

    def may_read(self, topic: bytes) -> bool:
        return topic.startswith(b"own/")

    def queue_rights(self, topic: str) -> Permission:
        return Permission.READ | Permission.DECLARE if topic.startswith("own/") else Permission(0)


def refusal(call: Callable[..., Any], *args: Any, **options: Any) -> Reason:
    with pytest.raises(QueueError) as refused:
        call(*args, **options)
    assert len(str(refused.value)) > 20, "says what to do"
    return refused.value.reason


async def test_a_declaration_that_differs_is_an_error_and_one_that_does_not_is_none() -> None:
    room = Room()
    queues, client = room.queues, room.client
    assert queues.declarations.declare_queue(client, "q", durable=True, arguments={"x-max-length": 5}) == ("q", 0, 0)
    assert (
        queues.declarations.declare_queue(client, "q", durable=True, arguments={"x-max-length": 5, "x-unknown": 1}).name
        == "q"
    )
    for options in (
        {"durable": False},
        {"durable": True, "auto_delete": True},
        {"durable": True, "arguments": {"x-max-length": 6}},
        {"durable": True},
    ):
        assert refusal(queues.declarations.declare_queue, client, "q", **options) is Reason.PRECONDITION_FAILED
    queues.declarations.declare_exchange(client, "e", "topic", durable=True)
    queues.declarations.declare_exchange(client, "e", "topic", durable=True)
    assert (
        refusal(queues.declarations.declare_exchange, client, "e", "direct", durable=True) is Reason.PRECONDITION_FAILED
    )
    queues.declarations.declare_exchange(client, "amq.topic", "topic", durable=True)
    assert refusal(queues.declarations.declare_exchange, client, "amq.new", "topic") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.declare_queue, client, "amq.new") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.declare_exchange, client, "x", "x-delayed") is Reason.UNKNOWN_KIND
    assert refusal(queues.declarations.find_exchange, "missing") is Reason.NOT_FOUND
    assert refusal(queues.declarations.find_queue, client, "missing") is Reason.NOT_FOUND
    assert refusal(queues.declarations.delete_exchange, client, "amq.topic") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.bind, client, "q", "missing") is Reason.NOT_FOUND
    assert refusal(queues.declarations.bind, client, "missing", "e") is Reason.NOT_FOUND


@pytest.mark.parametrize("name", ["a\x1b]0;b", "a\nb", "\x7f", "a\u202eb", "a\0b", "x" * 256, "é" * 128])
async def test_names_that_cannot_be_shown_are_refused(name: str) -> None:
    room = Room()
    assert refusal(room.queues.declarations.declare_queue, room.client, name) is Reason.PRECONDITION_FAILED
    assert refusal(room.queues.declarations.declare_exchange, room.client, name) is Reason.PRECONDITION_FAILED
    assert not room.queues.declarations.has_queue(name)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-message-ttl": -1}, Reason.PRECONDITION_FAILED),
        ({"x-message-ttl": "5"}, Reason.PRECONDITION_FAILED),
        ({"x-expires": 0}, Reason.PRECONDITION_FAILED),
        ({"x-max-length": True}, Reason.PRECONDITION_FAILED),
        ({"x-overflow": "drop-tail"}, Reason.PRECONDITION_FAILED),
        ({"x-max-priority": 256}, Reason.PRECONDITION_FAILED),
        ({"x-dead-letter-exchange": 1}, Reason.PRECONDITION_FAILED),
        ({"x-dead-letter-routing-key": "k"}, Reason.PRECONDITION_FAILED),
        ({"x-single-active-consumer": 1}, Reason.PRECONDITION_FAILED),
        ({"x-queue-type": "quorum"}, Reason.PRECONDITION_FAILED),
        ({"x-queue-type": "fast"}, Reason.PRECONDITION_FAILED),
        ({"x-queue-type": "stream"}, Reason.PRECONDITION_FAILED),
    ],
)
async def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], reason: Reason) -> None:
    room = Room()
    assert refusal(room.queues.declarations.declare_queue, room.client, "q", arguments=arguments) is reason


async def test_what_is_durable_is_there_after_a_power_cut_and_what_is_not_has_gone() -> None:
    room = Room()
    queues, client = room.queues, room.client
    queues.declarations.declare_exchange(
        client, "kept", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"}
    )
    queues.declarations.declare_exchange(client, "gone", "topic")
    queues.declarations.declare_exchange(client, "deleted", "topic", durable=True)
    for name in ("q", "t", "d", "x"):
        queues.declarations.declare_queue(client, name, durable=name != "t", exclusive=name == "x")
    queues.declarations.bind(client, "q", "kept", "a.#")
    queues.declarations.bind(client, "q", "kept", "b.#")
    queues.declarations.bind(client, "q", "gone", "c.#")
    queues.declarations.bind(client, "t", "kept", "a.#")
    queues.declarations.bind(client, "q", "amq.fanout", arguments={"list": [1, "two"], "flag": True})
    queues.declarations.unbind(client, "q", "kept", "b.#")
    queues.declarations.delete_exchange(client, "deleted")
    queues.declarations.delete_queue(client, "d")
    room.publish(b"transient", key="t")
    await room.settle_down()
    room.power_cut()
    queues, client = room.queues, room.client
    for name in ("t", "d", "x"):
        assert refusal(queues.declarations.find_queue, client, name) is Reason.NOT_FOUND
    for name in ("gone", "deleted"):
        assert refusal(queues.declarations.find_exchange, name) is Reason.NOT_FOUND
    room.publish(b"1", exchange="kept", key="a.x")
    room.publish(b"2", exchange="kept", key="b.x")
    await room.settle_down()
    assert await room.drain() == [b"1", b"2"], "the second by the alternate exchange"
    queues.declarations.unbind(client, "q", "amq.fanout", arguments={"flag": True, "list": [1, "two"]})
    queues.declarations.declare_queue(client, "new", durable=True)
    assert await room.drain("new") == [], "its number is not that of the transient queue"
    assert room.publish(b"3", exchange="kept", key="b.x") == [False]
    await room.settle_down()
    assert await room.drain() == []


async def test_exclusive_queues_belong_to_their_connection_and_end_with_it() -> None:
    room = Room()
    other = room.new_client()
    name = room.queues.declarations.declare_queue(room.client, exclusive=True).name
    assert name.startswith("amq.gen-")
    assert refusal(room.queues.declarations.find_queue, other, name) is Reason.RESOURCE_LOCKED
    assert refusal(room.queues.declarations.declare_queue, other, name, exclusive=True) is Reason.RESOURCE_LOCKED
    assert refusal(room.queues.declarations.delete_queue, other, name) is Reason.RESOURCE_LOCKED
    room.publish(b"1", key=name)
    room.queues.disconnects.begin(room.client)
    assert refusal(room.queues.declarations.find_queue, other, name) is Reason.NOT_FOUND
    await room.settle_down()
    assert room.queues.bounds.waiting.used == 0


async def test_what_deletes_itself_does_so_when_it_is_not_used_any_more() -> None:
    room = Room()
    queues, client = room.queues, room.client
    queues.declarations.declare_exchange(client, "e", "fanout", auto_delete=True)
    queues.declarations.declare_queue(client, "q", auto_delete=True)
    queues.declarations.bind(client, "q", "e")
    first, second = room.consume(), room.consume()
    queues.consumptions.cancel(first.consumption)
    queues.declarations.find_queue(client, "q")
    queues.consumptions.cancel(second.consumption)
    assert refusal(queues.declarations.find_queue, client, "q") is Reason.NOT_FOUND
    assert refusal(queues.declarations.find_exchange, "e") is Reason.NOT_FOUND


async def test_deletion_may_depend_on_use() -> None:
    room = Room()
    queues, client = room.queues, room.client
    queues.declarations.declare_queue(client, "q", durable=True)
    queues.declarations.declare_exchange(client, "e", "fanout")
    queues.declarations.bind(client, "q", "e")
    room.publish(b"1", b"2")
    taker = room.consume(prefetch=1)
    assert refusal(queues.declarations.delete_queue, client, "q", if_unused=True) is Reason.IN_USE
    assert refusal(queues.declarations.delete_queue, client, "q", if_empty=True) is Reason.IN_USE
    assert refusal(queues.declarations.delete_exchange, client, "e", if_unused=True) is Reason.IN_USE
    await room.settle_down()
    assert queues.declarations.purge(client, "q") == 1
    assert queues.declarations.delete_queue(client, "q", if_empty=True) == 0
    assert taker.cancelled_by == [Reason.NOT_FOUND]
    taker.settle()
    queues.declarations.delete_exchange(client, "e", if_unused=True)
    assert queues.declarations.delete_queue(client, "q") == 0
    assert queues.bounds.waiting.used == queues.bounds.unacknowledged.used == queues.bounds.bindings.used == 0


async def test_only_one_may_have_a_queue_to_itself() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q")
    taker = room.consume(exclusive=True)
    assert refusal(room.consume) is Reason.ACCESS_REFUSED
    room.queues.consumptions.cancel(taker.consumption)
    room.consume()
    assert refusal(room.consume, exclusive=True) is Reason.ACCESS_REFUSED


async def test_access_rules_hold_for_publishing_binding_delivery_and_deletion() -> None:
    room = Room()
    queues = room.queues
    eve = room.new_client("eve", Restricted())
    queues.declarations.declare_queue(room.client, "own.q", durable=True)
    queues.declarations.bind(room.client, "own.q", "amq.topic", "#")
    queues.declarations.declare_queue(eve, "own.eves", durable=True)
    assert refusal(queues.declarations.bind, eve, "own.eves", "amq.topic", "#") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.bind, eve, "own.eves", "amq.topic", "#.own") is Reason.ACCESS_REFUSED
    queues.declarations.bind(eve, "own.eves", "amq.topic", "own.#")
    assert refusal(room.publish, b"x", exchange="amq.topic", key="other", client=eve) is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.delete_queue, eve, "own.q") is Reason.ACCESS_REFUSED
    assert refusal(queues.declarations.purge, eve, "own.q") is Reason.ACCESS_REFUSED
    for key in ("own.1", "secret", "own.2"):
        room.publish(key.encode(), exchange="amq.topic", key=key)
    taker = room.consume("own.q", client=eve)
    await room.settle_down()
    assert taker.payloads == [b"own.1", b"own.2"]
    assert queues.declarations.find_queue(room.client, "own.q").messages == 1, "what she may not read waits for another"
    assert await room.drain("own.q") == [b"secret"]


@pytest.mark.parametrize("written", [False, True])
async def test_a_queue_with_many_bindings_goes_whole_or_not_at_all(written: bool) -> None:
    room = Room()
    queues, client, count = room.queues, room.client, 10 * NOW_UNITS
    queues.declarations.declare_exchange(client, "kept", "topic", durable=True)
    queues.declarations.declare_exchange(client, "unused", "fanout", durable=True, auto_delete=True)
    queues.declarations.declare_queue(client, "q", durable=True)
    for number in range(count):
        queues.declarations.bind(client, "q", "kept", f"a.{number}")
    queues.declarations.bind(client, "q", "unused")
    room.publish(b"before", exchange="kept", key="a.1")
    await room.settle_down()
    assert queues.declarations.delete_queue(client, "q") == 1
    assert queues.bounds.bindings.used > count / 2
    room.publish(b"nobody's", exchange="kept", key="a.1")
    queues.declarations.declare_queue(client, "q", durable=True)
    queues.declarations.bind(client, "q", "kept", "a.2")
    room.publish(b"by an old binding", exchange="kept", key="a.1")
    room.publish(b"by a new one", exchange="kept", key="a.2")
    room.batch.store()
    if written:
        room.commit()
    room.power_cut()
    left = {binding.key for binding in room.queues.registry.topology.bindings()}
    if written:
        assert left == {"a.2"}
        assert refusal(room.queues.declarations.find_exchange, "unused") is Reason.NOT_FOUND
        assert await room.drain() == [b"by a new one"]
    else:
        assert left == {"", *(f"a.{number}" for number in range(count))}
        assert await room.drain() == [b"before"]
    room.queues.declarations.delete_queue(room.client, "q")
    while room.queues.bounds.bindings.used:
        await room.settle_down()
    assert not room.queues.registry.topology._destinations


async def test_an_exchange_with_many_bindings_goes_at_once() -> None:
    room = Room()
    queues, client, count = room.queues, room.client, 10 * NOW_UNITS
    queues.declarations.declare_exchange(client, "e", "direct", durable=True)
    queues.declarations.declare_exchange(client, "before", "fanout", durable=True)
    queues.declarations.bind_exchange(client, "e", "before")
    for name in ("q", "r"):
        queues.declarations.declare_queue(client, name, durable=True)
        for number in range(count):
            queues.declarations.bind(client, name, "e", f"{number}")
    queues.declarations.delete_exchange(client, "e")
    queues.declarations.declare_exchange(client, "e", "direct", durable=True)
    queues.declarations.bind(client, "q", "e", "1")
    queues.declarations.delete_queue(client, "r")
    room.publish(b"1", exchange="before", key="1")
    room.publish(b"2", exchange="e", key="1")
    room.publish(b"3", exchange="e", key="2")
    await room.settle_down()
    assert await room.drain() == [b"2"]
    while queues.bounds.bindings.used > 1:
        await room.settle_down()
    await room.restart()
    assert [each.key for each in room.queues.registry.topology.bindings()] == ["1"]


async def test_exchanges_that_are_not_used_any_more_go_in_any_number() -> None:
    room = Room()
    queues, client, count = room.queues, room.client, 1000
    for number in range(count):
        queues.declarations.declare_exchange(client, f"e{number}", "fanout", auto_delete=True)
        if number:
            queues.declarations.bind_exchange(client, f"e{number}", f"e{number - 1}")
    queues.declarations.declare_queue(client, "q")
    queues.declarations.bind(client, "q", f"e{count - 1}")
    assert room.publish(b"x", exchange="e0") == [False]
    await room.settle_down()
    assert room.queue().count == 1
    queues.declarations.delete_queue(client, "q")
    assert not queues.bounds.exchanges.used
    assert not queues.bounds.bindings.used
