"""The metric catalogue and what a hub exports are the same; tests/edge_node/test_node.py asks an edge."""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import importlib
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings
from weft.config.limits import EdgeLimits
from weft.config.metrics.edge import EDGE_METRICS
from weft.config.metrics.exposition import WITHOUT_ENTRY, AnySample, HistogramSample, Sample, render
from weft.config.metrics.hub import HUB_METRICS
from weft.config.metrics.metric import PROCESS_METRICS, Metric
from weft.config.streams import State
from weft.edge_node.counters import Counters
from weft.edge_node.servers.amqp.client import AmqpCounters

ROOT = Path(__file__).parents[2]


async def test_a_hub_exports_its_catalogue() -> None:
    kafka_port = 0 if find_spec("kio") and find_spec("aiokafka") else None  # an extra
    hub = await Hub.open(HubSettings(store="memory://", port=0, shards=1, sharing=True, kafka_port=kafka_port))
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{hub.url}/metrics") as answer:
            families = list(text_string_to_metric_families(await answer.text()))
    finally:
        await hub.close()
    exported = {(sample.name, family.type) for family in families for sample in family.samples}
    # Series with labels of streams, owners or regions appear with the first of them.
    without_streams = {
        (name, metric.kind)
        for metric in (*HUB_METRICS, *PROCESS_METRICS)
        if not {"stream", "owner", "tenant", "region"} & set(metric.labels)
        for name in metric.series
        if kafka_port is not None or not name.startswith("weft_hub_kafka_")
    }
    of_a_folder = {("weft_hub_store_free_bytes", "gauge")}  # this store is in memory
    assert exported == without_streams - of_a_folder


def counters_of_an_edge() -> Iterator[type[Any]]:
    """The dataclasses of counters, which the code calls so: each of their fields is a metric of its name."""
    for path in sorted((ROOT / "edge_node").rglob("*.py")):
        for name in re.findall(r"^@dataclass.*\nclass (\w*Counters)\b", path.read_text(), re.MULTILINE):
            module = ".".join(("weft", *path.relative_to(ROOT).with_suffix("").parts))
            yield getattr(importlib.import_module(module), name)


def test_every_counter_of_an_edge_is_in_the_catalogue() -> None:
    gauges = {metric.name for metric in EDGE_METRICS if metric.kind == "gauge"}
    counters = {metric.name for metric in EDGE_METRICS if metric.kind == "counter"}
    found = list(counters_of_an_edge())
    assert {Counters, AmqpCounters} <= set(found)
    for each in found:
        for field in dataclasses.fields(each):
            name = f"weft_edge_{field.name}"
            assert name in gauges or f"{name}_total" in counters, f"give {name} a line in config/metrics/edge.py"


