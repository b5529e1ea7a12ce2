"""Making a backup, again and again in one place: each run copies what came since the last one.

The order makes it consistent. The manifests of all shards are read first: what the collector may delete is in the
tables then. The tables' versions are read next, and the ends of the logs last, so that every row of a table is in a
log. Then everything is copied, and the record says so. A run that ends early leaves the record of the one before, and
all that this record names; the next one continues with what is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from weft.proofs.backup.view import (
    CONTENTS,
    FORMAT,
    LAST_CHECKPOINT,
    PAGE,
    RECORD,
    BackupRecord,
    BackupUnusable,
    BackupView,
    Copied,
    Copier,
    CopyTurns,
    FoundRecord,
    ShardPart,
    TablePart,
    Unlike,
    content_key,
    encode,
    is_inside,
    is_of_table,
    listed,
    missing,
    others,
    read_others,
    read_record,
    table_home,
    tables,
    version_of,
)
from weft.protocols.chunk import parse_file_name
from weft.protocols.chunk_index import Chunk
from weft.protocols.errors import CodecError
from weft.storage import chunk_log as manifests
from weft.storage import hub_keys
from weft.storage.chunk_log import CollectedPast, Manifest, ShardLog
from weft.storage.cluster import Cluster, ClusterUnusable, open_cluster, restored
from weft.storage.cluster import decode as decode_cluster
from weft.storage.cluster_log import NODE, Author, Change, ChangeRefused, ClusterLog, ClusterState, Contended
from weft.storage.object_store import AlreadyExists, NotFound, ObjectStore, PreconditionFailed
from weft.storage.object_store.opening import lay_out
from weft.storage.presence import running
from weft.storage.table.actions import AddedFile
from weft.storage.table.delta_log import TableLog, decode_pointer
from weft.storage.table.files import FileFollower
from weft.storage.table.latest import replaces_all_rows

# Copies of the logs of shards into a backup.

READ_AHEAD = 4
"""Number of whole chunks in memory at most."""


async def head_of(log: ShardLog, after: int) -> int:
    """Return the number after the last chunk, of which all from ``after`` on were listed."""
    end = after
    first = hub_keys.chunk_key(log.shard, after - 1) if after else None
    async for item in listed(log.store, hub_keys.chunk_prefix(log.shard), first):
        number = parse_file_name(item.key.removeprefix(hub_keys.chunk_prefix(log.shard)))
        if number is not None:
            end = max(end, number + 1)
    return end


async def check_history(log: ShardLog, previous: ShardPart | None, manifest: Manifest) -> int:
    """Return the number of the first chunk that the backup lacks.

    Raises:
        BackupUnusable: the backup has another history than the log.
    """
    if previous is None or previous.end <= manifest.watermark:
        return manifest.watermark
    if not previous.end:
        return 0
    try:
        chunk = await log.index(previous.end - 1)
    except CodecError as error:
        raise BackupUnusable(str(error)) from error
    if chunk is None or chunk.footer_crc != previous.footer_crc:
        how = "lacks" if chunk is None else "has another"
        raise BackupUnusable(
            f"the backup has chunk {previous.end - 1} of shard {log.shard}, and the store {how} chunk of that number: "
            "the store was restored to an earlier state since. Make a backup in a new place, and keep this one"
        )
    return previous.end


async def copy_shard(
    log: ShardLog, manifest: Manifest, end: int, copier: Copier, previous: ShardPart | None
) -> ShardPart:
    """Copy snapshots and chunks of a shard up to ``end``.

    Args:
        manifest: the shard's, read before ``end`` was.

    Raises:
        BackupUnusable: the backup has another history, or a chunk is missing or damaged.
        CollectedPast, NotFound: the hub has deleted chunks or the snapshot meanwhile, or written to a new shard: begin
            again with a new manifest.
    """
    start = await check_history(log, previous, manifest)
    await _copy_snapshots(log, manifest, copier)
    crc = previous.footer_crc if previous is not None and start == previous.end else 0
    held: dict[int, memoryview] = {}

    async def whole(n: int) -> Chunk | None:
        if n >= end or (found := await log.whole(n)) is None:
            return None
        held[n] = found[1]
        return found[0]

    n = start
    if start < end:
        # Written only after the log has said that the collector had not passed the chunk when it was read.
        async with aclosing(log.indexes(start, whole, READ_AHEAD)) as indexes:
            async for chunk in indexes:
                data = held.pop(n)
                key = hub_keys.chunk_key(log.shard, n)
                if not await copier.put(key, data):
                    await _same(copier.target, key, data)
                n, crc = n + 1, chunk.footer_crc
                if n == end:
                    break  # a snapshot of later chunks would make their absence here look like damage
    if n < end:
        raise BackupUnusable(
            f"{hub_keys.chunk_key(log.shard, n)} is missing, though later chunks exist: `weft hub verify`"
        )
    await _copy_ended(log, end, copier)
    return ShardPart(log.shard, manifest.watermark, end, crc, _kept(manifest))


def _kept(manifest: Manifest) -> bytes | None:
    none_yet = manifest.snapshot is None and not manifest.watermark and not manifest.others
    return None if none_yet else manifests.encode(manifest)


async def _same(target: ObjectStore, key: str, data: memoryview) -> None:
    # Of an earlier run that did not come to its end, perhaps of another history.
    if (await target.get(key)).data != data:
        raise BackupUnusable(f"the backup has another {key} than the store: make a backup in a new place")


async def _copy_snapshots(log: ShardLog, manifest: Manifest, copier: Copier) -> None:
    # Of a shard that a split makes, the log of the halved shard names the first state: it is there before the SEAL.
    begins = not log.is_first and manifest.snapshot is None
    wanted = [
        item
        async for item in listed(log.store, hub_keys.snapshot_prefix(log.shard))
        if (n := hub_keys.parse_snapshot_key(item.key)) is not None
        and (begins or manifest.watermark - 1 <= n <= manifest.snapshot_n)
    ]
    if begins and (await log.manifest())[0].snapshot is not None:
        # Those that were listed may be of chunks that came after the end of this backup.
        raise CollectedPast(f"shard {log.shard} has begun")
    if manifest.snapshot is not None and manifest.snapshot not in [item.key for item in wanted]:
        raise NotFound(manifest.snapshot)
    there = {item.key async for item in listed(copier.target, hub_keys.snapshot_prefix(log.shard))}
    for item in wanted:
        if item.key in there:
            continue
        try:
            await copier.copy(item.key, item.size, item.key)
        except NotFound:
            if item.key == manifest.snapshot:
                raise


async def _copy_ended(log: ShardLog, end: int, copier: Copier) -> None:
    prefix, turns = hub_keys.ended_prefix(log.shard), CopyTurns()

    async def of(store: ObjectStore) -> AsyncIterator[tuple[str, int]]:
        async for item in listed(store, prefix):
            if hub_keys.parse_ended_key(item.key)[1] < end:
                yield item

    async for key, size in missing(of(log.store), of(copier.target)):
        await turns.add(partial(copier.copy, key, size, key))
    await turns.join()


# Copies of tables at a version into a backup.


class LiveFiles(FileFollower[int]):
    """The sizes of the files of a table's version, by name: some 200 bytes of memory for each."""

    def kept(self, added: AddedFile) -> int:
        """Return the size."""
        return added.size


