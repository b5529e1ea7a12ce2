"""Report of a verification."""

from __future__ import annotations

import msgspec

from weft.protocols.lane import Lane, format_log_id
from weft.protocols.ranges import Range
from weft.protocols.segment import GapReason
from weft.protocols.shard.lane_state import LaneState

FINDINGS_MAX = 10_000
"""Maximum number of findings that are listed; more are counted."""


class StoreFault(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    place: str
    """Key of an object, or the name of a shard or table."""
    what: str
    """Kind: missing, damaged, differs, other_history, ahead, rows_missing or lost."""
    sentence: str


class LostRun(msgspec.Struct, frozen=True):
    """Records of a lane that are in no chunk, though a later snapshot accounts for them."""

    tenant: str
    edge: str
    log: str
    stream: str
    first: int
    end: int


class LaneEnd(msgspec.Struct, frozen=True):
    """The end of a lane: its edge sends everything from there on by itself, if it still has it."""

    tenant: str
    edge: str
    log: str
    stream: str
    shard: int
    next_seq: int
    """Number after the last that is accounted for without a hole."""
    complete_up_to: int | None
    """Nanoseconds since 1970 by the edge's clock."""
    gone: list[Range]
    """Records that the edge itself had no more when it was asked for them: they are lost for good."""
    retired: bool
    in_order: bool
    """True if the edge had stopped in order."""
    is_awaited: bool
    """True in a restored store while its edge has not come since: later records may come, or be lost."""


class ShardReport(msgspec.Struct):
    """One shard."""

    shard: int
    first: int = 0
    end: int = 0
    chunks: int = 0
    """Chunks whose checksums match."""
    snapshots: int = 0
    """Snapshots that agree with the fold."""
    bytes: int = 0


class TableReport(msgspec.Struct):
    """One table."""

    tenant: str
    stream: str
    version: int = -1
    files: int = 0
    rows_up_to: dict[int, int] = {}
    """Shard -> offset below which all rows are in the table."""


class VerifyReport(msgspec.Struct):
    """Everything that was found."""

    cluster: str
    backup_of: int | None = None
    """Moment of the backup in nanoseconds since 1970; None for a store."""
    restored: int = 0
    """Moment at which the store was restored; 0 for never."""
    shards: list[ShardReport] = []
    tables: list[TableReport] = []
    findings: list[StoreFault] = []
    findings_more: int = 0
    lost: list[LostRun] = []
    lanes: list[LaneEnd] = []

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is wrong with the store itself."""
        return not self.findings

    def note(self, place: str, what: str, sentence: str) -> None:
        """Add a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(StoreFault(place, what, sentence))
        else:
            self.findings_more += 1


def lane_end(shard: int, lane: Lane, held: LaneState, restored: int) -> LaneEnd:
    """Return the end of a lane.

    Args:
        restored: moment at which the store was restored, in nanoseconds since 1970; 0 for never.
    """
    gone = [(gap.first, gap.end) for gap in held.gaps if gap.reason == GapReason.ABSENT]
    return LaneEnd(
        lane.tenant, lane.edge, format_log_id(lane.log_id), lane.stream, shard, held.ranges.contiguous_end(),
        held.complete_up_to, gone, held.retired is not None, held.ended_in_order(), held.last_seen < restored,
    )  # fmt: skip
