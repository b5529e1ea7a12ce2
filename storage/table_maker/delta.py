"""A Delta table through deltalake: what it does for the hub, every call of it blocking.

A ``DeltaHandle`` holds the list of the table's files, some kilobytes for each. So rows are committed without it
(``storage/table/delta/log``), and it is opened for what needs all files: checkpoints, the removal of old ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from weft.storage.table.delta.calls import guarded
from weft.storage.table.delta.versions import NO_HOOKS, create_table, open_table

T = TypeVar("T")


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
