"""Service of the tables that the cluster log declares: latest tables, quarantines, removal of old rows, and Iceberg.

It runs beside the table step, in the same process, and reads the states of shards that this one keeps up to date. What
it costs without a declaration is a look at an empty mapping every two seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.declarations import Declarations
from weft.cloud_hub.facts.streams import DeclaredTables, LatestDocument, TableDocument
from weft.cloud_hub.reads.summaries import StreamCompleteness
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.tables.buckets import Key
from weft.cloud_hub.tables.latest import SETTINGS, LatestTierer
from weft.cloud_hub.tables.quality import Looks
from weft.cloud_hub.tables.quarantine import Quarantine, quarantines
from weft.cloud_hub.tables.retention import Retention
from weft.config.log_lines import Repeats, left_out
from weft.hub_api.status import IcebergOfNode, LatestOfNode, QuarantineOfNode
from weft.protocols.chunk_index import StreamKey
from weft.storage.chunk_log import missing_shards
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import latest_key, quarantine_key, table_key
from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import TableError, app_ids
from weft.storage.table.schemas import DeclaredQuality
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.service import EXPECTED, TableService
from weft.storage.table_writer.settings import DEFAULTS, TableSettings
from weft.storage.table_writer.shards import ChunkCache, ShardView

if TYPE_CHECKING:
    from weft.cloud_hub.tables.iceberg import Claim, IcebergTable

T = TypeVar("T")
_logger = logging.getLogger(__name__)
RETENTION_S = 3600.0
"""Interval at which old rows are looked for, and quarantines that no rule asks for any more."""
RETRY_S = 60.0
VACUUM_S = 3600.0
"""Interval at which replaced files of latest tables are deleted."""
INDEX_BYTES = 1 << 20
"""Memory for indexes of a shard's chunks: of the chunks themselves, only sections of the streams are read."""
SHOWN_MAX = 1000


class SideWork:
    """Work on one table of a stream beside its table of all rows: a turn when it is due, and again after an error.

    Args:
        what: words for the log while it fails.
        due_at: monotonic seconds of its first turn.
    """

    def __init__(self, what: str, due_at: float) -> None:
        self.what, self.due_at = what, due_at
        self.error: str | None = None
        """Error of the last turn; None when it succeeded."""

    @property
    def retry_s(self) -> float:
        """Return the seconds until the turn after one that failed."""
        return RETRY_S

    async def turn(self, now: float) -> float:
        """Take a bounded step, and do what else is due. Return the seconds until the next turn.

        Args:
            now: monotonic seconds.
        """
        raise NotImplementedError


class _Latest(SideWork):
    """Work on one latest table."""

    def __init__(
        self, key: StreamKey, wanted: LatestDocument, tierer: LatestTierer, maintenance: Maintenance, now: float
    ) -> None:
        super().__init__(f"the latest table of {key[0]}/{key[1]} is not being updated", now)
        self.declared, self._key, self.tierer, self._maintenance = wanted, key, tierer, maintenance
        self._vacuum_at = now + VACUUM_S

    @property
    def retry_s(self) -> float:
        """Return the interval of its versions."""
        return self.declared.every_s

    async def turn(self, now: float) -> float:
        """Take new records; see ``SideWork``."""
        if self.tierer.is_behind:
            await self.tierer.step()
        if self.tierer.version >= 0:
            state = await self.tierer.take()
            if self._maintenance.is_sound():
                await self._maintenance.checkpoint(state)
                if now >= self._vacuum_at:
                    self._vacuum_at = now + VACUUM_S
                    await self._maintenance.vacuum()
                    await self.tierer.forget_hidden(state)
            self.tierer.keep(state)
        # A step takes a bounded number of records: what is left has its turn after the other tables'.
        return 0 if self.tierer.is_behind and self.tierer.is_full else self.declared.every_s

    def status(self) -> LatestOfNode:
        """Return the status for operators."""
        ends, positions = self.tierer.ends(), self.tierer.positions
        lag = sum(max(0, end - positions.get(shard, 0)) for shard, end in ends.items())
        return LatestOfNode(
            *self._key,
            path=latest_key(*self._key),
            key=list(self.declared.key),
            version=self.tierer.version,
            lag_records=lag,
            unkeyed=self.tierer.unkeyed,
            error=self.error,
            instead=self.tierer.is_instead,
            gone=self.tierer.gone,
        )


