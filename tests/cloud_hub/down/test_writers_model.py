"""Two hub processes that write the messages of one edge by turns: each message has exactly one outcome."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.cloud_hub.fabric import SETTINGS, SequencerNode, read_chunks
from tests.cloud_hub.faulty_store import CALM, Faults
from tests.cloud_hub.virtual_time import NS, VirtualLoop
from tests.support.outcomes import outcome
from weft.cloud_hub.down.edge_queue import Draft, QueueFull, Settled, Waiting, lane_of
from weft.cloud_hub.down.hub_down import LinkDown, OutcomeUnknown, ShardDown, read_chunk
from weft.cloud_hub.down.lane_writer import CannotWrite
from weft.cloud_hub.shard.collector import waiting_lanes
from weft.protocols.link import DownMessage, Frame, MessageOutcome, Messages, OutcomeKind
from weft.storage.object_store.directory import MemoryStore

T = TypeVar("T")
LANE = lane_of("default", "press-1")
DRAIN_S = 150.0
UNSURE = Faults(unreported=0.2, misreported=0.2, late=0.1, latency_s=0.1)
SLOW = Faults(latency_s=0.6)


def _payload(number: int, size: int) -> bytes:
    """Return a payload that no compression makes smaller."""
    return b"%d %s" % (number, random.Random(number).randbytes(size))


def _number(payload: bytes) -> int:
    return int(payload.split(b" ", 1)[0])


class Process:
    """One hub process, with its part of the shard."""

    def __init__(self, node: SequencerNode) -> None:
        self.node = node

    async def start(self) -> None:
        await self.node.start()
        assert self.node.sequencer is not None
        sequencer = self.node.sequencer
        self.down = ShardDown(sequencer, lambda _: _never(), self.node.wall)

    async def stop(self) -> None:
        self.down.close()
        await self.node.kill()


async def _never() -> Any:
    raise AssertionError("the shard was not split")


class Taker:
    """The edge, which keeps what it gets and answers at a step of its own."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.known: dict[tuple[int, int], MessageOutcome] = {}
        self.unanswered: list[MessageOutcome] = []
        self.link: LinkDown | None = None

    def takes(self, frame: Frame) -> None:
        assert isinstance(frame, Messages)
        for each in frame.messages:
            self._take(each)

    def _take(self, each: DownMessage) -> None:
        name = each.number, each.accepted
        if name not in self.known:
            if each.left:
                self.stored.append(_number(each.payload))
            kind = OutcomeKind.PUBLISHED if each.left else OutcomeKind.EXPIRED
            self.known[name] = MessageOutcome(each.number, each.accepted, kind)
        self.unanswered.append(self.known[name])

    def links(self, process: Process) -> None:
        self.leaves()
        first = 1 + max((number for number, _ in self.known), default=-1)
        self.link = LinkDown(process.down, LANE, first, self.takes, process.node.wall)

    def leaves(self) -> None:
        self.unanswered.clear()
        if self.link is not None:
            self.link.close()
            self.link = None

    def answers(self) -> None:
        told, self.unanswered = self.unanswered, []
        if self.link is not None and told:
            self.link.outcomes(told)


