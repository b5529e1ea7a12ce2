"""Offsets that an operator skips in a stream's table: their records cannot become rows (``weft hub skip``).

The log has the range as a SKIP record, with its records and the reason. Every hub node that makes rows skips it, and
completeness and audit report it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from weft.cloud_hub.shard.lane_ends import Ending
from weft.protocols.batch import decode_header
from weft.protocols.chunk import Chunk, Control, ControlKind, LaneUpdate, StreamSection, section_entries
from weft.protocols.errors import CodecError
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.protocols.shard.snapshot import SKIPPED_RUNS_MAX, SKIPS_MAX, SkipBody, SkippedRun
from weft.storage.chunk_log import ShardLog


class CannotSkip(Exception):
    """A range that cannot be skipped."""


async def skip(  # noqa: PLR0917
    state: ShardState, log: ShardLog, stream: StreamKey, first: int, end: int, reason: str
) -> Ending:
    """Plan to skip offsets ``[first, end)`` in a stream's table; nothing if they are skipped already.

    Raises:
        CannotSkip: the log does not have all of them, some are skipped already, or their records cannot be identified.
        StoreError, Corrupt: the log cannot be read.
    """
    log_end = state.next_offset.get(stream, 0)
    if not first < end <= log_end:
        raise CannotSkip(f"shard {log.shard} has offsets 0 to {log_end} of the stream, not {first} to {end}")
    known = state.skips.get(stream, [])
    if any(other.first <= first and end <= other.end for other in known):
        return Ending([], [])
    for other in known:
        if first < other.end and other.first < end:
            raise CannotSkip(f"offsets {other.first} to {other.end} are skipped already: leave them out")
    if len(known) >= SKIPS_MAX:
        raise CannotSkip(f"the stream has {SKIPS_MAX} skipped ranges, the most that are kept; skip longer ranges")
    runs = await _runs(log, stream, first, end)
    if len(runs) > SKIPPED_RUNS_MAX:
        raise CannotSkip(f"these offsets are {len(runs)} runs of records; skip at most {SKIPPED_RUNS_MAX} at a time")
    body = msgspec.msgpack.encode(SkipBody(first, end, reason, runs))
    return Ending([Control(ControlKind.SKIP, stream[0], "", 0, stream[1], body)], [])


async def _runs(log: ShardLog, stream: StreamKey, first: int, end: int) -> list[SkippedRun]:
    """Return the records of ``[first, end)``, neighbours joined. Chunks that the collector deleted say none: of these
    records only the offsets are known."""
    joined: list[SkippedRun] = []
    begin = max(await log.locate(*stream, first), log.watermark)
    async for chunk in log.indexes(begin, only=frozenset([stream])):
        for section in chunk.footer.streams:
            if (section.tenant, section.stream) != stream or section.base_offset + section.count <= first:
                continue
            if section.base_offset >= end:
                return joined
            for run in await _section_runs(log, chunk, section, first, end):
                last = joined[-1] if joined else None
                if last is not None and (last.edge, last.log_id, last.end) == (run.edge, run.log_id, run.first):
                    joined[-1] = msgspec.structs.replace(last, end=run.end)
                else:
                    joined.append(run)
            if section.base_offset + section.count >= end:
                return joined
    return joined


async def _section_runs(
    log: ShardLog, chunk: Chunk, section: StreamSection, first: int, end: int
) -> Iterable[SkippedRun]:
    after = section.base_offset + section.count
    if first <= section.base_offset and after <= end:
        # The index has all records of the section, which itself may be unreadable.
        return _indexed(chunk.footer.lanes_of(section), section)
    try:
        data = await log.section(chunk.header.n, section)
        return list(_entries(section, data, chunk.footer.lanes_of(section), first, end))
    except CodecError as error:
        raise CannotSkip(
            f"{error}. It does not say which of its records these are: skip all of them, offsets {section.base_offset} "
            f"to {after}"
        ) from error


def _indexed(lanes: Iterable[LaneUpdate], section: StreamSection) -> Iterator[SkippedRun]:
    for lane in lanes:
        if (lane.tenant, lane.stream) == (section.tenant, section.stream):
            for first, end in lane.ranges:
                yield SkippedRun(lane.edge, lane.log_id, first, end)


def _entries(
    section: StreamSection, data: bytes, lanes: Sequence[LaneUpdate], first: int, end: int
) -> Iterator[SkippedRun]:
    at = section.base_offset
    for entry in section_entries(section, data, lanes):
        start, stop = max(first, at), min(end, at + entry.take)
        if start < stop:
            # Offset and sequence number count up together within an entry.
            base = decode_header(entry.batch).base_seq + entry.skip - at
            lane = lanes[entry.lane]
            yield SkippedRun(lane.edge, lane.log_id, base + start, base + stop)
        at += entry.take