def names_in(tree: ast.AST) -> Iterator[str]:
    """Patterns of the metrics that code names, with ``*`` for what is computed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            name = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value
        else:
            continue
        if re.fullmatch(r"weft_(edge|hub)_[a-z0-9_*]*[a-z0-9*]", name):
            yield name


def test_every_sample_is_in_the_catalogue() -> None:
    """A part that no test of all metrics makes would name its sample as it likes."""
    names = [metric.name for metric in (*EDGE_METRICS, *HUB_METRICS)]
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in ("edge_node", "cloud_hub")
        for path in (ROOT / package).rglob("*.py")
        if "weft_" in (text := path.read_text())
        for name in names_in(ast.parse(text))
        if not fnmatch.filter(names, name)
    }
    assert found == set(), "give each a line in config/metrics"
    source = 'Sample("weft_edge_new", 1)\nSample(f"weft_hub_{name}_total", 1)\nPREFIX = "weft_edge_"\n'
    assert list(names_in(ast.parse(source))) == ["weft_edge_new", "weft_hub_*_total"]


def test_a_sample_without_an_entry_costs_no_other_and_does_not_vanish() -> None:
    samples: list[AnySample] = [
        Sample("weft_edge_new", 1, ("a", "b")),
        Sample("weft_edge_known", 2),
        HistogramSample("weft_odd", [1], [0, 3], 5),
    ]
    text = render([Metric("weft_edge_known", "gauge", "Known.")], samples).decode()
    assert "weft_edge_known 2.0\n" in text
    assert f"# HELP weft_edge_new {WITHOUT_ENTRY}\n" in text
    assert 'weft_edge_new{label_1="a",label_2="b"} 1.0\n' in text
    assert 'weft_odd_bucket{le="+Inf"} 3.0\n' in text


LIMITS = {
    "user_share": "refusals_total",
    "connections": "connections_refused_total",
    "connections_per_address": "connections_rate_limited_total",
    "connection_rate": "connections_rate_limited_total",
    "connection_burst": "connections_rate_limited_total",
    "half_open": "half_open_evicted_total",
    "http_connections": "refusals_total",
    "request_bytes": "http_refused_total",
    "http_readers": "refusals_total",
    "message_bytes": "protocol_errors_total",
    "connect_bytes": "protocol_errors_total",
    "unfinished_bytes": "refusals_total",
    "topic_levels": "publishes_denied_total",
    "connect_timeout_s": "connect_timeouts_total",
    "write_timeout_s": "write_timeouts_total",
    "keep_alive_s": "keep_alive_timeouts_total",
    "session_expiry_s": "sessions_expired_total",
    "send_queue_bytes": "deliveries_dropped_total",
    "sessions": "sessions_evicted_total",
    "subscriptions": "subscriptions_refused_total",
    "subscriptions_total": "subscriptions_refused_total",
    "filter_bytes": "subscriptions_refused_total",
    "filters_bytes": "subscriptions_refused_total",
    "filters_total_bytes": "subscriptions_refused_total",
    "match_cost": "refusals_total",
    "inflight": "sessions_behind_total",
    "receive_maximum": "receive_maximum_pauses_total",
    "topic_alias_maximum": "protocol_errors_total",
    "session_queue_bytes": "sessions_behind_total",
    "session_queues_bytes": "sessions_behind_total",
    "wills_bytes": "wills_refused_total",
    "retained": "retained_refused_total",
    "retained_bytes": "retained_refused_total",
    "authentications": "authentications_turned_away_total",
    "pending_bytes": "backpressure_pauses_total",
    "tail_bytes": "backlog_disk_reads_total",
    "journal_bytes_per_user": "refusals_total",
    "journal_bytes": "journal_refused_total",
    "resent_total": "resent_forgotten_total",
    "idempotency_keys": "http_keys_forgotten_total",
    "backlog_buffer_bytes": "backlog_evicted_total",
    "backlog_page_bytes": "backlog_pages_total",
    "backlog_page_records": "backlog_pages_total",
    "backlog_reads": "backlog_waits_total",
    "topics_log_bytes": "topics_abandoned_total",
}
"""Limit -> the metric that says how often it was met."""
NO_LIMITS = {"save_interval_s", "save_bytes", "positions_interval_s", "resent_window", "idempotency_window_s"}
"""Intervals, what begins a save early, and a window that is always full."""


def test_every_limit_of_an_edge_has_a_metric_that_counts_what_met_it() -> None:
    fields = {*EdgeLimits.__struct_fields__, *State.__struct_fields__}
    assert fields == LIMITS.keys() | NO_LIMITS, "say in LIMITS, beside this test, which metric counts what met it"
    names = {metric.name for metric in EDGE_METRICS}
    assert {f"weft_edge_{name}" for name in LIMITS.values()} <= names


def test_every_metric_has_a_meaning_and_a_unique_name() -> None:
    catalogue = (*EDGE_METRICS, *HUB_METRICS, *PROCESS_METRICS)
    assert len({metric.name for metric in catalogue}) == len(catalogue)
    assert all(metric.help.endswith((".", "restarted.")) and len(metric.help) > 15 for metric in catalogue)
