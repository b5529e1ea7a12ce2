"""Comparison of the lanes, log and table of a stream, number by number.

The audit reads every section of the log and checks its checksum; it reads only the table's columns that name a record
and its time. The table's version is fixed first, so records that arrive meanwhile count only as waiting.

Chunks below a shard's watermark may be gone. The table's rows then count as their records, and the newest snapshot
lists those.

The work is a map over tasks and a sum: runs of chunks first, which show the collected ones, then files of the table. A
runner runs the tasks in this process or on Spark's executors; the report is the same. A join of log and table would
shuffle every record, and say nothing of gaps, renames and skipped ranges.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.proofs.audit.counts import (
    TABLE_PLACE,
    LaneKey,
    Part,
    Scope,
    SeqCounts,
    Stretch,
    coded,
    explained,
    lanes_of,
    payload_problems,
    time_problems,
    unsigned,
    without,
)
from weft.proofs.audit.report import (
    DAMAGE_LISTED_MAX,
    HOLES_LISTED_MAX,
    AuditReport,
    DeclaredDeletion,
    LaneAudit,
    ShardAudit,
    lane_problems,
    reason_name,
    shard_problems,
)
from weft.proofs.audit.tasks import (
    COLUMNS,
    AuditedTable,
    LogTask,
    ShardBase,
    TableTask,
    log_tasks,
    read_base,
    read_head,
    table_columns,
)
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.completeness import is_heard
from weft.storage.chunk_log import NamedOpenGap, ShardLog
from weft.storage.cluster import ClusterUnusable, open_cluster
from weft.storage.cluster_log import ClusterLog
from weft.storage.hub_keys import latest_key, table_key
from weft.storage.object_store import ObjectStore, StoreUnfit
from weft.storage.table.actions import TableError
from weft.storage.table.deletions import RANGES_MAX, Deletion, stored_deletions
from weft.storage.table.delta import guarded
from weft.storage.table.latest import only_latest
from weft.storage.table.rows import BYTES_COLUMN
from weft.storage.table.schemas import ExpectedEdges

# Declared deletions: rows that were deleted from a stream's table on purpose, as opposed to lost ones.
#
# A declaration is an object in the hub's store. It names the rows that were in the table when it was made, by lane
# and number and by offset, so it covers neither an unwritten row nor a later one. Declared rows that are still in the
# table count as before.


class Rows(NamedTuple):
    """A choice of rows; all given conditions must be met."""

    key: str | None = None
    edge: str | None = None
    log_id: str | None = None
    first: int | None = None
    end: int | None = None
    """Numbers of the lane from ``first`` to before ``end``."""
    since: datetime | None = None
    until: datetime | None = None
    """``_time`` from ``since`` to before ``until``."""

    @property
    def text(self) -> str:
        """Return the choice for people."""
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items() if value is not None)


class DeclaredDeletions(NamedTuple):
    """All declared deletions of a stream together."""

    lanes: dict[LaneKey, RangeSet]
    offsets: dict[int, RangeSet]
    reported: list[DeclaredDeletion]
    """Each of them, for people."""


async def find_rows(
    store: ObjectStore, tenant: str, stream: str, rows: Rows, version: int | None
) -> tuple[int, SeqCounts[LaneKey], SeqCounts[int]]:
    """Return the table's version, and its rows selected by ``rows``, by lane and by shard.

    Args:
        version: None for the newest.

    Raises:
        ClusterUnusable, StoreError, StoreUnfit: as for an audit.
        TableError: there is no table, it has no such version, a file cannot be read, or the rows are too scattered.
    """
    cluster = await open_cluster(store, None)
    uri, options = store.location(table_key(tenant, stream))
    table = await asyncio.to_thread(AuditedTable.open, uri, options, cluster, stream, version)
    if table is None:
        raise TableError(f"the hub has no table of {tenant}/{stream}")
    lanes, offsets = SeqCounts[LaneKey](), SeqCounts[int]()
    for task in table.tasks([*COLUMNS, "_key"], {}):
        await asyncio.to_thread(guarded, lambda task=task: _count(task, rows, lanes, offsets))
    return table.version, lanes, offsets


def _count(task: TableTask, rows: Rows, lanes: SeqCounts[LaneKey], offsets: SeqCounts[int]) -> None:
    for file in task.files:
        for batch in task.rows(file):
            found = batch.filter(_chosen(batch, rows))
            lanes.add_rows(*lanes_of(found), unsigned(found.column("_seq")))
            offsets.add_rows(*coded(found.column("_shard")), unsigned(found.column("_offset")))
            if sum(map(len, (*lanes.held.values(), *offsets.held.values()))) > RANGES_MAX:
                raise TableError(f"these rows make more than {RANGES_MAX:,} ranges. Declare them in parts, by time")


def _chosen(batch: pa.RecordBatch, rows: Rows) -> pa.Array:
    chosen = np.ones(batch.num_rows, bool)
    for column, wanted in (("_key", rows.key), ("_edge", rows.edge), ("_log", rows.log_id)):
        if wanted is not None:
            chosen &= pc.equal(batch.column(column), wanted).to_numpy(zero_copy_only=False)
    seqs = unsigned(batch.column("_seq"))
    chosen &= seqs >= np.uint64(rows.first or 0)
    if rows.end is not None:
        chosen &= seqs < np.uint64(rows.end)
    times = batch.column("_time")
    if rows.since is not None:
        chosen &= pc.greater_equal(times, pa.scalar(rows.since, times.type)).to_numpy(zero_copy_only=False)
    if rows.until is not None:
        chosen &= pc.less(times, pa.scalar(rows.until, times.type)).to_numpy(zero_copy_only=False)
    return pa.array(chosen)


def stored(seqs: SeqCounts[LaneKey]) -> list[tuple[str, str, list[Range]]]:
    """Return numbers by lane in the form of a declaration."""
    return [(edge, log_id, list(held)) for (edge, log_id), held in sorted(seqs.held.items())]


async def read_declared(store: ObjectStore, tenant: str, stream: str) -> DeclaredDeletions:
    """Return the declared deletions of a stream.

    Raises:
        TableError: a declaration is damaged, or a later release wrote it.
    """
    lanes: dict[LaneKey, RangeSet] = defaultdict(RangeSet)
    offsets: dict[int, RangeSet] = defaultdict(RangeSet)
    found = await stored_deletions(store, tenant, stream)
    for deletion in found.values():
        for edge, log_id, ranges in deletion.lanes:
            lanes[edge, log_id].update(RangeSet(ranges))
        for shard, ranges in deletion.offsets:
            offsets[shard].update(RangeSet(ranges))
    return DeclaredDeletions(lanes, offsets, [_declared(number, each) for number, each in found.items()])


def _declared(number: int, deletion: Deletion) -> DeclaredDeletion:
    is_erased = deletion.erasure is not None
    fields = number, deletion.time, deletion.by, deletion.reason, deletion.rows, deletion.count
    return DeclaredDeletion(*fields, is_erased=is_erased, received_until=deletion.received_until)


# Comparison of an audit's merged counts: lanes and shards, and differences between log and table.


def shard_end(part: Part, shard: int, base: ShardBase) -> tuple[int, RangeSet]:
    """Return the offset after a shard's last one, and the offsets of chunks that were deleted.

    A run of chunks that does not continue the previous one is recorded as damage in ``part``.
    """
    collected, end, last_n = RangeSet(), 0, -1
    for stretch in sorted(each for each in part.stretches if each.shard == shard):
        if stretch.base > end and last_n + 1 < base.watermark:
            collected.add(end, stretch.base)
        elif stretch.base != end:
            _note_break(part, stretch, end)
        end, last_n = stretch.end, stretch.last_n
    if last_n < base.watermark and base.ended > end:
        # Without a record in the existing chunks, the snapshot has the stream's next offset.
        collected.add(end, base.ended)
        end = base.ended
    return end, collected


def _note_break(part: Part, stretch: Stretch, end: int) -> None:
    part.note(
        stretch.shard, stretch.first_n, f"chunk {stretch.first_n} of shard {stretch.shard} does not continue at {end}"
    )


class Comparison:
    """All findings of an audit.

    Args:
        part: all counts, merged.
        stated: records of lanes according to snapshots of shards whose chunks were deleted.
        skipped: records that an operator skipped.
        ends: shard -> end of the log.
        version: compared version of the table; None without one.
        declared: declared deletions.
    """

    def __init__(  # noqa: PLR0917
        self,
        scope: Scope,
        part: Part,
        stated: Mapping[LaneKey, RangeSet],
        skipped: Mapping[LaneKey, RangeSet],
        ends: Mapping[int, int],
        version: int | None,
        declared: DeclaredDeletions,
    ) -> None:
        self._declared = declared
        self._scope, self._part, self._ends, self._version = scope, part, ends, version
        self._stated = defaultdict(RangeSet, stated)
        self._skipped = defaultdict(RangeSet, skipped)

    def report(self) -> AuditReport:
        """Return the report: equal counts give equal reports."""
        part, scope = self._part, self._scope
        for (edge, log_id), ranges in part.table.held.items():
            part.named[log_id][f"{scope.tenant}/{edge}"].records.update(ranges)
        keys = sorted({*part.log.held, *part.table.held, *part.indexed, *part.gaps, *self._stated})
        lanes = [self._lane(key) for key in keys]
        shards = [
            self._shard(shard)
            for shard in range(scope.cluster.tree.count)
            if self._ends.get(shard, 0) or part.offsets.held[shard]
        ]
        damage = [each.sentence for each in part.listed_damage()][:DAMAGE_LISTED_MAX]
        problems = [*damage, *lane_problems(lanes), *shard_problems(shards)]
        if not scope.only_latest:  # their sums are of all rows
            problems += time_problems(part.log_times, part.table_times)
            problems += payload_problems(part.log_payloads, part.table_payloads)
        return AuditReport(
            scope.tenant,
            scope.stream,
            self._version,
            lanes,
            shards,
            damage,
            problems,
            agrees=not problems,
            only_latest=scope.only_latest,
        )

    def _lane(self, key: LaneKey) -> LaneAudit:
        part, skipped = self._part, self._skipped[key]
        chunks, table, below, indexed = part.log.held[key], part.table.held[key], part.below[key], part.indexed[key]
        above, collected = without(chunks, below), part.collected.held[key]
        chunks = chunks.copy()
        chunks.update(without(skipped, collected))
        lost = without(without(self._stated[key], chunks), collected)
        log = chunks.copy()
        log.update(collected)
        log.update(lost)
        gaps, end = self._gaps(key, log.end)
        accounted = log.copy()
        for ranges in gaps.values():
            accounted.update(ranges)
        holes = accounted.missing(0, end)
        absent = without(below, table)
        absent.update(without(lost, table))
        replaced = absent if self._scope.only_latest else RangeSet()
        missing = without(without(absent, replaced), self._declared.lanes.get(key, RangeSet()))
        return LaneAudit(
            edge=key[0],
            log_id=key[1],
            records=log.count(),
            log_doubled=part.log.doubled[key] + chunks.count() - without(chunks, collected).count(),
            unindexed=without(chunks, indexed).count() + without(indexed, chunks).count(),
            table_records=table.count(),
            table_doubled=part.table.doubled[key],
            waiting=without(above, table).count(),
            missing=missing.count(),
            deleted=absent.count() - replaced.count() - missing.count(),
            replaced=replaced.count(),
            unknown=without(table, log).count(),
            gaps={reason: ranges.count() for reason, ranges in gaps.items() if ranges},
            holes=sum(end - first for first, end in holes),
            hole_ranges=holes[:HOLES_LISTED_MAX],
            resent=part.resent[key],
            skipped=without(skipped, table).count(),
            named_twice=self._named_twice(key),
            origins=dict(sorted(part.origins.counts[key].items())),
        )

    def _gaps(self, key: LaneKey, end: int) -> tuple[dict[str, RangeSet], int]:
        """Return the lane's gaps that need no further explanation, by reason, and the end of its numbers.

        Numbers before a rename that no name has are not such gaps: this hub lost them, or never received them.
        """
        found = {}
        for reason, numbers in sorted(self._part.gaps[key].items()):
            reported = numbers
            if reason == GapReason.RENAMED:
                had = explained(self._part.named[key[1]], f"{self._scope.tenant}/{key[0]}")
                reported = without(numbers, without(numbers, had))
            found[reason_name(reason)] = reported
            end = max(end, numbers.end)
        return found, end

    def _named_twice(self, key: LaneKey) -> dict[str, int]:
        """Return other names of the lane's log, with the number of its records that each also has."""
        own, names = f"{self._scope.tenant}/{key[0]}", self._part.named[key[1]]
        records = names[own].records
        counts = {name: records.count() - without(records, each.records).count() for name, each in names.items()}
        return {name: count for name, count in sorted(counts.items()) if name != own and count}

    def _shard(self, shard: int) -> ShardAudit:
        position, held = self._scope.positions.get(shard, 0), self._part.offsets.held[shard]
        absent = RangeSet(held.missing(0, position))
        unskipped = without(absent, self._scope.skips.get(shard, RangeSet()))
        if self._scope.only_latest:
            unskipped = RangeSet()
        missing = without(unskipped, self._declared.offsets.get(shard, RangeSet())).count()
        return ShardAudit(
            shard=shard,
            chunks=self._part.chunks[shard],
            log_end=self._ends.get(shard, 0),
            position=position,
            missing=missing,
            doubled=self._part.offsets.doubled[shard],
            ahead=held.count() - (position - absent.count()),
            skipped=0 if self._scope.only_latest else absent.count() - unskipped.count(),
            deleted=unskipped.count() - missing,
        )


