"""Placement: where an edge's lanes are, and that shards can split without moving any other edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocols.lane import valid_name
from weft.protocols.shard.placement import (
    QUERY_CHARACTERS_MAX,
    SHARDS_MAX,
    SPREAD_MAX,
    SPREAD_QUERY_CHARACTERS_MAX,
    SPREADS,
    ShardTree,
    edge_of_query,
    first_edge,
    is_shard_count,
    nearest_shard_counts,
    places_of,
    shard_of,
)

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


# --- Names of a query's edges: they never change, name no edge of another query, and lie in different shards


def test_the_names_are_those_of_every_release() -> None:
    assert [edge_of_query("default", "warm", place) for place in range(4)] == [
        "spark-warm",
        "spark-_1ci_warm",
        "spark-_2as_warm",
        "spark-_3cg_warm",
    ]


@pytest.mark.parametrize("shards", [1, 2, 4, 16, 64])
def test_edges_of_a_query_lie_in_as_many_shards_as_there_are(shards: int) -> None:
    edges = [edge_of_query("acme", "hot", place) for place in range(shards)]
    assert {shard_of("acme", edge, shards) for edge in edges} == set(range(shards))


def test_a_split_parts_edges_of_one_shard() -> None:
    edges = [edge_of_query("acme", "hot", place) for place in range(4)]
    tree = ShardTree(2, [0, 1])
    assert {tree.shard_of("acme", edge) for edge in edges} == set(range(4))


def test_every_edge_of_a_query_leads_to_its_first_one() -> None:
    for query in ("warm", "a-1", "1a_warm", "x" * SPREAD_QUERY_CHARACTERS_MAX):
        edges = [edge_of_query("default", query, place) for place in range(SPREAD_MAX)]
        assert len(set(edges)) == SPREAD_MAX
        assert all(valid_name(edge) and first_edge(edge) == f"spark-{query}" for edge in edges)


@pytest.mark.parametrize("edge", ["press-1", "spark-a-1", "spark-1a_warm", "spark-_", "spark-_1a_", "spark-_1abcd_a"])
def test_any_other_edge_leads_to_itself(edge: str) -> None:
    assert first_edge(edge) == edge


def test_no_query_has_an_edge_of_another_one() -> None:
    longest = "x" * QUERY_CHARACTERS_MAX
    for query in ("_1a_warm", "_1_a", ""):  # what a query would have to be called for it
        assert not valid_name(query)
    assert valid_name(f"spark-{longest}")


def test_a_source_shard_has_few_edges_under_all_spreads() -> None:
    assert places_of(0) == [0]
    assert places_of(5) == [0, 1, 5]
    assert max(len(places_of(shard)) for shard in range(1024)) == len(SPREADS)
