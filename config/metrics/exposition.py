"""Values of the metric catalogue in Prometheus's text format, the same way for edges and hubs."""

from __future__ import annotations

import asyncio
import importlib
import platform
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple

from weft.config.metrics.metric import Metric
from weft.config.release import VERSION

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One value of one metric."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


class HistogramSample(NamedTuple):
    """All buckets of one histogram without labels."""

    name: str
    bounds: Sequence[float]
    """Upper bounds, ascending."""
    counts: Sequence[int]
    """Counts per bucket, not cumulated; one more than ``bounds``."""
    seconds: float
    """Sum of the observed values."""


AnySample = Sample | HistogramSample
WITHOUT_ENTRY = "Not in the catalogue: config/metrics has no line that says what this is."


def build_info(name: str) -> Sample:
    """Return the sample that says which release runs on which Python."""
    return Sample(name, 1, (VERSION, platform.python_version()))


async def load() -> None:
    """Import what `render` needs, beside the event loop: some 20 ms of processor time on a desktop, once. Call it at
    the first scrape, not at the start: a node that is never scraped saves the library's memory."""
    await asyncio.to_thread(importlib.import_module, "prometheus_client.core")


def render(catalogue: Sequence[Metric], samples: Iterable[AnySample]) -> bytes:
    """Return all metrics, including those of the process. Call it after `load`."""
    from prometheus_client import ProcessCollector
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry

    class Now(Collector):
        def collect(self) -> Iterator[Family]:
            by_name: dict[str, list[AnySample]] = {}
            for sample in samples:
                by_name.setdefault(sample.name, []).append(sample)
            for metric in catalogue:
                yield _family(metric, by_name.pop(metric.name, ()))
            for name, others in by_name.items():
                yield _family(_without_entry(name, others), others)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Now())
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _without_entry(name: str, samples: Sequence[AnySample]) -> Metric:
    """Return an entry for samples of which the catalogue says nothing.

    That is a fault of ours, which tests refuse. A node in use shows what it has: an exception would cost its operator
    all the other metrics, and samples that are left out are missed by no one.
    """
    labels = max(len(each.labels) if isinstance(each, Sample) else 0 for each in samples)
    kind: Literal["histogram", "gauge"] = "histogram" if isinstance(samples[0], HistogramSample) else "gauge"
    return Metric(name, kind, WITHOUT_ENTRY, tuple(f"label_{number}" for number in range(1, labels + 1)))


def _family(metric: Metric, samples: Iterable[AnySample]) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help)
        for sample in samples:
            assert isinstance(sample, HistogramSample)
            bounds = [*map(str, sample.bounds), "+Inf"]
            histogram.add_metric([], list(zip(bounds, accumulate(sample.counts), strict=True)), sample.seconds)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        assert isinstance(sample, Sample)
        family.add_metric(sample.labels, sample.value)
    return family
