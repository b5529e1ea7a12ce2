"""Erasure of chosen rows: from the tables at once, and from everything else within a grace.

The table of all rows and the latest table are brought up to the log and written again without the rows. What replaced
versions, and chunks of the log, still have of them is deleted in its time: the files by the vacuum, the chunks by the
collector. The record of an erasure says which objects these are, so that their end can be proved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weft.cloud_hub.facts.streams import wrong_part
from weft.cloud_hub.tables.buckets import HIDDEN_FOLDER, KEY_PROPERTY, Key, Mask, field_text, hidden_key, json_value
from weft.cloud_hub.tables.latest import LatestTierer
from weft.cloud_hub.tables.quarantine import Quarantine
from weft.cloud_hub.tables.retention import PLACE, TYPES, Places
from weft.protocols.chunk_index import StreamKey
from weft.protocols.ranges import RangeSet
from weft.storage import hub_keys
from weft.storage.chunk_log import first_logs, load_every_shard
from weft.storage.cluster import Cluster, open_cluster
from weft.storage.hub_keys import entry_of_table, latest_key, quarantine_key
from weft.storage.object_store import ObjectStore
from weft.storage.object_store.protocol import ObjectFile
from weft.storage.table import iceberg
from weft.storage.table.actions import AddedFile, DataFile, DeltaState, TableConflict, TableError, app_ids
from weft.storage.table.deletions import (
    FORMAT,
    Deletion,
    Erased,
    Erasure,
    declare,
    put_erased,
    stored_deletions,
    stored_erased,
)
from weft.storage.table.delta import DeltaHandle, in_thread
from weft.storage.table.delta_log import Rewrite, TableLog, rewrite
from weft.storage.table.files import TableFiles
from weft.storage.table.latest import only_latest
from weft.storage.table.schemas import FollowedDeclarations
from weft.storage.table_writer.parquet_file import table_schema
from weft.storage.table_writer.settings import DEFAULTS
from weft.storage.table_writer.shards import ShardView, load_shards
from weft.storage.table_writer.tiering import Tierer
from weft.storage.table_writer.writers import Joiner

# Rows chosen by values of their columns, or of fields of their payloads.

_PAYLOAD = "payload."


class Choice:
    """Rows that have all of some values.

    Args:
        conditions: (name, value): a column, or ``payload.`` with a path, and the text of its value.

    Raises:
        ValueError: a name cannot be one.
    """

    def __init__(self, conditions: Sequence[tuple[str, str]]) -> None:
        if (wrong := wrong_part([name for name, _ in conditions], "choice")) is not None:
            raise ValueError(wrong)
        self._conditions = tuple(conditions)

    @property
    def text(self) -> str:
        """Return the names, without the values: a record of an erasure must not keep what it erased."""
        return ", ".join(f"by {name}" for name, _ in self._conditions)

    def check(self, columns: Sequence[tuple[str, Any]], table: str) -> None:
        """Check that rows of a table can be chosen.

        Args:
            columns: (name, Delta type) of the table's columns.
            table: name of the table.

        Raises:
            TableError: it lacks a column, or a column is not text.
        """
        types = dict(columns)
        for name, _ in self._conditions:
            if not name.startswith(_PAYLOAD) and types.get(name, "string") != "string":
                raise TableError(
                    f"column {name} of {table} is not text. Choose by the field of the payloads that it is made of, "
                    f"such as `payload.{name}`, or by another column"
                )
            if not name.startswith(_PAYLOAD) and name not in types:
                raise TableError(
                    f"{table}: the table has no column {name}; it has {', '.join(types)}. Typed columns are in the "
                    "table of all rows alone: choose by the field of the payloads, such as "
                    f"`payload.{name}`, or by another column"
                )

    def columns(self) -> list[str]:
        """Return the columns that are needed of a table."""
        fields = any(name.startswith(_PAYLOAD) for name, _ in self._conditions)
        wanted = [name for name, _ in self._conditions if not name.startswith(_PAYLOAD)]
        return [*wanted, *(["payload"] if fields else [])]

    def of(self, rows: pa.Table | pa.RecordBatch) -> Mask:
        """Return which rows are chosen. Blocks."""
        found: Mask = np.ones(rows.num_rows, np.bool_)
        for name, value in self._conditions:
            if not name.startswith(_PAYLOAD):
                # Null is not equal to anything, and a filter with nulls would drop the row from both halves.
                equal = pc.fill_null(pc.equal(rows.column(name), value), fill_value=False)
                found &= equal.to_numpy(zero_copy_only=False)
        fields = [(name.split(".")[1:], value) for name, value in self._conditions if name.startswith(_PAYLOAD)]
        if fields and found.any():
            # Of the other rows no payload is decoded.
            numbers = np.flatnonzero(found)
            for number, payload in zip(numbers, rows.column("payload").take(numbers).to_pylist(), strict=True):
                document = json_value(payload)
                found[number] = all(field_text(document, path) == value for path, value in fields)
        return found


ATTEMPTS_MAX = 5
"""Number of times that an erasure is decided again because the hub joined files meanwhile."""
FILES_MAX = 200_000
"""Maximum number of objects that a record of an erasure names, some 20 MB."""
LISTED_MAX = 1000
READ_BYTES = 1 << 20
BATCH_ROWS = 16 << 10


class Author(NamedTuple):
    """A person's decision."""

    by: str
    reason: str
    at: int
    """Nanoseconds since 1970."""


