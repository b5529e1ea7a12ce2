"""Comparison of the lanes, log and table of a stream, number by number.

The audit reads every section of the log and checks its checksum; it reads only the table's columns that name a record
and its time. The table's version is fixed first, so records that arrive meanwhile count only as waiting.

Chunks below a shard's watermark may be gone. The table's rows then count as their records, and the newest snapshot
lists those.

The work is a map over tasks and a sum: runs of chunks first, which show the collected ones, then files of the table. A
runner runs the tasks in this process or on Spark's executors; the report is the same.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import msgspec

from weft.proofs.audit.comparison import Comparison, shard_end
from weft.proofs.audit.counts import LaneKey
from weft.proofs.audit.deletions import DeclaredDeletions, read_declared
from weft.proofs.audit.log_plan import ShardBase, log_tasks, read_base, read_head
from weft.proofs.audit.log_task import LogTask
from weft.proofs.audit.part import TABLE_PLACE, Part
from weft.proofs.audit.report import AuditReport
from weft.proofs.audit.scope import Scope
from weft.proofs.audit.table_task import AuditedTable, TableTask, table_columns
from weft.protocols.ranges import RangeSet
from weft.storage.chunk_log import ShardLog, open_cluster, table_key
from weft.storage.chunks.open_gaps import NamedOpenGap
from weft.storage.hub_keys import latest_key
from weft.storage.object_store import ObjectStore, StoreUnfit
from weft.storage.table.instead import only_latest
from weft.storage.table.payload_columns import BYTES_COLUMN

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
        ClusterUnusable: the store holds no hub.
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
        return msgspec.structs.replace(report, open_gaps=self._open_gaps, deletions=self._declared.told)

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
            scope, positions=table.positions, skips=skips, unsummed=unsummed, only_latest=is_only,
            payload=table.payload if payloads else scope.payload,
            payload_columns=tuple(kept),
        )  # fmt: skip

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
                    TABLE_PLACE, shard,
                    f"shard {shard}: chunks with offsets up to {offsets.end} were deleted, and the table ends at "
                    f"{position}",
                )  # fmt: skip
