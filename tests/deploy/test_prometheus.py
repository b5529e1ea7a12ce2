"""A real Prometheus scrapes a running edge and hub: every query of the alerts and dashboards finds what it asks for."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import yaml

from examples.demo.fabric import free_port
from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.deploy.expressions import metrics_in
from tests.deploy.test_alerts import ALERT_RULES_ALERTS as ALERTS
from tests.deploy.test_alerts import FOLDER, RULES, expressions, promtool
from tests.support.certificates import Authority
from tests.support.processes import STOP_S_MAX, Node, publish, weft
from tests.support.prometheus import MISSING, PROMETHEUS, Prometheus
from tests.support.waiting import PATIENCE_S, until, wait_until
from weft.cloud_hub import cluster
from weft.cloud_hub.hub import Hub, boot_time_ns
from weft.cloud_hub.reads import metrics
from weft.replication.events import LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.runner import LinkIdentity
from weft.storage.object_store.directory import MemoryStore

pytestmark = [pytest.mark.slow, pytest.mark.processes]

HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 2
processes: 1
tables: {{interval: 1s}}
mark_interval: 1s
regions:
  east: {{to: "http://127.0.0.1:{broker}", budget: 10GB}}
"""
EDGE = """\
node: press-7
data_dir: data
listeners:
  mqtt: {{bind: "127.0.0.1:{mqtt}"}}
  mqtts: {{bind: "127.0.0.1:{mqtts}", tls: {{certificate: press-7.crt, key: press-7.key}}}}
  amqp: {{bind: "127.0.0.1:{amqp}"}}
  http: {{bind: "127.0.0.1:{http}"}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 256MiB, segment: 4MiB}}
streams:
  telemetry:
    from: "plant/+"
    payload: json
    schema: {{fields: {{t: float}}}}
    on_misfit: accept
  warm: {{from_stream: telemetry, payload: json, functions: [where: t > 20]}}
links:
  cloud: {{to: "http://127.0.0.1:{port}", mark_interval: 1s, retry_max: 1s, budget: 10GB}}
sources:
  plant: {{mqtt: {{url: "mqtt://127.0.0.1:{broker}", topics: ["x/#"]}}}}
"""
ONLY_IN_TROUBLE = {
    "weft_edge_link_certificate_expires_timestamp_seconds": "a link with a certificate of its own",
    "weft_hub_region_kept_seconds": "a hub with `retain_log`, which bounds how long the log waits for a region",
    "weft_hub_refusals_total": "an owner that asks for more than its share",
}
"""Metrics whose series appear with what they tell of. The catalogue has their names and labels."""
QUIET = {
    "grafana-edges.json": {
        "Oldest record that waits",
        "Missing records",
        "Slowest acknowledgements",
        "Messages that do not fit",
        "Certificates that end first",
    },
    "grafana-hub.json": {
        "More than a share",
        "Complete up to: unknown",
        "Rows behind",
        "Time behind",
        "Quality rules in alarm",
        "Furthest from complete",
    },
    "grafana-links.json": {"Furthest behind", "Longest until drained", "Attempts that failed in a row"},
    "grafana-tables.json": {"Quality rules in alarm", "Quality rules whose state is unknown", "Smallest files"},
    "grafana-spark.json": {"Failed or silent", "Furthest behind"},
}
"""Tables that are empty while nothing is wrong."""
OF_THIS_MACHINE = {"WeftEdgeClockUnsynchronised", "WeftEdgeDiskSlow", "WeftEdgeAcksSlow", "WeftHubEdgesClocksDiffer"}
"""Alerts on the machine of the test and not on the nodes."""


class Fabric(NamedTuple):
    edge: Node
    hub: Node
    mqtt: int
    prometheus: Prometheus


def declare(hub_yaml: Path, kind: str, text: str) -> None:
    file = hub_yaml.parent / f"{kind}.yaml"
    file.write_text(text)
    assert weft("hub", kind, "set", hub_yaml, "telemetry", file).exception is None


