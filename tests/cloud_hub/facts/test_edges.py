"""Groups of edges, as the cluster log declares them: pure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud_hub.facts.test_tokens import Cluster
from weft.cloud_hub.facts import edges as edge_configs
from weft.cloud_hub.facts import tenants as tenant_changes
from weft.cloud_hub.facts.edges import (
    GROUPS_MAX,
    GROUPS_PER_TENANT_MAX,
    PATTERNS_PER_TENANT_MAX,
    ConfigDocument,
    DesiredConfigs,
    GroupDocument,
    Groups,
    can_meet,
    crowded,
)
from weft.cloud_hub.facts.fact import CONFIG, GROUP, CannotDeclare, encode
from weft.cloud_hub.facts.tenants import Quotas
from weft.protocols.lane import matches


def cluster(**sets: tuple[str, ...]) -> Cluster:
    made = Cluster()
    for name, edges in sets.items():
        made.declare(edge_configs.set_group(("default", name), edges))
    return made


def test_an_edge_is_in_the_groups_that_name_it_or_match_it() -> None:
    made = cluster(presses=("press-*",), hall=("press-1", "oven"), all=("*",))
    made.declare(tenant_changes.set_tenant("acme", Quotas(), is_new=True))
    made.declare(edge_configs.set_group(("acme", "others"), ("press-*",)))
    known = Groups.of(made.state)
    assert known.of_edge("default", "press-1") == ("all", "hall", "presses")
    assert known.of_edge("default", "oven") == ("all", "hall")
    assert known.of_edge("default", "welder") == ("all",)
    assert known.of_edge("acme", "press-1") == ("others",), "groups of another tenant do not count"
    assert known.of_edge("other", "press-1") == ()


def test_a_group_with_a_higher_order_comes_later_and_keeps_its_place_when_its_edges_change() -> None:
    made = cluster(b=("*",), c=("*",))
    made.declare(edge_configs.set_group(("default", "a"), ("*",), 5))
    made.declare(edge_configs.set_group(("default", "a"), ("x", "*")))
    known = Groups.of(made.state)
    assert known.of_edge("default", "x") == ("b", "c", "a")


def test_groups_follow_the_log_and_are_read_again_only_after_an_entry_about_one() -> None:
    made, known = cluster(a=("x",)), Groups()
    assert known.refresh(made.state)
    made.add("token", "secret")
    assert not known.refresh(made.state)
    made.declare(edge_configs.remove_group(("default", "a")))
    assert known.refresh(made.state)
    assert known.of_edge("default", "x") == ()


def test_a_document_that_this_release_cannot_read_is_named_and_passed_over() -> None:
    made = cluster(a=("x",))
    for name, document in (("b", b"not json"), ("c", b'{"edges": 7}'), ("d", b'{"order": 1}')):
        made.write(GROUP, f"default/{name}", document)
    made.write(GROUP, "default/later", json.dumps({"edges": ["x"], "of_a_later_release": 1}).encode())
    known = Groups.of(made.state)
    assert sorted(known.unusable) == ["default/b", "default/c", "default/d"]
    assert known.of_edge("default", "x") == ("a", "later")
    with pytest.raises(CannotDeclare, match="this release cannot read group 'default/b'"):
        made.declare(edge_configs.set_group(("default", "b"), ("x",)))
    made.declare(edge_configs.set_group(("default", "later"), ("y",)))
    kept = json.loads(made.state.facts(GROUP)["default/later"].document)
    assert kept == {"edges": ["y"], "of_a_later_release": 1}, "fields of later releases stay"


def test_what_is_not_a_group_is_refused_with_the_remedy() -> None:
    made = cluster(a=("x",))
    for key, edges, why in (
        (("default", "A"), ("x",), "is not a valid name"),
        (("default", "a/b"), ("x",), "is not a valid name"),
        (("default", "b"), ("Press*",), "is not a valid name"),
        (("default", "b"), (), "needs edges"),
        (("acme", "b"), ("x",), "declare it first"),
        (("default", "b"), tuple(f"{'long' * 15}{n:04}" for n in range(2000)), "use patterns"),
        (("default", "b"), tuple(f"p-{n}-*" for n in range(PATTERNS_PER_TENANT_MAX + 1)), "use fewer"),
    ):
        with pytest.raises(CannotDeclare, match=why):
            made.declare(edge_configs.set_group(key, edges))
    with pytest.raises(CannotDeclare, match="there are: default/a"):
        made.declare(edge_configs.remove_group(("default", "b")))
    made.write(GROUP, "default/a", None)
    for n in range(GROUPS_PER_TENANT_MAX):
        made.write(GROUP, f"default/g{n}", b'{"edges":["x"]}')
    with pytest.raises(CannotDeclare, match="its limit"):
        made.declare(edge_configs.set_group(("default", "one-more"), ("x",)))
    made.declare(edge_configs.set_group(("default", "g7"), ("y",)))


def test_a_tenant_with_groups_is_not_withdrawn() -> None:
    made = Cluster()
    made.declare(tenant_changes.set_tenant("acme", Quotas(), is_new=True))
    made.declare(edge_configs.set_group(("acme", "presses"), ("press-*",)))
    with pytest.raises(CannotDeclare, match="are declared: acme/presses"):
        made.declare(tenant_changes.remove_tenant("acme"))
    made.declare(edge_configs.remove_group(("acme", "presses")))
    made.declare(tenant_changes.remove_tenant("acme"))


@given(st.lists(st.text("ab*", min_size=1, max_size=6), min_size=1, max_size=5), st.text("ab", min_size=1, max_size=8))
def test_groups_of_an_edge_are_those_that_a_reader_would_name(patterns: list[str], edge: str) -> None:
    made = Cluster()
    for n, pattern in enumerate(patterns):
        made.write(GROUP, f"default/g{n}", json.dumps({"edges": [pattern]}).encode())
    found = Groups.of(made.state).of_edge("default", edge)
    assert found == tuple(f"g{n}" for n, pattern in enumerate(patterns) if _reads_as(pattern, edge))


def _reads_as(pattern: str, edge: str) -> bool:
    if not pattern:
        return not edge
    if pattern[0] == "*":
        return any(_reads_as(pattern[1:], edge[n:]) for n in range(len(edge) + 1))
    return edge[:1] == pattern[0] and _reads_as(pattern[1:], edge[1:])


# --- Settings of too many groups for one edge are refused where they are declared, and nothing else is. Pure


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
    with pytest.raises(CannotDeclare, match="in 17 groups with settings; the limit is 16: withdraw settings"):
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
