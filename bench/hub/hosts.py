"""The capacity of one, two and four hosts on one store, from what a batch costs each and which shards each owns.

One machine has too few cores to run four hosts at their full rate at once, so the rate of all follows from two things
that it can measure. All hosts run, on one core, with all links open, each at the owner of its edge's shard as redirects
take it there. One host after the other gets batches as fast as it acknowledges them, while the others' links are idle:
its processor time for a batch is that at its full rate. A host with a core of its own takes ``1 / cost`` batches a
second; edges send alike, so the one with the most work for its share of the links is full first, and the rate of all
hosts is ``min(1 / (cost * share))``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from bench.common import LOAD_CORE, SERVER_CORE, pin
from bench.hub import server
from bench.hub.generator import Counts, Link, connect
from bench.hub.script import FIRST, RECORDS, Fleet, Message
from bench.hub.server import Server, running, until_divided
from weft.protocols.shard.placement import shard_of

HOSTS = (1, 2, 4)
SHARDS = 16
SETTLE_S = 2.0
ANSWERED_S_MAX = 60.0
REST_S = 5.0
"""Interval at which a link that sends nothing says that it lives."""


def hosts(fleet: Fleet, seconds: float, directory: str | None, scripts: Sequence[Sequence[Message]]) -> dict[str, Any]:
    """Measure each number of hosts, and compare their rates with that of one."""
    result: dict[str, Any] = {"shards": SHARDS}
    for count in HOSTS:
        found = _measure(count, fleet, seconds, directory, scripts)
        result |= {f"hosts_{count}_{name}": value for name, value in found.items()}
    for count in HOSTS[1:]:
        result[f"hosts_{count}_ratio"] = round(
            result[f"hosts_{count}_batches_per_s"] / result["hosts_1_batches_per_s"], 2
        )
    return result


def _measure(
    count: int, fleet: Fleet, seconds: float, directory: str | None, scripts: Sequence[Sequence[Message]]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=directory) as name:
        folder = Path(name)
        with contextlib.ExitStack() as stack:
            nodes = [
                stack.enter_context(running(folder, 1, [SERVER_CORE], shards=SHARDS, is_host=True))
                for _ in range(count)
            ]
            pin(LOAD_CORE)
            owned = until_divided([node.urls[0] for node in nodes], SHARDS)
            found, acked = uvloop.run(_receive(nodes, owned, fleet, seconds, scripts))
        server.check_log(folder, acked, RECORDS)
    return {**found, "shards_of_each": [len(shards) for shards in owned]}


async def _receive(
    nodes: Sequence[Server],
    owned: Sequence[set[int]],
    fleet: Fleet,
    seconds: float,
    scripts: Sequence[Sequence[Message]],
) -> tuple[dict[str, Any], int]:
    """Return what each host's batches cost, and the number of all that were acknowledged."""
    placed = [shard_of("default", f"press-{FIRST + number}", SHARDS) for number in range(fleet.links)]
    shares = [sum(shard in shards for shard in placed) / len(placed) for shards in owned]
    counts, links = [Counts() for _ in nodes], list[list[Link]]()
    for node, shards, count in zip(nodes, owned, counts, strict=True):
        urls = {number: node.urls[0] for number, shard in enumerate(placed) if shard in shards}
        links.append(await connect(urls, fleet, scripts, count))
    resting = asyncio.create_task(_rest([*itertools.chain(*links)]))
    costs, rates = [], []
    for node, own, count in zip(nodes, links, counts, strict=True):
        cost, rate = await _full(node, own, count, seconds)
        costs.append(cost)
        rates.append(rate)
    resting.cancel()
    for link in itertools.chain(*links):
        link.transport.close()
    await asyncio.sleep(0.5)
    return {
        "batches_per_s": round(min(1 / (cost * share) for cost, share in zip(costs, shares, strict=True))),
        "us_per_batch": [round(cost * 1e6, 1) for cost in costs],
        "share_of_links": [round(share, 3) for share in shares],
        "measured_batches_per_s": [round(rate) for rate in rates],
    }, sum(each.acked for each in counts)


async def _full(node: Server, links: Sequence[Link], counts: Counts, seconds: float) -> tuple[float, float]:
    """Return the processor seconds of a batch, and batches a second, of one host at its full rate."""
    for link in links:
        link.go = True
        link.send()
    await _until(lambda: counts.acked > 0)
    await asyncio.sleep(SETTLE_S)
    acked, cpu, began = counts.acked, node.cpu_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    acked, cpu, took_s = counts.acked - acked, node.cpu_s() - cpu, time.perf_counter() - began
    if counts.refusals:
        raise SystemExit(f"the hub refused a link: {counts.refusals[0]}")
    if not acked or any(link.is_over for link in links):
        raise SystemExit(f"a host acknowledged {acked} batches in the time that was measured, or all that there were")
    for link in links:
        link.go = False
    await _until(lambda: not any(link.waits for link in links))
    return cpu / acked, acked / took_s


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(int(10 * ANSWERED_S_MAX)):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise SystemExit(f"a host does not acknowledge all that it was sent within {ANSWERED_S_MAX:.0f} s")


async def _rest(links: Sequence[Link]) -> None:
    while True:
        await asyncio.sleep(REST_S)
        for link in links:
            if not link.go:
                link.rest()
