"""Records of a stream by offset or by time, for people: decoded one by one, in bounded pages.

What the log no longer has comes from the stream's table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from weft.cloud_hub.api.access import ApiError
from weft.cloud_hub.api.answers import integer
from weft.cloud_hub.api.record_views import Taken, record_views
from weft.cloud_hub.api.search import Search
from weft.cloud_hub.api.views import View
from weft.protocols import batch as batches
from weft.protocols.chunk import ChunkIndex, StreamSection, section_entries
from weft.protocols.origin import by_number, origin_text
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.placement import SHARDS_MAX
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.storage.chunk_log import CollectedPast, ShardLog
from weft.storage.every_shard import missing_shards
from weft.storage.table.record_time import batch_times, known_clocks

if TYPE_CHECKING:
    from weft.cloud_hub.api.history import Histories
    from weft.cloud_hub.api.streams.table_reading import Past
    from weft.storage.table.deletions import FollowedErasures

CHUNKS_MAX = 64
"""Maximum number of chunks that one request reads after it has found a record in a shard."""
SOON = "try again in a moment"
LOCATE_LOOKS = 8
"""Number of snapshots read to find an offset: they are halved, and few are kept."""


NOT_ERASED = RangeSet()


class Helping(NamedTuple):
    """A run of records of one shard, and where to continue."""

    records: list[View]
    next_offset: int
    next_chunk: int | None = None
    """Number of the chunk to continue from; None unless the bound on chunks ended the read."""


class Beginning(NamedTuple):
    """The place in a shard from which a request reads."""

    offset: int | None
    """None if the search for it has reached its bound."""
    chunk: int
    """Number of the chunk with the offset, or of an earlier one; without an offset, the chunk at which the search
    continues."""


class _Wanted(NamedTuple):
    offset: int
    limit: int
    bytes_max: int
    payload: PayloadKind
    erased: RangeSet = NOT_ERASED


def _no_history() -> Histories | None:
    return None


class RecordReader:
    """A reader of one shard's part of a stream in the store, independent of this node's memory.

    Args:
        bytes_max: bytes of payload of an answer.
        histories: returns the reader of tables, which imports what a node without tables does not need; None for none.
        erasures: what was erased, and is not read though chunks have it; None reads all.
    """

    def __init__(
        self,
        log: ShardLog,
        bytes_max: int,
        histories: Callable[[], Histories | None] = _no_history,
        erasures: FollowedErasures | None = None,
    ) -> None:
        self.log = log
        self._erasures = erasures
        self._bytes_max = bytes_max
        self.histories = histories

    async def erased(self, stream: StreamKey) -> RangeSet:
        """Return the offsets of the shard whose records were erased.

        Raises:
            StoreError: the store did not answer.
            TableError: a declaration of an erasure is damaged.
        """
        found = {} if self._erasures is None else await self._erasures.of(*stream)
        return found.get(self.log.shard, NOT_ERASED)

    async def read(
        self, stream: StreamKey, offset: int, end: int, limit: int, *,
        payload: PayloadKind = PayloadKind.BYTES, chunk: int = 0, search: Search | None = None,
    ) -> Helping:  # fmt: skip
        """Return records ``[offset, end)`` without erased ones, at most ``limit`` and about ``bytes_max`` bytes of
        payload, at least one.

        The result may be empty if ``search`` reaches its bound.

        Args:
            end: the stream's next offset in this shard: never read beyond what is committed.
            payload: the stream's payload kind.
            chunk: number of a chunk; the offset is not in an earlier one.
            search: budget of the request.

        Raises:
            StoreError, NotFound, Corrupt: the log cannot be read.
            CollectedPast: the log no longer has the records, and there is no table.
            TableError: the table with them, or a declared erasure, cannot be read.
        """
        if offset >= end:
            return Helping([], offset)
        erased = await self.erased(stream)
        search = search or Search(records_bytes=self._bytes_max)
        found: list[View] = []
        for may_repeat in (True, False):
            search.looks_left -= LOCATE_LOOKS
            n = max(chunk, await self.log.locate(*stream, offset))
            watermark = self.log.watermark  # as just read
            if n < watermark:
                past = await self._past(stream, (offset, end), limit - len(found), watermark, search)
                if past is not None:
                    search.gave(past.records)
                    found += past.records
                    offset, n, chunk = past.next_offset, watermark, 0
                    if not past.is_end or offset >= end or len(found) >= limit or search.is_spent:
                        return Helping(found, offset)
            wanted = _Wanted(offset, limit - len(found), 0, payload, erased)
            try:
                helping = await self._from_log(stream, wanted, end, n, search, is_given=bool(chunk))
            except CollectedPast:
                if not may_repeat:
                    raise
                continue  # the collector has gone on: the table has them now
            return helping._replace(records=[*found, *helping.records])
        raise AssertionError("the second attempt returns or raises")

    async def _past(
        self, stream: StreamKey, span: tuple[int, int], limit: int, watermark: int, search: Search
    ) -> Past | None:
        histories = self.histories()
        if histories is None:
            return None
        from weft.cloud_hub.api.streams.table_reading import PastPlace

        place = PastPlace(stream, self.log.shard, watermark, search)
        return await histories.records(place, span, limit, min(self._bytes_max, search.records_bytes))

    async def _from_log(
        self, stream: StreamKey, wanted: _Wanted, end: int, n: int, search: Search, *, is_given: bool
    ) -> Helping:
        """Return records from chunk ``n`` on.

        Args:
            is_given: whether the reader named the chunk, which may be too late.
        """
        found: list[View] = []
        offset, limit, _, payload, erased = wanted
        looked_at, began = 0, offset
        async for each in self.log.indexes(n, only=frozenset([stream])):
            section = _section(each.footer, stream)
            if section is not None and section.base_offset > offset == began and is_given:
                # The given chunk is too late: the offset is in an earlier one, so read without it.
                return await self.read(stream, offset, end, limit, payload=payload, search=search)
            if section is not None and section.base_offset + section.count > offset:
                if found and search.is_spent:
                    return Helping(found, offset, each.header.n)
                search.took(section.length)
                search.chunks_left -= 1
                data = await self.log.section(each.header.n, section)
                left = min(self._bytes_max, search.records_bytes)
                step = _Wanted(offset, limit - len(found), left, payload, erased)
                helping = await asyncio.to_thread(_decode, section, data, each.footer, step)
                found += helping.records
                offset = helping.next_offset
                search.gave(helping.records)
                self.log.offsets.ended(stream, offset, each.header.n)
            looked_at += bool(found)
            if offset >= end or len(found) >= limit or search.records_bytes <= 0:
                break
            if looked_at >= CHUNKS_MAX or not (found or search.goes_on()):
                return Helping(found, offset, each.header.n + 1)
        if not found and is_given and offset < end:
            return await self.read(stream, offset, end, limit, payload=payload, search=search)
        return Helping(found, offset)

    async def first(
        self, state: ShardState, stream: StreamKey, search: Search, *, since: int = 0, chunk: int | None = None
    ) -> Beginning:
        """Return the place of the first record that was committed at or after ``since`` (ns, the hub's clock).

        Chunks name only streams with records in them, so a search may pass many chunks of other streams. Snapshots have
        every stream: if two of them have the same offset of the stream, no chunk between them is read.

        Args:
            chunk: number of the first chunk, instead of ``since``.

        Raises:
            StoreError, Corrupt: the log cannot be read.
        """
        head, end = state.n + 1, state.next_offset.get(stream, 0)
        watermark = await self._watermark()
        search.looks_left -= 2
        if chunk is not None and chunk < watermark and self.histories() is not None:
            return Beginning((await self.log.around(*stream, chunk)).start, 0)  # collected since the answer before
        low = max(chunk or 0, watermark)
        if chunk is None:
            low = await self._first_chunk(stream, low, head, since, search)
            if low == watermark and watermark and end and (past := await self._past_since(stream, since, low, search)):
                return past
        if low >= head:
            return Beginning(end, low)
        known = await self.log.around(*stream, low)
        until, offset = (head, end) if known.n is None else (known.n, known.end)
        if known.start == offset:
            return Beginning(offset, low)
        if search.left <= 0:
            return Beginning(None, low)
        async for each in self.log.indexes(low, only=frozenset([stream])):
            section = _section(each.footer, stream)
            if section is not None:
                return Beginning(section.base_offset, each.header.n)
            if each.header.n >= until:
                break
            if not search.goes_on():
                return Beginning(None, each.header.n + 1)
        return Beginning(offset, low)

    async def _past_since(self, stream: StreamKey, since: int, watermark: int, search: Search) -> Beginning | None:
        """Return the place of the first record that only the table has, and that the hub received at or after a time;
        None without one."""
        histories = self.histories()
        if histories is None:
            return None
        from weft.cloud_hub.api.streams.table_reading import PastPlace

        offset = await histories.since(PastPlace(stream, self.log.shard, watermark, search), since)
        return None if offset is None else Beginning(offset, 0)

    async def _first_chunk(self, stream: StreamKey, low: int, head: int, since: int, search: Search) -> int:
        """Return the number of the first chunk from ``low`` on that was made at or after a time; ``head`` if there is
        none."""
        high = head
        while low < high:
            search.looks_left -= 1
            middle = (low + high) // 2
            chunk = await self.log.index(middle, frozenset([stream]))  # its header alone is looked at
            if chunk is None or chunk.header.created < since:
                low = middle + 1
            else:
                high = middle
        return low

    async def _watermark(self) -> int:
        return (await self.log.manifest())[0].watermark


def _section(footer: ChunkIndex, stream: StreamKey) -> StreamSection | None:
    return next((each for each in footer.streams if (each.tenant, each.stream) == stream), None)


def _decode(section: StreamSection, data: bytes, footer: ChunkIndex, wanted: _Wanted) -> Helping:
    offset, limit, bytes_max, payload, erased = wanted
    lanes, clocks = footer.lanes_of(section), known_clocks(footer.clocks_of(section))
    found: list[View] = []
    at = section.base_offset
    for entry in section_entries(section, data, lanes):
        if at + entry.take <= offset:
            at += entry.take
            continue
        first = max(offset - at, 0)
        header = batches.decode_header(entry.batch)
        times = batch_times(header, lanes[entry.lane], clocks)
        origin = origin_text(header.origin, by_number(lanes[entry.lane].origins)) if header.origin else None
        records = batches.records(entry.batch, first=entry.skip + first, end=entry.skip + entry.take)
        at += first
        for view in record_views(records, lanes[entry.lane], section, Taken(entry.received, times, origin), payload):
            view["offset"] = at
            at += 1
            if erased and at - 1 in erased:
                continue
            found.append(view)
            bytes_max -= view["_bytes"] + len(view["key"])
            if len(found) >= limit or bytes_max <= 0:
                return Helping(found, at)
    return Helping(found, at)


class ShardsView(NamedTuple):
    """The shards for one request. The states change with the next await."""

    readers: dict[int, RecordReader]
    states: list[ShardState]
    """States of the readable shards."""
    missing: dict[int, str]
    """Numbers of the unreadable shards, with the reasons."""

    def number(self, request: web.Request, name: str) -> int:
        """Return the number of a shard from the query; 0 without one.

        Raises:
            ApiError: 400; 503 if this process knows no such shard, which a split may have made a moment ago.
        """
        shard = integer(request, name, 0, 0, SHARDS_MAX - 1)
        if shard not in self.readers and shard not in self.missing:
            raise ApiError(503, f"shard {shard} is not known here", f"{SOON}; GET /v1/streams/NAME has the shards")
        return shard

    def missing_view(self) -> View:
        """Return the part of a response that names the missing shards; nothing if all are there."""
        if not self.missing:
            return {}
        return {"missing_shards": [{"shard": shard, "trouble": why} for shard, why in self.missing.items()]}

    def unclaimed(self, view: View) -> View:
        """Return a view without a claim of completeness while a shard is missing: the shard may hold lanes of the
        stream."""
        # Also after the answer was made: a chunk may have moved lanes away from a shard before they were looked at.
        return {**view, "complete_up_to": None} if self.missing or missing_shards(self.states) else view