async def table_parts(store: ObjectStore, note: Callable[[str], None]) -> list[TablePart]:
    """Return the newest version of every table of a store.

    Args:
        note: takes a line on each folder among the tables that has none: it is left out.

    Raises:
        TableError: one cannot be read.
    """
    found = []
    async for tenant, stream in tables(store):
        if (part := await _part(store, tenant, stream)) is not None:
            found.append(part)
        else:
            note(f"{hub_keys.table_key(tenant, stream)} is not a table, and is left out")
    with_all_rows = {(part.tenant, part.stream) for part in found}
    async for tenant, stream in tables(store, hub_keys.LATEST):
        key = hub_keys.latest_key(tenant, stream)
        if (tenant, stream) not in with_all_rows and replaces_all_rows(await TableLog(store, key).read()):
            note(f"{key}, the only table of its stream, is left out: a restored hub makes it again from the log alone")
    return found


async def _part(store: ObjectStore, tenant: str, stream: str) -> TablePart | None:
    key = hub_keys.table_key(tenant, stream)
    state = await TableLog(store, key).read()
    if state is None:
        return None
    pointer: bytes | None = None
    try:
        pointer = (await store.get(f"{key}/{LAST_CHECKPOINT}")).data
        if not 0 <= decode_pointer(pointer).version <= state.version:
            pointer = None
    except NotFound:
        pointer = None
    return TablePart(tenant, stream, str(state.metadata["id"]), state.version, pointer)


