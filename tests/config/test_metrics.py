"""The metric catalogue and what a hub exports are the same; tests/edge_node/test_node.py asks an edge."""

from __future__ import annotations

import dataclasses

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings
from weft.config.limits import EdgeLimits
from weft.config.metrics import EDGE_METRICS, HUB_METRICS, PROCESS_METRICS
from weft.config.state import State
from weft.edge_node.counters import Counters, ListenerCounters
from weft.edge_node.servers.amqp.counters import AmqpCounters
from weft.edge_node.servers.http.counters import HttpCounters
from weft.edge_node.sessions.store.settings import StateCounters


async def test_a_hub_exports_its_catalogue() -> None:
    hub = Hub(HubSettings(store="memory://", port=0, shards=1))
    await hub.start()
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{hub.url}/metrics") as answer:
            families = list(text_string_to_metric_families(await answer.text()))
    finally:
        await hub.close()
    exported = {(sample.name, family.type) for family in families for sample in family.samples}
    # Series with labels of streams or owners appear with the first of them.
    without_streams = {
        (name, metric.kind)
        for metric in (*HUB_METRICS, *PROCESS_METRICS)
        if not {"stream", "owner"} & set(metric.labels)
        for name in metric.series
    }
    assert exported == without_streams


def test_every_counter_of_an_edge_is_in_the_catalogue() -> None:
    gauges = {metric.name for metric in EDGE_METRICS if metric.kind == "gauge"}
    counters = {metric.name for metric in EDGE_METRICS if metric.kind == "counter"}
    for each in (Counters, ListenerCounters, HttpCounters, StateCounters, AmqpCounters):
        for field in dataclasses.fields(each):
            name = f"weft_edge_{field.name}"
            assert name in gauges or f"{name}_total" in counters, f"{name} is not in config/metrics"


LIMITS = {
    "connections": "connections_refused_total",
    "connections_per_user": "refusals_total",
    "connections_per_address": "connections_rate_limited_total",
    "connection_rate": "connections_rate_limited_total",
    "connection_burst": "connections_rate_limited_total",
    "half_open": "half_open_evicted_total",
    "http_connections": "refusals_total",
    "request_bytes": "http_refused_total",
    "http_readers": "refusals_total",
    "http_readers_per_user": "refusals_total",
    "message_bytes": "protocol_errors_total",
    "connect_bytes": "protocol_errors_total",
    "unfinished_bytes": "refusals_total",
    "unfinished_per_user_bytes": "refusals_total",
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
    "sessions_per_user": "refusals_total",
    "subscriptions_per_user": "refusals_total",
    "match_cost": "refusals_total",
    "match_cost_per_user": "refusals_total",
    "filters_per_user_bytes": "refusals_total",
    "session_queues_per_user_bytes": "sessions_behind_total",
    "wills_per_user_bytes": "refusals_total",
    "retained_per_user": "refusals_total",
    "retained_per_user_bytes": "refusals_total",
    "inflight": "sessions_behind_total",
    "receive_maximum": "receive_maximum_pauses_total",
    "topic_alias_maximum": "protocol_errors_total",
    "session_queue_bytes": "sessions_behind_total",
    "session_queues_bytes": "sessions_behind_total",
    "wills_bytes": "wills_refused_total",
    "retained": "retained_refused_total",
    "retained_bytes": "retained_refused_total",
    "authentications_per_address": "authentications_turned_away_total",
    "authentications": "authentications_turned_away_total",
    "pending_bytes": "backpressure_pauses_total",
    "tail_bytes": "backlog_disk_reads_total",
    "journal_bytes_per_user": "refusals_total",
    "journal_bytes": "journal_refused_total",
    "resent_per_user": "resent_forgotten_total",
    "resent_total": "resent_forgotten_total",
    "idempotency_keys": "http_keys_forgotten_total",
    "idempotency_keys_per_user": "http_keys_forgotten_total",
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
    assert fields == LIMITS.keys() | NO_LIMITS
    names = {metric.name for metric in EDGE_METRICS}
    assert {f"weft_edge_{name}" for name in LIMITS.values()} <= names


def test_every_metric_has_a_meaning_and_a_unique_name() -> None:
    catalogue = (*EDGE_METRICS, *HUB_METRICS, *PROCESS_METRICS)
    assert len({metric.name for metric in catalogue}) == len(catalogue)
    assert all(metric.help.endswith((".", "restarted.")) and len(metric.help) > 15 for metric in catalogue)
