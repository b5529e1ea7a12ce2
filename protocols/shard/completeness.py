"""Completeness of a stream: the moment, its lanes, and the reasons that hold it back.

"Complete up to T" is a statement about known lanes. So the answer names them, and a stream may name expected edges:
until the hub has heard from each of them, there is no moment. If a second node claims to own a lane's log, the lane
remains at its last claimed moment until an operator decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import StrEnum
from typing import NamedTuple

from weft.protocols.lane import Lane, format_log_id, matches
from weft.protocols.segment import GapReason
from weft.protocols.shard.lane_state import LaneState, OpenGap, RetiredBy, open_gap, renamed

SILENT_NS = 240 * 10**9
"""Age of a lane's newest mark from which on the lane counts as silent: an idle edge sends its mark every minute, and an
idle shard stores it a minute later, so this is twice the usual age."""
LATE_NS = 10**9
"""Age of a stream's moment from which on the edge that it waits for is named, whatever else is known of that edge."""
CLOCK_BEHIND_MIN_NS = 10**6
"""Shortest time behind the moment that is a reason: time services correct running clocks by microseconds."""
HELD_BACK_MAX = 100
"""Maximum number of reasons in one answer; the ones with the earliest moments come first."""
OPEN_GAPS_MAX = 100
"""Maximum number of open gaps in one answer; the latest come first."""
ABSENT_MAX = 3
"""Maximum number of ranges that one reason names."""
_SECOND = 10**9
_EARLIEST_NS = 365 * 86_400 * _SECOND
"""No corrected mark of an edge that measures time is earlier."""
UNREADABLE = "?"
"""Expected edge of a stream whose declaration of them this release cannot read. No edge has this name, so it is never
heard of, and the stream has no moment."""


class Reason(StrEnum):
    """Reasons why a stream's moment does not advance. The names are in answers of the API."""

    EXPECTED = "expected_edge_missing"
    DECLARATION = "declaration_unreadable"
    CONFLICT = "conflict"
    NO_MARK = "no_mark"
    NOT_STARTED = "functions_not_started"
    FUNCTIONS_FAIL = "functions_fail"
    HOLE = "hole"
    ABSENT = "absent_records"
    LOST = "lost_records"
    CLOCK = "clock_behind"
    SILENT = "silent"
    LATE = "late"
    TABLE = "table_stands_still"
    HUB_CLOCK = "hub_clock_wrong"


class Severity(StrEnum):
    """Degree to which a reason asks something of people. The names are in answers of the API."""

    INFO = "info"
    """Nothing: the moment is as old as that of a working fleet may be."""
    WARNING = "warning"
    """A look: the moment stands still, or there is none."""
    ERROR = "error"
    """An act: records are lost, or may be, or are not made, and waiting does not bring them."""


class HeldBack(NamedTuple):
    """One reason why a stream's moment does not advance."""

    edge: str
    """Name, or the pattern of an expected edge; empty if the reason is not an edge."""
    log_id: int | None
    reason: Reason
    since: int | None
    """Nanoseconds since 1970: beginning of the reason, if known."""
    up_to: int | None
    """The present moment of the lane."""
    why: str
    advice: str


_ACTS = frozenset({Reason.CONFLICT, Reason.ABSENT, Reason.LOST, Reason.FUNCTIONS_FAIL})


# One rule beside the reasons, no setting: the bound follows from the intervals of marks. A bound from the stream's
# usual lag would make the lag of a stream that is left behind usual.
def severity(each: HeldBack, now: int) -> Severity:
    """Return what a reason asks of people: one rule for all who show reasons.

    Args:
        now: nanoseconds since 1970 by the hub's clock.
    """
    if each.reason in _ACTS:
        return Severity.ERROR
    # Records under way and edges with nothing to say hold each live stream back, for no longer than this.
    return Severity.INFO if each.up_to is not None and now - each.up_to < SILENT_NS else Severity.WARNING


class Completeness(NamedTuple):
    """Answer for one stream."""

    complete_up_to: int | None
    """Nanoseconds since 1970; None while the hub has heard nothing from a lane that counts, or from an expected
    edge."""
    covers: list[Lane]
    held_back_by: list[HeldBack]
    more: int
    """Number of further reasons that are left out."""
    open_gaps: list[OpenGap] = []
    """Losses without a number, of lanes that no longer count. They hold nothing back."""
    open_gaps_more: int = 0
    """Number of further open gaps that are left out."""
    slowest: HeldBack | None = None
    """The lane that the moment is of, while nothing is wrong with it and it is not in ``held_back_by``."""