async def copy_table(part: TablePart, copier: Copier) -> None:
    """Copy the files of a table that a backup lacks: those of its log up to the version, and all files of data.

    Files that no version names are among them, which costs room and no reading of the table.

    Raises:
        NotFound: an entry of the log was cleaned up meanwhile: begin again with a newer version.
    """
    here, home = hub_keys.table_key(part.tenant, part.stream), table_home(part.tenant, part.stream, part.life)
    turns = CopyTurns()

    async def names(store: ObjectStore, prefix: str) -> AsyncIterator[tuple[str, int]]:
        async for item in listed(store, prefix):
            name = item.key.removeprefix(f"{prefix}/")
            if is_of_table(name, part.version):
                yield name, item.size

    async for name, size in missing(names(copier.source, here), names(copier.target, home)):
        await turns.add(partial(_copy_file, copier, name, size, f"{here}/{name}", f"{home}/{name}"))
    await turns.join()


async def _copy_file(copier: Copier, name: str, size: int, key: str, to: str) -> None:
    try:
        await copier.copy(key, size, to)
    except NotFound:
        # A file of data that is gone was removed from the table long ago; of the log, the version may need it.
        if version_of(name) >= 0:
            raise


_logger = logging.getLogger(__name__)
ATTEMPTS_MAX = 5
RESTORE = Author(0, "weft hub restore", "the store was restored")
"""Number of times that a run begins again because the hub deleted what it was about to copy."""
OTHERS_READINGS_MAX = 5
SHARDS_AT_ONCE = 4
NEVER_CHANGED = (f"{hub_keys.ENTRIES}/", f"{hub_keys.CLUSTER_SNAPSHOTS}/")
"""Further objects that never change: they are read once."""


async def make_backup(
    store: ObjectStore, target: ObjectStore, *, clock: Callable[[], int], note: Callable[[str], None] = _logger.info
) -> tuple[BackupRecord, Copied]:
    """Copy a hub's store, while its nodes run and collect.

    Args:
        target: the place of the backup; one of another cluster is refused.
        clock: nanoseconds since 1970.
        note: takes a line on each step.

    Returns:
        The record, which is in the backup, and the counts of this run.

    Raises:
        BackupUnusable: the place has something else, or the store cannot be copied.
        ClusterUnusable: the store holds no hub.
        StoreError: one of the stores did not answer. Run it again: it continues.
    """
    if is_inside(target, store):
        raise BackupUnusable("the place of the backup is inside the store: name another")
    found = await _open(target, await open_cluster(store, None))
    kept = await read_others(target, found.record) if found is not None else []
    copier = Copier(store, target)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        # Read first, and compared last: the cluster in between is of the same bytes, or the run begins again.
        identity = (await store.get(hub_keys.CLUSTER)).data
        run = _Run(await open_cluster(store, None), copier, found, kept, note)
        try:
            record = await run.copy(clock, identity)
        except (CollectedPast, NotFound) as gone:
            note(f"the store has changed meanwhile, {gone}: starting again ({attempt} of {ATTEMPTS_MAX})")
            continue
        if (await store.get(hub_keys.CLUSTER)).data != identity:
            # Its shards or its level may be others now, and what was copied of no moment.
            note(f"{hub_keys.CLUSTER} has changed meanwhile: starting again ({attempt} of {ATTEMPTS_MAX})")
            continue
        await _replace(target, record, found)
        return record, copier.counts
    raise BackupUnusable(
        f"the hub deleted chunks faster than they could be copied, {ATTEMPTS_MAX} times. Set a longer `retain_log`, or "
        "run the backup nearer to the stores"
    )


