"""The query of complete windows: a loop of batch jobs over the log, which is all the state that it needs.

Each step takes one view of the log: the shards' states and their end offsets, which belong together. It finds the
windows of the rows that are new below these offsets, computes the windows that are due from the log's history below
the same offsets, upserts them, and keeps its position and the windows still to come in the same commit.

Spark's streaming engine has no part in it. It would begin a batch for new records only, and a window is closed by a
mark, which is no record; and it would choose end offsets for which the states have to be looked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_sinks.blocking import run
from spark_sinks.completeness.moment import Complete, CompleteUntil, evaluate, in_datetime
from spark_sinks.completeness.states import LanesAt, at_head
from spark_sinks.completeness.window_frame import WindowFrame, numbers_of
from spark_sinks.completeness.window_numbers import Limits, WindowState, portions
from spark_sinks.completeness.window_store import WindowStore
from spark_sinks.read import read
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.stream_log import StreamLog
from weft.protocols.ranges import Range, RangeSet

WINDOWS_MAX = 1000
"""Maximum number of windows of one commit; more that are due follow in further commits."""
RANGES_MAX = 8
"""Maximum number of separate ranges of time of one commit: each is a read of its own."""
KEEP_S = 300.0
"""Longest time for which a position is not kept while nothing is due: a start reads the times of the rows since."""
HEAL_SHARE = 10
"""Windows that changed after they were given out take at most this part, a tenth, of the query's time."""
_MOMENTS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""First and last microsecond of Python's datetime."""


