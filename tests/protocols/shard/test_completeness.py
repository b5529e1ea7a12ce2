"""Completeness speaks of the lanes that it names, waits for expected edges, and says what holds it back."""

from __future__ import annotations

import msgspec
import pytest

from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    Chunk,
    ChunkHeader,
    Control,
    ControlKind,
    GapRange,
    LaneUpdate,
    LastWord,
    Mark,
    StreamBlock,
    index_of,
)
from weft.protocols.lane import Lane, matches
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.completeness import (
    HELD_BACK_MAX,
    SILENT_NS,
    UNREADABLE,
    LostRecords,
    Reason,
    Severity,
    Tally,
    completeness,
    severity,
)
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import Conflict, ConflictBody, LaneState, RetireBody, RetiredBy
from weft.protocols.shard.shard_state import ShardState

US = 1000
T = 1_700_000_000 * 10**9
NOW = T + 10**9
CLUSTER = b"c" * 16


def lane(edge: str, log_id: int = 1) -> Lane:
    return Lane("default", edge, log_id, "telemetry")


def held(seq: int, mark: Mark | None, *, gaps: tuple[GapRange, ...] = ()) -> LaneState:
    state = LaneState(ranges=RangeSet([(0, seq)]))
    state.add_gaps(gaps)
    if mark is not None:
        state.add_mark(mark)
    state.prove_marks()
    return state


def reasons(lanes: dict[Lane, LaneState], *expected: str, **more: object) -> list[tuple[str, str]]:
    answer = completeness(lanes, expected, NOW, **more)  # type: ignore[arg-type]
    return [(each.edge, each.reason.value) for each in answer.held_back_by]


class Log:
    """A shard's log, folded."""

    def __init__(self) -> None:
        self.state = ShardState(CLUSTER, 0)

    def chunk(self, *updates: LaneUpdate, controls: tuple[Control, ...] = ()) -> None:
        n = self.state.n + 1
        header = ChunkHeader(CLUSTER, n, T + n, 0, self.state.footer_crc, 0)
        index = index_of(header, FIRST_LEVEL, [], StreamBlock(list(updates), list(controls), []))
        apply(self.state, Chunk(header, index, n + 1))

    def mark(self, of: Lane, time: int, *, epoch: int = 1) -> None:
        self.chunk(LaneUpdate(*of, epoch, [], [], Mark(time, 0), None))

    def control(self, kind: ControlKind, of: Lane, body: object = None) -> None:
        self.chunk(controls=(Control(kind, *of, b"" if body is None else msgspec.msgpack.encode(body)),))

    def again(self) -> ShardState:
        """The state, as a node that starts from a snapshot has it."""
        return ShardState.decode(self.state.encode())


def test_a_stream_is_complete_up_to_the_earliest_of_the_lanes_that_it_names() -> None:
    lanes = {lane("b"): held(5, Mark(T + 9, 5)), lane("a"): held(3, Mark(T - 7_001, 3))}
    answer = completeness(lanes, (), NOW)
    assert answer.complete_up_to == T - 8_000  # whole microseconds, as the rows have them
    assert answer.covers == [lane("a"), lane("b")]
    assert answer.held_back_by == []


def test_a_lane_of_which_nothing_was_said_holds_nothing_back() -> None:
    lanes = {lane("a"): held(5, Mark(T, 5)), lane("b"): LaneState(epoch=3)}
    assert completeness(lanes, (), NOW).complete_up_to == T // 1000 * 1000
    assert completeness(lanes, (), NOW).covers == [lane("a")]
    assert completeness(lanes, ("b",), NOW).complete_up_to is None, "an edge that is expected is waited for"


def test_no_lane_is_no_claim() -> None:
    assert completeness({}, (), NOW).complete_up_to is None


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (held(3, None), Reason.NO_MARK),
        (held(3, Mark(T, 5)), Reason.HOLE),
        (held(3, Mark(NOW - SILENT_NS, 3)), Reason.SILENT),
    ],
)
def test_what_holds_a_lane_back_is_said(state: LaneState, reason: Reason) -> None:
    answer = completeness({lane("press-1"): state}, (), NOW)
    [reported] = answer.held_back_by
    assert (reported.edge, reported.log_id, reported.reason) == ("press-1", 1, reason)
    assert reported.why
    assert reported.advice