def report(hub: Node, state: dict[str, Any]) -> None:
    """Report as a query of Spark does."""
    body = json.dumps(state).encode()
    request = urllib.request.Request(f"{hub.url}v1/pipelines/machine-hours", body, method="PUT")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    folder = tmp_path_factory.mktemp("fabric")
    ports = {name: free_port() for name in ("port", "mqtt", "mqtts", "amqp", "http", "broker")}
    Authority(folder).sign("press-7")
    hub_yaml, edge_yaml = folder / "hub.yaml", folder / "edge.yaml"
    hub_yaml.write_text(HUB.format(**ports))
    edge_yaml.write_text(EDGE.format(**ports))
    with contextlib.ExitStack() as stack:
        nodes: list[Node] = []
        for kind, config in (("hub", hub_yaml), ("edge", edge_yaml)):
            node = Node(kind, config)
            stack.callback(node.process.wait, STOP_S_MAX)
            stack.callback(node.process.kill)
            nodes.append(node)
            if kind == "hub":
                declare(hub_yaml, "schema", "fields: {t: float}")
                declare(hub_yaml, "quality", "rules: {hot: {range: {field: t, max: 80}}}")
                wait_until(lambda: nodes[0].json("v1/status")["cluster_log"]["entry"] == 2, what="the rules at the hub")
        hub, edge = nodes
        assert weft("hub", "backup", hub_yaml, "--to", folder / "backup").exception is None
        jobs = {"weft-edge": [edge.url], "weft-hub": [hub.url]}
        prometheus = stack.enter_context(Prometheus(folder, jobs, FOLDER / "weft-alerts.yaml"))
        report(
            hub,
            {
                "stream": "telemetry",
                "state": "running",
                "records": 90,
                "seconds": 1.5,
                "rate": 9.5,
                "lag": 0,
                "idle_seconds": 3.0,
            },
        )
        for wanted, temperature in ((500, 21.5), (1000, 19.5)):
            publish(ports["mqtt"], "plant/a", [f'{{"t": {temperature}}}'] * 500)
            checked = f"weft_hub_quality_rows_total >= {wanted}"
            wait_until(functools.partial(prometheus.query, checked), what=checked)
        yield Fabric(edge, hub, ports["mqtt"], prometheus)


def filled_in(expression: str, edge: str) -> str:
    """The expression as Grafana sends it, with variables as they are at first."""
    instance = edge.split("/")[2]
    text = expression.replace("$__rate_interval", "1m").replace("$instance", instance)
    return re.sub(r"\$(job|hub_job|tenant|stream|pipeline|link)\b", ".*", text)


@pytest.mark.skipif(PROMETHEUS is None, reason=MISSING)
def test_every_metric_of_a_query_has_series_or_appears_in_trouble(fabric: Fabric) -> None:
    named = set().union(*(metrics_in(expression) for _, expression in expressions()))
    missing = {each for each in named if not fabric.prometheus.query(f"last_over_time({each}[1h])")}
    assert missing == ONLY_IN_TROUBLE.keys()


@pytest.mark.skipif(PROMETHEUS is None, reason=MISSING)
def test_every_alert_is_evaluated_and_none_comes_while_all_is_well(fabric: Fabric) -> None:
    (edges, hubs) = fabric.prometheus.ask("rules")["groups"]
    rules = [*edges["rules"], *hubs["rules"]]
    assert {rule["name"] for rule in rules} == {each.name for each in ALERTS}
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    # The source's broker is not there, and the listener's certificate is one of a day.
    assert fabric.prometheus.alerts() - OF_THIS_MACHINE == {"WeftEdgeSourceDown", "WeftEdgeCertificateEnds"}


@pytest.mark.skipif(PROMETHEUS is None, reason=MISSING)
@pytest.mark.parametrize("file", sorted(QUIET))
def test_every_panel_shows_something(fabric: Fabric, file: str) -> None:
    panels: list[dict[str, Any]] = json.loads((FOLDER / file).read_text())["panels"]
    empty = set()
    for panel in panels:
        for target in panel.get("targets", ()):
            found = fabric.prometheus.query(filled_in(target["expr"], fabric.edge.url))
            if not found:
                empty.add(panel["title"])
            labels = set().union(*(each["metric"] for each in found))
            assert not found or set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, target
    assert empty <= QUIET[file]


@pytest.mark.skipif(PROMETHEUS is None, reason=MISSING)
def test_what_nodes_cost_a_prometheus_is_what_the_page_says(fabric: Fabric) -> None:
    for job, most in (("weft-edge", 300), ("weft-hub", 200)):
        (series,) = fabric.prometheus.query(f'count({{job="{job}"}})')
        assert most / 2 < int(series["value"][1]) < most, job


@pytest.mark.skipif(PROMETHEUS is None, reason=MISSING)
def test_a_variable_offers_what_is_there(fabric: Fabric) -> None:
    for file in QUIET:
        for variable in json.loads((FOLDER / file).read_text())["templating"]["list"][1:]:
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert asked is not None
            series = fabric.prometheus.query(filled_in(asked[1], fabric.edge.url))
            assert all(asked[2] in each["metric"] for each in series)
            assert series


@pytest.mark.skipif(PROMETHEUS is None, reason=MISSING)
def test_a_hub_that_is_gone_is_an_alert_at_it_and_at_its_edges(fabric: Fabric) -> None:
    os.kill(fabric.hub.process.pid, 9)
    wanted = {"WeftHubDown", "WeftEdgeLinkDown"}
    wait_until(lambda: wanted <= fabric.prometheus.alerts(), what=fabric.prometheus.alerts)


# --- Three hub hosts, 20 edges, two of them silent: a command at any host names them, and Prometheus's rule fires


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
