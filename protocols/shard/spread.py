"""Names of the edges of a Spark query: ``spark-QUERY``, and those over which its lanes are spread.

All lanes of an edge are in one shard, so a query that writes more than one hub process can take has several edges.
Their names put them into different shards. The rule is persisted: it must never change. It is in
docs/reference/formats/shard-state.md.

The further names begin with ``spark-_``, and no name of a query begins with ``_``: the edges of a query are never those
of another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from string import ascii_lowercase

from weft.protocols.lane import NAME_CHARACTERS_MAX, NodeName
from weft.protocols.shard.placement import digest_of

EDGE_PREFIX = "spark-"
"""Prefix of a query's edge names."""
SPREAD_MAX = 64
"""Maximum number of edges of a query."""
SPREADS = (1, 2, 4, 8, 16, 32, SPREAD_MAX)
"""Powers of two: so a source shard has few edges under all spreads together."""
_SALT_CHARACTERS_MAX = 3
QUERY_CHARACTERS_MAX = NAME_CHARACTERS_MAX - len(EDGE_PREFIX)
SPREAD_QUERY_CHARACTERS_MAX = QUERY_CHARACTERS_MAX - len("_63_") - _SALT_CHARACTERS_MAX
"""Maximum number of characters of the name of a query that is spread."""
_SPREAD = re.compile(rf"{EDGE_PREFIX}_[0-9]{{1,2}}[a-z]{{0,{_SALT_CHARACTERS_MAX}}}_([a-z0-9][a-z0-9_-]*)")


@lru_cache(maxsize=1024)
def edge_of_query(tenant: str, query: str, place: int) -> str:
    """Return an edge of a query. Any 2, 4, ... of them, from 0 on, are in as many shards, of a store that has them.

    Args:
        place: 0 for ``spark-QUERY``, up to ``SPREAD_MAX - 1``.
    """
    first = EDGE_PREFIX + query
    if place == 0:
        return first
    # The low bits of the digest choose the shard: consecutive ones are as far apart as possible, and stay so when
    # shards split. One salt in 64 fits; of all 18,279 none does with a chance of 10^-125.
    wanted = (digest_of(tenant, first) + place) % SPREAD_MAX
    names = (f"{EDGE_PREFIX}_{place}{salt}_{query}" for salt in _salts())
    return next(name for name in names if digest_of(tenant, name) % SPREAD_MAX == wanted)


def _salts() -> Iterator[str]:
    for length in range(_SALT_CHARACTERS_MAX + 1):
        yield from map("".join, product(ascii_lowercase, repeat=length))


def place_of(source_shard: int, spread: int) -> int:
    """Return the number of the edge that has the lane of a source shard."""
    return source_shard % spread


def places_of(source_shard: int) -> list[int]:
    """Return the numbers of the edges that have the lane of a source shard under any spread."""
    return sorted({place_of(source_shard, spread) for spread in SPREADS})


def first_edge(edge: str) -> str:
    """Return the edge ``spark-QUERY`` of a query for any of its edges, and every other name as it is."""
    found = _SPREAD.fullmatch(edge)
    return EDGE_PREFIX + found[1] if found is not None else edge


def opened_by(node: NodeName) -> tuple[NodeName, NodeName]:
    """Return the edges whose tokens open an edge: itself, and the first edge of the same query."""
    return node, NodeName(node.tenant, first_edge(node.edge))
