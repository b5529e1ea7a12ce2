"""Delta tables through deltalake and pyarrow: what these libraries do for the hub, every call of it blocking, and
their errors in one sentence."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, TableFeatures, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from weft.storage.table.actions import ACTIONS_KEY, TableConflict, TableError

# Readings of a Delta table, and versions on top of them. All of it blocks; ``calls.guarded`` names the errors.
#
# deltalake does not refuse a transaction version that exists already. So a decision from a reading must be committed
# on top of the version that was read, or not at all.

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
    """Create an empty table unless one exists: of reader version 1 and writer version 2, which every engine reads,
    where no column is a time without a zone.

    Args:
        configuration: properties, with names of Delta's or of Weft's own.
    """
    table = DeltaTable.create(
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
    _list_features(table)


def _list_features(table: DeltaTable) -> None:
    """Let a table whose protocol lists its features list those of writer version 2, too.

    A time without a zone asks for such a list, and deltalake writes nothing else into it. Columns that are never null
    are ``invariants``, and delta-spark refuses a table that has them and does not list them.
    """
    listed = table.protocol().writer_features
    if listed is not None and not {"appendOnly", "invariants"} <= {*listed}:
        table.alter.add_feature(
            [TableFeatures.AppendOnly, TableFeatures.Invariants],
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
    _list_features(table)


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
            max_commit_retries=0, app_transactions=made, custom_metadata={ACTIONS_KEY: len(actions) + len(made)}
        ),
        post_commithook_properties=NO_HOOKS,
    )


# Calls of deltalake and pyarrow, and their errors in one sentence.

T = TypeVar("T")
_CAUSE = re.compile(r"\s*(?:\x1b\[\d+m)?\u21b3(?:\x1b\[0m)?\s*(.+)")
"""A line of a tree of causes, with or without colours."""


def guarded(call: Callable[[], T]) -> T:
    """Return the result of a call.

    Raises:
        TableConflict: another writer was first.
        TableError: any other error, including Rust panics, with the original as its cause.
    """
    try:
        return call()
    except TableError:
        raise
    except CommitFailedError as error:
        raise TableConflict(cause_of(error)) from error
    except Exception as error:
        raise TableError(cause_of(error)) from error
    except BaseException as error:
        # A Rust panic derives from BaseException, so that no `except Exception` swallows it; it must not end a node or
        # a query.
        if type(error).__name__ != "PanicException":
            raise
        raise TableError(cause_of(error)) from error


def cause_of(error: BaseException) -> str:
    """Return an error as a sentence: its first line, since deltalake appends a backtrace, or the innermost cause of a
    tree of causes."""
    first, *lines = str(error).splitlines() or [type(error).__name__]
    causes = [found[1] for line in lines if (found := _CAUSE.match(line))]
    return ": ".join([first, *causes[-1:]])


# Files of a table, as pyarrow reads them.


def file_system(uri: str, options: dict[str, str]) -> pyarrow.fs.FileSystem:
    """Return the file system whose root is a table."""
    if "://" not in uri:
        return pyarrow.fs.SubTreeFileSystem(uri, pyarrow.fs.LocalFileSystem())
    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(uri, options))


# A Delta table through deltalake: what it does for the hub, every call of it blocking.
#
# A ``DeltaHandle`` holds the list of the table's files, some kilobytes for each. So rows are committed without it
# (``storage/table/delta/log``), and it is opened for what needs all files: checkpoints, the removal of old ones.


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking deltalake call.

    Raises:
        TableConflict: another writer was first.
        TableError: any other error, including Rust panics.
    """
    return await asyncio.to_thread(guarded, call)


class DeltaHandle:
    """One reading of a table. All methods block; use ``in_thread``."""

    def __init__(self, table: Any) -> None:
        self._table = table

    @classmethod
    def open(cls, uri: str, options: dict[str, str]) -> DeltaHandle | None:
        """Return the table as it is now, or None when there is none."""
        table = open_table(uri, options)
        return None if table is None else cls(table)

    @classmethod
    def create(cls, uri: str, options: dict[str, str], schema: pa.Schema, configuration: dict[str, str]) -> None:
        """Create an empty table unless one exists."""
        create_table(uri, options, schema, configuration)

    @property
    def version(self) -> int:
        """Return the version that this handle has read."""
        return int(self._table.version())

    def checkpoint(self) -> None:
        """Write a checkpoint of this version."""
        self._table.create_checkpoint()

    def clean_log(self) -> None:
        """Remove log entries that are older than the table's retention and covered by a checkpoint."""
        self._table.cleanup_metadata()

    def vacuum(self) -> int:
        """Remove files that no version within the table's retention refers to, including orphans. Return their
        number."""
        removed = self._table.vacuum(dry_run=False, full=True, post_commithook_properties=NO_HOOKS)
        return len(removed)
