"""State of one lane in a shard: records, gaps and marks (docs/reference/formats/shard-state.md).

A gap is not final. Its records close it, from whichever sender they come. A sender that knows the reason of a loss
overrides one that only lacks the records (``GapReason.ABSENT``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, cast

import msgspec

from weft.protocols.chunk_index import ORIGINS_MAX, Control, GapRange, LaneFlag, LaneUpdate, LastWord, Mark
from weft.protocols.lane import Lane, Origin, by_number
from weft.protocols.ranges import U32, U64, Epoch, Nanoseconds, Range, RangeSet, Seq
from weft.protocols.segment import GapReason

# The gaps of one lane: disjoint ranges with reasons, ascending. The cost of a change depends on the touched gaps, not
# on all.


def _first(gap: GapRange) -> int:
    return gap.first


def _end(gap: GapRange) -> int:
    return gap.end


class GapSet:
    """Gaps of a lane. Neighbours with the same reason are one gap."""

    __slots__ = ("_absent", "items")

    def __init__(self, gaps: Iterable[GapRange] = ()) -> None:
        """Start with the gaps of another set: ascending, disjoint, and joined if neighbours have the same reason."""
        self.items = list(gaps)
        """The gaps. Where each lane of a chunk is asked for them, this is quicker than the set itself."""
        # Kept separately too, so that a notice that overrides them need not search all gaps.
        self._absent = RangeSet((gap.first, gap.end) for gap in self.items if gap.reason == GapReason.ABSENT)

    def copy(self) -> GapSet:
        """Return an independent set with the same gaps."""
        twin = GapSet.__new__(GapSet)
        twin.items, twin._absent = self.items.copy(), self._absent.copy()
        return twin

    def touches(self, first: int, end: int) -> bool:
        """Return whether a gap has numbers of ``[first, end)``."""
        low, high = self._touched(first, end)
        return low < high

    def within(self, first: int, end: int) -> list[Range]:
        """Return the parts of gaps that lie in ``[first, end)``, ascending."""
        low, high = self._touched(first, end)
        return [(max(gap.first, first), min(gap.end, end)) for gap in self.items[low:high]]

    def absent_within(self, first: int, end: int) -> list[Range]:
        """Return the parts of ABSENT gaps that lie in ``[first, end)``, ascending."""
        return self._absent.within(first, end) if self._absent else []

    def first_absent(self) -> int | None:
        """Return the lowest number of an ABSENT gap."""
        return next(iter(self._absent))[0] if self._absent else None

    def surrounds(self, first: int, end: int) -> bool:
        """Return whether one gap extends beyond both ends of ``[first, end)``: without these numbers it would be
        two."""
        low, high = self._touched(first, end)
        return high - low == 1 and self.items[low].first < first and end < self.items[low].end

    def remove(self, first: int, end: int) -> None:
        """Remove ``[first, end)`` from all gaps."""
        low, high = self._touched(first, end)
        if low >= high:
            return
        before, after = self.items[low], self.items[high - 1]
        kept = []
        if before.first < first:
            kept.append(GapRange(before.first, first, before.reason))
        if after.end > end:
            kept.append(GapRange(end, after.end, after.reason))
        self.items[low:high] = kept
        self._absent.remove(first, end)

    def put(self, gap: GapRange) -> None:
        """Add a gap, which replaces other gaps in its range."""
        self.remove(gap.first, gap.end)
        gaps, first, end = self.items, gap.first, gap.end
        low = high = bisect_right(gaps, first, key=_end)
        # Neighbours of one reason are one gap, since the number of gaps is bounded.
        if low and gaps[low - 1].end == first and gaps[low - 1].reason == gap.reason:
            low -= 1
            first = gaps[low].first
        if high < len(gaps) and gaps[high].first == end and gaps[high].reason == gap.reason:
            end = gaps[high].end
            high += 1
        gaps[low:high] = [gap if (first, end) == (gap.first, gap.end) else GapRange(first, end, gap.reason)]
        if gap.reason == GapReason.ABSENT:
            self._absent.add(gap.first, gap.end)

    def _touched(self, first: int, end: int) -> tuple[int, int]:
        """Return the indexes, half-open, of the gaps with numbers in ``[first, end)``."""
        gaps = self.items
        if not gaps or first >= gaps[-1].end:  # nearly always: the next numbers
            return 0, 0
        return bisect_right(gaps, first, key=_end), bisect_left(gaps, end, key=_first)

    def __iter__(self) -> Iterator[GapRange]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return self.items == other.items if isinstance(other, GapSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"GapSet({self.items!r})"


PENDING_MARKS_MAX = 16
"""Maximum number of marks that a lane keeps while their records are missing. One more replaces the mark whose
neighbours are closest together in time, so the rest remain spread over the whole backlog."""
_NEVER = -1 << 63


class RetiredBy(IntEnum):
    """Parties that end a lane. The numbers are persisted."""

    AGE = 1
    """A hub node, because the lane was not seen for long. It counts again as soon as its edge comes back."""
    OPERATOR = 2
    """A person; only a person can revert it."""


class Missing(IntEnum):
    """Statements of an operator about records of a lane that the hub never got. The numbers are persisted."""

    UNSAID = 0
    """No statement: the edge's last word counts, and without one it is unknown."""
    NOTHING = 1
    UNKNOWN = 2


