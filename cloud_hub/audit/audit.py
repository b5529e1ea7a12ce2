"""Comparison of the lanes, log and table of a stream, number by number.

Every section of the log is read and its checksum checked; of the table, only the columns that name a record are read.
The table is read first, so records that arrive meanwhile count only as waiting.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from weft.cloud_hub.audit.counts import SeqCounts, coded, unsigned
from weft.cloud_hub.audit.report import (
    DAMAGE_LISTED_MAX,
    HOLES_LISTED_MAX,
    AuditReport,
    LaneAudit,
    ShardAudit,
    lane_problems,
    shard_problems,
)
from weft.cloud_hub.tables.delta import DeltaHandle, in_thread
from weft.cloud_hub.tables.errors import TableError
from weft.protocols.chunk import Chunk, GapRange, LaneUpdate
from weft.protocols.errors import CodecError
from weft.protocols.lane import format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.storage.chunk_log import Cluster, CollectedPast, ShardLog, open_cluster, table_key
from weft.storage.object_store import NotFound, ObjectStore, StoreUnfit
from weft.storage.table.names import app_id
from weft.storage.table.payload_columns import BYTES_COLUMN
from weft.storage.table.rows import section_rows

LaneKey = tuple[str, str]
"""(edge, log id in hexadecimal): a lane within one stream."""
_COLUMNS = ("_offset", "_shard", "_edge", "_log", "_seq", "_resent")


BLOCK_OFFSETS = 1024
"""Offsets whose payloads are compared by one sum of checksums."""
DIFFERENCES_LISTED_MAX = 20


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
    comparison = _Comparison(cluster, tenant, stream, payloads=payloads)
    await comparison.read_table(store)
    for shard in range(cluster.shards):
        await comparison.read_shard(ShardLog(store, cluster, shard))
    return comparison.report()


class _Comparison:
    def __init__(self, cluster: Cluster, tenant: str, stream: str, *, payloads: bool) -> None:
        self._cluster, self._tenant, self._stream = cluster, tenant, stream
        self._payloads = payloads
        self._payload = PayloadKind.BYTES
        self._contents: tuple[str, ...] = ()
        """Columns of the table with the payloads; none when they are not compared."""
        self._sums: dict[str, Counter[tuple[int, int]]] = {"log": Counter(), "table": Counter()}
        """Sums of the checksums of payloads, by shard and block of offsets."""
        self._version: int | None = None
        self._positions: dict[int, int] = dict.fromkeys(range(cluster.shards), 0)
        self._table: SeqCounts[LaneKey] = SeqCounts()
        self._offsets: SeqCounts[int] = SeqCounts()
        self._log: SeqCounts[LaneKey] = SeqCounts()
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
        self._chunks: Counter[int] = Counter()
        self._ends: Counter[int] = Counter()
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
        self._version = handle.version
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
            self._contents = tuple(name for name in ("payload", BYTES_COLUMN) if name in names)
        for batch in handle.rows(list(columns)):
            self._add_contents("table", batch)
            self._table.add_rows(*_lanes(batch), unsigned(batch.column("_seq")))
            self._offsets.add_rows(*coded(batch.column("_shard")), unsigned(batch.column("_offset")))

    async def read_shard(self, log: ShardLog) -> None:
        chunks = log.indexes(0)
        while True:
            try:
                chunk = await anext(chunks, None)
            except (CodecError, CollectedPast) as error:
                return self._note(f"shard {log.shard} cannot be read on: {error}")
            if chunk is None:
                return None
            self._chunks[log.shard] += 1
            self._read_lanes(chunk.footer.lanes)
            await self._read_sections(log, chunk)

    def _read_lanes(self, updates: Iterable[LaneUpdate]) -> None:
        for lane in updates:
            if lane.stream == self._stream:
                self._named[format_log_id(lane.log_id)][f"{lane.tenant}/{lane.edge}"].update(lane.ranges)
                self._explain(lane)
            if (lane.tenant, lane.stream) == (self._tenant, self._stream):
                key = lane.edge, format_log_id(lane.log_id)
                self._indexed[key].update(lane.ranges)
                self._gaps[key] += lane.gaps

    def _explain(self, lane: LaneUpdate) -> None:
        explained = self._explained[format_log_id(lane.log_id)]
        explained.update(lane.ranges)
        for gap in lane.gaps:
            if gap.reason != GapReason.RENAMED:
                explained.add(gap.first, gap.end)

    async def _read_sections(self, log: ShardLog, chunk: Chunk) -> None:
        for section in chunk.footer.streams:
            if (section.tenant, section.stream) != (self._tenant, self._stream):
                continue
            if section.base_offset != self._ends[log.shard]:
                self._note(f"chunk {chunk.header.n} of shard {log.shard} does not continue at {self._ends[log.shard]}")
            self._ends[log.shard] = section.base_offset + section.count
            try:
                data = await log.section(chunk.header.n, section)
                rows = section_rows(section, data, chunk.footer.lanes, log.shard, [], lambda _: (),
                    columns=(*_COLUMNS, *self._contents), payload=self._payload,
                )  # fmt: skip
                await in_thread(lambda rows=rows: self._count_log(rows, log.shard))  # type: ignore[misc]
            except (CodecError, NotFound) as error:
                self._note(f"chunk {chunk.header.n} of shard {log.shard}: {error}")

    def _count_log(self, batches: Iterable[pa.RecordBatch], shard: int) -> None:
        for batch in batches:
            self._add_contents("log", batch)
            keys, codes = _lanes(batch)
            seqs = unsigned(batch.column("_seq"))
            self._log.add_rows(keys, codes, seqs)
            below = unsigned(batch.column("_offset")) < self._positions[shard]
            moved: SeqCounts[LaneKey] = SeqCounts()
            moved.add_rows(keys, codes[below], seqs[below])
            for key, ranges in moved.held.items():
                self._below[key].update(ranges)
            resent = np.asarray(batch.column("_resent").to_numpy(zero_copy_only=False), bool)
            for key, count in zip(keys, np.bincount(codes[resent], minlength=len(keys)).tolist(), strict=True):
                self._resent[key] += count

    def _add_contents(self, side: str, batch: pa.RecordBatch) -> None:
        """Add the payloads of rows below the table's position to the sums of their blocks."""
        if not self._contents:
            return
        sums, names = self._sums[side], ("_shard", "_offset", *self._contents)
        for shard, offset, *parts in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            if offset < self._positions[shard]:
                crc = crc32c(struct.pack("<Q", offset))
                for part in parts:
                    crc = crc32c(part.encode() if isinstance(part, str) else part or b"", crc)
                sums[shard, offset // BLOCK_OFFSETS] += crc

    def _content_problems(self) -> list[str]:
        log, table = self._sums["log"], self._sums["table"]
        differing = sorted(block for block in log.keys() | table.keys() if log[block] != table[block])
        return [
            f"shard {shard}: payloads of offsets {block * BLOCK_OFFSETS} to {(block + 1) * BLOCK_OFFSETS - 1} differ "
            "between log and table"
            for shard, block in differing[:DIFFERENCES_LISTED_MAX]
        ]

    def _note(self, sentence: str) -> None:
        if len(self._damage) < DAMAGE_LISTED_MAX:
            self._damage.append(sentence)

    def report(self) -> AuditReport:
        for (edge, log_id), ranges in self._table.held.items():
            self._named[log_id][f"{self._tenant}/{edge}"].update(ranges)
        keys = sorted({*self._log.held, *self._table.held, *self._indexed, *self._gaps})
        lanes = [self._lane(key) for key in keys]
        shards = [self._shard(shard) for shard in self._positions if self._ends[shard] or self._offsets.held[shard]]
        problems = [*self._damage, *lane_problems(lanes), *shard_problems(shards), *self._content_problems()]
        return AuditReport(
            self._tenant, self._stream, self._version, lanes, shards, self._damage, problems, not problems
        )

    def _lane(self, key: LaneKey) -> LaneAudit:
        log, table, below, indexed = self._log.held[key], self._table.held[key], self._below[key], self._indexed[key]
        above = _without(log, below)
        accounted, end = log.copy(), log.end
        gaps: Counter[str] = Counter()
        for gap in self._gaps[key]:
            told = self._told(key[1], gap)
            accounted.update(told)
            end = max(end, gap.end)
            gaps[_reason(gap.reason)] += told.count()
        holes = accounted.missing(0, end)
        return LaneAudit(
            edge=key[0],
            log_id=key[1],
            records=log.count(),
            log_doubled=self._log.doubled[key],
            unindexed=_without(log, indexed).count() + _without(indexed, log).count(),
            table_records=table.count(),
            table_doubled=self._table.doubled[key],
            waiting=_without(above, table).count(),
            missing=_without(below, table).count(),
            unknown=_without(table, log).count(),
            gaps={reason: count for reason, count in gaps.items() if count},
            holes=sum(end - first for first, end in holes),
            hole_ranges=holes[:HOLES_LISTED_MAX],
            resent=self._resent[key],
            named_twice=self._named_twice(key),
        )

    def _told(self, log_id: str, gap: GapRange) -> RangeSet:
        """Return the numbers of a gap notice that need no further explanation.

        Numbers before a rename that no name has are none: this hub lost them, or was never sent them.
        """
        numbers = RangeSet([(gap.first, gap.end)])
        if gap.reason != GapReason.RENAMED:
            return numbers
        return _without(numbers, _without(numbers, self._explained[log_id]))

    def _named_twice(self, key: LaneKey) -> dict[str, int]:
        """Return other names of the lane's log, with the number of its records that each has too."""
        own, names = f"{self._tenant}/{key[0]}", self._named[key[1]]
        counts = {name: names[own].count() - _without(names[own], ranges).count() for name, ranges in names.items()}
        return {name: count for name, count in sorted(counts.items()) if name != own and count}

    def _shard(self, shard: int) -> ShardAudit:
        position, held = self._positions[shard], self._offsets.held[shard]
        missing = sum(end - first for first, end in held.missing(0, position))
        return ShardAudit(
            shard=shard,
            chunks=self._chunks[shard],
            log_end=self._ends[shard],
            position=position,
            missing=missing,
            doubled=self._offsets.doubled[shard],
            ahead=held.count() - (position - missing),
        )


def _lanes(batch: pa.RecordBatch) -> tuple[list[LaneKey], Any]:
    names = pc.binary_join_element_wise(batch.column("_edge"), batch.column("_log"), "/")
    values, codes = coded(names)
    return [(edge, log) for edge, _, log in (value.rpartition("/") for value in values)], codes


def _without(ranges: RangeSet, others: RangeSet) -> RangeSet:
    left = ranges.copy()
    for first, end in others:
        left.remove(first, end)
    return left


def _reason(number: int) -> str:
    return next((reason.name.lower() for reason in GapReason if reason == number), f"reason {number}")
