"""Records of a stream by offset or by time, for people: decoded one by one, in bounded pages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import NamedTuple

from weft.cloud_hub.api.views import View, moment
from weft.protocols import batch as batches
from weft.protocols.batch import Flag
from weft.protocols.chunk import ChunkIndex, LaneUpdate, StreamSection, section_entries
from weft.protocols.columns import header_json
from weft.protocols.lane import format_log_id
from weft.protocols.origin import by_number, origin_text
from weft.protocols.payloads import PayloadKind, keeps
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.storage.chunk_log import ShardLog
from weft.storage.table.record_time import CLOCKS, BatchTimes, batch_times, known_clocks

CHUNKS_MAX = 64
"""Maximum number of chunks that one request reads after it has found a record in a shard."""
SEARCHED_MAX = 256
"""Maximum number of chunks that one request searches for the first record, in all shards together; slightly more than
the chunks between two snapshots of a busy shard."""

HEADER_BYTES = 16
"""Bytes of a header pair in an answer, beside name and value."""


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


class Search:
    """Budget of chunks that one request may search for the first records."""

    def __init__(self, left: int = SEARCHED_MAX) -> None:
        self.left = left

    def goes_on(self) -> bool:
        """Count a chunk without a result. Return whether the search may continue."""
        self.left -= 1
        return self.left > 0


class _Wanted(NamedTuple):
    offset: int
    limit: int
    bytes_max: int
    payload: PayloadKind


class RecordReader:
    """A reader of one shard's part of a stream in the store, independent of this node's memory."""

    def __init__(self, log: ShardLog, bytes_max: int) -> None:
        self._log = log
        self._bytes_max = bytes_max

    async def read(
        self, stream: StreamKey, offset: int, end: int, limit: int, *,
        payload: PayloadKind = PayloadKind.BYTES, chunk: int = 0, search: Search | None = None,
    ) -> Helping:  # fmt: skip
        """Return records ``[offset, end)``, at most ``limit`` and about ``bytes_max`` bytes of payload, at least one.

        The result may be empty if ``search`` reaches its bound.

        Args:
            end: the stream's next offset in this shard: never read beyond what is committed.
            payload: the stream's payload kind.
            chunk: number of a chunk; the offset is not in an earlier one.
            search: budget for the search of the first record.

        Raises:
            StoreError, NotFound, Corrupt: the log cannot be read.
        """
        found: list[View] = []
        if offset >= end:
            return Helping(found, offset)
        search = search or Search()
        left, looked_at, began = self._bytes_max, 0, offset
        async for each in self._log.indexes(max(chunk, await self._log.locate(*stream, offset))):
            section = _section(each.footer, stream)
            if section is not None and section.base_offset > offset == began and chunk:
                # The given chunk is too late: the offset is in an earlier one, so read without it.
                return await self.read(stream, offset, end, limit, payload=payload, search=search)
            if section is not None and section.base_offset + section.count > offset:
                data = await self._log.section(each.header.n, section)
                wanted = _Wanted(offset, limit - len(found), left, payload)
                helping = await asyncio.to_thread(_decode, section, data, each.footer, wanted)
                found += helping.records
                offset = helping.next_offset
                left -= sum(len(record["key"]) + record.pop("_bytes") for record in helping.records)
            looked_at += bool(found)
            if offset >= end or len(found) >= limit or left <= 0:
                break
            if looked_at >= CHUNKS_MAX or not (found or search.goes_on()):
                return Helping(found, offset, each.header.n + 1)
        if not found and chunk:
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
        low = await self._first_chunk(head, since) if chunk is None else max(chunk, await self._watermark())
        if low >= head:
            return Beginning(end, low)
        known = await self._log.around(*stream, low)
        until, offset = (head, end) if known.n is None else (known.n, known.end)
        if known.start == offset:
            return Beginning(offset, low)
        if search.left <= 0:
            return Beginning(None, low)
        async for each in self._log.indexes(low):
            section = _section(each.footer, stream)
            if section is not None:
                return Beginning(section.base_offset, each.header.n)
            if each.header.n >= until:
                break
            if not search.goes_on():
                return Beginning(None, each.header.n + 1)
        return Beginning(offset, low)

    async def _first_chunk(self, head: int, since: int) -> int:
        """Return the number of the first chunk made at or after a time; ``head`` if there is none."""
        low, high = await self._watermark(), head
        while low < high:
            middle = (low + high) // 2
            chunk = await self._log.index(middle)
            if chunk is None or chunk.header.created < since:
                low = middle + 1
            else:
                high = middle
        return low

    async def _watermark(self) -> int:
        return (await self._log.manifest())[0].watermark


def _section(footer: ChunkIndex, stream: StreamKey) -> StreamSection | None:
    return next((each for each in footer.streams if (each.tenant, each.stream) == stream), None)


def _decode(section: StreamSection, data: bytes, footer: ChunkIndex, wanted: _Wanted) -> Helping:
    offset, limit, bytes_max, payload = wanted
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
        for view in _views(records, lanes[entry.lane], section, _Taken(entry.received, times, origin), payload):
            view["offset"] = at
            found.append(view)
            at += 1
            bytes_max -= view["_bytes"] + len(view["key"])
            if len(found) >= limit or bytes_max <= 0:
                return Helping(found, at)
    return Helping(found, at)


class _Taken(NamedTuple):
    received: int
    times: BatchTimes
    origin: str | None


def _views(
    records: Iterator[batches.Record], lane: LaneUpdate, section: StreamSection, taken: _Taken, payload: PayloadKind
) -> Iterator[View]:
    for record in records:
        time, clock, stamp = taken.times.of(record.time, record.seq, taken.received)
        view: View = {
            "offset": 0,
            "edge": lane.edge,
            "log": format_log_id(lane.log_id),
            "stream": section.stream,
            "seq": record.seq,
            "time": moment(time),
            "clock": CLOCKS[clock],
            "received": moment(taken.received),
            "key": record.key.decode("utf-8", "replace"),
            "resent": bool(record.flags & Flag.DUPLICATE_SUSPECTED),
            "_bytes": len(record.payload)
            + sum(HEADER_BYTES + len(name) + _length(each) for name, each in record.headers),
        }
        if stamp is not None:
            view["edge_time"] = moment(stamp)
        if taken.origin is not None:
            view["origin"] = taken.origin
        # In a stream of JSON, this decides as the table does between `payload` and `_payload_bytes`.
        if keeps(max(payload, PayloadKind.TEXT), record.payload):
            view["payload"] = record.payload.decode()
        else:
            view["payload_base64"] = base64.b64encode(record.payload).decode()
        if record.headers:
            view["headers"] = [[name, header_json(value)] for name, value in record.headers]
        yield view


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 8
