"""Maintenance of a table: joining small files, checkpoints, and removing files that are no longer needed.

deltalake's own ``optimize`` and hooks are not used because they sync nothing: a power cut could leave a version with
files whose bytes are gone. Here every file is durable before a version depends on it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from weft.protocols.payloads import PayloadKind
from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import DataFile, DeltaState, TableConflict, TableError, TableSize
from weft.storage.table.delta import DeltaHandle, in_thread
from weft.storage.table.delta_log import TableLog
from weft.storage.table.files import SmallFiles
from weft.storage.table_writer.parquet_file import table_schema
from weft.storage.table_writer.settings import DEFAULTS, TableSettings
from weft.storage.table_writer.writers import FileWriter, OwnWriter

FILES_A_VERSION = 1000
"""Number of a checkpoint's files for which a version more lies between two. A million files take 2.5 s of a core
and a gigabyte of memory, with short statistics."""
GROWTH_MIN = 1.5
"""Least factor by which a join grows its largest part."""


class MaintainedTable(Protocol):
    """A maker of a table, between two of its steps."""

    key: str
    log: TableLog
    version: int
    payload: PayloadKind

    async def take(self) -> DeltaState:
        """Return the table; it is read again if another writer changed it."""
        ...

    def keep(self, state: DeltaState) -> None:
        """Keep a version that is up to date with its table."""
        ...


class Maintenance:
    """Maintenance of one table, between the steps of its maker and in the same task.

    Args:
        clock: nanoseconds since 1970.
        is_sound: whether the clock can be believed; otherwise no file is removed as old.
        monotonic: seconds of a clock that never jumps.
        writer: writer of the joined files; None writes them in this process.
        chance: a number from 0 to 1, another one for each start.
        sort: returns the columns by which rows of a file are sorted first.
    """

    def __init__(
        self,
        store: ObjectStore,
        tierer: MaintainedTable,
        *,
        settings: TableSettings = DEFAULTS,
        clock: Callable[[], int] = time.time_ns,
        is_sound: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
        writer: FileWriter | None = None,
        chance: Callable[[], float] = random.random,
        sort: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._store = store
        self._tierer = tierer
        self._settings = settings
        self._clock, self._monotonic = clock, monotonic
        self._writer = writer or OwnWriter(store, settings, clock=clock, monotonic=monotonic)
        self.is_sound, self._sort = is_sound, sort
        # Nothing says when an earlier process last did it. From a random moment on, processes that are restarted once
        # an hour do it as often as one that runs for good, and the tables of a hub do not do it all at once.
        self._vacuumed = monotonic() - chance() * settings.vacuum_interval_s
        self._small = SmallFiles(settings.compact_file_bytes_max)
        self._seen_version = -1
        self._looked = False

    @property
    def size(self) -> TableSize | None:
        """Return the table's size as of the last look for small files; None before the first."""
        return self._small.size if self._small.version >= 0 else None

    @property
    def vacuumed(self) -> int | None:
        """Return when a vacuum last ended that removed files, as of the last look for small ones, nanoseconds since
        1970; None while unknown."""
        found = self._small.vacuumed_ms
        return None if found is None else found * 1_000_000

    @property
    def _vacuum_due(self) -> bool:
        return self._monotonic() - self._vacuumed >= self._settings.vacuum_interval_s and self.is_sound()

    @property
    def is_due(self) -> bool:
        """Return whether ``maintain`` has something to check."""
        due = self._tierer.version - self._seen_version >= self._settings.compact_files_min
        return self._tierer.version >= 0 and (due or self._vacuum_due or not self._looked)

    async def maintain(self) -> None:
        """Do the due maintenance. It is cheap if none is due: the table is opened once in ``compact_files_min``
        versions.

        Raises:
            TableError: the table cannot be read or changed; earlier steps remain done.
            StoreError: the store did not answer.
        """
        if not self.is_due or not self.is_sound():
            return  # what a join replaces has a time, and so has what is old
        vacuum_due = self._vacuum_due
        self._looked = True
        state = await self._tierer.take()
        # A conflict means that another writer is changing the table: the next round tries again.
        conflict = True
        with suppress(TableConflict):
            state = await self.compact(state)
            conflict = False
        await self.checkpoint(state)
        if vacuum_due and self.is_sound():
            self._vacuumed = self._monotonic()
            await self.vacuum()
        self._seen_version = state.version
        if not conflict:
            self._tierer.keep(state)

    async def measure(self) -> None:
        """Read the size of a table that others maintain, as often as they do.

        Raises:
            TableError: the table cannot be read.
            StoreError: the store did not answer.
        """
        known = self._small.version
        if self._tierer.version >= 0 and (
            known < 0 or self._tierer.version - known >= self._settings.compact_files_min
        ):
            await self._tierer.log.follow(self._small)

    async def compact(self, state: DeltaState) -> DeltaState:
        """Join neighbouring small files of a shard. Return the table's version. One rewrite per shard and call.

        Raises:
            TableConflict: another writer was first; nothing changed.
        """
        fields = state.fields()
        schema = table_schema(fields, self._tierer.payload)
        if len(schema) != len(fields):
            # A table with columns of its owner is left to the owner for rewriting.
            return state
        await self._tierer.log.follow(self._small)
        files = [*self._small.files.values()]
        runs = await in_thread(lambda: small_runs(files, self._settings))
        if runs:
            # One commit for each joined file: a kill loses one join and not the round.
            async for run, joined in self._writer.join(self._tierer.key, runs, schema, self._sort()):
                if not self.is_sound():
                    break
                if self._small.version < state.version:
                    # The last join came after versions of others, which may have joined the files of this run.
                    await self._tierer.log.follow(self._small)
                    # A file that is joined twice would have its rows twice.
                    if any(file.path not in self._small.files for file in run):
                        raise TableConflict(
                            f"{self._tierer.key}: another writer has joined files of shard {run[0].shard}"
                        )
                state = await self._tierer.log.replace(state, run, joined, self._now_ms(), listed=self._small.version)
        return state

    async def checkpoint(self, state: DeltaState) -> bool:
        """Write a checkpoint when the last one is old, and drop log entries past retention."""
        last = await self._tierer.log.last_checkpoint()
        # A checkpoint repeats all files of the table, so a large table has one more rarely; readers read the entries
        # since.
        if state.version - max(last.version, 0) < checkpoint_versions(last.size, self._settings):
            return False
        handle = await self._opened()
        await in_thread(handle.checkpoint)
        await self._tierer.log.sync_checkpoint()
        # Entries are cleaned up by age: with a clock in the future, those that readers still need would go.
        if self.is_sound():
            await in_thread(handle.clean_log)
        return True

    async def vacuum(self) -> int:
        """Remove files that no version within the retention needs. Return their number."""
        handle = await self._opened()
        removed = await in_thread(handle.vacuum)
        await self._tierer.log.sync(handle.version)
        return removed

    async def _opened(self) -> DeltaHandle:
        """Return the newest version with the list of its files, durable."""
        uri, options = self._store.location(self._tierer.key)
        handle = await in_thread(lambda: DeltaHandle.open(uri, options))
        if handle is None:
            raise TableError(f"{uri}: the table is no longer there")
        await self._tierer.log.sync(handle.version)
        return handle

    def _now_ms(self) -> int:
        return self._clock() // 1_000_000


