"""An edge node on a disk that forgets: the real log, functions, links and their files, and devices that remember."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
from collections.abc import Callable
from typing import NamedTuple

from tests.cloud_hub.fabric import TRUE_START
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.edge_node.derived.node import Inline, Large, definition
from tests.simulation.network import MACHINE, Network
from tests.storage.fakes import FakeFileSystem, eio, no_failure
from weft.config.links import Link as LinkConfig
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.derived.runtime import Functions
from weft.edge_node.links.links import Links
from weft.functions.chain import Alert
from weft.protocols.batch import ClockReading, ClockState, records
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.replication.source import Party
from weft.storage.segment_log import LogError, LogFull, LogSettings, SegmentLog
from weft.storage.segment_log.settings import StreamPolicy

KEPT, DROPPED, DERIVED = "telemetry", "events", "large"
"""A stream that refuses when the log is full, one that drops its oldest records, and one that a function makes."""
LIMIT = 500
SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=12 * 4096, tail_bytes=2048, pending_bytes_max=1 << 16)
COMMIT_S = 0.02


class Known(NamedTuple):
    """A record that a device has sent."""

    payload: bytes
    time: int
    """By the edge's clock."""


class VirtualEdge:
    """An edge node that may die at any moment, and its devices.

    Args:
        urls: of the hub's nodes.
        off_s: by how much its wall clock is ahead at each start.
    """

    def __init__(
        self, name: str, network: Network, urls: tuple[str, ...], rng: random.Random, off_s: Callable[[], float]
    ) -> None:
        self.name, self.rng = name, rng
        self.machine = rng.getrandbits(32)
        self.disk = FakeFileSystem()
        self.truth: dict[tuple[str, int], Known] = {}
        """(stream, seq) -> record, as the log gave the number last. A number that a power cut took is given again."""
        self.acked: set[tuple[str, int]] = set()
        """Records whose devices got an acknowledgement."""
        self.streams: tuple[str, ...] = (KEPT, DROPPED, DERIVED)
        self.is_cloned = False
        self.log: SegmentLog | None = None
        self.links: Links
        self._network, self._urls, self._off_s = network, urls, off_s
        self._functions: Functions | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0
        self._off = 0

    # -- life

    def wall(self) -> int:
        return TRUE_START + now_ns() + self._off

    async def start(self) -> bool:
        """Start the node as ``node.py`` does; False if its disk fails meanwhile."""
        MACHINE.set((self._network, self.machine))
        self._off = int(self._off_s() * NS)
        boot, begun = self.rng.getrandbits(63), now_ns()
        posted: list[Callable[[], None]] = []
        asyncio.get_running_loop().set_default_executor(Inline(1))
        try:
            log = SegmentLog.open(
                "/node/log",
                SETTINGS,
                filesystem=self.disk,
                wall_clock=self.wall,
                clock_reading=lambda: ClockReading(boot, now_ns() - begun, ClockState.SYNCED),
                random_bits=self.rng.getrandbits,
                post=posted.append,
                start_writer=False,
            )
            for stream in (KEPT, DERIVED):
                log.stream(stream)
            log.set_policy(log.stream(DROPPED), StreamPolicy(when_full="drop_oldest", retain_bytes=4000))
            self.links = Links(self._config(), log, wall_clock=self.wall, filesystem=self.disk, rng=self.rng)
        except (LogError, OSError):
            self.disk.drop_locks()
            return False
        self.log = log
        self._tasks.append(asyncio.create_task(self._commit(log, posted)))
        self.links.start()
        self._tasks.append(asyncio.create_task(self._live(log)))
        return True

    async def _live(self, log: SegmentLog) -> None:
        await self.links.until_compared()
        party = Party("function", DERIVED)
        self.links.ledger.join(party, log.stream(KEPT))
        self._functions = Functions(
            [definition(DERIVED, [KEPT], lambda: [(DERIVED, Large(LIMIT))])],
            log,
            alerts=self,
            released=lambda _function, stream, ranges: self.links.ledger.released(party, log.stream(stream), ranges),
            turn=lambda: asyncio.sleep(0),
            wall_clock=self.wall,
            clock=lambda: now_ns() / NS,
            sleep=asyncio.sleep,
        )
        self._functions.start()
        while self._number < self.records:
            await asyncio.sleep(self.rng.random() * self.step_s)
            with contextlib.suppress(LogFull, LogError):
                self._publish(log)

    records, step_s = 120, 0.1
    """Records of the devices, and the mean time between two of them, doubled."""
    padding_bytes = 0
    """What makes the records longer, so that a log of few records has several segments."""

    def ready(self) -> None:
        """Do nothing: there are no clients."""

    def __call__(self, alert: Alert) -> None:
        raise AssertionError(f"a function failed: {alert}")

    def _publish(self, log: SegmentLog) -> None:
        stream = self.rng.choice([KEPT, KEPT, DROPPED])
        padding = {"more": self.rng.randbytes(self.padding_bytes).hex()} if self.padding_bytes else {}
        made = [
            json.dumps({"value": self.rng.randrange(1000), "id": self.rng.getrandbits(60), **padding}).encode()
            for _ in range(self.rng.randrange(1, 5))
        ]
        now = self.wall()
        first = log.append(log.stream(stream), now, [b"k"] * len(made), made)
        names = [(stream, first + at) for at in range(len(made))]
        self._number += len(made)
        for name, payload in zip(names, made, strict=True):
            assert name not in self.acked, f"{self.name}: {name} is acknowledged, and given to another record"
            self.truth[name] = Known(payload, now)

        def durable(error: BaseException | None) -> None:
            if error is None:
                self.acked.update(names)

        log.on_durable(durable)

    async def _commit(self, log: SegmentLog, posted: list[Callable[[], None]]) -> None:
        """The writer's thread: a commit now and then, and its news."""
        while True:
            await asyncio.sleep(self.rng.random() * 2 * COMMIT_S)
            with contextlib.suppress(LogError, OSError):
                log.committer.run_once()
                if self.rng.random() < 0.02:
                    log.committer.housekeep()
            waiting, posted[:] = list(posted), []
            for deliver in waiting:
                deliver()
            if not log.failed:
                self.links.conflicts.look(self.links.statuses)

    async def die(self, *, power: bool) -> None:
        """End at once. With ``power``, of what was not synced only a random part stays."""
        for connection in self._network.of(self.machine):
            connection.lose_edge(self.rng)
        # The dying tasks would still write: they get a disk that no later start reads.
        old, self.log = self.disk, None
        self.disk = old.power_cut(self.rng) if power else copy_of(old)
        old.fail = lambda call, path: eio()
        functions, self._functions = self._functions, None
        tasks = [*self._tasks, *self.links._tasks.values(), *self.links._ended, self.links._keeper]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if functions is not None:
            await functions.close()
        self._tasks.clear()

    def fail_soon(self) -> None:
        """Have every call of the disk fail from one of the next on, as when it is pulled out."""
        left = self.rng.randrange(30)

        def fail(call: str, path: str) -> OSError | None:
            nonlocal left
            left -= 1
            return eio() if left < 0 else None

        self.disk.fail = fail

    def clone(self) -> VirtualEdge:
        """Copy the card into a second machine, as it is found after the power was cut."""
        other = VirtualEdge(self.name, self._network, self._urls, self.rng, self._off_s)
        other.disk = self.disk.power_cut(self.rng)
        other.truth, other.acked = dict(self.truth), set(self.acked)
        self.is_cloned = other.is_cloned = True
        return other

    # -- configuration

    def _config(self) -> EdgeConfig:
        streams = {name: Stream(from_=(f"{name}/+",)) for name in (KEPT, DROPPED, DERIVED)}
        link = LinkConfig(
            to=self._urls,
            streams=self.streams,
            retry_min_s=0.05,
            retry_max_s=2.0,
            ping_interval_s=5.0,
            silence_s=15.0,
            ack_timeout_s=10.0,
            mark_interval_s=5.0,
            hold_at_start_s=5.0,
        )
        return EdgeConfig(node=self.name, data_dir="/node", streams=streams, links={"hub": link})

    def reload(self, streams: tuple[str, ...]) -> None:
        """Have the link carry other streams, on the running node."""
        MACHINE.set((self._network, self.machine))
        self.streams = streams
        if self.log is not None and not self.log.failed:
            self.links.adopt(self._config())

    # -- what it knows at the end

    @property
    def is_drained(self) -> bool:
        log = self.log
        if log is None or log.failed or self._number < self.records or self._functions is None:
            return False
        lag = any(each.lag for each in self._functions.counters().values())
        return not lag and not log.pending_bytes and not self.links.waiting()

    @property
    def has_conflict(self) -> bool:
        return bool(self.links.conflicts.reasons) or any(status.conflict for status in self.links.statuses)

    def lane(self, stream: str) -> Lane:
        assert self.log is not None
        return Lane("default", self.name, self.log.log_id, stream)

    def held(self, stream: str) -> dict[int, bytes]:
        """All durable records that the log still has."""
        assert self.log is not None
        number, seq, found = self.log.stream(stream), 0, {}
        while batches := self.log.read(number, seq, 1 << 20):
            for data in batches:
                for record in records(data):
                    found[record.seq] = bytes(record.payload)
                    seq = record.seq + 1
        return found

    def gaps(self, stream: str) -> RangeSet:
        assert self.log is not None
        return RangeSet((gap.first, gap.end) for gap in self.log.gaps(self.log.stream(stream)))


def copy_of(disk: FakeFileSystem) -> FakeFileSystem:
    """The same files for the next process: the page cache survives a kill."""
    disk.calls.clear()
    disk.fail = no_failure
    after = copy.deepcopy(disk)
    after.kill_process()
    return after
