"""Rows of one stream from one shard's log, into one file, in steps of bounded cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa

from weft.bounds import TurnBudget
from weft.protocols.chunk import Chunk, StreamSection, section_entries
from weft.protocols.errors import CodecError
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import StreamKey
from weft.protocols.shard.snapshot import Skip
from weft.storage.chunks.traced_rows import TRACED_MAX, TracedRow, traced_rows
from weft.storage.table.rows import RowsOf, rows_of
from weft.storage.table.typed_rows import TypedPart, TypedRows
from weft.storage.table_maker.columns import levels_of
from weft.storage.table_maker.declared import Declared
from weft.storage.table_maker.delta import in_thread
from weft.storage.table_maker.errors import StreamStopped, TableError
from weft.storage.table_maker.settings import TableSettings
from weft.storage.table_maker.shards import ShardView

RUN_BYTES, RUN_SECTIONS = 1 << 20, 256
"""Bytes and number of sections whose rows are made together: the step between two looks at the clock."""
LANE_BYTES = 300
"""Memory of a decoded lane. At level 1 a section has all lanes of its chunk."""


class LastChunk(NamedTuple):
    """The chunk with the last record below a position."""

    n: int
    footer_crc: int


class RowSink(Protocol):
    """A collector of rows of one schema."""

    @property
    def schema(self) -> pa.Schema:
        """Return the columns that it wants."""
        ...

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows."""
        ...


class Gathered(NamedTuple):
    """Position up to which a shard's log was read."""

    end: int
    """Offset after the last record."""
    source: LastChunk
    next_n: int
    """Chunk of the next offset, or an earlier one."""
    traced: Sequence[TracedRow] = ()
    """Rows of traced messages."""