ATTEMPTS_MAX = 3
"""Maximum number of attempts, since the collector may delete chunks whose rows came into the table after it was
read."""

Task = LogTask | TableTask
Runner = Callable[[Sequence[Task], Scope], AsyncIterator[Part]]
"""Function that runs tasks anywhere and yields their counts in any order."""


class _Outrun(Exception):
    """The error when the rows of deleted chunks are only in a later version of the table than the one that was read."""


async def audit(
    store: ObjectStore, tenant: str, stream: str, *, payloads: bool = False, runner: Runner | None = None
) -> AuditReport:
    """Compare lanes, log and table of a stream.

    Args:
        payloads: compare the payloads, too, by checksum, and read every page of the table.
        runner: function that runs the tasks; None runs them in this process, one after the other.

    Raises:
        ClusterUnusable: the store holds no hub, or a later release declared something in it.
        TableError: the table cannot be opened.
        StoreError: the store did not answer.
    """
    cluster = await open_cluster(store, None)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        one = _Audit(store, Scope(cluster, tenant, stream), runner or _in_this_process(store))
        try:
            return await one.run(payloads=payloads, is_last=attempt == ATTEMPTS_MAX)
        except _Outrun:
            continue
    raise AssertionError("the last attempt notes what it lacks")


def _in_this_process(store: ObjectStore) -> Runner:
    async def run(tasks: Sequence[Task], scope: Scope) -> AsyncIterator[Part]:
        for task in tasks:
            yield await task.run(store, scope)

    return run


