"""Clients of a log whose writer runs on a clock of the test: each sync takes a given time, in which clients
continue."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY
from weft.edge_node.ingest.ingest import Rests
from weft.protocols.batch import ClockReading, ClockState
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.segment_log.commit import Writer

SYNC_S = 0.0003
START_S = 100.0


@dataclass
class Ack:
    """One message: when it was appended, and when its client got the answer."""

    sent: float
    reported: float
    error: BaseException | None

    @property
    def waited(self) -> float:
        return self.reported - self.sent


@dataclass
class Load:
    """A log without a thread, its writer, and what clients are about to do."""

    monkeypatch: pytest.MonkeyPatch
    interval_s: float | None = None
    rests: bool = False
    """Whether the owner's thread rests while commits are held back, as a node's loop does."""
    sync_s: float = SYNC_S
    now: float = START_S
    disk: FakeFileSystem = field(default_factory=FakeFileSystem)
    acks: list[Ack] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    """When commits began."""
    ends: list[float] = field(default_factory=list)
    wakes: int = 0
    """Times that the owner's thread gave the writer notice."""

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.log = SegmentLog.open(
            DIRECTORY,
            LogSettings(commit_interval_s=self.interval_s),
            filesystem=self.disk,
            wall_clock=lambda: round(self.now * 1e9),
            clock_reading=lambda: ClockReading(7, round(self.now * 1e9), ClockState.SYNCED),
            random_bits=lambda bits: 7,
            post=lambda deliver: deliver(),
            start_writer=False,
        )
        self.stream = self.log.stream("load")
        state = self.log._state
        self.writer = Writer(state, self.log.committer, lambda: self.now)
        self.monkeypatch.setattr(state.changed, "notify", self._notice)
        self.disk.fail = self._disk
        self.failure: OSError | None = None
        self._woken = False
        self._came: float | None = None
        self._awake_at = 0.0
        self.turns = 0
        """Turns of the owner's loop in which something came."""
        self._soon: list[Callable[[], None]] = []
        self._resting = Rests(self.log, self._soon.append, lambda: self.now, lambda: 0.0, self._sleep)

    def _next_iteration(self) -> None:
        soon = self._soon.copy()
        self._soon.clear()
        for callback in soon:
            callback()

    def _sleep(self, seconds: float) -> None:
        self._awake_at = self.now + seconds

    def _notice(self, n: int = 1) -> None:
        self._woken = True
        self.wakes += 1

    def _disk(self, call: str, path: str) -> OSError | None:
        if call == "write_at":
            self.begins.append(self.now)
        if call == "sync":
            self._pass(self.now + self.sync_s)
            self.ends.append(self.now)
            return self.failure
        return None

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Have a client do something."""
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def send(self, then: Callable[[], None] | None = None, *, bytes_: int = 100) -> None:
        """Publish one message now.

        Args:
            then: what the client does once it is acknowledged.
        """
        sent = self.now if self._came is None else self._came
        self.log.append(self.stream, round(self.now * 1e9), [b"k"], [bytes(bytes_)])

        def reported(error: BaseException | None) -> None:
            self.acks.append(Ack(sent, self.now, error))
            if then is not None:
                then()

        self.log.on_durable(reported)

    def loop(self, delay_s: float) -> None:
        """Have a client send, wait for the acknowledgement, and send again ``delay_s`` after it, without end."""
        self.send(lambda: self.at(self.now + delay_s, lambda: self.loop(delay_s)))

    def _pass(self, until: float) -> None:
        while self._events and (due := max(self._events[0][0], self._awake_at)) <= until:
            self.now = max(self.now, due)
            came = 0
            self.turns += 1
            while self._events and self._events[0][0] <= self.now:
                self._came, _, act = heapq.heappop(self._events)
                act()
                came += 1
            self._came = None
            if self.rests:
                self._resting.after(came)
                self._next_iteration()
        self.now = until

    def run(self, seconds: float) -> None:
        """Let time pass as the writer thread would see it: it looks when it is woken, or when its time is over."""
        until = self.now + seconds
        while self.now < until:
            idle_s = self.writer.idle_s()
            if idle_s <= 0:
                if not self.writer.step():
                    return
                continue
            self._woken = False
            wakes_at = min(until, self.now + idle_s)
            while not self._woken and self.now < wakes_at:
                upcoming = max(self._events[0][0], self._awake_at) if self._events else wakes_at
                self._pass(min(max(upcoming, self.now), wakes_at))

    def commits(self) -> int:
        return self.log.stats().commits

    def forget(self) -> None:
        """Begin to count now."""
        self.turns = 0
        self.acks.clear()
        self.begins.clear()
        self.ends.clear()
        self.wakes = 0
