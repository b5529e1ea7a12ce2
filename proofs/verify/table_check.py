"""Verification of one table: its files, and its positions against the log."""

from __future__ import annotations

from collections.abc import Mapping

from weft.proofs.backup.places import listed
from weft.proofs.backup.tables import LiveFiles
from weft.proofs.verify.log_check import CheckedLog
from weft.proofs.verify.report import TableReport, VerifyReport
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore
from weft.storage.table.delta.log import TableLog
from weft.storage.table.delta.state import DeltaState
from weft.storage.table.errors import TableError
from weft.storage.table.names import app_id, app_ids, source_ids


async def read_table(store: ObjectStore, cluster_id: bytes, tenant: str, stream: str) -> DeltaState | None:
    """Return a table's newest version; None without one. Raises TableError, StoreError."""
    return await TableLog(store, table_key(tenant, stream), app_ids(cluster_id, stream)).read()


def sources(state: DeltaState, cluster_id: bytes, stream: str, shards: int) -> dict[int, int]:
    """Return for each shard the chunk that a table's position comes from."""
    named = ((shard, source_ids(app_id(cluster_id, stream, shard))[0]) for shard in range(shards))
    return {shard: state.transactions[name] for shard, name in named if name in state.transactions}


async def check_table(
    store: ObjectStore, report: VerifyReport, tenant: str, stream: str, state: DeltaState
) -> TableReport:
    """Check that every file of a table is there, and note those that are not.

    Raises:
        StoreError: the store did not answer.
    """
    key, live = table_key(tenant, stream), LiveFiles()
    found = TableReport(tenant, stream, state.version)
    report.tables.append(found)
    try:
        await TableLog(store, key).follow(live)
    except TableError as error:
        report.note(key, "damaged", str(error))
        return found
    found.files = len(live.sizes)
    missing = dict(live.sizes)
    async for item in listed(store, key):
        size = missing.pop(name := item.key.removeprefix(f"{key}/"), None)
        if size is not None and size != item.size:
            report.note(item.key, "damaged", f"{key}/{name} has {item.size} bytes, the table says {size}")
    for name in sorted(missing):
        report.note(f"{key}/{name}", "missing", f"{key}/{name}, a file of version {live.version}, is missing")
    return found


def check_positions(
    report: VerifyReport, found: TableReport, state: DeltaState, cluster_id: bytes, logs: Mapping[int, CheckedLog]
) -> None:
    """Compare a table's positions with the logs."""
    key, stream = table_key(found.tenant, found.stream), (found.tenant, found.stream)
    for shard, log in logs.items():
        app = app_id(cluster_id, found.stream, shard)
        position = state.transactions.get(app, 0)
        if position:
            found.rows_up_to[shard] = position
        end = log.state.next_offset.get(stream, 0) if log.state is not None else None
        if end is not None and position > end:
            report.note(
                key, "ahead",
                f"{key} has rows of shard {shard} up to offset {position}, the log ends at {end}: the log is older "
                "than the table",
            )  # fmt: skip
            continue
        n, crc = (state.transactions.get(name) for name in source_ids(app))
        if position and n is not None and n >= log.first and log.crcs.get(n) != crc:
            how = "is not there" if n not in log.crcs else "is another one"
            report.note(key, "other_history", f"{key} has rows of chunk {n} of shard {shard}, which {how}")
        start = log.starts.get(stream, end)
        if start is not None and position < start:
            report.note(
                key, "rows_missing",
                f"offsets {position} to {start - 1} of {found.tenant}/{found.stream} in shard {shard} are neither in "
                "the table nor in a chunk",
            )  # fmt: skip