class _Retained(SideWork):
    """Removal of old rows from the table of all rows."""

    def __init__(self, key: StreamKey, retention: Retention, clock: HubClock, now: float) -> None:
        super().__init__(f"old rows of {key[0]}/{key[1]} are not being removed", now)
        self.retention, self._key, self._clock = retention, key, clock
        self.wanted: TableDocument | None = None
        """None where another node's process removes: this one reads up to when, and says so to its readers."""

    async def turn(self, now: float) -> float:  # noqa: ARG002
        """Remove files; see ``SideWork``."""
        if self._clock.wrong() is not None:
            return 0  # by a wrong clock, everything may seem old
        if removed := await self.retention.look(self.wanted):
            _logger.info("removed %d old files from the table of %s/%s", removed, *self._key)
        return 0 if removed and self.retention.has_more else RETENTION_S


class _Quarantined(SideWork):
    """Work on one quarantine."""

    def __init__(
        self, key: StreamKey, quarantine: Quarantine, maintenance: Maintenance, retention: Retention, now: float
    ) -> None:
        super().__init__(f"the quarantine of {key[0]}/{key[1]} is not being updated", now)
        self.quarantine, self._maintenance, self._retention = quarantine, maintenance, retention
        self._retain_at = now
        self._seen = -1
        """Version of the table of all rows after which it has nothing to do."""
        self.version: int | None = None
        """Version of the table of all rows; None for a quarantine that gets no more rows."""
        self.wanted: TableDocument | None = None
        """Declaration of the table of all rows, whose retention holds here as well."""

    async def turn(self, now: float) -> float:
        """Copy new rows; see ``SideWork``."""
        seen, self._seen = self._seen, -1  # also should its rules come back
        if self.version is None:
            if self.quarantine.version < 0:
                self.quarantine.keep(await self.quarantine.take())
        elif seen != self.version:
            seen = -1 if await self.quarantine.step() else self.version
        # Also while the stream is quiet: what was erased is still in files that no version names.
        await self._maintenance.maintain()
        if now >= self._retain_at and self._maintenance.is_sound():
            if has_bounds := self.wanted is not None and bool(self.wanted.retain_s or self.wanted.retain_bytes):
                await self._retention.look(self.wanted)
            self._retain_at = now + (0 if has_bounds and self._retention.has_more else RETENTION_S)
        self._seen = -1 if self.version is None else seen
        return 0

    def status(self) -> QuarantineOfNode:
        """Return the status for operators."""
        return QuarantineOfNode(self.quarantine.key, self.quarantine.version, self.quarantine.rows, self.error)


class _Listing(SideWork):
    """List of the quarantines in the store: those without rules get no more rows, but become old or were erased."""

    def __init__(self, store: ObjectStore, now: float) -> None:
        super().__init__("the quarantines cannot be listed", now)
        self._store, self.there = store, set[StreamKey]()

    async def turn(self, now: float) -> float:  # noqa: ARG002
        """List them: a request, and one for each that there is."""
        self.there = await quarantines(self._store)
        return RETENTION_S


class SideWorks(Looks):
    """Work on tables that takes turns, beside the table step.

    Args:
        what: name of the task.
        monotonic: seconds.
    """

    def __init__(self, what: str, monotonic: Callable[[], float]) -> None:
        self._monotonic, self._repeats = monotonic, Repeats()
        super().__init__(what)

    async def _take_turn(self, work: SideWork) -> None:
        now = self._monotonic()
        if now < work.due_at:
            return
        try:
            pause = await work.turn(now)
        except Exception as error:
            # A bug that shows with one stream must not stop the tables of those that follow it.
            work.error, pause = str(error) or type(error).__name__, work.retry_s
            if (count := self._repeats.due(work.what, now)) is not None:
                say = _logger.warning if isinstance(error, EXPECTED) else _logger.exception
                say("%s: %s%s", work.what, error, left_out(count))
        else:
            work.error = None
            self._repeats.forget(work.what)
        work.due_at = now + pause
        await asyncio.sleep(0)


