"""The node's metrics in Prometheus's text format, by the catalogue of ``config/metrics/``."""

from __future__ import annotations

from collections.abc import Iterator

from weft.config.metrics import EDGE_METRICS, exposition
from weft.config.metrics.exposition import AnySample, HistogramSample, Sample, build_info
from weft.edge_node.status.facts import NodeStatus, owner_name, write_amplification
from weft.protocols.segment import GapReason
from weft.storage.histogram import Histogram
from weft.storage.segment_log.state.gaps import reason_name

_PREFIX = "weft_edge_"
_LOSSES = [reason for reason in GapReason if reason not in (GapReason.RENAMED, GapReason.ABSENT)]
"""Reasons of gap notices in a log. `RENAMED` is for links only, since its records are still in the log."""


def render(status: NodeStatus) -> bytes:
    """Return all metrics now."""
    return exposition.render(EDGE_METRICS, samples(status))


def samples(status: NodeStatus) -> Iterator[AnySample]:
    """Yield the value of every metric of the catalogue."""
    yield from _counters(status)
    yield from _log(status)
    for name, number in status.streams().items():
        yield Sample("weft_edge_stream_next_seq", status.log.next_seq(number), (name,))
        yield Sample("weft_edge_stream_durable_end", status.log.durable_end(number), (name,))
        yield Sample("weft_edge_stream_bytes", status.log.stream_bytes(number), (name,))
        for reason in _LOSSES:
            lost = sum(gap.end - gap.first for gap in status.log.gaps(number) if gap.reason == reason)
            yield Sample("weft_edge_stream_lost_records", lost, (name, reason_name(reason)))
    for part in status.parts:
        yield from part.samples()
    for each in status.refusals:
        yield Sample("weft_edge_refusals_total", each.times, (each.bound, owner_name(each.owner)))
    yield Sample("weft_edge_clock_synchronised", status.is_clock_synchronised)
    yield Sample("weft_edge_start_time_seconds", status.started_ns / 1e9)
    yield build_info("weft_edge_build_info")


def _counters(status: NodeStatus) -> Iterator[Sample]:
    gauges = {metric.name for metric in EDGE_METRICS if metric.kind == "gauge"}
    for field, value in status.counted().items():
        name = _PREFIX + field
        yield Sample(name if name in gauges else f"{name}_total", value)


def _log(status: NodeStatus) -> Iterator[AnySample]:
    stats = status.log.stats()
    yield Sample("weft_edge_log_bytes", stats.bytes_on_disk)
    yield Sample("weft_edge_log_budget_bytes", stats.budget_bytes)
    yield Sample("weft_edge_log_segments", stats.segments)
    yield Sample("weft_edge_log_pending_bytes", stats.pending_bytes)
    yield Sample("weft_edge_log_records_total", stats.records)
    yield Sample("weft_edge_log_commits_total", stats.commits)
    yield Sample("weft_edge_log_written_bytes_total", stats.bytes_written)
    yield Sample("weft_edge_log_sync_seconds_total", stats.sync.seconds)
    yield _histogram("weft_edge_log_sync_latency_seconds", stats.sync)
    yield _histogram("weft_edge_ack_latency_seconds", stats.ack)
    yield Sample("weft_edge_log_unsafe_bytes", stats.unsafe_bytes)
    yield Sample("weft_edge_log_device_written_bytes_total", stats.device_bytes)
    yield Sample("weft_edge_log_payload_bytes_total", stats.payload_bytes)
    yield Sample("weft_edge_log_moved_bytes_total", stats.moved_bytes)
    yield Sample("weft_edge_log_write_amplification", write_amplification(stats) or 0)
    yield Sample("weft_edge_log_card_lifetime_seconds", status.card_lifetime_s(stats) or 0)
    yield Sample("weft_edge_log_full", status.log.shortage() is not None)
    yield Sample("weft_edge_log_low", status.low_water(stats) is not None)
    yield Sample("weft_edge_log_failed", stats.failed is not None)


def _histogram(name: str, counted: Histogram) -> HistogramSample:
    return HistogramSample(name, counted.bounds, counted.counts, counted.seconds)
