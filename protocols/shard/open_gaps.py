"""Open gaps: losses of unknown number. A lane that ended without a last word has one.

The hub cannot know the records that an edge received behind a cut link before its disk was lost. It knows that the lane
ended, and that the edge never reported its last record: from the next number on, from the lane's last mark to its
retirement, records may be missing. The gap is derived from the lane's state, so it closes by itself when the disk is
back and has delivered its records. The gap of a lane that leaves the state remains with its stream, and so does that of
a second node of the lane's log after an operator has rejected it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from weft.protocols.chunk_index.footer import GapRange
from weft.protocols.fields import U32, U64, Nanoseconds, Seq
from weft.protocols.lane import Lane
from weft.protocols.segment import GapReason
from weft.protocols.shard.lane_state import LaneState, Missing, Retirement

KEPT_MAX = 256
"""Maximum number of open gaps of one stream in a shard whose lanes have left. One more joins the two that are closest
in time: the joined one covers more time, never less."""


class OpenGap(msgspec.Struct, frozen=True, array_like=True):
    """Records of a lane that may be missing, in unknown number."""

    edge: str
    log_id: U64
    first: Seq
    """First number that may be missing."""
    since: Nanoseconds | None
    """Edge wall clock: none of them was received earlier. None if no mark ever came."""
    until: Nanoseconds
    """Moment of the lane's retirement by the hub's clock."""
    others: U32 = 0
    """Number of further lanes whose gaps are joined to this one."""
    forked: bool = False
    """True when a second node had the log until an operator decided: the records are on that node's disk, if anywhere,
    under numbers that the hub may have for other records."""

    @property
    def why(self) -> str:
        """Return the reason, for people."""
        others = f", and {self.others} more lanes" if self.others else ""
        if self.forked:
            return (
                f"a second node had the log until an operator decided{others}; records that it took in and never "
                "delivered may be missing, in unknown number"
            )
        return (
            f"the lane ended without a last word{others}; records from seq {self.first} on that its edge never "
            "delivered may be missing, in unknown number"
        )


def open_gap(lane: Lane, held: LaneState, *, peers: bool = False) -> OpenGap | None:
    """Return the open gap of a retired lane; None if it has none.

    Args:
        peers: whether another cluster may have records that this one lacks.
    """
    retired = held.retired
    return None if retired is None else gap_until(lane, held, retired, peers=peers)


def gap_until(lane: Lane, held: LaneState, retired: Retirement, *, peers: bool = False) -> OpenGap | None:
    """Return the open gap of a lane with a given retirement; None if it has none."""
    if held.partial or held.is_empty or retired.missing == Missing.NOTHING:
        return None
    if held.ended_in_order(peers=peers) and retired.missing != Missing.UNKNOWN:
        return None
    since = held.whole_up_to if peers else held.complete_up_to
    if since is not None and since >= retired.time:
        return None  # the edge came back, and all its records until then are accounted for
    first = held.whole_end() if peers else held.ranges.contiguous_end()
    return OpenGap(lane.edge, lane.log_id, first, since, retired.time)


def with_gap(kept: Sequence[OpenGap], gap: OpenGap) -> list[OpenGap]:
    """Return the open gaps of a stream, with that of a leaving lane added."""
    gaps = list(kept)
    # A lane has one gap of each sort; that of a second conflict begins at the first one.
    at = next((at for at, each in enumerate(gaps) if _is_like(each, gap)), None)
    if at is not None:
        same = gaps.pop(at)
        gap = msgspec.structs.replace(_joined(same, gap), others=0) if gap.forked else gap
    insort(gaps, gap, key=_order)
    while len(gaps) > KEPT_MAX:
        at = min(range(len(gaps) - 1), key=lambda i: gaps[i + 1].until - gaps[i].until)
        gaps[at : at + 2] = [_joined(gaps[at], gaps[at + 1])]
    return gaps


def without(kept: Sequence[OpenGap], edge: str, log_id: int, *, forked: bool = False) -> list[OpenGap]:
    """Return the open gaps without that of a lane that is back. A gap that was joined with others remains.

    Args:
        forked: remove that of a second node, too.
    """
    return [
        gap for gap in kept if gap.others or (gap.edge, gap.log_id) != (edge, log_id) or (gap.forked and not forked)
    ]


def after_control(
    kept: Sequence[OpenGap], lane: Lane, before: LaneState | None, after: LaneState | None, created: int
) -> Sequence[OpenGap]:
    """Return a stream's open gaps after a control record of one of its lanes.

    Args:
        kept: the open gaps before.
        before: the lane's state; None when it comes back.
        after: None when it leaves.
        created: moment of the record by the hub's clock.
    """
    edge, log_id = lane.edge, lane.log_id
    if before is None or after is None:
        gap = None if before is None else open_gap(lane, before)
        return without(kept, edge, log_id) if gap is None else with_gap(kept, gap)
    if before.conflict is not None and after.conflict is None and not (before.partial or before.is_empty):
        # An operator has decided: the records of the rejected node are only on its disk.
        return with_gap(kept, OpenGap(edge, log_id, 0, before.conflict.up_to, created, forked=True))
    if after.retired is not None and after.retired.missing == Missing.NOTHING:
        return without(kept, edge, log_id, forked=True)
    return kept


def in_order(gaps: Iterable[OpenGap]) -> list[OpenGap]:
    """Return the open gaps of a stream in the order in which a state keeps them."""
    return sorted(gaps, key=_order)


def _is_like(one: OpenGap, other: OpenGap) -> bool:
    return one.log_id == other.log_id and one.edge == other.edge and one.forked == other.forked and not one.others


def _order(gap: OpenGap) -> tuple[int, str, int]:
    return gap.until, gap.edge, gap.log_id


def _joined(earlier: OpenGap, later: OpenGap) -> OpenGap:
    since = None if earlier.since is None or later.since is None else min(earlier.since, later.since)
    others = earlier.others + later.others + 1
    return OpenGap(later.edge, later.log_id, later.first, since, later.until, others, later.forked)


def renamed(lanes: Mapping[Lane, LaneState], *, peers: bool = False) -> set[Lane]:
    """Return the lanes of a stream that ended by a rename: they hold nothing back and lack nothing.

    Both names must show it: the former one by its last word, and the new one, of the same log, by the gap at its
    beginning. Otherwise an edge could remove another one, which is only cut off, from completeness.

    Args:
        lanes: at least the lanes of a stream with a last word, and all others of their logs.
        peers: whether another cluster may have records that this one lacks.
    """
    logs: dict[int, list[Lane]] = {}
    for lane in lanes:
        logs.setdefault(lane.log_id, []).append(lane)
    return {
        lane
        for names in logs.values()
        if len(names) > 1
        for lane in names
        if lanes[lane].ended_in_order(peers=peers)
        and any(_follows(lanes[other], lanes[lane]) for other in names if other != lane)
    }


def _follows(held: LaneState, former: LaneState) -> bool:
    """Return whether a lane of the same log begins where the former one has its last word."""
    assert former.last_word is not None
    return held.epoch > former.epoch and begins_at(held.gaps) == former.last_word.seq


def begins_at(gaps: Iterable[GapRange]) -> int:
    """Return the number at which a lane begins under its name."""
    first = next(iter(gaps), None)
    return 0 if first is None or first.first or first.reason != GapReason.RENAMED else first.end
