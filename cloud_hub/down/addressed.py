"""Edges of a group, in pages: a message to 10,000 edges is published in requests of at most 500."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from weft.cloud_hub.api.pages import SLICE_S
from weft.cloud_hub.declared.groups import GroupKey, Groups
from weft.cloud_hub.shard.message_lanes import DOWN_STREAM
from weft.protocols.shard.shard_state import ShardState

LOOKED_AT_ONCE = 16
"""Number of edges between two looks at the clock: 256 groups with 1,024 patterns take 0.5 ms for each."""


class UnknownGroup(Exception):
    """No such group is declared, or its declaration cannot be read."""


class Members(NamedTuple):
    """A page of a group's edges, by name."""

    edges: list[str]
    next_after: str | None
    """The last name, for the next page; None if there is none."""


async def members(
    groups: Groups,
    key: GroupKey,
    states: Sequence[ShardState],
    after: str,
    *,
    limit: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Members:
    """Return the edges of a group: those that it names, and those that have linked and match one of its patterns.

    An edge of a pattern whose lanes are all retired is left out.

    Args:
        states: states of all shards.
        after: end of the previous page; empty for the first one.
        limit: maximum number of edges.

    Raises:
        UnknownGroup: there is no such group.
    """
    document = groups.document(key)
    if document is None:
        why = groups.unusable.get("/".join(key))
        raise UnknownGroup(
            f"group {key[1]} of tenant {key[0]} cannot be read: {why}"
            if why
            else f"no group {key[1]} of tenant {key[0]} is declared"
        )
    found = sorted({edge for edge in document.edges if "*" not in edge and edge > after})[: limit + 1]
    named, began = frozenset(document.edges), clock()
    if any("*" in edge for edge in named):
        for some in _slices(states):
            more = [
                edge
                for state, (tenant, edge) in some
                if tenant == key[0]
                and edge > after
                and edge not in named
                and key[1] in groups.of_edge(tenant, edge)
                and _is_alive(state, tenant, edge)
            ]
            if more:
                found = sorted([*found, *more])[: limit + 1]
            if clock() - began >= SLICE_S:
                await asyncio.sleep(0)
                began = clock()
    return Members(found[:limit], found[limit - 1] if len(found) > limit else None)


def _slices(states: Sequence[ShardState]) -> Iterator[list[tuple[ShardState, tuple[str, str]]]]:
    for state in states:
        names = state.edge_names()
        for at in range(0, len(names), LOOKED_AT_ONCE):
            yield [(state, name) for name in names[at : at + LOOKED_AT_ONCE]]


def _is_alive(state: ShardState, tenant: str, edge: str) -> bool:
    lanes = state.edge_lanes(tenant, edge).items()
    return any(held.retired is None for lane, held in lanes if lane.stream != DOWN_STREAM)
