"""Three hub hosts, 20 edges, two of them silent: a command at any host names them, and Prometheus's rule fires."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import time
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.cloud_hub.api.test_application import records
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.deploy.test_alerts import RULES, promtool
from tests.support.processes import weft
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub import cluster
from weft.cloud_hub.hub import Hub, boot_time_ns
from weft.cloud_hub.reads import metrics
from weft.replication.events import LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

pytestmark = [pytest.mark.slow, pytest.mark.processes]
EDGES, GONE = [f"press-{n}" for n in range(20)], {"press-3", "press-11"}
BEAT_S, SAID_S_MAX = 0.2, 30.0
SCRAPE_S, STEPS = 15, 24
"""Interval of a scraper by the clock of the hubs, and scrapes after the two went: six minutes."""
ALERT = "WeftHubEdgesSilent"


class SharedClock:
    """The clock of all hosts, which the test sets forward."""

    ahead = 0

    def wall(self) -> int:
        return time.time_ns() + self.ahead

    def boot(self) -> int:
        return boot_time_ns() + self.ahead


async def scraped(hub: Hub) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{hub.url}/metrics") as answer:
        found = re.findall(r'^(weft_hub_edges(?:_silent\{over="4m"\})?) (\S+)$', await answer.text(), re.MULTILINE)
    return {name: float(value) for name, value in found}


async def total(hubs: list[Hub], name: str) -> float:
    return sum([(await scraped(hub))[name] for hub in hubs])


def not_connected(hub: Hub) -> set[str]:
    """The edges that `weft hub status` lists first, those without a link, as it prints them."""
    text = weft("hub", "status", hub.url).output
    count = re.search(rf"^{len(EDGES)} edges: \d+ connected, (\d+) not connected,", text, re.MULTILINE)
    rows = [line.split("\t")[0] for line in text.splitlines() if line.startswith("default/press-")]
    return {row.removeprefix("default/") for row in rows[: int(count[1])]} if count else set(EDGES)


async def test_two_silent_edges_of_twenty_are_named_and_alarmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "EDGES_REFRESH_S", 0.0)  # scrapes follow each other faster than those of a scraper
    monkeypatch.setattr(cluster, "MISSED_MAX", 10_000)  # no host leaves here, also when the clock is set forward
    store, clock = MemoryStore(), SharedClock()
    clocks = {"wall_clock": clock.wall, "boot_clock": clock.boot}
    sender = SenderSettings(mark_interval=100_000_000)
    async with contextlib.AsyncExitStack() as stack:
        hubs = [
            await stack.enter_async_context(running_hub(store, shards=8, beat_interval_s=BEAT_S, clocks=clocks))
            for _ in range(3)
        ]
        links: dict[str, contextlib.AsyncExitStack] = {}
        linked: list[LinkStatus] = []
        for number, name in enumerate(EDGES):
            log, links[name] = EdgeLog(), await stack.enter_async_context(contextlib.AsyncExitStack())
            log.append(*records(0, [b"1"]))
            link = running_link(hubs[number % 3], log, LinkIdentity("default", name, number + 1, "test"), sender=sender)
            linked.append(await links[name].enter_async_context(link))
        await until(lambda: all(each.records_acked == 1 for each in linked), SAID_S_MAX)

        async def all_linked() -> bool:
            return all([not await asyncio.to_thread(not_connected, hub) for hub in hubs])

        await until(all_linked, 2 * SAID_S_MAX)
        series: dict[str, list[float]] = {}

        async def scrape() -> None:
            for hub in hubs:
                for name, value in (await scraped(hub)).items():
                    labels = f'job="weft-hub", instance="{hub.url.removeprefix("http://")}"'
                    first, brace, rest = name.partition("{")
                    series.setdefault(f"{first}{{{labels}{f', {rest}' if brace else '}'}", []).append(value)

        assert await total(hubs, "weft_hub_edges") == len(EDGES)
        await scrape()
        for name in GONE:
            await links[name].aclose()

        async def says_so(hub: Hub) -> bool:
            return await asyncio.to_thread(not_connected, hub) == GONE

        for hub in hubs:
            await until(partial(says_so, hub), SAID_S_MAX)

        for _ in range(STEPS):
            clock.ahead += SCRAPE_S * 10**9
            moment = clock.wall()

            async def heard(moment: int = moment) -> bool:
                states = [each.state for hub in hubs for each in hub.sequencers]
                seen = {lane.edge: held.last_seen for state in states for lane, held in state.lanes.items()}
                return all(seen[name] >= moment for name in EDGES if name not in GONE)

            await until(heard, SAID_S_MAX)
            await scrape()
        assert await total(hubs, 'weft_hub_edges_silent{over="4m"}') == len(GONE)
    assert_fires_once_they_are_silent(tmp_path, series)


def assert_fires_once_they_are_silent(folder: Path, series: dict[str, list[float]]) -> None:
    """Replay the scrapes to Prometheus's own tool: the alert comes after four minutes and the one that it lasts."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    rule = next(each for each in rules if each["alert"] == ALERT)
    (folder / "rule.yaml").write_text(yaml.safe_dump({"groups": [{"name": ALERT, "rules": [rule]}]}))
    firing = f'count(ALERTS{{alertname="{ALERT}", alertstate="firing"}})'
    test = {
        "interval": f"{SCRAPE_S}s",
        "input_series": [
            {"series": key, "values": " ".join(f"{value:.0f}" for value in values)} for key, values in series.items()
        ],
        "promql_expr_test": [
            {"expr": firing, "eval_time": "4m", "exp_samples": []},
            {"expr": firing, "eval_time": f"{STEPS * SCRAPE_S}s", "exp_samples": [{"labels": "{}", "value": 1}]},
        ],
    }
    document = {"rule_files": ["rule.yaml"], "evaluation_interval": f"{SCRAPE_S}s", "tests": [test]}
    (folder / "test.yaml").write_text(json.dumps(document))
    done = subprocess.run(
        [promtool(), "test", "rules", "test.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
