"""The way of one record: from its lane and number to its offset, its chunk, and its row in a file of the table; and
from an offset back to the device's message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from weft.cloud_hub.api.access import ApiError
from weft.cloud_hub.api.answers import integer
from weft.cloud_hub.api.records import RecordReader, ShardsView
from weft.cloud_hub.api.records_answer import NUMBER_MAX
from weft.cloud_hub.api.search import Search
from weft.cloud_hub.api.views import View, gap_views
from weft.protocols import batch as batches
from weft.protocols.chunk import ChunkIndex, StreamSection, section_entries
from weft.protocols.lane import Lane
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import StreamKey, lane_of
from weft.storage import hub_keys

if TYPE_CHECKING:
    from weft.cloud_hub.api.streams.table_reading import PastPlace


ADVICE = "name a record by edge, log and seq, or by shard and offset"


class RecordPlace(NamedTuple):
    """The place of a record, or where the search for it goes on."""

    offset: int | None
    """None if it was not found."""
    chunk: int = 0
    """Number of a chunk: the offset is not in an earlier one."""
    next_chunk: int | None = None
    """Number of the chunk to search from in another request; None at the end."""


def standing(held: LaneState | None, seq: int) -> View:
    """Return what the hub knows of a number of a lane, which is the lane's word and no look at the records."""
    if held is None:
        return {"standing": "unknown"}
    if gap := next((each for each in held.gaps if each.first <= seq < each.end), None):
        return {"standing": "never_comes", "gap": gap_views([gap])[0]}
    return {"standing": "here" if seq in held.ranges else "to_come"}


async def trace_answer(request: web.Request, shards: ShardsView, stream: StreamKey, payload: PayloadKind) -> View:
    """Return the answer of ``GET /v1/streams/{stream}/trace``.

    Raises:
        ApiError: 400.
        StoreError, NotFound, Corrupt, CollectedPast, TableError: what was asked for cannot be read.
    """
    search = Search()
    states = {state.shard: state for state in shards.states}
    chunk = integer(request, "chunk", 0, 0, NUMBER_MAX) if "chunk" in request.query else None
    answer: View = {"tenant": stream[0], "stream": stream[1], "standing": "unknown", "record": None, "chunk": None,
                    "row": None, "next_chunk": None, "next_shard": None}  # fmt: skip
    if "offset" in request.query:
        if "shard" not in request.query:
            raise ApiError(400, "shard= is missing beside offset=", ADVICE)
        shard = shards.number(request, "shard")
        if shard in states:
            place = RecordPlace(integer(request, "offset", 0, 0, NUMBER_MAX), chunk or 0)
            tracing = ShardTrace(shards.readers[shard], stream, states[shard].next_offset.get(stream, 0), search)
            answer |= await tracing.follow(shard, place, payload)
            if answer["next_shard"] is None and answer["record"] is None and (place.offset or 0) < tracing.end:
                answer["standing"] = "gone"
        return answer | shards.missing_view()
    lane, seq = _lane(request, stream)
    wanted = _shards_of(shards, lane)
    answer |= standing(next((states[each].lanes[lane] for each in wanted if lane in states[each].lanes), None), seq)
    if "from_shard" in request.query:
        begin = shards.number(request, "from_shard")
        wanted = wanted[wanted.index(begin) :] if begin in wanted else []
    for shard in wanted:
        if search.is_spent or search.left <= 0:
            return answer | {"next_shard": shard} | shards.missing_view()
        tracing = ShardTrace(shards.readers[shard], stream, states[shard].next_offset.get(stream, 0), search)
        place, chunk = await tracing.find(lane, seq, chunk), None
        if place.next_chunk is not None:
            return answer | {"next_chunk": place.next_chunk, "next_shard": shard} | shards.missing_view()
        if place.offset is not None:
            return answer | await tracing.follow(shard, place, payload) | shards.missing_view()
    if answer["standing"] == "here" and not shards.missing:
        answer["standing"] = "gone"
    return answer | shards.missing_view()


def _lane(request: web.Request, stream: StreamKey) -> tuple[Lane, int]:
    missing = [name for name in ("edge", "log", "seq") if name not in request.query]
    if missing:
        raise ApiError(400, f"{missing[0]}= is missing", ADVICE)
    return Lane(stream[0], request.query["edge"], int(request.query["log"], 16), stream[1]), integer(
        request, "seq", 0, 0, NUMBER_MAX
    )


