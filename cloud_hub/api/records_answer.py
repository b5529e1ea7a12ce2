"""The answer of ``GET /v1/streams/{stream}/records``: some records of each shard, and where to go on."""

from __future__ import annotations

import sys

import msgspec
from aiohttp import web

from weft.cloud_hub.api.answers import LongAnswer, Part, integer, moment
from weft.cloud_hub.api.pages import encoded
from weft.cloud_hub.api.records import Beginning, RecordReader
from weft.cloud_hub.api.search import Search
from weft.cloud_hub.api.views import View
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.shard_state import ShardState, StreamKey

RECORDS_DEFAULT = 100
RECORDS_MAX = 10_000
"""Maximum number of records in one response."""
NUMBER_MAX = (1 << 63) - 1
"""Highest offset and number of a chunk."""


class RecordsAnswer:
    """The answer to one request, which is made shard by shard within one budget.

    Args:
        limit: most records of the answer.
        bytes_max: bytes of their payloads; one more record may go beyond.
    """

    def __init__(
        self, request: web.Request, stream: StreamKey, payload: PayloadKind, limit: int, bytes_max: int
    ) -> None:
        self._request, self._stream, self._payload, self._limit = request, stream, payload, limit
        self._search = Search(records_bytes=bytes_max)
        self._records: list[View] = []
        self._next_offset: dict[str, int] = {}
        self._next_chunk: dict[str, int] = {}
        self._next_shard: int | None = None

    def goes_on(self, shard: int) -> bool:
        """Return whether the request may read another shard. If not, the answer names it."""
        if self._search.looks_left > 0:
            return True
        self._next_shard = shard
        return False

    async def read(self, state: ShardState, reader: RecordReader) -> None:
        """Read a shard's part. Raises as ``RecordReader.read``."""
        shard, end = str(state.shard), state.next_offset.get(self._stream, 0)
        offset, chunk = await self._beginning(state, reader)
        if offset is None:
            self._next_chunk[shard] = chunk
            return
        if len(self._records) < self._limit and not self._search.is_spent:
            helping = await reader.read(
                self._stream, offset, end, self._limit - len(self._records),
                payload=self._payload, chunk=chunk, search=self._search,
            )  # fmt: skip
            self._records += [{"shard": state.shard, **record} for record in helping.records]
            offset = helping.next_offset
            if helping.next_chunk is not None:
                self._next_chunk[shard] = helping.next_chunk
        self._next_offset[shard] = offset

    async def _beginning(self, state: ShardState, reader: RecordReader) -> Beginning:
        request, search = self._request, self._search
        offset = integer(request, "offset", 0, 0, NUMBER_MAX)
        if "chunk" in request.query:
            chunk = integer(request, "chunk", 0, 0, NUMBER_MAX)
            if "offset" in request.query:
                return Beginning(offset, chunk)
            return await reader.first(state, self._stream, search, chunk=chunk)
        since = moment(request, "since")
        return Beginning(offset, 0) if since is None else await reader.first(state, self._stream, search, since=since)

    async def encode(self, more: View) -> LongAnswer:
        """Return the answer.

        Args:
            more: further members of it.
        """
        page = await encoded(self._records, lambda record: record, sys.maxsize)  # the reader bounds them
        head = msgspec.json.encode({"tenant": self._stream[0], "stream": self._stream[1]})[:-1] + b',"records":['
        rest: View = {"next_offset": self._next_offset, "next_chunk": self._next_chunk, **more}
        if self._next_shard is not None:
            rest["next_shard"] = self._next_shard
        parts: list[Part] = [head]
        for view in page.views:
            parts += (view, b",")
        if page.views:
            parts.pop()  # the last comma
        parts.append(b"]," + msgspec.json.encode(rest)[1:] + b"\n")
        return LongAnswer(parts)