class WindowSteps:
    """The steps of a query, one after the other.

    Args:
        options: names the stream; ``edges`` and ``keys`` select the rows.
        heal_s: least time between two rounds that give out again what has changed.
        clock: seconds on a clock that never goes back.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: ReadOptions,
        frame: WindowFrame,
        complete: Complete,
        store: WindowStore,
        *,
        heal_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._options = options
        self._frame = frame
        self._complete = complete
        self._store = store
        self._heal_s = heal_s
        self._clock = clock
        self._log: StreamLog | None = None
        self._state: WindowState | None = None
        self._heal_at = clock()
        self._kept_at = clock()
        self.progress: dict[str, Any] = {}

    def step(self, *, healing: bool | None = None, keep: bool = False) -> int:
        """Do what the log asks for now, and return the number of commits with rows.

        Args:
            healing: whether to give out again what has changed; None does so from time to time.
            keep: keep the position also when nothing is due.

        Raises:
            ReadError: the store has no such stream, the aggregate does not fit, or the state is another query's.
        """
        began = self._clock()
        log, state = self._opened()
        run(log.extend())
        at = at_head(log)
        moved = at.offsets != state.offsets
        if moved:
            state.see(at.offsets, self._new_windows(state, at))
        until = evaluate(at, self._complete)
        limits = self._limits(until, at)
        heals = began >= self._heal_at if healing is None else healing
        due = state.due(limits, healing=heals)
        commits = self._give(due, limits, at)
        if not commits:
            state.close(limits)
            if moved and (keep or began - self._kept_at >= KEEP_S):
                self._keep(None, state)
        ended = self._clock()
        if heals and commits:
            self._heal_at = ended + max(self._heal_s, HEAL_SHARE * (ended - began))
        self._tell(at, until, state, due, ended - began)
        return commits

    def _opened(self) -> tuple[StreamLog, WindowState]:
        if self._log is None or self._state is None:
            log = run(StreamLog.open(self._options))
            text = self._store.load()
            fresh = WindowState(log.source, self._frame.every_us)
            self._state = fresh if text is None else WindowState.decode(text, log.source, self._frame.every_us)
            self._log = log
        return self._log, self._state

    def _new_windows(self, state: WindowState, at: LanesAt) -> RangeSet:
        frame = self._read(at, starting=state.offsets or None, columns=["_time"])
        return numbers_of(frame, self._frame.every_us)

    def _limits(self, until: CompleteUntil, at: LanesAt) -> Limits:
        moment = None if until.moment_ns is None else until.moment_ns // 1000
        return Limits.at(moment, at.clock // 1000, self._frame.every_us, self._complete.grace_ns // 1000)

    def _give(self, due: RangeSet, limits: Limits, at: LanesAt) -> int:
        _, state = self._opened()
        todo = portions(due, WINDOWS_MAX, RANGES_MAX)
        for number, ranges in enumerate(todo, 1):
            after = state.copy()
            after.give(RangeSet(ranges), limits)
            if number == len(todo):
                after.close(limits)
            self._keep(self._computed(ranges, limits, at), after)
            self._state = state = after
        return len(todo)

    def _computed(self, ranges: list[Range], limits: Limits, at: LanesAt) -> DataFrame:
        every = self._frame.every_us
        rows = []
        for first, end in ranges:
            since, until = first * every, end * every
            rows.append(
                self._read(
                    at,
                    schema=self._options.schema,
                    since=in_datetime(since * 1000) if since > _MOMENTS_US[0] else None,
                    until=in_datetime(until * 1000) if until < _MOMENTS_US[1] else None,
                )
            )
        return self._frame.windows(reduce(DataFrame.unionByName, rows), limits.complete_end, sum(at.offsets.values()))

    def _read(self, at: LanesAt, **narrowed: Any) -> DataFrame:
        options = self._options
        return read(
            self._spark, options.stream, store=options.store, tenant=options.tenant, edges=options.edges,
            keys=options.keys, ending=at.offsets, store_options=dict(options.store_options), **narrowed,
        )  # fmt: skip

    def _keep(self, frame: DataFrame | None, state: WindowState) -> None:
        self._store.save(frame, state.encode())
        self._kept_at = self._clock()

    def _tell(self, at: LanesAt, until: CompleteUntil, state: WindowState, due: RangeSet, seconds: float) -> None:
        kept = self._state or state
        self.progress = {
            "offsets": {str(shard): offset for shard, offset in at.offsets.items()},
            "completeUntil": until.moment.isoformat() if until.moment else None,
            "clock": until.clock.isoformat(),
            "windowsGiven": due.count(),
            "windowsPending": kept.pending.count(),
            "windowsChanged": kept.fresh.count(),
            "heldBackBy": [f"{each.edge}: {each.why}" for each in until.held_back_by],
            "durationMs": round(seconds * 1000),
        }


class WindowQuery:
    """A running query of complete windows, with the methods of Spark's ``StreamingQuery`` that callers use.

    Args:
        interval_s: time between the starts of two looks at the log; None does one look, gives out all that is due, and
            ends.
    """

    def __init__(
        self,
        spark: SparkSession,
        steps: WindowSteps,
        *,
        name: str,
        interval_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._spark = spark
        self._steps = steps
        self._interval_s = interval_s
        self._clock = clock
        self._tag = f"weft-windows-{name}-{id(self):x}"
        self._over = threading.Event()
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"weft-windows-{name}", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802  (Spark's name)
        """Return whether the query runs."""
        return not self._over.is_set()

    @property
    def lastProgress(self) -> dict[str, Any]:  # noqa: N802
        """Return figures of the last step; empty before its end."""
        return {"name": self.name, **self._steps.progress} if self._steps.progress else {}

    def exception(self) -> BaseException | None:
        """Return the error with which the query ended; None while it runs and after a clean end."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait until the query ends, at most ``timeout`` seconds; return whether it has ended.

        Raises:
            BaseException: the error with which it ended.
        """
        ended = self._over.wait(timeout)
        if self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """End the query and wait until it has ended. What a step has not committed, the next start does again."""
        self._stopping.set()
        self._spark.interruptTag(self._tag)
        self._over.wait()

    def _run(self) -> None:
        try:
            self._spark.addTag(self._tag)
            self._loop()
        except BaseException as error:
            if not self._stopping.is_set():
                self._error = error
        finally:
            self._over.set()

    def _loop(self) -> None:
        if self._interval_s is None:
            self._steps.step(healing=True, keep=True)
            return
        while not self._stopping.is_set():
            began = self._clock()
            self._steps.step()
            self._stopping.wait(max(0.0, began + self._interval_s - self._clock()))
