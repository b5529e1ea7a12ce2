"""Each alert comes when it should and not otherwise: Prometheus's own `promtool` runs the rules over made series."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from docs.tools.monitoring.alert import EDGE_JOB, HUB_JOB
from docs.tools.monitoring.edge_alerts import EDGE_ALERTS
from docs.tools.monitoring.files import monitoring_files
from docs.tools.monitoring.hub_alerts import HUB_ALERTS
from tests.deploy.expressions import labels_in, metrics_in
from tests.support.waiting import PATIENCE_S
from weft.cli import cli
from weft.config.metrics.edge import EDGE_METRICS
from weft.config.metrics.hub import HUB_METRICS
from weft.config.metrics.metric import PROCESS_METRICS
from weft.config.models import EdgeConfig, HubConfig
from weft.config.schema import settings

RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "weft-alerts.yaml"
ALERTS = {each.name: each for each in (*EDGE_ALERTS, *HUB_ALERTS)}
EDGE, HUB = 'job="weft-edge", instance="press-7:8080"', 'job="weft-hub", instance="a:8090"'
GI = 1 << 30
DAY_S = 86_400
MINUTES = 2_000
"""Length of all series, more than the day that the slowest alert takes."""


Series = dict[str, str]


class Case:
    """Series with which the alert comes once its time is over, and series like them with which it never does."""

    def __init__(self, bad: Series, *good: Series, after_minutes: int = 0) -> None:
        self.bad, self.good = bad, good
        self.after_minutes = after_minutes
        """How long the expression says nothing, whatever the series are."""


def edge(name: str, labels: str = "") -> str:
    return f"{name}{{{EDGE}{', ' + labels if labels else ''}}}"


def hub(name: str, labels: str = "") -> str:
    return f"{name}{{{HUB}{', ' + labels if labels else ''}}}"


def still(value: float) -> str:
    return f"{value:.0f}+0x{MINUTES}" if value == int(value) else f"{value}+0x{MINUTES}"


def rising(by: float, start: float = 0) -> str:
    return f"{start:.0f}+{by}x{MINUTES}"


def flag(series: str, bad: float = 1, *good: float) -> Case:
    """An alert on one value; ``good`` is 0 unless it is given."""
    return Case({series: still(bad)}, *({series: still(value)} for value in good or (0,)))


def share(used: str, of: str, bound: float) -> Case:
    """Of a whole of 1,000, a little more than ``bound`` and a little less."""
    return Case(*({used: still(1000 * bound + by), of: still(1000)} for by in (20, -20)))


def slow(series: str, name: str, bound: float) -> Case:
    """Half of what was measured takes a little more than ``bound`` seconds, or a little less; or one in a thousand."""

    def measured(highest: float, low: int, middle: int) -> Series:
        counts = {"0.01": low, f"{highest:g}": middle, "+Inf": 1000}
        bucket = series.replace(name, f"{name}_bucket")
        return {bucket.replace("}", f', le="{le}"}}'): rising(count) for le, count in counts.items()}

    return Case(measured(1.05 * bound, 100, 500), measured(0.95 * bound, 100, 500), measured(2 * bound, 999, 999))


REGION = 'region="east", shard="1"'
LINK, STREAM = 'link="cloud"', 'stream="telemetry"'
REGION_LAG, REGION_KEPT = hub("weft_hub_region_lag_seconds", REGION), hub("weft_hub_region_kept_seconds", REGION)
REGION_USED = hub("weft_hub_region_budget_used_bytes", 'region="east"')
REGION_BUDGET = hub("weft_hub_region_budget_bytes", 'region="east"')
TABLE = f'tenant="default", {STREAM}'
PIPELINE = 'tenant="default", pipeline="machine-hours"'
RULE = f'{TABLE}, rule="oil"'
UNTIL_FULL = (edge("weft_edge_log_budget_bytes"), edge("weft_edge_log_unsafe_bytes"))
WAITS, HELD = edge("weft_edge_link_pending_seconds", LINK), edge("weft_edge_link_held", LINK)
BEHIND = {WAITS: still(3700), edge("weft_edge_link_connected", LINK): still(1), HELD: still(0)}


def outage(hours: float) -> Case:
    """A log that is full in a little less than so many hours, all the time, in an outage of a little over ten minutes.

    And one with a little more room; and one whose oldest record waits for a little less.
    """
    budget, unsafe = UNTIL_FULL
    a_minute = GI / 60

    def left(share: float, waits_s: float) -> Series:
        room = rising(a_minute, int(share * hours * GI))
        return {budget: room, unsafe: rising(a_minute), WAITS: still(waits_s)}

    return Case(left(0.97, 620), left(1.03, 620), left(0.97, 580), left(1.03, 20 * 3600))


FREE = hub("weft_hub_store_free_bytes")
YOUNG = 360
"""Minutes after which a slope of the store's disk counts."""