class ErasedRows(NamedTuple):
    """Changes of a call."""

    rows: int
    """Rows removed from the table of all rows."""
    latest: int
    """Rows removed from the latest table."""
    recorded: int
    """Erasures whose record is complete now; without rows, of calls that were interrupted."""


class _ChosenFile(NamedTuple):
    """A file with chosen rows."""

    data: DataFile
    is_whole: bool
    """True if all its rows are chosen."""


class _Found(NamedTuple):
    """The chosen rows of a version."""

    files: list[_ChosenFile]
    places: Places


Written = Tierer | Quarantine
"""A maker of a table whose files are written again."""


class Eraser:
    """Erases rows of one stream. Used by one task.

    Args:
        clock: nanoseconds since 1970, for times of files.
        monotonic: seconds.
        nonce: returns a name for a file that no other writer uses.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: Cluster,
        stream: StreamKey,
        *,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        nonce: Callable[[], str],
    ) -> None:
        self._store, self._cluster, self._stream = store, cluster, stream
        self._clock, self._monotonic, self._nonce = clock, monotonic, nonce
        self._files = TableFiles()

    async def erase(self, choice: Choice, author: Author) -> ErasedRows:
        """Erase rows. A call that ended half way can be repeated.

        Raises:
            TableError: there is no table, it cannot be read or changed, or records of the log cannot become rows.
            StoreError: the store did not answer; call again.
            NotFound, Corrupt: a shard's log cannot be read.
        """
        declared = FollowedDeclarations(self._store, self._cluster.cluster_id)
        await declared.start()
        try:
            return await self._erase(choice, author, declared)
        finally:
            await declared.close()

    async def _erase(self, choice: Choice, author: Author, declared: FollowedDeclarations) -> ErasedRows:
        views = await load_shards(self._store, self._cluster)
        if await only_latest(self._store, self._cluster, self._stream) is not None:
            return await self._erase_only(choice, author, views)
        tierer = Tierer(
            self._store,
            self._cluster,
            *self._stream,
            views,
            clock=self._clock,
            monotonic=self._monotonic,
            schema=partial(declared.schemas.of, self._stream),
            quality=partial(declared.quality.of, self._stream),
            sort=partial(declared.sort_of, self._stream),
        )
        if not tierer.ends():
            raise TableError(f"the hub has no records of stream {self._stream[1]} of tenant {self._stream[0]}")
        await _catch_up(tierer)
        choice.check(tierer.columns, tierer.key)
        latest, quarantine = await self._latest(views), await self._quarantine()
        if quarantine is not None:
            # All three tables are checked before the first is changed: a choice that one of them cannot apply must
            # leave all as they are.
            choice.check((await quarantine.take()).columns(), quarantine.key)
        if latest is not None:
            await _catch_up(latest)
            # Afterwards it would be too late: the rows of the other table would be gone, and these would stay.
            choice.check(latest.columns, latest.key)
        # Up to these chunks the log has the rows, too. The erasure is over only when the collector has deleted them.
        erasure = Erasure([(view.shard, view.state.n) for view in views])
        rows = await self._from_table(tierer, choice, author, erasure)
        if latest is None and (latest := await self._latest(views)) is not None:
            # It was made meanwhile, and its maker may not have seen the declaration.
            await _catch_up(latest)
        removed = 0 if latest is None else await _from_latest(latest, choice)
        if (quarantine := await self._quarantine()) is not None:
            await self._from_quarantine(quarantine, choice)
        return ErasedRows(rows, removed, await self._record(tierer, latest, quarantine))

    async def _erase_only(self, choice: Choice, author: Author, views: Sequence[ShardView]) -> ErasedRows:
        """Erase rows of a stream whose latest table is its only one.

        Which older records of the log are chosen is not known, since no table has them: the erasure ends with the last
        chunk that is there now, and is declared even if the table has no such row.
        """
        latest = await self._latest(views)
        assert latest is not None, "the hub never deletes it, and it existed a moment ago"
        await _catch_up(latest)
        choice.check(latest.columns, latest.key)
        erasure = Erasure([(view.shard, view.state.n) for view in views])
        declared = _declared(_Found([], Places()), choice, author, latest.version, erasure)
        await declare(self._store, *self._stream, declared)
        removed = await _from_latest(latest, choice)
        return ErasedRows(0, removed, await self._record(None, latest, None))

    async def _latest(self, views: Sequence[ShardView]) -> LatestTierer | None:
        apps = app_ids(self._cluster.cluster_id, self._stream[1])
        state = await TableLog(self._store, latest_key(*self._stream), apps).read()
        if state is None:
            return None
        try:
            key = Key(msgspec.json.decode(state.properties().get(KEY_PROPERTY, ""), type=list[str]))
        except (msgspec.MsgspecError, ValueError) as error:
            raise TableError(f"{latest_key(*self._stream)} has no readable key: {error}. Move the table away") from None
        return LatestTierer(
            self._store, self._cluster, *self._stream, views, key, clock=self._clock, monotonic=self._monotonic
        )

    async def _from_table(self, tierer: Tierer, choice: Choice, author: Author, erasure: Erasure) -> int:
        """Declare the rows, then remove them. Return their number."""
        latest: TableConflict | None = None
        declared: dict[tuple[str, str], RangeSet] = {}
        for _ in range(ATTEMPTS_MAX):
            state = await tierer.take()
            found = await self._find(state, tierer, choice, self._files)
            if not found.places.rows:
                return 0
            if found.places.lanes != declared:  # otherwise files were joined since, and the rows are the same
                # Declared before the rows go. A crash in between leaves rows that are named and still there, which
                # running the command again removes; in the other order the audit would call them lost.
                await declare(self._store, *self._stream, _declared(found, choice, author, state.version, erasure))
                declared = found.places.lanes
            try:
                await self._remove(state, tierer, found, choice)
            except TableConflict as conflict:
                latest = conflict
            else:
                return found.places.rows
        raise TableError(f"other writers committed first {ATTEMPTS_MAX} times: {latest}. Run the command again")

    async def _quarantine(self) -> Quarantine | None:
        if await TableLog(self._store, quarantine_key(*self._stream)).read() is None:
            return None
        return Quarantine(
            self._store, self._cluster, self._stream, clock=self._clock, monotonic=self._monotonic, nonce=self._nonce
        )

    async def _from_quarantine(self, quarantine: Quarantine, choice: Choice) -> None:
        """Remove the copies of rows that fail quality rules, after the rows.

        A maker that has read the rows, and not copied them yet, is too late then: the version without them changes what
        its commit depends on.
        """
        conflict: TableConflict | None = None
        for _ in range(ATTEMPTS_MAX):
            try:
                state = await quarantine.take()
                choice.check(state.columns(), quarantine.key)
                found = await self._find(state, quarantine, choice, TableFiles())
                await self._remove(state, quarantine, found, choice, quarantine.turn(state))
            except TableConflict as error:
                conflict = error
            else:
                return
        raise TableError(f"other writers committed first {ATTEMPTS_MAX} times: {conflict}. Run the command again")

    async def _find(self, state: DeltaState, tierer: Written, choice: Choice, files: TableFiles) -> _Found:
        await tierer.log.follow(files)
        # Rows are looked for in exactly the version that is replaced, or one that came meanwhile would be missed.
        if (files.version, files.entry_hash) != (state.version, state.entry_hash):
            raise TableConflict(f"{tierer.key}: version {files.version} was written meanwhile")
        names = [name for name, _ in state.columns()]
        if len(table_schema(state.fields(), tierer.payload)) != len(names):
            raise TableError(
                f"{tierer.key} has columns of its owner, which the hub does not write again. Declare the deletion "
                "(`weft hub declare-deletion`), and delete the rows with an engine"
            )
        found = _Found([], Places())
        for path, added in sorted(files.files.items()):
            if added.deletionVector is not None:
                raise TableError(f"{tierer.key} has deletion vectors: write its files again with their engine first")
            await self._find_in(tierer.key, path, added, choice, found)
        return found

    async def _find_in(self, table: str, path: str, added: AddedFile, choice: Choice, found: _Found) -> None:
        key, columns = f"{table}/{path}", [*dict.fromkeys([*PLACE, *choice.columns()])]
        file: Any = ObjectFile(self._store, key, added.size, asyncio.get_running_loop())
        rows, total = await in_thread(lambda: _chosen(file, columns, choice))
        if not rows.num_rows:
            return
        shard, first = rows.column("_shard")[0].as_py(), pc.min(rows.column("_offset")).as_py()
        data = DataFile(path, added.size, total, shard, first, 0, 0, added.stats or "")
        found.files.append(_ChosenFile(data, rows.num_rows == total))
        await in_thread(lambda: found.places.add(rows))
        found.places.check()

    async def _remove(
        self,
        state: DeltaState,
        tierer: Written,
        found: _Found,
        choice: Choice,
        transactions: Mapping[str, int] | None = None,
    ) -> None:
        def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch.filter(pa.array(~choice.of(batch)))

        joiner = Joiner(
            self._store, tierer.key, DEFAULTS, clock=self._clock, monotonic=self._monotonic, nonce=self._nonce
        )
        schema = table_schema(state.fields(), tierer.payload)
        # A file of which every row is chosen is removed without being read again.
        kept = [file.data for file in found.files if not file.is_whole]
        new = [(await joiner.join([file], schema, keep)).new for file in kept]
        change = Rewrite("DELETE", [file.data for file in found.files], new, transactions or {})
        tierer.keep(await rewrite(tierer.log, tierer.key, state, change, self._clock() // 1_000_000))

    async def _record(self, tierer: Tierer | None, latest: LatestTierer | None, quarantine: Quarantine | None) -> int:
        """Note for each erasure of the stream that has no record which objects may have rows of it. Return their
        number.

        No version names such objects any more, so the list says too much and never too little.
        """
        found = await stored_deletions(self._store, *self._stream)
        open_ones = [
            number
            for number, each in found.items()
            if each.erasure is not None and await stored_erased(self._store, *self._stream, number) is None
        ]
        if open_ones:
            named, entries, keys = set[str](), list[str](), list[str]()
            if tierer is not None:
                await tierer.log.follow(self._files)
                named |= {f"{tierer.key}/{path}" for path in self._files.files}
                entries.append(entry_of_table(tierer.key, self._files.version))
                keys.append(tierer.key)
            if latest is not None:
                state = await latest.take()
                named |= await latest.names(state)
                entries.append(entry_of_table(latest.key, state.version))
                keys.append(latest.key)
            if quarantine is not None:
                await quarantine.log.follow(files := TableFiles())
                named |= {f"{quarantine.key}/{path}" for path in files.files}
                entries.append(entry_of_table(quarantine.key, files.version))
                keys.append(quarantine.key)
            # Replaced files still have the rows until the vacuum. They are listed now, while it is known which they
            # are, and the proof waits for each of them.
            left = [each for key in keys for each in await objects(self._store, key) if each not in named]
            for number in open_ones:
                await put_erased(self._store, *self._stream, number, Erased(FORMAT, left, entries))
        return len(open_ones)


async def objects(store: ObjectStore, table: str) -> list[str]:
    """Return the keys of a table's objects, without those of its log and of its Iceberg metadata.

    Raises:
        TableError: there are more than a record can name.
    """
    found: list[str] = []
    after: str | None = None
    metadata = f"{table}/_delta_log/", f"{table}/{iceberg.FOLDER}/"
    while page := await store.list(table, after=after, limit=LISTED_MAX):
        found += [item.key for item in page if not item.key.startswith(metadata)]
        after = page[-1].key
        if len(found) > FILES_MAX:
            raise TableError(f"{table} has more than {FILES_MAX:,} objects: wait for its vacuum, and call again")
    return found


async def _catch_up(tierer: Tierer) -> None:
    """Bring a table up to the states of the shards."""
    await tierer.take()
    while True:
        before = tierer.done
        await tierer.step()
        if not tierer.is_behind:
            return
        if tierer.done == before:
            raise TableError(f"{tierer.key} cannot be brought up to the log: {next(iter(tierer.stopped.values()), '')}")


async def _from_latest(latest: LatestTierer, choice: Choice) -> int:
    choice.check(latest.columns, latest.key)
    conflict: TableConflict | None = None
    for _ in range(ATTEMPTS_MAX):
        state = await latest.take()
        try:
            state, count = await latest.erase(state, choice.of)
        except TableConflict as error:
            conflict = error
        else:
            latest.keep(state)
            return count
    raise TableError(f"other writers committed first {ATTEMPTS_MAX} times: {conflict}. Run the command again")


def _declared(found: _Found, choice: Choice, author: Author, version: int, erasure: Erasure) -> Deletion:
    fields = author.at, author.by, author.reason, choice.text, version, *found.places.stored()
    return Deletion(FORMAT, *fields, erasure)


def _chosen(file: Any, columns: list[str], choice: Choice) -> tuple[pa.Table, int]:
    """Return the places of a file's chosen rows, and the number of all its rows."""
    opened = pq.ParquetFile(file, page_checksum_verification=True, buffer_size=READ_BYTES, pre_buffer=False)
    found = [pa.table({name: pa.array([], TYPES[name]) for name in PLACE})]
    wanted = [name for name in columns if name in opened.schema_arrow.names]
    for batch in opened.iter_batches(BATCH_ROWS, columns=wanted):
        rows = pa.Table.from_batches([batch])
        for name in columns:
            if name not in wanted:  # a topic level that came later
                rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.string()))
        found.append(rows.filter(pa.array(choice.of(rows))).select(PLACE).cast(found[0].schema))
    return pa.concat_tables(found), opened.metadata.num_rows