class _Audit:
    """One attempt."""

    def __init__(self, store: ObjectStore, scope: Scope, runner: Runner) -> None:
        self._store, self._scope, self._runner = store, scope, runner
        self._part = Part()
        self._table: AuditedTable | None = None
        self._bases: dict[int, ShardBase] = {}
        self._skipped: dict[LaneKey, RangeSet] = defaultdict(RangeSet)
        self._open_gaps: list[NamedOpenGap] = []
        self._never_heard: list[str] = []
        self._declared = DeclaredDeletions({}, {}, [])

    async def run(self, *, payloads: bool, is_last: bool) -> AuditReport:
        await self._open_table(payloads=payloads)
        await self._read_log()
        ends, collected = {}, {}
        for shard, base in self._bases.items():
            ends[shard], gone = shard_end(self._part, shard, base)
            if gone:
                collected[shard] = gone
        self._check_table_reaches(collected, is_last=is_last)
        if self._table is not None:
            columns = table_columns(self._table, payloads=payloads, collected=bool(collected))
            await self._count(list(self._table.tasks(columns, collected)))
        stated: dict[LaneKey, RangeSet] = defaultdict(RangeSet)
        for base in self._bases.values():
            for lane, ranges in base.stated.items():
                stated[lane].update(ranges)
        version = self._table.version if self._table is not None else None
        report = Comparison(self._scope, self._part, stated, self._skipped, ends, version, self._declared).report()
        return msgspec.structs.replace(
            report, open_gaps=self._open_gaps, deletions=self._declared.reported, never_heard=self._never_heard
        )

    async def _count(self, tasks: Sequence[Task]) -> None:
        if tasks:
            async for part in self._runner(tasks, self._scope):
                self._part.merge(part)

    def _log(self, shard: int) -> ShardLog:
        return ShardLog(self._store, self._scope.cluster, shard)

    async def _open_table(self, *, payloads: bool) -> None:
        scope = self._scope
        heads = {shard: await read_head(self._log(shard), scope) for shard in range(scope.cluster.tree.count)}
        self._open_gaps = [gap for head in heads.values() for gap in head.open_gaps]
        heard = {edge for head in heads.values() for edge in head.heard}
        self._never_heard = [each for each in await self._expected() if not is_heard(each, heard)]
        try:
            is_only = await only_latest(self._store, scope.cluster, (scope.tenant, scope.stream)) is not None
            key = latest_key if is_only else table_key
            uri, options = self._store.location(key(scope.tenant, scope.stream))
        except StoreUnfit:
            # Such a store cannot hold tables, but its log can still be read.
            return
        self._table = table = await asyncio.to_thread(AuditedTable.open, uri, options, scope.cluster, scope.stream)
        if table is None:
            return
        self._declared = await read_declared(self._store, scope.tenant, scope.stream)
        skips = {shard: head.offsets for shard, head in heads.items() if head.offsets}
        for head in heads.values():
            for lane, ranges in head.records.items():
                self._skipped[lane].update(ranges)
        payloads &= not is_only  # sums of some rows cannot be compared with those of all records
        kept = [name for name in ("payload", BYTES_COLUMN) if name in table.schema.names] if payloads else []
        unsummed = {shard: offsets.copy() for shard, offsets in skips.items()}
        for shard, offsets in self._declared.offsets.items():
            unsummed.setdefault(shard, RangeSet()).update(offsets)
        self._scope = replace(
            scope,
            positions=table.positions,
            skips=skips,
            unsummed=unsummed,
            only_latest=is_only,
            payload=table.payload if payloads else scope.payload,
            payload_columns=tuple(kept),
        )

    async def _expected(self) -> Sequence[str]:
        try:
            facts = await ClusterLog(self._store, self._scope.cluster.cluster_id).load()
        except UnsupportedVersion as error:
            raise ClusterUnusable(str(error)) from None
        return ExpectedEdges.of_state(facts).get((self._scope.tenant, self._scope.stream), ())

    async def _read_log(self) -> None:
        tasks: list[LogTask] = []
        for shard in range(self._scope.cluster.tree.count):
            log = self._log(shard)
            self._bases[shard] = base = await read_base(log, self._scope, self._part)
            tasks += await log_tasks(log, base.watermark, self._part)
        await self._count(tasks)
        for shard, watermark in self._part.watermarks.items():
            # The collector deleted chunks of a task. A present snapshot has the records of the deleted ones.
            stated = self._bases[shard].stated
            self._bases[shard] = base = await read_base(self._log(shard), self._scope, self._part)
            base.watermark = max(base.watermark, watermark)
            for lane, ranges in stated.items():
                base.stated[lane].update(ranges)

    def _check_table_reaches(self, collected: dict[int, RangeSet], *, is_last: bool) -> None:
        """Check that the table has the rows of all chunks that were deleted.

        Raises:
            _Outrun: the opened version lacks some of them, and there are attempts left.
        """
        for shard, offsets in collected.items():
            position = self._scope.positions.get(shard, 0)
            if offsets.end > position:
                if not is_last:
                    raise _Outrun
                self._part.note(
                    TABLE_PLACE,
                    shard,
                    f"shard {shard}: chunks with offsets up to {offsets.end} were deleted, and the table ends at "
                    f"{position}",
                )
