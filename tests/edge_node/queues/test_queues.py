"""Queues as clients see them: what is published to them, who gets it, and what becomes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.edge_node.queues.room import Room
from tests.support.waiting import PATIENCE_S
from weft.bounds import Bound, Owner, OwnerKind, Quota, Refusals
from weft.config.load import load
from weft.config.metrics.edge import QUEUE_METRICS
from weft.config.metrics.exposition import Sample
from weft.config.models import EdgeConfig
from weft.edge_node.node import EdgeNode
from weft.edge_node.queues import consuming, ready, state
from weft.edge_node.queues.definitions import QueueArguments, QueueError, Reason
from weft.edge_node.queues.definitions import QueueDefinition as Definition
from weft.edge_node.queues.limits import QueueLimits, QueueShares
from weft.edge_node.queues.queue import Consumption, Credit, Getter, Queue, QueueClient
from weft.edge_node.queues.ready import Outcome
from weft.edge_node.status.facts import samples
from weft.text.edge_status import show_queues


async def test_a_message_goes_to_its_queue_and_is_confirmed_when_it_is_durable() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    taker = room.consume()
    room.publish(b"a", b"b")
    room.batch.store()
    assert taker.payloads == [b"a", b"b"], "consumers do not wait for the disk"
    assert room.confirmed() == []
    await room.settle_down()
    assert room.confirmed() == [b"a", b"b"]
    taker.settle()
    await room.settle_down()
    assert room.queues.declarations.find_queue(room.client, "q").messages == 0


async def test_what_was_confirmed_is_there_after_a_power_cut_and_what_was_settled_is_not() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(b"1", b"2", b"3", b"4")
    await room.settle_down()
    taker = room.consume(prefetch=2)
    await room.settle_down()
    assert taker.payloads == [b"1", b"2"]
    taker.settle(count=1)
    await room.settle_down()
    assert taker.payloads == [b"1", b"2", b"3"]
    room.power_cut()
    taker = room.consume()
    await room.settle_down()
    assert taker.payloads == [b"2", b"3", b"4"]
    assert taker.flagged == [b"2", b"3"]
    room.publish(b"5")
    await room.settle_down()
    assert taker.payloads == [b"2", b"3", b"4", b"5"]
    assert taker.flagged == [b"2", b"3"]


async def test_a_restart_in_order_flags_only_what_was_delivered() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(*(b"%d" % number for number in range(20)))
    taker = room.consume(prefetch=5)
    await room.settle_down()
    taker.settle(count=2)
    await room.settle_down()
    room.queues.disconnects.begin(room.client)
    await room.restart()
    taker = room.consume()
    await room.settle_down()
    assert taker.payloads == [b"%d" % number for number in range(2, 20)]
    assert taker.flagged == [b"%d" % number for number in range(2, 7)]
    assert [delivery.attempts for delivery, _ in taker.got[:6]] == [1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize(("is_quick", "ahead"), [(False, 4), (True, 16)])
async def test_a_crash_flags_what_readers_had_and_what_they_were_about_to_get(
    monkeypatch: pytest.MonkeyPatch, is_quick: bool, ahead: int
) -> None:
    """Readers that take more during a commit than is marked have further marks, and other readers do not."""
    monkeypatch.setattr(ready, "EXACT", 0)
    monkeypatch.setattr(ready, "_STEPS", 2)
    monkeypatch.setattr(ready, "_STEPS_MAX", 4)
    room, longest = Room(), 0
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(*(b"%d" % number for number in range(300)))
    await room.settle_down()
    taker = room.consume(prefetch=1)
    for _ in range(12):
        had = len(taker.got)
        for _ in range(40 if is_quick else 1):  # between two commits
            taker.settle()
            room.batch.store()
            await asyncio.sleep(0)
        longest = max(longest, len(taker.got) - had)
        await room.settle_down()
    delivered, acknowledged = len(taker.got), len(taker.got) - len(taker.unsettled)
    assert longest == (ahead if is_quick else 1), "messages between two commits"
    room.power_cut()
    taker = room.consume()
    await room.settle_down()
    assert taker.payloads == [b"%d" % number for number in range(acknowledged, 300)]
    assert taker.flagged == taker.payloads[: len(taker.flagged)]
    assert delivered <= acknowledged + len(taker.flagged) <= delivered + ahead


async def test_a_restart_knows_the_bytes_of_what_is_left() -> None:
    """`x-max-length-bytes` and the owners' shares count by them."""
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(*(b"x" * (100 * number) for number in range(1, 9)))
    taker = room.consume(prefetch=8)
    await room.settle_down()
    for count in (1, 2, 1):  # two of the settlements are in one commit
        taker.settle(count=count)
    await room.settle_down()
    taker.settle(count=1)
    await room.settle_down()
    left = sum(100 * number for number in range(6, 9))
    room.power_cut()
    assert (room.queue().count, room.queue().ready.bytes) == (3, left)
    await room.restart()
    assert room.queue().ready.bytes == left
    await room.drain()
    await room.restart()
    assert room.queue().ready.bytes == 0


