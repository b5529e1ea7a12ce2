"""Findings of an audit, and their text."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec

from weft.protocols.lane import Lane
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.lane_state import LaneState
from weft.storage.chunk_log import NamedOpenGap, first_logs, load_every_shard
from weft.storage.cluster import open_cluster
from weft.storage.object_store import ObjectStore

HOLES_LISTED_MAX = 20
DAMAGE_LISTED_MAX = 100


class LaneAudit(msgspec.Struct, frozen=True):
    """The findings for one lane. All fields except ``hole_ranges`` and ``gaps`` count records."""

    edge: str
    log_id: str
    records: int
    """Distinct records in the log."""
    log_doubled: int
    """Sequence numbers that occur again in the log."""
    unindexed: int
    """Records in the log that the chunks' indexes lack, or vice versa."""
    table_records: int
    table_doubled: int
    waiting: int
    """Records in the log, above the table's position."""
    missing: int
    """Records in the log, below the table's position, and not in the table."""
    unknown: int
    """Records in the table but not in the log."""
    gaps: dict[str, int]
    """Sequence numbers that can never come, by reason."""
    holes: int
    """Numbers below the last sequence number, neither held nor under a gap notice: still to come over a link. They
    include numbers before a rename that the hub has under no name."""
    hole_ranges: list[tuple[int, int]]
    """First ``HOLES_LISTED_MAX`` ranges of the holes."""
    resent: int
    """Records that the device sent with DUP: it may have published the same message before."""
    skipped: int = 0
    """Records that an operator skipped (``weft hub skip``) and that are not in the table."""
    deleted: int = 0
    """Records that are not in the table because their deletion was declared (``weft hub declare-deletion``)."""
    named_twice: dict[str, int] = {}
    """Records of this log that exist under another name (tenant/edge) too: its node was renamed without its log."""
    replaced: int = 0
    """Records that a latest table took in, and of which it has no row: a newer record of their key replaced or deleted
    them. The stream has no table of all rows, so more is not known of them."""
    origins: dict[str, int] = {}
    """Records in the log that were not made by a device, by origin, such as ``calm@8a1f03c4``."""


class ShardAudit(msgspec.Struct, frozen=True):
    """The findings for one shard: its log of the stream against the table's offsets."""

    shard: int
    chunks: int
    log_end: int
    """Offset after the last one in the log."""
    position: int
    """Position of the table, which claims every lower offset."""
    missing: int
    doubled: int
    ahead: int
    """Rows whose offset is at or above the position."""
    skipped: int = 0
    """Offsets below the position without a row that an operator skipped."""
    deleted: int = 0
    """Offsets below the position whose row was deleted as declared."""


class DeclaredDeletion(msgspec.Struct, frozen=True):
    """A declared deletion: by whom, when and why."""

    number: int
    time: int
    """Nanoseconds since 1970."""
    by: str
    reason: str
    rows: str
    """The choice of rows; of an erasure without the values."""
    count: int
    """Number of rows that it names."""
    is_erased: bool
    """True if they are erased from the log as well, as far as ``weft hub erasures`` says."""
    received_until: int | None = None
    """Time of receipt of the newest row, nanoseconds since 1970, if retention removed them."""


class AuditReport(msgspec.Struct, frozen=True):
    """The result of an audit."""

    tenant: str
    stream: str
    table_version: int | None
    """Compared version of the table; None if there is no table yet."""
    lanes: list[LaneAudit]
    shards: list[ShardAudit]
    damage: list[str]
    """Unreadable parts, one sentence each; at most ``DAMAGE_LISTED_MAX``."""
    problems: list[str]
    """Differences between lanes, log and table, one sentence each. Empty when they agree."""
    agrees: bool
    """True when every record is in the log once, and every one below the table's position is in the table once."""
    open_gaps: list[NamedOpenGap] = []
    """Losses without a number, of lanes that ended without a last word. Log and table may agree nevertheless."""
    deletions: list[DeclaredDeletion] = []
    """Declared deletions of the stream, oldest first."""
    never_heard: list[str] = []
    """Expected edges (``weft hub stream expect``), names and patterns, that have said nothing of the stream: the hub
    cannot know what they have. ``?`` if this release cannot read the declaration. Log and table may agree
    nevertheless."""
    only_latest: bool = False
    """True if the stream has a latest table instead of a table of all rows, and was compared with that."""

    def origins(self) -> dict[str, int]:
        """Return the sums of ``LaneAudit.origins`` over the lanes, by name."""
        sums: Counter[str] = Counter()
        for lane in self.lanes:
            sums.update(lane.origins)
        return dict(sorted(sums.items()))

    def total(self, count: str) -> int:
        """Return the sum of a ``LaneAudit`` count over the lanes."""
        return sum(getattr(lane, count) for lane in self.lanes)