async def _open(target: ObjectStore, cluster: Cluster) -> FoundRecord | None:
    found = await read_record(target)
    if found is None:
        with contextlib.suppress(NotFound):
            await target.get(hub_keys.CLUSTER)
            raise BackupUnusable("the place of the backup holds a hub's store: name an empty one")
        return None
    known = msgspec.json.decode(found.record.cluster, type=dict[str, object]).get("cluster_id")
    if known != cluster.cluster_id.hex():
        raise BackupUnusable(
            f"the place has a backup of cluster {known}, and the store is of {cluster.cluster_id.hex()}: name an empty "
            "place"
        )
    return found


async def _replace(target: ObjectStore, record: BackupRecord, found: FoundRecord | None) -> None:
    try:
        if found is None:
            await target.create(RECORD, encode(record))
        else:
            await target.swap(RECORD, encode(record), found.etag)
    except (AlreadyExists, PreconditionFailed):
        raise BackupUnusable("another backup to this place ran at the same time, and is done: run it again") from None


class _Run:
    """One attempt at a backup."""

    def __init__(
        self,
        cluster: Cluster,
        copier: Copier,
        found: FoundRecord | None,
        kept: Sequence[tuple[str, str, int]],
        note: Callable[[str], None],
    ) -> None:
        self._copier, self._note, self._store = copier, note, copier.source
        self._logs = [ShardLog(copier.source, cluster, shard) for shard in range(cluster.tree.count)]
        self._previous = {part.shard: part for part in found.record.shards} if found is not None else {}
        self._kept = kept

    async def copy(self, clock: Callable[[], int], identity: bytes) -> BackupRecord:
        started = clock()
        places = asyncio.Semaphore(SHARDS_AT_ONCE)
        manifests = [(await log.manifest())[0] for log in self._logs]
        tables = await table_parts(self._store, self._note)
        # A shard that takes lanes from another has a higher number. Its end is read first, so that the other's log has
        # everything up to what it took.
        ends = [0] * len(self._logs)
        for log in reversed(self._logs):
            manifest = manifests[log.shard]
            # Chunks of a shard that a split made begin behind the watermark: there may be none yet.
            ends[log.shard] = await head_of(log, max(manifest.snapshot_n, manifest.watermark, 0))
        self._note(f"{sum(ends)} chunks of {len(ends)} shards, {len(tables)} tables")

        async def shard(log: ShardLog, manifest: Manifest, end: int) -> ShardPart:
            async with places:
                previous = self._previous.get(log.shard)
                part = await copy_shard(log, manifest, end, self._copier, previous)
                self._note(f"shard {log.shard}: chunks {part.first} to {part.end - 1}")
                return part

        parts = await _all([shard(*each) for each in zip(self._logs, manifests, ends, strict=True)])
        for table in tables:
            await self._table(table)
        listed = await self._others()
        return BackupRecord(FORMAT, identity, parts, tables, listed, started, clock())

    async def _table(self, part: TablePart) -> None:
        await copy_table(part, self._copier)
        self._note(f"table {part.tenant}/{part.stream}: version {part.version}")

    async def _others(self) -> str:
        """Copy the further objects, by their content. Return the key of their list.

        They belong together, as chunks and manifest of a log do: they are read until two readings are the same.
        """
        before = ""
        known = {key: (content, size) for key, content, size in self._kept}
        for _ in range(OTHERS_READINGS_MAX):
            lines = bytearray()
            async for item in others(self._store):
                content, size = known.get(item.key, ("", -1))
                if size != item.size or not item.key.startswith(NEVER_CHANGED):
                    try:
                        content = await self._copier.keep(item.key, item.size)
                    except NotFound:
                        continue
                    known[item.key] = content, item.size
                lines += msgspec.json.encode((item.key, content, item.size)) + b"\n"
            key = content_key(bytes(lines))
            if key == before:
                return key
            before = key
            await self._copier.put(key, bytes(lines))
        return before


