"""Bound on the settings that come together at one edge: a frame has a layer for each of its groups, and one of its own.

An edge with more would keep what it has, so a declaration that makes one possible is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.protocols.link.configuration import LAYERS_MAX
from weft.protocols.shard.completeness import matches
from weft.storage.cluster_log.state import ClusterState

GROUPS_MAX = LAYERS_MAX - 1
"""Maximum number of groups with settings that an edge may be in."""
Members = Mapping[str, Sequence[str]]
"""Group -> names and patterns of its edges."""


def with_settings(state: ClusterState, kind: str, tenant: str) -> frozenset[str]:
    """Return the groups of a tenant for which settings are declared.

    Args:
        kind: of the facts with settings.
    """
    prefix = f"{tenant}/group/"
    return frozenset(name.removeprefix(prefix) for name in state.facts(kind) if name.startswith(prefix))


def crowded(groups: Members) -> str | None:
    """Return why an edge may be in too many of these groups; None if none can be.

    Names are looked at one by one. Of patterns, groups that can have an edge in common get different colours: an
    edge is in at most as many groups as there are colours, and seldom fewer are needed.
    """
    patterns = {group: found for group, edges in groups.items() if (found := [edge for edge in edges if "*" in edge])}
    colours: list[list[str]] = []
    for group in sorted(patterns, key=lambda each: (len(patterns[each]), each)):
        free = (colour for colour in colours if not any(_meet(patterns[group], patterns[other]) for other in colour))
        colour = next(free, None)
        if colour is None:
            colours.append(colour := [])
        colour.append(group)
    if len(colours) > GROUPS_MAX:
        what = f"an edge may be in {len(colours)} groups with settings, by their patterns"
        return f"{what}; at most {GROUPS_MAX} are possible"
    named: dict[str, set[str]] = {}
    for group, edges in groups.items():
        for edge in edges:
            if "*" not in edge:
                named.setdefault(edge, set()).add(group)
    for edge, own in named.items():
        if len(own) + len(colours) > GROUPS_MAX:
            by_pattern = {group for group, of in patterns.items() if any(matches(each, edge) for each in of)}
            if (count := len(own | by_pattern)) > GROUPS_MAX:
                return f"edge {edge} would be in {count} groups with settings; at most {GROUPS_MAX} are possible"
    return None


def _meet(these: Sequence[str], those: Sequence[str]) -> bool:
    return any(can_meet(one, other) for one in these for other in those)


def can_meet(one: str, other: str) -> bool:
    """Return whether a name may match both patterns, each with a ``*``: what is between the first and the last star of
    one fits into a star of the other."""
    begins, ends = (one.partition("*")[0], other.partition("*")[0]), (one.rpartition("*")[2], other.rpartition("*")[2])
    short, long = sorted(begins, key=len)
    short_end, long_end = sorted(ends, key=len)
    return long.startswith(short) and long_end.endswith(short_end)
