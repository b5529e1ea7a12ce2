"""The table of a sink: its versions as read, and commits on top of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.schema import Schema
from deltalake.transaction import AddAction, RemoveAction

from spark_sinks.blocking import run
from spark_sinks.errors import SinkError
from spark_sinks.sinks.delta.columns import Layout, properties_of, table_layout
from spark_sinks.sinks.delta.files import NewFile, partition_text
from spark_sinks.sinks.delta.place import Place
from weft.storage.table.delta import calls
from weft.storage.table.delta.log import TableLog
from weft.storage.table.delta.versions import add_columns, create_table, open_table, transaction, write
from weft.storage.table.errors import TableConflict, TableError

T = TypeVar("T")
CHECKPOINT_VERSIONS = 100
"""Versions between checkpoints."""
WRITER_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_DEMANDS = ("delta.generationExpression", "delta.identity", "delta.invariants")
"""Metadata of columns by which a table requires its writers to compute or check values."""


class HeldFile(NamedTuple):
    """A file of the table's version."""

    path: str
    """Relative to the table."""
    size: int
    partition: dict[str, Any]
    """Typed values by column."""
    low: dict[str, Any]
    """Lowest values of the columns that have bounds."""
    high: dict[str, Any]


def guarded(call: Callable[[], T], place: Place) -> T:
    """Run a deltalake call.

    Raises:
        TableConflict: another writer was first.
        SinkError: any other error, including Rust panics.
    """
    try:
        return calls.guarded(call)
    except TableConflict:
        raise
    except TableError as error:
        cause = error.__cause__
        if isinstance(cause, SinkError):
            raise cause from cause.__cause__
        advice = ""
        if isinstance(cause, OSError):
            advice = ". See to its disk or object store, and start the query again: it goes on where it was"
        raise SinkError(f"table {place.uri}: {error}{advice}") from cause


class TableReading:
    """One reading of a table, and a commit on top of it. All methods block, and raise as ``guarded`` does."""

    def __init__(self, place: Place, table: DeltaTable) -> None:
        self._place, self._table = place, table
        metadata = table.metadata()
        self.id = str(metadata.id)
        self.properties: dict[str, str] = dict(metadata.configuration)
        self.layout: Layout = table_layout(
            pa.schema(table.schema()), metadata.partition_columns, self.properties
        )  # fmt: skip

    @classmethod
    def open(cls, place: Place) -> TableReading | None:
        """Return the table as it is now, or None when there is none."""
        uri, options = place.location()

        def opened() -> TableReading | None:
            table = open_table(uri, options)
            return None if table is None else cls(place, table)

        return guarded(opened, place)

    @staticmethod
    def create(place: Place, layout: Layout) -> None:
        """Create an empty table unless one exists."""
        uri, options = place.location()
        guarded(lambda: create_table(uri, options, layout.schema, properties_of(layout), layout.partition_by), place)

    @property
    def version(self) -> int:
        """Return the version of this reading."""
        return int(self._table.version())

    def transaction(self, app_id: str) -> int | None:
        """Return the version of an application's last transaction; None when it never committed."""
        return transaction(self._table, app_id)

    def check_writable(self) -> None:
        """Check that the table has no features that this writer lacks.

        Raises:
            SinkError: the table has demands that another engine must meet.
        """
        features = set(self._table.protocol().writer_features or ()) - WRITER_FEATURES
        demands = sorted(features | {name for name in self.properties if name.startswith("delta.constraints.")})
        if self.properties.get("delta.columnMapping.mode", "none") != "none":
            demands.append("delta.columnMapping.mode")
        demands += [name for name in _DEMANDS if name in self._table.schema().to_json()]
        if demands:
            raise SinkError(
                f"table {self._place.uri} has {', '.join(demands)}, which this sink does not keep to; write it with "
                "delta-spark, or write another table"
            )

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns. Existing rows have null there. The table must be read again."""
        new = Schema.from_arrow(pa.schema(fields)).fields
        guarded(lambda: add_columns(self._table, new), self._place)

    def files(self) -> list[HeldFile]:
        """Return the files of this version."""
        return guarded(self._files, self._place)

    def _files(self) -> list[HeldFile]:
        actions = pa.table(self._table.get_add_actions(flatten=True))
        found = []
        for row in actions.to_pylist():
            parts = {kind: _prefixed(row, kind) for kind in ("partition", "min", "max")}
            found.append(HeldFile(row["path"], row["size_bytes"], parts["partition"], parts["min"], parts["max"]))
        return found

    def commit(
        self, adds: Sequence[NewFile], removes: Iterable[HeldFile], transactions: Mapping[str, int], now_ms: int
    ) -> int:
        """Add and remove files and set transactions, in one version on top of this one. Return that version."""
        actions: list[Any] = [
            AddAction(file.path, file.size, file.partition, now_ms, True, file.stats) for file in adds
        ]  # fmt: skip
        actions += [
            RemoveAction(
                file.path, True, now_ms, file.size,
                {name: partition_text(value) for name, value in file.partition.items()},
            )
            for file in removes
        ]  # fmt: skip
        schema, partition_by = self._table.schema(), self.layout.partition_by
        guarded(lambda: write(self._table, actions, transactions, schema, partition_by), self._place)
        return self.version + 1

    def checkpoint(self) -> None:
        """Write a checkpoint of this version."""
        guarded(self._table.create_checkpoint, self._place)

    def clean_log(self) -> None:
        """Remove log entries that are older than the table's retention and covered by a checkpoint."""
        guarded(self._table.cleanup_metadata, self._place)


def _prefixed(row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {
        name.removeprefix(f"{kind}."): value
        for name, value in row.items()
        if name.startswith(f"{kind}.") and (value is not None or kind == "partition")
    }


class DurableTable:
    """A table whose versions are durable before a commit builds on them, and before they are reported as written.

    deltalake never syncs. On a directory, a power cut could keep version n+1 and lose version n with its rows, or keep
    only a part of a commit that Spark's checkpoint relies on. A bucket needs no sync.

    Args:
        clock: nanoseconds since 1970, for the times of files in the table's log.
    """

    def __init__(self, place: Place, clock: Callable[[], int] = time.time_ns) -> None:
        self.place = place
        self._clock = clock
        self._log = TableLog(place.store, place.key)
        self._mended = False
        self._checkpointed = -1

    def open(self) -> TableReading | None:
        """Return the table as it is now, durable; None when there is none.

        Raises:
            SinkError: it cannot be read.
            StoreError: the store did not answer.
        """
        if not self._mended:
            run(self._log.mend())
            self._checkpointed = run(self._log.checkpoint_version())
            self._mended = True
        reading = TableReading.open(self.place)
        if reading is None:
            # The table may have been moved away since a version was synced.
            self._log = TableLog(self.place.store, self.place.key)
            return None
        run(self._log.sync(reading.version))
        return reading

    def commit(
        self,
        reading: TableReading,
        adds: Sequence[NewFile],
        removes: Iterable[HeldFile],
        transactions: Mapping[str, int],
    ) -> int:
        """Commit on top of a reading; durable when this returns. Return the version.

        Raises:
            TableConflict, SinkError: as ``guarded``.
            StoreError: the store did not answer.
        """
        version = reading.commit(adds, removes, transactions, self._clock() // 1_000_000)
        run(self._log.sync(version))
        if version - max(self._checkpointed, 0) >= CHECKPOINT_VERSIONS:
            self._checkpoint()
        return version

    def _checkpoint(self) -> None:
        reading = self.open()
        if reading is not None:
            reading.checkpoint()
            self._checkpointed = run(self._log.sync_checkpoint())
            reading.clean_log()
