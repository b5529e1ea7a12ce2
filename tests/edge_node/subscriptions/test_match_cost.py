"""A message visits a bounded number of nodes of the filter tree, whatever filters there are and whose they are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.bounds import Owner, OwnerKind, Quota, Refusals
from weft.edge_node.subscriptions.limits import MatchCost
from weft.protocols import topics
from weft.protocols.topics import FilterTree

COMMON_NODES = 833
ALICE, MALLORY = Owner(OwnerKind.USER, "alice"), Owner(OwnerKind.USER, "mallory")
LEVELS = st.lists(st.sampled_from(["a", "+"]), min_size=1, max_size=24).map("/".join)
FILTERS = LEVELS | LEVELS.map("{}/#".format)
SUBSCRIPTIONS = st.lists(st.tuples(st.sampled_from([ALICE, MALLORY]), FILTERS, st.sampled_from(["", "g", "h"])))


def account(total: int = 4096, share: int = 1024) -> MatchCost:
    return MatchCost(Quota("limits.match_cost", total, share, "filters"), Refusals(lambda: 0.0))


class Visited:
    """A tree of filters that counts the nodes which are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counted = self

        class CountedNode(topics._Node[str]):
            def __getattribute__(self, name: str) -> object:
                counted.visits += name == "children"
                return super().__getattribute__(name)

        self.visits = 0
        monkeypatch.setattr(topics, "_Node", CountedNode)
        self.tree: FilterTree[str] = FilterTree()

    def count(self, topic: str) -> int:
        self.visits = 0
        self.tree.match(topic)
        return self.visits


def deep_filters(count: int) -> list[str]:
    """Filters whose first 16 levels are ``a`` or ``+``, in ever other ways, with a hundred levels behind them."""
    chance, found = random.Random(1), set[str]()
    while len(found) < count:
        found.add("/".join([*(chance.choice("a+") for _ in range(16)), *["a"] * 110, "z"]))
    return sorted(found)


def test_a_message_visits_no_more_nodes_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,680 such filters had a message visit half a million nodes, which took 0.4 s"""
    cost, visited = account(), Visited(monkeypatch)
    taken = 0
    for text in deep_filters(4680):
        if cost.fits(MALLORY, text):
            cost.hold(MALLORY, text)
            visited.tree.add(text, text)
            taken += 1
    assert 0 < taken < 100
    assert cost.of(MALLORY) <= 1024
    assert visited.count("/".join(["a"] * 126)) <= COMMON_NODES + 1024


def test_common_filters_are_free_and_there_for_everyone() -> None:
    cost = account(total=1024, share=1024)
    for text in deep_filters(1000):
        if cost.fits(MALLORY, text):
            cost.hold(MALLORY, text)
    assert not cost.fits(ALICE, "/".join(["+"] * 16 + ["b"] * 90))
    for text in ("#", "+/press-7/commands", "plant/+/+/telemetry", "/".join("abcdefghijklmnop"), "a/+/b/+/#"):
        assert cost.fits(ALICE, text)
        cost.hold(ALICE, text)
    assert cost.of(ALICE) == 0


def test_a_thousand_devices_with_filters_alike_cost_as_one() -> None:
    cost = account()
    for number in range(1000):
        text = f"+/+/+/device-{number}/commands"
        assert cost.fits(ALICE, text)
        cost.hold(ALICE, text)
    assert cost.used == cost.of(ALICE) == 3


def test_each_share_is_one_message_more() -> None:
    """A client in ten thousand shares of one filter would get ten thousand copies of each message"""
    cost = account(share=3)
    for name in ("a", "b", "c"):
        assert cost.fits(ALICE, "t", name)
        cost.hold(ALICE, "t", name)
        cost.hold(ALICE, "other", name)
    assert cost.fits(ALICE, "further", "c")
    assert not cost.fits(ALICE, "t", "d")
    assert cost.fits(MALLORY, "t", "d")
    cost.free(ALICE, "t", "b")
    assert not cost.fits(ALICE, "t", "d")
    cost.free(ALICE, "other", "b")
    assert cost.fits(ALICE, "t", "d")


def test_refusals_name_the_bound_and_the_owner() -> None:
    refusals = Refusals(lambda: 0.0)
    cost = MatchCost(Quota("limits.match_cost", 4, 3, "filters"), refusals)
    cost.hold(ALICE, "+/+/+/x/y")
    assert not cost.fits(ALICE, "x/+/+/+")
    assert not cost.fits(MALLORY, "x/y/+/+/+/z")
    assert [(each.bound, each.owner) for each in refusals] == [
        ("limits.user_share of limits.match_cost", ALICE),
        ("limits.match_cost", MALLORY),
    ]


@given(SUBSCRIPTIONS)
def test_what_is_given_back_is_what_was_taken(subscriptions: list[tuple[Owner, str, str]]) -> None:
    cost = account()
    for subscription in subscriptions:
        cost.hold(*subscription)
    assert cost.used <= cost.of(ALICE) + cost.of(MALLORY)
    for subscription in reversed(subscriptions):
        cost.free(*subscription)
    assert (cost.used, cost.of(ALICE), cost.of(MALLORY)) == (0, 0, 0)


@given(SUBSCRIPTIONS)
def test_no_topic_visits_more_nodes_than_the_account_says(subscriptions: list[tuple[Owner, str, str]]) -> None:
    cost = account()
    with pytest.MonkeyPatch.context() as patch:
        visited = Visited(patch)
        for owner, text, _ in subscriptions:
            cost.hold(owner, text)
            visited.tree.add(text, text)
        assert visited.count("/".join(["a"] * 30)) <= COMMON_NODES + cost.used
