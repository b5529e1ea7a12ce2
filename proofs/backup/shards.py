"""Copies of the logs of shards into a backup."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

from weft.proofs.backup.copying import Copier, CopyTurns, missing
from weft.proofs.backup.places import listed
from weft.proofs.backup.record import BackupUnusable, ShardPart
from weft.protocols.chunk import Chunk, parse_file_name
from weft.protocols.errors import CodecError
from weft.storage import hub_keys
from weft.storage import manifest as manifests
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.manifest import Manifest
from weft.storage.object_store import NotFound, ObjectStore

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
