"""The ledger of what links and functions have: the log forgets a record when all of its parties have it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols.ranges import RangeSet
from weft.replication.source import Party, ReleaseLedger

LINK, OTHER, FUNCTION = Party("link", "cloud"), Party("link", "site"), Party("function", "cloud")


class Log:
    def __init__(self, *parties: Party) -> None:
        self.released = RangeSet()
        self.ledger = ReleaseLedger({1: parties}, self._release)

    def _release(self, stream: int, ranges: RangeSet) -> None:
        assert stream == 1
        self.released.update(ranges)


@pytest.mark.parametrize("second", [OTHER, FUNCTION])
def test_what_every_party_has_is_released_in_any_order(second: Party) -> None:
    log = Log(LINK, second)
    log.ledger.released(LINK, 1, RangeSet([(0, 10), (20, 30)]))
    assert log.released == RangeSet()
    log.ledger.released(second, 1, RangeSet([(5, 25)]))
    assert log.released == RangeSet([(5, 10), (20, 25)])
    log.ledger.released(second, 1, RangeSet([(0, 30)]))
    assert log.released == RangeSet([(0, 10), (20, 30)])
    assert (log.ledger.lacks(LINK, 1, [(0, 30)]), log.ledger.lacks(second, 1, [(0, 30)])) == (10, 0)


def test_a_party_that_joins_is_waited_for_and_one_that_leaves_no_longer() -> None:
    log = Log(LINK)
    log.ledger.released(LINK, 1, RangeSet([(0, 5)]))
    log.ledger.join(FUNCTION, 1)
    log.ledger.released(LINK, 1, RangeSet([(5, 10)]))
    assert log.released == RangeSet([(0, 5)])
    log.ledger.released(FUNCTION, 1, RangeSet([(5, 7)]))
    assert log.released == RangeSet([(0, 7)])
    log.ledger.join(FUNCTION, 1)
    assert log.ledger.lacks(FUNCTION, 1, [(5, 10)]) == 3
    log.ledger.leave(FUNCTION, 1)
    assert log.released == RangeSet([(0, 10)])


def test_when_the_last_party_leaves_nothing_is_released() -> None:
    log = Log(LINK)
    log.ledger.leave(FUNCTION, 1)
    log.ledger.leave(LINK, 1)
    log.ledger.leave(LINK, 1)
    assert log.released == RangeSet()
    log.ledger.join(LINK, 1)
    log.ledger.released(LINK, 1, RangeSet([(0, 3)]))
    assert log.released == RangeSet([(0, 3)])


STEPS = st.lists(
    st.tuples(st.sampled_from([LINK, OTHER, FUNCTION]), st.integers(0, 15), st.integers(1, 6)), max_size=20
)


@given(STEPS)
def test_no_record_goes_before_every_party_has_it_and_none_waits_longer(steps: list[tuple[Party, int, int]]) -> None:
    parties = (LINK, OTHER, FUNCTION)
    log = Log(*parties)
    has: dict[Party, set[int]] = {party: set() for party in parties}
    for party, first, count in steps:
        log.ledger.released(party, 1, RangeSet([(first, first + count)]))
        has[party] |= set(range(first, first + count))
        everywhere = set.intersection(*has.values())
        assert {seq for start, end in log.released for seq in range(start, end)} == everywhere