class Retirement(msgspec.Struct, frozen=True, array_like=True):
    """A lane's retirement from completeness."""

    time: Nanoseconds
    """Moment by the hub's clock."""
    by: U32
    reason: str
    missing: U32 = 0
    """``Missing``."""


class RetireBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a RETIRE record."""

    by: int
    """``RetiredBy``."""
    reason: str
    missing: U32 = 0
    """``Missing``."""


class Conflict(msgspec.Struct, frozen=True, array_like=True):
    """A second node's claim to the lane's log."""

    time: Nanoseconds
    """Moment by the hub's clock."""
    epoch: Epoch
    """The refused epoch."""
    up_to: Nanoseconds | None
    """The moment that the lane claimed at that time (``LaneState.complete_up_to``); it claims no later one."""
    whole_up_to: Nanoseconds | None
    reason: str


class ConflictBody(msgspec.Struct, frozen=True, array_like=True):
    """Body of a CONFLICT record."""

    epoch: Epoch
    """The refused epoch."""
    reason: str


class LaneState(msgspec.Struct, gc=False):
    """A shard's knowledge of one lane. The fold replaces states and never changes one that it has returned."""

    epoch: int = 0
    ranges: RangeSet = msgspec.field(default_factory=RangeSet)
    """Sequence numbers that are accounted for: held records and gaps."""
    gaps: GapSet = msgspec.field(default_factory=GapSet)
    """The part of ``ranges`` that holds no records."""
    mark: Mark | None = None
    """The best proven mark: every sequence number below ``mark.seq`` is accounted for."""
    whole_mark: Mark | None = None
    """The best mark that is proven without ABSENT gaps, which another hub's records may still fill."""
    pending_marks: list[Mark] = []
    """Marks that are not proven without ABSENT gaps yet, ascending in time and in seq."""
    topics: list[str] = []
    payload: int = 0
    """Kind of the stream's payloads, as the edge last declared it (``protocols.payloads``)."""
    origins: list[Origin] = []
    """Meanings of the numbers of origins in the lane's batches, ascending."""
    partial: bool = False
    """True while the hub has received only parts of the lane: it does not count for completeness."""
    last_seen: int = 0
    """Nanoseconds since 1970 by the hub's clock: time of the last chunk with an update of the lane."""
    retired: Retirement | None = None
    """None while the lane counts for completeness."""
    conflict: Conflict | None = None
    """The oldest claim of a second node on which no operator has decided."""
    last_word: LastWord | None = None
    """The edge's statement, sent as it stopped in order, that all its records are below its ``seq``; None while
    it runs, and for an edge that never sent one."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is known of the lane but its existence."""
        return not self.ranges and self.mark is None and self.newest_mark is None

    @property
    def counts(self) -> bool:
        """Return whether the lane holds back its stream's completeness.

        An empty one does not: a thief of a token could stop a stream with a lane that is opened and left.
        """
        return self.retired is None and not self.partial and not self.is_empty

    @property
    def complete_up_to(self) -> int | None:
        """Return the moment (edge wall clock, ns) up to which the lane is complete, with named gaps; None if
        unknown."""
        if self.conflict is not None:
            # While two nodes claim the log, nothing after the conflict is certain to be of the right one.
            return self.conflict.up_to
        return self.mark.time if self.mark else None

    @property
    def whole_up_to(self) -> int | None:
        """Return the moment up to which the lane is complete when ABSENT gaps count as missing records."""
        if self.conflict is not None:
            return self.conflict.whole_up_to
        return self.whole_mark.time if self.whole_mark else None

    @property
    def newest_mark(self) -> Mark | None:
        """Return the last mark from the edge, proven or not."""
        return self.pending_marks[-1] if self.pending_marks else self.whole_mark

    @property
    def latest_claim(self) -> int:
        """Return the moment after which records contradict no proven mark (``contradicted``)."""
        mark, whole = self.mark, self.whole_mark
        latest = _NEVER if mark is None else mark.time
        return latest if whole is None or whole.time < latest else whole.time

    @property
    def records(self) -> RangeSet:
        """Return the sequence numbers whose records the shard holds: an independent set."""
        return self.ranges.minus((gap.first, gap.end) for gap in self.gaps)

    def copy(self) -> LaneState:
        """Return a state that can be changed without this one."""
        twin = self.successor()
        twin.ranges, twin.gaps = self.ranges.copy(), self.gaps.copy()
        return twin

    def successor(self) -> LaneState:
        """Return a state for ``take``. Its ranges and gaps are shared, so only ``take`` may change them."""
        return _copied(self)

    def grown(self, update: LaneUpdate, created: int) -> LaneState | None:
        """Return the state after an update that only continues the lane: a run of the next numbers, a later mark that
        they prove, or both. Nearly all updates do. None for any other, and for a lane about which more is known.

        Args:
            created: time of the chunk, never before ``last_seen``.
        """
        runs, mark, whole = update.ranges, update.mark, self.whole_mark
        if (
            len(runs) > 1
            or update.gaps
            or update.flags
            or update.origins
            or update.topics is not None
            or update.payload is not None
            or update.epoch > self.epoch
            or self.gaps.items
            or self.pending_marks
            or self.partial
            or self.last_word is not None
        ):
            return None
        ranges = self.ranges
        if runs:
            longer = ranges.continued(*runs[0])
            if longer is None:
                return None
            ranges = longer
        new = _copied(self)
        new.ranges = ranges
        if mark is not None:
            # The mark is not proven yet, or says nothing new: the long way keeps it with the pending ones.
            if mark.seq > ranges.contiguous_end() or (whole is not None and mark.time <= whole.time):
                return None
            new.whole_mark = mark
            if self.mark is None or self.mark.time <= mark.time:
                new.mark = mark
        new.last_seen = created
        return new

    def ended_in_order(self, *, peers: bool = False) -> bool:
        """Return whether the lane has a last word, and all numbers below it are accounted for.

        Args:
            peers: whether another cluster may have records that this one lacks.
        """
        word = self.last_word
        if word is None or self.conflict is not None:
            return False
        # A last word counts once everything below it is accounted for; before that its records may be on the disk that
        # was lost.
        return word.seq <= (self.whole_end() if peers else self.ranges.contiguous_end())

    def hear(self, update: LaneUpdate) -> None:
        """Apply the last word of an update. An update that shows the edge at work again removes an earlier one.

        Call it before the update changes anything else. A relay's update changes nothing: it is not from the edge.
        """
        mark, word = update.mark, self.last_word
        if update.flags & LaneFlag.LAST_WORD and (said := last_word_of(update)) is not None:
            self.last_word = said
        # A higher epoch, a later mark or a number beyond the last word shows that the edge is at work again.
        elif word is not None and (
            (update.epoch > self.epoch and not update.flags & LaneFlag.RELAY)
            or (mark is not None and mark.time > word.time)
            or any(end > word.seq for _, end in update.ranges)
            or any(gap.end > word.seq for gap in update.gaps)
        ):
            self.last_word = None

    def take(self, ranges: Sequence[Range], gaps: Sequence[GapRange], mark: Mark | None) -> Range | None:
        """Apply a chunk's additions.

        Return the first range that is in the state already; normally None. Otherwise the state must not be used.
        """
        # Copied before the first change: the previous state shares them.
        if ranges or gaps:
            self.ranges = self.ranges.copy()
        if gaps or (self.gaps and any(self.gaps.touches(first, end) for first, end in ranges)):
            self.gaps = self.gaps.copy()
        for first, end in ranges:
            if not self.lacks_records(first, end):
                return first, end
            self.add_records([(first, end)])
        for gap in gaps:
            if self.missing_gap(gap) != [(gap.first, gap.end)]:
                return gap.first, gap.end
            self.add_gaps([gap])
        if mark is not None and not self._proves_at_once(mark):
            self.add_mark(mark)
            self.prove_marks()
        elif self.pending_marks:
            self.prove_marks()
        return None

    def _proves_at_once(self, mark: Mark) -> bool:
        """Apply a mark that is newer than all others and has all its records, without a search; False if it is not such
        a mark."""
        whole = self.whole_mark
        if self.gaps or self.pending_marks or (whole is not None and mark.time <= whole.time):
            return False
        if mark.seq > self.ranges.contiguous_end():
            return False
        self.whole_mark = mark
        if self.mark is None or self.mark.time <= mark.time:
            self.mark = mark
        return True

    # -- records and gaps

    def missing_records(self, first: int, end: int) -> list[Range]:
        """Return the parts of ``[first, end)`` whose records the shard lacks, gaps included, ascending."""
        missing = self.ranges.missing(first, end)
        if not self.gaps or not (gaps := self.gaps.within(first, end)):
            return missing
        # Numbers in a gap are taken as records: a notice of one sender does not make a number final, since another may
        # have it.
        return list(RangeSet(sorted([*missing, *gaps])))

    def lacks_records(self, first: int, end: int) -> bool:
        """Return whether the shard has none of the records ``[first, end)``."""
        if first >= self.ranges.end and not self.gaps.items:  # nearly always: what comes next
            return True
        return self.missing_records(first, end) == [(first, end)]

    def missing_gap(self, gap: GapRange) -> list[Range]:
        """Return the new parts of a gap: numbers that are unknown, or ABSENT until now."""
        missing = self.ranges.missing(gap.first, gap.end)
        # An ABSENT gap overrides nothing: an edge with two hubs tells one of them ABSENT for what it released because
        # the other has it. Any other reason also replaces ABSENT.
        if gap.reason == GapReason.ABSENT or not (absent := self.gaps.absent_within(gap.first, gap.end)):
            return missing
        return list(RangeSet(sorted([*missing, *absent])))

    def accounts_for(self, gap: GapRange) -> bool:
        """Return whether a gap has no new part."""
        return not self.missing_gap(gap)

    def holds(self, first: int, end: int) -> bool:
        """Return whether the shard has the records ``[first, end)``."""
        return self.ranges.covers(first, end) and not (self.gaps.items and self.gaps.touches(first, end))

    def splits(self, first: int, end: int) -> bool:
        """Return whether records ``[first, end)`` would split one gap into two."""
        return self.gaps.surrounds(first, end)

    def add_records(self, ranges: Iterable[Range]) -> None:
        """Add records; they close the gaps in their ranges."""
        for first, end in ranges:
            self.ranges.add(first, end)
            if self.gaps:
                self.gaps.remove(first, end)

    def add_gaps(self, gaps: Iterable[GapRange]) -> None:
        """Add gaps; every part of them must be new (``missing_gap``)."""
        for gap in gaps:
            self.ranges.add(gap.first, gap.end)
            self.gaps.put(gap)

    # -- marks

    def contradicted(self, time: int, end: int) -> Mark | None:
        """Return the proven mark that records with numbers below ``end`` and times from ``time`` on may contradict.

        They do so if a number is not below the mark's but its time is. An unproven mark claims nothing yet: the records
        are in the state before it does.
        """
        mark, whole = self.mark, self.whole_mark
        if (mark is None or time > mark.time) and (whole is None or time > whole.time):
            return None  # nearly always: records are newer than the lane's claim
        marks = [known for known in (mark, whole) if known is not None]
        # Only proven marks: an unproven one has claimed nothing yet, and a record before it is no contradiction.
        return max((m for m in marks if time <= m.time and m.seq < end), key=lambda m: m.time, default=None)

    def add_mark(self, mark: Mark) -> None:
        """Note a mark; one that adds nothing to a known one changes nothing."""
        if self.whole_mark is not None and mark.time <= self.whole_mark.time:
            return
        # A known mark claims a later moment and needs no more records, so this one adds nothing.
        if any(other.time >= mark.time and other.seq <= mark.seq for other in self.pending_marks):
            return
        kept = [other for other in self.pending_marks if other.time > mark.time or other.seq < mark.seq]
        self.pending_marks = sorted([*kept, mark], key=lambda other: other.time)
        if len(self.pending_marks) > PENDING_MARKS_MAX:
            # The first and the last are never replaced: they bound the backlog.
            marks = self.pending_marks
            del marks[min(range(1, len(marks) - 1), key=lambda i: marks[i + 1].time - marks[i - 1].time)]

    def whole_end(self) -> int:
        """Return the number below which every number is accounted for, with ABSENT gaps counted as missing records."""
        accounted = self.ranges.contiguous_end()
        absent = self.gaps.first_absent()
        # ABSENT says only that this sender lacks the records. For a hub with peers they are still missing.
        return accounted if absent is None else min(accounted, absent)

    def prove_marks(self) -> None:
        """Raise the proven marks as far as records and gaps allow."""
        if not self.pending_marks or self.pending_marks[0].seq > self.ranges.contiguous_end():
            return
        whole = self.whole_end()
        self.mark = _best(self.mark, self.pending_marks, self.ranges.contiguous_end())
        self.whole_mark = _best(self.whole_mark, self.pending_marks, whole)
        self.pending_marks = [mark for mark in self.pending_marks if mark.seq > whole]

    # -- origins

    def new_origins(self, offered: Iterable[Origin]) -> list[Origin]:
        """Return the origins that are new to the lane and would be kept."""
        known = by_number(self.origins)
        after = known | by_number(offered)
        return [after[number] for number in sorted(after)[-ORIGINS_MAX:] if known.get(number) != after[number]]

    def add_origins(self, origins: Iterable[Origin]) -> None:
        """Add origins by their numbers; the latest definition of a number counts."""
        declared = by_number(origins)
        known = by_number(self.origins)
        if any(known.get(number) != origin for number, origin in declared.items()):  # else keep the same list
            known |= declared
            self.origins = [known[number] for number in sorted(known)[-ORIGINS_MAX:]]