# Erasures of a stream, and what of each is still somewhere in the store.

HIDDEN_NS = 3600 * 1_000_000_000
"""Age of an erasure from which on the files with hidden rows that it named are deleted."""


class ErasureState(msgspec.Struct, frozen=True):
    """An erasure as the store shows it."""

    number: int
    time: int
    """Nanoseconds since 1970."""
    by: str
    reason: str
    rows: str
    """The choice, without the values."""
    count: int
    waits: list[str]
    """Places that may still have rows of it, one sentence each; empty if none has."""


async def erasures(store: ObjectStore, stream: StreamKey) -> list[ErasureState]:
    """Return the erasures of a stream, oldest first.

    Raises:
        TableError: a record is damaged, or a later release wrote it.
        ClusterUnusable, StoreError: the store holds no hub, or did not answer.
    """
    found = []
    without: frozenset[int] | None = None
    for number, deletion in (await stored_deletions(store, *stream)).items():
        if deletion.erasure is not None:
            without = without if without is not None else await _shards_without(store, stream)
            waits = [*await _in_log(store, deletion, without), *await _in_tables(store, stream, number)]
            fields = deletion.time, deletion.by, deletion.reason, deletion.rows, deletion.count
            found.append(ErasureState(number, *fields, waits))
    return found


async def _shards_without(store: ObjectStore, stream: StreamKey) -> frozenset[int]:
    """Return the shards whose logs never had a record of a stream."""
    logs = first_logs(store, await open_cluster(store, None), tenant=stream[0])
    loaded = await load_every_shard(logs, frozenset([stream]))
    return frozenset(log.shard for log, state in loaded if not state.next_offset.get(stream))