async def _all(calls: list) -> list[ShardPart]:  # type: ignore[type-arg]
    """Return the results of calls. The first error ends the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# Deletion of what the record of a backup no longer needs: the backup is then as large as the store.


async def prune(place: ObjectStore, view: BackupView) -> int:
    """Delete objects of a backup that belong to earlier states of the store. Return their number.

    What a run that ended early has copied stays: the next one needs it.

    Args:
        view: the backup with the newest record.

    Raises:
        BackupUnusable: another run has replaced the record meanwhile.
        TableError: a table of the backup cannot be read.
        StoreError: the store did not answer. Run it again: it continues.
    """
    turns, deleted = CopyTurns(), 0
    async for key in _useless(place, view):
        if not deleted % PAGE:
            await _check_newest(place, view)
        await turns.add(lambda key=key: place.delete(key))  # type: ignore[misc]
        deleted += 1
    await turns.join()
    return deleted


async def _check_newest(place: ObjectStore, view: BackupView) -> None:
    # What this record does not need, a newer one may.
    found = await read_record(place)
    if found is None or found.record != view.record:
        raise BackupUnusable(
            "another backup to this place was done while this one deleted objects: verify the backup with `weft hub "
            "verify`, and never let runs with --prune overlap others"
        )


async def _useless(place: ObjectStore, view: BackupView) -> AsyncIterator[str]:
    for part in view.record.shards:
        prefix = hub_keys.chunk_prefix(part.shard)
        async for item in listed(place, prefix):
            n = parse_file_name(item.key.removeprefix(prefix))
            if n is None or n >= part.first:
                break
            yield item.key
        async for item in listed(place, hub_keys.snapshot_prefix(part.shard)):
            n = hub_keys.parse_snapshot_key(item.key)
            if n is not None and n < part.first - 1:
                yield item.key
    kept = {(part.tenant, part.stream): part for part in view.record.tables}
    async for names in tables(place):
        async for key in _of_table(place, view, names, kept.get(names)):
            yield key
    needed = {view.record.others, *view.contents}
    async for item in listed(place, CONTENTS):
        if item.key not in needed:
            yield item.key


async def _of_table(
    place: ObjectStore, view: BackupView, names: tuple[str, str], part: TablePart | None
) -> AsyncIterator[str]:
    """Yield files that the version of the record does not have, of later versions excepted."""
    key, live, home = hub_keys.table_key(*names), LiveFiles(), ""
    if part is not None:
        home = f"{table_home(part.tenant, part.stream, part.life)}/"
        await TableLog(view, key).follow(live)
    newest = -1
    if part is not None and part.last_checkpoint is not None:
        newest = decode_pointer(part.last_checkpoint).version
    elif home:
        newest = await _newest_checkpoint(place, home, live.version)
    async for item in listed(place, key):
        if not home or not item.key.startswith(home):
            yield item.key  # of a table that was moved away, or whose stream was deleted
            continue
        name = item.key.removeprefix(home)
        version = version_of(name)
        if (version < 0 and name not in live.files) or 0 <= version < newest:
            yield item.key


async def _newest_checkpoint(place: ObjectStore, home: str, version: int) -> int:
    """Return the version of the newest checkpoint up to a version: a reading begins there if the log names none."""
    found = -1
    async for item in listed(place, f"{home}_delta_log"):
        name = item.key.removeprefix(home)
        if ".checkpoint" in name and version_of(name) <= version:
            found = max(found, version_of(name))
    return found


# Restoring a backup into a new store. The store becomes a hub's with the last object that is written.

MARK = hub_keys.RESTORING


async def restore(
    view: BackupView,
    target: ObjectStore,
    *,
    clock: Callable[[], int],
    note: Callable[[str], None] = _logger.info,
    author: Author = RESTORE,
) -> tuple[Copied, list[str]]:
    """Copy a backup into an empty store; run again, it continues.

    Drains end, since they are about the hosts of the lost store. A host of the same name would take no shards of the
    new one.

    Args:
        clock: nanoseconds since 1970. The store says from then on when it was restored.
        note: takes a line on each step.
        author: that of the ends of drains in the cluster log.

    Returns:
        What was copied, and the names of the processes and machines whose drains this run ended.

    Raises:
        BackupUnusable: the store is not empty, a hub process runs on it, or an object of the backup is missing.
        StoreError: one of the stores did not answer. Run it again: it continues.
    """
    copier = Copier(view, target)
    lay_out(target, view.record.cluster)
    if await _begin(view, target, clock()):
        await target.delete(MARK)
        return copier.counts, []
    await _check_unused(target, clock())
    try:
        for part in view.record.shards:
            for folder in ("chunk", "snapshot", "ended"):
                await _folder(copier, f"shard-{part.shard}/{folder}")
            if part.manifest is not None:
                await _put(target, hub_keys.manifest_key(part.shard), part.manifest)
            note(f"shard {part.shard}: chunks {part.first} to {part.end - 1}")
        for table in view.record.tables:
            key = hub_keys.table_key(table.tenant, table.stream)
            await _folder(copier, key)
            if table.last_checkpoint is not None:
                await _put(target, f"{key}/{LAST_CHECKPOINT}", table.last_checkpoint)
            note(f"table {table.tenant}/{table.stream}: version {table.version}")
        for key, (content, size) in view.others.items():
            await copier.copy_kept(key, size, content)
    except Unlike as error:
        raise BackupUnusable(f"{error}: restore an earlier backup, or ask who may write to its place") from error
    except NotFound as gone:
        raise BackupUnusable(f"the backup lacks {gone}: `weft hub verify` on it names all that is missing") from gone
    await _check_unused(target, clock())  # one that was forgotten has shown itself by now
    # Before the store is one on which hubs run: a run that is cut off in between does it again.
    drained = await _end_drains(target, view.record.cluster, author._replace(at=clock()), note)
    await _put(target, hub_keys.CLUSTER, restored(view.record.cluster, view.record.started, clock()))
    await target.delete(MARK)
    return copier.counts, drained


async def _end_drains(target: ObjectStore, identity: bytes, author: Author, note: Callable[[str], None]) -> list[str]:
    """Withdraw all drains of a store. Return the names of the processes and machines."""
    try:
        log = ClusterLog(target, decode_cluster(identity).cluster_id)
        state = await log.load()
        drained = sorted(state.facts(NODE))
        await log.append_all([partial(_undrained, name) for name in drained], author, state)
    except (ClusterUnusable, CodecError, ChangeRefused, Contended) as error:
        # What is in the log of a later release this one cannot tell; the copy itself is whole.
        note(f"warning: drained nodes stay drained, see `weft hub status`: {error}")
        return []
    return drained


def _undrained(name: str, _: ClusterState) -> Change:
    return Change(NODE, name, None)


async def _check_unused(target: ObjectStore, now: int) -> None:
    """Check that no hub process has the place for its store: one that began with the lost store, of a release without a
    fence, would put chunks of that one's history into this one.

    Raises:
        BackupUnusable: there is one.
    """
    if there := await running(target, now):
        node = max(there, key=lambda entry: entry.seen)
        raise BackupUnusable(
            f"a hub process uses this place: {node.name or node.id} at {node.url or 'an unknown address'} wrote to it "
            f"{max(0, now - node.seen) / 1e9:.0f} s ago. Stop it, or name another place; an entry of one that is gone "
            "counts for five minutes"
        )


async def _begin(view: BackupView, target: ObjectStore, now: int) -> bool:
    """Mark a store. Return whether everything of the backup is there already, of a run that lacked only its last step.

    Its hubs may run, and have deleted objects that another copy would bring back.
    """
    name = msgspec.json.encode({"cluster": view.record.cluster.hex(), "finished": view.record.finished})
    try:
        found = (await target.get(MARK)).data
    except NotFound:
        if there := await target.list("", limit=1):
            await _check_unused(target, now)
            raise BackupUnusable(
                f"the store to restore into is not empty: it has {there[0].key}. Name an empty one"
            ) from None
        await target.create(MARK, name)
        return False
    if found != name:
        raise BackupUnusable("another backup is half restored in this store: name an empty one")
    with contextlib.suppress(NotFound):
        await target.get(hub_keys.CLUSTER)
        return True
    return False


async def _folder(copier: Copier, prefix: str) -> None:
    turns = CopyTurns()
    async for item in listed(copier.source, prefix):
        if not item.key.endswith(f"/{LAST_CHECKPOINT}"):
            await turns.add(partial(copier.copy, item.key, item.size, item.key))
    await turns.join()


async def _put(target: ObjectStore, key: str, data: bytes) -> None:
    try:
        await target.create(key, data)
    except AlreadyExists:
        if (await target.get(key)).data != data and key != hub_keys.CLUSTER:
            raise BackupUnusable(f"the store has another {key} than the backup: name an empty one") from None