_copied: Callable[[LaneState], LaneState] = cast("Any", LaneState).__copy__
"""Spelt so, since `copy.copy` takes several times as long, and each chunk copies every lane that it updates."""
NOTHING = LaneState()
"""State of an unknown lane."""


def _best(known: Mark | None, pending: list[Mark], end: int) -> Mark | None:
    """Return the latest mark that is proven by the numbers below ``end``."""
    proven = [mark for mark in pending if mark.seq <= end]
    return max([*proven, *([known] if known else [])], key=lambda mark: mark.time, default=None)


def last_word_of(update: LaneUpdate) -> LastWord | None:
    """Return the last word of an update, if it is one of the edge itself."""
    mark, flags = update.mark, update.flags
    # A relay repeats what it heard, perhaps long ago. Only the edge itself can say that it stops.
    if mark is None or not flags & LaneFlag.LAST_WORD or flags & LaneFlag.RELAY:
        return None
    return LastWord(mark.time, mark.seq, update.renamed_to)


def lane_of(update: LaneUpdate | Control) -> Lane:
    """Return the lane of a chunk's footer entry."""
    return tuple.__new__(Lane, (update.tenant, update.edge, update.log_id, update.stream))  # as Lane(...), and faster


def earliest(moments: Iterable[int | None]) -> int | None:
    """Return the smallest of several moments, or None when one is unknown or there are none."""
    known = list(moments)
    return None if not known or None in known else min(moment for moment in known if moment is not None)