async def _in_log(store: ObjectStore, deletion: Deletion, without: frozenset[int]) -> list[str]:
    """Return a sentence for each shard whose log may still have erased records.

    Args:
        without: shards that never had a record of the stream. An idle one keeps its chunks, which are not awaited.
    """
    found = []
    assert deletion.erasure is not None, "a declaration of an erasure"
    for shard, n in deletion.erasure.chunks:
        if shard in without:
            continue
        prefix = hub_keys.chunk_prefix(shard)
        listed = await store.list(prefix, limit=1)
        # Chunks are deleted from the front, so the first one says whether any is left.
        if listed and listed[0].key <= hub_keys.chunk_key(shard, n):
            found.append(
                f"the log of shard {shard} has chunks up to {n}: the collector deletes them "
                "(`retain_log`, or a longer term of a stream, see `weft hub table list`)"
            )
    return found


async def _in_tables(store: ObjectStore, stream: StreamKey, number: int) -> list[str]:
    erased = await stored_erased(store, *stream, number)
    if erased is None:
        return ["the command did not end: run it again with the same choice"]
    there = {key for table in tables_of(stream) for key in await objects(store, table)}
    left = there.intersection(erased.files)
    found = [f"{len(left)} replaced files of the tables: the vacuum deletes them, such as {min(left)}"] if left else []
    for entry in erased.entries:
        # Names of versions sort before all other names of the folder.
        folder = entry.rpartition("/")[0]
        listed = await store.list(folder, limit=1)
        # The checkpoint of the same version sorts before its entry, and has the files of that version alone.
        if listed and listed[0].key < entry.removesuffix(".json"):
            found.append(f"{folder} has entries from before it, with bounds of topic levels: they go with a checkpoint")
        table, version = folder.rpartition("/")[0], int(entry.rpartition("/")[2].removesuffix(".json"))
        if await iceberg.has_before(store, table, version):
            found.append(
                f"{table}/{iceberg.FOLDER} has snapshots from before it: they go after half of the vacuum's time. "
                "If Iceberg is off, delete the folder"
            )
    return found