class DeclaredTableWork(SideWorks):
    """The work on declared tables of a hub process that makes tables.

    Args:
        tables: the table step of this process.
        declared: what is declared.
        quality: quality rules of streams, which may ask for quarantines.
        settings: bounds of the table step.
        clock: while it cannot be believed, no file is removed as old.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        tables: TableService,
        declared: DeclaredTables,
        clock: HubClock,
        *,
        quality: DeclaredQuality | None = None,
        settings: TableSettings = DEFAULTS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._cluster, self._tables, self._declared = store, cluster, tables, declared
        self._clock = clock
        self._views: list[ShardView] = []
        self._caches: dict[int, ChunkCache] = {}
        self._quality, self._settings = quality or DeclaredQuality(), settings
        self._latest: dict[StreamKey, _Latest] = {}
        self._retentions: dict[StreamKey, _Retained] = {}
        self._quarantines: dict[StreamKey, _Quarantined] = {}
        self._listing = _Listing(store, monotonic())
        super().__init__("the work on declared tables", monotonic)

    def status(self) -> list[LatestOfNode]:
        """Return the status of latest tables that this process makes, failing ones first if they are very many."""
        keys = sorted(self._latest)
        if len(keys) > SHOWN_MAX:
            keys = sorted(sorted(keys, key=lambda key: self._latest[key].error is None)[:SHOWN_MAX])
        return [self._latest[key].status() for key in keys]

    def quarantine_of(self, key: StreamKey) -> QuarantineOfNode | None:
        """Return the status of a stream's quarantine; None if this process makes none."""
        found = self._quarantines.get(key)
        return None if found is None else found.status()

    def removed_until(self, key: StreamKey) -> int | None:
        """Return when the hub received the newest row that retention removed from a stream's table, ns since 1970; None
        if it removed none as far as this process knows."""
        found = self._retentions.get(key)
        return None if found is None else found.retention.removed_until

    def error_of(self, key: StreamKey) -> str | None:
        """Return the reason why a stream's only table is not being updated; None if it is, as far as this process
        knows, or if there is another."""
        found = self._latest.get(key)
        return found.error if found is not None and found.declared.instead else None

    def _is_sound(self) -> bool:
        return self._clock.wrong() is None

    async def look(self) -> None:
        """Do what is due: a bounded step for each table. Errors go to ``status``."""
        await self._take_turn(self._listing)
        declared = self._declared.documents
        marked = {key for key, each in self._quality.streams.items() if each.rules.quarantine}
        forget(self._quarantines, marked | self._listing.there)
        forget(self._latest, {key for key, each in declared.items() if each.latest is not None})
        forget(self._retentions, declared.keys())
        for key in marked | self._listing.there:
            tierer = self._tables.tierer(key) if key in marked else None
            if self._tables.keeps_beside(key) and (tierer is not None or key not in marked):
                quarantined = self._quarantines.get(key) or self._quarantines.setdefault(key, self._quarantined(key))
                quarantined.version = None if tierer is None else tierer.version
                quarantined.wanted = declared.get(key)
                await self._take_turn(quarantined)
        # Declared again while quarantines had their turns: rows that are to be kept longer now must not go.
        declared = self._declared.documents
        if not declared:
            return
        self._take_views()
        for key, document in declared.items():
            if document.latest is not None:
                if self._tables.keeps_beside(key):
                    await self._take_turn(self._latest_of(key, document.latest))
                else:
                    self._latest.pop(key, None)  # another process makes it
            now = self._declared.documents.get(key)
            if now is not None and (now.retain_s or now.retain_bytes):
                retained = self._retentions.get(key) or self._retentions.setdefault(key, self._retained(key))
                retained.wanted = now if self._tables.keeps_beside(key) else None
                await self._take_turn(retained)

    def _take_views(self) -> None:
        """Take the states of the table step, with caches of our own: it empties its caches after each round."""
        for view in self._tables.views:
            self._caches.setdefault(view.shard, ChunkCache(view.log, INDEX_BYTES, whole=False))
        self._views[:] = [view._replace(chunks=self._caches[view.shard]) for view in self._tables.views]

    def _latest_of(self, key: StreamKey, wanted: LatestDocument) -> _Latest:
        work = self._latest.get(key)
        if work is None or work.declared.key != wanted.key:
            clock = self._clock.now
            tierer = LatestTierer(
                self._store,
                self._cluster,
                *key,
                self._views,
                Key(wanted.key),
                feed=wanted.feed,
                instead=wanted.instead,
                clock=clock,
                monotonic=self._monotonic,
            )
            maintenance = Maintenance(self._store, tierer, settings=SETTINGS, clock=clock, is_sound=self._is_sound)
            work = self._latest[key] = _Latest(key, wanted, tierer, maintenance, self._monotonic())
        work.declared, work.tierer.instead = wanted, wanted.instead
        return work

    def _retained(self, key: StreamKey) -> _Retained:
        retention = Retention(self._store, self._cluster, key, self._clock.now)
        return _Retained(key, retention, self._clock, self._monotonic())

    def _quarantined(self, key: StreamKey) -> _Quarantined:
        settings, clock, monotonic = self._settings, self._clock.now, self._monotonic
        quarantine = Quarantine(self._store, self._cluster, key, settings=settings, clock=clock, monotonic=monotonic)
        maintenance = Maintenance(
            self._store, quarantine, settings=settings, clock=clock, is_sound=self._is_sound, monotonic=monotonic
        )
        retention = Retention(self._store, self._cluster, key, clock, quarantine_key(*key))
        return _Quarantined(key, quarantine, maintenance, retention, monotonic())


