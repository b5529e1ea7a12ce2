"""Reader of the lanes of messages in a shard's log, from the oldest message that waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from weft.cloud_hub.down.records import DownRecord, decode
from weft.cloud_hub.shard.message_lanes import DOWN_STREAM
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.chunk import Chunk, section_entries
from weft.protocols.lane import Lane
from weft.protocols.shard.shard_state import StreamKey
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import StoreError


class LogPart(NamedTuple):
    """Chunks ``[first, end]`` of a log that had the edges of a shard."""

    log: ShardLog
    first: int
    end: int


class FoundRecord(NamedTuple):
    """One record of a lane."""

    lane: Lane
    seq: int
    record: DownRecord | None


async def log_parts(log: ShardLog, end: int, other: Callable[[int], Awaitable[Sequencer]]) -> list[LogPart]:
    """Return the parts of the log up to chunk ``end`` that the shard's edges had, ascending: also of shards that were
    split.

    Args:
        other: returns the committer of another shard.

    Raises:
        StoreError: such a shard is not loaded.
    """
    parts, child = [LogPart(log, 0, end)], log.shard
    for shard in log.lineage[1:]:
        halved = await other(shard)
        split = next((each for each in halved.state.splits if each.shard == child), None)
        if split is None:
            raise StoreError(f"shard {shard}, from which shard {child} was split, is not loaded: try again")
        parts[0] = parts[0]._replace(first=split.n + 1)
        parts.insert(0, LogPart(halved.log, 0, split.n))
        child = shard
    return parts


async def read_from(parts: list[LogPart], time: int, tenants: frozenset[str]) -> AsyncIterator[FoundRecord]:
    """Yield the records of all lanes in chunks that were made at ``time`` or later, in the order of the log.

    Chunks that the collector deleted are passed over.

    Args:
        parts: those of the log, ascending.
        time: nanoseconds since 1970.

    Raises:
        StoreError, Corrupt, NotFound, CollectedPast: the log cannot be read.
    """
    only: frozenset[StreamKey] = frozenset((tenant, DOWN_STREAM) for tenant in tenants)
    for log, first, end in parts:
        await log.manifest()
        low, high = max(first, log.watermark), end + 1
        while low < high:
            middle = (low + high) // 2
            chunk = await log.index(middle, only)
            low, high = (middle + 1, high) if chunk is None or chunk.header.created < time else (low, middle)
        if low > end:
            continue
        async for chunk in log.indexes(low, only=only):
            if chunk.header.n > end:
                break
            async for found in read_chunk(log, chunk):
                yield found


async def read_chunk(log: ShardLog, chunk: Chunk) -> AsyncIterator[FoundRecord]:
    """Yield the records of all lanes in a chunk.

    Raises:
        StoreError, Corrupt, NotFound: it cannot be read.
    """
    for section in chunk.footer.streams:
        if section.stream != DOWN_STREAM:
            continue
        data, lanes = await log.section(chunk.header.n, section), chunk.footer.lanes_of(section)
        for entry in section_entries(section, data, lanes):
            update = lanes[entry.lane]
            lane = Lane(update.tenant, update.edge, update.log_id, update.stream)
            for seq, record in decode(entry):
                yield FoundRecord(lane, seq, record)
            await asyncio.sleep(0)
