"""Tables of a hub process: what makes them and what depends on them, put together.

The processes of all hosts divide the tables. The first of each host follows those that others make as well, answers
readers for all of them, ends lanes, and deletes chunks that all tables have.
"""

from __future__ import annotations

import asyncio
import platform
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.acts import OwnActs
from weft.cloud_hub.facts.declarations import Declarations, Watched
from weft.cloud_hub.part import Part
from weft.cloud_hub.quotas import TenantSizes
from weft.cloud_hub.reads.views import View, table_view
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard.collector import Collector, Pins, ShardCollector
from weft.cloud_hub.shard.lane_ends import LaneKeeper
from weft.cloud_hub.shard.shards import Shards
from weft.config.metrics.exposition import Sample
from weft.config.release import SOFTWARE
from weft.config.sources import Collector as TraceCollector
from weft.hub_api.answers import moment, moment_of
from weft.hub_api.status import StoppedOffsets, TableMaker, TableOfNode, TableProgress
from weft.hub_api.streams import TableOfStream
from weft.network.tracing import NO_FIGURES, Attribute, ExportSettings, Span, TraceContext, TraceExport, parse
from weft.protocols.chunk_index import StreamKey
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import RegionPositions, ShardLog
from weft.storage.cluster import Cluster
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.storage.table.rows import TracedRow
    from weft.storage.table_writer.service import TableService, TableStatus

TABLES_LISTED_MAX = 1000
"""Maximum number of tables in the status; failing ones come first."""
COMMIT_SPAN, TABLE_SPAN = "weft commit", "weft table"


def hub_tables(
    settings: HubSettings,
    store: ObjectStore,
    cluster: Cluster,
    clock: HubClock,
    declared: Declarations,
    *,
    shards: Shards,
    logs: Iterable[ShardLog],
    name: str,
) -> HubTables:
    """Return the tables of a process, by its settings.

    Args:
        logs: those of all shards of the store, also of later ones.
        name: that of the process in the cluster.
    """
    if settings.table_interval_s is None:
        return HubTables(shards)
    return MadeTables(settings, store, cluster, clock, declared, shards=shards, logs=logs, name=name)


class HubTables(Part):
    """The tables as one process knows them. This base is for a process that makes none: it knows nothing of them."""

    maker: TableService | None = None
    """Maker of this process's part of the tables; None where others make all."""
    service: TableService | None = None
    """The maker that knows how far all tables are; None in a process that knows its own ones alone."""
    collected: Sequence[ShardCollector] = ()
    """The shards whose old chunks this process deletes."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def grow(self, cluster: Cluster) -> None:
        """Adopt new shards."""

    def rows(self, tenant: str, stream: str) -> int | None:  # noqa: ARG002
        """Return the number of records of a stream that are table rows; None if this process does not know it."""
        return None

    def view(self, tenant: str, stream: str) -> TableOfStream | None:  # noqa: ARG002
        """Return a stream's table for readers; None when this process does not know it."""
        return None

    def positions(self, tenant: str, stream: str) -> Mapping[int, int] | None:  # noqa: ARG002
        """Return shard -> offset below which its records are rows of a stream's table, or skipped, as last seen; None
        while unknown."""
        return None

    def payload(self, tenant: str, stream: str) -> PayloadKind | None:  # noqa: ARG002
        """Return the payload kind of a stream's table; None when this process does not know it."""
        return None

    def error_of(self, key: StreamKey) -> str | None:  # noqa: ARG002
        """Return what holds a stream's tables up, if something does."""
        return None

    def views(self) -> View:
        """Return the part of the status about tables."""
        nothing: View = {each: [] for each in ("tables", "latest_tables", "iceberg_tables", "quality")}
        return nothing | {"tables_more": 0, "tables_trouble": None}

    def bytes_of(self, tenant: str) -> int | None:  # noqa: ARG002
        """Return the bytes of a tenant's tables of all rows; None without a quota of them, or while unknown."""
        return None

    def stream_bytes(self, tenant: str, stream: str) -> int | None:  # noqa: ARG002
        """Return the bytes of a stream's table of all rows, as of the last look for small files; None while unknown."""
        return None

    def samples(self) -> Iterator[Sample]:
        """Yield the figures of old chunks, and of what the tables' maker has."""
        yield from self._of_chunks()
        for name, value in NO_FIGURES.items():
            yield Sample(f"weft_hub_trace_{name}", value)

    def _of_chunks(self) -> Iterator[Sample]:
        old = {each.log.shard: (0, each.log.watermark) for each in self._shards}
        old |= {each.shard: (each.deleted, each.watermark) for each in self.collected}
        for shard, (deleted, watermark) in sorted(old.items()):
            yield Sample("weft_hub_deleted_chunks_total", deleted, (str(shard),))
            yield Sample("weft_hub_watermark", watermark, (str(shard),))


