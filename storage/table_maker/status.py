"""Status of the work on tables, for operators."""

from __future__ import annotations

import msgspec

from weft.protocols.shard.shard_state import StreamKey
from weft.storage.presence.keepers import Claim
from weft.storage.table_maker.maintenance import Maintenance
from weft.storage.table_maker.tierer import Tierer


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
    """Maker of the table instead of the hub's nodes; None if one of these makes it."""


class StreamWork:
    """A stream's tierer and the state of its work."""

    def __init__(self, tierer: Tierer, maintenance: Maintenance) -> None:
        self.tierer = tierer
        self.maintenance = maintenance
        self.committed_at: int | None = None
        self.error: str | None = None

    def wants_turn(self, is_due: bool) -> bool:
        """Return whether it has work. ``is_due``: whether new rows are written now."""
        return (is_due and self.tierer.is_behind) or self.error is not None or self.maintenance.is_due

    def status(self, key: StreamKey, made_by: Claim | None) -> TableStatus:
        """Return the status for operators."""
        ends, positions = self.tierer.ends(), self.tierer.positions
        shards = [ShardPosition(shard, positions.get(shard, 0), end) for shard, end in sorted(ends.items())]
        return TableStatus(
            *key,
            self.tierer.version,
            shards,
            sum(max(0, item.log - item.table) for item in shards),
            self.tierer.rows_moved,
            self.committed_at,
            self.error,
            [
                StoppedRange(each.shard, each.first, each.end, each.reason)
                for _, each in sorted(self.tierer.stopped.items())
            ],
            made_by,
        )
