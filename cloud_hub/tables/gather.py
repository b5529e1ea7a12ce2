"""Rows of one stream from one shard's log, into one file, in steps of bounded cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from weft.bounds import TurnBudget
from weft.cloud_hub.tables.columns import levels_of
from weft.cloud_hub.tables.declared import Declared
from weft.cloud_hub.tables.delta import in_thread
from weft.cloud_hub.tables.errors import StreamStopped, TableError
from weft.cloud_hub.tables.parquet_file import ParquetFile
from weft.cloud_hub.tables.settings import TableSettings
from weft.cloud_hub.tables.shards import ShardView
from weft.protocols.chunk import Chunk, StreamSection, section_entries
from weft.protocols.errors import CodecError
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import StreamKey
from weft.protocols.shard.snapshot import Skip
from weft.storage.table.rows import section_rows


class LastChunk(NamedTuple):
    """The chunk with the last record below a position."""

    n: int
    footer_crc: int


class Gathered(NamedTuple):
    """Position up to which a shard's log was read."""

    end: int
    """Offset after the last record."""
    source: LastChunk
    next_n: int
    """Chunk of the next offset, or an earlier one."""


class _Taken(NamedTuple):
    end: int
    failure: Exception | None = None
    unfit_end: int = 0
    """Offset after the records that cannot become rows."""


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
        self, view: ShardView, out: ParquetFile, n: int, first: int, end: int, payload: PayloadKind, shares: int = 1
    ) -> Gathered:
        """Add the rows of ``[first, end)`` to a file, until the budget of the step is spent or the file is full.

        Args:
            n: chunk of the first record, or an earlier one.
            shares: number of shards that share the budget.

        Raises:
            StreamStopped: the first record cannot become a row. If a later one cannot, the file ends before it.
            NotFound, Corrupt: the log cannot be read.
        """
        settings = self._settings
        budget = TurnBudget(settings.step_bytes_max // shares, settings.step_seconds_max / shares, self._monotonic)
        budget.begin(self._monotonic())
        limit = min(end, first + settings.file_rows_max)
        at, taken, last = first, 0, None
        async for chunk, section, payloads in view.chunks.of_stream(self._stream, n, view.state.n):
            self._declared.compare(payloads, payload)
            if section is None or section.base_offset + section.count <= at:
                continue
            if section.base_offset > at:
                raise TableError(
                    f"{self._key}: the log of shard {view.shard} lacks offset {at} in chunk {chunk.header.n}"
                )
            stop = min(section.base_offset + section.count, limit)
            make = _Making(view, chunk, section, out, self._declared, payload)
            here, failure, unfit_end = await make.rows(at, stop, budget)
            if failure is not None and here == first:
                raise StreamStopped(self._key, view.shard, here, unfit_end, failure) from failure
            if here > at:
                last = LastChunk(chunk.header.n, chunk.footer_crc)
            at, taken = here, taken + section.length
            if last is not None and (
                failure is not None or at < stop or at >= limit or taken >= settings.file_bytes_max
                or not budget.spend(0)
            ):  # fmt: skip
                return Gathered(at, last, chunk.header.n + (at == section.base_offset + section.count))
        raise TableError(f"{self._key}: the log of shard {view.shard} ends at offset {at}, its state says {end}")

    async def pass_over(self, view: ShardView, n: int, end: int) -> Gathered:
        """Return the position in a shard's log after everything before ``end``.

        Raises:
            NotFound, Corrupt: the log cannot be read.
        """
        async for chunk, section, _ in view.chunks.of_stream(self._stream, n, view.state.n):
            if section is not None and section.base_offset + section.count >= end:
                is_all = end == section.base_offset + section.count
                return Gathered(end, LastChunk(chunk.header.n, chunk.footer_crc), chunk.header.n + is_all)
        raise TableError(f"{self._key}: the log of shard {view.shard} ends before offset {end}")


class _Making(NamedTuple):
    """Rows of one section."""

    view: ShardView
    chunk: Chunk
    section: StreamSection
    out: ParquetFile
    declared: Declared
    payload: PayloadKind

    async def rows(self, first: int, end: int, budget: TurnBudget) -> _Taken:
        """Add rows of ``[first, end)`` until the budget is spent. Return the reached offset, and the reason for
        stopping."""
        try:
            data = await self.view.chunks.section(self.chunk.header.n, self.section)
        except CodecError as error:
            return _Taken(first, error, self.section.base_offset + self.section.count)
        return await in_thread(partial(self._add, data, first, end, budget))

    def _add(self, data: memoryview | bytes, first: int, end: int, budget: TurnBudget) -> _Taken:
        at, failure = first, None
        lanes, clocks = self.chunk.footer.lanes_of(self.section), self.chunk.footer.clocks_of(self.section)
        for joined in (True, False):
            # After an error, each batch is tried on its own, to find the failing one.
            rows = section_rows(
                self.section, data, lanes, self.view.shard, levels_of(self.out.schema), self.declared.topics(self.view),
                at, end, payload=self.payload, clocks=clocks, columns={*self.out.schema.names}, joined=joined,
            )  # fmt: skip
            while True:
                try:
                    batch = next(rows, None)
                except Exception as error:
                    failure = error
                    break
                if batch is None:
                    return _Taken(at)
                self.out.add([batch])
                at += batch.num_rows
                if not budget.spend(batch.nbytes):
                    return _Taken(at)
        return _Taken(at, failure, self._end_of_entry(data, at))

    def _end_of_entry(self, data: memoryview | bytes, offset: int) -> int:
        """Return the offset after the batch of an offset; the end of the section if the batch is unreadable."""
        end = self.section.base_offset
        try:
            for entry in section_entries(self.section, data, self.chunk.footer.lanes_of(self.section)):
                end += entry.take
                if offset < end:
                    return end
        except CodecError:
            pass
        return self.section.base_offset + self.section.count


def not_skipped(skips: Sequence[Skip], first: int, end: int) -> tuple[int, int]:
    """Return the first run of offsets of ``[first, end)`` that no operator skipped; an empty one at its end if there is
    none."""
    for skip in skips:
        if skip.first <= first < skip.end:
            first = min(skip.end, end)
        elif skip.first > first:
            return first, min(skip.first, end)
    return first, end
