"""Windows of a stream with a column that reports their completeness."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import DataFrame, SparkSession

from spark_sinks.blocking import run
from spark_sinks.completeness.watermark import (
    ALL,
    Complete,
    CompleteUntil,
    LanesAt,
    at_head,
    duration_ns,
    evaluate,
    times_between,
)
from spark_sinks.completeness.window_frame import (
    LOG_END_COLUMN,
    START_COLUMN,
    Aggregate,
    EventTime,
    NewRows,
    Step,
    WindowFrame,
)
from spark_sinks.completeness.window_state import (
    OPEN_MAX,
    Checkpoint,
    Definition,
    IfChanged,
    Limits,
    Portion,
    Reach,
    Sink,
    StateFile,
    WindowState,
    WindowStore,
    bounded,
    changed_parts,
    changed_sentence,
    definition_of,
    portions,
)
from spark_sinks.errors import ReadError
from spark_sinks.read import read
from spark_sinks.replaced import Replaced
from spark_sinks.source.options import ReadOptions, parse_names, parse_options, source_options
from spark_sinks.source.readers import Bookmarks, Places, chunks_of, moved
from spark_sinks.source.stream_log import PersistedPosition, StreamLog, Witness
from spark_sinks.source.tables import TableSnapshot
from spark_sinks.source.typed import NONE, declared
from weft.config.functions.windows import Grid, grid_problem
from weft.config.payload_schema.model import PayloadSchema
from weft.config.units import quoted
from weft.protocols.ranges import Range, RangeSet
from weft.storage.chunk_log import named_open_gap

# The query of complete windows: a loop of batch jobs over the log, which holds all state that the query needs.
#
# Each step takes one view of the log: the shards' states and their end offsets, which belong together. It finds the
# windows of the new rows below these offsets, computes the due windows from the log's history below the same offsets,
# replaces them in the sink, and then stores its position and the pending windows.
#
# Spark's streaming engine is not used. It begins a batch only for new records, but a window is closed by a mark,
# which is not a record. It would also choose end offsets whose states then have to be searched.

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
        self._is_tried = False
        """True after ``prepare`` was looked at without rows."""
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
        at = run(at_head(log))
        if not self._is_tried:
            self._try(at)
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
        self._report(at, until, state, due, ended - began)
        return commits

    def _try(self, at: LanesAt) -> None:
        """Let ``prepare`` be refused before the first window is due."""
        if self._frame.prepare is not None:
            self._frame.try_without_rows(self._read(at, schema=self._options.schema, **times_between(0, 0)))
        self._is_tried = True

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
        if named.get("schema") is None:
            named["schema"] = NONE  # windows are computed again from the log, by the schema that their definition has
        return read(
            self._spark,
            options.stream,
            store=options.store,
            tenant=options.tenant,
            ending=at.offsets,
            store_options=dict(options.store_options),
            **named,
        )

    def _keep(self, state: WindowState) -> None:
        if self._log is not None:
            self._places = run(moved(self._log, state.offsets, self._places))
            state.chunks = chunks_of(self._places)
        self._store.keep(state.encode())
        self._kept_at = self._clock()

    def _report(self, at: LanesAt, until: CompleteUntil, state: WindowState, due: RangeSet, seconds: float) -> None:
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
            "openGaps": [named_open_gap(gap).sentence for gap in until.open_gaps[-OPEN_GAPS_TOLD_MAX:]],
            "heldBackBy": [f"{each.edge}: {each.why}" for each in until.held_back_by],
            "durationMs": round(seconds * 1000),
        }


def places_of(state: WindowState) -> Places:
    """Return the positions of a state, for a comparison with the log."""
    chunks = {shard: Witness(*chunk) for shard, chunk in state.chunks.items()}
    return {shard: PersistedPosition(offset, chunks.get(shard)) for shard, offset in state.offsets.items()}


def _bytes_within(table: TableSnapshot, since: datetime | None, until: datetime | None) -> int:
    """Return the bytes of the table's files whose records are all within a time."""
    return sum(
        file.size
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


EVERY_NS_MIN = 1_000_000_000


def complete_windows(
    spark: SparkSession,
    stream: str,
    *,
    store: str | os.PathLike[str],
    every: str | timedelta,
    gap: str | timedelta | None = None,
    aggregate: Aggregate,
    sink: Sink,
    by: Collection[str] = (),
    offset: str | timedelta = "0s",
    zone: str | None = None,
    time: EventTime | Mapping[str, Any] | str | None = None,
    prepare: Step | None = None,
    complete: Complete | Mapping[str, object] | None = None,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    trigger: str | timedelta | None = "10s",
    heal_every: str | timedelta = "1m",
    tenant: str = "default",
    edges: Collection[str] | None = None,
    keys: Collection[str] | None = None,
    schema: PayloadSchema | str | Mapping[str, Any] | None = None,
    payload_format: str | None = None,
    name: str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> WindowQuery:
    """Start a query that keeps windows of a stream up to date, each row with ``_complete``.

    A window ``[start, end)`` of ``_time`` is emitted with ``_complete`` true when the stream is complete up to its end,
    by the state of the log below the offsets that were read. A window that is not complete after the grace is emitted
    with ``_complete`` false, and again when it has changed or become complete. Each time it is computed from all of its
    records, so the result is that of a batch query. It replaces all its rows, including rows of groups that it no
    longer has, in one commit of ``DeltaSink`` or ``JdbcSink``; a function as a sink has to do so itself. The sink is
    right after a kill at any instant and after the loss of the checkpoint. Windows without rows are not emitted.

    Args:
        every: length of the windows, from 1s on, aligned to 1970 in UTC; ``offset`` shifts their starts.
        gap: silence that ends a session; rows are then sessions, cut where windows end. None makes windows.
        zone: IANA time zone by whose clocks windows begin; for windows of 2h or more. Days have 23 to 25 hours.
        time: time of the events: ``EventTime``, its fields, or its column alone; None takes ``_time``.
        aggregate: expressions by column name, as ``{"mean": "avg(temperature)"}``, to which the lineage column
            ``_from`` is added; SQL, as ``SELECT window_start, window_end, machine, count(*) AS n FROM {rows} GROUP BY
            ALL``; or a function from rows to windows.
        sink: receiver of the rows: ``DeltaSink`` or ``JdbcSink`` with ``keys=["window_start", *by]``, or a function of
            a DataFrame and a number that grows.
        by: columns that name a row within its window.
        prepare: function that parses, filters or renames rows before they are aggregated, each by itself, always alike.
        complete: rule for when a window counts as complete: ``Complete``, or its fields.
        checkpoint: place of position and pending windows: ``Checkpoint``, or its folder; None: a start computes all.
        trigger: time between two steps over the log; None does one step, emits all due windows and ends.
        heal_every: minimum time between two rounds that emit changed windows again.
        edges: only records of these edges; ``complete`` then waits only for them, unless it names others.
        keys: only records with these keys or topic filters.
        schema: fields of the payloads that become typed columns, with ``payload_format`` as in ``read``.
        name: name of the query, in errors and progress.

    Raises:
        ReadError: an argument is not valid.
    """
    options = parse_options(source_options(stream, tenant, store, store_options))
    typed = declared(schema, payload_format)
    options = _selected(options, edges, keys, typed)
    grid, event, names = _grid(every, offset, zone), _event_time(time, typed), _names("by", by) if by else ()
    frame = WindowFrame(grid, names, aggregate, prepare, event, _gap_us(gap, grid, aggregate))
    file, definition, if_changed = _opened(checkpoint, _made_of(options, frame), store_options)
    steps = WindowSteps(
        spark,
        options,
        frame,
        _rule(complete, options.edges),
        WindowStore(sink, file),
        heal_s=duration_ns("heal_every", heal_every) / 1e9,
        definition=definition,
        if_changed=if_changed,
    )
    return WindowQuery(spark, steps, name=name or stream, interval_s=_interval_s(trigger))


def _interval_s(trigger: str | timedelta | None) -> float | None:
    return None if trigger is None else duration_ns("trigger", trigger) / 1e9


def _selected(
    options: ReadOptions, edges: Collection[str] | None, keys: Collection[str] | None, schema: PayloadSchema | None
) -> ReadOptions:
    return replace(
        options,
        edges=None if edges is None else frozenset(_names("edges", edges)),
        keys=None if keys is None else _names("keys", keys),
        schema=schema,
    )


def _opened(
    checkpoint: Checkpoint | str | os.PathLike[str] | None,
    made_of: Mapping[str, object],
    store_options: Mapping[str, str] | None,
) -> tuple[StateFile | None, Definition, IfChanged]:
    """Return the file of the state, the definition of the windows, and the action when the state has another one."""
    if checkpoint is None:
        return None, definition_of(made_of), "refuse"
    kept = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    file = StateFile(os.fspath(kept.folder), store_options if kept.options is None else kept.options)
    return file, definition_of(made_of if kept.definition is None else kept.definition), kept.if_changed


def _made_of(options: ReadOptions, frame: WindowFrame) -> dict[str, object]:
    of_rows = {"schema": options.schema, "edges": options.edges, "keys": options.keys}
    made: dict[str, object] = {"aggregate": frame.aggregate, "by": frame.by, "prepare": frame.prepare, **of_rows}
    made |= {} if frame.event is None else {"time": str(frame.event)}
    return made if frame.gap_us is None else {**made, "gap": frame.gap_us}


def _gap_us(gap: str | timedelta | None, grid: Grid, aggregate: Aggregate) -> int | None:
    if gap is None:
        return None
    gap_us = duration_ns("gap", gap) // 1000
    if not 0 < gap_us < grid.every_us:
        raise ReadError(f"gap: expected a silence shorter than every, in which sessions are cut; got {gap!r}")
    if not isinstance(aggregate, Mapping):
        raise ReadError("gap: sessions need aggregate as expressions by column name")
    return gap_us


def _grid(every: str | timedelta, offset: str | timedelta, zone: str | None) -> Grid:
    if zone is not None:
        try:
            ZoneInfo(zone)
        except (ValueError, TypeError, OSError, ZoneInfoNotFoundError):
            raise ReadError(
                f"zone: expected a time zone of this machine's database such as Europe/Berlin, got {quoted(str(zone))}."
                " Without the database, install tzdata"
            ) from None
    grid = Grid(_every_us(every), duration_ns("offset", offset) // 1000, zone)
    if (problem := grid_problem(grid.every_us, grid.offset_us, zone)) is not None:
        raise ReadError(f"{problem[0]}: {problem[1]}")
    return grid


def _event_time(given: EventTime | Mapping[str, Any] | str | None, schema: PayloadSchema | None) -> EventTime | None:
    if given is None or isinstance(given, EventTime):
        time = given
    else:
        named = _known("time", {"column": given} if isinstance(given, str) else given, EventTime)
        if not isinstance(named.get("column"), str):
            raise ReadError("time: expected the name of a field of the schema as column")
        time = EventTime(**named)
    field = None if schema is None or time is None else schema.fields.get(time.column)
    if time is not None and (field is None or field.type.name != "timestamp"):
        raise ReadError(
            f"time: expected a field of the schema with type timestamp, or timestamp(ms) for numbers; {time.column!r} "
            f"is {'not a field of it' if field is None else field.type}"
        )
    return time


def _known(option: str, given: Mapping[str, Any], made: type) -> dict[str, Any]:
    """Return settings of a class by name."""
    known = made.__dataclass_fields__  # type: ignore[attr-defined]
    if unknown := [name for name in given if name not in known]:
        raise ReadError(f"{option}: no such setting {', '.join(unknown)}; the settings are {', '.join(known)}")
    return dict(given)


def _every_us(every: str | timedelta) -> int:
    every_ns = duration_ns("every", every)
    if every_ns < EVERY_NS_MIN or every_ns % 1000:
        raise ReadError(f"every: expected a duration of 1s or more, in whole microseconds; got {every!r}")
    return every_ns // 1000


def _rule(complete: Complete | Mapping[str, object] | None, edges: Collection[str] | None) -> Complete:
    """Return the rule; by default, the edges to wait for are those whose records are read."""
    rule = complete if isinstance(complete, Complete) else Complete(**_known("complete", complete or {}, Complete))
    return replace(rule, edges=sorted(edges)) if edges is not None and rule.edges == ALL else rule


def _names(option: str, given: Collection[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return parse_names(option, given)
    names = tuple(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ReadError(f"{option}: expected one name or more; got {given!r}")
    return names