class Gatherer:
    """Makes rows of one stream."""

    def __init__(
        self,
        key: str,
        stream: StreamKey,
        declared: Declared,
        settings: TableSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key, self._stream = key, stream
        self._declared = declared
        self._settings = settings
        self._monotonic = monotonic

    async def gather(  # noqa: PLR0917
        self, view: ShardView, out: RowSink, n: int, first: int, end: int, payload: PayloadKind, shares: int = 1,
        typed: TypedRows | None = None,
    ) -> Gathered:  # fmt: skip
        """Add the rows of ``[first, end)`` to a file, until the budget of the step is spent or the file is full.

        Args:
            n: chunk of the first record, or an earlier one.
            shares: number of shards that share the budget.
            typed: maker of the typed columns; None leaves them null.

        Raises:
            StreamStopped: the first record cannot become a row, or was deleted with its chunk. If a later one cannot,
                the file ends before it.
            NotFound, Corrupt: the log cannot be read.
        """
        settings = self._settings
        budget = TurnBudget(settings.step_bytes_max // shares, settings.step_seconds_max / shares, self._monotonic)
        budget.begin(self._monotonic())
        limit = min(end, first + settings.file_rows_max)
        run = _Run(view, out, self._declared, payload, first, typed, traces=settings.on_traced is not None)
        taken = 0
        async for chunk, section, payloads in view.chunks.of_stream(self._stream, n, view.state.n):
            self._declared.compare(payloads, payload)
            if section is None or section.base_offset + section.count <= run.planned:
                continue
            if section.base_offset > run.planned:
                raise lacking(self._key, view, run.planned, section.base_offset, is_first=run.planned == first)
            stop, taken = min(section.base_offset + section.count, limit), taken + section.length
            await run.plan(chunk, section, stop)
            is_last = stop >= limit or taken >= settings.file_bytes_max
            if not is_last and run.failure is None and not run.is_full:
                continue
            await run.make(budget)
            if run.failure is not None and run.at == first:
                raise StreamStopped(self._key, view.shard, first, run.unfit_end, run.failure) from run.failure
            if run.last is not None and (is_last or run.failure is not None or run.left or not budget.spend(0)):
                return Gathered(run.at, run.last, run.next_n, run.traced)
        raise lacking(self._key, view, run.at, end, is_first=run.planned == first)


def lacking(key: str, view: ShardView, first: int, end: int, *, is_first: bool) -> TableError:
    """Return the error for offsets ``[first, end)`` that a shard's log does not have.

    Args:
        key: name of the table.
        is_first: whether they are the next ones of the table. The collector has deleted such chunks since a table had
            their rows; it was moved away, or an older copy of it was put in its place.
    """
    if not is_first or not view.log.watermark:
        return TableError(f"{key}: the log of shard {view.shard} lacks offsets {first} to {end - 1}: run `weft audit`")
    why = (
        "their chunks were deleted when a table had the rows. Put that table back in its place, or go on without them: "
        f"`weft hub skip` with --shard {view.shard} --from {first} --to {end}"
    )
    return StreamStopped(key, view.shard, first, end, TableError(why))


class _Part(NamedTuple):
    """A section whose rows are made next."""

    source: LastChunk
    rows: RowsOf
    stop: int
    """Offset after the last wanted record."""
    created: int
    """Time of the chunk, nanoseconds since 1970."""


class _Run:
    """Rows of consecutive sections, small ones together."""

    def __init__(  # noqa: PLR0917
        self, view: ShardView, out: RowSink, declared: Declared, payload: PayloadKind, first: int,
        typed: TypedRows | None, *, traces: bool,
    ) -> None:  # fmt: skip
        self._view, self._out, self._declared, self._payload = view, out, declared, payload
        self._traces = traces
        self.traced: list[TracedRow] = []
        """Rows of traced messages, if these are wanted."""
        self._typed = TypedPart.of(out.schema, typed)
        self.at = self.planned = first
        """Offsets after the last row made, and after the last one planned."""
        self.last: LastChunk | None = None
        """The chunk with the last row made."""
        self.next_n = 0
        """The chunk of the next row."""
        self.failure: Exception | None = None
        """Reason why the record at the offset reached cannot become a row."""
        self.unfit_end = 0
        """Offset after the records that cannot."""
        self._parts: list[_Part] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Return whether the planned rows are made now."""
        return self._bytes >= RUN_BYTES or len(self._parts) >= RUN_SECTIONS

    @property
    def left(self) -> bool:
        """Return whether rows were planned and not made."""
        return self.at < self.planned

    async def plan(self, chunk: Chunk, section: StreamSection, stop: int) -> None:
        """Add a section to the next rows."""
        try:
            data = await self._view.chunks.section(chunk.header.n, section)
        except CodecError as error:
            self.failure, self.unfit_end = error, section.base_offset + section.count
            self.next_n = chunk.header.n
            return
        lanes = chunk.footer.lanes_of(section)
        # A copy, since a view of a few bytes would keep the whole chunk in memory.
        rows = RowsOf(section, bytes(data) if len(data) < RUN_BYTES else data, lanes, chunk.footer.clocks_of(section))
        self._parts.append(_Part(LastChunk(chunk.header.n, chunk.footer_crc), rows, stop, chunk.header.created))
        self._bytes += section.length + LANE_BYTES * len(lanes)
        self.planned = stop

    async def make(self, budget: TurnBudget) -> None:
        """Make the planned rows until the budget is spent."""
        parts, self._parts, self._bytes = self._parts, [], 0
        if parts:
            await in_thread(partial(self._add, parts, budget))
        for part in parts:
            section = part.rows.section
            if section.base_offset < self.at:
                self.last = part.source
                self.next_n = part.source.n + (self.at >= section.base_offset + section.count)

    def _add(self, parts: Sequence[_Part], budget: TurnBudget) -> None:
        failure = None
        for joined in (True, False):
            # After an error, each batch is tried on its own, to find the failing one.
            rows = rows_of(
                [part.rows for part in parts if part.stop > self.at], self._view.shard, levels_of(self._out.schema),
                self._declared.topics(self._view), self.at, parts[-1].stop, payload=self._payload,
                columns={*self._out.schema.names}, joined=joined, typed=self._typed,
            )  # fmt: skip
            while True:
                try:
                    batch = next(rows, None)
                except Exception as error:
                    failure = error
                    break
                if batch is None:
                    return
                self._out.add([batch])
                self.at += batch.num_rows
                if self._traces:
                    self._trace(batch, parts)
                if not budget.spend(batch.nbytes):
                    return
        self.failure, self.unfit_end = failure, self._end_of_entry(parts)

    def _trace(self, batch: pa.RecordBatch, parts: Sequence[_Part]) -> None:
        """Note the rows of traced messages, with their chunks."""
        for row in traced_rows(batch, TRACED_MAX - len(self.traced)):
            part = next(part for part in parts if row.offset < part.stop)
            self.traced.append(row._replace(chunk=part.source.n, created=part.created))

    def _end_of_entry(self, parts: Sequence[_Part]) -> int:
        """Return the offset after the batch of the offset reached; the end of its section if the batch is
        unreadable."""
        rows = next(part.rows for part in parts if part.stop > self.at)
        end = rows.section.base_offset
        try:
            for entry in section_entries(rows.section, rows.data, rows.lanes):
                end += entry.take
                if self.at < end:
                    return end
        except CodecError:
            pass
        return rows.section.base_offset + rows.section.count


def not_skipped(skips: Sequence[Skip], first: int, end: int) -> tuple[int, int]:
    """Return the first run of offsets of ``[first, end)`` that no operator skipped; an empty one at its end if there is
    none."""
    for skip in skips:
        if skip.first <= first < skip.end:
            first = min(skip.end, end)
        elif skip.first > first:
            return first, min(skip.first, end)
    return first, end


async def pass_over(key: str, stream: StreamKey, view: ShardView, n: int, end: int) -> Gathered:
    """Return the position in a shard's log after everything before ``end``.

    Args:
        key: name of the table, for errors.
        n: chunk of the first record, or an earlier one.

    Raises:
        NotFound, Corrupt: the log cannot be read.
    """
    async for chunk, section, _ in view.chunks.of_stream(stream, n, view.state.n):
        if section is not None and section.base_offset + section.count >= end:
            is_all = end == section.base_offset + section.count
            return Gathered(end, LastChunk(chunk.header.n, chunk.footer_crc), chunk.header.n + is_all)
    state = view.state
    if view.log.watermark and end <= state.next_offset.get(stream, 0):  # all of their chunks were deleted
        return Gathered(end, LastChunk(state.n, state.footer_crc), state.n + 1)
    raise TableError(f"{key}: the log of shard {view.shard} ends before offset {end}")
