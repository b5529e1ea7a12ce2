"""The cases of the benchmark."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench import payloads
from bench.common import LOAD_CORE, SERVER_CORE, pin
from bench.hub import server
from bench.hub.cold_start import cold_start
from bench.hub.costs import costs
from bench.hub.followers import followers
from bench.hub.generator import Counts, Link, connect
from bench.hub.hosts import HOSTS, hosts
from bench.hub.large import PAYLOADS
from bench.hub.large import run as run_large
from bench.hub.script import FIRST, RECORDS, Fleet, Message, messages
from bench.hub.server import SHARDS, Server, running, until_divided
from bench.hub.table_round import quiet_streams, table_round
from weft.protocols.shard.placement import shard_of

VARIANTS = 8
"""Different sequences of records among the links."""
SETTLE_S = 2.0
REST_INTERVAL_S = 10.0
"""Interval at which an idle edge says something: pings and marks."""


class Options(NamedTuple):
    """Options of the command line."""

    fleet: Fleet
    seconds: float
    directory: str | None


def _urls(fleet: Fleet, hub: Server) -> dict[int, str]:
    """Return the URL of the process that each link's edge belongs to, where a redirect would take it."""
    owned = until_divided(hub.urls, SHARDS)
    url_of = {shard: url for url, shards in zip(hub.urls, owned, strict=True) for shard in shards}
    return {number: url_of[shard_of("default", f"press-{FIRST + number}", SHARDS)] for number in range(fleet.links)}


def _scripts(fleet: Fleet, seconds: float) -> list[list[Message]]:
    """Return what the links send, long enough for 60,000 batches a second."""
    each = int(60_000 * (seconds + SETTLE_S) / fleet.links / fleet.batches_per_message) + 10
    readings = payloads.telemetry()
    part = len(readings) // VARIANTS
    return [messages(fleet, readings[n * part : (n + 1) * part], each) for n in range(VARIANTS)]


async def _receive(hub: Server, options: Options, scripts: Sequence[Sequence[Message]]) -> dict[str, Any]:
    counts = Counts()
    links = await connect(_urls(options.fleet, hub), options.fleet, scripts, counts)
    for link in links:
        link.go = True
        link.send()
    await asyncio.sleep(SETTLE_S)
    acked, cpu, ours, started = counts.acked, hub.cpu_s(), time.process_time(), time.perf_counter()
    await asyncio.sleep(options.seconds)
    elapsed = time.perf_counter() - started
    acked, cpu, ours = counts.acked - acked, hub.cpu_s() - cpu, time.process_time() - ours
    if counts.refusals:
        raise SystemExit(f"the hub refused a link: {counts.refusals[0]}")
    memory = hub.memory_bytes()
    await _end(links)
    return {
        "batches_per_s": round(acked / elapsed),
        "records_per_s": round(acked * RECORDS / elapsed),
        "hub_cores_used": round(cpu / elapsed, 2),
        "batches_per_core_s": round(acked / cpu),
        "us_per_batch": round(cpu / max(acked, 1) * 1e6, 1),
        "generator_core_used": round(ours / elapsed, 2),
        "hub_memory_mb": round(memory / 1e6),
        "acked_batches": counts.acked,
    }


async def _end(links: Sequence[Link]) -> None:
    for link in links:
        link.go = False
        link.transport.close()
    await asyncio.sleep(0.5)


def receive(options: Options, processes: int = 1) -> dict[str, Any]:
    """Have every link send batches as fast as acknowledgements come; nothing else continues."""
    scripts = _scripts(options.fleet, options.seconds)
    cores = [SERVER_CORE] if processes == 1 else [SERVER_CORE, LOAD_CORE]
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        with running(Path(folder), processes, cores) as hub:
            pin(LOAD_CORE)
            result: dict[str, Any] = uvloop.run(_receive(hub, options, scripts))
        result["records_in_log"] = server.check_log(Path(folder), result["acked_batches"], RECORDS)
    return result


def two_processes(options: Options) -> dict[str, Any]:
    """Do the same with two processes. On two cores the generator takes its part of one: the cost of a batch counts."""
    return receive(options, processes=2)


async def _idle(hub: Server, options: Options) -> dict[str, Any]:
    counts = Counts()
    before = hub.memory_bytes()
    links = await connect(_urls(options.fleet, hub), options.fleet, [[]], counts)
    stop = asyncio.get_running_loop().time() + SETTLE_S + options.seconds

    async def rest(link: Link, first: float) -> None:
        await asyncio.sleep(first)
        while asyncio.get_running_loop().time() < stop:
            link.rest()
            await asyncio.sleep(REST_INTERVAL_S)

    every = REST_INTERVAL_S / len(links)
    resting = asyncio.gather(*(rest(link, number * every) for number, link in enumerate(links)))
    await asyncio.sleep(SETTLE_S)
    cpu, started = hub.cpu_s(), time.perf_counter()
    await asyncio.sleep(options.seconds)
    cpu, elapsed = hub.cpu_s() - cpu, time.perf_counter() - started
    memory = hub.memory_bytes()
    await resting
    if counts.refusals:
        raise SystemExit(f"the hub refused a link: {counts.refusals[0]}")
    await _end(links)
    return {
        "hub_cores_used": round(cpu / elapsed, 3),
        "hub_memory_mb": round(memory / 1e6),
        "memory_without_links_mb": round(before / 1e6),
        "kb_per_link": round((memory - before) / options.fleet.links / 1e3, 1),
        "rest_interval_s": REST_INTERVAL_S,
    }


def idle(options: Options) -> dict[str, Any]:
    """Have every link open with all its lanes, and say only that it lives and how far its marks are."""
    with tempfile.TemporaryDirectory(dir=options.directory) as folder, running(Path(folder), 1, [SERVER_CORE]) as hub:
        pin(LOAD_CORE)
        result: dict[str, Any] = uvloop.run(_idle(hub, options))
    return result


def large(options: Options) -> dict[str, Any]:
    """Send batches of 5,000 records over four links, as an edge does that catches up."""
    results: dict[str, Any] = {}
    for payload in PAYLOADS:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            results[payload] = run_large(payload, options.seconds, folder)
    return results


CASES: dict[str, Callable[[Options], dict[str, Any]]] = {
    "receive": receive,
    "two-processes": two_processes,
    "hosts": lambda options: hosts(
        options.fleet,
        options.seconds,
        options.directory,
        _scripts(replace(options.fleet, links=options.fleet.links // max(HOSTS)), options.seconds),
    ),
    "idle": idle,
    "large": large,
    "followers": lambda _: followers(),
    "table-round": lambda _: table_round(),
    "quiet-streams": lambda _: quiet_streams(),
    "costs": lambda _: costs(),
    "cold-start": lambda _: cold_start(),
}
