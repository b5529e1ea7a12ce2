"""Alerts and dashboards in deploy/monitoring: made from the code, and each says only what is there.

`promtool` and a real Prometheus judge them in `test_prometheus.py`.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from docs.tools.monitoring.edge_alerts import EDGE_ALERTS
from docs.tools.monitoring.files import monitoring_files
from docs.tools.monitoring.hub_alerts import HUB_ALERTS
from tests.deploy.expressions import labels_in, metrics_in
from weft.cli import cli
from weft.config.metrics.edge import EDGE_METRICS
from weft.config.metrics.hub import HUB_METRICS
from weft.config.metrics.metric import PROCESS_METRICS
from weft.config.models import EdgeConfig, HubConfig
from weft.config.schema import settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
ALERTS = (*EDGE_ALERTS, *HUB_ALERTS)
OF_TARGETS = {"job", "instance"}
"""Labels that Prometheus gives to every series."""
METRICS = {
    series: {*metric.labels, *OF_TARGETS, *(["le"] if metric.kind == "histogram" else [])}
    for metric in (*EDGE_METRICS, *HUB_METRICS, *PROCESS_METRICS)
    for series in metric.series
} | {"up": OF_TARGETS}


def expressions() -> list[tuple[str, str]]:
    """Name of the alert or panel, and its expression."""
    found = [(each.name, each.when) for each in ALERTS]
    for file in sorted(FOLDER.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            found += [
                (f"{file.name}: {panel['title']}", each["expr"]) for each in panel.get("targets", ()) if "expr" in each
            ]
    return found


def test_the_files_are_those_of_the_code() -> None:
    assert {path.name: path.read_text() for path in FOLDER.iterdir() if path.name in monitoring_files()} == (
        monitoring_files()
    ), "run: ./run fix"


def test_every_metric_and_label_of_an_expression_is_in_the_catalogue() -> None:
    assert len(expressions()) > 120
    for name, expression in expressions():
        named = metrics_in(expression)
        assert named, name
        assert named <= METRICS.keys(), f"{name}: {named - METRICS.keys()} is not in config/metrics"
        known = set().union(*(METRICS[each] for each in named))
        assert labels_in(expression) <= known, f"{name}: {labels_in(expression) - known}"


def test_a_summary_and_a_legend_use_labels_that_the_expression_has() -> None:
    for each in ALERTS:
        rule = each.rule()
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        known = set().union(*(METRICS[name] for name in metrics_in(each.when)))
        assert used <= known, each.name
        assert each.by_instance == ("instance" in used)


def test_names_are_unique_and_a_severity_has_a_page_of_the_docs() -> None:
    assert len({each.name for each in ALERTS}) == len(ALERTS)
    for each in ALERTS:
        assert each.page == "" or (ROOT / "docs/how-to" / each.page).is_file(), each.name


def test_every_command_and_setting_of_an_advice_is_there() -> None:
    known = {setting.path for model in (EdgeConfig, HubConfig) for setting in settings(model)}
    for each in ALERTS:
        for quoted in re.findall(r"`([^`]+)`", each.says + each.do):
            if quoted.startswith("weft "):
                command: click.Command = cli
                context = click.Context(cli)
                for word in quoted.split()[1:]:
                    assert isinstance(command, click.Group), quoted
                    found = command.get_command(context, word)
                    assert found is not None, quoted
                    command = found
                assert not isinstance(command, click.Group), quoted
            elif re.fullmatch(r"[a-z_]+\.[a-z_]+", quoted):
                assert quoted in known, f"{each.name}: {quoted}"


@pytest.mark.parametrize("file", sorted(monitoring_files().keys() - {"grafana-stream.json", "weft-alerts.yaml"}))
def test_panels_lie_beside_each_other_and_ask_the_chosen_prometheus(file: str) -> None:
    document: dict[str, Any] = json.loads((FOLDER / file).read_text())
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    variables = {each["name"] for each in document["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", json.dumps(panels)))
    assert used - {"__rate_interval"} == variables
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {"$datasource"}


def test_the_rules_are_yaml_of_two_groups() -> None:
    groups = yaml.safe_load((FOLDER / "weft-alerts.yaml").read_text())["groups"]
    assert [len(group["rules"]) for group in groups] == [len(EDGE_ALERTS), len(HUB_ALERTS)]
