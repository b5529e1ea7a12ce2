"""A token has a few links, whose oldest makes room; and none once it is revoked."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.hostile.hub import HOSTILE, GuardedHub
from tests.hostile.link_client import GoodLink, link_to, records
from weft.protocols.link import Ack, LaneOpened, Refuse, RefuseCode, Welcome

pytestmark = pytest.mark.processes


async def test_the_oldest_link_of_a_token_makes_room(tmp_path: Path) -> None:
    hub = GuardedHub(tmp_path, limits="links: 6, links_per_token: 3")
    hub.start()
    try:
        async with contextlib.AsyncExitStack() as stack:
            links = []
            for _ in range(8):
                links.append(await stack.enter_async_context(link_to(hub)))
                assert isinstance(await links[-1].greet(), Welcome)
                if len(links) > 3:
                    refusal = await links[-4].hear(Refuse)
                    assert refusal.code == RefuseCode.OVERLOADED
                    await links[-4].socket.close()
            for link in links[5:]:
                [answer] = await link.open(link.opening())
                assert isinstance(answer, LaneOpened)
            with GoodLink(hub) as good:
                assert good.sent >= 0
        assert hub.metrics()['weft_hub_refusals_total{bound="limits.links_per_token",owner="edge evil/mallory"}'] == 5
    finally:
        hub.stop()


async def test_links_of_a_revoked_token_end(hub: GuardedHub) -> None:
    with GoodLink(hub) as good:
        async with link_to(hub) as link, link_to(hub) as silent:
            await link.greet()
            await link.open(link.opening())
            assert isinstance(await link.deliver(records(0)), Ack)
            hub.revoke(*HOSTILE)
            refusal = await link.hear(Refuse)
            assert refusal.code == RefuseCode.UNAUTHORISED
            assert "revoked" in refusal.message
            answer = await silent.greet()
            assert isinstance(answer, Refuse)
        assert good.take().acknowledged
