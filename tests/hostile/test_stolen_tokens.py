"""What a thief of an edge's token did to the edge's lanes is over, or can be undone, when the token is revoked."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.hostile.hub import HOSTILE, NEIGHBOUR, GuardedHub
from tests.hostile.link_client import GoodLink, link_to, records
from tests.support.processes import weft
from tests.support.waiting import wait_until
from weft.protocols.link import Ack, Data, Gap, LaneClosed, LaneOpened, LastWords, Marks, Refuse, Welcome
from weft.protocols.segment import GapReason

pytestmark = pytest.mark.processes
LOG = 55
STREAM = "/v1/streams/telemetry"


def completeness(hub: GuardedHub) -> Any:
    return hub.json(f"{STREAM}/completeness", hub.token("evil"))


def said(hub: GuardedHub, edge: str = HOSTILE[1]) -> tuple[int, bool]:
    """The number of an edge's mark, and whether it is its last word."""
    lanes = hub.json(f"{STREAM}/lanes", hub.token("evil"))["lanes"]
    lane = next(lane for lane in lanes if lane["edge"] == edge)
    return (lane["mark"] or {"seq": 0})["seq"], lane["last_word"] is not None


def conflict_of(hub: GuardedHub) -> bool:
    return "conflict" in [each["reason"] for each in completeness(hub)["held_back_by"]]


async def test_a_lane_that_is_opened_and_left_holds_no_stream_back(hub: GuardedHub) -> None:
    with GoodLink(hub, NEIGHBOUR):
        wait_until(lambda: completeness(hub)["complete_up_to"], what="a moment")
        for log_id in (LOG, LOG + 1):
            async with link_to(hub, log_id=log_id) as link:
                await link.greet()
                [answer] = await link.open(link.opening())
                assert isinstance(answer, LaneOpened)
        before = completeness(hub)["complete_up_to"]
        wait_until(lambda: completeness(hub)["complete_up_to"] > before, what="a later moment")


async def test_an_edge_that_stopped_is_waited_for_whatever_another_one_says_of_its_log(hub: GuardedHub) -> None:
    """Its log's id is in every answer about lanes, and a gap `renamed` under it looks like its new name."""
    async with link_to(hub, NEIGHBOUR, log_id=LOG) as edge:
        await edge.greet()
        await edge.open(edge.opening(epoch=5))
        await edge.send(Data(1, records(0, 10)), LastWords(time.time_ns(), [(1, 10)]))
        await edge.hear(Ack)
        wait_until(lambda: said(hub, NEIGHBOUR[1]) == (10, True), what="the last word")
    before = completeness(hub)
    async with link_to(hub, log_id=LOG) as thief:
        await thief.greet()
        await thief.open(thief.opening(epoch=6))
        await thief.send(Gap(1, 0, 10, GapReason.RENAMED), Data(1, records(10)))
        await thief.hear(Ack)
        # As one that keeps its name, and as one that is renamed itself, to the name that it is after.
        for is_last in (False, True):
            now, lanes = time.time_ns(), [(1, 11)]
            await thief.send(LastWords(now, lanes, NEIGHBOUR[1]) if is_last else Marks(now, lanes))
            wait_until(lambda is_last=is_last: said(hub) == (11, is_last), what="the mark")  # type: ignore[misc]
            after = completeness(hub)
            assert sorted(lane["edge"] for lane in after["covers"]) == [HOSTILE[1], NEIGHBOUR[1]]
            assert after["complete_up_to"] == before["complete_up_to"], "it may be back with earlier records"


@pytest.mark.slow
async def test_the_highest_epoch_is_taken_back_by_an_operator(hub: GuardedHub) -> None:
    async with link_to(hub, log_id=LOG) as edge:
        await edge.greet()
        await edge.open(edge.opening(epoch=5))
        assert isinstance(await edge.deliver(records(0, 3)), Ack)
    async with link_to(hub, log_id=LOG) as thief:
        await thief.greet()
        await thief.open(thief.opening(epoch=(1 << 63) - 1))
    async with link_to(hub, log_id=LOG) as edge:
        await edge.greet()
        await edge.send(edge.opening(epoch=6))
        assert isinstance(await edge.hear(Refuse, LaneClosed), Refuse)
        await edge.socket.close()
    hub.renew(*HOSTILE)
    wait_until(lambda: conflict_of(hub), what="the conflict")
    adopted = await asyncio.to_thread(
        weft, "hub", "adopt", hub.config_path, HOSTILE[1], "--tenant", HOSTILE[0], "--yes"
    )
    assert adopted.exception is None, adopted.output

    async with link_to(hub, log_id=LOG) as edge:
        assert isinstance(await edge.greet(), Welcome)
        wait_until(lambda: not conflict_of(hub), what="the end of the conflict")
        [answer] = await edge.open(edge.opening(epoch=6))
        assert isinstance(answer, LaneOpened), answer
        assert isinstance(await edge.deliver(records(3, 3)), Ack)


async def test_a_gap_over_all_numbers_is_healed_by_the_records(hub: GuardedHub) -> None:
    async with link_to(hub, log_id=LOG) as thief:
        await thief.greet()
        await thief.open(thief.opening())
        await thief.send(Gap(1, 0, 1 << 62, 1))
        await thief.hear(Ack)
    hub.renew(*HOSTILE)
    async with link_to(hub, log_id=LOG) as edge:
        await edge.greet()
        [answer] = await edge.open(edge.opening(epoch=2))
        assert isinstance(answer, LaneOpened)
        assert answer.ranges == [], "records that the hub does not have"
        for first in range(0, 50, 10):
            ack = await edge.deliver(records(first, 10))
            assert isinstance(ack, Ack)
            assert ack.ranges[0] == (0, first + 10)
    hub.restart()

    def rows() -> int:
        return int(hub.json(STREAM, hub.token("evil"))["table_rows"] or 0)

    wait_until(lambda: rows() == 50, what="every record as a row, once")