def _shards_of(shards: ShardsView, lane: Lane) -> list[int]:
    """Return the shards that may have a lane's records: that which holds it, and those before it that were split. All
    with the stream if none holds it."""
    states = {state.shard: state for state in shards.states}
    holder = max((shard for shard, state in states.items() if lane in state.lanes), default=None)
    may_have = states if holder is None else [each for each in shards.readers[holder].log.lineage if each in states]
    stream = lane.tenant, lane.stream
    return [shard for shard in may_have if shard == holder or states[shard].next_offset.get(stream)]


class ShardTrace:
    """A search for one record in one shard, within the budget of a request.

    Args:
        end: the stream's next offset in the shard.
    """

    def __init__(self, reader: RecordReader, stream: StreamKey, end: int, search: Search) -> None:
        self._reader, self._log, self._stream, self._search = reader, reader.log, stream, search
        self.end = end

    async def find(self, lane: Lane, seq: int, chunk: int | None) -> RecordPlace:
        """Return the place of a number of a lane: first as the table has it, then in the log behind the table.

        Args:
            chunk: number of the chunk to search from, which an answer named.

        Raises:
            StoreError, NotFound, Corrupt, CollectedPast: the log cannot be read.
            TableError: the table cannot be read, or too many of its files may have the number.
        """
        tabled = 0
        histories = self._reader.histories()
        watermark = (await self._log.manifest())[0].watermark
        if histories is not None and chunk is None:
            found = await histories.find(self._past(watermark), lane, seq)
            if found.offset is not None:
                return RecordPlace(found.offset)
            tabled = found.end
        if tabled >= self.end:
            return RecordPlace(None)
        n = max(chunk or 0, watermark, await self._log.locate(*self._stream, tabled))
        async for each in self._log.indexes(n, only=frozenset([self._stream])):
            told = [update.ranges for update in each.footer.lanes if lane_of(update) == lane]
            if any(first <= seq < end for ranges in told for first, end in ranges):
                for section in _sections(each.footer, self._stream):
                    data = await self._log.section(each.header.n, section)
                    self._search.took(section.length)
                    offset = await asyncio.to_thread(_offset_in, section, data, each.footer, (lane, seq))
                    if offset is not None:
                        return RecordPlace(offset, each.header.n)
            if not self._search.goes_on() or self._search.is_spent:
                return RecordPlace(None, 0, each.header.n + 1)
        return RecordPlace(None)

    async def follow(self, shard: int, place: RecordPlace, payload: PayloadKind) -> View:
        """Return the record at an offset, the chunk that has it, and its row."""
        offset = place.offset
        assert offset is not None
        found = await self._reader.read(
            self._stream, offset, min(offset + 1, self.end), 1, payload=payload, chunk=place.chunk, search=self._search
        )
        # A read goes on behind what retention removed, and answers the records there.
        if not found.records or found.records[0]["offset"] != offset:
            goes_on = None if found.next_chunk is None or found.records else shard
            return {"next_chunk": None if goes_on is None else found.next_chunk, "next_shard": goes_on}
        chunk = await self._chunk(offset, place.chunk)
        histories = self._reader.histories()
        row = None if histories is None else await histories.row(self._past(self._log.watermark), offset)
        return {
            "standing": "here",
            "record": {"shard": shard, **found.records[0]},
            "chunk": None if chunk is None else {"shard": shard, "n": chunk, "key": hub_keys.chunk_key(shard, chunk)},
            "row": None if row is None else row._asdict(),
        }

    async def _chunk(self, offset: int, chunk: int) -> int | None:
        """Return the number of the chunk with an offset; None if the log no longer has it."""
        n = max(chunk, await self._log.locate(*self._stream, offset))
        n = max(n, self._log.watermark)
        async for each in self._log.indexes(n, only=frozenset([self._stream])):
            for section in _sections(each.footer, self._stream):
                if section.base_offset > offset:
                    return None
                if offset < section.base_offset + section.count:
                    return each.header.n
            if not self._search.goes_on():
                break
        return None

    def _past(self, watermark: int) -> PastPlace:
        from weft.cloud_hub.api.streams.table_reading import PastPlace

        return PastPlace(self._stream, self._log.shard, watermark, self._search)


def _sections(footer: ChunkIndex, stream: StreamKey) -> list[StreamSection]:
    return [each for each in footer.streams if (each.tenant, each.stream) == stream]


def _offset_in(section: StreamSection, data: bytes, footer: ChunkIndex, wanted: tuple[Lane, int]) -> int | None:
    """Return the offset of a number of a lane in a section; None if it is not there."""
    (lane, seq), lanes, at = wanted, footer.lanes_of(section), section.base_offset
    for entry in section_entries(section, data, lanes):
        first = batches.decode_header(entry.batch).base_seq + entry.skip
        if lane_of(lanes[entry.lane]) == lane and first <= seq < first + entry.take:
            return at + seq - first
        at += entry.take
    return None
