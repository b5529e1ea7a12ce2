"""The tasks of an audit: over the chunks of a shard's log, and over the files of the table."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads

from weft.proofs.audit.counts import (
    TABLE_PLACE,
    LaneKey,
    Part,
    Scope,
    add_payloads,
    add_times,
    coded,
    lanes_of,
    unsigned,
)
from weft.protocols.chunk_index import Chunk, StreamSection
from weft.protocols.errors import CodecError
from weft.protocols.lane import format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.shard.completeness import has_spoken
from weft.protocols.shard.lane_state import lane_of, last_word_of
from weft.storage.chunk_log import CollectedPast, NamedOpenGap, ShardLog, open_gaps_of
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import chunk_key, chunk_prefix
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.table.actions import TableError, app_id, table_payload
from weft.storage.table.delta import file_system, guarded, open_table
from weft.storage.table.parquet import group_slices
from weft.storage.table.rows import ORIGIN_COLUMN, RowsOf, rows_of

# Task of an audit: count the records of a run of chunks of one shard.

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
                self._log.shard,
                n,
                f"shard {self._log.shard}: {key} is missing, though later chunks exist; restore it from a backup "
                "of the store",
            )
        return chunk

    def _take_index(self, chunk: Chunk) -> None:
        shard, scope = self._log.shard, self._scope
        self._part.chunks[shard] += 1
        for update in chunk.footer.lanes:
            self._part.take_lane(scope, lane_of(update), update.ranges, update.gaps, last_word_of(update))
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
        of_section = RowsOf(section, data, chunk.footer.lanes_of(section), chunk.footer.clocks_of(section))
        columns = (*COLUMNS, ORIGIN_COLUMN, *scope.payload_columns)
        for start, stop in self._wanted(section):
            rows = rows_of([of_section], shard, [], lambda _: (), start, stop, columns=columns, payload=scope.payload)
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


# Plan of an audit's tasks over the log: per shard the facts of the snapshot, and runs of chunks.

RUN_CHUNKS = 64
"""Number of chunks of one task: a few seconds of work, with counts that are small beside its records."""
CHUNKS_MAX = 1 << 26
"""Maximum number of chunks of a shard above its watermark: two years of one a second."""


@dataclass
class ShardBase:
    """Knowledge of a shard without its chunks."""

    watermark: int = 0
    """Chunks below may be gone."""
    ended: int = 0
    """Next offset of the stream according to the newest snapshot."""
    stated: dict[LaneKey, RangeSet] = field(default_factory=lambda: defaultdict(RangeSet))
    """Records of a lane according to the snapshot of a shard whose chunks were deleted."""


async def read_base(log: ShardLog, scope: Scope, part: Part) -> ShardBase:
    """Read the facts about chunks below the watermark; damage and lanes go into ``part``.

    Raises:
        StoreError: the store did not answer.
    """
    base = ShardBase()
    try:
        manifest, _ = await log.manifest()
        base.watermark = manifest.watermark
        if manifest.watermark == 0:
            return base
        state = await log.load_snapshot()
    except CodecError as error:
        part.note(log.shard, -1, f"shard {log.shard}: {error}")
        return base
    base.watermark = log.watermark
    for lane, held in state.lanes.items():
        part.take_lane(scope, lane, held.records, held.gaps, held.last_word)
        if scope.is_ours(lane.tenant, lane.stream):
            base.stated[lane.edge, format_log_id(lane.log_id)].update(held.records)
    base.ended = state.next_offset.get((scope.tenant, scope.stream), 0)
    return base


@dataclass
class Head:
    """Facts about a stream in the state at the end of a shard's log."""

    offsets: RangeSet = field(default_factory=RangeSet)
    """Offsets that operators skipped."""
    records: dict[LaneKey, RangeSet] = field(default_factory=lambda: defaultdict(RangeSet))
    """The records at those offsets."""
    open_gaps: list[NamedOpenGap] = field(default_factory=list)
    heard: set[str] = field(default_factory=set)
    """Edges that have said something of the stream."""


async def read_head(log: ShardLog, scope: Scope) -> Head:
    """Return what the state says; nothing if the log cannot be folded, which its own tasks report."""
    head = Head()
    with contextlib.suppress(CodecError, CollectedPast):
        state = await log.load(frozenset({(scope.tenant, scope.stream)}))
        head.open_gaps = open_gaps_of(state, scope.tenant, scope.stream)
        lanes = state.stream_lanes(scope.tenant, scope.stream).items()
        head.heard = {lane.edge for lane, held in lanes if has_spoken(held)}
        for skip in state.skips.get((scope.tenant, scope.stream), ()):
            head.offsets.add(skip.first, skip.end)
            for run in skip.runs:
                head.records[run.edge, format_log_id(run.log_id)].add(run.first, run.end)
    return head


