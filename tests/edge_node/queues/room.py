"""Queues over a log on the fake disk: commits when a test says so, power cuts, consumers that write down what they
get."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import Clock
from weft.bounds import FanOutCap, Owner, OwnerKind, Refusals, RoundRobin
from weft.config.streams import State
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest, TickBatch
from weft.edge_node.ingest.routing import Router, Routing, Unrouted, UnroutedPolicy
from weft.edge_node.queues.definitions import QueueError, Reason
from weft.edge_node.queues.limits import QueueLimits
from weft.edge_node.queues.queue import Consumption, Credit, Queue, QueueClient
from weft.edge_node.queues.queues import Queues
from weft.edge_node.queues.ready import Delivery, Outcome
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.sessions.records import StateCounters
from weft.edge_node.subscriptions.message import LogRecord, Outbox
from weft.edge_node.subscriptions.subscriptions import FanOut, Subscriptions
from weft.edge_node.timing import TimerWheel
from weft.protocols.batch import HeaderPairs, records
from weft.storage.segment_log import LogSettings, SegmentLog

LOG = LogSettings(segment_bytes=1 << 16, budget_bytes=8 << 20, tail_bytes=4000, pending_bytes_max=1 << 20)
OWNER = Owner(OwnerKind.USER, "ann")


class Publisher:
    """A source of records that writes down its answers."""

    publisher: str | None = None
    owner = OWNER

    def __init__(self) -> None:
        self.confirmed: list[bytes] = []
        self.refused: list[BaseException] = []

    def acknowledge(self, answers: bytes) -> None:
        self.confirmed.append(answers)

    def refuse(self, error: BaseException) -> None:
        self.refused.append(error)


class Taker:
    """A consumer that keeps what it gets, and settles when a test says so."""

    def __init__(self, room: Room, prefetch: int = 0) -> None:
        self.room = room
        self.credit = Credit(prefetch, comes_back=True) if prefetch else Credit(comes_back=True)
        self.got: list[tuple[Delivery, LogRecord]] = []
        self.seen: dict[int, bytes] = {}
        """Number of a message -> payload, of everything that came."""
        self.unsettled: list[Delivery] = []
        self.cancelled_by: list[Reason] = []
        self.consumption: Consumption

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        self.got += batch
        self.room.given += [(self.consumption.queue.name, *each) for each in batch]
        self.seen |= {message.seq: message.payload for _, message in batch}
        self.unsettled += [delivery for delivery, _ in batch]

    def cancelled(self, error: QueueError) -> None:
        self.cancelled_by.append(error.reason)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for _, message in self.got]

    @property
    def flagged(self) -> list[bytes]:
        return [message.payload for delivery, message in self.got if delivery.redelivered]

    def settle(self, outcome: Outcome = Outcome.ACCEPT, count: int | None = None) -> None:
        count = len(self.unsettled) if count is None else count
        taken, self.unsettled = self.unsettled[:count], self.unsettled[count:]
        self.room.queues.settling.settle(taken, outcome)


@dataclass
class Room:
    """A node's queues. ``restart`` and ``power_cut`` stand for what happens to nodes."""

    disk: FakeFileSystem = field(default_factory=FakeFileSystem)
    settings: LogSettings = LOG
    limits: QueueLimits = field(default_factory=QueueLimits)
    patterns: dict[str, list[str]] = field(default_factory=dict)
    unrouted: UnroutedPolicy = "live"
    clock: Clock = field(default_factory=Clock)
    queues: Queues = field(init=False)
    log: SegmentLog = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.given: list[tuple[str, Delivery, LogRecord]] = []
        """What all consumers got, in order: queue, delivery, message."""
        loop, clock = asyncio.get_running_loop(), self.clock
        self.posted: list[Callable[[], None]] = []
        self.batch = TickBatch(loop.call_soon, loop.time, Counters())
        self.log = SegmentLog.open(
            "/node/log",
            self.settings,
            filesystem=self.disk,
            wall_clock=clock.wall,
            clock_reading=clock.reading,
            random_bits=lambda bits: 0xABCD,
            post=self.posted.append,
            start_writer=False,
            end_of_tick=self.batch.at_end,
        )
        self.refusals = Refusals(loop.time)
        subscriptions = Subscriptions()
        routing = Routing(
            Router(self.patterns, self.log.stream),
            subscriptions,
            Unrouted(self.unrouted, self.log, Counters()),
            session_topics=self.log.stream("weft-sessions-topics"),
        )
        self.ingest = Ingest(
            self.log,
            routing,
            FanOut(subscriptions, Outbox(FanOutCap())),
            clock.wall,
            Counters(),
            self.batch,
            pending_bytes_max=1 << 20,
        )
        self.wheel = TimerWheel(loop, 0.01)
        self.queues = Queues(
            self.log,
            self.ingest,
            Backlog(self.log, State(), StateCounters()),
            self.limits,
            self.refusals,
            RoundRobin(lambda: None, pause_s=0),
            self.wheel,
            clock.wall,
        )
        self.client = self.new_client()
        self.publisher = Publisher()

    def new_client(self, user: str = "ann", identity: Any = None) -> QueueClient:
        return QueueClient(Owner(OwnerKind.USER, user), identity)

    # --- time

    def commit(self) -> None:
        """Make what was appended durable, and tell those who wait for it."""
        while self.log.committer.run_once():
            pass
        posted, self.posted[:] = list(self.posted), []
        for callback in posted:
            callback()

    async def settle_down(self) -> None:
        """Commit, deliver and read until nothing moves any more."""
        for _ in range(12):
            self.batch.store()
            await asyncio.sleep(0)
            self.commit()
            while self.queues.deliveries._loading:
                await asyncio.wait(self.queues.deliveries._loading)
        await asyncio.sleep(0)

    def power_cut(self, seed: int = 0) -> None:
        """Lose what was not synced, or some of it, and start again."""
        self.disk = self.disk.power_cut(random.Random(seed))
        self.wheel.close()
        self.start()

    async def restart(self) -> None:
        """Stop in order, and start again."""
        await self.settle_down()
        self.queues.close()
        self.log.close()
        self.wheel.close()
        self.start()

    # --- what clients do

    def publish(
        self,
        *payloads: bytes,
        exchange: str = "",
        key: str = "q",
        headers: HeaderPairs = (),
        client: QueueClient | None = None,
    ) -> list[bool]:
        """Publish with confirms. Returns of each message whether it was rejected."""
        rejected = []
        for payload in payloads:
            found = self.queues.publishing.route(client or self.client, exchange, key, headers, len(payload))
            for route, topic, own in self.queues.dead_letters.letters_of(
                found.dead_letter_of, found.topic, (*headers, *found.headers)
            ):
                self.batch.add(route, topic, payload, self.publisher, 0, own)
            if found.route is not None:
                self.batch.add(found.route, found.topic, payload, self.publisher, 0, (*headers, *found.headers))
            if not found.is_rejected:
                self.batch.answer(self.publisher, payload + b" ")
            rejected.append(found.is_rejected)
        return rejected

    def publish_mqtt(self, topic: bytes, *payloads: bytes, headers: HeaderPairs = ()) -> None:
        route = self.ingest.routing.everybody.route(topic)
        assert route is not None
        for payload in payloads:
            self.batch.add(route, topic, payload, self.publisher, 0, headers)
            self.batch.answer(self.publisher, payload + b" ")

    def confirmed(self) -> list[bytes]:
        return b"".join(self.publisher.confirmed).split()

    def consume(
        self,
        queue: str = "q",
        prefetch: int = 0,
        client: QueueClient | None = None,
        credit: Credit | None = None,
        **options: Any,
    ) -> Taker:
        taker = Taker(self, prefetch)
        credits_ = [taker.credit] if credit is None else [taker.credit, credit]
        taker.consumption = self.queues.consumptions.consume(client or self.client, queue, taker, credits_, **options)
        return taker

    async def get(self, queue: str = "q", **options: Any) -> tuple[Delivery, LogRecord, int] | None:
        found: list[tuple[Delivery, LogRecord, int] | None] = []
        self.queues.consumptions.get(self.client, queue, found.append, **options)
        await self.settle_down()
        assert len(found) == 1, found
        return found[0]

    async def drain(self, queue: str = "q") -> list[bytes]:
        """Take all messages of a queue, in order."""
        taker = self.consume(queue, needs_acks=False)
        await self.settle_down()
        while self.queues.declarations.find_queue(self.client, queue).messages:
            await self.settle_down()
        self.queues.consumptions.cancel(taker.consumption)
        return taker.payloads

    def queue(self, name: str = "q") -> Queue:
        return self.queues.registry.queues[name]

    def stored(self, stream: str = "weft-queues") -> list[bytes]:
        """Payloads that a stream of the log still has."""
        return [
            each.payload for data in self.log.read(self.log.streams()[stream], 0, 1 << 24) for each in records(data)
        ]