def falling(hours: float) -> Series:
    """A disk that is full in so many hours from the beginning."""
    return {FREE: f"{hours * GI:.0f}-{GI / 60}x{MINUTES}"}


CASES: dict[str, Case | list[Case]] = {
    "WeftEdgeDown": flag(edge("up"), 0, 1),
    "WeftEdgeLogFailed": flag(edge("weft_edge_log_failed")),
    "WeftEdgeLogFull": flag(edge("weft_edge_log_full")),
    "WeftEdgeLogLow": flag(edge("weft_edge_log_low")),
    "WeftEdgeOutageHoursFew": outage(24),
    "WeftEdgeOutageHoursNearlyOver": outage(4),
    "WeftEdgeGap": Case(
        {edge("weft_edge_stream_lost_records", f'{STREAM}, reason="budget"'): still(12)},
        {edge("weft_edge_stream_lost_records", f'{STREAM}, reason="operator"'): still(12)},
    ),
    "WeftEdgeAcksSlow": slow(edge("weft_edge_ack_latency_seconds"), "weft_edge_ack_latency_seconds", 1),
    "WeftEdgeDiskSlow": slow(edge("weft_edge_log_sync_latency_seconds"), "weft_edge_log_sync_latency_seconds", 0.5),
    "WeftEdgeCardWearsOut": flag(edge("weft_edge_log_card_lifetime_seconds"), 360 * DAY_S, 370 * DAY_S, 0),
    "WeftEdgeQueuesNearlyFull": Case(
        {edge("weft_edge_queue_bytes"): still(92), edge("weft_edge_queue_bytes_max"): still(100)},
        {edge("weft_edge_queue_bytes"): still(88), edge("weft_edge_queue_bytes_max"): still(100)},
        {edge("weft_edge_queue_bytes"): still(0), edge("weft_edge_queue_bytes_max"): still(0)},
    ),
    "WeftEdgeLinkDown": Case(
        {edge("weft_edge_link_connected", LINK): still(0), edge("weft_edge_link_paused", LINK): still(0)},
        {edge("weft_edge_link_connected", LINK): still(0), edge("weft_edge_link_paused", LINK): still(1)},
    ),
    "WeftEdgeBehind": Case(BEHIND, BEHIND | {WAITS: still(3500)}, BEHIND | {HELD: still(1)}),
    "WeftEdgeLinkPaused": flag(edge("weft_edge_link_paused", LINK)),
    "WeftEdgeLinkBudget": share(
        edge("weft_edge_link_budget_used_bytes", LINK), edge("weft_edge_link_budget_bytes", LINK), 0.9
    ),
    "WeftEdgeNothingBecomesDurable": flag(edge("weft_edge_link_canary_overdue", LINK)),
    "WeftEdgeHubLostRecords": flag(edge("weft_edge_link_alarm", LINK)),
    "WeftEdgeConflict": flag(edge("weft_edge_conflict")),
    "WeftEdgeCertificateEnds": flag(
        edge("weft_edge_listener_certificate_expires_timestamp_seconds", 'listener="mqtts"'), 13.8 * DAY_S, 14.3 * DAY_S
    ),
    "WeftEdgeClockUnsynchronised": flag(edge("weft_edge_clock_synchronised"), 0, 1),
    "WeftEdgeFunctionInTrouble": flag(edge("weft_edge_function_in_trouble", STREAM)),
    "WeftEdgeFunctionVersionRefused": flag(edge("weft_edge_function_version_refused", STREAM)),
    "WeftEdgeFunctionRejects": Case(
        {
            edge("weft_edge_function_rows_rejected_total", STREAM): rising(5.2),
            edge("weft_edge_function_rows_in_total", STREAM): rising(100),
        },
        {
            edge("weft_edge_function_rows_rejected_total", STREAM): rising(4.8),
            edge("weft_edge_function_rows_in_total", STREAM): rising(100),
        },
    ),
    "WeftEdgeFunctionBehind": flag(edge("weft_edge_function_lag_records", STREAM), 10_200, 9_800),
    "WeftEdgeMisfits": Case(
        {
            edge("weft_edge_schema_misfits_total", f'{STREAM}, outcome="refused"'): rising(0.55),
            edge("weft_edge_schema_misfits_total", f'{STREAM}, outcome="dead_lettered"'): rising(0.5),
            edge("weft_edge_schema_checked_total", STREAM): rising(100),
        },
        {
            edge("weft_edge_schema_misfits_total", f'{STREAM}, outcome="refused"'): rising(0.95),
            edge("weft_edge_schema_checked_total", STREAM): rising(100),
        },
    ),
    "WeftEdgeSourceDown": flag(edge("weft_edge_source_connected", 'source="plant"'), 0, 1),
    "WeftEdgeReloadFailed": Case(
        {edge("weft_edge_reload_failures_total"): rising(1)}, {edge("weft_edge_reload_failures_total"): still(3)}
    ),
    "WeftEdgeRefusesClients": Case(
        {edge("weft_edge_connections_refused_total"): rising(1)},
        {edge("weft_edge_connections_refused_total"): still(3)},
    ),
    "WeftEdgeRefusesPasswords": Case(
        {edge("weft_edge_authentications_refused_total"): rising(12.5)},
        {edge("weft_edge_authentications_refused_total"): rising(11.5)},
    ),
    "WeftEdgeFilesNearlyOut": Case(
        {
            edge("process_open_fds"): still(820),
            edge("process_max_fds"): still(1000),
            edge("weft_edge_build_info", 'version="1"'): still(1),
        },
        {
            edge("process_open_fds"): still(780),
            edge("process_max_fds"): still(1000),
            edge("weft_edge_build_info", 'version="1"'): still(1),
        },
        {hub("process_open_fds"): still(990), hub("process_max_fds"): still(1000)},
    ),
    "WeftHubDown": flag(hub("up"), 0, 1),
    "WeftHubStoreTrouble": flag(hub("weft_hub_store_trouble", 'shard="0"')),
    "WeftHubCommitsSlow": slow(hub("weft_hub_commit_latency_seconds"), "weft_hub_commit_latency_seconds", 5),
    "WeftHubStoreSlow": slow(hub("weft_hub_store_put_latency_seconds"), "weft_hub_store_put_latency_seconds", 3),
    "WeftHubClockWrong": flag(hub("weft_hub_clock_off_seconds"), -5.2, -4.8),
    "WeftHubEdgesClocksDiffer": flag(hub("weft_hub_links_clock_differs"), 2),
    "WeftHubEdgesGone": Case(
        {hub("weft_hub_links"): "500+0x100 390+0x2000"}, {hub("weft_hub_links"): "500+0x100 410+0x2000"}
    ),
    "WeftHubEdgesSilent": flag(hub("weft_hub_edges_silent", 'over="4m"'), 2, 0),
    "WeftHubEdgesSilentForADay": flag(hub("weft_hub_edges_silent", 'over="1d"'), 1, 0),
    "WeftHubEdgesDiskLastsHours": Case(
        {hub("weft_hub_edges_outage_left_short", 'under="4h", linked="0"'): still(2)},
        {hub("weft_hub_edges_outage_left_short", 'under="4h", linked="1"'): still(2)},
    ),
    "WeftHubEdgesDiskLastsADay": Case(
        {hub("weft_hub_edges_outage_left_short", 'under="1d", linked="0"'): still(1)},
        {hub("weft_hub_edges_outage_left_short", 'under="1d", linked="1"'): still(1)},
    ),
    "WeftHubBackupOld": flag(hub("weft_hub_backup_age_seconds"), 2.05 * DAY_S, 1.95 * DAY_S),
    "WeftHubRegionBehind": share(REGION_LAG, REGION_KEPT, 0.5),
    "WeftHubRegionBudget": share(REGION_USED, REGION_BUDGET, 0.9),
    "WeftHubRegionBudgetUsedUp": flag(hub("weft_hub_region_budget_used_up", 'region="east"')),
    "WeftHubRegionLost": flag(hub("weft_hub_region_lost_chunks", REGION)),
    "WeftHubDiskFillsUp": Case(falling(7 * 24 + 2), falling(7 * 24 + 16), {FREE: still(100 * GI)}, after_minutes=YOUNG),
    "WeftHubDiskNearlyFull": [Case(falling(31), falling(33.5), after_minutes=YOUNG), flag(FREE, 0.98 * GI, 1.02 * GI)],
    "WeftHubConflict": flag(hub("weft_hub_conflicts")),
    "WeftHubIssuerAway": flag(hub("weft_hub_jwt_keys_failing_seconds"), 3700, 3500),
    "WeftHubDeclarationsOld": flag(hub("weft_hub_cluster_log_age_seconds"), 62, 58),
    "WeftHubDeclarationsUnusable": flag(hub("weft_hub_cluster_log_unusable")),
    "WeftHubCertificateEnds": flag(
        hub("weft_hub_certificate_expires_timestamp_seconds"), 13.8 * DAY_S, 14.3 * DAY_S, 0
    ),
    "WeftHubReloadFailed": Case(
        {hub("weft_hub_tls_reload_failures_total"): rising(1)}, {hub("weft_hub_tls_reload_failures_total"): still(3)}
    ),
    "WeftHubShareReached": Case(
        {hub("weft_hub_refusals_total", 'bound="limits.links", owner="x"'): rising(1)},
        {hub("weft_hub_refusals_total", 'bound="limits.links", owner="x"'): still(3)},
    ),
    "WeftHubFilesNearlyOut": Case(
        {
            hub("process_open_fds"): still(820),
            hub("process_max_fds"): still(1000),
            hub("weft_hub_build_info", 'version="1"'): still(1),
        },
        {
            hub("process_open_fds"): still(780),
            hub("process_max_fds"): still(1000),
            hub("weft_hub_build_info", 'version="1"'): still(1),
        },
        {edge("process_open_fds"): still(990), edge("process_max_fds"): still(1000)},
    ),
    "WeftHubStreamIncomplete": Case(
        {hub("weft_hub_stream_complete_up_to_timestamp_seconds", TABLE): rising(60, -3700)},
        {hub("weft_hub_stream_complete_up_to_timestamp_seconds", TABLE): rising(60, -3500)},
    ),
    "WeftHubStreamUnknown": flag(hub("weft_hub_stream_complete_up_to_timestamp_seconds", TABLE), 0, 10),
    "WeftHubTableBehind": flag(hub("weft_hub_stream_table_lag_seconds", TABLE), 3700, 3500),
    "WeftHubTableStopped": flag(hub("weft_hub_stopped_tables")),
    "WeftHubIcebergFailing": flag(hub("weft_hub_iceberg_failing")),
    "WeftHubPipelineTrouble": flag(hub("weft_hub_pipeline_trouble", PIPELINE)),
    "WeftHubQualityRule": flag(hub("weft_hub_quality_rule_alarm", RULE)),
    "WeftHubFieldVanished": Case(
        {hub("weft_hub_quality_alarms"): still(2), hub("weft_hub_quality_rule_alarm", RULE): still(1)},
        {hub("weft_hub_quality_alarms"): still(1), hub("weft_hub_quality_rule_alarm", RULE): still(1)},
    ),
    "WeftHubQualityUnknown": flag(hub("weft_hub_quality_rule_unknown", RULE)),
}