async def log_tasks(log: ShardLog, first: int, part: Part) -> list[LogTask]:
    """Return the tasks for all chunks from ``first`` to the newest. Damage goes into ``part``.

    Raises:
        StoreError: the store did not answer.
    """
    end = await _end(log, first)
    if end - first > CHUNKS_MAX:
        part.note(
            log.shard,
            end,
            f"shard {log.shard}: {chunk_key(log.shard, end - 1)} lies far above the others; the "
            f"{CHUNKS_MAX} chunks from {first} on were compared",
        )
        end = first + CHUNKS_MAX
    return list(_runs(log.shard, first, end))


def _runs(shard: int, first: int, end: int) -> Iterator[LogTask]:
    for start in range(first, end, RUN_CHUNKS):
        yield LogTask(shard, start, min(start + RUN_CHUNKS, end))


async def _end(log: ShardLog, first: int) -> int:
    """Return the number after the newest chunk, at least ``first``. It is found by bisection, since a listing of all
    keys would take very many requests."""

    async def reaches(n: int) -> bool:
        """Return whether chunk n or a later one exists."""
        after = chunk_key(log.shard, n - 1) if n else None
        return bool(await log.store.list(chunk_prefix(log.shard), after=after, limit=1))

    low, step = first, 1
    while await reaches(low + step - 1):
        low, step = low + step, 2 * step
    high = low + step - 1
    while low < high:
        middle = (low + high) // 2
        if await reaches(middle):
            low = middle + 1
        else:
            high = middle
    return low


# The table of an audited stream, and the task that counts rows of its files.
#
# The files of one version never change, so tasks anywhere read the same rows unless the table is vacuumed.

TASK_BYTES = 32 << 20
"""Bytes of files for one task. A longer file is split between several tasks, by slices."""
SLICES_MAX = 64
SCAN_ROWS = 128 << 10


