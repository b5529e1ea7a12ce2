"""A lane that ends without a last word is an open gap: unknown, never nothing. One that ends with it leaves none."""

from __future__ import annotations

from typing import NamedTuple
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.protocols.shard.test_fold import add, control, state
from tests.protocols.shard.test_shard_state import LANE, update
from weft.protocols.chunk_index import Control, ControlKind, GapRange, LaneFlag, LaneUpdate, LastWord, Mark
from weft.protocols.lane import Lane
from weft.protocols.segment import GapReason
from weft.protocols.shard import lane_state
from weft.protocols.shard import snapshot as snapshots
from weft.protocols.shard.completeness import OPEN_GAPS_MAX, completeness
from weft.protocols.shard.lane_state import (
    KEPT_MAX,
    ConflictBody,
    LaneState,
    Missing,
    OpenGap,
    RetireBody,
    RetiredBy,
    open_gap,
    renamed,
    with_gap,
)
from weft.protocols.shard.shard_state import ShardState

STREAM = LANE.tenant, LANE.stream


def retire(by: RetiredBy = RetiredBy.OPERATOR, missing: int = 0) -> Control:
    return control(ControlKind.RETIRE, msgspec.msgpack.encode(RetireBody(by, "gone", missing)))


def last_word(seq: int, time: int, epoch: int = 1, lane: Lane = LANE, renamed_to: str = "") -> LaneUpdate:
    word = update(lane, mark=Mark(time, seq), epoch=epoch)
    return msgspec.structs.replace(word, flags=int(LaneFlag.LAST_WORD), renamed_to=renamed_to)


def at(held: ShardState, time: int, *updates: LaneUpdate, controls: tuple[Control, ...] = ()) -> ShardState:
    """Apply a chunk that the hub made at a moment."""
    held.created = time
    return add(held, *updates, controls=list(controls))


def gap_of(held: ShardState) -> OpenGap | None:
    return open_gap(LANE, held.lanes[LANE])


@pytest.mark.parametrize("by", list(RetiredBy))
def test_a_lane_that_ends_without_a_last_word_has_an_open_gap(by: RetiredBy) -> None:
    held = at(state(), 150, update(ranges=[(0, 200)], mark=Mark(100, 200)))
    at(held, 500, controls=(retire(by),))
    assert gap_of(held) == OpenGap(LANE.edge, LANE.log_id, 200, 100, 500)
    answer = completeness(held.lanes, (), 600)
    assert answer.open_gaps == [gap_of(held)]
    assert gap_of(ShardState.decode(held.encode())) == gap_of(held)


def test_a_lane_retired_by_an_earlier_release_has_one() -> None:
    """Its state does not say whether there was a last word."""
    held = at(state(), 150, update(ranges=[(0, 9)], mark=Mark(100, 9)))
    at(held, 500, controls=(control(ControlKind.RETIRE, msgspec.msgpack.encode([2, "gone"])),))
    [(name, found)] = snapshots.decode(held.encode()).lanes
    lane = msgspec.structs.replace(found, tenant=name.tenant, stream=name.stream)
    reported = list(msgspec.to_builtins(lane))
    reported[-3] = reported[-3][:3]  # as it stood: neither what is missing nor a last word
    kept = snapshots.lane_state(snapshots.decode_lane(msgspec.msgpack.encode(reported[:-1])))
    assert open_gap(LANE, kept) == OpenGap(LANE.edge, LANE.log_id, 9, 100, 500)


def test_a_lane_that_stopped_in_order_leaves_none_and_lacks_nothing() -> None:
    held = at(state(), 150, update(ranges=[(0, 9)], mark=Mark(100, 9)))
    at(held, 200, last_word(9, 190))
    assert ShardState.decode(held.encode()).lanes[LANE].last_word == LastWord(190, 9)
    at(held, 500, controls=(retire(),))
    assert gap_of(held) is None
    at(held, 800, controls=(retire(missing=Missing.UNKNOWN),))
    assert gap_of(held) == OpenGap(LANE.edge, LANE.log_id, 9, 190, 500), "it ran again, without its link"


