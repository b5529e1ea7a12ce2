"""Placement: where an edge's lanes are, and that shards can split without moving any other edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols.shard.placement import SHARDS_MAX, is_shard_count, nearest_shard_counts, shard_of

COUNTS = [1 << k for k in range(11)]


@given(st.text(), st.text(), st.sampled_from(COUNTS[:-1]))
def test_shard_i_of_n_splits_into_i_and_i_plus_n(tenant: str, edge: str, shards: int) -> None:
    before, after = shard_of(tenant, edge, shards), shard_of(tenant, edge, 2 * shards)
    assert 0 <= before < shards
    assert after in (before, before + shards)


def test_the_shard_of_an_edge_is_what_it_was_when_it_was_first_written() -> None:
    names = [("default", "press-1"), ("default", "press-2"), ("acme", "gate")]
    assert [shard_of(*name, 64) for name in names] == [12, 20, 32]
    assert [shard_of(*name, 1024) for name in names] == [844, 148, 224]
    assert shard_of("ab", "c", 1024) != shard_of("a", "bc", 1024)


def test_edges_spread_evenly() -> None:
    counts = [0] * 16
    for number in range(16_000):
        counts[shard_of("default", f"pi-{number}", 16)] += 1
    assert 850 < min(counts) <= max(counts) < 1150


@given(st.integers(-5, 5000))
def test_a_wrong_number_of_shards_comes_with_the_right_ones_next_to_it(number: int) -> None:
    assert is_shard_count(number) == (number in COUNTS)
    near = nearest_shard_counts(number)
    assert near
    assert all(is_shard_count(count) for count in near)
    if 0 < number <= SHARDS_MAX and not is_shard_count(number):
        assert near == [max(c for c in COUNTS if c < number), min(c for c in COUNTS if c > number)]


@pytest.mark.parametrize("shards", [0, 3, 2048])
def test_a_number_of_shards_that_is_none_is_a_fault_of_the_caller(shards: int) -> None:
    with pytest.raises(AssertionError):
        shard_of("default", "press-1", shards)
