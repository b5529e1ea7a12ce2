"""The query of complete windows: a loop of batch jobs over the log, which holds all state that the query needs.

Each step takes one view of the log: the shards' states and their end offsets, which belong together. It finds the
windows of the new rows below these offsets, computes the due windows from the log's history below the same offsets,
replaces them in the sink, and then stores its position and the pending windows.

Spark's streaming engine is not used. It begins a batch only for new records, but a window is closed by a mark, which is
not a record. It would also choose end offsets whose states then have to be searched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_sinks.blocking import run
from spark_sinks.completeness.definition import Definition, IfChanged, changed_parts, changed_sentence
from spark_sinks.completeness.event_time import NewRows
from spark_sinks.completeness.moment import Complete, CompleteUntil, evaluate, times_between
from spark_sinks.completeness.portions import Portion, portions
from spark_sinks.completeness.states import LanesAt, at_head
from spark_sinks.completeness.window_columns import START_COLUMN
from spark_sinks.completeness.window_frame import LOG_END_COLUMN, WindowFrame
from spark_sinks.completeness.window_numbers import OPEN_MAX, Limits, WindowState, bounded
from spark_sinks.completeness.window_reach import Reach
from spark_sinks.completeness.window_store import WindowStore
from spark_sinks.errors import ReadError
from spark_sinks.read import read
from spark_sinks.replaced import Replaced
from spark_sinks.source.checkpoints import Bookmarks, Places, chunks_of, moved
from spark_sinks.source.history import KeptPosition, Witness
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.stream_log import StreamLog
from spark_sinks.source.tables import TableSnapshot
from weft.protocols.ranges import Range, RangeSet
from weft.storage.chunks.open_gaps import named

OPEN_GAPS_TOLD_MAX = 10
"""Maximum number of open gaps in the progress of a query; the latest are named."""
WINDOWS_MAX = 1000
"""Maximum number of windows of one commit; further due windows follow in further commits."""
READS_MAX = 8
"""Maximum number of reads of one commit."""
GAP_BYTES_MAX = 16 << 20
"""Bytes of table files between two windows up to which one read covers both."""
GAP_RECORDS_MAX = 250_000
"""Records behind the table, for each gap between windows, up to which one read covers the windows."""
KEEP_S = 300.0
"""Longest time between two stored positions while nothing is due: a start reads the times of all later rows."""
HEAL_SHARE = 10
"""Windows that changed after they were emitted take at most one part in this many, a tenth, of the query's time."""
_MICROS = (-(1 << 63), (1 << 63) - 1)


