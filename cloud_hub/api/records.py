"""Records of a stream by offset or by time, for people: decoded one by one, in bounded pages."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import NamedTuple

from weft.cloud_hub.api.views import View, moment
from weft.protocols import batch as batches
from weft.protocols.batch import Flag
from weft.protocols.chunk import ChunkFooter, LaneUpdate, StreamSection, section_entries
from weft.protocols.columns import header_json
from weft.protocols.lane import format_log_id
from weft.protocols.origin import by_number, origin_text
from weft.protocols.payloads import PayloadKind, keeps
from weft.protocols.shard.shard_state import ShardState, StreamKey
from weft.storage.chunk_log import ShardLog
from weft.storage.table.record_time import CLOCKS, BatchTimes, batch_times, known_clocks

CHUNKS_MAX = 64
"""Maximum number of chunks that one request reads after it has found a record; before that, there is no bound."""


HEADER_BYTES = 16
"""Bytes of a header pair in an answer, beside name and value."""


class Helping(NamedTuple):
    """A run of records of one shard, and the offset to continue from."""

    records: list[View]
    next_offset: int


class _Wanted(NamedTuple):
    offset: int
    limit: int
    bytes_max: int
    payload: PayloadKind


class RecordReader:
    """A reader of one shard's part of a stream in the store, whatever this node holds in memory."""

    def __init__(self, log: ShardLog, bytes_max: int) -> None:
        self._log = log
        self._bytes_max = bytes_max

    async def read(
        self, stream: StreamKey, offset: int, end: int, limit: int, *, payload: PayloadKind = PayloadKind.BYTES
    ) -> Helping:
        """Return records ``[offset, end)``, at most ``limit`` and about ``bytes_max`` bytes of payload, at least one.

        Args:
            end: the stream's next offset in this shard: never read beyond what is committed.
            payload: the stream's payload kind.

        Raises:
            StoreError, NotFound, Corrupt: the log cannot be read.
        """
        found: list[View] = []
        if offset >= end:
            return Helping(found, offset)
        left = self._bytes_max
        looked_at = 0
        async for chunk in self._log.indexes(await self._log.locate(*stream, offset)):
            looked_at += bool(found)
            section = next((s for s in chunk.footer.streams if (s.tenant, s.stream) == stream), None)
            if section is not None and section.base_offset + section.count > offset:
                data = await self._log.section(chunk.header.n, section)
                wanted = _Wanted(offset, limit - len(found), left, payload)
                helping = await asyncio.to_thread(_decode, section, data, chunk.footer, wanted)
                found += helping.records
                offset = helping.next_offset
                left -= sum(len(record["key"]) + record.pop("_bytes") for record in helping.records)
            if offset >= end or len(found) >= limit or left <= 0 or looked_at >= CHUNKS_MAX:
                break
        return Helping(found, offset)

    async def offset_at(self, state: ShardState, tenant: str, stream: str, since: int) -> int:
        """Return the offset of the first record committed at or after ``since`` (ns, the hub's clock).

        Raises:
            StoreError, Corrupt: the log cannot be read.
        """
        head = state.n + 1
        end = state.next_offset.get((tenant, stream), 0)
        low, high = (await self._log.manifest())[0].watermark, head
        while low < high:
            middle = (low + high) // 2
            chunk = await self._log.index(middle)
            if chunk is None or chunk.header.created < since:
                low = middle + 1
            else:
                high = middle
        if low < head:
            async for chunk in self._log.indexes(low):
                for section in chunk.footer.streams:
                    if (section.tenant, section.stream) == (tenant, stream):
                        return section.base_offset
        return end


def _decode(section: StreamSection, data: bytes, footer: ChunkFooter, wanted: _Wanted) -> Helping:
    offset, limit, bytes_max, payload = wanted
    lanes, clocks = footer.lanes, known_clocks(footer.clocks)
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
        # In a stream of JSON this is where the table has a payload: in `payload`, or in `_payload_bytes`.
        if keeps(max(payload, PayloadKind.TEXT), record.payload):
            view["payload"] = record.payload.decode()
        else:
            view["payload_base64"] = base64.b64encode(record.payload).decode()
        if record.headers:
            view["headers"] = [[name, header_json(value)] for name, value in record.headers]
        yield view


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else 8
