"""Turns in proportion to weights, in which every lane gets its turn."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from weft.replication.sender_lanes import FairTurns


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 100), min_size=2), st.integers(1, 4000))
def test_lanes_that_all_wait_share_by_weight(weights: dict[int, int], size: int) -> None:
    turns = FairTurns()
    for key, weight in weights.items():
        turns.add(key, weight)
    had: Counter[int] = Counter()
    rounds = 20 * sum(weights.values())
    for _ in range(min(rounds, 4000)):
        first = turns.first()
        assert first is not None
        turns.charge(first, size)
        had[first] += size
    shares = [had[key] / weight for key, weight in weights.items()]
    assert max(shares) - min(shares) <= 2 * size / min(weights.values())


def test_a_lane_that_comes_back_goes_next_and_claims_nothing_for_its_absence() -> None:
    turns = FairTurns()
    turns.add(1, 10)
    for _ in range(1000):
        turns.charge(1, 500)
    turns.add(2, 10)
    order = []
    for _ in range(6):
        key = turns.first()
        assert key is not None
        turns.charge(key, 500)
        order.append(key)
    assert order[0] == 2
    assert Counter(order) == {1: 3, 2: 3}
    turns.drop(1)
    turns.forget(2)
    assert turns.first() is None


@given(st.lists(st.tuples(st.sampled_from("ascdf"), st.integers(0, 5), st.integers(1, 900)), max_size=60))
def test_first_is_a_waiting_lane_whatever_came_before(steps: list[tuple[str, int, int]]) -> None:
    turns, waiting = FairTurns(), set()
    for step, key, size in steps:
        match step:
            case "a" | "s":
                turns.add(key, 1 + key)
                waiting.add(key)
            case "c":
                turns.charge(key, size)
            case "d":
                turns.drop(key)
                waiting.discard(key)
            case _:
                turns.forget(key)
                waiting.discard(key)
        first = turns.first()
        assert (first in waiting) if waiting else first is None