def test_records_that_another_cluster_may_have_are_no_part_of_an_end_in_order() -> None:
    """With ``peers`` they are missing until it has brought them, whatever the edge's last word was."""
    held = at(state(), 150, update(ranges=[(0, 3), (5, 9)], gaps=[GapRange(3, 5, GapReason.ABSENT)], mark=Mark(100, 9)))
    at(held, 200, last_word(9, 190, renamed_to="new"))
    new = LANE._replace(edge="new")
    begins = [GapRange(0, 9, GapReason.RENAMED)]
    at(held, 300, update(new, gaps=begins, mark=Mark(290, 9), epoch=2))
    assert renamed(held.lanes) == {LANE}
    assert renamed(held.lanes, peers=True) == set()
    assert completeness(held.lanes, (), 600, peers=True).complete_up_to is None
    at(held, 500, controls=(retire(),))
    assert open_gap(LANE, held.lanes[LANE]) is None
    assert open_gap(LANE, held.lanes[LANE], peers=True) == OpenGap(LANE.edge, LANE.log_id, 3, None, 500)
    at(held, 550, update(ranges=[(3, 5)]))
    assert renamed(held.lanes, peers=True) == {LANE}
    assert open_gap(LANE, held.lanes[LANE], peers=True) is None


@pytest.mark.parametrize(
    "then", [update(epoch=2), update(ranges=[(9, 10)]), update(gaps=[GapRange(9, 10, 1)]), update(mark=Mark(195, 9))]
)
def test_an_edge_that_is_at_work_again_takes_its_last_word_back(then: LaneUpdate) -> None:
    held = at(state(), 150, update(ranges=[(0, 9)], mark=Mark(100, 9)), last_word(9, 190))
    at(held, 300, then)
    at(held, 500, controls=(retire(),))
    assert gap_of(held) is not None


def test_a_last_word_counts_only_with_all_that_it_speaks_of() -> None:
    held = at(state(), 150, update(ranges=[(0, 9)], mark=Mark(100, 9)), last_word(12, 190))
    at(held, 500, controls=(retire(RetiredBy.AGE),))
    assert gap_of(held) == OpenGap(LANE.edge, LANE.log_id, 9, 100, 500)
    at(held, 600, update(ranges=[(9, 11)], gaps=[GapRange(11, 12, 1)]))
    assert gap_of(held) is None


def test_a_relay_has_no_say_about_last_words() -> None:
    relayed = msgspec.structs.replace(last_word(9, 190), flags=int(LaneFlag.LAST_WORD | LaneFlag.RELAY))
    held = at(state(), 150, update(ranges=[(0, 9)], mark=Mark(100, 9)), relayed)
    assert held.lanes[LANE].last_word is None
    at(held, 160, last_word(9, 200), update(epoch=9))
    assert held.lanes[LANE].last_word is None


def test_an_operator_who_knows_that_nothing_is_missing_closes_it() -> None:
    held = at(state(), 150, update(ranges=[(0, 9)], mark=Mark(100, 9)))
    at(held, 500, controls=(retire(),))
    at(held, 900, controls=(retire(missing=Missing.NOTHING),))
    assert gap_of(held) is None
    retired = held.lanes[LANE].retired
    assert retired is not None
    assert retired.time == 500