def checkpoint_versions(files: int, settings: TableSettings) -> int:
    """Return the number of versions between checkpoints: one costs as much as the table has files."""
    return max(settings.checkpoint_versions, min(settings.checkpoint_versions_max, files // FILES_A_VERSION))


def small_runs(files: Sequence[DataFile], settings: TableSettings) -> list[list[DataFile]]:
    """Return for each shard with enough small files the neighbours for one rewrite, offsets ascending.

    Neighbours, so that the joined file still has a narrow range of offsets, by which readers skip it. And files of like
    size: a joined file has ``compact_files_min`` times the records of each of its parts, or it is not small any more.
    So a record is rewritten a few times until it rests, however slowly its stream grows.
    """
    runs = []
    ordered = sorted(files, key=attrgetter("shard", "first_offset"))
    for _, group in groupby(ordered, key=attrgetter("shard")):
        found = [(file, _tier(file, settings)) for file in group]
        # Large ones first: a run of them takes in the small ones between, which then need no join of their own.
        for tier in sorted({each for _, each in found}, reverse=True):
            worth = [run for run in _runs(found, settings, tier) if _is_worth_while(run, settings)]
            if worth:
                # One rewrite per shard and call bounds the time of a step.
                runs.append(max(worth, key=len))
                break
    return runs


def _tier(file: DataFile, settings: TableSettings) -> int:
    return int(math.log(max(1, _records(file)), settings.compact_files_min))


def _records(file: DataFile) -> int:
    # Records, since the smallest files have many bytes that a joined one does not have.
    return file.end_offset - file.first_offset


def _is_worth_while(run: Sequence[DataFile], settings: TableSettings) -> bool:
    if len(run) < 2:
        return False
    counts, sizes = [_records(file) for file in run], [file.size for file in run]
    # Files of like size are joined, so that a byte is rewritten once for each factor of growth. A grown file that took
    # in each new one was rewritten 263 times.
    grows = sum(counts) >= settings.compact_files_min * max(counts)
    # The joined file may be smaller than its parts, and small again: it must have grown all the same.
    rests = sum(sizes) >= settings.compact_file_bytes_max and sum(sizes) >= GROWTH_MIN * max(sizes)
    return grows or rests or len(run) >= settings.compact_files_max


def _runs(files: Sequence[tuple[DataFile, int]], settings: TableSettings, tier: int) -> Iterator[list[DataFile]]:
    """Yield the runs of neighbours that are small and in no higher tier.

    Args:
        files: each with its tier.
    """
    run: list[DataFile] = []
    size = 0
    for file, its_tier in files:
        small = file.size < settings.compact_file_bytes_max and its_tier <= tier
        # Readers find rows by ranges of offsets. A join across an overlap would widen the range of the file over both.
        overlaps = bool(run) and file.first_offset < run[-1].end_offset
        if run and (not small or overlaps or size + file.size > settings.compact_bytes_max):
            yield run
            run, size = [], 0
        if small:
            run.append(file)
            size += file.size
    if run:
        yield run
