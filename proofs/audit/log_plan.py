"""Plan of an audit's tasks over the log: per shard the facts of the snapshot, and runs of chunks."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.proofs.audit.counts import LaneKey
from weft.proofs.audit.log_task import LogTask
from weft.proofs.audit.part import Part
from weft.proofs.audit.scope import Scope
from weft.protocols.errors import CodecError
from weft.protocols.lane import format_log_id
from weft.protocols.ranges import RangeSet
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.chunks.open_gaps import NamedOpenGap, open_gaps_of
from weft.storage.hub_keys import chunk_key, chunk_prefix

RUN_CHUNKS = 64
"""Number of chunks of one task: a few seconds of work, with counts that are small beside its records."""
CHUNKS_MAX = 1 << 26
"""Maximum number of chunks of a shard above its watermark: two years of one a second."""


@dataclass
class ShardBase:
    """Knowledge of a shard without its chunks."""

    watermark: int = 0
    """Chunks below may be gone."""
    ended: int = 0
    """Next offset of the stream according to the newest snapshot."""
    stated: dict[LaneKey, RangeSet] = field(default_factory=lambda: defaultdict(RangeSet))
    """Records of a lane according to the snapshot of a shard whose chunks were deleted."""


async def read_base(log: ShardLog, scope: Scope, part: Part) -> ShardBase:
    """Read the facts about chunks below the watermark; damage and lanes go into ``part``.

    Raises:
        StoreError: the store did not answer.
    """
    base = ShardBase()
    try:
        manifest, _ = await log.manifest()
        base.watermark = manifest.watermark
        if manifest.watermark == 0:
            return base
        state = await log.load_snapshot()
    except CodecError as error:
        part.note(log.shard, -1, f"shard {log.shard}: {error}")
        return base
    base.watermark = log.watermark
    for lane, held in state.lanes.items():
        part.take_lane(scope, lane, held.records, held.gaps)
        if scope.is_ours(lane.tenant, lane.stream):
            base.stated[lane.edge, format_log_id(lane.log_id)].update(held.records)
    base.ended = state.next_offset.get((scope.tenant, scope.stream), 0)
    return base


@dataclass
class Head:
    """Facts about a stream in the state at the end of a shard's log."""

    offsets: RangeSet = field(default_factory=RangeSet)
    """Offsets that operators skipped."""
    records: dict[LaneKey, RangeSet] = field(default_factory=lambda: defaultdict(RangeSet))
    """The records at those offsets."""
    open_gaps: list[NamedOpenGap] = field(default_factory=list)


async def read_head(log: ShardLog, scope: Scope) -> Head:
    """Return the skipped offsets and the open gaps; nothing if the log cannot be folded, which its own tasks report."""
    head = Head()
    with contextlib.suppress(CodecError, CollectedPast):
        state = await log.load(frozenset({(scope.tenant, scope.stream)}))
        head.open_gaps = open_gaps_of(state, scope.tenant, scope.stream)
        for skip in state.skips.get((scope.tenant, scope.stream), ()):
            head.offsets.add(skip.first, skip.end)
            for run in skip.runs:
                head.records[run.edge, format_log_id(run.log_id)].add(run.first, run.end)
    return head


async def log_tasks(log: ShardLog, first: int, part: Part) -> list[LogTask]:
    """Return the tasks for all chunks from ``first`` to the newest. Damage goes into ``part``.

    Raises:
        StoreError: the store did not answer.
    """
    end = await _end(log, first)
    if end - first > CHUNKS_MAX:
        part.note(
            log.shard, end, f"shard {log.shard}: {chunk_key(log.shard, end - 1)} stands far above the others; the "
            f"{CHUNKS_MAX} chunks from {first} on were compared"
        )  # fmt: skip
        end = first + CHUNKS_MAX
    return list(_runs(log.shard, first, end))


def _runs(shard: int, first: int, end: int) -> Iterator[LogTask]:
    for start in range(first, end, RUN_CHUNKS):
        yield LogTask(shard, start, min(start + RUN_CHUNKS, end))


async def _end(log: ShardLog, first: int) -> int:
    """Return the number after the newest chunk, at least ``first``. It is found by bisection, since a listing of all
    keys would take very many requests."""

    async def reaches(n: int) -> bool:
        """Return whether chunk n or a later one exists."""
        after = chunk_key(log.shard, n - 1) if n else None
        return bool(await log.store.list(chunk_prefix(log.shard), after=after, limit=1))

    low, step = first, 1
    while await reaches(low + step - 1):
        low, step = low + step, 2 * step
    high = low + step - 1
    while low < high:
        middle = (low + high) // 2
        if await reaches(middle):
            low = middle + 1
        else:
            high = middle
    return low
