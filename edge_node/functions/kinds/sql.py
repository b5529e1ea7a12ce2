"""The function ``sql``: a SELECT over the rows of each window."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from weft.config.functions.windows import Sql
from weft.edge_node.functions.contract import AsyncFunction, Context, Out, Row
from weft.edge_node.functions.kinds import select_code
from weft.edge_node.functions.kinds.python.runner import BYTES_ENOUGH, Runner
from weft.edge_node.functions.kinds.python.snapshots import Snapshot
from weft.edge_node.functions.kinds.python.wire import FRAME_BYTES_MAX, Begin, Record
from weft.edge_node.functions.windows.groups import COUNT, FIRST, LAST, START, Pane
from weft.edge_node.functions.windows.loop import make_loop
from weft.edge_node.functions.windows.naming import field_code
from weft.edge_node.functions.windows.plan import Plan
from weft.edge_node.functions.windows.refusal import Refusal
from weft.edge_node.functions.windows.select import Limits, Select, SelectError
from weft.edge_node.functions.windows.times import event_time_reader
from weft.edge_node.functions.windows.windows import Closed, Windows

MEMORY_BYTES = 128 << 20
"""Memory of the process, besides that for the rows of a window."""
ROW_MEMORY_FACTOR = 16
"""Memory for a byte of a window's rows: in the question, as Python's values, in SQLite's table, and in a sort of it."""
TIME_S = 60.0
STEPS_A_SECOND = 1_000_000
"""Steps that the slowest machine makes. A step that handles a text of a megabyte takes a millisecond."""
RESULT_BYTES_MAX = 16 << 20
QUESTION_BYTES_MAX = FRAME_BYTES_MAX >> 1
START_TIMEOUT_S = 60.0
_SHOWN_AS = "SQLite"
Result = list[dict[str, Any]] | str


class Job(NamedTuple):
    """A window that is over, and whose SELECT has not run yet."""

    time: int
    key: bytes
    frame: dict[str, Any]
    rows: list[bytes]
    levels: Mapping[bytes, Mapping[str, str]]


class SqlFunction(Windows, AsyncFunction):
    """The rows that a SELECT gives for each window and group.

    ``State`` holds the rows of open windows, packed and 64 in a value; ``rows_max`` and ``size_max`` bound those of a
    window, ``memory`` those of all. The SELECT runs in a process of its own: what it sorts may be more than the node's
    memory holds.
    """

    windows_a_tick = 32
    """Most windows whose SELECTs are on their way to the thread at a time."""

    def __init__(self, settings: Sql, context: Context) -> None:
        """Compile the SELECT.

        Raises:
            WindowError: settings do not go together, or the SELECT may not run here.
        """
        plan = Plan.of(settings)
        header = [0] * (LAST + 1 if plan.gap else COUNT + 1)
        self._size, self._over = len(header), len(header) + 1
        super().__init__(settings, context, plan, self._new, self._merge)
        self._rows_max, self._bytes_max = settings.rows_max, settings.bytes_max
        self._limits = Limits(settings.steps_max, settings.results_max)
        self._select = Select(settings.select, context.level_names, self._limits)
        self._asked = {"select": settings.select, "names": context.level_names, "limits": self._limits}
        self._stream = context.stream
        self._runner: Runner | None = None
        self._jobs: list[Job] = []
        size = self._size
        self._run = make_loop(
            plan,
            self.naming,
            arguments=(),
            levels=(),
            event=None if settings.time is None else (
                field_code(settings.time), event_time_reader(settings.time, settings.time_unit)
            ),
            before=[
                "w_item = w_pack([w_time, row.key, v])",
                f"w_size = a[{size}] + w_len(w_item)",
                f"if a[{COUNT}] >= {settings.rows_max} or w_size > {settings.bytes_max} or w_store.is_full: "
                "w_fn.refuse_more(p)",
            ],
            update=[f"a[{COUNT}] += 1", f"a[{size}] = w_size", "w_store.keep(p, w_item)"],
            names={"w_pack": _packed, "w_len": len, "w_float": float},
        )  # fmt: skip

    def _new(self, first: int, start: int) -> list[Any]:
        return [first, 0, start, start, 0, 0] if self.plan.gap else [first, 0, 0, 0]

    def _merge(self, numbers: list[Any], other: list[Any]) -> None:
        numbers[FIRST] = min(numbers[FIRST], other[FIRST])
        if self.plan.gap:
            numbers[START], numbers[LAST] = min(numbers[START], other[START]), max(numbers[LAST], other[LAST])
        for at in (COUNT, self._size, self._over):
            numbers[at] += other[at]

    def refuse_more(self, pane: Pane) -> None:
        """Count and refuse a row beyond those that are kept.

        Raises:
            Refusal: always.
        """
        pane.numbers[self._over] += 1
        self.store.state.touch(pane.key)
        if self.store.is_full:
            raise Refusal(self.store.why_full())
        count, size = pane.numbers[COUNT], pane.numbers[self._size]
        raise Refusal(f"its window has {count:,} rows of {size:,} bytes already (rows_max, size_max)")

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
        """Put a window's rows aside for its SELECT."""
        group, closing, first, missing, late = closed
        rows = [item for pane in closing.panes for item in self.store.kept(pane)]
        over = sum(pane.numbers[self._over] for pane in closing.panes)
        if over:
            missing = f"{missing}; " * bool(missing) + f"{over} rows beyond rows_max, size_max or memory"
        frame = self.frame(closed)
        frame |= {"count": len(rows), "late": late, "complete": not missing}
        if missing:
            frame["missing"] = missing
        keys = {msgspec.msgpack.decode(row)[1] for row in rows}
        self._jobs.append(Job(first, group.key, frame, rows, {key: dict(self.levels(key)) for key in keys}))
        return []

    def _taken(self) -> list[Job]:
        jobs, self._jobs = self._jobs, []
        return jobs

    async def _results_async(self, jobs: list[Job], out: Out) -> list[Row]:
        if not jobs:
            return []
        if self._runner is None:
            self._runner = Runner(Snapshot("", "/"), self._begin(), START_TIMEOUT_S)
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
            if len(packed) > BYTES_ENOUGH:  # few large windows at a time are in memory twice
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
                found.append(said["error"] if "error" in said else said["rows"])
        return found

    def _begin(self) -> Begin:
        parts = self.plan.size // self.plan.every if self.plan.is_hopping and self.plan.every else 1
        rows_bytes = min(parts * self._bytes_max, QUESTION_BYTES_MAX)
        return Begin(
            file=select_code.__file__,
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
        """Return the result of each window, or why it has none. In this process; for a caller without a loop."""
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
            # The window itself goes to the errors: which one it was, and how many rows it had.
            out.reject(Row(job.time, job.key, msgspec.json.encode(job.frame), job.frame), f"select: {result}")
        else:
            rows += (Row(job.time, job.key, None, {**job.frame, **values}) for values in result)
    return rows
