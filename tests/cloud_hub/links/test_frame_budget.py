"""What the frames of one token or tenant cost makes its own links wait, and no others."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.cloud_hub import virtual_time
from weft.bounds import Owner, OwnerKind, Refusals
from weft.cloud_hub.links.edge_link import COST_AT_ONCE, COST_PER_S, TENANT, FrameBudget
from weft.replication.runner import LinkRefused, LinkSession


class Link:
    """A link of a token, whose frames had a cost."""

    def __init__(self, token: str, tenant: str) -> None:
        self.token, self.edge = token, Owner(OwnerKind.EDGE, f"{tenant}/{token}")
        self.cost = 0
        self.edge_has_left = False

    def control_cost(self) -> int:
        cost, self.cost = self.cost, 0
        return cost

    async def pay(self, budget: FrameBudget, cost: int) -> float:
        """Pay for frames. Return the seconds of waiting."""
        now = asyncio.get_running_loop().time
        began, self.cost = now(), cost
        await budget.pay(cast(LinkSession, self), self.token, self.edge)
        return now() - began


def budget() -> tuple[FrameBudget, Refusals]:
    clock = asyncio.get_running_loop().time
    refusals = Refusals(clock)
    return FrameBudget(refusals, clock), refusals


def test_the_links_of_a_token_share_its_budget_and_others_have_their_own() -> None:
    async def main() -> None:
        frames, refusals = budget()
        first, second = Link("press-1", "evil"), Link("press-1", "evil")
        assert await first.pay(frames, COST_AT_ONCE) == 0
        assert await second.pay(frames, 3 * COST_PER_S) == pytest.approx(3)
        assert await Link("press-2", "evil").pay(frames, COST_PER_S) == 0
        assert await Link("press-1", "good").pay(frames, 0) == 0
        assert [(found.bound, str(found.owner)) for found in refusals] == [("frames of links", "edge evil/press-1")]

    virtual_time.run(main())


def test_many_tokens_of_a_tenant_have_no_more_than_its_share() -> None:
    async def main() -> None:
        frames, _ = budget()
        links = [Link(f"press-{number}", "evil") for number in range(64)]
        waits = await asyncio.gather(*(link.pay(frames, COST_AT_ONCE) for link in links))
        assert max(waits) >= (64 - TENANT) * COST_AT_ONCE / (TENANT * COST_PER_S) - 1
        assert await Link("press-1", "good").pay(frames, COST_AT_ONCE) == 0

    virtual_time.run(main())


def test_what_an_edge_beyond_its_share_sent_goes_with_its_link() -> None:
    async def main() -> None:
        frames, _ = budget()
        link = Link("press-1", "evil")
        link.cost = 100 * COST_AT_ONCE
        waiting = asyncio.create_task(frames.pay(cast(LinkSession, link), link.token, link.edge))
        await asyncio.sleep(5)
        assert not waiting.done()
        link.edge_has_left = True
        with pytest.raises(LinkRefused):
            await waiting

    virtual_time.run(main())


def test_an_honest_edge_that_says_its_last_words_and_leaves_is_heard() -> None:
    async def main() -> None:
        frames, _ = budget()
        link = Link("press-1", "good")
        link.edge_has_left = True
        assert await link.pay(frames, COST_PER_S) == 0

    virtual_time.run(main())
