"""Service of the tables that the cluster log declares: latest tables, quarantines, and the removal of old rows.

It runs beside the table step, in the same process, and reads the states of shards that this one keeps up to date. What
it costs without a declaration is a look at an empty mapping every two seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.streams import DeclaredTables, LatestDocument, TableDocument
from weft.cloud_hub.tables.buckets import Key
from weft.cloud_hub.tables.latest import SETTINGS, LatestTierer
from weft.cloud_hub.tables.quarantine import QuarantineWork
from weft.cloud_hub.tables.retention import Retention
from weft.config.log_lines import Repeats, left_out
from weft.hub_api.status import LatestOfNode
from weft.protocols.chunk_index import StreamKey
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import latest_key
from weft.storage.object_store import ObjectStore
from weft.storage.table.schemas import DeclaredQuality
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.service import EXPECTED, TableService
from weft.storage.table_writer.settings import DEFAULTS, TableSettings
from weft.storage.table_writer.shards import ChunkCache, ShardView

_logger = logging.getLogger(__name__)
INTERVAL_S = 2.0
"""Interval of looks at what is due."""
RETENTION_S = 3600.0
"""Interval at which old rows are looked for."""
RETRY_S = 60.0
VACUUM_S = 3600.0
"""Interval at which replaced files of latest tables are deleted."""
INDEX_BYTES = 1 << 20
"""Memory for indexes of a shard's chunks: of the chunks themselves, only sections of the streams are read."""
SHOWN_MAX = 1000


@dataclass
class _Latest:
    """Work on one latest table."""

    declared: LatestDocument
    tierer: LatestTierer
    maintenance: Maintenance
    due_at: float
    vacuum_at: float
    error: str | None = None

    def status(self, key: StreamKey) -> LatestOfNode:
        """Return the status for operators."""
        ends, positions = self.tierer.ends(), self.tierer.positions
        lag = sum(max(0, end - positions.get(shard, 0)) for shard, end in ends.items())
        return LatestOfNode(
            *key,
            path=latest_key(*key),
            key=list(self.declared.key),
            version=self.tierer.version,
            lag_records=lag,
            unkeyed=self.tierer.unkeyed,
            error=self.error,
            instead=self.tierer.is_instead,
            gone=self.tierer.gone,
        )