@pytest.mark.parametrize(
    ("records", "word", "why", "advice"),
    [
        (3, None, "the edge has been silent for 4 min", "restore its link"),
        (3, 5, "the edge has been silent for 4 min", "`weft hub retire hub.yaml press-1 --reason REASON`"),
        (3, 3, "stopped in order, with everything delivered", "start it again; if it is out of service"),
        (0, 0, "stopped in order, and has never sent a record of this stream", "`retired_after` ends the lane"),
    ],
)
def test_a_silent_edge_is_told_by_how_it_fell_silent(records: int, word: int | None, why: str, advice: str) -> None:
    state = LaneState() if not records else held(records, None)
    state.add_mark(Mark(NOW - SILENT_NS, records))
    state.prove_marks()
    state.last_word = None if word is None else LastWord(NOW - SILENT_NS, word)
    [reported] = completeness({lane("press-1"): state}, (), NOW).held_back_by
    assert (reported.reason, reported.why.endswith(why), advice in reported.advice) == (Reason.SILENT, True, True)
    assert ("link" in reported.advice) is (word != records), "a link is nothing to restore of an edge that was stopped"


def test_a_clock_that_was_set_back_is_named_with_how_far() -> None:
    lanes = {lane("press-1"): held(3, Mark(T, 3))}
    [reported] = completeness(
        lanes, (), NOW, behind=lambda of: 90 * 10**9 if of == lane("press-1") else None
    ).held_back_by
    assert reported.reason is Reason.CLOCK
    assert "90 s before" in reported.why


def test_what_a_time_service_takes_back_within_a_millisecond_is_no_clock_that_was_set() -> None:
    lanes = {lane("press-1"): held(3, Mark(T, 3))}
    assert completeness(lanes, (), NOW, behind=lambda _: 10**6 - 1).held_back_by == []
    [reported] = completeness(lanes, (), NOW, behind=lambda _: 10**6).held_back_by
    assert reported.reason is Reason.CLOCK
    lanes = {lane("press-1"): held(3, Mark(NOW - SILENT_NS, 3))}
    [reported] = completeness(lanes, (), NOW, behind=lambda _: 800).held_back_by
    assert reported.reason is Reason.SILENT, "another reason counts"


def test_records_that_another_hub_may_have_hold_back_where_there_are_other_hubs() -> None:
    lanes = {lane("a"): held(5, Mark(T, 5), gaps=(GapRange(5, 8, GapReason.ABSENT),))}
    lanes[lane("a")].add_mark(Mark(T + US, 8))
    lanes[lane("a")].prove_marks()
    assert completeness(lanes, (), NOW).complete_up_to == T + US
    assert completeness(lanes, (), NOW, peers=True).complete_up_to == T
    [reported] = completeness(lanes, (), NOW, peers=True).held_back_by
    assert (reported.edge, reported.reason) == ("a", Reason.ABSENT)
    assert reported.why.startswith("absent: another cluster may have [5, 8)")
    assert reasons(lanes) == []
    lanes[lane("a")].add_records([(5, 8)])  # the other cluster's records come
    lanes[lane("a")].prove_marks()
    assert completeness(lanes, (), NOW, peers=True).complete_up_to == T + US


def test_what_lies_lowest_holds_a_lane_back_a_hole_or_absent_records() -> None:
    state = held(5, Mark(T, 5), gaps=(GapRange(5, 8, GapReason.ABSENT),))
    state.add_mark(Mark(T + US, 10))
    assert reasons({lane("a"): state}, peers=True) == [("a", "absent_records")]
    assert reasons({lane("a"): state}) == [("a", "hole")]
    behind_a_hole = held(3, Mark(T, 3), gaps=(GapRange(5, 8, GapReason.ABSENT),))
    behind_a_hole.add_mark(Mark(T + US, 8))
    assert reasons({lane("a"): behind_a_hole}, peers=True) == [("a", "hole")]


def test_an_expected_edge_that_never_linked_holds_the_stream_back() -> None:
    lanes = {lane("press-1"): held(3, Mark(T, 3))}
    assert completeness(lanes, ("press-1", "press-2"), NOW).complete_up_to is None
    assert reasons(lanes, "press-1", "press-2") == [("press-2", "expected_edge_missing")]
    assert completeness(lanes, ("press-*",), NOW).complete_up_to == T
    assert reasons(lanes, "welder-*") == [("welder-*", "expected_edge_missing")]
    assert reasons(lanes, UNREADABLE) == [("", "declaration_unreadable")]
    assert completeness(lanes, (UNREADABLE,), NOW).complete_up_to is None
    lanes[lane("press-2")] = held(0, None)
    assert completeness(lanes, ("press-2",), NOW).complete_up_to is None
    lanes[lane("press-2")] = held(0, Mark(T, 0))
    assert completeness(lanes, ("press-2",), NOW).complete_up_to == T


