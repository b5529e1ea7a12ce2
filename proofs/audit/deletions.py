"""Declared deletions: rows that were deleted from a stream's table on purpose, as opposed to lost ones.

A declaration is an object in the hub's store. It names the rows that were in the table when it was made, by lane and
number and by offset, so it covers neither an unwritten row nor a later one. Declared rows that are still in the table
count as before.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.proofs.audit.counts import LaneKey, SeqCounts, coded, lanes_of, unsigned
from weft.proofs.audit.log_task import COLUMNS
from weft.proofs.audit.report import ToldDeletion
from weft.proofs.audit.table_task import AuditedTable, TableTask
from weft.protocols.ranges import Range, RangeSet
from weft.storage.chunk_log import open_cluster, table_key
from weft.storage.object_store import ObjectStore
from weft.storage.table.deletions import RANGES_MAX, Deletion, stored_deletions
from weft.storage.table.delta.calls import guarded
from weft.storage.table.errors import TableError


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
    told: list[ToldDeletion]
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
    return DeclaredDeletions(lanes, offsets, [_told(number, each) for number, each in found.items()])


def _told(number: int, deletion: Deletion) -> ToldDeletion:
    is_erased = deletion.erasure is not None
    told = number, deletion.time, deletion.by, deletion.reason, deletion.rows, deletion.count
    return ToldDeletion(*told, is_erased=is_erased, received_until=deletion.received_until)
