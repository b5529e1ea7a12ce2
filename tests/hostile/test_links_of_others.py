"""An edge's token is for that edge's lanes alone."""

from __future__ import annotations

import pytest

from tests.hostile.hub import GOOD, NEIGHBOUR, GuardedHub
from tests.hostile.link_client import GoodLink, link_to, records
from tests.support.waiting import until
from weft.protocols.link import Ack, LaneClosed, LaneOpen, LaneOpened, Refuse, RefuseCode, Welcome

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("node", [pytest.param(NEIGHBOUR, marks=pytest.mark.slow), GOOD])
async def test_a_token_opens_no_link_and_no_lane_of_another_edge(hub: GuardedHub, node: tuple[str, str]) -> None:
    async with link_to(hub) as link:
        link.tenant, link.edge = node
        refusal = await link.greet()
        assert isinstance(refusal, Refuse)
        assert refusal.code == RefuseCode.UNAUTHORISED
    async with link_to(hub) as link:
        assert isinstance(await link.greet(), Welcome)
        [closed] = await link.open(LaneOpen(1, *node, link.log_id, "telemetry", 1, []))
        assert isinstance(closed, LaneClosed)
        assert closed.code == RefuseCode.UNAUTHORISED
        [opened] = await link.open(link.opening(2))
        assert isinstance(opened, LaneOpened)
        assert isinstance(await link.deliver(records(0, lane=2), lane=2), Ack)


async def test_links_of_both_tenants_work_side_by_side(hub: GuardedHub) -> None:
    with GoodLink(hub) as good, GoodLink(hub, NEIGHBOUR) as neighbour:
        first, other = good.sent, neighbour.sent
        await until(lambda: good.sent > first + 3 and neighbour.sent > other + 3)
    hub.restart()
    with GoodLink(hub) as again:
        assert again.sent == good.sent