async def _unnamed(store: ObjectStore, stream: StreamKey, now: int) -> list[str]:
    """Return the files with hidden rows that no version named when an erasure was recorded, long ago: a maker may have
    been about to name one that it had just written."""
    found = []
    for number, deletion in (await stored_deletions(store, *stream)).items():
        if deletion.erasure is not None and now - deletion.time > HIDDEN_NS:
            erased = await stored_erased(store, *stream, number)
            found += [file for file in (erased.files if erased else ()) if f"/{HIDDEN_FOLDER}/" in file]
    return found


def tables_of(stream: StreamKey) -> tuple[str, ...]:
    """Return the folders of a stream's tables."""
    return hub_keys.table_key(*stream), hub_keys.latest_key(*stream), hub_keys.quarantine_key(*stream)


async def tidy(store: ObjectStore, cluster: Cluster, stream: StreamKey, now: int) -> int:
    """Delete replaced files and old entries of a stream's tables that are older than the tables' retention. Return the
    number of files.

    Hubs do it each day, and for entries after a number of versions, which a table without new rows does not reach.

    Args:
        now: nanoseconds since 1970.

    Raises:
        TableError: a table cannot be read.
    """
    removed, apps = 0, app_ids(cluster.cluster_id, stream[1])
    for key in tables_of(stream):
        log = TableLog(store, key, apps)
        state = await log.read()
        if state is None:
            continue
        await log.sync(state.version)
        uri, options = store.location(key)
        handle = await in_thread(lambda uri=uri, options=options: DeltaHandle.open(uri, options))  # type: ignore[misc]
        if handle is None:
            raise TableError(f"{key}: the table no longer exists")
        if await log.checkpoint_version() < handle.version:
            await in_thread(handle.checkpoint)
            await log.sync_checkpoint()
        await in_thread(handle.clean_log)
        removed += await in_thread(handle.vacuum)
        named = hidden_key(key, apps, state)
        for file in await _unnamed(store, stream, now):
            if file.startswith(f"{key}/") and file != named:
                await store.delete(file)
                removed += 1
    return removed
