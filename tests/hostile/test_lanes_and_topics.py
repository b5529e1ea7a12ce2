"""One token takes its share of a shard's lanes and state, however many links say so at once, and others have theirs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.hostile.hub import NEIGHBOUR, GuardedHub
from tests.hostile.link_client import GoodLink, RawLink, link_to, records
from tests.hostile.waits import at_most
from weft.protocols.lane import Origin
from weft.protocols.link import Ack, LaneClosed, LaneOpen, LaneOpened, LaneOrigins, Refuse, RefuseCode, Welcome

pytestmark = pytest.mark.processes
LANES = 1500
LINKS = 4


async def offer(link: RawLink, openings: list[LaneOpen]) -> list[LaneOpened | LaneClosed | Refuse]:
    assert isinstance(await link.greet(), Welcome)
    return await link.open(*openings)


@pytest.mark.slow
async def test_lanes_of_one_edge_are_its_share_and_no_more(hub: GuardedHub) -> None:
    with GoodLink(hub) as good:
        async with contextlib.AsyncExitStack() as stack:
            links = [await stack.enter_async_context(link_to(hub)) for _ in range(LINKS)]
            offers = [[link.opening(at, f"s{at}") for at in range(1, LANES + 1)] for link in links]
            answers = await asyncio.gather(*map(offer, links, offers))
        opened = [answer for of_link in answers for answer in of_link if isinstance(answer, LaneOpened)]
        closed = [answer for of_link in answers for answer in of_link if isinstance(answer, LaneClosed)]
        assert len(opened) == 1024
        assert {answer.code for answer in closed} == {RefuseCode.OVERLOADED}
        at_most(3, good.take().longest)
        assert hub.metrics()['weft_hub_refusals_total{bound="limits.lanes_per_edge",owner="edge evil/mallory"}'] > 1000
    hub.restart()
    with GoodLink(hub) as good, GoodLink(hub, NEIGHBOUR, log_id=9) as neighbour:
        await asyncio.sleep(0.3)
        assert good.take().acknowledged
        assert neighbour.take().acknowledged


@pytest.mark.parametrize(
    "topics",
    [
        [f"{number:03}/" + "x" * 16_000 for number in range(256)],
        pytest.param(["/".join(["+"] * 129)], marks=pytest.mark.slow),
        pytest.param(["plant/{" + "c" * 400_000 + "}/x"], marks=pytest.mark.slow),
        pytest.param(["plant/{line}{machine}"], marks=pytest.mark.slow),
        ["plant/{line}/{line}"],
    ],
)
async def test_patterns_that_cannot_be_close_their_own_lane_only(hub: GuardedHub, topics: list[str]) -> None:
    before = hub.store_bytes()
    async with link_to(hub, level=19) as link:
        answers = await offer(link, [link.opening(1, "odd", topics), link.opening(2, "telemetry")])
        assert isinstance(answers[0], LaneClosed)
        assert answers[0].code == RefuseCode.BAD_HELLO
        assert len(answers[0].message) < 400
        assert isinstance(answers[1], LaneOpened)
        assert isinstance(await link.deliver(records(0, lane=2), lane=2), Ack)
    assert hub.store_bytes() - before < 64 << 10


@pytest.mark.slow
async def test_topics_and_origins_of_an_edge_are_its_share(hub: GuardedHub) -> None:
    topics = [f"{number}/" + "x" * 15_000 for number in range(4)]
    origins = [Origin(number, 1, "n" * 255, "v" * 255, b"h" * 64) for number in range(1, 1025)]
    before = hub.memory_bytes()
    with GoodLink(hub) as good:
        async with contextlib.AsyncExitStack() as stack:
            links = [await stack.enter_async_context(link_to(hub, level=19)) for _ in range(6)]
            offers = [[link.opening(at, f"s{at}", topics) for at in range(1, 9)] for link in links]
            answers = await asyncio.gather(*map(offer, links, offers))
        opened = [answer for of_link in answers for answer in of_link if isinstance(answer, LaneOpened)]
        assert len(opened) == 4  # of 60 kB each, of 256 KiB
        async with link_to(hub, level=19) as link:
            await offer(link, [link.opening(at, f"o{at}") for at in range(1, 41)])
            refused = 0
            for at in range(1, 41):
                await link.send(LaneOrigins(at, origins))
                answer = await link.deliver(records(0, lane=at), lane=at)
                refused += isinstance(answer, LaneClosed)
            assert refused >= 30
        at_most(3, good.take().longest)
    assert hub.memory_bytes() - before < 200 << 20
    assert hub.store_bytes() < 20 << 20


@pytest.mark.slow
async def test_lanes_that_come_again_with_other_texts_hold_nobody_up(hub: GuardedHub) -> None:
    """All lanes of an edge, each with as many patterns as it may have; then again, with others that find no room."""
    texts = [[chr(first + number % 26) for number in range(256)] for first in (ord("a"), ord("A"))]
    with GoodLink(hub) as good:
        for epoch in (1, 2, 3):
            async with link_to(hub, log_id=7) as link:
                lanes = range(1, 1025)
                answers = await offer(link, [link.opening(at, f"s{at}", texts[epoch % 2], epoch=epoch) for at in lanes])
                assert {isinstance(answer, LaneOpened) for answer in answers} == {epoch != 2}
        at_most(1, good.take().longest)
