"""Each alert comes when it should and not otherwise: Prometheus's own `promtool` runs the rules over made series."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from docs.tools.monitoring.alert import EDGE_JOB, HUB_JOB
from docs.tools.monitoring.edge_alerts import EDGE_ALERTS
from docs.tools.monitoring.hub_alerts import HUB_ALERTS
from tests.support.waiting import PATIENCE_S

RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "weft-alerts.yaml"
ALERTS = {each.name: each for each in (*EDGE_ALERTS, *HUB_ALERTS)}
EDGE, HUB = 'job="weft-edge", instance="press-7:8080"', 'job="weft-hub", instance="a:8090"'
GI = 1 << 30
DAY_S = 86_400
MINUTES = 2_000
"""Length of all series, more than the day that the slowest alert takes."""


class Case(NamedTuple):
    """Series with which the alert comes once its time is over, and series like them with which it never does."""

    bad: dict[str, str]
    good: dict[str, str]


def edge(name: str, labels: str = "") -> str:
    return f"{name}{{{EDGE}{', ' + labels if labels else ''}}}"


def hub(name: str, labels: str = "") -> str:
    return f"{name}{{{HUB}{', ' + labels if labels else ''}}}"


def still(value: float) -> str:
    return f"{value:.0f}+0x{MINUTES}" if value == int(value) else f"{value}+0x{MINUTES}"


def rising(by: float, start: float = 0) -> str:
    return f"{start:.0f}+{by}x{MINUTES}"


def flag(series: str, bad: float = 1, good: float = 0) -> Case:
    """An alert on one value."""
    return Case({series: still(bad)}, {series: still(good)})


def slow(series: str, name: str, bound: str) -> Case:
    """Half of what was measured lies above ``bound`` seconds; or one in a thousand does."""
    low, middle, last = (
        series.replace(name, f"{name}_bucket").replace("}", f', le="{le}"}}') for le in ("0.01", bound, "+Inf")
    )
    return Case(
        {low: rising(10), middle: rising(50), last: rising(100)},
        {low: rising(999), middle: rising(999), last: rising(1000)},
    )


REGION = 'region="east", shard="1"'
LINK, STREAM = 'link="cloud"', 'stream="telemetry"'
REGION_LAG, REGION_KEPT = hub("weft_hub_region_lag_seconds", REGION), hub("weft_hub_region_kept_seconds", REGION)
REGION_USED = hub("weft_hub_region_budget_used_bytes", 'region="east"')
REGION_BUDGET = hub("weft_hub_region_budget_bytes", 'region="east"')
TABLE = f'tenant="default", {STREAM}'
PIPELINE = 'tenant="default", pipeline="machine-hours"'
RULE = f'{TABLE}, rule="oil"'
UNTIL_FULL = (edge("weft_edge_log_budget_bytes"), edge("weft_edge_log_unsafe_bytes"))
WAITS = edge("weft_edge_link_pending_seconds", LINK)
BEHIND = {WAITS: still(7200), edge("weft_edge_link_connected", LINK): still(1)}


def outage(hours: float) -> Case:
    """A log that is full in so many hours, all the time; and one that fills as fast while the link keeps up."""
    budget, unsafe = UNTIL_FULL
    a_minute = GI / 60
    bad = {budget: rising(a_minute, int(hours * GI)), unsafe: rising(a_minute), WAITS: still(3600)}
    return Case(bad, {**bad, WAITS: still(1)})


FREE = hub("weft_hub_store_free_bytes")
CASES = {
    "WeftEdgeDown": flag(edge("up"), 0, 1),
    "WeftEdgeLogFailed": flag(edge("weft_edge_log_failed")),
    "WeftEdgeLogFull": flag(edge("weft_edge_log_full")),
    "WeftEdgeLogLow": flag(edge("weft_edge_log_low")),
    "WeftEdgeOutageHoursFew": outage(20),
    "WeftEdgeOutageHoursNearlyOver": outage(3),
    "WeftEdgeGap": Case(
        {edge("weft_edge_stream_lost_records", f'{STREAM}, reason="budget"'): still(12)},
        {edge("weft_edge_stream_lost_records", f'{STREAM}, reason="operator"'): still(12)},
    ),
    "WeftEdgeAcksSlow": slow(edge("weft_edge_ack_latency_seconds"), "weft_edge_ack_latency_seconds", "2"),
    "WeftEdgeDiskSlow": slow(edge("weft_edge_log_sync_latency_seconds"), "weft_edge_log_sync_latency_seconds", "1"),
    "WeftEdgeCardWearsOut": flag(edge("weft_edge_log_card_lifetime_seconds"), 100 * DAY_S, 0),
    "WeftEdgeQueuesNearlyFull": Case(
        {edge("weft_edge_queue_bytes"): still(95), edge("weft_edge_queue_bytes_max"): still(100)},
        {edge("weft_edge_queue_bytes"): still(0), edge("weft_edge_queue_bytes_max"): still(0)},
    ),
    "WeftEdgeLinkDown": Case(
        {edge("weft_edge_link_connected", LINK): still(0), edge("weft_edge_link_paused", LINK): still(0)},
        {edge("weft_edge_link_connected", LINK): still(0), edge("weft_edge_link_paused", LINK): still(1)},
    ),
    "WeftEdgeBehind": Case(
        {**BEHIND, edge("weft_edge_link_held", LINK): still(0)}, {**BEHIND, edge("weft_edge_link_held", LINK): still(1)}
    ),
    "WeftEdgeLinkPaused": flag(edge("weft_edge_link_paused", LINK)),
    "WeftEdgeLinkBudget": Case(
        {
            edge("weft_edge_link_budget_used_bytes", LINK): still(95),
            edge("weft_edge_link_budget_bytes", LINK): still(100),
        },
        {
            edge("weft_edge_link_budget_used_bytes", LINK): still(50),
            edge("weft_edge_link_budget_bytes", LINK): still(100),
        },
    ),
    "WeftEdgeNothingBecomesDurable": flag(edge("weft_edge_link_canary_overdue", LINK)),
    "WeftEdgeHubLostRecords": flag(edge("weft_edge_link_alarm", LINK)),
    "WeftEdgeConflict": flag(edge("weft_edge_conflict")),
    "WeftEdgeCertificateEnds": flag(
        edge("weft_edge_listener_certificate_expires_timestamp_seconds", 'listener="mqtts"'), 10 * DAY_S, 100 * DAY_S
    ),
    "WeftEdgeClockUnsynchronised": flag(edge("weft_edge_clock_synchronised"), 0, 1),
    "WeftEdgeFunctionInTrouble": flag(edge("weft_edge_function_in_trouble", STREAM)),
    "WeftEdgeFunctionVersionRefused": flag(edge("weft_edge_function_version_refused", STREAM)),
    "WeftEdgeFunctionRejects": Case(
        {
            edge("weft_edge_function_rows_rejected_total", STREAM): rising(10),
            edge("weft_edge_function_rows_in_total", STREAM): rising(100),
        },
        {
            edge("weft_edge_function_rows_rejected_total", STREAM): rising(1),
            edge("weft_edge_function_rows_in_total", STREAM): rising(100),
        },
    ),
    "WeftEdgeFunctionBehind": flag(edge("weft_edge_function_lag_records", STREAM), 50_000, 500),
    "WeftEdgeMisfits": Case(
        {
            edge("weft_edge_schema_misfits_total", f'{STREAM}, outcome="refused"'): rising(1),
            edge("weft_edge_schema_misfits_total", f'{STREAM}, outcome="dead_lettered"'): rising(1),
            edge("weft_edge_schema_checked_total", STREAM): rising(100),
        },
        {
            edge("weft_edge_schema_misfits_total", f'{STREAM}, outcome="refused"'): rising(0),
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
        {edge("weft_edge_authentications_refused_total"): rising(60)},
        {edge("weft_edge_authentications_refused_total"): rising(6)},
    ),
    "WeftEdgeFilesNearlyOut": Case(
        {
            edge("process_open_fds"): still(950), edge("process_max_fds"): still(1000),
            edge("weft_edge_build_info", 'version="1"'): still(1),
        },
        {hub("process_open_fds"): still(5), hub("process_max_fds"): still(1000)},
    ),
    "WeftHubDown": flag(hub("up"), 0, 1),
    "WeftHubStoreTrouble": flag(hub("weft_hub_store_trouble", 'shard="0"')),
    "WeftHubCommitsSlow": slow(hub("weft_hub_commit_latency_seconds"), "weft_hub_commit_latency_seconds", "10"),
    "WeftHubStoreSlow": slow(hub("weft_hub_store_put_latency_seconds"), "weft_hub_store_put_latency_seconds", "5"),
    "WeftHubClockWrong": flag(hub("weft_hub_clock_off_seconds"), -60, 0),
    "WeftHubEdgesClocksDiffer": flag(hub("weft_hub_links_clock_differs"), 2),
    "WeftHubEdgesGone": Case(
        {hub("weft_hub_links"): "500+0x100 300+0x2000"}, {hub("weft_hub_links"): "500+0x100 480+0x2000"}
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
    "WeftHubBackupOld": flag(hub("weft_hub_backup_age_seconds"), 3 * DAY_S, DAY_S),
    "WeftHubRegionBehind": Case(
        {REGION_LAG: still(60), REGION_KEPT: still(100)}, {REGION_LAG: still(40), REGION_KEPT: still(100)}
    ),
    "WeftHubRegionBudget": Case(
        {REGION_USED: still(95), REGION_BUDGET: still(100)}, {REGION_USED: still(85), REGION_BUDGET: still(100)}
    ),
    "WeftHubRegionBudgetUsedUp": flag(hub("weft_hub_region_budget_used_up", 'region="east"')),
    "WeftHubRegionLost": flag(hub("weft_hub_region_lost_chunks", REGION)),
    "WeftHubDiskFillsUp": Case({FREE: f"{160 * GI}-{GI / 60}x{MINUTES}"}, {FREE: still(100 * GI)}),
    "WeftHubDiskNearlyFull": flag(FREE, GI / 2, 100 * GI),
    "WeftHubConflict": flag(hub("weft_hub_conflicts")),
    "WeftHubIssuerAway": flag(hub("weft_hub_jwt_keys_failing_seconds"), 3700, 3500),
    "WeftHubDeclarationsOld": flag(hub("weft_hub_cluster_log_age_seconds"), 90, 3),
    "WeftHubDeclarationsUnusable": flag(hub("weft_hub_cluster_log_unusable")),
    "WeftHubCertificateEnds": flag(hub("weft_hub_certificate_expires_timestamp_seconds"), 10 * DAY_S, 0),
    "WeftHubReloadFailed": Case(
        {hub("weft_hub_tls_reload_failures_total"): rising(1)}, {hub("weft_hub_tls_reload_failures_total"): still(3)}
    ),
    "WeftHubShareReached": Case(
        {hub("weft_hub_refusals_total", 'bound="limits.links", owner="x"'): rising(1)},
        {hub("weft_hub_refusals_total", 'bound="limits.links", owner="x"'): still(3)},
    ),
    "WeftHubFilesNearlyOut": Case(
        {
            hub("process_open_fds"): still(950), hub("process_max_fds"): still(1000),
            hub("weft_hub_build_info", 'version="1"'): still(1),
        },
        {edge("process_open_fds"): still(5), edge("process_max_fds"): still(1000)},
    ),
    "WeftHubStreamIncomplete": Case(
        {hub("weft_hub_stream_complete_up_to_timestamp_seconds", TABLE): still(1)},
        {hub("weft_hub_stream_complete_up_to_timestamp_seconds", TABLE): rising(60, 1)},
    ),
    "WeftHubStreamUnknown": flag(hub("weft_hub_stream_complete_up_to_timestamp_seconds", TABLE), 0, 10),
    "WeftHubTableBehind": flag(hub("weft_hub_stream_table_lag_seconds", TABLE), 7200, 30),
    "WeftHubTableStopped": flag(hub("weft_hub_stopped_tables")),
    "WeftHubPipelineTrouble": flag(hub("weft_hub_pipeline_trouble", PIPELINE)),
    "WeftHubQualityRule": flag(hub("weft_hub_quality_rule_alarm", RULE)),
    "WeftHubFieldVanished": Case(
        {hub("weft_hub_quality_alarms"): still(2), hub("weft_hub_quality_rule_alarm", RULE): still(1)},
        {hub("weft_hub_quality_alarms"): still(1), hub("weft_hub_quality_rule_alarm", RULE): still(1)},
    ),
    "WeftHubQualityUnknown": flag(hub("weft_hub_quality_rule_unknown", RULE)),
}  # fmt: skip


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
    for word, series in zip(("bad", "good"), case, strict=True):
        came = [{"labels": _label_text(alert.severity, named, series), "value": 1}] if word == "bad" else never
        looks = [(lasting + 120, came), *([(lasting - 1, never)] if lasting else [])]
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
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
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
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    jobs = {each["job_name"] for each in yaml.safe_load((tmp_path / "prometheus.yml").read_text())["scrape_configs"]}
    assert jobs == {EDGE_JOB, HUB_JOB}


@pytest.mark.slow
@pytest.mark.processes
def test_each_alert_comes_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    """One file for each alert, with its rule alone: promtool would evaluate all rules at each step of each test."""
    rules = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    files = []
    for name, case in CASES.items():
        alone = tmp_path / f"{name}-rule.yaml"
        alone.write_text(yaml.safe_dump({"groups": [{"name": name, "rules": [rules[name]]}]}))
        files.append(tmp_path / f"{name}.yaml")
        document = {"rule_files": [str(alone)], "evaluation_interval": "1m", "tests": tried(name, case)}
        files[-1].write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [promtool(), "test", "rules", *map(str, files)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