class Writers(RuleBasedStateMachine):
    """The edge's link is at one of the processes, and clients publish through both."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.taker = Taker()
        self.processes: list[Process] = []
        self.count = 0
        self.accepted: set[int] = set()
        """Messages that are on the disk, by the word of the hub to their publisher."""
        self.requests: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize(seed=st.integers(0, 1 << 16), off_s=st.sampled_from([0.0, 0.01, 5.0]))
    def begins(self, seed: int, off_s: float) -> None:
        async def begun() -> None:
            self.store = MemoryStore()
            chunk = replace(SETTINGS, chunk_bytes_max=4000, pending_bytes_max=16_000)
            for number in range(2):
                process = Process(SequencerNode(self.store, random.Random(seed + number), chunk))
                process.node.off_s = number * off_s
                await process.start()
                self.processes.append(process)

        self.run(begun())

    @precondition(lambda self: self.processes)
    @rule(at=st.integers(0, 1), count=st.integers(1, 4), size=st.sampled_from([1, 900]), brief=st.booleans())
    def publishes(self, at: int, count: int, size: int, brief: bool) -> None:
        async def begun() -> None:
            for _ in range(count):
                self.count += 1
                left = 10_000_000 if brief else 86_400 * NS
                task = asyncio.create_task(self._publish(at, Draft("t", _payload(self.count, size), left)))
                self.requests.add(task)
                task.add_done_callback(self.requests.discard)

        self.run(begun())

    async def _publish(self, at: int, draft: Draft) -> None:
        with contextlib.suppress(CannotWrite, OutcomeUnknown, QueueFull):
            await self.processes[at].down.publish(LANE, draft)
            self.accepted.add(_number(draft.payload))

    @precondition(lambda self: self.processes)
    @rule(at=st.integers(0, 1))
    def links(self, at: int) -> None:
        async def linked() -> None:
            self.taker.links(self.processes[at])

        self.run(linked())

    @precondition(lambda self: self.taker.unanswered)
    @rule()
    def answers(self) -> None:
        async def answered() -> None:
            self.taker.answers()

        self.run(answered())

    @rule(seconds=st.sampled_from([0.02, 0.1, 0.3, 1.0, 3.0]))
    def waits(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @precondition(lambda self: self.processes)
    @rule(at=st.integers(0, 1), faults=st.sampled_from([CALM, UNSURE, SLOW]))
    def meets(self, at: int, faults: Faults) -> None:
        self.processes[at].node.store.faults = faults

    @precondition(lambda self: self.processes)
    @rule(at=st.integers(0, 1))
    def restarts(self, at: int) -> None:
        async def restarted() -> None:
            if self.taker.link is not None and self.taker.link._shard is self.processes[at].down:
                self.taker.leaves()
            await self.processes[at].stop()
            await self.processes[at].start()

        self.run(restarted())

    def teardown(self) -> None:
        try:
            if self.processes:
                self.run(self._drained())
        finally:
            with contextlib.suppress(Exception):
                self.runner.close()

    async def _drained(self) -> None:
        loop = asyncio.get_running_loop()
        for process in self.processes:
            process.node.store.faults = CALM
        if self.taker.link is None:
            self.taker.links(self.processes[0])
        end = loop.time() + DRAIN_S
        while loop.time() < end:
            await asyncio.sleep(1.0)
            self.taker.answers()
        with outcome():
            assert not self.requests
            for process in self.processes:
                assert process.node.sequencer is not None
                assert not waiting_lanes(process.node.sequencer.state)
                queue = await process.down.queue(LANE)
                assert (list(queue.waiting), queue.bytes, process.down._shared.bytes.used) == ([], 0, 0)
            await self._check_log()
        for process in self.processes:
            await process.stop()

    async def _check_log(self) -> None:
        sequencer = self.processes[0].node.sequencer
        assert sequencer is not None
        published, settled = dict[int, int](), Counter[int]()
        for chunk, _ in await read_chunks(self.store):
            async for _lane, _seq, record in read_chunk(sequencer.log, chunk):
                if isinstance(record, Waiting):
                    assert record.number not in published, "a number has two messages"
                    published[record.number] = _number(record.payload)
                elif isinstance(record, Settled):
                    settled[record.number] += 1
        assert self.accepted <= set(published.values())
        wrong = {number: settled[number] for number in {*published, *settled} if settled[number] != 1}
        assert not wrong, f"each message has one outcome: {wrong}"
        assert len(self.taker.stored) == len(set(self.taker.stored))


TestWriters = Writers.TestCase
TestWriters.settings = settings(
    max_examples=max(settings().max_examples // 5, 1),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
