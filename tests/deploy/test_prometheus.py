"""A real Prometheus scrapes a running edge and hub: every query of the alerts and dashboards finds what it asks for."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples.demo.fabric import free_port
from tests.deploy.expressions import metrics_in
from tests.deploy.test_alert_rules import ALERTS, FOLDER, expressions
from tests.support.certificates import Authority
from tests.support.processes import STOP_S_MAX, Node, publish, weft
from tests.support.prometheus import MISSING, PROMETHEUS, Prometheus
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.skipif(PROMETHEUS is None, reason=MISSING)]
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


def test_every_metric_of_a_query_has_series_or_appears_in_trouble(fabric: Fabric) -> None:
    named = set().union(*(metrics_in(expression) for _, expression in expressions()))
    missing = {each for each in named if not fabric.prometheus.query(f"last_over_time({each}[1h])")}
    assert missing == ONLY_IN_TROUBLE.keys()


def test_every_alert_is_evaluated_and_none_comes_while_all_is_well(fabric: Fabric) -> None:
    (edges, hubs) = fabric.prometheus.ask("rules")["groups"]
    rules = [*edges["rules"], *hubs["rules"]]
    assert {rule["name"] for rule in rules} == {each.name for each in ALERTS}
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    # The source's broker is not there, and the listener's certificate is one of a day.
    assert fabric.prometheus.alerts() - OF_THIS_MACHINE == {"WeftEdgeSourceDown", "WeftEdgeCertificateEnds"}


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


def test_what_nodes_cost_a_prometheus_is_what_the_page_says(fabric: Fabric) -> None:
    for job, most in (("weft-edge", 300), ("weft-hub", 200)):
        (series,) = fabric.prometheus.query(f'count({{job="{job}"}})')
        assert most / 2 < int(series["value"][1]) < most, job


def test_a_variable_offers_what_is_there(fabric: Fabric) -> None:
    for file in QUIET:
        for variable in json.loads((FOLDER / file).read_text())["templating"]["list"][1:]:
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert asked is not None
            series = fabric.prometheus.query(filled_in(asked[1], fabric.edge.url))
            assert all(asked[2] in each["metric"] for each in series)
            assert series


def test_a_hub_that_is_gone_is_an_alert_at_it_and_at_its_edges(fabric: Fabric) -> None:
    os.kill(fabric.hub.process.pid, 9)
    wanted = {"WeftHubDown", "WeftEdgeLinkDown"}
    wait_until(lambda: wanted <= fabric.prometheus.alerts(), what=fabric.prometheus.alerts)
