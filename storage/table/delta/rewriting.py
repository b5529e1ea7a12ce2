"""Commits that change rows of a table: files that others replace, and files that are removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weft.storage.table.delta.demands import check_writable
from weft.storage.table.delta.entries import DataFile, add_action, encode_entry, remove_action, txn_actions
from weft.storage.table.delta.log import TableLog
from weft.storage.table.delta.state import DeltaState


class ChangeFile(NamedTuple):
    """A file of a table's change feed (Delta protocol, "Add CDC File")."""

    path: str
    size: int


class Rewrite(NamedTuple):
    """Changes of one version."""

    operation: str
    """Name for the table's history."""
    old: Sequence[DataFile]
    new: Sequence[DataFile]
    transactions: Mapping[str, int]
    """Application -> version, set with the change."""
    changes: Sequence[ChangeFile] = ()
    """Files of the change feed; without any, its readers take rows of old files as deleted and rows of new ones as
    inserted."""


async def rewrite(log: TableLog, key: str, state: DeltaState, what: Rewrite, now_ms: int) -> DeltaState:
    """Change rows of a table in one version. Return it; it is durable.

    Args:
        key: the table's folder in the store.

    Raises:
        TableConflict, TableError, StoreError: as ``TableLog.replace``.
    """
    check_writable(state, key)
    changes = [
        {"cdc": {"path": each.path, "partitionValues": {}, "size": each.size, "dataChange": False}}
        for each in what.changes
    ]
    actions = [
        *(remove_action(file, now_ms, data_change=True) for file in what.old),
        *(add_action(file, data_change=True) for file in what.new),
        *changes,
        *txn_actions(what.transactions),
    ]
    entry = encode_entry(what.operation, {}, actions, now_ms, blind=False)
    return await log.commit(state, entry, what.transactions.keys(), [file.path for file in what.old])
