"""A user whose sessions change all the time fills its own share of the session journal, and slows itself down."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.edge_node.servers.mqtt.harness import RawClient
from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import at_most
from tests.support.slices import SLICE
from tests.support.stopwatch import Stopwatch
from weft.protocols.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
)

pytestmark = pytest.mark.processes
LONG = [f"public/{number}/{'x' * 60_000}" for number in range(15)]
"""Filters of a packet of nearly 1 MiB: each is in the journal."""


async def connect(edge: GuardedEdge, user: str, client_id: str) -> tuple[RawClient, ConnAck | None]:
    client = await RawClient.open(edge.mqtt_port)
    client.send(Connect(client_id, clean_start=False, username=user, password=user.encode()))
    return client, await client.receive()


async def subscribe_and_unsubscribe(edge: GuardedEdge, number: int) -> None:
    client, _ = await connect(edge, "mallory", f"churn-{number}")
    try:
        while True:
            client.send(Subscribe(1, tuple(Subscription(text, 1) for text in LONG)), Unsubscribe(2, tuple(LONG)))
            if await client.receive() is None or await client.receive() is None:
                return
    finally:
        await client.close()


async def connect_and_leave(edge: GuardedEdge, number: int) -> None:
    client, answer = await connect(edge, "mallory", f"churn-{number}")
    if answer is not None and answer.code == 0:
        client.send(Subscribe(1, (Subscription(LONG[number], 1),)), Disconnect())
        await client.receive()
    await client.close()


Attack = Callable[[GuardedEdge, int], Coroutine[None, None, None]]


@asynccontextmanager
async def attacked(edge: GuardedEdge, attack: Attack) -> AsyncIterator[None]:
    async def again_and_again(number: int) -> None:
        while True:
            with suppress(OSError, TimeoutError):
                await attack(edge, number)
            await asyncio.sleep(0.01)

    attackers = [asyncio.create_task(again_and_again(number)) for number in range(3)]
    try:
        yield
    finally:
        for each in attackers:
            each.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)


async def come_and_go(edge: GuardedEdge, seconds: float) -> tuple[Counter[str], float]:
    """A device with a persistent session that comes, publishes and goes: what came of it, and its longest time."""
    outcomes: Counter[str] = Counter()
    longest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        stopwatch = Stopwatch(edge.pid)
        client, answer = await connect(edge, "device", "comes-and-goes")
        if isinstance(answer, ConnAck) and answer.code == 0:
            client.send(Publish(b"plant/a/b/telemetry", b"x", 1, 7))
            outcomes["acknowledged" if isinstance(await client.receive(), PubAck) else "closed"] += 1
            client.send(Disconnect())
            await client.receive()
        else:
            outcomes[f"refused: {answer}"] += 1
        await client.close()
        longest = max(longest, stopwatch.seconds())
        await asyncio.sleep(0.05)
    return outcomes, longest


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("attack", "seconds"),
    [
        (subscribe_and_unsubscribe, 2),
        *(
            pytest.param(attack, SLICE.amount(ci=3, night=8), marks=pytest.mark.search)
            for attack in SLICE.some([connect_and_leave, subscribe_and_unsubscribe], ci=1)
        ),
    ],
)
async def test_churn_of_one_user_neither_stops_others_nor_fills_the_disk(
    edge: GuardedEdge, attack: Attack, seconds: float
) -> None:
    before = bytes_of(edge.folder / "data")
    with GoodClient(edge, "device") as good:
        async with attacked(edge, attack):
            outcomes, longest = await come_and_go(edge, seconds)
        waits = good.take()
    written = bytes_of(edge.folder / "data") - before
    figures = dict(line.split() for line in edge.metrics().splitlines() if line.startswith("weft_edge_journal"))
    assert set(outcomes) == {"acknowledged"}
    at_most(1, longest)
    at_most(1, waits.p99)
    assert float(figures["weft_edge_journal_refused_total"]) == 0
    assert float(figures["weft_edge_journal_bytes"]) < 40e6, "a burst, and what comes between two saves"
    assert written < 100e6
