"""Bytes on the way and ranges from the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols.errors import Corrupt
from weft.protocols.ranges import RangeSet
from weft.replication.flow_control import SentBatch, SentBatches, checked_ranges


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12))))
def test_bytes_are_freed_exactly_when_every_record_of_a_batch_was_acknowledged(acks: list[tuple[int, int]]) -> None:
    in_flight = SentBatches()
    batches = [SentBatch(first, first + 5, 100, first) for first in range(0, 40, 5)]
    for batch in batches:
        in_flight.add(1, *batch)
    covered = RangeSet()
    for first, length in acks:
        covered.add(first, first + length)
        in_flight.settle(1, first, first + length, covered)
        assert in_flight.bytes == sum(100 for batch in batches if not covered.covers(batch.first, batch.end))


def test_one_batch_may_be_longer_than_the_window() -> None:
    in_flight = SentBatches()
    assert in_flight.room(1000, window_bytes=10)
    in_flight.add(1, 0, 1, 1000, 0)
    assert not in_flight.room(1, window_bytes=10)
    assert in_flight.oldest_time() == 0


@pytest.mark.parametrize("pairs", [[(5, 9), (1, 3)], [(3, 3)], [(4, 2)], [(0, 5), (3, 9)], [(-1, 2)]])
def test_ranges_that_do_not_ascend_are_refused(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(Corrupt):
        checked_ranges(pairs)


def test_more_ranges_than_allowed_are_refused() -> None:
    with pytest.raises(Corrupt, match="at most 2"):
        checked_ranges([(0, 1), (2, 3), (4, 5)], 2)


class _Counted(list[SentBatch]):
    """Batches of which each one that is looked at counts."""

    looks = 0

    def __iter__(self) -> Iterator[SentBatch]:
        for each in super().__iter__():
            self.looks += 1
            yield each


def test_ranges_that_were_acknowledged_before_look_at_no_batch_in_flight() -> None:
    """A hub acknowledges all ranges of a lane again at each commit, and a hostile edge has many of both."""
    in_flight = SentBatches()
    for first in range(10_000, 11_000):
        in_flight.add(1, first, first + 1, 100, 0)
    flight = in_flight._lanes[1]
    flight.entries = entries = _Counted(flight.entries)
    covered = RangeSet((first, first + 1) for first in range(0, 2_000, 2))
    for first, end in covered:
        in_flight.settle(1, first, end, covered)
    assert (entries.looks, len(in_flight)) == (0, 1_000)
    covered.add(2_000, 11_000)
    in_flight.settle(1, 2_000, 11_000, covered)
    assert (len(in_flight), in_flight.bytes) == (0, 0)