def test_a_disk_that_comes_back_closes_it() -> None:
    held = at(state(), 150, update(ranges=[(0, 200)], mark=Mark(100, 200)))
    at(held, 500, controls=(retire(),))
    at(held, 700, update(ranges=[(200, 250)], mark=Mark(300, 250), epoch=2))
    assert gap_of(held) == OpenGap(LANE.edge, LANE.log_id, 250, 300, 500), "it has not delivered all yet"
    at(held, 710, update(ranges=[(250, 300)], mark=Mark(705, 300), epoch=2))
    assert gap_of(held) is None
    at(held, 800, controls=(retire(RetiredBy.AGE),))
    at(held, 900, controls=(control(ControlKind.ADOPT),))
    assert gap_of(held) is None, "it counts again, and holds completeness back instead"
    assert completeness(held.lanes, (), 901).complete_up_to == 0


def test_a_lane_that_leaves_the_state_leaves_its_open_gap_with_the_stream() -> None:
    held = at(state(), 150, update(ranges=[(0, 200)], mark=Mark(100, 200)))
    at(held, 500, controls=(retire(RetiredBy.AGE),))
    kept = snapshots.encode_lane(snapshots.lane_snapshot(LANE, held.lanes[LANE]))
    at(held, 600, controls=(control(ControlKind.DROP),))
    [gap] = held.open_gaps[STREAM]
    assert gap == OpenGap(LANE.edge, LANE.log_id, 200, 100, 500)
    again = ShardState.decode(held.encode())
    assert (again.open_gaps, again.encode()) == (held.open_gaps, held.encode())
    assert completeness({}, (), 700, left=again.open_gaps[STREAM]).open_gaps == [gap]
    at(held, 800, controls=(control(ControlKind.ADOPT, kept),))
    assert held.open_gaps[STREAM] == []
    assert held.encode() == ShardState.decode(held.encode()).encode()


def conflict(epoch: int = 1) -> Control:
    return control(ControlKind.CONFLICT, msgspec.msgpack.encode(ConflictBody(epoch, "a second node")))


def test_a_node_that_an_operator_decides_against_leaves_one() -> None:
    held = at(state(), 150, update(ranges=[(0, 9)], mark=Mark(100, 9)))
    at(held, 300, controls=(conflict(),))
    at(held, 400, update(ranges=[(9, 12)], mark=Mark(390, 12)))
    at(held, 500, controls=(control(ControlKind.ADOPT),))
    [gap] = held.open_gaps[STREAM]
    assert (gap.since, gap.until, gap.forked) == (100, 500, True)
    assert "a second node had the log" in gap.why
    at(held, 600, update(epoch=2))
    at(held, 650, controls=(conflict(2),))
    at(held, 700, controls=(control(ControlKind.ADOPT),))
    [gap] = held.open_gaps[STREAM]
    assert (gap.since, gap.until) == (100, 700)
    at(held, 800, controls=(retire(), control(ControlKind.DROP)))
    assert [each.forked for each in held.open_gaps[STREAM]] == [True, False]
    assert ShardState.decode(held.encode()).open_gaps == held.open_gaps


def test_an_operator_who_knows_that_the_other_node_had_nothing_closes_it() -> None:
    held = at(state(), 150, update(ranges=[(0, 9)], mark=Mark(100, 9)))
    at(held, 300, controls=(conflict(),))
    controls = control(ControlKind.ADOPT), retire(missing=Missing.NOTHING), control(ControlKind.ADOPT)
    at(held, 500, controls=controls)
    assert held.open_gaps.get(STREAM, []) == []
    assert held.lanes[LANE].counts


def test_open_gaps_are_bounded_and_speak_of_no_less_time() -> None:
    kept: list[OpenGap] = []
    for number in range(KEPT_MAX + 40):
        kept = with_gap(kept, OpenGap(f"e{number}", 1, number, 10 * number, 10 * number + 5))
    assert len(kept) == KEPT_MAX
    assert sum(gap.others + 1 for gap in kept) == KEPT_MAX + 40
    for number in range(KEPT_MAX + 40):
        assert any((gap.since or 0) <= 10 * number and gap.until >= 10 * number + 5 for gap in kept)
    lanes = {LANE._replace(log_id=n): LaneState() for n in range(OPEN_GAPS_MAX + 7)}
    held = at(state(), 1, *(update(lane, ranges=[(0, 1)], mark=Mark(1, 1)) for lane in lanes))
    body = msgspec.msgpack.encode(RetireBody(RetiredBy.AGE, "gone"))
    at(held, 5000, controls=tuple(Control(ControlKind.RETIRE, *lane, body) for lane in lanes))
    answer = completeness(held.lanes, (), 6000)
    assert (len(answer.open_gaps), answer.open_gaps_more) == (OPEN_GAPS_MAX, 7)