class LostRecords(NamedTuple):
    """Records that the hub had acknowledged and no longer has: its store was restored, or lost objects."""

    records: int
    first: int
    """Sequence number of the first."""
    end: int
    """Sequence number behind the last."""


LostOf = Callable[[Lane, LaneState], LostRecords | None]
"""For a lane: its records that the hub has lost, by the edge's account; None without any."""
Behind = Callable[[Lane], int | None]
"""For a lane: nanoseconds by which its edge's last mark was before the lane's moment; None if it was not."""


def completeness(
    lanes: Mapping[Lane, LaneState],
    expected: Sequence[str],
    now: int,
    *,
    peers: bool = False,
    behind: Behind = lambda _: None,
    left: Iterable[OpenGap] = (),
) -> Completeness:
    """Return the completeness of a stream.

    Args:
        lanes: of the stream, over all shards.
        expected: names and patterns (``expected_edges``) of edges; without all of them there is no moment.
        now: nanoseconds since 1970 by the hub's clock.
        peers: whether records that this hub's senders do not have may still come from another hub.
        behind: for lanes whose edges are linked to this node.
        left: open gaps of lanes that have left the state.
    """
    tally = Tally(expected, now, peers=peers, behind=behind, renamed=renamed(lanes, peers=peers))
    for gap in left:
        tally.add_gap(gap)
    for lane in sorted(lanes):
        tally.add(lane, lanes[lane])
    return tally.answer()


class Tally:
    """Completeness of a stream, computed lane by lane. Args as ``completeness``.

    Args:
        renamed: lanes that ended by a rename, which hold nothing back.
    """

    def __init__(
        self,
        expected: Sequence[str],
        now: int,
        *,
        peers: bool,
        behind: Behind,
        lost: LostOf = lambda *_: None,
        renamed: Set[Lane] = frozenset(),
    ) -> None:
        self._lost = lost
        self._unheard = list(dict.fromkeys(expected))
        self._now = now
        self._peers = peers
        self._behind = behind
        self._covers: list[Lane] = []
        self._earliest: int | None = None
        self._slowest: tuple[Lane, LaneState] | None = None
        """The lane with the earliest moment."""
        self._is_known = True
        self._held_back: list[HeldBack] = []
        self._more = 0
        self._renamed = renamed
        self._open_gaps: list[OpenGap] = []
        self._open_gaps_more = 0

    def add_gap(self, gap: OpenGap) -> None:
        """Add an open gap."""
        self._open_gaps.append(gap)
        # Cut at twice the maximum, so that one sort serves a whole page of gaps.
        if len(self._open_gaps) >= 2 * OPEN_GAPS_MAX:
            self._cut_gaps()

    def _cut_gaps(self) -> None:
        self._open_gaps.sort(key=lambda gap: (-gap.until, gap.edge, gap.log_id))
        self._open_gaps_more += len(self._open_gaps[OPEN_GAPS_MAX:])
        del self._open_gaps[OPEN_GAPS_MAX:]

    def add(self, lane: Lane, held: LaneState) -> None:
        """Add a lane."""
        if self._unheard and has_spoken(held):
            self._unheard = [pattern for pattern in self._unheard if not is_heard(pattern, {lane.edge})]
        if held.retired is not None and (gap := open_gap(lane, held, peers=self._peers)) is not None:
            self.add_gap(gap)
        if not held.counts or lane in self._renamed:
            return
        self._covers.append(lane)
        moment = moment_of(held, peers=self._peers)
        if moment is None:
            self._is_known = False
        elif self._earliest is None or moment < self._earliest:
            self._earliest, self._slowest = moment, (lane, held)
        each = held_back(lane, held, self._now, peers=self._peers, behind=self._behind, lost=self._lost)
        if each is not None:
            self._held_back.append(each)
            if len(self._held_back) >= 2 * HELD_BACK_MAX:
                self._cut(HELD_BACK_MAX)

    def answer(self) -> Completeness:
        """Return the completeness."""
        missing = list(map(never_came, self._unheard))
        complete = self._earliest if self._is_known and not missing else None
        # Missing expected edges come first: because of them there is no moment at all.
        self._cut(max(0, HELD_BACK_MAX - len(missing)))
        reasons = [*missing, *self._held_back]
        more = self._more + max(0, len(reasons) - HELD_BACK_MAX)
        self._cut_gaps()
        gaps = self._open_gaps, self._open_gaps_more
        slowest = None
        if complete is not None and self._slowest and not any(each.up_to == complete for each in reasons):
            # One lane, the slowest: an idle fleet is late as a whole, and would have a reason for each edge.
            slowest = late(*self._slowest, self._now, peers=self._peers)
        return Completeness(complete, self._covers, reasons[:HELD_BACK_MAX], more, *gaps, slowest)

    def _cut(self, most: int) -> None:
        """Keep the reasons that hold the moment back the most."""
        # Lanes without a moment first, then by moment. Names make the order independent of that of the lanes.
        self._held_back.sort(
            key=lambda each: (
                each.up_to is not None,
                each.up_to or 0,
                each.edge,
                -1 if each.log_id is None else each.log_id,
            )
        )
        self._more += max(0, len(self._held_back) - most)
        del self._held_back[most:]


