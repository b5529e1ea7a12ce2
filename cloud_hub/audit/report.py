"""What an audit finds, and how it says so."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

HOLES_LISTED_MAX = 20
DAMAGE_LISTED_MAX = 100


class LaneAudit(msgspec.Struct, frozen=True):
    """One lane. Everything but ``hole_ranges`` and ``gaps`` counts records."""

    edge: str
    log_id: str
    records: int
    """Distinct ones in the log."""
    log_doubled: int
    """Sequence numbers that the log holds again."""
    unindexed: int
    """Held but not in the chunks' indexes, or the other way round."""
    table_records: int
    table_doubled: int
    waiting: int
    """In the log, above the table's position."""
    missing: int
    """In the log, below the table's position, and not in the table."""
    unknown: int
    """In the table and not in the log."""
    gaps: dict[str, int]
    """Sequence numbers that can never come, by reason."""
    holes: int
    """Below the last sequence number, neither held nor under a gap notice: still to come over a link. Numbers before a
    rename that the hub has under no name are among them."""
    hole_ranges: list[tuple[int, int]]
    """The first ``HOLES_LISTED_MAX``."""
    resent: int
    """Records that the device sent with DUP: it may have published the same message before."""
    named_twice: dict[str, int] = {}
    """Records of this log that stand under another name (tenant/edge) too: its node was renamed without its log."""


class ShardAudit(msgspec.Struct, frozen=True):
    """One shard's log of the stream against the table's offsets."""

    shard: int
    chunks: int
    log_end: int
    """One past the last offset."""
    position: int
    """The table says it holds every offset below."""
    missing: int
    doubled: int
    ahead: int
    """Rows whose offset is at or above the position."""


class AuditReport(msgspec.Struct, frozen=True):
    """The whole answer."""

    tenant: str
    stream: str
    table_version: int | None
    """The version that was compared; None when there is no table yet."""
    lanes: list[LaneAudit]
    shards: list[ShardAudit]
    damage: list[str]
    """What could not be read, one sentence each; at most ``DAMAGE_LISTED_MAX``."""
    problems: list[str]
    """Where lanes, log and table differ, one sentence each. Empty when they agree."""
    agrees: bool
    """Every record in the log is there once, and every one below the table's position is in the table once."""

    def total(self, count: str) -> int:
        """A count of ``LaneAudit`` added up over the lanes."""
        return sum(getattr(lane, count) for lane in self.lanes)


def lane_problems(lanes: Sequence[LaneAudit]) -> list[str]:
    """Where a lane's records differ between log and table, one sentence each."""
    sentences = {
        "log_doubled": "are in the log twice",
        "unindexed": "differ between the log and its indexes",
        "table_doubled": "are in the table twice",
        "missing": "are missing from the table",
        "unknown": "are in the table and not in the log",
    }
    found = [
        f"{lane.edge}/{lane.log_id}: {count} records {sentence}"
        for lane in lanes
        for name, sentence in sentences.items()
        if (count := getattr(lane, name))
    ]
    return found + [
        f"{lane.edge}/{lane.log_id}: {count} records of this log are there under the name {name} too"
        for lane in lanes
        for name, count in lane.named_twice.items()
    ]


def shard_problems(shards: Sequence[ShardAudit]) -> list[str]:
    """Where a shard's offsets do not fit the table's position, one sentence each."""
    sentences = {
        "missing": "offsets below the table's position have no row",
        "doubled": "offsets have a second row",
        "ahead": "rows stand above the table's position",
    }
    found = [
        f"shard {shard.shard}: {count} {sentence}"
        for shard in shards
        for name, sentence in sentences.items()
        if (count := getattr(shard, name))
    ]
    behind = [shard for shard in shards if shard.log_end < shard.position]
    return found + [
        f"shard {item.shard}: the log ends at {item.log_end}, the table at {item.position}" for item in behind
    ]
