"""The work on the table of each stream, and its status for operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import latest_key
from weft.storage.object_store import ObjectStore
from weft.storage.presence.keepers import Claim, TableTrouble
from weft.storage.table.delta.log import TableLog
from weft.storage.table.instead import has_all_rows
from weft.storage.table.names import app_ids
from weft.storage.table_maker.maintenance import Maintenance
from weft.storage.table_maker.shards import ShardView
from weft.storage.table_maker.tierer import Tierer

LOOK_S = 10.0
"""Interval at which a node reads how far a latest table is that stands instead of a table of all rows."""


class ShardPosition(msgspec.Struct, frozen=True):
    """The progress of one shard of a stream."""

    shard: int
    table: int
    """Offset below which all records are in the table."""
    log: int
    """Offset after the last one in the log."""


class StoppedRange(msgspec.Struct, frozen=True):
    """Records of one shard that cannot become rows; the shard's later ones wait behind them."""

    shard: int
    first: int
    end: int
    """Offset after the last of them."""
    reason: str


class TableStatus(msgspec.Struct, frozen=True):
    """The status of one stream's table."""

    tenant: str
    stream: str
    version: int
    """Newest table version seen; -1 before the first."""
    shards: list[ShardPosition]
    lag_records: int
    """Records in the log that are not in the table yet."""
    rows_moved: int
    """Rows moved since this node started."""
    committed_at: int | None
    """Time at which this node last moved rows (ns since 1970)."""
    error: str | None
    """Error of the last round; None when it succeeded."""
    stopped: list[StoppedRange]
    made_by: Claim | None = None
    """Maker of the table instead of the hub's processes; None if one of these makes it."""
    process: str | None = None
    """Name of the hub process that makes it; None while unknown, and if another maker does."""
    kind: str = "all"
    """`all` for the table of all rows, `latest` for the latest table that stands instead of it."""
    files: int | None = None
    bytes: int | None = None
    """Files of the table and their bytes, as of the last look for small ones; None while unknown."""
    vacuumed_at: int | None = None
    """Time at which a vacuum last ended that removed files, as of that look (ns since 1970); None while unknown."""


class StreamWork:
    """A stream's tierer and the state of its work."""

    is_look = False
    """True if a latest table, which other work makes, stands instead of the table of all rows."""

    def __init__(self, tierer: Tierer, maintenance: Maintenance) -> None:
        self.tierer = tierer
        self.maintenance = maintenance
        self.committed_at: int | None = None
        self.error: str | None = None

    @property
    def is_over(self) -> bool:
        """Return whether other work has to take its place."""
        return False

    def wants_turn(self, is_due: bool) -> bool:
        """Return whether it has work. ``is_due``: whether new rows are written now."""
        return (is_due and self.tierer.is_behind) or self.error is not None or self.maintenance.is_due

    def trouble(self, tenant: str, stream: str) -> TableTrouble | None:
        """Return what holds up the table, for processes that do not make it; None without any."""
        if self.error is None:
            return None
        stopped = ((each.shard, each.first, each.end, str(each.reason)) for each in self.tierer.stopped.values())
        return TableTrouble(tenant, stream, self.error, tuple(sorted(stopped)))

    def status(
        self, key: StreamKey, made_by: Claim | None, process: str | None, told: TableTrouble | None = None
    ) -> TableStatus:
        """Return the status for operators.

        Args:
            told: what the process says that makes the table, if it is another one.
        """
        ends, positions, size = self.tierer.ends(), self.tierer.positions, self.maintenance.size
        shards = [ShardPosition(shard, positions.get(shard, 0), end) for shard, end in sorted(ends.items())]
        return TableStatus(
            *key,
            self.tierer.version,
            shards,
            sum(max(0, item.log - item.table) for item in shards),
            self.tierer.rows_moved,
            self.committed_at,
            self.error if told is None else told.error,
            [
                StoppedRange(each.shard, each.first, each.end, each.reason)
                for _, each in sorted(self.tierer.stopped.items())
            ]
            if told is None
            else [StoppedRange(*each) for each in told.stopped],
            made_by,
            process,
            "latest" if self.is_look else "all",
            None if size is None or self.is_look else size.files,
            None if size is None or self.is_look else size.bytes,
            None if self.is_look else self.maintenance.vacuumed,
        )


class LatestLook(Tierer):
    """A reader of how far the only table of a stream is, in the place of a maker of the table of all rows.

    Args:
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        stream: StreamKey,
        views: Sequence[ShardView],
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(store, cluster, *stream, views, monotonic=monotonic)
        self.key = latest_key(*stream)
        self.log = TableLog(store, self.key, app_ids(cluster.cluster_id, stream[1]))
        self.has_other = False
        """True once a table of all rows was found, which an operator has put back."""
        self._of, self._due_at = (store, stream), monotonic()

    async def look(self) -> None:
        """Read how far the table is, if the last look was long enough ago. Raises as ``Tierer.look``."""
        if self._monotonic() < self._due_at:
            return
        self._due_at = self._monotonic() + LOOK_S
        if await has_all_rows(*self._of):
            self.has_other = True
            return
        await super().look()


class LatestWork(StreamWork):
    """Looks at the only table of a stream.

    Args:
        wanted: whether it is still to be the only one.
    """

    is_look = True

    def __init__(self, look: LatestLook, maintenance: Maintenance, wanted: Callable[[], bool]) -> None:
        super().__init__(look, maintenance)
        self._look, self._wanted = look, wanted

    @property
    def is_over(self) -> bool:
        """Return whether the table of all rows is there again, or is to be made."""
        return self._look.has_other or not self._wanted()
