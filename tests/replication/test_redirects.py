"""Redirects: what a link tries next when a hub names another node."""

from __future__ import annotations

import random

import pytest

from weft.protocols.link import RefuseCode
from weft.replication.runner.connection import ConnectionEnd
from weft.replication.runner.redirects import HOPS_MAX, SILENT_S, UNREACHABLE_MIN_S, Redirects, Target
from weft.replication.status import LinkState

FIRST, OTHER, ELSEWHERE = "http://hub:8090", "http://hub:8091", "http://hub-2:8090"
BROKEN = ConnectionEnd(LinkState.WAITING, "no connection")
SILENT = ConnectionEnd(LinkState.WAITING, "no answer within 10 s", is_silent=True)
TAKEN_OVER = ConnectionEnd(LinkState.CONFLICT, "another one", RefuseCode.IDENTITY_CONFLICT)


def named(url: str) -> ConnectionEnd:
    return ConnectionEnd(LinkState.WAITING, "elsewhere", RefuseCode.REDIRECT, url)


@pytest.fixture
def redirects() -> Redirects:
    return Redirects(random.Random(1))


def test_an_edge_goes_where_it_is_sent_and_comes_back_when_that_cannot_be_reached(redirects: Redirects) -> None:
    there = redirects.after(Target(FIRST), named(OTHER), taken=False, now=0)
    assert there == Target(OTHER, FIRST, 1)
    back = redirects.after(there, BROKEN, taken=False, now=1)
    assert back is not None
    assert back.url == FIRST
    assert back.stay_s is not None
    # It is not tried again for a while; then it is.
    again = redirects.after(Target(FIRST), named(OTHER), taken=False, now=2)
    assert again is not None
    assert (again.url, again.stay_s is not None) == (FIRST, True)
    assert redirects.after(Target(FIRST), named(OTHER), taken=False, now=2 + UNREACHABLE_MIN_S) == there


def test_a_node_that_took_the_link_is_reachable(redirects: Redirects) -> None:
    there = Target(OTHER, FIRST, 1)
    assert redirects.after(there, BROKEN, taken=True, now=0) is None
    assert redirects.after(Target(FIRST), named(OTHER), taken=False, now=1) == there


@pytest.mark.parametrize("taken", [True, False])
def test_a_host_that_fell_silent_is_left_alone_until_the_hub_knows(redirects: Redirects, *, taken: bool) -> None:
    assert redirects.after(Target(OTHER), SILENT, taken=taken, now=0) is None
    assert redirects.best([FIRST, OTHER, ELSEWHERE], 1) == ELSEWHERE
    assert redirects.best([OTHER, FIRST], 1) == OTHER
    for url in (FIRST, OTHER):
        stays = redirects.after(Target(ELSEWHERE), named(url), taken=False, now=1)
        assert stays is not None
        assert stays.url == ELSEWHERE
        assert stays.stay_s is not None
        assert SILENT_S - 1 <= stays.stay_s <= 1.5 * SILENT_S
    assert redirects.best([OTHER, ELSEWHERE], SILENT_S) == OTHER
    there = redirects.after(Target(ELSEWHERE), named(OTHER), taken=False, now=SILENT_S)
    assert there == Target(OTHER, ELSEWHERE, 1)


def test_an_edge_without_a_network_leaves_no_node_alone_for_long(redirects: Redirects) -> None:
    for hour in range(9):
        for url in (FIRST, ELSEWHERE):
            assert redirects.after(Target(url), SILENT, taken=False, now=3600.0 * hour) is None
    later = 8 * 3600.0 + SILENT_S
    assert redirects.best([ELSEWHERE, FIRST], later) == ELSEWHERE
    there = redirects.after(Target(FIRST), named(ELSEWHERE), taken=False, now=later)
    assert there == Target(ELSEWHERE, FIRST, 1)


def test_a_node_that_was_reached_before_is_tried_again_soon(redirects: Redirects) -> None:
    assert redirects.after(Target(OTHER), BROKEN, taken=True, now=0) is None
    there = redirects.after(Target(FIRST), named(OTHER), taken=False, now=1)
    assert there is not None
    back = redirects.after(there, BROKEN, taken=False, now=1)
    assert back is not None
    assert back.stay_s is not None
    assert back.stay_s <= 1.5 * SILENT_S


def test_a_refusal_of_the_edge_itself_is_not_a_matter_of_reach(redirects: Redirects) -> None:
    assert redirects.after(Target(OTHER, FIRST, 1), TAKEN_OVER, taken=False, now=0) is None
    assert redirects.after(Target(FIRST), BROKEN, taken=False, now=0) is None


def test_nodes_that_name_each_other_end_in_one_of_them(redirects: Redirects) -> None:
    target: Target | None = Target(FIRST)
    tried: list[Target] = []
    while target is not None and len(tried) < 10:
        tried.append(target)
        target = redirects.after(target, named(OTHER if target.url == FIRST else FIRST), taken=False, now=0)
    assert len(tried) == HOPS_MAX + 2
    assert tried[-1].stay_s is not None


@pytest.mark.parametrize("url", ["http://hub.example.com", "ftp://x", "https://", "https://x:99999", "", "no url"])
def test_an_edge_never_leaves_tls_and_follows_no_nonsense(redirects: Redirects, url: str) -> None:
    target = redirects.after(Target("https://hub.example.com"), named(url), taken=False, now=0)
    assert target is not None
    assert (target.url, target.stay_s is not None) == ("https://hub.example.com", True)
