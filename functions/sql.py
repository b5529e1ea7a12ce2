"""The function ``sql``: a SELECT over the rows of each window."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from weft.config.functions.windows import Sql
from weft.functions import select
from weft.functions.aggregates import SOURCE_NAMES, source_lines
from weft.functions.contract import AsyncFunction, Context, Out, Row
from weft.functions.python import BYTES_ENOUGH, FilesSnapshot, Runner
from weft.functions.python_protocol import FRAME_BYTES_MAX, Begin, Record
from weft.functions.select import COLUMNS_MAX, Limits, Select, SelectError, SelectResult, names_in
from weft.functions.series import join, known, take
from weft.functions.window_plan import (
    COUNT,
    FIRST,
    LAST,
    START,
    Pane,
    Plan,
    Refusal,
    add_counts,
    count_cut,
    counts_text,
    event_time_reader,
    field_code,
    topic_of,
)
from weft.functions.window_store import memory_of
from weft.functions.windows import Closed, Windows, make_loop

MEMORY_BYTES = 128 << 20
"""Memory of the process, besides that for the rows of a window."""
ROW_MEMORY_FACTOR = 16
"""Memory per byte of a window's rows: in the request, as Python's values, in SQLite's table, and in a sort of it."""
TIME_S = 60.0
STEPS_A_SECOND = 1_000_000
"""Steps per second on the slowest machine. A step that handles a text of a megabyte takes a millisecond."""
RESULT_BYTES_MAX = 16 << 20
QUESTION_BYTES_MAX = FRAME_BYTES_MAX >> 1
START_TIMEOUT_S = 60.0
_SHOWN_AS = "SQLite"
CUTS_A_ROW = 256
"""Maximum number of kept rows removed for one incoming row: less than a millisecond."""
Result = SelectResult | str


class Job(NamedTuple):
    """A closed window whose SELECT has not run yet."""

    time: int
    key: bytes
    frame: dict[str, Any]
    rows: list[bytes]
    levels: Mapping[bytes, Mapping[str, str]]
    cause: Row | None
    """Row that closed it before its tick; None at a tick."""
    source: list[Any]
    """Source records of its rows."""


