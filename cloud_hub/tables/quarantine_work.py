"""Service of the quarantines that quality rules ask for. It runs with the work on declared tables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from weft.cloud_hub.declared.documents import TableDocument
from weft.cloud_hub.declared.tables import DeclaredTables
from weft.cloud_hub.tables.quarantine import Quarantine
from weft.cloud_hub.tables.retention import Retention
from weft.config.log_lines.repeats import Repeats, left_out
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.cluster import Cluster
from weft.storage.hub_keys import QUARANTINES, quarantine_key
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.table.quality.declared import DeclaredQuality
from weft.storage.table_maker.maintenance import Maintenance
from weft.storage.table_maker.service import EXPECTED, TableService
from weft.storage.table_maker.settings import TableSettings

_logger = logging.getLogger(__name__)
RETENTION_S = 3600.0
"""Interval at which old rows are looked for, and quarantines that no rule asks for any more."""
RETRY_S = 60.0


class QuarantineStatus(msgspec.Struct, frozen=True):
    """The status of a quarantine."""

    path: str
    version: int
    """Newest version seen; -1 before the first."""
    rows: int
    """Rows that were copied into it."""
    error: str | None
    """Error of the last step; None when it succeeded."""


@dataclass
class _Work:
    """Work on one quarantine."""

    quarantine: Quarantine
    maintenance: Maintenance
    retention: Retention
    retain_at: float
    seen: int = -1
    """Version of the table of all rows after which it has nothing to do."""
    retry_at: float = 0.0
    error: str | None = None


class QuarantineWork:
    """The work on quarantines of a hub process that makes tables. A look costs nothing while no table changes.

    Args:
        tables: the table step of this process.
        settings: bounds of the table step.
        retained: declarations about tables; what they say of retention holds for quarantines as well.
        clock: nanoseconds since 1970.
        is_sound: whether the clock can be believed; otherwise nothing is removed as old.
        monotonic: seconds.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        tables: TableService,
        declared: DeclaredQuality,
        retained: DeclaredTables,
        *,
        settings: TableSettings,
        clock: Callable[[], int],
        is_sound: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._store, self._cluster, self._tables = store, cluster, tables
        self._declared, self._retained, self._settings = declared, retained, settings
        self._clock, self._is_sound, self._monotonic = clock, is_sound, monotonic
        self._work: dict[StreamKey, _Work] = {}
        self._there: set[StreamKey] = set()
        """Streams with a quarantine in the store, as last listed."""
        self._list_at = 0.0
        self._repeats = Repeats()

    def status(self, key: StreamKey) -> QuarantineStatus | None:
        """Return the status of a stream's quarantine; None if this process makes none."""
        work = self._work.get(key)
        if work is None:
            return None
        return QuarantineStatus(work.quarantine.key, work.quarantine.version, work.quarantine.rows, work.error)

    async def look(self) -> None:
        """Do what is due: a bounded step for each quarantine. Errors go to ``status``."""
        wanted = {key for key, each in self._declared.streams.items() if each.rules.quarantine}
        await self._list()
        for gone in self._work.keys() - wanted - self._there:
            del self._work[gone]
        for key in wanted:
            tierer = self._tables.tierer(key)
            if tierer is not None and self._tables.keeps_beside(key):
                await self._look_at(key, tierer.version)
                await asyncio.sleep(0)
        for key in self._there - wanted:
            # Without its rules it gets no more rows. Those that it has still become old, or were erased.
            if self._tables.keeps_beside(key):
                await self._look_at(key, None)
                await asyncio.sleep(0)

    async def _list(self) -> None:
        """List the quarantines in the store from time to time: a request, and one for each that there is."""
        now, what = self._monotonic(), "the quarantines cannot be listed"
        if now < self._list_at:
            return
        self._list_at = now + RETENTION_S
        try:
            self._there = await quarantines(self._store)
            self._repeats.forget(what)
        except StoreError as error:
            self._list_at = now + RETRY_S
            if (count := self._repeats.say(what, now)) is not None:
                _logger.warning("%s: %s%s", what, error, left_out(count))

    async def _look_at(self, key: StreamKey, version: int | None) -> None:
        """Do what is due for a quarantine.

        Args:
            version: of the table of all rows; None for a quarantine that gets no more rows.
        """
        work = self._work.get(key) or self._work.setdefault(key, self._begun(key))
        now, what = self._monotonic(), f"the quarantine of {key[0]}/{key[1]} is not being updated"
        if now < work.retry_at:
            return
        try:
            if version is None:
                if work.quarantine.version < 0:
                    work.quarantine.keep(await work.quarantine.take())
                work.seen = -1  # should its rules come back
            elif work.seen != version:
                is_more = await work.quarantine.step()
                work.seen = -1 if is_more else version
            # Also while the stream is quiet: what was erased is still in files that no version names.
            await work.maintenance.maintain()
            if now >= work.retain_at and self._is_sound():
                await self._retain(key, work, now)
        except Exception as error:
            # A bug that shows with one stream must not stop the others' tables.
            work.seen, work.retry_at = -1, now + RETRY_S
            work.error = str(error) or type(error).__name__
            count = self._repeats.say(what, now)
            if count is not None:
                say = _logger.warning if isinstance(error, EXPECTED) else _logger.exception
                say("%s: %s%s", what, error, left_out(count))
        else:
            work.error = None
            self._repeats.forget(what)

    async def _retain(self, key: StreamKey, work: _Work, now: float) -> None:
        wanted: TableDocument | None = self._retained.documents.get(key)
        has_more = False
        if wanted is not None and (wanted.retain_s or wanted.retain_bytes):
            await work.retention.look(wanted)
            has_more = work.retention.has_more
        work.retain_at = now + (0 if has_more else RETENTION_S)

    def _begun(self, key: StreamKey) -> _Work:
        told = self._settings
        quarantine = Quarantine(
            self._store, self._cluster, key, settings=told, clock=self._clock, monotonic=self._monotonic
        )
        maintenance = Maintenance(
            self._store, quarantine, settings=told, clock=self._clock, is_sound=self._is_sound,
            monotonic=self._monotonic,
        )  # fmt: skip
        retention = Retention(self._store, self._cluster, key, self._clock, quarantine_key(*key))
        return _Work(quarantine, maintenance, retention, self._monotonic())


async def quarantines(store: ObjectStore) -> set[StreamKey]:
    """Return the streams with a quarantine in the store, with a list request for each.

    Raises:
        StoreError: the store did not answer.
    """
    found: set[StreamKey] = set()
    after: str | None = None
    while page := await store.list(QUARANTINES, after=after, limit=1):
        _, tenant, stream, rest = page[0].key.split("/", 3)
        if rest.startswith("_delta_log/"):  # sorts before the files; without it there is no table
            found.add((tenant, stream))
        after = f"{quarantine_key(tenant, stream)}/~"
    return found