def test_the_edge_that_a_moment_waits_for_is_named_from_the_first_second() -> None:
    fast, slow = held(5, Mark(NOW, 5)), held(5, Mark(NOW - 3 * 10**9, 5))
    answer = completeness({lane("a"): fast, lane("b"): slow, lane("c"): fast}, (), NOW)
    assert answer.held_back_by == []
    assert answer.slowest is not None
    assert (answer.slowest.edge, answer.slowest.reason, answer.slowest.up_to) == ("b", Reason.LATE, NOW - 3 * 10**9)
    assert completeness({lane("a"): fast}, (), NOW).slowest is None
    silent = held(5, Mark(NOW - SILENT_NS, 5))
    answer = completeness({lane("a"): silent, lane("b"): slow}, (), NOW)
    assert [(each.edge, each.reason) for each in answer.held_back_by] == [("a", Reason.SILENT)]
    assert answer.slowest is None, "a reason names it already"


def test_lost_records_are_named_while_the_moment_waits_for_them() -> None:
    lost = LostRecords(3, 5, 8)
    ending = Tally((), NOW, peers=False, behind=lambda _: None, lost=lambda *_: lost)
    ending.add(lane("a"), held(5, Mark(NOW, 5)))
    assert [each.reason for each in ending.answer().held_back_by] == [Reason.LOST]
    given_up = held(5, Mark(NOW, 8), gaps=(GapRange(5, 8, GapReason.BUDGET),))
    past = Tally((), NOW, peers=False, behind=lambda _: None, lost=lambda *_: lost)
    past.add(lane("a"), given_up)
    assert past.answer().held_back_by == []


def test_an_expected_edge_is_waited_for_until_a_person_retires_it() -> None:
    log = Log()
    for edge in ("press-1", "press-2"):
        log.mark(lane(edge), T)
    log.control(ControlKind.RETIRE, lane("press-2"), RetireBody(RetiredBy.AGE, "not seen"))
    lanes = log.again().stream_lanes("default", "telemetry")
    assert completeness(lanes, (), NOW).covers == [lane("press-1")]
    assert reasons(lanes, "press-2") == [("press-2", "expected_edge_missing")]
    log.control(ControlKind.RETIRE, lane("press-2"), RetireBody(RetiredBy.OPERATOR, "scrapped"))
    lanes = log.again().stream_lanes("default", "telemetry")
    assert reasons(lanes, "press-2") == []
    assert completeness(lanes, ("press-2",), NOW).complete_up_to == T


def test_a_conflict_stops_the_moment_where_it_was_until_an_operator_decides() -> None:
    log, of = Log(), lane("press-1")
    log.mark(of, T, epoch=5)
    log.control(ControlKind.CONFLICT, of, ConflictBody(5, "another node"))
    log.mark(of, T + 10**9, epoch=5)
    for state in (log.state, log.again()):
        lanes = state.stream_lanes("default", "telemetry")
        assert completeness(lanes, (), NOW).complete_up_to == T
        assert reasons(lanes) == [("press-1", "conflict")]
        assert list(state.conflicts) == [of]
    log.control(ControlKind.CONFLICT, of, ConflictBody(3, "a third node"))  # the oldest claim counts
    assert log.state.lanes[of].complete_up_to == T
    log.control(ControlKind.ADOPT, of)
    assert completeness(log.again().stream_lanes("default", "telemetry"), (), NOW).complete_up_to == T + 10**9
    assert list(log.again().conflicts) == []
    assert log.state.lanes[of].epoch == 4  # the refused node, with epoch 5, may come


def test_a_conflict_that_an_operator_has_decided_does_not_come_back_late() -> None:
    log, of = Log(), lane("press-1")
    log.mark(of, T, epoch=5)
    log.control(ControlKind.CONFLICT, of, ConflictBody(5, "another node"))
    log.control(ControlKind.ADOPT, of)
    log.control(ControlKind.CONFLICT, of, ConflictBody(5, "another node"))  # another hub node saw the same
    assert log.state.lanes[of].conflict is None
    log.mark(of, T, epoch=5)
    log.control(ControlKind.CONFLICT, of, ConflictBody(5, "another node"))
    assert log.state.lanes[of].conflict is not None


