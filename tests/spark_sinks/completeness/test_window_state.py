"""Which windows are due, and that a query forgets none, whatever order rows, marks, rounds and kills come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_sinks.completeness import window_state
from spark_sinks.completeness.window_state import Limits, Reach, TakenIn, WindowState, bounded, definition_of, portions
from spark_sinks.errors import ReadError
from spark_sinks.source.typed import declared
from weft.config.functions.windows import HOUR_US, Grid
from weft.protocols.ranges import RangeSet

HOURS = Grid(HOUR_US)


def limits(complete: int, given_out: int) -> Limits:
    return Limits(complete, given_out)


STEP = st.tuples(
    st.lists(st.integers(-3, 12), max_size=4),  # windows that get a row
    st.one_of(st.none(), st.integers(-2, 14)),  # the moment, which may go back when an edge returns
    st.integers(-9, 2),  # hours by which the clock continues, or back when an operator lowers it
    st.booleans(),  # a round of healing
    st.booleans(),  # the query is killed and started again
    st.one_of(st.none(), st.tuples(st.integers(-3, 10), st.integers(1, 4))),  # an open gap: first hour and length
)


@given(st.lists(STEP, max_size=25))
def test_in_the_end_every_window_was_given_with_all_its_rows(
    steps: list[tuple[list[int], int | None, int, bool, bool, tuple[int, int] | None]],
) -> None:
    rows: dict[int, int] = {}
    table: dict[int, tuple[int, bool]] = {}
    state = kept = WindowState("s", HOUR_US)
    position = clock = 0
    log: list[list[int]] = []

    def step(moment: int | None, clock: int, gap: tuple[int, int] | None = None, *, healing: bool) -> None:
        nonlocal state, kept, position
        new = {window for entry in log[state.offsets.get(0, 0) :] for window in entry}
        state.see({0: len(log)}, RangeSet((k, k + 1) for k in sorted(new)))
        gaps = [(gap[0] * HOUR_US + 1, sum(gap) * HOUR_US)] if gap else []
        at = Limits.at(None if moment is None else moment * HOUR_US, clock * HOUR_US, HOURS, 2 * HOUR_US, gaps)
        is_open = range(gap[0], sum(gap)) if gap else range(0)
        for portion in portions(state.due(at, healing=healing), 3, 2, lambda first, end: first % 2 == 0):
            for first, end in portion.ranges:
                for k in range(first, end):
                    assert k < max(at.complete_end, at.given_end), "too early"
                    if k in rows:
                        table[k] = (rows[k], k < at.complete_end and k not in is_open)
            state.give(RangeSet(portion.ranges), at)
            kept = WindowState.decode(state.encode(), "s", HOUR_US)
        state.close(at)

    for windows, moment, later, healing, killed, gap in steps:
        clock += later
        log.append(windows)
        for k in windows:
            rows[k] = rows.get(k, 0) + 1
        if killed:
            state = kept.copy()
        step(moment, clock, gap, healing=healing)
        if moment is not None:
            assert all(table[k][1] for k in rows if state.complete_end <= k < moment), (
                "complete at once, never throttled"
            )
    step(100, clock, healing=True)
    assert table == {k: (count, True) for k, count in rows.items()}


def test_windows_over_an_open_gap_are_given_after_the_grace_and_again_once_it_is_closed() -> None:
    state = WindowState("s", HOUR_US)
    state.see({0: 10}, RangeSet([(0, 8)]))
    at = Limits.at(8 * HOUR_US, 5 * HOUR_US, HOURS, HOUR_US, [(2 * HOUR_US, 6 * HOUR_US - 1), (None, -HOUR_US)])
    assert list(at.opened(RangeSet([(0, 99)]))) == [(2, 6)]
    assert list(state.due(at, healing=False)) == [(0, 4), (6, 8)], "two of them are not four hours old"
    state.give(RangeSet([(0, 4), (6, 8)]), at)
    state.close(at)
    assert list(state.pending) == [(2, 6)]
    assert list(state.fresh) == [(4, 6)]
    assert not state.due(at, healing=True)
    closed = Limits.at(8 * HOUR_US, 5 * HOUR_US, HOURS, HOUR_US)
    assert list(WindowState.decode(state.encode(), "s", HOUR_US).due(closed, healing=True)) == [(2, 6)]


def test_windows_wait_for_completeness_or_the_grace() -> None:
    state = WindowState("s", HOUR_US)
    state.see({0: 10}, RangeSet([(0, 6)]))
    at = Limits.at(2 * HOUR_US + 1, 5 * HOUR_US, HOURS, HOUR_US // 6)
    assert list(state.due(at, healing=False)) == [(0, 4)]
    state.give(RangeSet([(0, 4)]), at)
    state.close(at)
    assert list(state.pending) == [(2, 6)]
    assert list(state.fresh) == [(4, 6)]


def test_a_backlog_that_trickles_in_is_given_again_in_rounds_only() -> None:
    state = WindowState("s", HOUR_US)
    at = Limits(2, 50)
    state.see({0: 10}, RangeSet([(0, 50)]))
    state.give(state.due(at, healing=False), at)
    state.close(at)
    state.see({0: 11}, RangeSet([(7, 9), (1, 2)]))
    assert not state.due(at, healing=False)
    assert list(state.due(at, healing=True)) == [(1, 2), (7, 9)]
    # What the backlog has made complete is given at once.
    assert list(state.due(Limits(9, 50), healing=False)) == [(2, 9)]


def test_stamps_of_any_year_cost_a_bounded_state() -> None:
    state = WindowState("s", 1_000_000)
    wild = RangeSet((k * 86_400, k * 86_400 + 1) for k in range(-700_000, 2_900_000, 700))
    state.see({0: 10}, wild)
    assert len(state.pending) <= 1000
    assert all(state.pending.covers(*each) for each in wild)
    assert len(state.encode()) < 60_000
    assert state.due(Limits(-(1 << 62), -(1 << 62)), healing=True) == RangeSet()


def apart(first: int, end: int) -> bool:
    return False


def close(first: int, end: int) -> bool:
    return end - first < 1000


def test_windows_are_read_together_where_little_lies_between() -> None:
    windows = RangeSet([(0, 1), (470_000, 470_010), (470_500, 470_509)])
    (all_of_them,) = portions(windows, 1000, 8, close)
    assert all_of_them.ranges == list(windows)
    assert all_of_them.reads == [(0, 1), (470_000, 470_509)]
    assert all_of_them.reads_more
    assert [each.reads for each in portions(windows, 1000, 2, apart)] == [list(windows)[:2], list(windows)[2:]]
    first, second = portions(windows, 15, 8, close)
    assert first.ranges == [(0, 1), (470_000, 470_010), (470_500, 470_504)]
    assert second.ranges == second.reads == [(470_504, 470_509)]
    assert not second.reads_more


def test_windows_without_records_cost_no_commits() -> None:
    """Stamps of all years, joined to stay within the bound of the state: records are in few of these windows."""
    filled = RangeSet((k, k + 1) for k in range(0, 1_000_000, 1000))
    found = portions(RangeSet([(-50, 400_500), (400_600, 2_000_000)]), 300, 8, lambda first, end: True, filled)
    assert len(found) == 4
    assert RangeSet(each for portion in found for each in portion.ranges) == RangeSet(
        [(-50, 400_500), (400_600, 2_000_000)]
    )
    assert RangeSet(each for portion in found for each in portion.filled) == filled
    assert all(portion.count <= 300 and len(portion.reads) == 1 for portion in found)
    nothing = portions(RangeSet([(0, 5)]), 300, 8, apart, RangeSet())
    assert [(each.ranges, each.reads) for each in nothing] == [([(0, 5)], [])]


def test_a_bound_joins_the_nearest() -> None:
    assert list(bounded(RangeSet([(0, 1), (9, 10), (11, 12)]), 2)) == [(0, 1), (9, 12)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "damaged"),
        (
            '{"format": 9, "source": "s", "every_us": 1, "offsets": {}, "pending": [], "fresh": [], "complete_end": 0, '
            '"given_end": 0}',
            "later release of Weft .format 9; this one knows 2",
        ),
        ('{"format": 1, "source": "s"}', "written by a pre-release build and cannot be opened: delete it"),
        (WindowState("other", HOUR_US).encode(), "windows of other"),
        (WindowState("s", HOUR_US // 2).encode(), "windows of 1800 s"),
    ],
)
def test_a_state_that_is_not_the_querys_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ReadError, match=problem):
        WindowState.decode(text, "s", HOUR_US)


def test_a_schema_means_what_it_meant_to_the_release_before() -> None:
    """A query of 0.1.0 continues: its state has this digest."""
    schema = declared("temperature float, n bigint", None)
    assert definition_of({"schema": schema}) == {"schema": "493f532de550fb0b"}
    assert schema is not None
    other = replace(schema, message="other")
    assert definition_of({"schema": other}) != definition_of({"schema": schema})


def test_a_window_of_sessions_is_given_while_it_goes_on_and_once_more_when_its_last_one_has_ended() -> None:
    gap, day = HOUR_US // 4, Grid(24 * HOUR_US)
    state = WindowState("s", day.every_us)

    def given(moment: int, clock: int) -> list[tuple[int, int]]:
        nonlocal state
        at = Limits.at(moment * HOUR_US, clock * HOUR_US, day, HOUR_US, gap_us=gap)
        due = state.due(at, healing=True)
        state.give(due, at)
        state.close(at)
        state = WindowState.decode(state.encode(), "s", day.every_us)
        return list(due)

    state.see({0: 5}, RangeSet([(0, 1)]))
    state.continue_sessions([(0, 5 * HOUR_US)])
    assert given(4, 5) == [(0, 1)]
    assert state.unfinished == {0: 5 * HOUR_US}
    assert given(5, 6) == [], "a row may still join the last session"
    assert given(6, 6) == [(0, 1)], "and now none can"
    assert given(7, 8) == [], "an idle stream costs nothing"
    assert state.unfinished == {}
    state.see({0: 6}, RangeSet([(0, 1)]))
    state.continue_sessions([(0, 8 * HOUR_US)])
    assert given(30, 30) == [(0, 1)]
    assert list(state.pending) == []
    assert state.unfinished == {}


# --- The reach of windows: every record is found again, and what is kept has a bound


BEFORE, AFTER = 2 * HOUR_US, 6 * HOUR_US
SEEN = st.builds(
    lambda number, early, late: TakenIn(number, number * HOUR_US - early, (number + 1) * HOUR_US + late),
    st.integers(0, 40),
    st.integers(-HOUR_US, 9 * HOUR_US),
    st.integers(-HOUR_US, 99 * HOUR_US),
)


@given(st.lists(st.lists(SEEN, max_size=12, unique_by=lambda each: each.number), max_size=4))
def test_every_record_is_among_those_that_are_read(steps: list[list[TakenIn]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_state, "PARTS_MAX", 5)
        reach = Reach(HOURS, BEFORE, AFTER)
        for seen in steps:
            reach.see(seen)
            state = WindowState("s", HOUR_US, reach=reach.parts)
            reach.parts = WindowState.decode(state.encode(), "s", HOUR_US).reach
            assert len(reach.parts) <= 5
            assert all(one.end <= other.first for one, other in zip(reach.parts, reach.parts[1:], strict=False))
        for number, earliest, latest, _ in (each for seen in steps for each in seen):
            since, until = reach.taken_in(number, number + 1)
            assert since <= earliest
            assert latest < until


def test_what_is_usual_takes_no_memory_and_one_stray_record_widens_one_window() -> None:
    reach = Reach(HOURS, BEFORE, AFTER)
    reach.see(TakenIn(k, k * HOUR_US, (k + 1) * HOUR_US + AFTER - 1) for k in range(1000))
    assert reach.parts == []
    reach.see([TakenIn(k, k * HOUR_US, (k + 1) * HOUR_US + AFTER) for k in range(10, 1000)])
    assert len(reach.parts) == 1
    reach.see([TakenIn(500, 500 * HOUR_US, 9000 * HOUR_US)])
    assert [(part.first, part.end) for part in reach.parts] == [(10, 500), (500, 501), (501, 1000)]
    assert reach.taken_in(499, 500)[1] < 515 * HOUR_US
    assert reach.taken_in(500, 501)[1] > 9000 * HOUR_US


def test_a_window_of_event_time_is_complete_when_the_stream_is_complete_up_to_its_bound() -> None:
    for moment, complete in ((10 * HOUR_US, 4), (10 * HOUR_US - 1, 3), (None, None)):
        at = Limits.at(moment, 9 * HOUR_US, HOURS, HOUR_US, bound_us=AFTER, ahead_us=BEFORE)
        assert at.given_end == 8, "after the grace, by what is known then"
        assert (at.complete_end if complete is not None else None) == complete


def test_no_window_is_complete_whose_records_may_have_been_lost_in_an_open_gap() -> None:
    gap = [(100 * HOUR_US, 101 * HOUR_US)]
    at = Limits.at(200 * HOUR_US, 200 * HOUR_US, HOURS, 0, gap, bound_us=AFTER, ahead_us=BEFORE)
    assert list(at.open) == [(94, 103)], "events of six hours before, and of clocks that are two hours ahead"


def test_a_state_of_other_starts_or_of_another_zone_is_refused_in_words() -> None:
    text = WindowState("s", 8 * HOUR_US).encode()
    for other in (Grid(8 * HOUR_US, HOUR_US), Grid(8 * HOUR_US, 0, "Europe/Berlin")):
        with pytest.raises(ReadError, match="zone UTC, time _time, and this query makes windows with offset"):
            WindowState.decode(text, "s", 8 * HOUR_US, other.text)
        state = WindowState("s", 8 * HOUR_US, grid=other.text, broken=RangeSet([(1, 2)]), rejected={"why": 3})
        assert WindowState.decode(state.encode(), "s", 8 * HOUR_US, other.text) == state