def lane_problems(lanes: Sequence[LaneAudit]) -> list[str]:
    """Return the differences of a lane's records between log and table, one sentence each."""
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
        f"{lane.edge}/{lane.log_id}: {count} records of this log are also stored under the name {name}"
        for lane in lanes
        for name, count in lane.named_twice.items()
    ]


def shard_problems(shards: Sequence[ShardAudit]) -> list[str]:
    """Return the offsets of a shard that do not fit the table's position, one sentence each."""
    sentences = {
        "missing": "offsets below the table's position have no row",
        "doubled": "offsets have a second row",
        "ahead": "rows lie above the table's position",
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


def reason_name(number: int) -> str:
    """Return the name of a gap notice's reason."""
    return next((reason.name.lower() for reason in GapReason if reason == number), f"reason {number}")


# Comparison of what the logs of two regions hold of a stream, number by number.
#
# The states of the shards have the numbers of all records that a hub holds, so no chunk and no table is read: what
# tables have of a log is what ``audit`` compares in each region. Lanes that left the states because their edges were
# silent for months are not compared.

RANGES_LISTED_MAX = 20


class RegionLane(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one lane in two regions. Numbers are those that the edge gave to its records."""

    edge: str
    log_id: str
    both: int
    """Records in both logs."""
    only_first: int
    only_second: int
    given_up: tuple[int, int]
    """Records that the second region has, and that an erasure, retention or another act of an operator removed from the
    first; and the reverse. None of the other counts has them."""
    ranges: tuple[list[Range], list[Range]]
    """The first ranges of the records that only the first, and only the second region has: [first, end)."""
    complete_up_to: tuple[int | None, int | None]
    """Moment up to which each region claims the lane, nanoseconds since 1970; None for no claim."""


class RegionsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one stream in two regions."""

    tenant: str
    stream: str
    lanes: list[RegionLane]
    agree: bool
    """True if each has every record that the other has, but for those that it gave up."""


async def compare_regions(stores: tuple[ObjectStore, ObjectStore], tenant: str, stream: str) -> RegionsReport:
    """Compare what the logs in two stores hold of a stream.

    Records that arrive meanwhile may be in the log that is read later alone.

    Raises:
        ClusterUnusable: a store holds no hub, or not all of one.
        StoreError: a store did not answer.
    """
    first, second = await asyncio.gather(*(_lanes(store, tenant, stream) for store in stores))
    lanes = [_compared(lane, first.get(lane), second.get(lane)) for lane in sorted({*first, *second})]
    agree = not any(each.only_first or each.only_second for each in lanes)
    return RegionsReport(tenant=tenant, stream=stream, lanes=lanes, agree=agree)


async def _lanes(store: ObjectStore, tenant: str, stream: str) -> dict[Lane, LaneState]:
    cluster = await open_cluster(store, None)
    found = await load_every_shard(first_logs(store, cluster, tenant=tenant), frozenset([(tenant, stream)]))
    lanes: dict[Lane, LaneState] = {}
    for _, state in found:
        for lane, held in state.lanes.items():
            if (lane.tenant, lane.stream) == (tenant, stream):
                lanes[lane] = held  # of a lane that moved, the new shard has the later state, and the higher number
    return lanes


def _compared(lane: Lane, first: LaneState | None, second: LaneState | None) -> RegionLane:
    here, there = (RangeSet() if each is None else each.records for each in (first, second))
    only_here, gone_there = _apart(here, there, second)
    only_there, gone_here = _apart(there, here, first)
    return RegionLane(
        edge=lane.edge,
        log_id=f"{lane.log_id:016x}",
        both=here.count() - only_here.count() - gone_there,
        only_first=only_here.count(),
        only_second=only_there.count(),
        given_up=(gone_here, gone_there),
        ranges=(list(only_here)[:RANGES_LISTED_MAX], list(only_there)[:RANGES_LISTED_MAX]),
        complete_up_to=(_claim(first), _claim(second)),
    )


def _apart(here: RangeSet, there: RangeSet, held: LaneState | None) -> tuple[RangeSet, int]:
    """Return the records of one region that the other one lacks, and the number of those that it gave up.

    Args:
        held: the other one's lane.
    """
    lacked = here.minus(there)
    gone = () if held is None else [(gap.first, gap.end) for gap in held.gaps if gap.reason == GapReason.OPERATOR]
    unexplained = lacked.minus(gone)
    return unexplained, lacked.count() - unexplained.count()


def _claim(held: LaneState | None) -> int | None:
    return None if held is None else held.complete_up_to