def test_neighbours_that_end_closest_to_each_other_are_joined_wherever_they_are() -> None:
    for at in (0, 100, KEPT_MAX - 1):
        ends = [10_000 * number for number in range(1, KEPT_MAX + 2)]
        ends[at + 1 :] = [end - 9_000 for end in ends[at + 1 :]]
        kept: list[OpenGap] = []
        for number, end in enumerate(ends):
            kept = with_gap(kept, OpenGap(f"e{number}", 1, number, end - 5, end))
        assert [gap.until for gap in kept] == [*ends[:at], *ends[at + 1 :]]
        assert (kept[at].others, kept[at].since) == (1, ends[at] - 5)


def test_lanes_that_count_for_nothing_have_none() -> None:
    parts = msgspec.structs.replace(update(ranges=[(0, 9)]), flags=int(LaneFlag.PARTIAL))
    for held in (at(state(), 5, update()), at(state(), 5, parts)):
        at(held, 9000, controls=(retire(),))
        assert gap_of(held) is None


# -- a rename

NEW = LANE._replace(edge="edge-2")


def begins(seq: int, epoch: int = 2, lane: Lane = NEW) -> LaneUpdate:
    gaps = [GapRange(0, seq, int(GapReason.RENAMED))] if seq else []
    return update(lane, gaps=gaps, mark=Mark(300, seq), epoch=epoch)


@pytest.mark.parametrize("seq", [0, 9])
def test_a_rename_ends_the_former_name_by_both_words(seq: int) -> None:
    ranges = [(0, seq)] if seq else []
    held = at(state(), 150, update(ranges=ranges, mark=Mark(100, seq)), last_word(seq, 190, renamed_to=NEW.edge))
    assert renamed(held.lanes) == set()
    [waits] = completeness(held.lanes, (), 10**12).held_back_by
    assert waits.why.endswith(f"continues as {NEW.edge}, which has not come yet")
    at(held, 310, begins(seq))
    assert renamed(held.lanes) == {LANE}
    answer = completeness(held.lanes, (LANE.edge,), 10**12)
    # A lane without a record whose mark is of 1970 has not started, and so has no moment.
    moment = 0 if seq else None
    assert (answer.covers, answer.complete_up_to) == ([NEW], moment), "an edge expected under its former name spoke"
    at(held, 320, begins(seq + 5, epoch=3, lane=NEW._replace(edge="edge-3")))
    assert renamed(held.lanes) == {LANE}, "the second one has said no last word"


