"""Knowledge about a stream's lanes at a position: shard states folded up to certain record offsets.

A mark in a later chunk may be about records that a batch does not have. So the completeness of a batch is computed from
the state below the batch's end offsets, never from the state at the head of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from spark_sinks.errors import ReadError
from spark_sinks.source.options import ReadOptions
from spark_sinks.source.positions import CHUNKS, READ, Offsets, check_offsets
from spark_sinks.source.stream_log import StreamLog
from weft.protocols.errors import CodecError
from weft.protocols.lane import Lane
from weft.protocols.shard.fold import apply
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.open_gaps import OpenGap
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.object_store import NotFound


class LanesAt(NamedTuple):
    """A stream's lanes as known below certain offsets."""

    offsets: Offsets
    lanes: dict[Lane, LaneState]
    shards: dict[Lane, int]
    clock: int
    """The fabric's clock there, nanoseconds since 1970: the time at which the hub made the newest folded chunk. A shard
    that was not folded to its end holds the clock back, since its following chunks may be older than that. 0 before the
    first chunk."""
    left: tuple[OpenGap, ...] = ()
    """Open gaps of lanes that have left the state."""
    unknown_shards: tuple[int, ...] = ()
    """Shards whose state at the offset is no longer kept: chunks of that time were deleted after tiering."""


def at_head(log: StreamLog) -> LanesAt:
    """Return the lanes at the end of the log as last seen. Offsets and states belong together."""
    clock = max((state.created for state in log.states), default=0)
    return _merged(log.options, log.heads, {state.shard: state for state in log.states}, clock)


async def open_at_head(options: ReadOptions) -> LanesAt:
    """Return the lanes at the end of the log.

    Raises:
        ReadError: as ``StreamLog.open``.
    """
    log = await StreamLog.open(options)
    await log.extend()
    return at_head(log)


async def open_at(options: ReadOptions, offsets: Mapping[int, int]) -> LanesAt:
    """Return the lanes as known below ``offsets``: for each shard, from the longest run of chunks without a record
    behind its offset. The fold begins at the nearest kept snapshot.

    Raises:
        ReadError: as ``StreamLog.open``; the offsets name other shards than the log's, or are past its end.
    """
    log = await StreamLog.open(options)
    await log.extend()
    wanted = with_new_shards(offsets, log)
    check_offsets("at", wanted, log.heads)
    if wanted == log.heads:
        return at_head(log)
    found = await asyncio.gather(
        *(_below(log.log_of(shard), log.state(shard), options, offset) for shard, offset in sorted(wanted.items()))
    )
    states = {shard: state for shard, state in zip(sorted(wanted), found, strict=True) if state is not None}
    behind = [state.created for shard, state in states.items() if state.n < log.state(shard).n]
    clock = min(behind, default=max((state.created for state in states.values()), default=0))
    unknown = wanted.keys() - states.keys()
    return _merged(options, wanted, in_force(states, log.cluster.tree.firsts), clock, tuple(sorted(unknown)))


def in_force(states: Mapping[int, ShardState], firsts: Collection[int]) -> dict[int, ShardState]:
    """Return the states without those of shards whose splits are not in the state of the halved shard: there, the lanes
    are known from the halved shard, and the new one knows more of them than what lies below the offsets.

    Args:
        firsts: the shards that no split made.
    """
    made = {split.shard for state in states.values() for split in state.splits}
    kept = {shard: state for shard, state in states.items() if shard in firsts or shard in made}
    return kept if len(kept) == len(states) else in_force(kept, firsts)


def with_new_shards(offsets: Mapping[int, int], log: StreamLog) -> Offsets:
    """Return offsets for every shard that a split has made, too: 0 for one that is not named, since the offsets are
    from before the split."""
    return {shard: 0 for shard in log.heads if not log.cluster.tree.is_first(shard)} | dict(offsets)


async def _below(log: ShardLog, head: ShardState, options: ReadOptions, offset: int) -> ShardState | None:
    """Return the shard's state below an offset, or None when the chunks of that time are gone."""
    key = (options.tenant, options.stream)
    if head.next_offset.get(key, 0) <= offset:
        return head
    try:
        state = await _snapshot_before(log, options, offset)
        if state is None:
            return None
        async for chunk in log.indexes(state.n + 1, only=state.only):
            sections = (each for each in chunk.footer.streams if (each.tenant, each.stream) == key)
            if any(section.base_offset + section.count > offset for section in sections):
                break
            apply(state, chunk)
    except CollectedPast:
        return None
    return state


async def _snapshot_before(log: ShardLog, options: ReadOptions, offset: int) -> ShardState | None:
    """Return a state from which the kept chunks lead to the offset."""
    n = await log.locate(options.tenant, options.stream, offset)
    only = frozenset({(options.tenant, options.stream)})
    for at, key in reversed(await log.snapshots()):
        if at >= n:
            continue
        try:
            state = await log.snapshot(key, only)
        except (NotFound, CodecError):
            continue  # Deleted meanwhile, or damaged: an older snapshot only makes the fold longer.
        if state.n == at and state.next_offset.get((options.tenant, options.stream), 0) <= offset:
            return state
    # From the start of the log, if that is still there.
    return ShardState(log.cluster.cluster_id, log.shard, log.rules, only) if log.watermark == 0 else None


def _merged(
    options: ReadOptions, offsets: Offsets, states: Mapping[int, ShardState], clock: int, unknown: Iterable[int] = ()
) -> LanesAt:
    lanes: dict[Lane, LaneState] = {}
    shards: dict[Lane, int] = {}
    for shard, state in states.items():
        for lane, held in state.stream_lanes(options.tenant, options.stream).items():
            lanes[lane], shards[lane] = held, shard
    key = options.tenant, options.stream
    left = tuple(gap for state in states.values() for gap in state.open_gaps.get(key, ()))
    return LanesAt(dict(offsets), lanes, shards, clock, left, tuple(unknown))


def checked_offsets(at: Mapping[Any, Any]) -> Offsets:
    """Return offsets by shard from a mapping, as ``{"0": 1200}`` of a checkpoint or with whole numbers as keys.

    Raises:
        ReadError: it has another form.
    """
    try:
        found = {int(shard): offset for shard, offset in at.items() if shard not in (CHUNKS, READ)}
        if all(type(offset) is int and offset >= 0 for offset in found.values()):
            return found
    except (AttributeError, TypeError, ValueError):
        pass
    raise ReadError(f'at: expected an offset for each shard, such as {{"0": 1200, "1": 0}}; got {at!r}')
