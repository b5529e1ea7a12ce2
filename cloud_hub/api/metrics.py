"""The hub's figures for Prometheus, read from the counters at each scrape."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING

from weft.bounds.events import SecurityEvent
from weft.bounds.refusals import RefusalCount
from weft.cloud_hub.api.edge_figures import EdgeFigures
from weft.cloud_hub.api.streams.figures import StreamFigures
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.shard.collector import ShardCollector
from weft.cloud_hub.shard.counters import ShardCounters
from weft.cloud_hub.shard.message_lanes import is_hubs_own
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.config.metrics import HUB_METRICS, exposition
from weft.config.metrics.exposition import AnySample, HistogramSample, Sample, build_info
from weft.storage.histogram import Histogram

if TYPE_CHECKING:
    from weft.storage.table_maker.service import TableService

_COUNTERS = ("chunks", "records", "bytes", "foreign_chunks", "unclear", "reloads")
_NS = 1_000_000_000


class Metrics:
    """The text of ``GET /metrics``.

    Args:
        sequencers: the shards that this process holds at the moment.
        streams: figures of streams, over all shards; None if another process computes them.
        links: the open links.
        clocks_differ: returns the number of linked edges whose synchronised clocks differ from the node's.
        clock: the node's; while it is wrong, no stream is complete up to any time.
        collected: the shards whose old chunks this process deletes.
        tables: the tables; None if another process keeps them.
        refusals: refusals by bound.
        events: number of events of each kind.
        declared: returns the samples of the cluster log.
        edges: figures of the edges of its own shards.
        requests: calls of the store, by kind.
        of_listener, of_tables, tenants, regions, disk: return the figures of the listener, of the tables' quality
            rules, sizes and traces, of tenants' use, of links to other regions, and of the store's disk.
        pipelines: returns the figures of pipelines; None if another process has them.
    """

    def __init__(
        self,
        sequencers: Iterable[Sequencer],
        streams: StreamFigures | None,
        links: Sized,
        clock: HubClock,
        collected: Sequence[ShardCollector] = (),
        *,
        clocks_differ: Callable[[], int],
        edges: EdgeFigures,
        requests: Mapping[str, int],
        tables: TableService | None = None,
        refusals: Iterable[RefusalCount] = (),
        events: Mapping[SecurityEvent, int] | None = None,
        declared: Callable[[], Iterable[AnySample]] = tuple,
        of_listener: Callable[[], Iterable[Sample]] = tuple,
        of_tables: Callable[[], Iterable[Sample]] = tuple,
        tenants: Callable[[], Iterable[Sample]] = tuple,
        regions: Callable[[], Iterable[Sample]] = tuple,
        pipelines: Callable[[], Awaitable[Iterable[Sample]]] | None = None,
        disk: Callable[[], Iterable[Sample]] = tuple,
    ) -> None:
        self._sequencers = sequencers
        self._streams = streams
        self._links = links
        self._clocks_differ = clocks_differ
        self._edges, self._requests = edges, requests
        self._clock = clock
        self._collected = collected
        self._tables = tables
        self._refusals = refusals
        self._events = events or {}
        self._declared = declared
        self._of_listener = of_listener
        self._of_tables, self._tenants, self._regions = of_tables, tenants, regions
        self._pipelines = pipelines
        self._disk = disk

    async def text(self) -> bytes:
        """Return the metrics in Prometheus's text format. The figures of streams are at most some seconds old."""
        if self._streams is not None:
            await self._streams.refresh()
        await self._edges.refresh()
        of_pipelines = await self._pipelines() if self._pipelines is not None else ()
        await exposition.load()
        return exposition.render(HUB_METRICS, itertools.chain(self._samples(), of_pipelines))

    def _samples(self) -> Iterator[AnySample]:
        yield Sample("weft_hub_links", len(self._links))
        yield from self._edges.samples()
        for kind, count in self._requests.items():
            yield Sample("weft_hub_store_requests_total", count, (kind,))
        yield from self._disk()
        yield from self._of_listener()
        yield Sample("weft_hub_clock_off_seconds", self._clock.off_ns / _NS)
        yield Sample("weft_hub_links_clock_differs", self._clocks_differ())
        yield from self._declared()
        is_wrong = self._clock.wrong() is not None
        for refused in self._refusals:
            owner = "others" if refused.owner is None else str(refused.owner)
            yield Sample("weft_hub_refusals_total", refused.times, (refused.bound, owner))
        for event, times in self._events.items():
            yield Sample("weft_hub_security_events_total", times, (event,))
        for sequencer in self._sequencers:
            yield from _shard(sequencer)
        collected = {each.log.shard: (0, each.log.watermark) for each in self._sequencers}
        collected |= {each.shard: (each.deleted, each.watermark) for each in self._collected}
        for shard, (deleted, watermark) in sorted(collected.items()):
            yield Sample("weft_hub_deleted_chunks_total", deleted, (str(shard),))
            yield Sample("weft_hub_watermark", watermark, (str(shard),))
        yield Sample("weft_hub_conflicts", sum(len(each.state.conflicts) for each in self._sequencers))
        skips = [skip for each in self._sequencers for known in each.state.skips.values() for skip in known]
        yield Sample("weft_hub_skipped_records", sum(skip.end - skip.first for skip in skips))
        if self._tables is not None:
            yield Sample("weft_hub_stopped_tables", self._tables.stopped)
        yield from self._of_tables()
        yield from self._tenants()
        yield from self._regions()
        yield _sum("weft_hub_store_put_latency_seconds", [each.counters.put for each in self._sequencers])
        yield _sum("weft_hub_commit_latency_seconds", [each.counters.commit for each in self._sequencers])
        for figures in self._streams.figures if self._streams is not None else ():
            labels = (figures.tenant, figures.stream)
            complete_up_to = 0 if is_wrong or figures.complete_up_to is None else figures.complete_up_to / _NS
            yield Sample("weft_hub_stream_records", figures.records, labels)
            if not is_hubs_own(*labels):
                yield Sample("weft_hub_stream_complete_up_to_timestamp_seconds", complete_up_to, labels)
            if figures.lag_records is not None:
                yield Sample("weft_hub_stream_table_lag_records", figures.lag_records, labels)
            if figures.lag_seconds is not None:
                yield Sample("weft_hub_stream_table_lag_seconds", figures.lag_seconds, labels)
            if self._tables is not None and (size := self._tables.size(*labels)) is not None:
                yield Sample("weft_hub_stream_table_bytes", size.bytes, labels)
                yield Sample("weft_hub_stream_table_files", size.files, labels)
        yield build_info("weft_hub_build_info")


def _shard(sequencer: Sequencer) -> Iterator[Sample]:
    labels = (str(sequencer.log.shard),)
    for name in _COUNTERS:
        yield Sample(f"weft_hub_{name}_total", _value(sequencer.counters, name), labels)
    yield Sample("weft_hub_retries_total", sequencer.retries, labels)
    yield Sample("weft_hub_sessions_refused_total", sequencer.sessions.refused, labels)
    yield Sample("weft_hub_pending_bytes", sequencer.sessions.pending_bytes, labels)
    yield Sample("weft_hub_chunk", sequencer.state.n, labels)
    yield Sample("weft_hub_store_trouble", sequencer.trouble is not None, labels)


def _value(counters: ShardCounters, name: str) -> int:
    return int(getattr(counters, name))


def _sum(name: str, parts: Sequence[Histogram]) -> HistogramSample:
    total = Histogram()
    for part in parts:
        total.add(part)
    return HistogramSample(name, total.bounds, total.counts, total.seconds)