def moment_of(held: LaneState, *, peers: bool) -> int | None:
    """Return the moment up to which a lane is complete, in whole microseconds; None when it is unknown.

    Tables have times in microseconds, rounded down. The moment is rounded down too, so that no later row has an earlier
    ``_time``.
    """
    moment = held.whole_up_to if peers else held.complete_up_to
    return None if moment is None or not_started(held) else moment // 1000 * 1000


def not_started(held: LaneState) -> bool:
    """Return whether a lane is of functions that have handled nothing yet.

    They hold their mark at the begin of 1970, which the hub corrects by what it knows of the edge's clock.
    """
    newest = held.newest_mark
    return newest is not None and newest.seq == 0 and newest.time < _EARLIEST_NS


def never_came(pattern: str) -> HeldBack:
    """Return the reason of an expected edge from which the hub has heard nothing.

    An edge that an operator retired is not waited for. An edge that was only not seen for long is.
    """
    if pattern == UNREADABLE:
        return HeldBack(
            "",
            None,
            Reason.DECLARATION,
            None,
            None,
            "this release cannot read which edges are expected (`weft hub stream expect`)",
            "use the release that declared them, or declare them again",
        )
    return HeldBack(
        pattern,
        None,
        Reason.EXPECTED,
        None,
        None,
        "no edge of this name has linked and reported the stream"
        if "*" not in pattern
        else "no edge whose name matches has linked and reported the stream",
        "connect it, or remove it from expected_edges",
    )


def late(lane: Lane, held: LaneState, now: int, *, peers: bool) -> HeldBack | None:
    """Return the reason of a lane with which nothing is wrong, but that a stream's moment waits for; None if it is not
    ``LATE_NS`` behind. Args as ``Tally``."""
    moment = moment_of(held, peers=peers)
    if moment is None or now - moment < LATE_NS:
        return None
    return HeldBack(
        lane.edge,
        lane.log_id,
        Reason.LATE,
        held.last_seen or None,
        moment,
        f"of all edges it was heard of the longest ago: {_time(now - moment)}",
        f"nothing yet: an idle edge is heard of every two minutes, and after {_time(SILENT_NS)} it counts as silent",
    )


def _absent(held: LaneState) -> str:
    absent = [f"[{gap.first}, {gap.end})" for gap in held.gaps if gap.reason == GapReason.ABSENT]
    more = f" and {len(absent) - ABSENT_MAX} more ranges" if len(absent) > ABSENT_MAX else ""
    return ", ".join(absent[:ABSENT_MAX]) + more


def has_spoken(held: LaneState) -> bool:
    """Return whether a lane shows that its expected edge need not be waited for."""
    # A lane that was retired by age does not count as heard, because its edge may come back. One that an operator
    # retired does.
    spoke = held.counts and held.newest_mark is not None
    return spoke or (held.retired is not None and held.retired.by == RetiredBy.OPERATOR)


def is_heard(pattern: str, heard: Set[str]) -> bool:
    """Return whether one of the edges has the name, or matches the pattern."""
    return pattern in heard or ("*" in pattern and any(matches(pattern, edge) for edge in heard))


def _time(ns: int) -> str:
    """Return a time for people, in one unit: some minutes as minutes, some hours as hours."""
    seconds = ns // _SECOND
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def _silence(lane: Lane, held: LaneState, silent: int, *, peers: bool) -> tuple[str, str]:
    """Return why a lane is silent, for so many nanoseconds, and what to do about it."""
    tenant = "" if lane.tenant == "default" else f" --tenant {lane.tenant}"
    retire = f"`weft hub retire hub.yaml {lane.edge}{tenant} --reason REASON`"
    why = f"the edge has been silent for {_time(silent)}"
    if not held.ended_in_order(peers=peers):
        return why, f"restore its link; if its disk is gone for good or has another name now, {retire}"
    word = held.last_word
    if word is not None and word.renamed_to:
        return (
            f"{why}: it stopped in order, and its log continues as {word.renamed_to}, which has not come yet",
            f"start it as {word.renamed_to}; if it is out of service for good, {retire}",
        )
    if not held.ranges:
        return (
            f"{why}: it stopped in order, and has never sent a record of this stream",
            f"start it again; if it is not to send any, {retire}. `retired_after` ends the lane otherwise",
        )
    return (
        f"{why}: it stopped in order, with everything delivered",
        f"start it again; if it is out of service for good or has another name now, {retire}",
    )