async def test_only_durable_exchanges_outlive_a_restart() -> None:
    room = Room()
    declare = room.queues.declarations.declare_exchange
    declare(room.client, "lasting", durable=True)
    declare(room.client, "passing")
    before = len(list(room.queues.registry.topology.exchanges))
    await room.restart()
    assert "lasting" in room.queues.registry.topology.exchanges
    assert "passing" not in room.queues.registry.topology.exchanges
    assert len(room.queues.registry.topology.exchanges) == before - 1
    room.queues.declarations.declare_exchange(room.client, "passing", "fanout")


async def test_a_node_that_stops_lets_go_of_all_that_its_clients_have() -> None:
    """A client that leaves behind much does it in turns, which a stop does not wait for."""
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(b"1", b"2")
    client = room.new_client()
    for number in range(3 * consuming.CONSUMERS_AT_ONCE):
        room.queues.declarations.declare_queue(client, f"own-{number}", exclusive=True)
    taker = room.consume(client=client)
    await room.settle_down()
    assert taker.payloads == [b"1", b"2"]
    room.queues.disconnects.begin(client)
    assert len(room.queues.registry.queues) > consuming.CONSUMERS_AT_ONCE, "it takes turns"
    room.queues.close()
    assert list(room.queues.registry.queues) == ["q"]
    assert room.queue().count == 2
    room.commit()
    room.log.close()
    room.wheel.close()
    room.start()
    assert await room.drain() == [b"1", b"2"]