class MadeTables(HubTables):
    """The maker of tables, the work beside it, and what deletes by how far they are."""

    maker: TableService
    service: TableService | None

    def __init__(
        self,
        settings: HubSettings,
        store: ObjectStore,
        cluster: Cluster,
        clock: HubClock,
        declared: Declarations,
        *,
        shards: Shards,
        logs: Iterable[ShardLog],
        name: str,
    ) -> None:
        # These import pyarrow, which no process without tables needs.
        from weft.cloud_hub.tables.quality import QualityWatch
        from weft.cloud_hub.tables.service import DeclaredTableWork, IcebergWork
        from weft.storage.table_writer.service import TableService
        from weft.storage.table_writer.settings import TableTerms

        super().__init__(shards)
        of_tables, is_first = settings.tables(), settings.process == 0
        self._traces: list[TableTraces] = []
        """The maker of spans, where they are sent somewhere."""
        if settings.tracing is not None:
            traces = TableTraces(settings.tracing, SOFTWARE, platform.node(), clock.now, random.Random())
            self._traces.append(traces)
            of_tables = replace(of_tables, on_traced=traces.made)
        self._sizes = TenantSizes(store, declared.quotas)
        self.maker = tables = TableService(
            store,
            cluster,
            settings=of_tables,
            clock=clock.now,
            is_sound=lambda: clock.wrong() is None,
            node=name,
            follows=is_first,
            terms=TableTerms(
                declared.schemas.of,
                declared.quality.of,
                declared.tables.sort_of,
                declared.tables.is_instead,
                self._sizes.held,
            ),
        )
        self.service = tables if is_first else None
        host = platform.node()
        declared.watch(Watched.DRAINED, lambda: tables.owners.leave(declared.drained.covers(host, name)))
        self._beside = DeclaredTableWork(
            store, cluster, tables, declared.tables, clock, quality=declared.quality, settings=settings.tables()
        )
        if settings.iceberg:
            import_module("weft.cloud_hub.tables.iceberg")  # of an extra: a hub that lacks it does not start
        self._iceberg = IcebergWork(store, cluster, tables, declared, clock, settings=settings)
        self._quality = QualityWatch(tables, declared.quality, declared.schemas, clock, self._beside.quarantine_of)
        self._after: list[LaneKeeper | Collector] = []
        """Work that ends lanes and deletes chunks that all tables have, of a process that follows all tables."""
        if is_first:
            self._after.append(
                LaneKeeper(
                    logs,
                    self._held,
                    tables.position,
                    settings,
                    clock=clock,
                    random_bits=random.SystemRandom().getrandbits,
                    noted=OwnActs(store, cluster.cluster_id, clock.now),
                )
            )
        if is_first and settings.retain_log_s is not None:
            pins = Pins(RegionPositions(store, cluster), {name: each.pin_s for name, each in settings.regions.items()})
            collector = Collector(
                logs,
                tables.first_untabled,
                settings.retain_log_s,
                clock=clock,
                in_round=tables.opened_once,
                terms=declared.tables.log_terms,
                pins=pins,
            )
            self.collected = collector.shards
            self._after.append(collector)

    def start(self) -> None:
        """Begin to make tables."""
        self._sizes.start(self._streams)
        for each in (*self._traces, self.maker, self._beside, self._iceberg, self._quality, *self._after):
            each.start()

    def grow(self, cluster: Cluster) -> None:
        """Adopt new shards."""
        self.maker.grow(cluster)

    async def close(self) -> None:
        """Stop. What was written stays, and the next process continues from there."""
        for each in (*self._after, self._iceberg, self._beside, self._quality, self._sizes, self.maker, *self._traces):
            await each.close()

    def rows(self, tenant: str, stream: str) -> int | None:
        """Return the number of records of a stream that are table rows; None if this process does not know it."""
        return self.service.rows(tenant, stream) if self.service else None

    def view(self, tenant: str, stream: str) -> TableOfStream | None:
        """Return a stream's table for readers; None when this process does not know it."""
        found = self.service.table(tenant, stream) if self.service else None
        return None if found is None else table_view(*found, self._beside.removed_until((tenant, stream)))

    def positions(self, tenant: str, stream: str) -> Mapping[int, int] | None:
        """Return shard -> offset below which its records are rows of a stream's table, or skipped, as last seen; None
        while unknown."""
        found = self.service.table(tenant, stream) if self.service else None
        return None if found is None else {each.shard: each.table for each in found[0].shards}

    def payload(self, tenant: str, stream: str) -> PayloadKind | None:
        """Return the payload kind of a stream's table; None when this process does not know it."""
        return self.service.payload(tenant, stream) if self.service else None

    def error_of(self, key: StreamKey) -> str | None:
        """Return what holds a stream's tables up, if something does."""
        return self._beside.error_of(key) or self.maker.error_of(key)

    def views(self) -> View:
        """Return the part of the status about tables."""
        return {
            "tables": [_table(each) for each in self.maker.status(TABLES_LISTED_MAX)],
            "tables_more": max(0, self.maker.count - TABLES_LISTED_MAX),
            "tables_trouble": self.maker.error,
            "latest_tables": self._beside.status(),
            "iceberg_tables": self._iceberg.status(),
            "quality": self._quality.status(),
        }

    def bytes_of(self, tenant: str) -> int | None:
        """Return the bytes of a tenant's tables of all rows; None without a quota of them, or while unknown."""
        return self._sizes.of(tenant)

    def stream_bytes(self, tenant: str, stream: str) -> int | None:
        """Return the bytes of a stream's table of all rows, as of the last look for small files; None while unknown."""
        found = self.service.size(tenant, stream) if self.service else None
        return None if found is None else found.bytes

    def samples(self) -> Iterator[Sample]:
        """Yield the figures of old chunks, stopped tables, quality rules, sizes and traces for Prometheus."""
        yield from self._of_chunks()
        yield Sample("weft_hub_stopped_tables", self.maker.stopped)
        yield Sample("weft_hub_iceberg_failing", self._iceberg.failing)
        yield from self._quality.samples()
        if self.service:
            yield from self._sizes.samples()
        yield from _trace_samples(self._traces[0].export.figures() if self._traces else NO_FIGURES)

    def _streams(self) -> set[StreamKey]:
        return {key for state in self.maker.states for key in state.next_offset}

    def _held(self, shard: int) -> ShardState | None:
        """Return a shard's state as this process has it."""
        found = next((each for each in self._shards.own if each.log.shard == shard and each.loaded), None)
        if found is not None:
            return found.state
        return self.maker.state(shard)


