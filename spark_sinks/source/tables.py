"""A stream's Delta table at one version: its position in the log, and the offsets of each file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_sinks.errors import ReadError
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.positions import Offsets
from weft.protocols.payloads import PayloadKind
from weft.storage.cluster import Cluster
from weft.storage.native_threads import wait_at_exit
from weft.storage.table.names import app_id, table_payload

READABLE_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck", "v2Checkpoint"})
"""Reader features that leave a live file with exactly its live rows, under their columns' own names. Deletion vectors
and column mapping, which other engines can switch on, are not among them."""

STATISTICS_STEP = timedelta(milliseconds=1)
"""Delta truncates times in its statistics to milliseconds."""

wait_at_exit()


class TableFile(NamedTuple):
    """A Parquet file of the table. The bounds are from the commit's statistics; None when a writer left them out."""

    path: str
    """Relative to the table's root."""
    size_bytes: int
    shard_min: int | None
    shard_max: int | None
    offset_min: int | None
    offset_max: int | None
    time_min: datetime | None
    time_max: datetime | None
    edge_min: str | None = None
    edge_max: str | None = None

    def may_hold(self, shard: int, first: int, end: int) -> bool:
        """Return whether this file may have rows of ``shard`` with offsets in ``[first, end)``."""
        if self.shard_min is not None and self.shard_max is not None and not self.shard_min <= shard <= self.shard_max:
            return False
        if self.offset_min is None or self.offset_max is None:
            return True
        return self.offset_min < end and first <= self.offset_max

    def is_within(self, start: Offsets, end: Offsets) -> bool:
        """Return whether all its rows have offsets in ``[start, end)`` of one shard."""
        shard = self.shard_min
        if shard is None or shard != self.shard_max or self.offset_min is None or self.offset_max is None:
            return False
        return start.get(shard, 0) <= self.offset_min and self.offset_max < end.get(shard, 0)

    def may_hold_edge(self, edges: Collection[str]) -> bool:
        """Return whether the file may have a row of one of these edge nodes."""
        if self.edge_min is None or self.edge_max is None:
            return True
        return any(self.edge_min <= edge <= self.edge_max for edge in edges)

    def may_start(self, moment: datetime) -> bool:
        """Return whether the file can have a row with a ``_time`` before ``moment``."""
        return self.time_min is None or self.time_min < moment

    def may_match(self, options: ReadOptions) -> bool:
        """Return whether the options may select a row of the file."""
        return (
            (options.since is None or self.may_reach(options.since))
            and (options.until is None or self.may_start(options.until))
            and (options.edges is None or self.may_hold_edge(options.edges))
        )

    def may_reach(self, moment: datetime) -> bool:
        """Return whether the file can have a row with a ``_time`` of ``moment`` or later."""
        return self.time_max is None or self.time_max + STATISTICS_STEP >= moment


class TableSnapshot(NamedTuple):
    """One version of a table: position and files belong together."""

    uri: str
    storage_options: dict[str, str]
    version: int
    ends: Offsets
    """Per shard, the offset below which the table has every record, and none from there on."""
    files: tuple[TableFile, ...]
    table: DeltaTable

    def first_offset(self, shard: int) -> int:
        """Return the lowest offset of a shard that a file may have; the table's position if no file has one."""
        lows = [file.offset_min or 0 for file in self.files if file.may_hold(shard, 0, self.ends[shard])]
        return min(lows, default=self.ends[shard])

    def received(self, shard: int, offset: int) -> int | None:
        """Return the time at which the hub received a record, ns since 1970, rounded down to microseconds; None without
        its row."""
        if not any(file.may_hold(shard, offset, offset + 1) for file in self.files):
            return None
        wanted = (ds.field("_shard") == shard) & (ds.field("_offset") == offset)
        found = self.table.to_pyarrow_dataset().to_table(["_received"], wanted).column(0)
        return found[0].cast(pa.int64()).as_py() * 1000 if len(found) else None

    @property
    def columns(self) -> dict[str, str]:
        """Return the table's columns by their names in lower case: another edge may have spelled a topic level
        differently."""
        return {field.name.casefold(): field.name for field in self.table.schema().fields}

    @property
    def payload(self) -> PayloadKind:
        """Return the payload kind of the table."""
        types = {field.name: getattr(field.type, "type", None) for field in self.table.schema().fields}
        return table_payload(types.get("payload"), self.table.metadata().configuration)

    @property
    def is_remote(self) -> bool:
        """Return whether the files are in an object store rather than on a disk."""
        return "://" in self.uri


def open_table(
    uri: str, storage_options: dict[str, str], cluster: Cluster, stream: str, version: int | None = None
) -> TableSnapshot | None:
    """Open a table, or return None when there is none yet.

    Args:
        version: version of the table; None means the newest.

    Raises:
        ReadError: the table needs a reader feature that plain Parquet readers lack, or has no such version.
    """
    if not DeltaTable.is_deltatable(uri, storage_options or None):
        return None
    table = DeltaTable(uri, storage_options=storage_options or None)
    if version is not None:
        newest = table.version()
        try:
            table.load_as_version(version)
        except (DeltaError, OverflowError) as error:
            raise ReadError(f"version: the table of {stream} has none {version}; its newest is {newest}") from error
    features = set(table.protocol().reader_features or ()) - READABLE_FEATURES
    if features:
        raise ReadError(
            f"the table of {stream} uses {', '.join(sorted(features))}, which Weft does not read: "
            "switch it off and rewrite the table, or read it with another engine"
        )
    positions = {
        shard: table.transaction_version(app_id(cluster.cluster_id, stream, shard)) for shard in range(cluster.shards)
    }
    ends = {shard: 0 if position is None else int(position) for shard, position in positions.items()}
    return TableSnapshot(uri, storage_options, table.version(), ends, tuple(_files(table)), table)


def _files(table: DeltaTable) -> Iterator[TableFile]:
    actions = table.get_add_actions(flatten=True)
    names = set(actions.schema.names)

    def column(name: str) -> list[Any]:
        values: list[Any] = actions.column(name).to_pylist() if name in names else [None] * actions.num_rows
        return values

    columns = [
        column(name)
        for name in (
            "path",
            "size_bytes",
            "min._shard",
            "max._shard",
            "min._offset",
            "max._offset",
            "min._time",
            "max._time",
            "min._edge",
            "max._edge",
        )
    ]
    for path, *rest in zip(*columns, strict=True):
        yield TableFile(unquote(path), *rest)
