"""Pieces of the inputs: what functions get in one go."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.edge_node.derived.stream import Event, pieces
from weft.functions.contract import Gap, Row

SECOND = 1_000_000_000
ROWS_MAX = 4


def row(time: int) -> Row:
    """Return a row of a time."""
    return Row(time, b"k", b"{}", {})


def gap() -> Gap:
    """Return a gap."""
    return Gap("load", 1, 2, "expired", 0)


EVENTS = st.lists(
    st.one_of(
        st.integers(1, 4 * SECOND).map(row),
        st.sampled_from([1, 2]).map(lambda each: row(each * SECOND)),
        st.builds(gap),
    ),
    max_size=30,
)


def one_by_one(events: list[Event], *, by_second: bool) -> list[list[Event]]:
    """Return the pieces by a walk through all events."""
    found: list[list[Event]] = []
    latest, is_open = 0, False
    for event in events:
        if isinstance(event, Gap):
            found.append([event])
            is_open = False
            continue
        second = max(latest, (event.time - 1) // SECOND)
        if not is_open or len(found[-1]) == ROWS_MAX or (by_second and second > latest):
            found.append([])
        found[-1].append(event)
        latest, is_open = second, True
    return found


@pytest.mark.parametrize("by_second", [False, True])
@given(events=EVENTS)
def test_pieces_hold_all_events_in_order_and_part_at_gaps_and_seconds(events: list[Event], by_second: bool) -> None:
    found = [[piece] if isinstance(piece, Gap) else piece for piece in pieces(events, ROWS_MAX, by_second=by_second)]
    assert found == one_by_one(events, by_second=by_second)


def test_a_row_of_a_whole_second_comes_before_the_tick_of_that_second() -> None:
    rows = [row(SECOND), row(SECOND + 1)]
    assert list(pieces(list(rows), 10, by_second=True)) == [rows[:1], rows[1:]]


def test_the_loop_waits_for_few_large_rows_at_a_time() -> None:
    """A dear expression over 64 KiB of text takes milliseconds, and so does decoding it."""
    sizes = [10, 20_000, 30_000, 30_000, 200_000, 10, 10, 60_000]
    rows: list[Event] = [Row(1, b"k", b"x" * size, {}) for size in sizes]
    found = [
        [len(row.payload or b"") for row in piece]
        for piece in pieces(rows, 256, by_second=False)
        if not isinstance(piece, Gap)
    ]
    assert found == [[10, 20_000, 30_000], [30_000], [200_000], [10, 10, 60_000]]


def test_rows_are_nothing_that_the_garbage_collector_walks_through() -> None:
    """A page has thousands of rows: to look for cycles among them took a tenth of the time of functions."""
    assert not gc.is_tracked(Row(1, b"k", b"{}", {"list": [1]}))