class SqlFunction(Windows, AsyncFunction):
    """The rows that a SELECT returns for each window and group.

    ``State`` holds the rows of open windows, packed and 64 in a value; ``rows_max`` and ``size_max`` bound those of a
    window, ``memory`` those of all. The SELECT runs in a process of its own: its sorts may need more memory than the
    node has.
    """

    windows_a_tick = 32
    """Maximum number of windows whose SELECTs are under way at a time."""

    def __init__(self, settings: Sql, context: Context) -> None:
        """Compile the SELECT.

        Raises:
            WindowError: settings contradict each other, or the SELECT is not allowed.
        """
        plan = Plan.of(settings)
        header = [0] * (LAST + 1 if plan.gap else COUNT + 1)
        self._size, self._over, self._whose, self._sources = range(len(header), len(header) + 4)
        super().__init__(settings, context, plan, self._new, self._merge)
        self._rows_max, self._bytes_max = settings.rows_max, settings.bytes_max
        if not self.naming.is_key:
            self.store.weight_of = self._weight
        self._limits = Limits(settings.steps_max, settings.results_max)
        self._select = Select(settings.select, context.level_names, self._limits)
        self._asked = {"select": settings.select, "names": context.level_names, "limits": self._limits}
        self._stream = context.stream
        self._runner: Runner | None = None
        self._jobs: list[Job] = []
        size, columns = self._size, self._select.columns_left
        wide = [] if columns is None else [f"if w_len(v) > {columns}: w_fn.refuse_wide(p, row)"]
        self._run = make_loop(
            plan,
            self.naming,
            arguments=(),
            levels=(),
            event=None
            if settings.time is None
            else (field_code(settings.time), event_time_reader(settings.time, settings.time_unit, settings.time_zone)),
            before=[
                *wide,
                "w_item = w_pack([w_time, row.key, v, row.seq, row.input])",
                f"w_size = a[{size}] + w_len(w_item)",
                f"if a[{COUNT}] >= {settings.rows_max} or w_size > {settings.bytes_max} or w_store.is_full:",
                "    w_fn.make_room(p, row, w_item, w_out)",
                f"    w_size = a[{size}] + w_len(w_item)",
            ],
            update=[f"a[{COUNT}] += 1", f"a[{size}] = w_size", "w_store.keep(p, w_item)", *source_lines(self._sources)],
            names={"w_pack": _packed, "w_float": float, **SOURCE_NAMES},
        )

    def _new(self, first: int, start: int) -> list[Any]:
        return [first, 0, start, start, 0, 0, {}, []] if self.plan.gap else [first, 0, 0, 0, {}, []]

    def _weight(self, item: bytes) -> int:
        """Return the share that a row takes of both bounds of a window."""
        return len(item) * self._rows_max + self._bytes_max

    def _merge(self, numbers: list[Any], other: list[Any]) -> None:
        numbers[FIRST] = min(numbers[FIRST], other[FIRST])
        if self.plan.gap:
            numbers[START], numbers[LAST] = min(numbers[START], other[START]), max(numbers[LAST], other[LAST])
        for at in (COUNT, self._size, self._over):
            numbers[at] += other[at]
        add_counts(numbers[self._whose], other[self._whose])
        join(numbers[self._sources], other[self._sources])

    def _count_cut(self, pane: Pane, topic: bytes) -> None:
        pane.numbers[self._over] += 1
        count_cut(pane.numbers[self._whose], topic)
        self.store.state.touch(pane.key)

    def make_room(self, pane: Pane, row: Row, item: bytes, out: Out) -> None:
        """Remove the newest rows of the topic with the most rows in a full window, for a row of another topic. Removed
        rows go to the errors.

        Raises:
            Refusal: the topic of the row would then have more than that one.
        """
        victims = self._victims(pane, row.key, item)
        if not victims:
            self._count_cut(pane, row.key)
            if self.store.is_full:
                raise Refusal(self.store.why_full())
            count, size = pane.numbers[COUNT], pane.numbers[self._size]
            raise Refusal(f"its window has {count:,} rows of {size:,} bytes already (rows_max, size_max)")
        for number, at, kept in victims:
            self.store.cut(pane, number, at)
            pane.numbers[COUNT] -= 1
            pane.numbers[self._size] -= len(kept)
            cut = _unpacked(kept)
            take(pane.numbers[self._sources], cut)
            self._count_cut(pane, cut.key)
            out.reject(cut, "its window is full, and its topic had the most rows of it (rows_max, size_max)", row)

    def _victims(self, pane: Pane, topic: bytes, item: bytes) -> list[tuple[int, int, bytes]]:
        """Return the kept rows to remove for another row, each with its place; none where that row itself must go."""
        store, shares, numbers = self.store, pane.shares, pane.numbers
        if shares is None or not numbers[COUNT]:
            return []
        largest = shares.largest()
        spare = shares.weight(largest) - shares.weight(topic) - self._weight(item)
        count, size, kept = numbers[COUNT], numbers[self._size] + len(item), store.kept_bytes
        found: list[tuple[int, int, bytes]] = []
        if largest != topic:
            for victim in store.newest(pane, largest):
                found.append(victim)
                spare -= self._weight(victim[2])
                count, size, kept = count - 1, size - len(victim[2]), kept - memory_of(victim[2])
                if spare < 0 or len(found) > CUTS_A_ROW:
                    return []
                if count < self._rows_max and size <= self._bytes_max and kept < store.kept_bytes_max:
                    return found
        return []

    def refuse_wide(self, pane: Pane, row: Row) -> None:
        """Refuse a row of more fields than the table can have.

        Raises:
            Refusal: it has more fields.
        """
        number, most = len(names_in(row.values)), self._select.columns_left
        if most is not None and number > most:
            self._count_cut(pane, row.key)
            raise Refusal(
                f"it has {number:,} fields; a SELECT of all fields (*) has at most {most}. Name the columns instead"
            )

    # --- contract

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Keep rows."""
        super().process(rows, out)
        return self._results(self._taken(), out)

    def tick(self, time: int, out: Out) -> list[Row]:
        """Close windows that are over."""
        super().tick(time, out)
        return self._results(self._taken(), out)

    async def process_async(self, rows: list[Row], out: Out) -> list[Row]:
        """Keep rows; the loop is not held up by a SELECT."""
        super().process(rows, out)
        return await self._results_async(self._taken(), out)

    async def tick_async(self, time: int, out: Out) -> list[Row]:
        """Close windows that are over; the loop is not held up by a SELECT."""
        super().tick(time, out)
        return await self._results_async(self._taken(), out)

    async def close(self) -> None:
        """End the process, also in the middle of a SELECT."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.close()

    # --- windows

    def results(self, closed: Closed) -> list[Row]:
        """Set a window's rows aside for its SELECT."""
        group, closing, first, missing, late = closed
        rows = [item for pane in closing.panes for item in self.store.kept(pane)]
        over, whose = sum(pane.numbers[self._over] for pane in closing.panes), dict[str, int]()
        source: list[Any] = []
        for pane in closing.panes:
            add_counts(whose, pane.numbers[self._whose])
            join(source, pane.numbers[self._sources])
        if over:
            missing = _also(missing, f"{over} rows beyond rows_max, size_max or memory", whose)
        frame = self.frame(closed)
        frame |= {"count": len(rows), "late": late, "complete": not missing}
        if missing:
            frame["missing"] = missing
        keys = {*map(topic_of, rows)}
        self._jobs.append(
            Job(first, group.key, frame, rows, {key: dict(self.levels(key)) for key in keys}, self.cause, source)
        )
        return []

    def _taken(self) -> list[Job]:
        jobs, self._jobs = self._jobs, []
        return jobs

    async def _results_async(self, jobs: list[Job], out: Out) -> list[Row]:
        if not jobs:
            return []
        if self._runner is None:
            self._runner = Runner(FilesSnapshot("", "/"), self._begin(), START_TIMEOUT_S)
        found: list[Result] = []
        records: list[msgspec.Raw] = []
        for job in jobs:
            values = {**self._asked, "rows": job.rows, "levels": [*job.levels.items()]}
            packed = msgspec.msgpack.encode(Record(job.time, job.key, {}, "", values))
            if len(packed) > QUESTION_BYTES_MAX:
                found += await self._answers(records)
                found.append(f"its rows have more than {QUESTION_BYTES_MAX >> 20} MiB")
                records = []
                continue
            records.append(msgspec.Raw(packed))
            if len(packed) > BYTES_ENOUGH:  # bounds the large windows that are in memory twice
                found += await self._answers(records)
                records = []
        return _rows(jobs, found + await self._answers(records), out)

    async def _answers(self, records: list[msgspec.Raw]) -> list[Result]:
        """Return the result of each window, from the process."""
        assert self._runner is not None
        found: list[Result] = []
        for answer in (await self._runner.run(records, dict)).results:
            if not isinstance(answer, list):
                found.append(str(answer).removeprefix(f"{_SHOWN_AS}: "))
            else:
                (said,) = answer
                found.append(said["error"] if "error" in said else SelectResult(said["rows"], said["cut"]))
        return found

    def _begin(self) -> Begin:
        parts = self.plan.size // self.plan.every if self.plan.is_hopping and self.plan.every else 1
        rows_bytes = min(parts * self._bytes_max, QUESTION_BYTES_MAX)
        return Begin(
            file=select.__file__,
            shown_as=_SHOWN_AS,
            function="process",
            by_batch=False,
            timeout_s=TIME_S + self._limits.steps / STEPS_A_SECOND,
            memory_bytes=MEMORY_BYTES + ROW_MEMORY_FACTOR * rows_bytes,
            state_bytes=0,
            stream=self._stream,
            parent=os.getpid(),
            result_bytes=RESULT_BYTES_MAX,
        )

    def _results(self, jobs: list[Job], out: Out) -> list[Row]:
        return _rows(jobs, self._solve(jobs), out)

    def _solve(self, jobs: list[Job]) -> list[Result]:
        """Return the result of each window, or the reason why it has none. In this process; for a caller without a
        loop."""
        found: list[Result] = []
        for job in jobs:
            try:
                found.append(self._select.rows(job.rows, job.levels))
            except SelectError as error:
                found.append(str(error))
        return found


