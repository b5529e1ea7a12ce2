"""A Delta table through deltalake: every call that blocks, in one place.

A ``DeltaHandle`` is one reading of the table. A decision based on it is committed through it, and only on top of the
version that it has read: deltalake does not refuse a transaction version that exists already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.dataset as pads
from deltalake import CommitProperties
from deltalake.schema import Field, PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from weft.cloud_hub.tables.errors import TableError
from weft.protocols.payloads import PayloadKind
from weft.storage.table.delta.calls import cause_of, guarded
from weft.storage.table.delta.versions import NO_HOOKS, add_columns, create_table, open_table, transaction, write
from weft.storage.table.names import table_payload
from weft.storage.table_log import ACTIONS_KEY

T = TypeVar("T")
_SCAN_ROWS = 128 << 10


class DataFile(NamedTuple):
    """A Parquet file in a table's log."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    shard: int
    first_offset: int
    end_offset: int
    modified_ms: int
    stats: str
    """Statistics in JSON, as in the Delta protocol's "Per-file Statistics"."""


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking deltalake call.

    Raises:
        TableConflict: another writer was first.
        TableError: any other error, including Rust panics.
    """
    return await asyncio.to_thread(guarded, call)


class DeltaHandle:
    """One reading of a table, and commits on top of it. All methods block; use ``in_thread``."""

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
        """Return the version that this handle has read, or committed last."""
        return int(self._table.version())

    def position(self, app_id: str) -> int:
        """Return the version of an application's last transaction; 0 when it never committed."""
        return self.transaction(app_id) or 0

    def transaction(self, app_id: str) -> int | None:
        """Return the version of an application's last transaction; None when it never committed."""
        return transaction(self._table, app_id)

    def columns(self) -> list[tuple[str, str]]:
        """Return (name, type) of the columns, in the table's order. A nested type is "nested"."""
        return [
            (field.name, field.type.type if isinstance(field.type, PrimitiveType) else "nested")
            for field in self._table.schema().fields
        ]

    def payload(self) -> PayloadKind:
        """Return the payload kind of the table, fixed since its creation."""
        return table_payload(dict(self.columns()).get("payload"), self.properties())

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        return dict(self._table.metadata().configuration)

    def set_properties(self, properties: dict[str, str]) -> None:
        """Change some of the table's properties.

        Raises:
            TableConflict: the table has changed since this handle read it.
        """
        commit = CommitProperties(max_commit_retries=0, custom_metadata={ACTIONS_KEY: 1})
        alter = self._table.alter
        alter.set_table_properties(properties, commit_properties=commit, post_commithook_properties=NO_HOOKS)

    def add_columns(self, names: Sequence[str]) -> None:
        """Add text columns. Existing rows have null there.

        Raises:
            TableConflict: the table has changed since this handle read it.
        """
        add_columns(self._table, [Field(name, PrimitiveType("string"), nullable=True) for name in names])

    def commit(self, files: Sequence[DataFile], positions: dict[str, int], schema: pa.Schema) -> None:
        """Add files and move the positions, in one version.

        Raises:
            TableConflict: the table has changed since this handle read it. Only a new reading shows whether an earlier
                attempt of this very commit changed it.
        """
        adds = [_add(file, data_change=True) for file in files]
        self._write(adds, positions, schema)

    def replace(self, old: Sequence[DataFile], new: DataFile, now_ms: int, schema: pa.Schema) -> None:
        """Replace files by one file with the same rows.

        Raises:
            TableConflict: as ``commit``.
        """
        removes = [RemoveAction(file.path, False, now_ms, file.size, {}) for file in old]
        self._write([_add(new, data_change=False), *removes], {}, schema)

    def _write(self, actions: list[Any], transactions: Mapping[str, int], schema: pa.Schema) -> None:
        made = self.version + 1
        write(self._table, actions, transactions, schema)
        # The handle does not follow by itself, and the newest version may already be another writer's.
        self._table.load_as_version(made)

    def files(self) -> list[DataFile]:
        """Return the files of this version whose statistics have one shard and an offset range; others are left out."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        wanted = ["min._shard", "max._shard", "min._offset", "max._offset", "num_records"]
        if any(name not in actions.column_names for name in wanted):
            return []
        return [
            DataFile(
                row["path"], row["size_bytes"], row["num_records"], row["min._shard"],
                row["min._offset"], row["max._offset"] + 1, 0, "",
            )
            for row in actions.select(["path", "size_bytes", *wanted]).to_pylist()
            if None not in row.values() and row["min._shard"] == row["max._shard"]
        ]  # fmt: skip

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows of this version, in no order, a bounded number at a time.

        Raises:
            TableError: a file cannot be read, or a page does not match its checksum.
        """
        dataset = self._table.to_pyarrow_dataset()
        checked = pads.ParquetFragmentScanOptions(page_checksum_verification=True)
        for fragment in dataset.get_fragments():
            try:
                yield from fragment.scanner(
                    schema=dataset.schema, columns=list(columns), batch_size=_SCAN_ROWS, batch_readahead=2,
                    fragment_scan_options=checked,
                ).to_batches()  # fmt: skip
            except (OSError, pa.ArrowException) as error:
                raise TableError(f"{fragment.path} is damaged: {cause_of(error)}") from error

    def checkpoint(self) -> None:
        """Write a checkpoint of this version."""
        self._table.create_checkpoint()

    def clean_log(self) -> None:
        """Remove log entries that are older than the table's retention and covered by a checkpoint."""
        self._table.cleanup_metadata()

    def vacuum(self, retention_hours: int) -> int:
        """Remove files that no version within the retention refers to, including orphans. Return their number."""
        removed = self._table.vacuum(retention_hours, dry_run=False, full=True, post_commithook_properties=NO_HOOKS)
        return len(removed)


def _add(file: DataFile, data_change: bool) -> Any:
    return AddAction(file.path, file.size, {}, file.modified_ms, data_change, file.stats)