class File(NamedTuple):
    """A file of the table."""

    number: int
    path: str
    """Relative to the table."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class AuditedTable:
    """One version of a table."""

    uri: str
    options: dict[str, str] = field(repr=False)
    version: int
    positions: dict[int, int]
    schema: pa.Schema
    payload: PayloadKind
    files: tuple[File, ...]

    @classmethod
    def open(
        cls, uri: str, options: dict[str, str], cluster: Cluster, stream: str, version: int | None = None
    ) -> AuditedTable | None:
        """Return the newest or a given version of the table; None if there is no table. Blocks.

        Raises:
            TableError: it cannot be opened.
        """
        return guarded(lambda: _open(uri, options, cluster, stream, version))

    @property
    def has_origins(self) -> bool:
        """Return whether the table has the column of origins; tables of earlier releases lack it."""
        return ORIGIN_COLUMN in self.schema.names and self.schema.field(ORIGIN_COLUMN).type == pa.string()

    def tasks(self, columns: Sequence[str], collected: Mapping[int, RangeSet]) -> Iterator[TableTask]:
        """Yield the tasks that together count every row once.

        Args:
            columns: columns to read.
            collected: shard -> offsets of chunks that were deleted.
        """
        group: list[File] = []
        filled = 0
        for file in self.files:
            if file.size > TASK_BYTES:
                slices = min(SLICES_MAX, -(-file.size // TASK_BYTES))
                for number in range(slices):
                    yield self._task([file], columns, collected, number, slices)
                continue
            if group and filled + file.size > TASK_BYTES:
                yield self._task(group, columns, collected)
                group, filled = [], 0
            group.append(file)
            filled += file.size
        if group:
            yield self._task(group, columns, collected)

    def _task(
        self,
        files: Sequence[File],
        columns: Sequence[str],
        collected: Mapping[int, RangeSet],
        number: int = 0,
        slices: int = 1,
    ) -> TableTask:
        return TableTask(
            self.uri,
            self.options,
            tuple(files),
            self.schema,
            tuple(columns),
            self.has_origins,
            dict(collected),
            number,
            slices,
        )


def _open(uri: str, options: dict[str, str], cluster: Cluster, stream: str, version: int | None) -> AuditedTable | None:
    table = open_table(uri, options, version)
    if table is None:
        return None
    apps = {shard: app_id(cluster.cluster_id, stream, shard) for shard in range(cluster.tree.count)}
    found = {shard: table.transaction_version(app) for shard, app in apps.items()}
    # This call refuses tables whose files have more rows than the table, such as those with deletion vectors.
    table.to_pyarrow_dataset()
    types = {each.name: getattr(each.type, "type", None) for each in table.schema().fields}
    actions = table.get_add_actions(flatten=True)
    named = sorted(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))
    return AuditedTable(
        uri,
        options,
        table.version(),
        {shard: int(position or 0) for shard, position in found.items()},
        pa.schema(table.schema()),
        table_payload(types.get("payload"), table.metadata().configuration),
        tuple(File(number, unquote(path), size) for number, (path, size) in enumerate(named)),
    )


@dataclass(frozen=True)
class TableTask:
    """Some files of the table, or some slices of one file, at regular intervals."""

    uri: str
    options: dict[str, str] = field(repr=False)
    files: tuple[File, ...]
    schema: pa.Schema
    columns: tuple[str, ...]
    has_origins: bool
    collected: dict[int, RangeSet]
    slice: int
    slices: int

    async def run(self, _: ObjectStore, scope: Scope) -> Part:
        """Count the rows. An unreadable file is recorded as damage, and the others are still counted."""
        return await asyncio.to_thread(self._run, scope)

    def _run(self, scope: Scope) -> Part:
        part = Part()
        for file in self.files:
            counts = Part()
            try:
                guarded(lambda file=file, counts=counts: self._count_file(counts, file, scope))  # type: ignore[misc]
            except TableError as error:
                part.note(
                    TABLE_PLACE, file.number, f"the rest of the table cannot be read: {file.path} is damaged: {error}"
                )
            part.merge(counts)
        return part

    def _count_file(self, part: Part, file: File, scope: Scope) -> None:
        for batch in self.rows(file):
            add_payloads(part.table_payloads, batch, scope)
            add_times(part.table_times, batch, scope)
            part.table.add_rows(*lanes_of(batch), unsigned(batch.column("_seq")))
            part.offsets.add_rows(*coded(batch.column("_shard")), unsigned(batch.column("_offset")))
            if self.collected:
                self._count_collected(part, batch, scope)

    def rows(self, file: File) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, or of this task's part of it. Blocks.

        The rows of a slice come together: they are sorted by other columns, and only all of them make a run of numbers.
        """
        fragment = pads.ParquetFileFormat().make_fragment(file.path, file_system(self.uri, self.options))
        for each in islice(group_slices(fragment.metadata), self.slice, None, self.slices):
            groups = list(range(each.first, each.end))
            scanner = fragment.subset(row_group_ids=groups, schema=self.schema).scanner(
                schema=self.schema,
                columns=list(self.columns),
                batch_size=SCAN_ROWS,
                batch_readahead=2,
                fragment_scan_options=pads.ParquetFragmentScanOptions(page_checksum_verification=True),
            )
            yield from scanner.to_batches() if len(groups) == 1 else scanner.to_table().combine_chunks().to_batches()

    def _count_collected(self, part: Part, batch: pa.RecordBatch, scope: Scope) -> None:
        """Count rows of offsets with deleted chunks as records of the log."""
        shards, codes = coded(batch.column("_shard"))
        offsets = unsigned(batch.column("_offset"))
        wanted = np.zeros(len(offsets), bool)
        for code, shard in enumerate(shards):
            for first, end in self.collected.get(shard, ()):
                wanted |= (codes == code) & (offsets >= first) & (offsets < end)
        rows = batch.filter(pa.array(wanted))
        part.collected.add_rows(*lanes_of(rows), unsigned(rows.column("_seq")))
        if self.has_origins:
            part.origins.add_rows(*lanes_of(rows), rows.column(ORIGIN_COLUMN))
        add_payloads(part.log_payloads, rows, scope)
        add_times(part.log_times, rows, scope)


def table_columns(table: AuditedTable, *, payloads: bool, collected: bool) -> list[str]:
    """Return the columns to read: all for a comparison of payloads, because a page's checksum is checked only when it
    is read."""
    if payloads:
        return list(table.schema.names)
    return [*COLUMNS, *([ORIGIN_COLUMN] if collected and table.has_origins else [])]
