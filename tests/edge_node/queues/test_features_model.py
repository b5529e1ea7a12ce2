"""Whatever queues are declared as, and whatever clients, the clock and power do: a queue has what it should, in its
order, and each message that leaves it otherwise is a dead letter that says why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.edge_node.queues.room import Room, Taker
from weft.edge_node.ingest.record import Gathering
from weft.edge_node.queues.declarations import Published
from weft.edge_node.queues.exchange import numbers_in
from weft.edge_node.queues.ready import ENTRY_BYTES, Delivery, Outcome
from weft.edge_node.servers.amqp.publishing import Transaction
from weft.protocols.batch import HeaderPairs, records
from weft.protocols.message_headers import EXPIRES, PRIORITY
from weft.storage.segment_log import LogSettings

LOG = LogSettings(segment_bytes=1 << 16, budget_bytes=64 << 16, tail_bytes=3000, pending_bytes_max=1 << 20)
DLX = {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "dead"}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ttl": {**DLX, "x-message-ttl": 20_000},
    "drop": {**DLX, "x-max-length": 3},
    "reject": {"x-max-length": 3, "x-overflow": "reject-publish"},
    "priority": {"x-max-priority": 2},
    "limited": {**DLX, "x-delivery-limit": 2, "x-queue-type": "quorum"},
    "single": {"x-single-active-consumer": True},
    "exclusive": {},
    "auto": {},
    "expires": {"x-expires": 30_000},
    "dead": {},
}
NAMES = tuple(KINDS)
PAYLOAD_BYTES = 6
STEP_S = 5
"""Clocks continue by multiples of it; whatever the machine takes is less."""

Key = tuple[int, str, str]
"""Number of a message; of a dead letter also the queue that it left, and why."""


@dataclass(eq=False)
class Entry:
    """A message in a queue."""

    key: Key
    rank: int
    """Step in which it came: dead letters of one step come in any order."""
    priority: int = 0
    deadline_s: int | None = None
    own_deadline_s: int | None = None
    """When it would expire whatever the queue."""
    attempts: int = 0
    delivered: bool = False

    def order(self) -> tuple[int, int, int]:
        return (-self.priority, self.rank, 0 if self.key[1] else self.key[0])


@dataclass
class Model:
    """What a queue has."""

    number: int
    """Tells it from others of the same name."""
    ready: list[Entry] = field(default_factory=list)
    unsettled: dict[Delivery, Entry] = field(default_factory=dict)
    bound: bool = False
    used_s: int = 0
    """When a client has used it last."""

    def entries(self) -> Iterator[Entry]:
        yield from self.ready
        yield from self.unsettled.values()

    def keys(self) -> set[Key]:
        return {entry.key for entry in self.entries()}


class ShiftedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock continues when a test says so, beside continuing by itself."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


@dataclass
class Gatherer:
    """Publishes of a channel, of which there is one."""

    room: Room
    payload: bytes
    published: Published
    headers: HeaderPairs

    def gather(self, gathered: Gathering, *_: object) -> None:
        found = self.published
        assert found.route is not None
        gathered.add(found.route, found.topic, self.payload, self.room.publisher, 0, (*self.headers, *found.headers))


class FeaturesMachine(RuleBasedStateMachine):
    @initialize(declared=st.sets(st.sampled_from(NAMES)))
    def start(self, declared: set[str]) -> None:
        self.loop = ShiftedLoop()
        self.now_s = self.number = self.rank = 0
        self.models: dict[str, Model] = {}
        self.takers: dict[str, list[Taker]] = {}
        self.own_deadlines: dict[int, int | None] = {}
        self.exchange = False
        self.crashed = False
        self.run(self.make(sorted(declared | {"dead"})))

    async def make(self, declared: list[str]) -> None:
        self.room = Room(settings=LOG)
        self.room.queues.declarations.declare_exchange(self.room.client, "dlx", durable=True)
        for name in declared:
            self.declare_now(name)
        self.room.queues.declarations.bind(self.room.client, "dead", "dlx", "dead")
        self.models["dead"].bound = True
        self.declare_exchange_now()
        await self.quiet()

    # --- one step

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def quiet(self) -> None:
        for _ in range(500):
            await self.room.settle_down()
            if self.room.queues.dead_letters._task is None and not self.room.queues.settling._waiting:
                break
            await asyncio.sleep(0)
        await self.room.settle_down()

    def act(self, does: Callable[[], None]) -> None:
        """Do something, wait until all of it is done and durable, and compare."""

        async def act() -> None:
            self.rank += 1
            does()
            await self.quiet()

        self.run(act())
        self.taken()
        self.expire()
        self.compare()

    def taken(self) -> None:
        """Note what consumers got: the next messages, flagged if they came before."""
        for name, delivery, message in self.room.given:
            self.give(name, delivery, self.key(message.payload, message.headers))
        self.room.given.clear()

    def give(self, name: str, delivery: Delivery, key: Key) -> Entry:
        model = self.models[name]
        found = [entry for entry in model.ready if entry.key == key]
        assert len(found) == 1, f"{key} came from {name}, which has {[entry.key for entry in model.ready]}"
        entry = found[0]
        assert entry.order() == min(each.order() for each in model.ready), f"{key} is not the next one of {name}"
        assert entry.deadline_s is None or entry.deadline_s > self.now_s, f"{key} had expired"
        assert delivery.redelivered or not (entry.delivered or entry.attempts), f"{key} came before"
        assert self.crashed or delivery.redelivered == entry.delivered, f"{key} did not come before"
        assert delivery.attempts == entry.attempts
        model.ready.remove(entry)
        model.unsettled[delivery] = entry
        entry.delivered = True
        return entry

    def key(self, payload: bytes, headers: HeaderPairs) -> Key:
        deaths = json.loads(str(dict(headers).get("x-death", "[]")))
        assert len(deaths) <= 1
        if not deaths:
            return (int(payload), "", "")
        assert deaths[0]["count"] == 1
        return (int(payload), deaths[0]["queue"], deaths[0]["reason"])

    def expire(self) -> None:
        for name, model in list(self.models.items()):
            while model.ready:
                entry = min(model.ready, key=Entry.order)
                if entry.deadline_s is None or entry.deadline_s > self.now_s:
                    break
                model.ready.remove(entry)
                self.die(name, entry, "expired")

    def die(self, name: str, entry: Entry, reason: str) -> None:
        dead = self.models.get("dead")
        if "x-dead-letter-exchange" in KINDS[name] and dead is not None and self.dead_bound:
            deadline = None if reason == "expired" else entry.own_deadline_s
            key = (entry.key[0], name, reason)
            dead.ready.append(Entry(key, self.rank, deadline_s=deadline, own_deadline_s=deadline))

    def compare(self) -> None:
        """Compare what queues have with what they should, and what is charged for it."""
        actual, expected = (
            self.actual(),
            {
                name: (model.number, sorted(entry.key for entry in model.ready), len(model.unsettled))
                for name, model in self.models.items()
            },
        )
        assert actual == expected, f"{actual} is not {expected}"
        for name, model in self.models.items():
            assert not model.ready or not any(taker.credit.left > 0 for taker in self.takers.get(name, ())), name
        bounds, all_entries = self.room.queues.bounds, [each for m in self.models.values() for each in m.entries()]
        assert bounds.waiting.used == len(all_entries) * (ENTRY_BYTES + PAYLOAD_BYTES)
        assert bounds.unacknowledged.used == sum(len(model.unsettled) for model in self.models.values())
        assert bounds.queues.used == len(self.models)
        assert bounds.consumers.used == sum(map(len, self.takers.values()))

    def actual(self) -> dict[str, tuple[int, list[Key], int]]:
        """What queues have: number, ready messages, number of unsettled ones."""
        log, found = self.room.log, dict[int, Key]()
        stream = log.streams()["weft-queues"]
        seq = 0
        while seq < log.durable_end(stream) and (batches := log.read(stream, seq, 1 << 24)):
            for record in (each for data in batches for each in records(data)):
                seq = record.seq + 1
                assert list(numbers_in(record.headers))
                found[record.seq] = self.key(record.payload, record.headers)
        queues = self.room.queues.registry.queues
        return {
            name: (queue.number, sorted(found[each] for each in queue.ready), len(queue.unsettled))
            for name, queue in queues.items()
        }

    # --- declarations

    def declare_now(self, name: str) -> None:
        self.room.queues.declarations.declare_queue(
            self.room.client,
            name,
            durable=name != "exclusive",
            exclusive=name == "exclusive",
            auto_delete=name == "auto",
            arguments=KINDS[name],
        )
        if name not in self.models:
            self.models[name] = Model(self.room.queue(name).number)
            self.takers[name] = []
        self.models[name].used_s = self.now_s

    def declare_exchange_now(self) -> None:
        self.room.queues.declarations.declare_exchange(self.room.client, "all", "fanout", durable=True)
        self.exchange = True

    def gone(self, name: str) -> None:
        """Note that a queue is deleted."""
        del self.models[name], self.takers[name]

    @property
    def dead_bound(self) -> bool:
        return self.models["dead"].bound if "dead" in self.models else False

    @rule(name=st.sampled_from(NAMES))
    def declare(self, name: str) -> None:
        self.act(lambda: self.declare_now(name))

    @rule(name=st.sampled_from(NAMES), again=st.booleans())
    def delete(self, name: str, again: bool) -> None:
        def delete() -> None:
            self.room.queues.declarations.delete_queue(self.room.client, name)
            if name in self.models:
                self.gone(name)
            if again:
                self.declare_now(name)

        self.act(delete)

    @rule()
    def delete_exchange(self) -> None:
        def delete() -> None:
            self.room.queues.declarations.delete_exchange(self.room.client, "all")
            self.exchange = False
            for name, model in self.models.items():
                model.bound = model.bound and name == "dead"

        self.act(delete)

    @rule(name=st.sampled_from(NAMES), on=st.booleans())
    def bind(self, name: str, on: bool) -> None:
        if name not in self.models:
            return

        def bind() -> None:
            self.declare_exchange_now()
            does = self.room.queues.declarations.bind if on else self.room.queues.declarations.unbind
            if name == "dead":
                does(self.room.client, name, "dlx", "dead")
            else:
                does(self.room.client, name, "all")
            self.models[name].bound = on

        self.act(bind)

    # --- messages

    def takes(self, name: str) -> bool:
        return name != "reject" or len(self.models[name].ready) < KINDS[name]["x-max-length"]

    def publish_now(self, names: list[str], priority: int, seconds: int | None) -> tuple[bytes, HeaderPairs]:
        """Note a publish to queues, all of which take it. Returns payload and headers."""
        self.number += 1
        self.own_deadlines[self.number] = None if seconds is None else seconds + self.now_s
        headers: HeaderPairs = ((PRIORITY, priority),)
        if seconds is not None:
            headers += ((EXPIRES, self.room.clock.wall() + seconds * 1_000_000_000),)
        for name in names:
            ttl_ms = KINDS[name].get("x-message-ttl")
            times = [each for each in (seconds, None if ttl_ms is None else ttl_ms // 1000) if each is not None]
            self.models[name].ready.append(
                Entry(
                    (self.number, "", ""),
                    self.rank,
                    min(priority, KINDS[name].get("x-max-priority", 0)),
                    min(times) + self.now_s if times else None,
                    None if seconds is None else seconds + self.now_s,
                )
            )
        return b"%0*d" % (PAYLOAD_BYTES, self.number), headers

    def limit(self) -> None:
        """Note what a queue that is too long drops."""
        model = self.models.get("drop")
        while model is not None and len(model.ready) > KINDS["drop"]["x-max-length"]:
            entry = min(model.ready, key=Entry.order)
            model.ready.remove(entry)
            self.die("drop", entry, "maxlen")

    @rule(
        name=st.sampled_from([*NAMES, "all"]),
        priority=st.integers(0, 3),
        count=st.integers(1, 3),
        steps=st.none() | st.integers(1, 3),
    )
    def publish(self, name: str, priority: int, count: int, steps: int | None) -> None:
        for _ in range(count):
            self.publish_one(name, priority, None if steps is None else steps * STEP_S)

    def publish_one(self, name: str, priority: int, seconds: int | None) -> None:
        if name == "all":
            if not self.exchange:
                return
            names = [each for each, model in self.models.items() if model.bound and each != "dead"]
        else:
            names = [name] if name in self.models else []
        taken = [each for each in names if self.takes(each)]
        before = len(self.room.confirmed())

        def publish() -> None:
            payload, headers = self.publish_now(taken, priority, seconds)
            exchange, key = ("all", "") if name == "all" else ("", name)
            rejected = self.room.publish(payload, exchange=exchange, key=key, headers=headers)
            assert rejected == [taken != names]

        async def act() -> None:
            self.rank += 1
            publish()
            await self.quiet()

        self.run(act())
        assert len(self.room.confirmed()) == before + (taken == names)
        self.taken()
        if "drop" in taken:
            self.limit()
        self.expire()
        self.compare()

    # --- consumers

    @rule(name=st.sampled_from(NAMES), prefetch=st.integers(1, 4))
    def consume(self, name: str, prefetch: int) -> None:
        if name in self.models:
            self.act(lambda: self.takers[name].append(self.room.consume(name, prefetch)))

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name: str) -> None:
        if self.takers.get(name):

            def cancel() -> None:
                taker = self.takers[name].pop()
                self.room.queues.consumptions.cancel(taker.consumption)
                model = self.models[name]
                model.used_s = self.now_s
                if name == "auto" and not self.takers[name]:
                    self.gone(name)
                    return
                self.give_back(name, taker.unsettled, failed=True)
                self.room.queues.settling.settle(taker.unsettled, Outcome.REQUEUE)

            self.act(cancel)

    def give_back(self, name: str, deliveries: list[Delivery], *, failed: bool) -> None:
        limit = KINDS[name].get("x-delivery-limit")
        for delivery in deliveries:
            entry = self.models[name].unsettled.pop(delivery)
            entry.attempts += failed
            if limit is not None and entry.attempts > limit:
                self.die(name, entry, "delivery_limit")
            else:
                self.models[name].ready.append(entry)

    def settled(self, name: str, deliveries: list[Delivery], outcome: Outcome) -> None:
        if outcome in {Outcome.REQUEUE, Outcome.RELEASE}:
            self.give_back(name, deliveries, failed=outcome is Outcome.REQUEUE)
            return
        for delivery in deliveries:
            entry = self.models[name].unsettled.pop(delivery)
            if outcome is Outcome.REJECT:
                self.die(name, entry, "rejected")

    def some(self, name: str, count: int, last: bool) -> list[Delivery]:
        """Deliveries of one queue to settle, in the order of the messages or the other way round."""
        found = list(self.models[name].unsettled) if name in self.models else []
        found = found[::-1][:count] if last else found[:count]
        for taker in self.takers.get(name, ()):
            taker.unsettled = [each for each in taker.unsettled if each not in found]
        return found

    @rule(name=st.sampled_from(NAMES), outcome=st.sampled_from(Outcome), count=st.integers(1, 4), last=st.booleans())
    def settle(self, name: str, outcome: Outcome, count: int, last: bool) -> None:
        found = self.some(name, count, last)
        if found:

            def settle() -> None:
                self.settled(name, found, outcome)
                self.room.queues.settling.settle(found, outcome)

            self.act(settle)

    @rule(name=st.sampled_from(NAMES), needs_acks=st.booleans())
    def get(self, name: str, needs_acks: bool) -> None:
        if name not in self.models:
            return
        model, found = self.models[name], list[Any]()
        model.used_s = self.now_s

        async def get() -> None:
            self.rank += 1
            self.room.queues.consumptions.get(self.room.client, name, found.append, needs_acks=needs_acks)
            await self.quiet()

        self.run(get())
        assert len(found) == 1
        assert (found[0] is None) == (not model.ready)
        if found[0] is not None:
            delivery, message, left = found[0]
            self.give(name, delivery, self.key(message.payload, message.headers))
            assert left == len(model.ready)
            if not needs_acks:
                del model.unsettled[delivery]
        self.expire()
        self.compare()

    @rule(name=st.sampled_from(NAMES))
    def purge(self, name: str) -> None:
        if name in self.models:

            def purge() -> None:
                assert self.room.queues.declarations.purge(self.room.client, name) == len(self.models[name].ready)
                self.models[name].ready.clear()

            self.act(purge)

    # --- transactions

    def transaction(self, name: str, count: int, outcome: Outcome) -> None:
        """Settle and publish to two queues in one transaction, whose commit is written and not durable."""
        room, method = self.room, cast(Any, None)
        shared: Any = SimpleNamespace(
            context=SimpleNamespace(ingest=room.ingest),
            queues=room.queues,
            counters=SimpleNamespace(amqp_transactions=0),
        )
        client: Any = SimpleNamespace(read_buffer=SimpleNamespace(content_bytes=0), fail=lambda error: None)
        found = self.some(name, count, False)
        work = Transaction(shared, client, 1)
        work.settle(dict(enumerate(found)), outcome)
        self.settled(name, found, outcome)
        for each in [each for each in ("plain", "single") if each in self.models]:
            payload, headers = self.publish_now([each], 0, None)
            published = room.queues.publishing.route(room.client, "", each, headers, len(payload))
            assert published.route is not None

            work.publish(cast(Any, Gatherer(room, payload, published, headers)), method, b"", payload)
        work.commit(lambda: None)
        assert not client.read_buffer.content_bytes

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 3), outcome=st.sampled_from(Outcome))
    def transact(self, name: str, count: int, outcome: Outcome) -> None:
        self.act(lambda: self.transaction(name, count, outcome))

    # --- time and ends

    @rule(steps=st.integers(1, 3))
    def advance(self, steps: int) -> None:
        def advance() -> None:
            self.now_s += steps * STEP_S
            self.room.clock.ahead += steps * STEP_S * 1_000_000_000
            self.loop.ahead += steps * STEP_S + 0.05

        self.act_and_look(advance)

    def act_and_look(self, does: Callable[[], None]) -> None:
        """The same as ``act``, where queues may expire meanwhile."""

        async def act() -> None:
            self.rank += 1
            does()
            await self.quiet()
            await asyncio.sleep(0.03)  # turns of the timer wheel
            await self.quiet()

        self.run(act())
        model = self.models.get("expires")
        if model is not None and not self.takers["expires"] and self.now_s - model.used_s >= 30:
            self.gone("expires")
        self.taken()
        self.expire()
        self.compare()

    def ended(self, *, failed: bool) -> None:
        """Note that the connection is gone, in order or not."""
        for name in list(self.models):
            model = self.models[name]
            if name == "exclusive" or (name == "auto" and failed and self.takers[name]):
                self.gone(name)
                continue
            if failed:
                self.give_back(name, list(model.unsettled), failed=True)
            else:
                model.ready += model.unsettled.values()
                model.unsettled.clear()
            if self.takers[name]:
                model.used_s = self.now_s
            self.takers[name] = []

    @rule()
    def disconnect(self) -> None:
        def disconnect() -> None:
            self.ended(failed=True)
            self.room.queues.disconnects.begin(self.room.client)
            self.room.client = self.room.new_client()

        self.act(disconnect)

    def restarted(self) -> None:
        for model in self.models.values():
            model.used_s = self.now_s

    @rule()
    def restart(self) -> None:
        self.disconnect()
        self.run(self.room.restart())
        self.restarted()
        self.act(lambda: None)

    @rule(seed=st.integers(0, 1 << 32))
    def power_cut(self, seed: int) -> None:
        """Cut the power while everything is durable."""
        self.ended(failed=False)
        self.crashed = True

        async def cut() -> None:
            self.room.power_cut(seed)

        self.run(cut())
        self.restarted()
        self.act(lambda: None)

    @rule(
        name=st.sampled_from(NAMES),
        count=st.integers(0, 3),
        outcome=st.sampled_from([Outcome.ACCEPT, Outcome.REJECT]),
        seed=st.integers(0, 1 << 32),
    )
    def power_cut_before_a_transaction_is_durable(self, name: str, count: int, outcome: Outcome, seed: int) -> None:
        """All of it is there, or nothing."""
        if name in {"exclusive"}:
            return
        before = {each: model.keys() for each, model in self.models.items()}

        async def cut() -> None:
            self.rank += 1
            self.transaction(name, count, outcome)
            self.room.power_cut(seed)

        self.run(cut())
        after = {each: model.keys() for each, model in self.models.items()}
        self.ended(failed=False)
        found = self.found()
        for each in ("plain", "single"):
            if each in self.models and each != name:
                assert found[each] in (before[each], after[each])
        done = [each for each in found if each != "dead" and found[each] != before[each]]
        changed = [each for each in after if each not in {"dead", "exclusive"} and after[each] != before[each]]
        if outcome is Outcome.ACCEPT:
            assert done in ([], changed), "all or nothing"
        if name in found and "x-dead-letter-exchange" in KINDS[name] and outcome is Outcome.REJECT:
            self.each_in_one_place(name, before, found)
        self.resume(found)

    @rule(
        name=st.sampled_from(NAMES),
        again=st.booleans(),
        publishes=st.integers(0, 2),
        stored=st.booleans(),
        seed=st.integers(0, 1 << 32),
    )
    def power_cut_before_a_deletion_is_durable(
        self, name: str, again: bool, publishes: int, stored: bool, seed: int
    ) -> None:
        """Nothing of the former queue is in one that is declared with its name."""
        if name not in self.models or name == "exclusive":
            return
        former = self.models[name]
        before = {each: model.keys() for each, model in self.models.items()}
        self.number += 1
        first = self.number

        async def cut() -> None:
            self.room.publish(b"%0*d" % (PAYLOAD_BYTES, first), key=name)
            self.room.queues.declarations.delete_queue(self.room.client, name)
            if again:
                self.declare_now(name)
                for _ in range(publishes):
                    self.number += 1
                    self.room.publish(b"%0*d" % (PAYLOAD_BYTES, self.number), key=name)
            if stored:
                self.room.batch.store()
            self.room.power_cut(seed)

        self.run(cut())
        self.taken_before_a_cut()
        self.ended(failed=False)
        found = self.found()
        new = {(number, "", "") for number in range(first, self.number + 1)}
        if name in found:
            number = self.room.queue(name).number
            if number == former.number:
                assert found[name] - new == before[name], "it was not deleted"
            else:
                assert again
                assert found[name] <= new - {(first, "", "")}, "only what is its own"
        for each in found.keys() - {name}:
            assert found[each] >= before[each], each
        self.resume(found)

    def taken_before_a_cut(self) -> None:
        self.room.given.clear()

    @rule(
        name=st.sampled_from(["ttl", "drop", "limited"]),
        count=st.integers(1, 3),
        how=st.sampled_from(["settle", "time"]),
        commits=st.integers(0, 3),
        seed=st.integers(0, 1 << 32),
    )
    def power_cut_among_dead_letters(self, name: str, count: int, how: str, commits: int, seed: int) -> None:
        """A message is in its queue or where dead letters go: in one of them."""
        if name not in self.models:
            return
        before = {each: model.keys() for each, model in self.models.items()}

        async def cut() -> None:
            if how == "settle":
                self.room.queues.settling.settle(self.some(name, count, False), Outcome.REJECT)
            else:
                self.now_s += 4 * STEP_S
                self.room.clock.ahead += 4 * STEP_S * 1_000_000_000
                self.loop.ahead += 4 * STEP_S + 0.05
            for _ in range(commits):
                await asyncio.sleep(0)
                self.room.batch.store()
                await asyncio.sleep(0)
                self.room.log.committer.run_once()
            await asyncio.sleep(0)
            self.room.power_cut(seed)

        self.run(cut())
        self.ended(failed=False)
        found = self.found()
        self.each_in_one_place(name, before, found)
        self.resume(found)

    def each_in_one_place(self, name: str, before: dict[str, set[Key]], found: dict[str, set[Key]]) -> None:
        """Check that each message that a queue had is still there, or a dead letter."""
        if not (self.dead_bound and "dead" in found):
            return
        here = [key for key in before[name] if key in found[name]]
        gone = [
            key for key in before[name] if any(each[:2] == (key[0], name) for each in found["dead"] - before["dead"])
        ]
        assert sorted(here + gone) == sorted(before[name])

    def found(self) -> dict[str, set[Key]]:
        return {name: set(keys) for name, (_, keys, _) in self.run(self.look()).items()}

    async def look(self) -> dict[str, tuple[int, list[Key], int]]:
        return self.actual()

    def resume(self, found: dict[str, set[Key]]) -> None:
        """Continue with what a power cut left."""
        self.crashed = True
        known = {name: {entry.key: entry for entry in model.entries()} for name, model in self.models.items()}
        bound = {name: model.bound for name, model in self.models.items()}
        self.models, self.takers = {}, {name: [] for name in found}
        topology = self.room.queues.registry.topology
        for name, keys in found.items():
            queue = self.room.queue(name)
            model = self.models[name] = Model(queue.number, bound=bound.get(name, False), used_s=self.now_s)
            source = topology.exchanges.get("dlx" if name == "dead" else "all")
            model.bound = source is not None and any(to.name == name for to in source.bindings)
            for key in keys:
                deadline = None if key[2] == "expired" else self.own_deadlines.get(key[0])
                entry = known.get(name, {}).get(key) or Entry(
                    key, self.rank, deadline_s=deadline, own_deadline_s=deadline
                )
                entry.delivered = False
                model.ready.append(entry)
        self.act(lambda: None)

    def teardown(self) -> None:
        if not hasattr(self, "room"):
            return

        async def drain() -> None:
            self.room.queues.disconnects.begin(self.room.client)
            for name in list(self.room.queues.registry.queues):
                self.room.queues.declarations.delete_queue(self.room.client, name)
            await self.quiet()
            assert not self.room.queues.contents.ref_counts._blocks, "the log may have the room of all messages"
            assert not self.room.queues.bounds.waiting.used
            self.room.wheel.close()

        self.run(drain())
        self.loop.close()


# A hundred in the quick run would take half a minute; a night has twenty times as many.
EXAMPLES_SHARE = 10
TestFeatures = FeaturesMachine.TestCase
TestFeatures.settings = settings(
    max_examples=max(settings().max_examples // EXAMPLES_SHARE, 1),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