def test_each_lane_of_a_log_with_many_names_is_compared_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges choose the ids of their logs: a tenant may have very many lanes of one, and this is a step of a hub."""
    held, compared = state(), Mock(wraps=lane_state.follows)
    lanes = [LANE._replace(edge=f"edge-{n}") for n in range(50)]
    for lane, to in zip(lanes, [*lanes[1:], LANE], strict=True):
        at(held, 150, update(lane, ranges=[(0, 9)]), last_word(9, 190, lane=lane, renamed_to=to.edge))
    monkeypatch.setattr(lane_state, "follows", compared)
    assert renamed(held.lanes) == set()
    assert compared.call_count <= len(lanes)


@pytest.mark.parametrize(
    ("records", "word"),
    [
        (9, None),
        (9, last_word(9, 190)),  # it only stopped, and will be back
        (9, last_word(9, 190, renamed_to="edge-3")),  # another took the name of what is still to come
        (9, last_word(12, 190, renamed_to=NEW.edge)),  # the rest is still to come
        (9, last_word(9, 190, epoch=2, renamed_to=NEW.edge)),  # the other name is the earlier one
        (8, last_word(8, 190, renamed_to=NEW.edge)),  # the other name begins elsewhere
    ],
)
def test_another_edge_cannot_take_a_lane_out_that_is_stopped_or_cut_off(records: int, word: LaneUpdate | None) -> None:
    held = at(state(), 150, update(ranges=[(0, records)], mark=Mark(100, records)), *([word] if word else []))
    at(held, 310, begins(9))
    assert renamed(held.lanes) == set()


# -- the whole life of a node, against what it really had


class Forged(NamedTuple):
    """What another edge of the tenant says in a lane of its own name, of any log."""

    log_id: int
    reason: GapReason | None
    """That of a gap from 0 on; None for records."""
    beyond: int
    """Its end, from the end of the node's records on."""
    flags: int
    renamed_to: str


FORGED = st.builds(
    Forged,
    st.sampled_from([LANE.log_id, LANE.log_id, 77]),
    st.sampled_from([GapReason.RENAMED, GapReason.RENAMED, None, *GapReason]),
    st.sampled_from([0, 0, 1]),
    st.integers(0, 7),
    st.sampled_from(["", LANE.edge, "forger", NEW.edge]),
)
STEPS = st.lists(
    st.sampled_from(
        [
            "take",
            "take",
            "deliver",
            "mark",
            "stop",
            "leave",
            "start",
            "cut",
            "link",
            "lose",
            "retire",
            "age",
            "adopt",
            "drop",
        ]
    )
    | FORGED,
    max_size=30,
)


