"""The metric catalogue and what a hub exports are the same; tests/edge_node/test_node.py asks an edge."""

from __future__ import annotations

import dataclasses

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from cloud_hub.hub import Hub
from cloud_hub.settings import HubSettings
from config.metrics import EDGE_METRICS, HUB_METRICS
from edge_node.counters import Counters
from edge_node.door_counters import DoorCounters
from edge_node.state import StateCounters


async def test_a_hub_exports_its_catalogue() -> None:
    hub = Hub(HubSettings(store="memory://", port=0, shards=1))
    await hub.start()
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{hub.url}/metrics") as answer:
            families = list(text_string_to_metric_families(await answer.text()))
    finally:
        await hub.close()
    exported = {(sample.name, family.type) for family in families for sample in family.samples}
    # Series with labels of streams appear with the first stream.
    without_streams = {(metric.name, metric.kind) for metric in HUB_METRICS if "stream" not in metric.labels}
    assert exported == without_streams


def test_every_counter_of_an_edge_is_in_the_catalogue() -> None:
    gauges = {metric.name for metric in EDGE_METRICS if metric.kind == "gauge"}
    counters = {metric.name for metric in EDGE_METRICS if metric.kind == "counter"}
    for each in (Counters, DoorCounters, StateCounters):
        for field in dataclasses.fields(each):
            name = f"weft_edge_{field.name}"
            assert name in gauges or f"{name}_total" in counters, f"{name} is not in config/metrics.py"


def test_every_metric_has_a_meaning_and_a_unique_name() -> None:
    catalogue = (*EDGE_METRICS, *HUB_METRICS)
    assert len({metric.name for metric in catalogue}) == len(catalogue)
    assert all(metric.help.endswith((".", "restarted.")) and len(metric.help) > 15 for metric in catalogue)