# Iceberg metadata of tables, which a task of its own writes: a first snapshot may take minutes.

LOOK_S = 2.0
"""Time between looks at the versions of a table, which this process knows without a request."""
VERSIONS_MAX = 64
"""Number of Delta versions after which a snapshot does not wait for its time."""


class _Iceberg(SideWork):
    """Work on the Iceberg metadata of one table of a stream.

    Args:
        path: the table's folder.
        opened: returns its metadata.
        claim: returns up to when the stream is complete.
        monotonic: seconds.
    """

    def __init__(
        self,
        path: str,
        opened: Callable[[], IcebergTable],
        claim: Callable[[], Awaitable[Claim | None]],
        interval_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(f"the Iceberg metadata of {path} is not being updated", 0.0)
        self._path, self._opened, self._claim, self._interval_s = path, opened, claim, interval_s
        self._monotonic = monotonic
        self._table: IcebergTable | None = None
        self.table_version = -1
        """The table's version, as far as the table step knows it."""
        self.version = -1
        self._due_at = self._sweep_at = 0.0

    async def turn(self, now: float) -> float:
        """Write a snapshot if there is something new, and its time has come; see ``SideWork``."""
        table = self._table = self._table or self._opened()
        failed: Exception | None = None
        try:
            # Also without a new version after some time: what is old must not stay, and others write versions as well.
            if now >= self._due_at or self.table_version - self.version >= VERSIONS_MAX:
                self.version = await table.write(await self._claim())
                self._due_at = self._monotonic() + self._interval_s
        except Exception as error:
            failed = error
        try:
            if now >= self._sweep_at:  # what nothing names goes also where no snapshot can be made
                await table.sweep()
                self._sweep_at = self._monotonic() + table.sweep_s
        except Exception as error:
            failed = failed or error  # the first one is more often why
        if failed is not None:
            raise failed
        return LOOK_S

    def status(self) -> IcebergOfNode:
        """Return the status for operators."""
        return IcebergOfNode(self._path, self.version, self.error)


class IcebergWork(SideWorks):
    """The Iceberg metadata of the tables that a hub process makes, as settings and declarations of streams want it.

    Args:
        tables: the table step of this process.
        declared: formats of streams, and the expected edges that count for completeness.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        tables: TableService,
        declared: Declarations,
        clock: HubClock,
        *,
        settings: HubSettings,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._cluster, self._tables, self._clock = store, cluster, tables, clock
        self._declared, self._settings = declared.tables, settings
        self._moments = StreamCompleteness((), declared.expected_edges, clock, peers=settings.peers)
        self._works: dict[str, _Iceberg] = {}
        super().__init__("the work on Iceberg metadata", monotonic)

    def status(self) -> list[IcebergOfNode]:
        """Return the status of the metadata that this process writes, failing ones first if they are very many."""
        found = [work.status() for _, work in sorted(self._works.items())]
        return found if len(found) <= SHOWN_MAX else sorted(found, key=lambda each: each.error is None)[:SHOWN_MAX]

    @property
    def failing(self) -> int:
        """Return the number of tables whose metadata is not being updated."""
        return sum(work.error is not None for work in self._works.values())

    async def look(self) -> None:
        """Do what is due for each table. Errors go to ``status``, and their tables are tried again."""
        there = {key for state in self._tables.states for key in state.next_offset}
        wanted = {
            path: (key, vacuum_s)
            for key in there
            if self._declared.is_iceberg(key, self._settings.iceberg) and self._tables.keeps_beside(key)
            for path, vacuum_s in self._paths(key)
        }
        forget(self._works, wanted)
        for path, (key, vacuum_s) in sorted(wanted.items()):
            if self._clock.wrong() is not None:
                return  # by a wrong clock, every snapshot may seem old
            work = self._works.get(path) or self._works.setdefault(path, self._new(path, key, vacuum_s))
            tierer = self._tables.tierer(key) if path == table_key(*key) else None
            work.table_version = -1 if tierer is None else tierer.version
            await self._take_turn(work)

    def _paths(self, key: StreamKey) -> Iterator[tuple[str, float]]:
        """Yield the folders of a stream's tables, and the seconds after which each one's vacuum deletes files."""
        if self._tables.tierer(key) is not None and not self._declared.is_instead(key):
            yield table_key(*key), self._settings.table_vacuum_after_s
        if self._declared.has_latest(key):
            yield latest_key(*key), 3600.0 * (SETTINGS.retention_hours or 0)

    def _new(self, path: str, key: StreamKey, vacuum_s: float) -> _Iceberg:
        opened, claim = partial(self._opened, path, key, vacuum_s / 2), partial(self._claim, key)
        return _Iceberg(path, opened, claim, min(self._settings.iceberg_interval_s, vacuum_s / 8), self._monotonic)

    def _opened(self, path: str, key: StreamKey, keep_s: float) -> IcebergTable:
        try:
            from weft.cloud_hub.tables.iceberg import IcebergTable
        except ModuleNotFoundError as error:
            raise TableError(
                f'the hub has no {error.name}: pip install "weft-fabric[hub,iceberg]", and start it again'
            ) from None
        apps = app_ids(self._cluster.cluster_id, key[1])
        clock, monotonic = self._clock.now, self._monotonic
        return IcebergTable(self._store, path, apps, keep_s=keep_s, clock=clock, monotonic=monotonic)

    async def _claim(self, key: StreamKey) -> Claim | None:
        from weft.cloud_hub.tables.iceberg import Claim

        states = self._tables.states
        moment = (await self._moments.of(states, *key)).complete_up_to
        # Chunks may have been applied meanwhile, and the moment may be by their marks: the ends are those of now.
        if moment is None or missing_shards(states):
            return None
        ends = {state.shard: state.next_offset.get(key, 0) for state in states}
        return Claim(datetime.fromtimestamp(moment // 1000 / 1e6, UTC).isoformat(timespec="microseconds"), ends)


def forget(works: dict[T, Any], wanted: Collection[T]) -> None:
    """Remove the work on streams, or tables, that are not wanted any more."""
    for gone in works.keys() - wanted:
        del works[gone]
