"""Settings of too many groups for one edge are refused where they are declared, and nothing else is. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.facts.test_credentials import Cluster
from weft.cloud_hub.facts import edges as edge_configs
from weft.cloud_hub.facts.edges import (
    GROUPS_MAX,
    ConfigDocument,
    DesiredConfigs,
    GroupDocument,
    Groups,
    can_meet,
    crowded,
)
from weft.cloud_hub.facts.fact import CONFIG, GROUP, CannotDeclare, encode
from weft.protocols.lane import matches

TEXT = "disk: {budget: 2GiB}"
NAMES = st.text("ab", max_size=5)
PATTERNS = st.lists(NAMES, min_size=2, max_size=4).map("*".join)


def configured(made: Cluster, group: str, *edges: str) -> None:
    made.declare(edge_configs.set_group(("default", group), edges))
    made.declare(edge_configs.set_config(("default", "group", group), TEXT))


@pytest.mark.parametrize("edges", [("press-1",), ("press-*",), ("*-1", "press-2")], ids=["names", "patterns", "both"])
def test_settings_of_one_group_too_many_are_refused_with_the_reason(edges: tuple[str, ...]) -> None:
    made = Cluster()
    for at in range(GROUPS_MAX):
        configured(made, f"g{at}", *edges)
    made.declare(edge_configs.set_config(("default", "edge", "press-1"), TEXT))
    configs = DesiredConfigs(Groups.of(made.state))
    configs.refresh(made.state)
    desired = configs.of_edge("default", "press-1")
    assert desired is not None
    assert len(desired.layers) == GROUPS_MAX + 1
    made.declare(edge_configs.set_group(("default", "more"), ("press-1",)))
    with pytest.raises(CannotDeclare, match="in 17 groups with settings; at most 16 are possible: withdraw settings"):
        made.declare(edge_configs.set_config(("default", "group", "more"), TEXT))
    made.declare(edge_configs.set_group(("default", "more"), ("oven",)))
    made.declare(edge_configs.set_config(("default", "group", "more"), TEXT))
    with pytest.raises(CannotDeclare, match="in 17 groups with settings"):
        made.declare(edge_configs.set_group(("default", "more"), ("oven", "press-1")))
    made.declare(edge_configs.set_config(("default", "group", "g0"), f"{TEXT} # again"))
    made.declare(edge_configs.remove_config(("default", "group", "g0")))
    made.declare(edge_configs.set_group(("default", "more"), ("oven", "press-1")))


def test_many_groups_that_have_no_edge_in_common_are_fine() -> None:
    made = Cluster()
    for at in range(20):
        configured(made, f"kind-{at}", f"kind{at}-*")
        configured(made, f"hall-{at}", f"*-hall{at}")
        configured(made, f"one-{at}", f"kind{at}-1-hall{at}")
    assert len(made.state.facts(CONFIG)) == 60


def test_an_edge_with_too_many_settings_of_an_earlier_release_is_named() -> None:
    made = Cluster()
    for at in range(GROUPS_MAX + 2):
        made.write(GROUP, f"default/g{at}", encode(GroupDocument(("press-*",)), None))
        made.write(CONFIG, f"default/group/g{at}", encode(ConfigDocument(TEXT, at + 1), None))
    configs = DesiredConfigs(Groups.of(made.state))
    configs.refresh(made.state)
    assert configs.of_edge("default", "press-1") is None
    assert "18 layers" in configs.unusable["default/edge/press-1"]


@given(PATTERNS, PATTERNS)
def test_patterns_that_cannot_meet_have_no_name_in_common(one: str, other: str) -> None:
    both = ["", *(one.replace("*", each) for each in ("", "a", "b", other.replace("*", "")))]
    if any(matches(one, name) and matches(other, name) for name in both):
        assert can_meet(one, other)
    if can_meet(one, other):
        (head, *_, _), (first, *_, _) = one.split("*"), other.split("*")
        tails = one.rpartition("*")[2], other.rpartition("*")[2]
        middle = "".join((*one.split("*")[1:-1], *other.split("*")[1:-1]))
        name = max(head, first, key=len) + middle + max(tails, key=len)
        assert matches(one, name)
        assert matches(other, name)


@given(st.dictionaries(st.integers(0, 40).map(str), st.lists(PATTERNS | NAMES, max_size=3), max_size=40), NAMES)
def test_no_edge_is_in_more_groups_than_were_found_fine(members: dict[str, list[str]], edge: str) -> None:
    if crowded(members) is None:
        assert sum(any(matches(each, edge) for each in edges) for edges in members.values()) <= GROUPS_MAX
