"""Readings of a Delta table, and versions on top of them. All of it blocks; ``calls.guarded`` names the errors.

deltalake does not refuse a transaction version that exists already. So a decision from a reading must be committed on
top of the version that was read, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import TableNotFoundError

from weft.storage.table.delta.entries import ACTIONS_KEY

NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Properties that turn deltalake's own checkpoints off: they are not synced. The writer of a table makes checkpoints
when the log before them is durable."""


def open_table(uri: str, options: dict[str, str], version: int | None = None) -> DeltaTable | None:
    """Return a table, its newest or a given version, or None if there is none."""
    try:
        return DeltaTable(uri, version, storage_options=options)
    except TableNotFoundError:
        return None


def create_table(
    uri: str,
    options: dict[str, str],
    schema: pa.Schema,
    configuration: dict[str, str],
    partition_by: Sequence[str] = (),
) -> None:
    """Create an empty table unless one exists (reader version 1, writer version 2: every engine reads it).

    Args:
        configuration: properties, with names of Delta's or of Weft's own.
    """
    DeltaTable.create(
        uri,
        schema,
        mode="ignore",
        partition_by=list(partition_by) or None,
        configuration=configuration,
        raise_if_key_not_exists=False,
        storage_options=options,
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=NO_HOOKS,
    )


def transaction(table: DeltaTable, app_id: str) -> int | None:
    """Return the version of an application's last transaction; None when it never committed."""
    found = table.transaction_version(app_id)
    return None if found is None else int(found)


def add_columns(table: DeltaTable, fields: Sequence[Any]) -> None:
    """Add columns. Existing rows have null there."""
    commit = CommitProperties(max_commit_retries=0)
    table.alter.add_columns(list(fields), commit_properties=commit, post_commithook_properties=NO_HOOKS)


def write(
    table: DeltaTable,
    actions: list[Any],
    transactions: Mapping[str, int],
    schema: Any,
    partition_by: Sequence[str] = (),
) -> None:
    """Commit actions and transactions (application -> version) as one version on top of the table's."""
    made = [Transaction(app_id, version) for app_id, version in transactions.items()]
    table.create_write_transaction(
        actions,
        "append",
        schema,
        partition_by=list(partition_by) or None,
        commit_properties=CommitProperties(
            max_commit_retries=0,
            app_transactions=made,
            custom_metadata={ACTIONS_KEY: len(actions) + len(made)},
        ),
        post_commithook_properties=NO_HOOKS,
    )
