"""Verification of a whole store, from its objects alone: no node needs to run, and any may."""

from __future__ import annotations

from collections import defaultdict

from weft.proofs.backup.copying import Unlike, checked, pieces
from weft.proofs.backup.places import tables
from weft.proofs.backup.view import BackupView, open_backup
from weft.proofs.verify.log_check import CheckedLog, LogCheck
from weft.proofs.verify.report import VerifyReport, lane_end
from weft.proofs.verify.table_check import check_positions, check_table, read_table, sources
from weft.protocols.errors import CodecError
from weft.storage.chunk_log import ShardLog, open_cluster
from weft.storage.cluster_log.log import ClusterLog
from weft.storage.hub_keys import table_key
from weft.storage.object_store import NotFound, ObjectStore
from weft.storage.table.delta.state import DeltaState
from weft.storage.table.errors import TableError


async def verify(store: ObjectStore) -> VerifyReport:
    """Check a hub's store, or a backup in its place.

    Tables are read before the logs, so that the log of a running hub has every row.

    Raises:
        BackupUnusable: there is a backup that cannot be read.
        ClusterUnusable: there is neither a hub nor a backup.
        StoreError: the store did not answer.
    """
    view = await open_backup(store)
    cluster = await open_cluster(view or store, None)
    report = VerifyReport(cluster.cluster_id.hex(), view.record.started if view else None, cluster.restored)
    read: list[tuple[str, str, DeltaState]] = []
    wanted: dict[int, set[int]] = defaultdict(set)
    for tenant, stream in await _tables(store, view):
        try:
            state = await read_table(view or store, cluster.cluster_id, tenant, stream)
        except TableError as error:
            report.note(table_key(tenant, stream), "damaged", str(error))
            continue
        if state is None:
            continue
        read.append((tenant, stream, state))
        for shard, n in sources(state, cluster.cluster_id, stream, cluster.tree.count).items():
            wanted[shard].add(n)
    logs: dict[int, CheckedLog] = {}
    made: dict[int, ShardLog] = {}
    for shard in range(cluster.tree.count):
        log = made.get(shard) or ShardLog(view or store, cluster, shard)
        logs[shard] = await LogCheck(log, report, frozenset(wanted[shard])).run()
        if (head := logs[shard].state) is not None:
            # Their numbers are higher, so each comes after the one that it is split from.
            made |= {split.shard: log.new_shard(split) for split in head.splits}
    if view is not None:
        await _check_others(view, report)
    await _check_declared(view or store, cluster.cluster_id, report)
    for tenant, stream, state in read:
        found = await check_table(view or store, report, tenant, stream, state)
        check_positions(report, found, state, cluster.cluster_id, logs)
    for shard, found_log in logs.items():
        if found_log.state is not None:
            lanes = sorted(found_log.state.lanes.items())
            report.lanes += [lane_end(shard, lane, held, cluster.restored) for lane, held in lanes]
    return report


async def _check_others(view: BackupView, report: VerifyReport) -> None:
    """Compare the further objects of a backup with the content that their keys name."""
    for key, (content, size) in view.others.items():
        try:
            async for _ in checked(key, content, pieces(view, key, size)):
                pass
        except NotFound:
            report.note(key, "missing", f"{content} is not there: the backup lacks {key}")
        except Unlike as error:
            report.note(key, "damaged", str(error))


async def _check_declared(store: ObjectStore, cluster_id: bytes, report: VerifyReport) -> None:
    """Read the cluster log, and note the entries that are not usable."""
    try:
        state = await ClusterLog(store, cluster_id).load()
    except CodecError as error:
        report.note("cluster", "damaged", str(error))
        return
    for each in state.skipped:
        report.note("cluster", "damaged", each.why)


async def _tables(store: ObjectStore, view: BackupView | None) -> list[tuple[str, str]]:
    if view is not None:
        return [(part.tenant, part.stream) for part in view.record.tables]
    return [names async for names in tables(store)]