class DeclaredTableWork:
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
        self._clock, self._monotonic = clock, monotonic
        self._views: list[ShardView] = []
        self._caches: dict[int, ChunkCache] = {}
        self._latest: dict[StreamKey, _Latest] = {}
        self._retentions: dict[StreamKey, tuple[Retention, float]] = {}
        """Retentions, each with the time of its next round."""
        self.quarantines = QuarantineWork(
            store,
            cluster,
            tables,
            quality or DeclaredQuality(),
            declared,
            settings=settings,
            clock=clock.now,
            is_sound=self._is_sound,
            monotonic=monotonic,
        )
        self._repeats = Repeats()
        self._task = BackgroundTask()

    def start(self) -> None:
        """Start the rounds."""
        self._task.start(self._run(), name="declared-tables")

    async def close(self) -> None:
        """Stop. A commit in progress may still succeed; the next reader of the table sees its outcome."""
        await self._task.close()

    def status(self) -> list[LatestOfNode]:
        """Return the status of latest tables that this process makes, failing ones first if they are very many."""
        keys = sorted(self._latest)
        if len(keys) > SHOWN_MAX:
            keys = sorted(sorted(keys, key=lambda key: self._latest[key].error is None)[:SHOWN_MAX])
        return [self._latest[key].status(key) for key in keys]

    def removed_until(self, key: StreamKey) -> int | None:
        """Return when the hub received the newest row that retention removed from a stream's table, ns since 1970; None
        if it removed none as far as this process knows."""
        found = self._retentions.get(key)
        return None if found is None else found[0].removed_until

    def error_of(self, key: StreamKey) -> str | None:
        """Return the reason why a stream's only table is not being updated; None if it is, as far as this process
        knows, or if there is another."""
        found = self._latest.get(key)
        return found.error if found is not None and found.declared.instead else None

    def _is_sound(self) -> bool:
        return self._clock.wrong() is None

    async def look(self) -> None:
        """Do what is due: a bounded step for each table. Errors go to ``status``."""
        await self.quarantines.look()
        declared = self._declared.documents
        for gone in self._latest.keys() - {key for key, each in declared.items() if each.latest is not None}:
            del self._latest[gone]
        for gone in self._retentions.keys() - declared.keys():
            del self._retentions[gone]
        if not declared:
            return
        self._take_views()
        for key, document in declared.items():
            if document.latest is not None:
                if self._tables.keeps_beside(key):
                    await self._make_latest(key, document.latest)
                else:
                    self._latest.pop(key, None)  # another process makes it
            if document.retain_s or document.retain_bytes:
                await self._retain(key, document)
            await asyncio.sleep(0)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                # A bug with one stream must not end the others' tables.
                _logger.exception("the work on declared tables failed")
            await asyncio.sleep(INTERVAL_S)

    def _take_views(self) -> None:
        """Take the states of the table step, with caches of our own: it empties its caches after each round."""
        for view in self._tables.views:
            self._caches.setdefault(view.shard, ChunkCache(view.log, INDEX_BYTES, whole=False))
        self._views[:] = [view._replace(chunks=self._caches[view.shard]) for view in self._tables.views]

    async def _make_latest(self, key: StreamKey, wanted: LatestDocument) -> None:
        work = self._latest.get(key)
        if work is None or work.declared.key != wanted.key:
            work = self._latest[key] = self._begun(key, wanted)
        work.declared, work.tierer.instead = wanted, wanted.instead
        now, what = self._monotonic(), f"the latest table of {key[0]}/{key[1]} is not being updated"
        if now < work.due_at:
            return
        try:
            if work.tierer.is_behind:
                await work.tierer.step()
            await self._maintain(work, now)
        except Exception as error:
            self._failed(what, error, now)
            work.error = str(error) or type(error).__name__
        else:
            work.error = None
            self._repeats.forget(what)
        # A step takes a bounded number of records: what is left has its turn after the other tables'.
        is_left = work.error is None and work.tierer.is_behind and work.tierer.is_full
        work.due_at = now if is_left else now + wanted.every_s

    async def _retain(self, key: StreamKey, wanted: TableDocument) -> None:
        now = self._monotonic()
        work, due_at = self._retentions.get(key, (None, now))
        if now < due_at or not self._is_sound():
            return  # by a wrong clock, everything may seem old
        work = work or Retention(self._store, self._cluster, key, self._clock.now)
        what, removed, pause = f"old rows of {key[0]}/{key[1]} are not being removed", 0, RETENTION_S
        try:
            # Another node's process removes, and this one says so to its readers.
            removed = await work.look(wanted if self._tables.keeps_beside(key) else None)
        except Exception as error:
            pause = RETRY_S  # mostly another writer was first
            self._failed(what, error, now)
        else:
            self._repeats.forget(what)
        if removed:
            _logger.info("removed %d old files from the table of %s/%s", removed, *key)
        self._retentions[key] = work, now + (0 if removed and work.has_more else pause)

    def _failed(self, what: str, error: Exception, now: float) -> None:
        """Log an error of one stream. A bug that shows with it must not stop the tables of those that follow it."""
        count = self._repeats.due(what, now)
        if count is not None:
            say = _logger.warning if isinstance(error, EXPECTED) else _logger.exception
            say("%s: %s%s", what, error, left_out(count))

    def _begun(self, key: StreamKey, wanted: LatestDocument) -> _Latest:
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
        now = self._monotonic()
        return _Latest(wanted, tierer, maintenance, now, now + VACUUM_S)

    async def _maintain(self, work: _Latest, now: float) -> None:
        if work.tierer.version < 0:
            return
        state = await work.tierer.take()
        if self._is_sound():
            await work.maintenance.checkpoint(state)
            if now >= work.vacuum_at:
                work.vacuum_at = now + VACUUM_S
                await work.maintenance.vacuum()
                await work.tierer.forget_hidden(state)
        work.tierer.keep(state)