class LostNode:
    """An edge with its disk, and the shard that it links to."""

    def __init__(self) -> None:
        self.shard, self.now, self.epoch = state(), 1000, 1
        self.taken: list[int] = []
        """Time of each record that was acknowledged to devices."""
        self.linked = self.runs = self.exists = True
        self.trusted = True
        """False once the node took something in without a link after a last word: no hub can know that."""
        self.kept: bytes | None = None
        self.fold(update(epoch=1))

    @property
    def held(self) -> LaneState | None:
        return self.shard.lanes.get(LANE)

    def fold(self, *updates: LaneUpdate, controls: tuple[Control, ...] = ()) -> None:
        if self.held is None and updates and self.kept is not None:
            controls = (*controls, control(ControlKind.ADOPT, self.kept))
        at(self.shard, self.now, *updates, controls=controls)

    @property
    def known(self) -> LaneState:
        """All that is kept of the lane, in the state or beside it."""
        if self.held is not None or self.kept is None:
            return self.held or LaneState()
        return snapshots.lane_state(snapshots.decode_lane(self.kept))

    @property
    def speaks(self) -> bool:
        return self.exists and self.runs and self.linked

    def forge(self, said: Forged) -> None:
        self.now += 10
        lane, end = LANE._replace(edge="forger", log_id=said.log_id), len(self.taken) + said.beyond
        held = self.shard.lanes.get(lane, LaneState())
        if said.reason is None:
            word = update(lane, held.missing_records(0, end), mark=Mark(self.now, end), epoch=self.now)
        else:
            parts = held.missing_gap(GapRange(0, end, said.reason)) if end else []
            gaps = [GapRange(*part, said.reason) for part in parts]
            word = update(lane, gaps=gaps, mark=Mark(self.now, end), epoch=self.now)
        at(self.shard, self.now, msgspec.structs.replace(word, flags=said.flags, renamed_to=said.renamed_to))

    def step(self, what: str | Forged) -> None:
        if isinstance(what, Forged):
            self.forge(what)
            return
        self.now += 10
        if what == "take" and self.exists and self.runs:
            self.taken.append(self.now)
            self.trusted &= self.linked or self.held is None or self.held.last_word is None
        elif what in ("deliver", "mark") and self.speaks:
            if self.held is None:
                self.fold(update(epoch=self.epoch))
            assert self.held is not None
            mark = Mark(self.now, len(self.taken)) if what == "mark" else None
            self.fold(update(ranges=self.held.missing_records(0, len(self.taken)), mark=mark, epoch=self.epoch))
        elif what in ("stop", "leave") and self.exists and self.runs:
            if self.linked and self.held is not None:
                # One that leaves is renamed: its disk says no more under this name.
                renamed_to = NEW.edge if what == "leave" else ""
                self.fold(last_word(len(self.taken), self.now, self.epoch, renamed_to=renamed_to))
                self.exists = what == "stop"
            self.runs = False
        elif what in ("start", "link", "cut") and self.exists:
            self.runs |= what == "start"
            self.linked = {"link": True, "cut": False}.get(what, self.linked)
            if self.speaks and what != "cut":
                self.epoch += 1
                self.fold(update(epoch=self.epoch), controls=self._back())
        elif what == "lose":
            self.exists = False
        elif what in ("retire", "age") and self.held is not None:
            self.fold(controls=(retire(RetiredBy.AGE if what == "age" else RetiredBy.OPERATOR),))
        elif what == "adopt" and self.held is not None:
            self.fold(controls=(control(ControlKind.ADOPT),))
        elif what == "drop" and self.held is not None and self.held.retired is not None and not self.speaks:
            self.kept = snapshots.encode_lane(snapshots.lane_snapshot(LANE, self.held))
            self.fold(controls=(control(ControlKind.DROP),))

    def _back(self) -> tuple[Control, ...]:
        aged = self.held is not None and self.held.retired is not None and self.held.retired.by == RetiredBy.AGE
        return (control(ControlKind.ADOPT),) if aged else ()

    def claims(self, time: int) -> bool:
        """Whether the hub says that all that was taken in at a moment is there."""
        answer = completeness(self.shard.lanes, (), self.now, left=self.shard.open_gaps.get(STREAM, ()))
        if any((gap.since is None or gap.since <= time) and time <= gap.until for gap in answer.open_gaps):
            return False
        retired = self.known.retired
        if retired is not None:  # nothing holds the stream back any more, and of what came later no lane speaks
            return time <= retired.time
        moments = self.known.complete_up_to, answer.complete_up_to
        return any(moment is not None and time <= moment for moment in moments)


@given(STEPS)
@example(["take", "stop", "retire", "drop", "start"])  # an open gap that is closed again
# A stopped edge that is back while another one claims to be its new name.
@example(
    [
        "take",
        "deliver",
        "mark",
        "stop",
        Forged(LANE.log_id, GapReason.RENAMED, 0, 0, ""),
        "cut",
        "start",
        "take",
        Forged(LANE.log_id, GapReason.RENAMED, 1, 0, ""),
    ]
)
def test_no_hub_claims_what_a_lost_disk_took_with_it(steps: list[str | Forged]) -> None:
    node = LostNode()
    for what in steps:
        node.step(what)
        has = node.known.records.count()
        for seq, time in enumerate(node.taken):
            if seq >= has and node.trusted and not node.known.is_empty:
                assert not node.claims(time), (seq, time)
        assert ShardState.decode(node.shard.encode()).encode() == node.shard.encode()
        others = {lane: held for lane, held in node.shard.lanes.items() if lane == LANE}
        said, true = (completeness(lanes, (LANE.edge,), node.now) for lanes in (node.shard.lanes, others))
        assert [lane for lane in said.covers if lane == LANE] == true.covers
        assert [gap for gap in said.open_gaps if gap.edge == LANE.edge] == true.open_gaps
        if true.covers and said.complete_up_to is not None:
            assert said.complete_up_to <= (true.complete_up_to or 0)