# Open gaps: losses of unknown number. A lane that ended without a last word has one.
#
# The hub cannot know the records that an edge received behind a cut link before its disk was lost. It knows that the
# lane ended, and that the edge never reported its last record: from the next number on, from the lane's last mark to
# its retirement, records may be missing. The gap is derived from the lane's state, so it closes by itself when the
# disk is back and has delivered its records. The gap of a lane that leaves the state remains with its stream, and so
# does that of a second node of the lane's log after an operator has rejected it.

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
                f"a second node had the log until an operator decided{others}; records that it received and never "
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
        # The nearest two become one, which speaks of more time and never of less.
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


def gaps_in_order(gaps: Iterable[OpenGap]) -> list[OpenGap]:
    """Return the open gaps of a stream in the order in which a state keeps them."""
    return sorted(gaps, key=_order)


def _is_like(one: OpenGap, other: OpenGap) -> bool:
    return one.log_id == other.log_id and one.edge == other.edge and one.forked == other.forked and not one.others


def _order(gap: OpenGap) -> tuple[int, str, int]:
    return gap.until, gap.edge, gap.log_id


def _joined(earlier: OpenGap, later: OpenGap) -> OpenGap:
    # None means "from the beginning", and the join must not say less.
    since = None if earlier.since is None or later.since is None else min(earlier.since, later.since)
    others = earlier.others + later.others + 1
    return OpenGap(later.edge, later.log_id, later.first, since, later.until, others, later.forked)


