"""Names of a query's edges: they never change, name no edge of another query, and lie in different shards."""

from __future__ import annotations

import pytest

from weft.protocols.lane import valid_name
from weft.protocols.shard.placement import (
    QUERY_CHARACTERS_MAX,
    SPREAD_MAX,
    SPREAD_QUERY_CHARACTERS_MAX,
    SPREADS,
    ShardTree,
    edge_of_query,
    first_edge,
    places_of,
    shard_of,
)


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