class WindowSteps:
    """The steps of a query, one after the other.

    Args:
        options: names the stream; ``edges`` and ``keys`` select the rows.
        heal_s: minimum time between two rounds that emit changed windows again.
        definition: definition of the windows, compared with the one in the state.
        if_changed: action when they differ.
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
        definition: Definition,
        if_changed: IfChanged = "refuse",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._options = options
        self._frame = frame
        self._complete = complete
        self._store = store
        self._heal_s = heal_s
        self._definition = definition
        self._if_changed = if_changed
        self._clock = clock
        self._log: StreamLog | None = None
        self._places: Places = {}
        """The last positions read from the state or stored in it."""
        self._state: WindowState | None = None
        self._filled: RangeSet | None = None
        """All windows with records, during the first step of a new state."""
        self._looks_at_all = False
        """True when the next step must also find windows of records that are not selected."""
        self._heal_at = clock()
        self._kept_at = clock()
        self.progress: dict[str, Any] = {}

    def step(self, *, healing: bool | None = None, keep: bool = False) -> int:
        """Emit the windows that are due now, and return the number of commits with rows.

        Args:
            healing: whether to emit changed windows again; None does so from time to time.
            keep: store the position also when nothing is due.

        Raises:
            ReadError: the store has no such stream, the aggregate does not fit, or the state is another query's.
        """
        began = self._clock()
        log, state = self._opened()
        run(log.extend())
        at = at_head(log)
        moved = at.offsets != state.offsets
        if moved:
            found = self._new_windows(state, at)
            self._filled = None if state.offsets else found.windows
            self._see(state, at, found)
        until = evaluate(at, self._complete)
        limits = self._limits(until, at)
        heals = began >= self._heal_at if healing is None else healing
        due = state.due(limits, healing=heals)
        commits = self._give(due, limits, at)
        if not commits:
            state.close(limits)
            if moved and (keep or began - self._kept_at >= KEEP_S):
                self._keep(state)
        ended = self._clock()
        if heals and commits:
            self._heal_at = ended + max(self._heal_s, HEAL_SHARE * (ended - began))
        self._tell(at, until, state, due, ended - began)
        return commits

    def _opened(self) -> tuple[StreamLog, WindowState]:
        if self._log is None or self._state is None:
            log = run(StreamLog.open(self._options))
            state = self._stored(log.source)
            self._places = run(Bookmarks(log).compare(places_of(state)))
            self._log, self._state = log, state
        return self._log, self._state

    def _stored(self, source: str) -> WindowState:
        """Return the stored state, or a new one."""
        every_us, made_by = self._frame.grid.every_us, self._frame.made_by
        fresh = WindowState(source, every_us, definition=self._definition, grid=made_by)
        text = self._store.load()
        if text is None:
            return fresh
        state = WindowState.decode(text, source, every_us, made_by)
        if changed := changed_parts(state.definition, self._definition):
            if self._if_changed == "refuse":
                raise ReadError(changed_sentence(changed))
            state = fresh if self._if_changed == "recompute" else replace(state, definition=self._definition)
            # Stored at once, so that a start after a crash resumes with it.
            self._keep(state)
        # Windows of edges and keys that are no longer read may be in the sink.
        self._looks_at_all = not state.offsets
        return replace(state, definition=state.definition or self._definition)

    def _new_windows(self, state: WindowState, at: LanesAt) -> NewRows:
        found = self._frame.found(self._times(at, starting=state.offsets or None))
        if self._looks_at_all:
            # The sink may have windows of records that no longer count, which are emptied.
            found.windows.update(self._frame.all_windows(self._times(at, edges=None, keys=None)))
        self._looks_at_all = False
        return found

    def _see(self, state: WindowState, at: LanesAt, found: NewRows) -> None:
        state.see(at.offsets, found.windows)
        reach, event = self._reach(state), self._frame.event
        reach.see(found.seen)
        state.reach, state.usual = reach.parts, (reach.before_us, reach.after_us)
        state.reject(found.rejected)
        if self._frame.gap_us is not None:
            state.continue_sessions((each.number, each.last_us) for each in found.seen)
        if event is not None:
            state.broken.update(event.broken(found.seen, self._frame.grid))
            state.broken = bounded(state.broken)

    def _reach(self, state: WindowState) -> Reach:
        event = self._frame.event
        usual = (0, 0) if event is None else (event.ahead_us, event.bound_us)
        # Distances within former bounds have no part: they stay usual when a bound is made smaller.
        before, after = map(max, usual, state.usual)
        return Reach(self._frame.grid, before, after, state.reach)

    def _times(self, at: LanesAt, **narrowed: Any) -> DataFrame:
        """Return the columns that decide to which windows rows belong."""
        schema = None if self._frame.event is None else self._options.schema
        return self._read(at, columns=self._frame.times, schema=schema, **narrowed)

    def _limits(self, until: CompleteUntil, at: LanesAt) -> Limits:
        moment = None if until.moment_ns is None else until.moment_ns // 1000
        gaps = ((None if gap.since is None else gap.since // 1000, gap.until // 1000) for gap in until.open_gaps)
        event, grace = self._frame.event, self._complete.grace_ns // 1000
        bound, ahead = (0, 0) if event is None else (event.bound_us, event.ahead_us)
        clock = at.clock // 1000
        return Limits.at(
            moment, clock, self._frame.grid, grace, gaps, bound_us=bound, ahead_us=ahead, gap_us=self._frame.gap_us
        )

    def _give(self, due: RangeSet, limits: Limits, at: LanesAt) -> int:
        _, state = self._opened()
        todo = self._portions(due, at)
        for number, portion in enumerate(todo, 1):
            after = state.copy()
            after.give(RangeSet(portion.ranges), limits)
            if number == len(todo):
                after.close(limits)
            replaced = self._replaced(portion.ranges, at, continues=state.given)
            self._store.write(self._computed(portion, limits, at, state), replaced)
            self._keep(after)
            self._state = state = after
        return len(todo)

    def _portions(self, due: RangeSet, at: LanesAt) -> list[Portion]:
        log, state = self._opened()
        reach = self._reach(state)
        filled, self._filled = self._filled, None
        if filled is None and due.count() > WINDOWS_MAX:
            # Timestamps far apart: most of these windows have no record at all.
            ranges = list(due)
            times = self._times(at, **times_between(*reach.taken_in(ranges[0][0], ranges[-1][1])))
            filled = self._frame.found(times).windows
        gaps = len(due if filled is None else filled) - 1
        table = run(log.table()) if gaps > 0 else None
        tail = sum(end - (table.ends[shard] if table else 0) for shard, end in at.offsets.items())
        is_small = tail <= GAP_RECORDS_MAX * gaps

        def is_cheap(first: int, end: int) -> bool:
            begin, until = reach.taken_in(first - 1, first)[1], reach.taken_in(end, end + 1)[0]
            if until <= begin:
                return True  # Their records were taken in at the same time, and would be read twice.
            return is_small and (table is None or _bytes_within(table, **times_between(begin, until)) <= GAP_BYTES_MAX)

        return portions(due, WINDOWS_MAX, READS_MAX, is_cheap, filled)

    def _computed(self, portion: Portion, limits: Limits, at: LanesAt, state: WindowState) -> DataFrame:
        # Without records, an empty read has the columns.
        reads = portion.reads or [(portion.ranges[0][0], portion.ranges[0][0])]
        rows = reduce(DataFrame.unionByName, (self._rows(each, portion, at, state) for each in reads))
        whole = portion.ranges[0][0], portion.ranges[-1][1]
        broken = bounded(RangeSet(state.broken.within(*whole)), OPEN_MAX)
        named: dict[str, Any] = {
            "opened": limits.opened(RangeSet([whole])),
            "broken": broken,
            "quiet_us": limits.quiet_us,
        }
        return self._frame.windows(rows, limits.complete_end, sum(at.offsets.values()), **named)

    def _rows(self, windows: Range, portion: Portion, at: LanesAt, state: WindowState) -> DataFrame:
        """Return the records of the windows of one read."""
        first, end = windows
        taken_in = times_between(*self._reach(state).taken_in(first, end)) if first < end else times_between(0, 0)
        rows = self._read(at, schema=self._options.schema, **taken_in)
        if first < end and (portion.reads_more or self._frame.event is not None):
            rows = self._frame.within(rows, RangeSet(portion.filled).within(first, end))
        return rows

    def _replaced(self, ranges: list[Range], at: LanesAt, *, continues: bool) -> Replaced:
        """Return the windows of a portion; the sink gets all their rows."""
        start = self._frame.grid.start
        within = tuple((max(start(first), _MICROS[0]), min(start(end), _MICROS[1])) for first, end in ranges)
        return Replaced(START_COLUMN, within, LOG_END_COLUMN, sum(at.offsets.values()), continues)

    def _read(self, at: LanesAt, **narrowed: Any) -> DataFrame:
        options = self._options
        named: dict[str, Any] = {"edges": options.edges, "keys": options.keys, **narrowed}
        return read(
            self._spark, options.stream, store=options.store, tenant=options.tenant, ending=at.offsets,
            store_options=dict(options.store_options), **named,
        )  # fmt: skip

    def _keep(self, state: WindowState) -> None:
        if self._log is not None:
            self._places = run(moved(self._log, state.offsets, self._places))
            state.chunks = chunks_of(self._places)
        self._store.keep(state.encode())
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
            "windowsLate": kept.broken.count(),
            "rejected": dict(kept.rejected),
            "openGaps": [named(gap).sentence for gap in until.open_gaps[-OPEN_GAPS_TOLD_MAX:]],
            "heldBackBy": [f"{each.edge}: {each.why}" for each in until.held_back_by],
            "durationMs": round(seconds * 1000),
        }


def places_of(state: WindowState) -> Places:
    """Return the positions of a state, for a comparison with the log."""
    chunks = {shard: Witness(*chunk) for shard, chunk in state.chunks.items()}
    return {shard: KeptPosition(offset, chunks.get(shard)) for shard, offset in state.offsets.items()}


def _bytes_within(table: TableSnapshot, since: datetime | None, until: datetime | None) -> int:
    """Return the bytes of the table's files whose records are all within a time."""
    return sum(
        file.size_bytes
        for file in table.files
        if (since is None or (file.time_min is not None and file.time_min >= since))
        and (until is None or (file.time_max is not None and file.time_max < until))
    )


class WindowQuery:
    """A running query of complete windows, with the methods of Spark's ``StreamingQuery`` that callers use.

    Args:
        interval_s: time between the starts of two steps; None does one step, emits all due windows, and ends.
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
        """End the query and wait until it has ended. The next start repeats the uncommitted part of a step."""
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
