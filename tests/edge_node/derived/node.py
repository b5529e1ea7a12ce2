"""A log on a disk that forgets, with derived streams on top: what functions see of a node, and nothing else.

Time is a number that tests set. Commits are made where the test says, so that a power cut can come between any two
writes of the disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.storage.fakes import FakeFileSystem
from weft.edge_node.derived.definitions import Definition
from weft.edge_node.derived.runtime import Functions
from weft.functions.chain import Alert, Chain
from weft.functions.contract import Function, Gap, Out, Row, State
from weft.protocols.batch import ClockReading, ClockState, records
from weft.protocols.ranges import Range, RangeSet
from weft.storage.segment_log import LogSettings, SegmentLog

SECOND = 10**9
START = 1_700_000_000 * SECOND
SETTINGS = LogSettings(segment_bytes=1 << 16, budget_bytes=8 << 20, tail_bytes=1 << 20, pending_bytes_max=1 << 20)


class Json:
    """Payloads of JSON, by the standard library."""

    def decode(self, payload: bytes) -> dict[str, Any]:
        found = json.loads(payload)
        return found if isinstance(found, dict) else {"value": found}

    def encode(self, values: dict[str, Any]) -> bytes:
        return json.dumps(values).encode()


class Large(Function):
    """Keeps rows with a value from a limit on."""

    is_stateless = True

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        return [row for row in rows if row.values["value"] >= self._limit]


class Minutes(Function):
    """Counts and adds up the rows of each key and minute. A window in twenty lines."""

    def __init__(self, seconds: int = 60) -> None:
        self.state = State()
        self._length = seconds * SECOND
        self.gaps = 0

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        assert self.state is not None
        for row in rows:
            if "poison" in row.values:
                raise RuntimeError("poisoned")
            if not isinstance(row.values["value"], int):
                out.reject(row, "value is not a number")
                continue
            end = (row.time // self._length + 1) * self._length
            key = b"%d %s" % (end, row.key)
            first, count, total = self.state.values.get(key, (row.time, 0, 0))
            self.state.set(key, (first, count + 1, total + row.values["value"]))
        return []

    def due(self) -> int | None:
        assert self.state is not None
        return min((int(key.split(b" ", 1)[0]) for key in self.state.values), default=None)

    def oldest(self) -> int | None:
        assert self.state is not None
        return min((value[0] for value in self.state.values.values()), default=None)

    def tick(self, time: int, out: Out) -> list[Row]:
        assert self.state is not None
        made = []
        for key, (first, count, total) in sorted(self.state.values.items()):
            end, name = key.split(b" ", 1)
            if int(end) <= time:
                self.state.delete(key)
                made.append(Row(first, name, None, {"end": int(end) // SECOND, "count": count, "sum": total}))
        return made

    def gap(self, gap: Gap, out: Out) -> None:
        self.gaps += 1


Functions_ = Callable[[], Sequence[tuple[str, Function]]]


def definition(
    name: str, inputs: Sequence[str], functions: Functions_, others: Sequence[str] = (), digest: bytes = b"1234567890"
) -> Definition:
    return Definition(name, tuple(inputs), tuple(others), digest, lambda: Chain(list(functions()), Json(), Json()))


class Inline(ThreadPoolExecutor):
    """Runs at once what is for a thread, so that nothing depends on how busy the machine is."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Edge:
    """A node that can lose its power. Use within a running loop."""

    def __init__(
        self,
        disk: FakeFileSystem,
        *definitions: Definition,
        now: int = START,
        settings: LogSettings = SETTINGS,
        gone: Iterable[Range] = (),
    ) -> None:
        """Start.

        Args:
            gone: records of states that the log has let go, as it may whatever was released.
        """
        self.disk = disk
        self.now = now
        self.released: dict[tuple[str, str], int] = {}
        self.alerts: list[Alert] = []
        self._posted: list[Callable[[], None]] = []
        asyncio.get_running_loop().set_default_executor(Inline(1))
        self.log = SegmentLog.open(
            "/node/log",
            settings,
            filesystem=disk,
            wall_clock=lambda: self.now,
            clock_reading=lambda: ClockReading(7, self.now, ClockState.SYNCED),
            random_bits=lambda bits: 0xABCD,
            post=self._posted.append,
            start_writer=False,
        )
        for first, end in gone:
            self.log._state.lane(self.log.stream("weft-functions")).held.remove(first, end)
        self.functions = Functions(
            definitions,
            self.log,
            alerts=self,
            released=self._released,
            turn=lambda: asyncio.sleep(0),
            wall_clock=lambda: self.now,
            clock=lambda: self.now / SECOND,
            sleep=lambda seconds: asyncio.sleep(0),
        )
        self.functions.start()

    def ready(self) -> None:
        """Do nothing: there are no clients."""

    def __call__(self, alert: Alert) -> None:
        self.alerts.append(alert)

    def _released(self, function: str, stream: str, ranges: RangeSet) -> None:
        self.released[function, stream] = max(end for _, end in ranges)

    def publish(self, stream: str, *values: Any, key: bytes = b"k", time: int | None = None) -> int:
        """Append records, which are not durable yet. Time continues with them."""
        self.now = max(self.now, time or 0)
        payloads = [json.dumps(value if isinstance(value, dict) else {"value": value}).encode() for value in values]
        return self.log.append(self.log.stream(stream), self.now, [key] * len(payloads), payloads)

    def commit(self) -> bool:
        """Make one commit, if there is something to write; tell of it."""
        made = self.log.committer.run_once()
        posted, self._posted[:] = list(self._posted), []
        for deliver in posted:
            deliver()
        return bool(made)

    async def settle(self) -> None:
        """Let everything happen that can happen now."""
        quiet, before, until = 0, None, None
        while quiet < 2:
            figures = self.functions.counters().values()
            if until != (until := (self.now, [each.until for each in figures])):
                for derived in self.functions._running.values():
                    derived._wake.set()  # what one stream knows of the time, the next one has to see
            for _ in range(5):
                await asyncio.sleep(0)
            # Rows of several inputs may have to wait for the time to continue.
            now = ([each.lag for each in figures], self.log.next_seq(self.log.stream("weft-functions")), until)
            quiet = 0 if self.commit() or now != before else quiet + 1
            before = now

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, second by second."""
        end = self.now + int(seconds * SECOND)
        while self.now < end:
            self.now = min(end, self.now + SECOND)
            await self.settle()

    async def close(self) -> None:
        await self.functions.close()
        while self.commit():
            pass
        self.log.close()

    async def lose_power(self, choose: Callable[[], None] | None = None) -> None:
        """End without a word: the disk keeps what it has."""
        await self.functions.close()

    def read(self, stream: str, seq: int = 0) -> list[tuple[int, int, bytes, Any]]:
        """All durable records from a number on: (seq, time, key, payload as it reads)."""
        number, first, found = self.log.stream(stream), seq, []
        while batches := self.log.read(number, seq, 1 << 20):
            for data in batches:
                for record in records(data):
                    if record.seq >= first:
                        found.append((record.seq, record.time, record.key, json.loads(record.payload)))
                    seq = record.seq + 1
        return found

    def headers(self, stream: str) -> list[dict[str, Any]]:
        """Headers of all durable records."""
        batches = self.log.read(self.log.stream(stream), 0, 1 << 20)
        return [dict(record.headers) for data in batches for record in records(data)]

    def mark(self, stream: str) -> int:
        return self.log.mark(self.log.stream(stream), self.now)[0]