async def test_many_messages_are_a_reason_for_a_copy_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads all messages since the last copy, however small they are."""
    monkeypatch.setattr(state, "COPY_MESSAGES_BYTES", 20 * state.MESSAGE_BYTES)
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    await room.settle_down()
    assert room.queues.writer.copied_bytes == 0
    room.publish(*([b"1"] * 30))
    await room.settle_down()
    room.queues.writer.copy_if_due()
    assert room.queues.writer.copied_bytes > 0


async def test_messages_come_in_order_from_memory_and_from_the_log() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    numbers = [b"%d" % number for number in range(1000)]
    room.publish(*numbers[:500])
    await room.settle_down()
    room.queue().loaded.clear()
    room.publish(*numbers[500:])
    await room.settle_down()
    assert await room.drain() == numbers
    await room.settle_down()
    assert room.stored() == [] or room.queues.bounds.waiting.used == 0


async def test_what_goes_back_comes_again_at_its_place_and_flagged() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(b"1", b"2", b"3", b"4", b"5")
    taker = room.consume(prefetch=3)
    await room.settle_down()
    assert taker.payloads == [b"1", b"2", b"3"]
    room.queues.settling.settle([taker.unsettled.pop(1)], Outcome.REQUEUE)
    await room.settle_down()
    assert taker.payloads == [b"1", b"2", b"3", b"2"]
    assert taker.flagged == [b"2"]
    assert taker.got[-1][0].attempts == 1
    taker.settle(Outcome.RELEASE)
    await room.settle_down()
    assert taker.payloads == [b"1", b"2", b"3", b"2", b"1", b"2", b"3"]


async def test_a_purge_and_an_acknowledgement_of_one_turn_leave_the_other_deliveries() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(*(b"%d" % number for number in range(6)))
    await room.settle_down()
    got = [await room.get() for _ in range(3)]
    first, _, third = (found[0] for found in got if found is not None)
    room.queues.settling.settle([first], Outcome.REQUEUE)
    await room.settle_down()
    assert room.queues.declarations.purge(room.client, "q") == 4
    room.queues.settling.settle([third], Outcome.ACCEPT)
    await room.settle_down()
    room.power_cut()
    assert await room.drain() == [b"1"]


async def test_exchanges_route_by_their_types() -> None:
    room = Room()
    queues, client = room.queues, room.client
    for name in ("direct", "topic", "fanout", "headers", "all"):
        queues.declarations.declare_queue(client, name, durable=True)
    queues.declarations.bind(client, "direct", "amq.direct", "red")
    queues.declarations.bind(client, "topic", "amq.topic", "plant.*.#.end")
    queues.declarations.bind(client, "fanout", "amq.fanout")
    queues.declarations.bind(client, "headers", "amq.headers", "", {"x-match": "any", "a": 1, "b": "two"})
    for exchange in ("amq.direct", "amq.topic", "amq.fanout", "amq.headers"):
        queues.declarations.bind_exchange(client, "amq.fanout", exchange, "#")
        with pytest.raises(QueueError) as refused:
            queues.declarations.bind(client, "all", "", "all")
        assert refused.value.reason is Reason.ACCESS_REFUSED
    room.publish(b"1", exchange="amq.direct", key="red")
    room.publish(b"2", exchange="amq.direct", key="blue")
    room.publish(b"3", exchange="amq.topic", key="plant.a.end")
    room.publish(b"4", exchange="amq.topic", key="plant.a.b.c.end")
    room.publish(b"5", exchange="amq.topic", key="plant.end")
    room.publish(b"6", exchange="amq.headers", key="", headers=(("a", 1),))
    room.publish(b"7", exchange="amq.headers", key="", headers=(("a", 2), ("b", "three")))
    await room.settle_down()
    assert await room.drain("direct") == [b"1"]
    assert await room.drain("topic") == [b"3", b"4"]
    assert await room.drain("headers") == [b"6"]
    assert await room.drain("fanout") == [b"3", b"4", b"5", b"6", b"7"]


async def test_an_mqtt_publish_reaches_queues_that_are_bound_to_its_topic() -> None:
    room = Room(patterns={"plant": ["plant/#"]})
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    assert room.ingest.routing.route(b"plant/a/t").queues is None, "nothing is bound: publishes cost what they did"
    room.publish_mqtt(b"plant/a/t", b"before")
    room.queues.declarations.bind(room.client, "q", "amq.topic", "plant.*.t")
    room.publish_mqtt(b"plant/a/t", b"1")
    room.publish_mqtt(b"plant/a/u", b"2")
    await room.settle_down()
    assert await room.drain() == [b"1"]
    assert room.stored("plant") == [b"before", b"1", b"2"]
    assert room.confirmed() == [b"before", b"1", b"2"]


@pytest.mark.parametrize("error", [OSError("input/output error"), ValueError("a mistake")], ids=["disk", "mistake"])
async def test_a_page_that_cannot_be_read_is_read_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.edge_node.queues.delivery.RETRY_S", 0.01)
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    room.publish(b"1", b"2")
    await room.settle_down()
    room.power_cut()
    messages, failures = room.queues.deliveries._messages, [error, error]
    fetch = messages.fetch

    async def fail_first(*asked: Any) -> Any:
        if failures:
            raise failures.pop()
        return await fetch(*asked)

    monkeypatch.setattr(messages, "fetch", fail_first)
    taker = room.consume()
    async with asyncio.timeout(PATIENCE_S):
        while len(taker.got) < 2:
            await room.settle_down()
            await asyncio.sleep(0.005)
    assert taker.payloads == [b"1", b"2"]


# --- Turns of consumers: a run of messages goes to those that one message after the other would go to


OWNERS = [Owner(OwnerKind.USER, name) for name in ("ann", "bob")]


class Reader:
    """The identity of a client that may read some topics."""

    unrestricted = False

    def may_read(self, topic: bytes) -> bool:
        return topic != b"secret"


class Wish(NamedTuple):
    """A consumer to make."""

    priority: int
    channel: int
    prefetch: int
    owner: int
    needs_acks: bool
    may_read_all: bool


WISHES = st.builds(
    Wish, st.integers(0, 1), st.integers(0, 2), st.integers(0, 4), st.integers(0, 1), st.booleans(), st.booleans()
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(1, 12), st.sampled_from([b"open", b"secret"])),
        st.tuples(st.just("settle"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
    ),
    max_size=12,
)


class TurnsRoom:
    """The consumers of one queue, with a credit for each channel and one for each consumer."""

    def __init__(self, wishes: Sequence[Wish], share: int, *, single_active: bool) -> None:
        arguments = QueueArguments(single_active=single_active)
        self.queue = Queue(Definition(1, "q", False, False, False, arguments, OWNERS[0].kind, OWNERS[0].name, since=0))
        self.shares = Bound(Quota("queues.unacknowledged", 2 * share - 1, share, "deliveries"), Refusals(lambda: 0.0))
        channels = [Credit(5, comes_back=True), Credit(2, comes_back=True), Credit(comes_back=True)]
        self.all: list[Consumption] = []
        for wish in wishes:
            reader: Any = None if wish.may_read_all else Reader()
            credit = [channels[wish.channel]]
            if wish.prefetch:
                credit.append(Credit(wish.prefetch, comes_back=True))
            consumption = Consumption(
                self.queue,
                QueueClient(OWNERS[wish.owner], reader),
                Getter(self.queue, lambda _: None),
                credit if wish.needs_acks else [],
                lambda _: None,
                needs_acks=wish.needs_acks,
                exclusive=False,
                priority=wish.priority,
            )
            self.all.append(consumption)
            self.queue.consumptions.add(consumption)
        self.unsettled = dict.fromkeys(self.all, 0)

    def deliver(self, count: int, topic: bytes, *, by_turns: bool) -> list[int]:
        """Give messages to consumers; return the consumer of each."""
        found: list[int] = []
        consumers = self.queue.consumptions
        while len(found) < count:
            first = consumers.choose(topic, self.shares.fits)
            if first is None:
                break
            group: Sequence[Consumption] = (first,)
            run = 1
            if by_turns:
                group, run = consumers.by_turns(first, topic, self.shares, count - len(found))
            for at in range(run):
                each = group[at % len(group)]
                each.take(1)
                if each.needs_acks:
                    self.shares.hold(each.client.owner)
                    self.unsettled[each] += 1
                found.append(self.all.index(each))
            consumers.took(group, run)
        return found

    def settle(self, number: int, count: int) -> None:
        """Free the credit and the share of some messages of a consumer."""
        each = self.all[number % len(self.all)]
        for _ in range(min(count, self.unsettled[each])):
            self.unsettled[each] -= 1
            self.shares.free(each.client.owner)
            for credit in each.credits:
                credit.give(1)

    def cancel(self, number: int) -> None:
        """End a consumer."""
        each = self.all[number % len(self.all)]
        if each.active:
            each.end()
            self.queue.consumptions.remove(each)


@given(st.lists(WISHES, min_size=1, max_size=6), st.integers(1, 8), st.booleans(), STEPS)
def test_a_run_goes_where_its_messages_would_go_one_by_one(
    wishes: list[Wish], share: int, single_active: bool, steps: list[tuple[str, int, Any]]
) -> None:
    rooms = [TurnsRoom(wishes, share, single_active=single_active) for _ in range(2)]
    for what, first, second in steps:
        if what == "deliver":
            one_by_one, in_runs = [
                room.deliver(first, second, by_turns=by_turns)
                for room, by_turns in zip(rooms, (False, True), strict=True)
            ]
            assert in_runs == one_by_one
            continue
        for room in rooms:
            if what == "settle":
                room.settle(first, second)
            else:
                room.cancel(first)


# --- Queues as a part of a node: there when a listener has or had them, bounded by settings, told in the status


ANN = Owner(OwnerKind.USER, "ann")
CONFIG = """
node: n
data_dir: {folder}/data
http: null
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
disk: {{budget: 64MiB}}
queues: {{unacknowledged: 8}}
"""


def node(folder: Path) -> EdgeNode:
    file = folder / "edge.yaml"
    file.write_text(CONFIG.format(folder=folder))
    return EdgeNode(load(str(file), EdgeConfig).config)


async def test_a_node_that_has_no_queues_pays_nothing_and_one_that_had_some_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = node(tmp_path)
    shares = QueueShares(QueueLimits.of(first.config), Refusals(time.monotonic))
    assert shares.unacknowledged.share == 2
    assert (shares.waiting.total, shares.waiting.share) == (16 << 20, 4 << 20)
    await first.start()
    assert first.queues is None
    assert "weft-queues" not in first.log.streams()
    await first.close()
    with monkeypatch.context() as patch:
        patch.setattr("weft.edge_node.node.has_listener", lambda *_: True)
        second = node(tmp_path)
        await second.start()
    assert second.queues is not None
    second.queues.declarations.declare_queue(QueueClient(ANN), "jobs", durable=True)
    second.queues.declarations.bind(QueueClient(ANN), "jobs", "amq.topic", "plant.#")
    await second.log.durable()
    await second.close()
    third = node(tmp_path)
    await third.start()
    assert third.queues is not None, "what was bound continues taking messages"
    route = third.queues.arrivals.of_topic(b"plant/a")
    assert route is not None
    facts = third.status.facts()["queues"]
    assert facts["longest"][0]["queue"] == "jobs"
    reported = {each.name: each.value for each in samples(third.status) if isinstance(each, Sample)}
    catalogue = {metric.name for metric in QUEUE_METRICS}
    assert catalogue <= reported.keys(), "every metric of queues is exported"
    assert reported["weft_edge_queues"] == 1
    show_queues(facts)
    shown = capsys.readouterr().out
    assert "0 messages in 1 queue" in shown
    assert "jobs" in shown
    await third.close()


async def test_what_became_of_messages_is_counted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    room = Room()
    show_queues(room.queues.figures.facts())
    assert capsys.readouterr().out == "", "a node without queues says nothing of them"
    room.queues.declarations.declare_queue(room.client, "dead", durable=True)
    gone = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    room.queues.declarations.declare_queue(room.client, "q", durable=True, arguments={**gone, "x-max-length": 3})
    taker = room.consume(prefetch=2)
    room.publish(b"1", b"2", b"3", b"4", b"5", b"6")
    await room.settle_down()
    taker.settle(Outcome.ACCEPT, count=1)
    await room.settle_down()
    taker.settle(Outcome.REQUEUE, count=1)
    taker.settle(Outcome.REJECT, count=1)
    await room.settle_down()
    facts = room.queues.figures.facts()
    assert (facts["acknowledged"], facts["dropped"], facts["dead_lettered"]) == (1, 1, 2)
    assert facts["published"] == 8, "six, and two dead letters"
    assert facts["redelivered"] == 1
    assert facts["delivered"] == len(taker.got)
    assert facts["consumers"] == 1
    assert facts["messages"] + facts["unacknowledged"] == 5, facts
    show_queues(facts)
    shown = capsys.readouterr().out
    assert "1 acknowledged" in shown
    assert "2 dead letters" in shown