def test_every_alert_has_a_case() -> None:
    assert list(CASES) == list(ALERTS)


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed: apt install prometheus")
    return found


def lasting_minutes(name: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([mhd])", ALERTS[name].lasting).groups()  # type: ignore[union-attr]
    return int(number) * {"m": 1, "h": 60, "d": 1440}[unit]


def labels_of(series: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', series))


def tried(name: str, case: Case) -> list[dict[str, Any]]:
    """Tests for promtool: the alert has come two hours after its time, and had not a minute before its time."""
    alert, lasting = ALERTS[name], lasting_minutes(name)
    named = set(re.findall(r"\$labels\.(\w+)", alert.rule()["annotations"]["summary"]))
    asked = f"count by (severity, {', '.join(sorted(named))})"
    expression = f'{asked} (ALERTS{{alertname="{name}", alertstate="firing"}})'
    never: list[dict[str, Any]] = []
    made = []
    begins = case.after_minutes + lasting
    for word, series in (("bad", case.bad), *(("good", each) for each in case.good)):
        came = [{"labels": _label_text(alert.severity, named, series), "value": 1}] if word == "bad" else never
        looks = [(begins + 120, came), *([(begins - 1, never)] if begins else [])]
        made.append(
            {
                "name": f"{name} {word}",
                "interval": "1m",
                "input_series": [{"series": key, "values": values} for key, values in series.items()],
                "promql_expr_test": [
                    {"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples} for minute, samples in looks
                ],
            }
        )
    return made


def _label_text(severity: str, named: set[str], series: dict[str, str]) -> str:
    labels = {"severity": severity}
    for each in series:
        labels |= {key: value for key, value in labels_of(each).items() if key in named}
    return "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


@pytest.mark.slow
@pytest.mark.processes
def test_promtool_finds_no_fault_in_the_rules() -> None:
    done = subprocess.run(
        [promtool(), "check", "rules", "--lint=all", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@pytest.mark.slow
@pytest.mark.processes
def test_promtool_finds_no_fault_in_the_configuration(tmp_path: Path) -> None:
    for name in ("prometheus.yml", RULES.name):
        shutil.copy(RULES.with_name(name), tmp_path)
    (tmp_path / "prometheus.token").write_text("token")
    done = subprocess.run(
        [promtool(), "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    jobs = {each["job_name"] for each in yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]}
    assert jobs == {EDGE_JOB, HUB_JOB}


RULE_OF = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


def judged(folder: Path, rules: Sequence[dict[str, Any]]) -> list[str]:
    """Return promtool's word on each rule over its cases, empty where it finds no fault.

    One file for each rule, alone: promtool would evaluate all rules at each step of each test.
    """
    files = []
    for number, rule in enumerate(rules):
        alone = folder / f"{number}-rule.yaml"
        alone.write_text(yaml.safe_dump({"groups": [{"name": "alone", "rules": [rule]}]}))
        files.append(folder / f"{number}.yaml")
        cases = CASES[rule["alert"]]
        tests = [
            each for case in (cases if isinstance(cases, list) else [cases]) for each in tried(rule["alert"], case)
        ]
        document = {"rule_files": [str(alone)], "evaluation_interval": "1m", "tests": tests}
        files[-1].write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [promtool(), "test", "rules", *map(str, files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = re.split(r"^Unit Testing: .*\n", done.stdout, flags=re.MULTILINE)[1:]
    assert len(said) == len(rules), done.stdout
    return ["" if each.strip() == "SUCCESS" else each for each in said]


@pytest.mark.slow
@pytest.mark.processes
def test_each_alert_comes_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    said = judged(tmp_path, [RULE_OF[name] for name in CASES])
    assert {name: text for name, text in zip(CASES, said, strict=True) if text} == {}


BOUND = re.compile(r"([<>]=?) (?!0\b)(\d[\d.]*(?: \* \d[\d.]*)*)")


@pytest.mark.slow
@pytest.mark.processes
def test_the_cases_stand_at_both_sides_of_each_bound(tmp_path: Path) -> None:
    """A bound that is a tenth higher or lower, or is one of another number of the expression, would be noticed."""
    moved = {}
    for name, rule in RULE_OF.items():
        for match in BOUND.finditer(rule["expr"]):
            for factor in (0.9, 1.1):
                text = rule["expr"]
                text = f"{text[: match.start(2)]}{factor} * {match[2]}{text[match.end(2) :]}"
                moved[name, match[0], factor] = {**rule, "expr": text}
    assert len(moved) > 40
    said = judged(tmp_path, list(moved.values()))
    assert [bound for bound, text in zip(moved, said, strict=True) if not text] == []


# --- Alerts and dashboards in deploy/monitoring: made from the code, and each says only what is there
#
# `promtool` and a real Prometheus judge them in `test_prometheus.py`.


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
ALERT_RULES_ALERTS = (*EDGE_ALERTS, *HUB_ALERTS)
OF_TARGETS = {"job", "instance"}
"""Labels that Prometheus gives to every series."""
METRICS = {
    series: {*metric.labels, *OF_TARGETS, *(["le"] if metric.kind == "histogram" else [])}
    for metric in (*EDGE_METRICS, *HUB_METRICS, *PROCESS_METRICS)
    for series in metric.series
} | {"up": OF_TARGETS}


def expressions() -> list[tuple[str, str]]:
    """Name of the alert or panel, and its expression."""
    found = [(each.name, each.when) for each in ALERT_RULES_ALERTS]
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
    for each in ALERT_RULES_ALERTS:
        rule = each.rule()
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        known = set().union(*(METRICS[name] for name in metrics_in(each.when)))
        assert used <= known, each.name
        assert each.by_instance == ("instance" in used)


def test_names_are_unique_and_a_severity_has_a_page_of_the_docs() -> None:
    assert len({each.name for each in ALERT_RULES_ALERTS}) == len(ALERT_RULES_ALERTS)
    for each in ALERT_RULES_ALERTS:
        assert each.page == "" or (ROOT / "docs/how-to" / each.page).is_file(), each.name


def test_every_command_and_setting_of_an_advice_is_there() -> None:
    known = {setting.path for model in (EdgeConfig, HubConfig) for setting in settings(model)}
    for each in ALERT_RULES_ALERTS:
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
