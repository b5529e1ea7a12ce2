"""A flood of wrong passwords locks no device out: neither those that were seen before, nor those that were not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.edge_node.servers.mqtt.harness import RawClient
from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import MEASURED_AGAIN, at_most
from tests.support.stopwatch import Stopwatch
from weft.protocols.mqtt.packets import ConnAck, Connect, Disconnect
from weft.protocols.mqtt.reason_codes import ReasonCode

pytestmark = [pytest.mark.processes, MEASURED_AGAIN]
ATTACKERS = 400
"""Connections at a time. A password takes some 15 ms of a processor to check."""
REFUSED_V311 = {3, 4, 5}


async def attempt(edge: GuardedEdge, user: str, password: str) -> int:
    """Connect, and return the code of CONNACK."""
    client = await RawClient.open(edge.mqtt_port)
    try:
        client.send(Connect("", username=user, password=password.encode()))
        answer = await client.receive()
        if isinstance(answer, ConnAck) and answer.code == ReasonCode.SUCCESS:
            client.send(Disconnect())
        return int(answer.code) if isinstance(answer, ConnAck) else -1
    finally:
        await client.close()


@asynccontextmanager
async def flood(edge: GuardedEdge) -> AsyncIterator[list[int]]:
    """Wrong passwords of a user that exists and of some that do not, until the block ends. Yields the answers."""
    answers: list[int] = []

    async def attack(number: int) -> None:
        attempts = 0
        while True:
            attempts += 1
            user = ("alice", f"made-up-{number % 10}")[number % 2]
            with suppress(OSError, TimeoutError):
                answers.append(await attempt(edge, user, f"wrong {number} {attempts}"))
            await asyncio.sleep(0.1)

    attackers = [asyncio.create_task(attack(number)) for number in range(ATTACKERS)]
    await asyncio.sleep(1)
    try:
        yield answers
    finally:
        for each in attackers:
            each.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)


async def seconds_to_connect(edge: GuardedEdge, user: str) -> float:
    stopwatch = Stopwatch(edge.pid)
    assert await attempt(edge, user, user) == ReasonCode.SUCCESS
    return stopwatch.seconds()


@pytest.mark.slow
async def test_a_flood_of_wrong_passwords_locks_no_device_out(edge: GuardedEdge) -> None:
    with GoodClient(edge, "alice") as good:
        async with flood(edge) as answers:
            at_most(2, await seconds_to_connect(edge, "device"), "never seen before, and from the same address")
            at_most(0.5, await seconds_to_connect(edge, "device"), "remembered")
            await asyncio.sleep(1)
        at_most(1, good.take().p99)
    assert len(answers) > 20
    assert set(answers) <= REFUSED_V311 | {-1}
    await asyncio.sleep(6)  # what was found right is on disk by then
    edge.restart()
    async with flood(edge):
        at_most(0.5, await seconds_to_connect(edge, "device"), "remembered over the restart")
        at_most(0.5, await seconds_to_connect(edge, "alice"), "although it is her that is attacked")
        at_most(2, await seconds_to_connect(edge, "mallory"), "never seen before")
