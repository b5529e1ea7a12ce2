"""Task of an audit: count the records of a run of chunks of one shard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weft.proofs.audit.contents import add_payloads
from weft.proofs.audit.counts import lanes_of, unsigned
from weft.proofs.audit.part import Part
from weft.proofs.audit.scope import Scope
from weft.proofs.audit.times import add_times
from weft.protocols.chunk import Chunk, StreamSection
from weft.protocols.errors import CodecError
from weft.protocols.lane import format_log_id
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.shard.shard_state import lane_of
from weft.storage.chunk_log import ShardLog
from weft.storage.hub_keys import chunk_key
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.table.columns import ORIGIN_COLUMN
from weft.storage.table.rows import RowsOf, rows_of

COLUMNS = ("_offset", "_shard", "_edge", "_log", "_seq", "_time", "_resent")
"""Columns of rows of the log and the table that are counted."""
WINDOW_CHUNKS = 16
"""Number of chunks read at once: overlaps a store's round trips. After each window the task reads the watermark."""
WINDOW_BYTES = 16 << 20
"""Bytes of sections fetched at once; one section may be longer."""


@dataclass(frozen=True)
class LogTask:
    """Chunks ``first`` to ``end`` - 1 of a shard, which existed when the audit began."""

    shard: int
    first: int
    end: int

    async def run(self, store: ObjectStore, scope: Scope) -> Part:
        """Count the chunks. Damage is recorded, and the rest is still counted.

        Raises:
            StoreError: the store did not answer.
        """
        log, part, n = ShardLog(store, scope.cluster, self.shard), Part(), self.first
        while n < self.end:
            end = min(n + WINDOW_CHUNKS, self.end)
            window = await _Window(log, scope).read(n, end)
            watermark = await _watermark(log)
            if watermark > n:
                # The collector may have deleted some of these chunks, and a paused writer may have made one again. The
                # table has all records below the watermark.
                part.watermarks[self.shard] = watermark
                n = watermark
            else:
                part.merge(window)
                n = end
        return part


async def _watermark(log: ShardLog) -> int:
    try:
        return (await log.manifest())[0].watermark
    except CodecError:
        return log.watermark  # The plan has recorded the damage.


class _Window:
    """A few chunks, read at once."""

    def __init__(self, log: ShardLog, scope: Scope) -> None:
        self._log, self._scope, self._part = log, scope, Part()

    async def read(self, first: int, end: int) -> Part:
        chunks = await asyncio.gather(*(self._index(n) for n in range(first, end)))
        group: list[tuple[int, Chunk, StreamSection]] = []
        filled = 0
        for chunk in chunks:
            if chunk is None:
                continue
            self._take_index(chunk)
            for section in chunk.footer.streams:
                # A section that an operator skipped as a whole may be damaged; it is not read.
                if self._scope.is_ours(section.tenant, section.stream) and self._wanted(section):
                    if group and filled + section.length > WINDOW_BYTES:
                        await self._count(group)
                        group, filled = [], 0
                    group.append((chunk.header.n, chunk, section))
                    filled += section.length
        await self._count(group)
        return self._part

    async def _index(self, n: int) -> Chunk | None:
        try:
            chunk = await self._log.index(n)
        except CodecError as error:
            self._part.note(self._log.shard, n, f"shard {self._log.shard}: {error}")
            return None
        if chunk is None:
            key = chunk_key(self._log.shard, n)
            self._part.note(
                self._log.shard, n,
                f"shard {self._log.shard}: {key} is missing, though later chunks are there; restore it from a backup "
                "of the store",
            )  # fmt: skip
        return chunk

    def _take_index(self, chunk: Chunk) -> None:
        shard, scope = self._log.shard, self._scope
        self._part.chunks[shard] += 1
        for update in chunk.footer.lanes:
            self._part.take_lane(scope, lane_of(update), update.ranges, update.gaps)
            if scope.is_ours(update.tenant, update.stream):
                self._part.indexed[update.edge, format_log_id(update.log_id)].update(update.ranges)
        for section in chunk.footer.streams:
            if scope.is_ours(section.tenant, section.stream):
                base = section.base_offset
                self._part.take_section(shard, chunk.header.n, base, base + section.count)

    def _wanted(self, section: StreamSection) -> list[Range]:
        """Return the section's offsets that were not skipped."""
        return self._scope.skips.get(self._log.shard, RangeSet()).missing(
            section.base_offset, section.base_offset + section.count
        )

    async def _count(self, group: list[tuple[int, Chunk, StreamSection]]) -> None:
        found = await asyncio.gather(
            *(self._log.section(n, section) for n, _, section in group), return_exceptions=True
        )
        for (n, chunk, section), data in zip(group, found, strict=True):
            try:
                if isinstance(data, BaseException):
                    raise data
                await asyncio.to_thread(self._count_section, chunk, section, data)
            except (CodecError, NotFound) as error:
                self._part.note(self._log.shard, n, f"chunk {n} of shard {self._log.shard}: {error}")

    def _count_section(self, chunk: Chunk, section: StreamSection, data: bytes) -> None:
        scope, shard = self._scope, self._log.shard
        told = RowsOf(section, data, chunk.footer.lanes_of(section), chunk.footer.clocks_of(section))
        columns = (*COLUMNS, ORIGIN_COLUMN, *scope.payload_columns)
        for start, stop in self._wanted(section):
            rows = rows_of([told], shard, [], lambda _: (), start, stop, columns=columns, payload=scope.payload)
            self._count_rows(rows)

    def _count_rows(self, batches: Iterable[pa.RecordBatch]) -> None:
        part, position = self._part, self._scope.positions.get(self._log.shard, 0)
        for batch in batches:
            add_payloads(part.log_payloads, batch, self._scope)
            add_times(part.log_times, batch, self._scope)
            keys, codes = lanes_of(batch)
            seqs = unsigned(batch.column("_seq"))
            part.log.add_rows(keys, codes, seqs)
            part.add_below(keys, codes, seqs, unsigned(batch.column("_offset")) < position)
            part.origins.add_rows(keys, codes, batch.column(ORIGIN_COLUMN))
            resent = np.asarray(batch.column("_resent").to_numpy(zero_copy_only=False), bool)
            for key, count in zip(keys, np.bincount(codes[resent], minlength=len(keys)).tolist(), strict=True):
                part.resent[key] += count
