"""The reach of windows: every record is found again, and what is kept has a bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sinks.completeness import window_state
from spark_sinks.completeness.window_state import Limits, Reach, TakenIn, WindowState
from spark_sinks.errors import ReadError
from weft.config.functions.windows import HOUR_US, Grid
from weft.protocols.ranges import RangeSet

HOURS = Grid(HOUR_US)
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