def renamed(lanes: Mapping[Lane, LaneState], *, peers: bool = False) -> set[Lane]:
    """Return the lanes of a stream that ended by a rename: they hold nothing back and lack nothing.

    Both names must show it: the former one by a last word that names the new one, and that one, of the same log, by the
    gap at its beginning. Otherwise an edge could remove another one, which is only stopped or cut off, from
    completeness.

    Args:
        lanes: at least the lanes of a stream with a last word, and those that the words name.
        peers: whether another cluster may have records that this one lacks.
    """
    return {
        lane
        for lane, held in lanes.items()
        # The gap alone could be stated by any edge of the tenant: each reader of its lanes sees the log's id. The lane
        # is looked up by the name in the word: a tenant may have very many lanes of one log.
        if (named := new_name(lane, held)) is not None
        and (other := lanes.get(named)) is not None
        and held.ended_in_order(peers=peers)
        and follows(named.edge, other.epoch, begins_at(other.gaps), held)
    }


def new_name(lane: Lane, held: LaneState) -> Lane | None:
    """Return the lane under the name that a lane's last word gives to the log; None without one."""
    word = held.last_word
    return None if word is None or not word.renamed_to else lane._replace(edge=word.renamed_to)


def follows(edge: str, epoch: int, begin: int, former: LaneState) -> bool:
    """Return whether a lane of the same log and stream continues one that ended with a last word.

    Args:
        begin: number at which it begins under its name.
    """
    word = former.last_word
    return word is not None and word.renamed_to == edge != "" and epoch > former.epoch and begin == word.seq


def begins_at(gaps: Iterable[GapRange]) -> int:
    """Return the number at which a lane begins under its name."""
    first = next(iter(gaps), None)
    return 0 if first is None or first.first or first.reason != GapReason.RENAMED else first.end
