"""Comparison of the lanes, log and table of a stream, number by number.

Every section of the log is read and its checksum checked; of the table, only the columns that name a record are read.
The table is read first, so records that arrive meanwhile count only as waiting.

Chunks below a shard's watermark may be gone. The table's rows stand for the records of those, and the newest snapshot
says which records they were.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from weft.cloud_hub.audit.contents import Contents
from weft.cloud_hub.audit.counts import LaneKey, OriginCounts, SeqCounts, coded, lanes_of, unsigned, without
from weft.cloud_hub.audit.report import (
    DAMAGE_LISTED_MAX,
    HOLES_LISTED_MAX,
    AuditReport,
    LaneAudit,
    ShardAudit,
    lane_problems,
    reason_name,
    shard_problems,
)
from weft.cloud_hub.tables.delta import DeltaHandle, in_thread
from weft.cloud_hub.tables.errors import TableError
from weft.protocols.chunk import Chunk, GapRange, LaneUpdate, StreamSection
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.shard_state import lane_of
from weft.storage.chunk_log import Cluster, CollectedPast, ShardLog, open_cluster, table_key
from weft.storage.object_store import NotFound, ObjectStore, StoreUnfit
from weft.storage.table.columns import ORIGIN_COLUMN
from weft.storage.table.names import app_id
from weft.storage.table.payload_columns import BYTES_COLUMN
from weft.storage.table.rows import section_rows

_COLUMNS = ("_offset", "_shard", "_edge", "_log", "_seq", "_resent")
_LOG_COLUMNS = (*_COLUMNS, ORIGIN_COLUMN)
ATTEMPTS_MAX = 3
"""Maximum number of times that the collector may delete chunks whose rows came into the table after it was read."""


class _Outrun(Exception):
    """Chunks were deleted whose rows are only in a later version of the table than the one that was read."""


async def audit(store: ObjectStore, tenant: str, stream: str, *, payloads: bool = False) -> AuditReport:
    """Compare lanes, log and table of a stream.

    Args:
        payloads: compare the payloads, too, by checksum, and read every page of the table.

    Raises:
        ClusterUnusable: the store holds no hub.
        TableError: the table cannot be read.
        StoreError: the store did not answer.
    """
    cluster = await open_cluster(store, None)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        comparison = _Comparison(cluster, tenant, stream, payloads=payloads)
        await comparison.read_table(store)
        for shard in range(cluster.shards):
            await comparison.read_shard(ShardLog(store, cluster, shard))
        try:
            await comparison.take_collected_from_table(is_last=attempt == ATTEMPTS_MAX)
        except _Outrun:
            continue
        break
    return comparison.report()


class _Comparison:
    def __init__(self, cluster: Cluster, tenant: str, stream: str, *, payloads: bool) -> None:
        self._cluster, self._tenant, self._stream = cluster, tenant, stream
        self._payloads = payloads
        self._payload = PayloadKind.BYTES
        self._columns: list[str] = []
        self._origin_columns: list[str] = []
        """The table's column of origins; a table of an earlier release has none."""
        self._handle: DeltaHandle | None = None
        self._version: int | None = None
        self._positions: dict[int, int] = dict.fromkeys(range(cluster.shards), 0)
        self._table: SeqCounts[LaneKey] = SeqCounts()
        self._offsets: SeqCounts[int] = SeqCounts()
        self._log: SeqCounts[LaneKey] = SeqCounts()
        """Records in chunks that are there."""
        self._collected: dict[int, RangeSet] = defaultdict(RangeSet)
        """Per shard the offsets of chunks that were deleted."""
        self._rows: SeqCounts[LaneKey] = SeqCounts()
        """Rows of the table with such offsets: the log's word, now that the chunks are gone."""
        self._stated: dict[LaneKey, RangeSet] = defaultdict(RangeSet)
        """Records of a lane according to the snapshot of a shard whose chunks were deleted."""
        self._below: dict[LaneKey, RangeSet] = defaultdict(RangeSet)
        self._indexed: dict[LaneKey, RangeSet] = defaultdict(RangeSet)
        self._named: dict[str, dict[str, RangeSet]] = defaultdict(lambda: defaultdict(RangeSet))
        """Log id -> tenant/edge -> numbers in the log and the table of this stream under that name, of any tenant. A
        record is one number of one log, so a number under two names is there twice."""
        self._explained: dict[str, RangeSet] = defaultdict(RangeSet)
        """Log id -> numbers that the hub has under some name, of any tenant, or whose loss some name explains. A gap
        with the reason `renamed` explains nothing: it only says that another name has the numbers."""
        self._gaps: dict[LaneKey, list[GapRange]] = defaultdict(list)
        self._resent: Counter[LaneKey] = Counter()
        self._origins: OriginCounts[LaneKey] = OriginCounts()
        self._chunks: Counter[int] = Counter()
        self._ends: Counter[int] = Counter()
        self._skips: dict[int, RangeSet] = defaultdict(RangeSet)
        """Per shard the offsets that an operator took out of the table."""
        self._skipped: dict[LaneKey, RangeSet] = defaultdict(RangeSet)
        """Their records."""
        self._contents = Contents(self._positions, self._skips)
        self._damage: list[str] = []

    async def read_table(self, store: ObjectStore) -> None:
        try:
            uri, options = store.location(table_key(self._tenant, self._stream))
        except StoreUnfit:
            # Such a store holds no tables, which is no reason to leave its log unread.
            return
        handle = await in_thread(lambda: DeltaHandle.open(uri, options))
        if handle is None:
            return
        self._handle, self._version = handle, handle.version
        for shard in self._positions:
            await self._read_skips(ShardLog(store, self._cluster, shard))
        try:
            await in_thread(lambda: self._read_rows(handle))
        except TableError as error:
            self._note(f"the table cannot be read on: {error}")

    def _read_rows(self, handle: DeltaHandle) -> None:
        for shard in self._positions:
            self._positions[shard] = handle.position(app_id(self._cluster.cluster_id, self._stream, shard))
        columns: Iterable[str] = _COLUMNS
        if self._payloads:
            # All columns: a page is compared with its checksum when it is read.
            columns = names = dict(handle.columns())
            self._payload = handle.payload()
            self._contents.columns = tuple(name for name in ("payload", BYTES_COLUMN) if name in names)
        self._columns = list(columns)
        if dict(handle.columns()).get(ORIGIN_COLUMN) == "string":
            self._origin_columns = [ORIGIN_COLUMN]
        for batch in handle.rows(self._columns):
            self._contents.add("table", batch)
            self._table.add_rows(*lanes_of(batch), unsigned(batch.column("_seq")))
            self._offsets.add_rows(*coded(batch.column("_shard")), unsigned(batch.column("_offset")))

    async def _read_skips(self, log: ShardLog) -> None:
        """Take what operators took out of the table. Where a log cannot be folded, its reading says so."""
        with contextlib.suppress(CodecError, CollectedPast):
            for skip in (await log.load()).skips.get((self._tenant, self._stream), ()):
                self._skips[log.shard].add(skip.first, skip.end)
                for run in skip.runs:
                    self._skipped[run.edge, format_log_id(run.log_id)].add(run.first, run.end)

    async def read_shard(self, log: ShardLog) -> None:
        first = 0
        while True:
            ended = await self._read_snapshot(log)
            first = max(first, log.watermark)
            try:
                if await self._read_chunks(log, first):
                    # Without a record in the chunks that are there, the snapshot says where the stream stands.
                    self._skip(log.shard, ended)
                return
            except CollectedPast:
                # The collector was faster. It deletes nothing that a table lacks, so the rest is read there.
                continue
            except CodecError as error:
                self._note(f"shard {log.shard} cannot be read on: {error}")
                return

    async def _read_snapshot(self, log: ShardLog) -> int:
        """Take what is known of chunks below the watermark. Return the next offset of the stream after them, or that of
        a later chunk; 0 when nothing was collected."""
        try:
            manifest, _ = await log.manifest()
            if manifest.watermark == 0:
                return 0
            state = await log.load_snapshot()
        except CodecError as error:
            self._note(f"shard {log.shard}: {error}")
            return 0
        for lane, held in state.lanes.items():
            self._read_lane(lane, held.records, held.gaps)
            if (lane.tenant, lane.stream) == (self._tenant, self._stream):
                self._stated[lane.edge, format_log_id(lane.log_id)].update(held.records)
        return state.next_offset.get((self._tenant, self._stream), 0)

    def _skip(self, shard: int, offset: int) -> None:
        if offset > self._ends[shard]:
            self._collected[shard].add(self._ends[shard], offset)
            self._ends[shard] = offset

    async def _read_chunks(self, log: ShardLog, first: int) -> bool:
        """Read chunks from ``first`` to the head. Return whether what was collected before them is still to be noted:
        none of them has records of the stream."""
        is_first = first > 0
        async for chunk in log.indexes(first):
            self._chunks[log.shard] += 1
            await self._read_sections(log, chunk, after_collected=is_first)
            self._read_lanes(chunk.footer.lanes)
            is_first = is_first and not any(map(self._is_ours, chunk.footer.streams))
        return is_first

    def _is_ours(self, section: StreamSection) -> bool:
        return (section.tenant, section.stream) == (self._tenant, self._stream)

    def _read_lanes(self, updates: Iterable[LaneUpdate]) -> None:
        for update in updates:
            self._read_lane(lane_of(update), update.ranges, update.gaps)
            if (update.tenant, update.stream) == (self._tenant, self._stream):
                self._indexed[update.edge, format_log_id(update.log_id)].update(update.ranges)

    def _read_lane(self, lane: Lane, ranges: Iterable[tuple[int, int]], gaps: Sequence[GapRange]) -> None:
        if lane.stream != self._stream:
            return
        log_id, ranges = format_log_id(lane.log_id), list(ranges)
        self._named[log_id][f"{lane.tenant}/{lane.edge}"].update(ranges)
        explained = self._explained[log_id]
        explained.update(ranges)
        for gap in gaps:
            if gap.reason != GapReason.RENAMED:
                explained.add(gap.first, gap.end)
        if lane.tenant == self._tenant:
            self._gaps[lane.edge, log_id] += gaps

    async def _read_sections(self, log: ShardLog, chunk: Chunk, *, after_collected: bool) -> None:
        for section in filter(self._is_ours, chunk.footer.streams):
            if after_collected:
                self._skip(log.shard, section.base_offset)
            if section.base_offset != self._ends[log.shard]:
                self._note(f"chunk {chunk.header.n} of shard {log.shard} does not continue at {self._ends[log.shard]}")
            end = section.base_offset + section.count
            try:
                for start, stop in self._skips[log.shard].missing(section.base_offset, end):
                    data = await log.section(chunk.header.n, section)
                    rows = section_rows(section, data, chunk.footer.lanes, log.shard, [], lambda _: (), start, stop,
                        columns=(*_LOG_COLUMNS, *self._contents.columns), payload=self._payload,
                    )  # fmt: skip
                    await in_thread(lambda rows=rows: self._count_log(rows, log.shard))  # type: ignore[misc]
            except (CodecError, NotFound) as error:
                await log.manifest()
                if chunk.header.n < log.watermark:
                    raise CollectedPast(f"chunk {chunk.header.n} of shard {log.shard} was collected") from error
                self._note(f"chunk {chunk.header.n} of shard {log.shard}: {error}")
            self._ends[log.shard] = end

    def _count_log(self, batches: Iterable[pa.RecordBatch], shard: int) -> None:
        for batch in batches:
            self._contents.add("log", batch)
            keys, codes = lanes_of(batch)
            seqs = unsigned(batch.column("_seq"))
            self._log.add_rows(keys, codes, seqs)
            below = unsigned(batch.column("_offset")) < self._positions[shard]
            moved: SeqCounts[LaneKey] = SeqCounts()
            moved.add_rows(keys, codes[below], seqs[below])
            for key, ranges in moved.held.items():
                self._below[key].update(ranges)
            self._origins.add_rows(keys, codes, batch.column(ORIGIN_COLUMN))
            resent = np.asarray(batch.column("_resent").to_numpy(zero_copy_only=False), bool)
            for key, count in zip(keys, np.bincount(codes[resent], minlength=len(keys)).tolist(), strict=True):
                self._resent[key] += count

    async def take_collected_from_table(self, *, is_last: bool) -> None:
        """Count the table's rows of offsets whose chunks are gone as the log's.

        Args:
            is_last: note rows that the table lacks instead of raising.

        Raises:
            _Outrun: the table as it was read lacks some of them.
        """
        for shard, offsets in self._collected.items():
            if offsets.end > self._positions[shard]:
                if not is_last:
                    raise _Outrun
                self._note(
                    f"shard {shard}: chunks with offsets up to {offsets.end} were deleted, and the table ends at "
                    f"{self._positions[shard]}"
                )
        if self._handle is None or not self._collected:
            return
        handle = self._handle
        try:
            await in_thread(lambda: self._read_collected(handle))
        except TableError as error:
            self._note(f"the table cannot be read on: {error}")

    def _read_collected(self, handle: DeltaHandle) -> None:
        for batch in handle.rows([*dict.fromkeys([*self._columns, *self._origin_columns])]):
            shards, codes = coded(batch.column("_shard"))
            offsets = unsigned(batch.column("_offset"))
            wanted = np.zeros(len(offsets), bool)
            for code, shard in enumerate(shards):
                for first, end in self._collected.get(shard, ()):
                    wanted |= (codes == code) & (offsets >= first) & (offsets < end)
            rows = batch.filter(pa.array(wanted))
            self._rows.add_rows(*lanes_of(rows), unsigned(rows.column("_seq")))
            if self._origin_columns:
                self._origins.add_rows(*lanes_of(rows), rows.column(ORIGIN_COLUMN))
            self._contents.add("log", rows)

    def _note(self, sentence: str) -> None:
        if len(self._damage) < DAMAGE_LISTED_MAX:
            self._damage.append(sentence)

    def report(self) -> AuditReport:
        for (edge, log_id), ranges in self._table.held.items():
            self._named[log_id][f"{self._tenant}/{edge}"].update(ranges)
        keys = sorted({*self._log.held, *self._table.held, *self._indexed, *self._gaps, *self._stated})
        lanes = [self._lane(key) for key in keys]
        shards = [self._shard(shard) for shard in self._positions if self._ends[shard] or self._offsets.held[shard]]
        problems = [*self._damage, *lane_problems(lanes), *shard_problems(shards), *self._contents.problems()]
        return AuditReport(
            self._tenant, self._stream, self._version, lanes, shards, self._damage, problems, not problems
        )

    def _lane(self, key: LaneKey) -> LaneAudit:
        chunks, table, below, indexed = self._log.held[key], self._table.held[key], self._below[key], self._indexed[key]
        above, collected = without(chunks, below), self._rows.held[key]
        chunks = chunks.copy()
        chunks.update(without(self._skipped[key], collected))
        lost = without(without(self._stated[key], chunks), collected)
        log = chunks.copy()
        log.update(collected)
        log.update(lost)
        accounted, end = log.copy(), log.end
        gaps: dict[str, RangeSet] = defaultdict(RangeSet)  # a snapshot and a chunk may both tell of one
        for gap in self._gaps[key]:
            told = self._told(key[1], gap)
            accounted.update(told)
            end = max(end, gap.end)
            gaps[reason_name(gap.reason)].update(told)
        holes = accounted.missing(0, end)
        return LaneAudit(
            edge=key[0],
            log_id=key[1],
            records=log.count(),
            log_doubled=self._log.doubled[key] + chunks.count() - without(chunks, collected).count(),
            unindexed=without(chunks, indexed).count() + without(indexed, chunks).count(),
            table_records=table.count(),
            table_doubled=self._table.doubled[key],
            waiting=without(above, table).count(),
            missing=without(below, table).count() + without(lost, table).count(),
            unknown=without(table, log).count(),
            gaps={reason: told.count() for reason, told in gaps.items() if told},
            holes=sum(end - first for first, end in holes),
            hole_ranges=holes[:HOLES_LISTED_MAX],
            resent=self._resent[key],
            skipped=without(self._skipped[key], table).count(),
            named_twice=self._named_twice(key),
            origins=dict(sorted(self._origins.counts[key].items())),
        )

    def _told(self, log_id: str, gap: GapRange) -> RangeSet:
        """Return the numbers of a gap notice that need no further explanation.

        Numbers before a rename that no name has are none: this hub lost them, or was never sent them.
        """
        numbers = RangeSet([(gap.first, gap.end)])
        if gap.reason != GapReason.RENAMED:
            return numbers
        return without(numbers, without(numbers, self._explained[log_id]))

    def _named_twice(self, key: LaneKey) -> dict[str, int]:
        """Return other names of the lane's log, with the number of its records that each has too."""
        own, names = f"{self._tenant}/{key[0]}", self._named[key[1]]
        counts = {name: names[own].count() - without(names[own], ranges).count() for name, ranges in names.items()}
        return {name: count for name, count in sorted(counts.items()) if name != own and count}

    def _shard(self, shard: int) -> ShardAudit:
        position, held = self._positions[shard], self._offsets.held[shard]
        absent = RangeSet(held.missing(0, position))
        missing = without(absent, self._skips[shard]).count()
        return ShardAudit(
            shard=shard,
            chunks=self._chunks[shard],
            log_end=self._ends[shard],
            position=position,
            missing=missing,
            doubled=self._offsets.doubled[shard],
            ahead=held.count() - (position - absent.count()),
            skipped=absent.count() - missing,
        )