def _table(table: TableStatus) -> TableOfNode:
    made_by = table.made_by
    return TableOfNode(
        tenant=table.tenant,
        stream=table.stream,
        version=table.version,
        shards=[TableProgress(each.shard, each.table, each.log) for each in table.shards],
        lag_records=table.lag_records,
        rows_moved=table.rows_moved,
        committed_at=moment(table.committed_at),
        error=table.error,
        stopped=[StoppedOffsets(each.shard, each.first, each.end, each.reason) for each in table.stopped],
        made_by=None if made_by is None else TableMaker(made_by.name, moment_of(made_by.since)),
        process=table.process,
        kind=table.kind,
        files=table.files,
        bytes=table.bytes,
        vacuumed_at=moment(table.vacuumed_at),
    )


class TableTraces:
    """Spans of messages in the hub, made when their rows are in the table: of the commit to the log, and of the row.

    They come from the header that the edge has put into a traced record, so the hub's links and commits do nothing for
    them. A process that ends before the collector has them loses them, and no one makes them again.

    Args:
        software: name and version of the program.
        wall_clock: nanoseconds since 1970.
    """

    def __init__(
        self, collector: TraceCollector, software: str, instance: str, wall_clock: Callable[[], int], rng: random.Random
    ) -> None:
        self.export = TraceExport(ExportSettings.of(collector, "weft-hub", software, instance))
        self._wall_clock, self._rng = wall_clock, rng

    def start(self) -> None:
        """Begin to send."""
        self.export.start()

    def made(self, key: StreamKey, version: int, rows: Sequence[TracedRow]) -> None:
        """Make the spans of rows that are durable in a version of their table. Event loop's thread."""
        now = self._wall_clock()
        for row in rows:
            parent = parse(row.trace)
            if parent is None:
                continue
            tenant, stream = key
            attributes: dict[str, Attribute] = {
                "weft.tenant": tenant,
                "weft.edge": row.edge,
                "weft.log": row.log,
                "weft.stream": stream,
                "weft.seq": row.seq,
                "weft.shard": row.shard,
                "weft.chunk": row.chunk,
                "weft.offset": row.offset,
            }
            if row.rows > 1:
                attributes["messaging.batch.message_count"] = row.rows
            commit, table = (TraceContext(parent.trace_id, self._rng.getrandbits(64) or 1) for _ in range(2))
            created = max(row.created, row.received)
            self.export.offer(Span(COMMIT_SPAN, commit, parent, row.received, created, attributes))
            attributes = {**attributes, "weft.table_version": version}
            self.export.offer(Span(TABLE_SPAN, table, commit, created, max(now, created), attributes))

    async def close(self) -> None:
        """Send the spans that wait, for a moment."""
        await asyncio.to_thread(self.export.close)


def _trace_samples(figures: Mapping[str, int]) -> Iterator[Sample]:
    for name, value in figures.items():
        yield Sample(f"weft_hub_trace_{name}", value)
