"""The hub's figures for Prometheus, read from the counters when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cloud_hub.sequencer import Counters, Sequencer

_COUNTERS = {
    "chunks": "Chunks that this node wrote.",
    "records": "Records in chunks that this node wrote.",
    "bytes": "Bytes of chunks that this node wrote.",
    "foreign_chunks": "Chunks of other nodes that this node read.",
    "unclear": "Chunk creations that did not end in a clean success.",
    "reloads": "Times that the state was loaded anew.",
}


class HubCollector:
    """One registry's view of a hub.

    Args:
        links: how many edges are connected now.
    """

    def __init__(self, sequencers: Sequence[Sequencer], links: Callable[[], int]) -> None:
        self._sequencers = sequencers
        self._links = links

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        yield GaugeMetricFamily("weft_hub_links", "Edges connected to this node.", self._links())
        for name, text in _COUNTERS.items():
            family = CounterMetricFamily(f"weft_hub_{name}", text, labels=["shard"])
            for sequencer in self._sequencers:
                family.add_metric([str(sequencer.log.shard)], _value(sequencer.counters, name))
            yield family
        retries = CounterMetricFamily("weft_hub_retries", "Waits for a store that did not answer.", labels=["shard"])
        refused = CounterMetricFamily("weft_hub_sessions_refused", "Lane sessions sent away.", labels=["shard"])
        pending = GaugeMetricFamily("weft_hub_pending_bytes", "Bytes that wait for the store.", labels=["shard"])
        head = GaugeMetricFamily("weft_hub_chunk", "Number of the newest chunk known.", labels=["shard"])
        trouble = GaugeMetricFamily("weft_hub_store_trouble", "1 while the store does not answer.", labels=["shard"])
        for sequencer in self._sequencers:
            labels = [str(sequencer.log.shard)]
            retries.add_metric(labels, sequencer.retries)
            refused.add_metric(labels, sequencer.intakes.refused)
            pending.add_metric(labels, sequencer.intakes.pending_bytes)
            head.add_metric(labels, sequencer.state.n)
            trouble.add_metric(labels, float(sequencer.trouble is not None))
        yield from (retries, refused, pending, head, trouble)


def _value(counters: Counters, name: str) -> int:
    return int(getattr(counters, name))


class Metrics:
    """The text that ``GET /metrics`` answers."""

    def __init__(self, collector: HubCollector) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)

    def text(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self._registry)