def held_back(
    lane: Lane, held: LaneState, now: int, *, peers: bool, behind: Behind, lost: LostOf = lambda *_: None
) -> HeldBack | None:
    """Return the reason why a lane that counts does not advance; None if it does. Args as ``Tally``."""
    # Reasons that need an operator come before those that end by themselves.
    found = _conflict(lane, held, peers) or _restored(lane, held, peers, lost(lane, held))
    return found or _waits(lane, held, now, peers, behind)


def _conflict(lane: Lane, held: LaneState, peers: bool) -> HeldBack | None:
    if held.conflict is None:
        return None
    return HeldBack(
        lane.edge,
        lane.log_id,
        Reason.CONFLICT,
        held.conflict.time,
        moment_of(held, peers=peers),
        held.conflict.reason,
        f"stop the node that is a copy, then `weft hub adopt CONFIG {lane.edge} --log {format_log_id(lane.log_id)}`; "
        "or end the lane with `weft hub retire`",
    )


def _restored(lane: Lane, held: LaneState, peers: bool, lost: LostRecords | None) -> HeldBack | None:
    if lost is None or held.ranges.contiguous_end() >= lost.end:  # the edge gave them up, and the moment is past them
        return None
    return HeldBack(
        lane.edge,
        lane.log_id,
        Reason.LOST,
        None,
        moment_of(held, peers=peers),
        f"the hub lacks {lost.records} records, from seq {lost.first} on, that it had acknowledged to the edge. Its "
        "store was restored to an earlier state, or lost objects",
        "the edge sends again what it still has. Look for the rest at other hubs and in the tables; then `weft link "
        "acknowledge` on that edge, and restart it",
    )


def _waits(lane: Lane, held: LaneState, now: int, peers: bool, behind: Behind) -> HeldBack | None:
    moment = moment_of(held, peers=peers)

    def held_back(reason: Reason, since: int | None, why: str, advice: str) -> HeldBack:
        return HeldBack(lane.edge, lane.log_id, reason, since, moment, why, advice)

    newest, end = held.newest_mark, held.ranges.contiguous_end()
    if newest is None:
        return held_back(
            Reason.NO_MARK,
            held.last_seen or None,
            "the edge has sent records of the lane and no mark yet",
            "see `weft edge status` on that edge",
        )
    if not_started(held) and held.last_word is None:
        return held_back(
            Reason.NOT_STARTED,
            None,
            "the edge's functions of the stream have handled nothing yet",
            "see `weft edge status` on that edge, which has the error if they cannot start",
        )
    if peers and held.pending_marks and held.whole_end() < end:
        return held_back(
            Reason.ABSENT,
            None,
            f"absent: another cluster may have {_absent(held)}, which the edge does not have any more",
            "bring the link from the other cluster up; if it does not have them either, set `peers: false`",
        )
    if held.pending_marks and newest.seq > end:
        return held_back(
            Reason.HOLE,
            None,
            f"the records from seq {end} on are missing, the edge had given out numbers below {newest.seq}",
            "they are on their way; if not, see `weft edge status` on that edge"
            if now - held.last_seen < SILENT_NS  # a backlog of hours is on its way, too
            else f"the edge has sent nothing for {_time(now - held.last_seen)}: see `weft edge status` on that edge",
        )
    steps = behind(lane)
    if steps is not None and steps >= CLOCK_BEHIND_MIN_NS:
        return held_back(
            Reason.CLOCK,
            held.last_seen or None,
            f"the edge's clock was set back: it is {steps / _SECOND:.3g} s before the moment that the lane had reached",
            "nothing: the moment moves on when the edge's clock has passed it. Records until then are marked `stepped`",
        )
    heard = held.last_seen if not_started(held) else newest.time
    if now - heard >= SILENT_NS:
        why, advice = _silence(lane, held, now - heard, peers=peers)
        return held_back(Reason.SILENT, held.last_seen or None, why, advice)
    return None