def _packed(row: list[Any]) -> bytes:
    try:
        return msgspec.msgpack.encode(row)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise Refusal(f"it has a value that cannot be kept: {error}") from None


def _rows(jobs: list[Job], found: list[Result], out: Out) -> list[Row]:
    rows: list[Row] = []
    for job, result in zip(jobs, found, strict=True):
        if isinstance(result, str):
            # The window itself goes to the errors, with its identity and its number of rows.
            row = Row(job.time, job.key, msgspec.json.encode(job.frame), job.frame, source=known(job.source))
            out.reject(row, f"select: {result}", job.cause)
            continue
        if result.cut:
            _reject_cut(job, result.cut, out)
        source = known(job.source)
        rows += (Row(job.time, job.key, None, {**job.frame, **values}, source=source) for values in result.rows)
    return rows


def _reject_cut(job: Job, cut: list[int], out: Out) -> None:
    """Send rows without columns in the table to the errors."""
    whose: dict[str, int] = {}
    for at in cut:
        row = _unpacked(job.rows[at])
        count_cut(whose, row.key)
        take(job.source, row)
        reason = f"the rows of its window have more than {COLUMNS_MAX} fields, and its topic has the most"
        out.reject(row, reason, job.cause)
    frame = job.frame
    frame["count"] -= len(cut)
    frame["complete"] = False
    frame["missing"] = _also(frame.get("missing", ""), f"{len(cut)} rows beyond {COLUMNS_MAX} fields", whose)


def _also(missing: str, text: str, whose: dict[str, int]) -> str:
    return f"{missing}; " * bool(missing) + text + f": {counts_text(whose)}" * bool(whose)


def _unpacked(item: bytes) -> Row:
    """Return a kept row."""
    time, key, values, seq, stream = msgspec.msgpack.decode(item)
    return Row(time, key, None, values, (), seq, stream)