def test_a_conflict_of_a_retired_lane_holds_nothing_back() -> None:
    log = Log()
    for edge in ("press-1", "press-2"):
        log.mark(lane(edge), T)
    log.control(ControlKind.CONFLICT, lane("press-1"), ConflictBody(1, "another node"))
    log.control(ControlKind.RETIRE, lane("press-1"), RetireBody(RetiredBy.OPERATOR, "a copy"))
    lanes = log.state.stream_lanes("default", "telemetry")
    assert completeness(lanes, (), NOW).held_back_by == []


def test_many_reasons_are_bounded_and_the_worst_come_first() -> None:
    lanes = {
        lane(f"e{number}"): held(5, Mark(NOW - SILENT_NS - number * US, 5)) for number in range(HELD_BACK_MAX + 20)
    }
    lanes[lane("worst")] = held(1, None)
    answer = completeness(lanes, (), NOW)
    assert len(answer.held_back_by) == HELD_BACK_MAX
    assert answer.more == 21
    assert answer.held_back_by[0].edge == "worst"


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 199, 200, 201, 399, 400, 520])
@pytest.mark.parametrize("missing", [0, 3])
def test_reasons_that_are_left_out_are_counted(count: int, missing: int) -> None:
    lanes = {lane(f"e{number}"): held(5, Mark(NOW - SILENT_NS - number * US, 5)) for number in range(count)}
    answer = completeness(lanes, [f"other-{number}" for number in range(missing)], NOW)
    assert len(answer.held_back_by) == min(HELD_BACK_MAX, count + missing)
    assert len(answer.held_back_by) + answer.more == count + missing


@pytest.mark.parametrize(
    ("pattern", "edge", "found"),
    [
        ("press-1", "press-1", True),
        ("press-1", "press-11", False),
        ("press-*", "press-", True),
        ("*", "anything", True),
        ("p*-*1", "press-line-1", True),
        ("p*-*1", "press1", False),
        ("p.ess-1", "press-1", False),
        ("a*a", "a", False),
        ("*a*ab*", "aab", True),
        ("*".join("a" * 30) + "b", "a" * 64, False),
    ],
)
def test_patterns(pattern: str, edge: str, found: bool) -> None:
    assert matches(pattern, edge) is found


def severities(now: int, *expected: str, **held_lanes: LaneState) -> list[tuple[str, str]]:
    """(reason, severity) of all that holds back, and of the slowest lane."""
    answer = completeness({lane(edge): state for edge, state in held_lanes.items()}, expected, now)
    found = [*answer.held_back_by, *([answer.slowest] if answer.slowest else [])]
    return [(each.reason.value, severity(each, now).value) for each in found]


def test_a_live_stream_asks_nothing_of_people_and_one_that_stands_does() -> None:
    behind = held(5, Mark(T, 5))
    behind.pending_marks = [Mark(T + 3, 9)]
    soon, long_after = T + 5 * 10**9, T + SILENT_NS
    assert severities(soon, press=held(5, Mark(T, 5))) == [("late", "info")]
    assert severities(soon, press=behind) == [("hole", "info")], "records are under way"
    assert severities(long_after, press=behind) == [("hole", "warning")]
    assert severities(long_after, press=held(5, Mark(T, 5))) == [("silent", "warning")]
    assert severities(soon, "saw", press=behind)[0] == ("expected_edge_missing", "warning"), "there is no moment at all"
    assert severities(soon, press=held(5, None))[0] == ("no_mark", "warning")


def test_functions_that_have_handled_nothing_are_not_decades_behind() -> None:
    begun, waiting = held(0, None), held(5, Mark(T, 5))
    begun.add_mark(Mark(1, 0))
    begun.prove_marks()
    answer = completeness({lane("a"): begun, lane("b"): waiting}, (), NOW)
    [reason, *_] = answer.held_back_by
    assert (answer.complete_up_to, reason.edge, reason.reason) == (None, "a", Reason.NOT_STARTED)
    assert (reason.up_to, reason.since) == (None, None)
    assert "retire" not in reason.advice
    assert severity(reason, NOW) is Severity.WARNING


def test_what_waiting_does_not_bring_is_an_error_at_once() -> None:
    copied = held(5, Mark(T, 5))
    copied.conflict = Conflict(T, 2, T, T, "two nodes")
    assert severities(NOW, press=copied)[0] == ("conflict", "error")
    ending = Tally((), NOW, peers=False, behind=lambda _: None, lost=lambda *_: LostRecords(3, 5, 8))
    ending.add(lane("a"), held(5, Mark(NOW, 5)))
    assert severity(ending.answer().held_back_by[0], NOW) is Severity.ERROR
