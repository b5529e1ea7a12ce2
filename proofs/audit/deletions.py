"""Declared deletions: rows that were deleted from a stream's table on purpose, as opposed to lost ones.

A declaration is an object in the hub's store. It names the rows that were in the table when it was made, by lane and
number and by offset, so it covers neither an unwritten row nor a later one. Declared rows that are still in the table
count as before.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.proofs.audit.counts import LaneKey, SeqCounts, coded, lanes_of, unsigned
from weft.proofs.audit.log_task import COLUMNS
from weft.proofs.audit.table_task import AuditedTable, TableTask
from weft.protocols.ranges import Range, RangeSet
from weft.storage.chunk_log import open_cluster, table_key
from weft.storage.hub_keys import deletion_key, deletion_prefix
from weft.storage.object_store import AlreadyExists, ObjectStore
from weft.storage.table.delta.calls import guarded
from weft.storage.table.errors import TableError

FORMAT: Final = 1
RANGES_MAX: Final = 1_000_000
"""Maximum number of ranges in one declaration, some 20 MB; more are declared in parts, by time for example."""


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


class Deletion(msgspec.Struct, frozen=True):
    """A declaration in its JSON form."""

    format: int
    time: int
    """Time at which it was made, ns since 1970."""
    by: str
    reason: str
    rows: str
    """The choice of rows, for people."""
    version: int
    """Version of the table that had the rows."""
    lanes: list[tuple[str, str, list[Range]]]
    """(edge, log id, numbers)"""
    offsets: list[tuple[int, list[Range]]]
    """(shard, offsets)"""

    @property
    def count(self) -> int:
        """Return the number of its rows."""
        return sum(end - first for _, ranges in self.offsets for first, end in ranges)


class DeclaredDeletions(NamedTuple):
    """All declared deletions of a stream together."""

    lanes: dict[LaneKey, RangeSet]
    offsets: dict[int, RangeSet]


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


async def declare(store: ObjectStore, tenant: str, stream: str, deletion: Deletion) -> None:
    """Store a declaration, durably when this returns."""
    data = msgspec.json.encode(deletion)
    number = len(await store.list(deletion_prefix(tenant, stream)))
    while True:
        try:
            await store.create(deletion_key(tenant, stream, number), data)
            return
        except AlreadyExists:
            number += 1


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
    for each in await _keys(store, deletion_prefix(tenant, stream)):
        deletion = _decoded(each, (await store.get(each)).data)
        for edge, log_id, ranges in deletion.lanes:
            lanes[edge, log_id].update(RangeSet(ranges))
        for shard, ranges in deletion.offsets:
            offsets[shard].update(RangeSet(ranges))
    return DeclaredDeletions(lanes, offsets)


async def _keys(store: ObjectStore, prefix: str) -> Sequence[str]:
    return [listed.key for listed in await store.list(prefix)]


class _Format(msgspec.Struct):
    format: int


def _decoded(key: str, data: bytes) -> Deletion:
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found > FORMAT:
            raise TableError(f"{key} was written by a later release of Weft: audit with that one")
        return msgspec.json.decode(data, type=Deletion)
    except msgspec.MsgspecError as error:
        raise TableError(f"{key}, a declared deletion, is damaged ({error}): restore it from a backup") from None
