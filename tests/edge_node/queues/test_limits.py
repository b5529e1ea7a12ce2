"""What bounds queues: lengths, times to live, dead letters, shares of an owner."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.edge_node.queues.room import OWNER, Room
from weft.config.listeners import QueueBounds
from weft.edge_node.queues import contents
from weft.edge_node.queues.definitions import QueueError, Reason, origin_of, plain_arguments
from weft.edge_node.queues.limits import QueueLimits
from weft.edge_node.queues.ready import ENTRY_BYTES, Outcome
from weft.edge_node.subscriptions.message import LogRecord
from weft.protocols.message_headers import EXPIRES, PRIORITY

MS = 1_000_000


def declare(room: Room, name: str = "q", **arguments: Any) -> None:
    room.queues.declarations.declare_queue(
        room.client, name, durable=True, arguments={name.replace("_", "-"): value for name, value in arguments.items()}
    )


def dead_letters(room: Room, **arguments: Any) -> None:
    room.queues.declarations.declare_queue(room.client, "dead", durable=True)
    room.queues.declarations.bind(room.client, "dead", "amq.direct", "gone")
    declare(room, x_dead_letter_exchange="amq.direct", x_dead_letter_routing_key="gone", **arguments)


def deaths(message: LogRecord) -> list[tuple[str, str, int]]:
    entries = json.loads(str(dict(message.headers)["x-death"]))
    return [(each["queue"], each["reason"], each["count"]) for each in entries]


async def test_a_full_queue_drops_its_oldest_messages() -> None:
    room = Room()
    declare(room, x_max_length=2)
    room.publish(b"1", b"2", b"3", b"4")
    await room.settle_down()
    room.power_cut()
    assert await room.drain() == [b"3", b"4"]


async def test_what_a_full_queue_drops_before_it_is_durable_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "LOADED_BYTES_MAX", 0)  # so the payloads are read from the log
    room = Room()
    dead_letters(room, x_max_length=2)
    room.publish(b"1")
    await room.settle_down()
    room.publish(b"2", b"3", b"4", b"5")
    for _ in range(2):
        await room.settle_down()
    assert sorted(await room.drain("dead")) == [b"1", b"2", b"3"]
    assert await room.drain() == [b"4", b"5"]


async def test_bytes_count_as_well() -> None:
    room = Room()
    declare(room, x_max_length_bytes=10)
    room.publish(b"12345", b"67890", b"x")
    await room.settle_down()
    assert await room.drain() == [b"67890", b"x"]


async def test_a_queue_that_rejects_says_so_message_by_message() -> None:
    room = Room()
    declare(room, x_max_length=2, x_overflow="reject-publish")
    assert room.publish(b"1", b"2", b"3", b"4") == [False, False, True, True]
    await room.settle_down()
    assert room.publish(b"5") == [True]
    await room.settle_down()
    assert room.confirmed() == [b"1", b"2"]
    assert await room.drain() == [b"1", b"2"]
    assert room.publish(b"6") == [False]


async def test_what_a_full_queue_does_not_take_goes_on_and_says_why() -> None:
    room = Room()
    dead_letters(room, x_max_length=1, x_overflow="reject-publish-dlx")
    assert room.publish(b"1", b"2") == [False, True]
    await room.settle_down()
    room.power_cut()
    found = await room.get("dead")
    assert found is not None
    assert found[1].payload == b"2"
    assert deaths(found[1]) == [("q", "maxlen", 1)]
    assert origin_of(found[1].topic, found[1].headers) == ("amq.direct", "gone")
    assert await room.drain() == [b"1"]


async def test_dead_letters_say_why_and_by_which_way_they_came() -> None:
    room = Room()
    dead_letters(room, x_max_length=1)
    room.publish(b"1", b"2")
    await room.settle_down()
    found = await room.get("dead")
    assert found is not None
    assert deaths(found[1]) == [("q", "maxlen", 1)]
    assert origin_of(found[1].topic, found[1].headers) == ("amq.direct", "gone")
    headers = dict(found[1].headers)
    assert headers["x-first-death-queue"] == "q"
    assert json.loads(str(headers["amqp.types"])) == {"x-death": [{"count": "l"}]}
    assert await room.drain() == [b"2"]
    assert room.queues.contents.expired == 0, "there was no room, and time for all"


async def test_a_dead_letter_keeps_the_topic_that_it_came_by() -> None:
    """A dot in a topic of MQTT is no dot of a routing key: the way back from the key would be another topic."""
    room = Room(patterns={})
    declare(room, x_dead_letter_exchange="amq.fanout")
    room.queues.declarations.declare_queue(room.client, "dead", durable=True)
    room.queues.declarations.bind(room.client, "dead", "amq.fanout")
    room.queues.declarations.bind(room.client, "q", "amq.topic", "#")
    room.publish_mqtt(b"plant/a.b", b"1")
    taker = room.consume()
    await room.settle_down()
    taker.settle(Outcome.REJECT)
    await room.settle_down()
    found = await room.get("dead")
    assert found is not None
    assert (found[1].topic, found[1].payload) == (b"plant/a.b", b"1")
    assert origin_of(found[1].topic, found[1].headers) == ("amq.fanout", "plant.a.b")


async def test_a_rejected_message_is_a_dead_letter_in_the_same_commit() -> None:
    room = Room()
    dead_letters(room)
    room.publish(b"1", b"2")
    taker = room.consume()
    await room.settle_down()
    taker.settle(Outcome.REJECT, count=1)
    await room.settle_down()
    room.queues.consumptions.cancel(taker.consumption)
    room.power_cut()
    assert await room.drain("dead") == [b"1"]
    assert await room.drain("q") == [b"2"]


async def test_messages_expire_by_the_queue_and_by_themselves() -> None:
    room = Room()
    dead_letters(room, x_message_ttl=50)
    room.publish(b"short", headers=((EXPIRES, room.clock.wall() + 10 * MS), ("amqp.expiration", "10")))
    room.publish(b"long")
    await room.settle_down()
    room.clock.ahead += 20 * MS
    await asyncio.sleep(0.02)
    await room.settle_down()
    found = await room.get("dead")
    assert found is not None
    assert found[1].payload == b"short"
    assert room.queues.contents.expired == 1
    entry = json.loads(str(dict(found[1].headers)["x-death"]))[0]
    assert (entry["reason"], entry["original-expiration"]) == ("expired", "10")
    assert EXPIRES not in dict(found[1].headers)
    room.clock.ahead += 40 * MS
    assert await room.drain() == [], "also before the timer"


@pytest.mark.parametrize("in_order", [True, False])
async def test_messages_expire_after_a_restart_although_nobody_reads_their_queue(in_order: bool) -> None:
    room = Room()
    dead_letters(room, x_message_ttl=60_000)
    declare(room, "other", x_dead_letter_exchange="amq.direct", x_dead_letter_routing_key="gone")
    room.publish(b"1")
    await room.settle_down()
    room.publish(b"2", key="other", headers=((EXPIRES, room.clock.wall() + 60_000 * MS),))
    await room.settle_down()
    if in_order:
        await room.restart()
    else:
        room.power_cut()
    await room.settle_down()
    assert room.queue("dead").count == 0
    room.clock.ahead += 61_000 * MS
    room.power_cut()
    await room.settle_down()
    assert room.queue("dead").count == 2
    assert sorted(await room.drain("dead")) == [b"1", b"2"]


async def test_a_message_without_time_goes_to_a_consumer_that_waits() -> None:
    room = Room()
    declare(room, x_message_ttl=0)
    taker = room.consume(prefetch=1)
    room.publish(b"1", b"2")
    await room.settle_down()
    assert taker.payloads == [b"1"]
    assert room.queue().count == 0


async def test_a_dead_letter_does_not_go_round_without_end() -> None:
    room = Room()
    declare(room, x_message_ttl=0, x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    room.publish(b"1")
    await room.settle_down()
    assert room.queue().count == 0
    assert room.queues.bounds.waiting.used == 0


async def test_a_message_that_fails_too_often_is_a_dead_letter() -> None:
    room = Room()
    dead_letters(room, x_queue_type="quorum", x_delivery_limit=2)
    room.publish(b"1")
    taker = room.consume()
    for attempt in range(3):
        await room.settle_down()
        assert taker.got[-1][0].attempts == attempt
        taker.settle(Outcome.REQUEUE)
    await room.settle_down()
    assert len(taker.got) == 3
    assert await room.drain("dead") == [b"1"]


async def test_the_highest_priority_comes_first_also_after_a_restart() -> None:
    room = Room()
    declare(room, x_max_priority=5)
    for payload, priority in ((b"low", 0), (b"high", 5), (b"mid", 3), (b"higher", 9)):
        room.publish(payload, headers=((PRIORITY, priority),))
    await room.settle_down()
    room.power_cut()
    assert await room.drain() == [b"high", b"higher", b"mid", b"low"]


async def test_messages_of_a_high_priority_are_not_marked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    room, marked = Room(), list[int]()
    declare(room, x_max_priority=1)
    for priority, count in ((0, 1100), (1, 60), (0, 1)):
        room.publish(*[b"x"] * count, headers=((PRIORITY, priority),))
        await room.settle_down()
    room.queue().marks._steps = 10  # marks run ahead as far as they may
    monkeypatch.setattr(room.queues.writer, "marked", lambda _, end: marked.append(end))
    taker = room.consume(prefetch=1)
    for _ in range(50):
        await room.settle_down()
        taker.settle()
    assert len(taker.got) == 50
    assert len(marked) == 1


async def test_a_queue_that_nobody_uses_is_deleted() -> None:
    room = Room()
    declare(room, x_expires=30)
    taker = room.consume()
    await asyncio.sleep(0.06)
    room.queues.consumptions.cancel(taker.consumption)
    room.queues.declarations.find_queue(room.client, "q")
    await asyncio.sleep(0.06)
    with pytest.raises(QueueError) as missing:
        room.queues.declarations.find_queue(room.client, "q")
    assert missing.value.reason is Reason.NOT_FOUND


async def test_an_owner_whose_queues_are_full_is_rejected_and_others_are_not() -> None:
    entry = ENTRY_BYTES + 1
    room = Room(limits=QueueLimits(size_bytes=100 * entry, user_share=0.03))
    declare(room)
    other = room.new_client("bob")
    room.queues.declarations.declare_queue(other, "bobs", durable=True)
    rejected = []
    for number in range(5):
        rejected += room.publish(b"%d" % number)
        await room.settle_down()
    assert rejected == [False, False, False, True, True]
    assert room.publish(b"x", key="bobs") == [False]
    room.publish_mqtt(b"q", b"devices are not held up")
    await room.settle_down()
    assert room.refusals
    assert await room.drain() == [b"0", b"1", b"2"]
    assert room.publish(b"5") == [False]
    await room.settle_down()
    assert room.queues.figures.facts()["bytes"] == 2 * entry


async def test_numbers_of_things_have_shares() -> None:
    room = Room(limits=QueueLimits(queues=QueueBounds(queues=10, bindings=5), user_share=0.2))
    declare(room, "a")
    declare(room, "b")
    with pytest.raises(QueueError) as refused:
        declare(room, "c")
    assert refused.value.reason is Reason.TOO_MANY
    room.queues.declarations.bind(room.client, "a", "amq.direct", "1")
    room.queues.declarations.bind(room.client, "a", "amq.direct", "1")
    with pytest.raises(QueueError) as refused:
        room.queues.declarations.bind(room.client, "a", "amq.direct", "2")
    assert refused.value.reason is Reason.TOO_MANY
    room.queues.declarations.delete_queue(room.client, "a")
    declare(room, "c")
    room.queues.declarations.bind(room.client, "c", "amq.direct", "2")
    assert room.queues.bounds.queues.taken(OWNER) == 2


@pytest.mark.parametrize(
    ("key", "arguments", "units"),
    [
        ("a.b.c", {}, 1),
        ("", {"kind": "press", "number": 17, "x-match": "all"}, 1),
        ("a" * 250, {}, 2),
        (".".join("a" * 128), {}, 18),
        ("a.#", {}, 1),
        ("#.a", {}, 17),
        ("", {"h": "x" * 4000}, 16),
        ("", {str(number): 1 for number in range(15)}, 4),
        ("", {str(number): 1 for number in range(800)}, 216),
    ],
    ids=["plain", "headers", "long key", "words", "end", "loop", "long value", "15 headers", "800 headers"],
)
async def test_a_binding_counts_with_what_it_takes(key: str, arguments: dict[str, Any], units: int) -> None:
    room = Room()
    declare(room)
    room.queues.declarations.bind(room.client, "q", "amq.headers", key, arguments)
    assert room.queues.bounds.bindings.used == units
    room.queues.declarations.unbind(room.client, "q", "amq.headers", key, arguments)
    assert room.queues.bounds.bindings.used == 0


async def test_large_bindings_have_an_end_and_those_that_are_there_stay() -> None:
    room = Room(limits=QueueLimits(queues=QueueBounds(bindings=1024), user_share=0.5))
    declare(room)
    count = 512 * 256 // 4096
    for number in range(count):
        room.queues.declarations.bind(room.client, "q", "amq.headers", "", {"k": f"{number:06}{'v' * 3900}"})
    with pytest.raises(QueueError) as refused:
        room.queues.declarations.bind(room.client, "q", "amq.headers", "", {"k": "v" * 3900})
    assert refused.value.reason is Reason.TOO_MANY
    await room.settle_down()
    room.limits = QueueLimits(queues=QueueBounds(bindings=1024), user_share=0.0625)
    await room.restart()
    assert len(list(room.queues.registry.topology.bindings())) == count
    with pytest.raises(QueueError):
        room.queues.declarations.bind(room.client, "q", "amq.direct")
    room.queues.declarations.delete_queue(room.client, "q")
    declare(room)
    await room.settle_down()
    room.queues.declarations.bind(room.client, "q", "amq.direct")


def test_numbers_that_no_record_can_hold_become_text() -> None:
    numbers = {"most": (1 << 63) - 1, "least": -(1 << 63), "above": 1 << 63, "below": -(1 << 63) - 1}
    assert plain_arguments(numbers) == {
        "most": (1 << 63) - 1,
        "least": -(1 << 63),
        "above": "9223372036854775808",
        "below": "-9223372036854775809",
    }


async def test_names_in_arguments_are_not_long() -> None:
    room = Room()
    long = "x" * 256
    for arguments in (
        {"x_dead_letter_exchange": long},
        {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": long},
    ):
        with pytest.raises(QueueError) as refused:
            declare(room, **arguments)
        assert refused.value.reason is Reason.PRECONDITION_FAILED
    with pytest.raises(QueueError) as refused:
        room.queues.declarations.declare_exchange(room.client, "e", arguments={"alternate-exchange": long})
    assert refused.value.reason is Reason.PRECONDITION_FAILED


async def test_unacknowledged_deliveries_have_a_share() -> None:
    room = Room(limits=QueueLimits(queues=QueueBounds(unacknowledged=100), user_share=0.02))
    declare(room)
    room.publish(b"1", b"2", b"3")
    taker = room.consume()
    await room.settle_down()
    assert taker.payloads == [b"1", b"2"]
    taker.settle(count=1)
    await room.settle_down()
    assert taker.payloads == [b"1", b"2", b"3"]


async def test_get_asks_for_the_share_of_unacknowledged_deliveries() -> None:
    room = Room(limits=QueueLimits(queues=QueueBounds(unacknowledged=100), user_share=0.02))
    declare(room)
    room.publish(b"1", b"2", b"3")
    await room.settle_down()
    first, second = await room.get(), await room.get()
    assert first is not None
    assert second is not None
    for needs_acks in (True, False):
        with pytest.raises(QueueError) as refused:
            await room.get(needs_acks=needs_acks)
        assert refused.value.reason is Reason.TOO_MANY
    assert [each.bound for each in room.refusals] == ["limits.user_share of queues.unacknowledged"]
    room.queues.settling.settle([first[0]], Outcome.ACCEPT)
    assert await room.get(needs_acks=False) is not None
    assert await room.get() is None
    room.queues.settling.settle([second[0]], Outcome.ACCEPT)
    assert room.queues.bounds.unacknowledged.used == 0


async def test_clients_that_wait_for_one_message_have_a_share_until_they_have_it() -> None:
    room = Room(limits=QueueLimits(queues=QueueBounds(unacknowledged=100), user_share=0.03))
    declare(room)
    room.publish(*(b"%d" % number for number in range(10)))
    await room.settle_down()
    found: list[Any] = []
    waiting = [room.queues.consumptions.get(room.client, "q", found.append, needs_acks=False) for _ in range(3)]
    assert all(each.active for each in waiting), "the log does not say yet that they may have been delivered"
    with pytest.raises(QueueError):
        room.queues.consumptions.get(room.client, "q", found.append, needs_acks=False)
    room.queues.consumptions.cancel(waiting.pop())
    assert room.queues.bounds.unacknowledged.used == 2
    await room.settle_down()
    assert len(found) == 2
    assert room.queues.bounds.unacknowledged.used == 0
    room.queues.declarations.purge(room.client, "q")
    room.publish(b"more")
    await room.settle_down()
    room.queues.consumptions.get(room.client, "q", found.append)
    room.queues.declarations.delete_queue(room.client, "q")
    assert found[-1] is None
    assert room.queues.bounds.unacknowledged.used == 0


async def test_dead_letters_do_not_go_beyond_the_share_of_those_who_get_them() -> None:
    entry = ENTRY_BYTES + 1
    room = Room(limits=QueueLimits(size_bytes=100 * entry, user_share=0.03))
    bob = room.new_client("bob")
    room.queues.declarations.declare_queue(bob, "bobs", durable=True)
    room.queues.declarations.bind(bob, "bobs", "amq.direct", "gone")
    declare(room, x_message_ttl=0, x_dead_letter_exchange="amq.direct", x_dead_letter_routing_key="gone")
    for number in range(5):
        assert room.publish(b"%d" % number) == [False]
        await room.settle_down()
    assert room.queue("bobs").count == 3
    assert room.queue("bobs").dropped == room.queues.figures.facts()["not_taken"] == 2
    assert [each.bound for each in room.refusals] == ["limits.user_share of queues.size"]
    assert room.queues.bounds.waiting.used == 3 * entry
    assert await room.drain("bobs") == [b"0", b"1", b"2"]


async def test_a_full_share_does_not_keep_dead_letters_from_the_same_owners_queue() -> None:
    entry = ENTRY_BYTES + 1
    room = Room(limits=QueueLimits(size_bytes=100 * entry, user_share=0.03))
    dead_letters(room)
    room.queues.declarations.declare_queue(room.client, "more", durable=True)
    room.queues.declarations.bind(room.client, "more", "amq.direct", "gone")
    assert room.publish(b"1", b"2", b"3") == [False] * 3
    taker = room.consume()
    await room.settle_down()
    taker.settle(Outcome.REJECT)
    await room.settle_down()
    assert room.queues.bounds.waiting.used == 3 * entry
    assert await room.drain("dead") == [b"1", b"2", b"3"]
    assert await room.drain("more") == [], "each message makes room for one"


@pytest.mark.parametrize(
    "entries",
    ["[" * 100_000, json.dumps([{"queue": "q", "reason": "expired", "count": int("9" * 4300)}])],
    ids=["deep", "long"],
)
async def test_what_a_publisher_says_of_deaths_holds_up_no_dead_letters(entries: str) -> None:
    room = Room()
    declare(room, x_message_ttl=0, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    declare(room, "dead")
    room.publish(b"1")
    room.publish(b"2", headers=(("x-death", entries),))
    room.publish(b"3")
    await room.settle_down()
    assert await room.drain("dead") == [b"1", b"2", b"3"]
