"""Rows of a stream as Arrow, for programs: the columns of tables, from the hub's log, in bounded pieces. Rows that the
log no longer has come from the stream's table.

A reader of them needs a token of its tenant, and no key of the store, which would open the records of all tenants.
People with a terminal get a few of them as JSON.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from weft.cloud_hub.reads.history import PastPlace, RowsAsked, rows_within
from weft.cloud_hub.reads.records import RecordReader
from weft.cloud_hub.reads.views import Part, Search, finished, with_members
from weft.hub_api.answers import moment
from weft.hub_api.records import JSON_ROWS_MAX, RowsAnswer
from weft.protocols.chunk_index import ChunkIndex, StreamKey, StreamSection
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.payloads import PAYLOAD_BYTES_MAX, PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import NOTHING
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import CollectedPast
from weft.storage.table.rows import BYTES_COLUMN, RowsOf, payload_columns, row_schema, rows_of, usable_fields
from weft.storage.table.schemas import StreamSchema
from weft.storage.table.typed_columns import SINCE, declared_part

JSON_BYTES_MAX = 1 << 20
"""Longest answer as JSON, whose values are objects of Python one by one."""
BATCH_ROWS_MAX = 8 << 10
"""Maximum number of rows that are made in one step of a thread."""
ATTEMPTS_MAX = 3
"""Maximum number of attempts of an answer to begin in the log: the collector may delete chunks while it is made."""


class RowsRequest(NamedTuple):
    """Rows of one shard that a request asks for."""

    stream: StreamKey
    payload: PayloadKind
    offset: int | None
    """None for the first that the log still has, from ``chunk`` on if that is given."""
    chunk: int | None
    """Number of a chunk from which on the offset is, as an answer before said; it may be wrong."""
    limit: int
    is_json: bool = False
    """True for a look: fewer rows, as JSON."""
    schema: StreamSchema | None = None
    """Schema whose columns the rows have, too."""


class RowsPage(NamedTuple):
    """Rows of an answer, and where to continue."""

    parts: list[Part]
    """The rows: as JSON, if that was asked for, and else as a stream of Arrow."""
    next_offset: int | None
    """None while the search for the first row continues."""
    next_chunk: int | None
    end: int
    """End of the shard when the request came."""


class _Made(NamedTuple):
    batches: list[pa.RecordBatch]
    next_offset: int
    size: int


async def rows_answer(
    reader: RecordReader, states: Sequence[ShardState], wanted: RowsRequest, bytes_max: int
) -> RowsPage:
    """Return rows of one shard from log and table without erased ones, at least one if it has some, unless the search
    for it reached its bound.

    Args:
        states: those of all shards, of which the columns are made, and the topic levels of lanes that moved; with that
            of the reader's.
        bytes_max: bytes of the rows; one row may go beyond.

    Raises:
        StoreError, NotFound, Corrupt: the log cannot be read.
        CollectedPast: the log no longer has the records, and there is no table.
        TableError: the table with them, or a declaration of an erasure, cannot be read.
    """
    log = reader.log
    state = next(each for each in states if each.shard == log.shard)
    fields = usable_fields(name for each in states for name in each.stream_fields(*wanted.stream))
    end = state.next_offset.get(wanted.stream, 0)
    if wanted.is_json:
        wanted, bytes_max = wanted._replace(limit=min(wanted.limit, JSON_ROWS_MAX)), min(bytes_max, JSON_BYTES_MAX)
    if wanted.offset is None:
        first = await RecordReader(log, bytes_max).first(state, wanted.stream, Search(), chunk=wanted.chunk or 0)
        wanted = wanted._replace(offset=first.offset, chunk=first.chunk)
    offset, next_chunk = wanted.offset, wanted.chunk
    reading = _Reading(reader, [state, *states], wanted, fields, bytes_max)
    reading.erased = await reader.erased(wanted.stream)
    if offset is not None and offset < end and wanted.limit:
        next_chunk = await reading.read(offset, end)
        offset = reading.next_offset
    if wanted.is_json:
        parts = await asyncio.to_thread(_as_json, reading.batches, RowsAnswer([], offset, next_chunk, end))
    else:
        parts = [await asyncio.to_thread(_encoded, reading.schema, reading.batches)]
    return RowsPage(parts, offset, next_chunk, end)


class _Reading:
    """One request's reading of a shard.

    Args:
        states: that of the shard first, then all.
    """

    def __init__(
        self,
        reader: RecordReader,
        states: Sequence[ShardState],
        wanted: RowsRequest,
        fields: Sequence[str],
        bytes_max: int,
    ) -> None:
        self.erased = RangeSet()
        """Offsets whose rows are left out."""
        self._log, self._histories, self._wanted, self._fields = reader.log, reader.histories, wanted, fields
        self._states = states
        self._rows_left, self._bytes_left = wanted.limit, bytes_max
        self._search = Search()
        self.batches: list[pa.RecordBatch] = []
        self.next_offset = wanted.offset or 0
        self.schema, self._typed = row_schema(fields, wanted.payload), None
        """Columns of the rows; typed ones with the version of their schema."""
        if wanted.schema is not None:
            self._typed = declared_part(wanted.schema, fields)
            self.schema = pa.schema([*self.schema, *self._typed.fields], {SINCE: str(wanted.schema.version)})
        self._is_behind_table = False
        """True when the log is read from its beginning, after the last row of the table."""

    async def read(self, offset: int, end: int) -> int | None:
        """Read rows of ``[offset, end)``. Return the number of the chunk to continue from; None if it is not known."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await self._from_log(max(offset, self.next_offset), end)
            except CollectedPast:  # before this answer, or while it is made
                if attempt == ATTEMPTS_MAX or not await self._take_past(end):
                    raise
            if self.batches or not self._is_behind_table or self.next_offset >= end:
                return None
        raise AssertionError("the last attempt returns or raises")

    async def _take_past(self, end: int) -> bool:
        """Read rows that the log no longer has. Return whether there is a table."""
        histories, stream = self._histories(), self._wanted.stream
        if histories is None:
            return False
        watermark = (await self._log.manifest())[0].watermark
        columns = [*row_schema(self._fields, self._wanted.payload).names, BYTES_COLUMN]  # typed ones are made again
        past = await histories.rows(
            PastPlace(stream, self._log.shard, watermark, self._search),
            (self.next_offset, end),
            self._rows_left,
            self._bytes_left,
            RowsAsked(columns, self._conformed),
        )
        if past is None:
            return False
        self.batches += past.rows.to_batches()
        self.next_offset, self._is_behind_table = past.next_offset, past.is_end
        if past.is_end:
            # What operators took out may be between the table's last row and the log's first record.
            begin = (await self._log.around(*stream, watermark)).start
            self.next_offset = min(max(past.next_offset, begin), end)
            self._wanted = self._wanted._replace(chunk=watermark)
        return True

    def _conformed(self, rows: pa.Table, payload: PayloadKind) -> pa.Table:
        """Return rows of the table as the log's are made."""
        there = {name.casefold(): name for name in rows.schema.names}
        made = {} if payload is self._wanted.payload else payload_columns(_payloads(rows), self._wanted.payload)
        if self._typed is not None and self._typed.rows is not None:
            made |= self._typed.rows.arrays(_payloads(rows))
        found = pa.table(
            [
                made[each.name]
                if each.name in made
                else rows.column(there[each.name.casefold()]).cast(each.type)
                if each.name.casefold() in there
                else pa.nulls(rows.num_rows, each.type)
                for each in self.schema
            ],
            self.schema,
        )
        gone = [offset for part in self.erased.within(*_span(found)) for offset in range(*part)]
        return found.filter(pc.invert(pc.is_in(found["_offset"], pa.array(gone, pa.int64())))) if gone else found

    async def _from_log(self, offset: int, end: int) -> int:
        only = frozenset([self._wanted.stream])
        given = self._wanted.chunk
        n = await self._log.locate(*self._wanted.stream, offset) if given is None else given
        at = n
        async for each in self._log.indexes(n, only=only):
            at = each.header.n
            section = each.footer.section_of(self._wanted.stream)
            if section is None or section.base_offset + section.count <= offset:
                if not self._search.continues():
                    self.next_offset = offset
                    return at + 1
                continue
            if section.base_offset > offset and self._is_behind_table and not self.batches:
                offset = section.base_offset
            if section.base_offset > offset:
                if given is None or self.batches:
                    raise Corrupt(
                        f"chunk {at} of shard {self._log.shard} begins at offset {section.base_offset} of "
                        f"{section.stream}, and the one before it ended at {offset}"
                    )
                # The given chunk is too late: the offset is in an earlier one.
                self._wanted = self._wanted._replace(chunk=None)
                return await self._from_log(offset, end)
            self._search.took(section.length)
            self._search.chunks_left -= 1
            data = await self._log.section(at, section)
            made = await asyncio.to_thread(self._rows, each.footer, section, data, offset, end)
            self.batches += made.batches
            self._rows_left -= sum(batch.num_rows for batch in made.batches)
            self._bytes_left -= made.size
            offset = self.next_offset = made.next_offset
            # A cut section ends the answer also if some bytes are left: its next row does not fit into them.
            if offset < section.base_offset + section.count:
                return at
            if offset >= end or self._rows_left <= 0 or self._bytes_left <= 0 or self._search.is_spent:
                return at + 1
        if not self.batches and given is not None and not self._is_behind_table:
            self._wanted = self._wanted._replace(chunk=None)
            return await self._from_log(offset, end)
        return at + 1

    def _rows(self, footer: ChunkIndex, section: StreamSection, data: bytes, offset: int, end: int) -> _Made:
        """Make rows of one section until the bounds of the answer are reached."""
        rows = RowsOf(section, data, footer.lanes_of(section), footer.clocks_of(section))
        made: list[pa.RecordBatch] = []
        rows_left, bytes_left = self._rows_left, self._bytes_left
        section_end = min(end, section.base_offset + section.count)
        for batch in rows_of(
            [rows],
            self._log.shard,
            self._fields,
            self._topics,
            offset,
            section_end,
            payload=self._wanted.payload,
            rows_max=BATCH_ROWS_MAX,
            typed=self._typed,
        ):
            # The table is free of these rows at once, the log only after its retention: both must answer alike.
            kept = _without(batch, self.erased)
            if not kept.num_rows:
                continue
            taken = kept.slice(0, min(rows_left, rows_within(kept, bytes_left)))
            made.append(taken)
            rows_left -= taken.num_rows
            bytes_left -= taken.nbytes
            if taken.num_rows < kept.num_rows or rows_left <= 0 or bytes_left <= 0:
                last = taken.column("_offset")[taken.num_rows - 1].as_py()
                return _Made(made, last + 1, self._bytes_left - bytes_left)
        return _Made(made, section_end, self._bytes_left - bytes_left)

    def _topics(self, lane: Lane) -> Sequence[str]:
        # A split may have moved the lane to another shard since the record was written.
        held = next((state.lanes[lane] for state in self._states if lane in state.lanes), NOTHING)
        return held.topics


def _without(batch: pa.RecordBatch, erased: RangeSet) -> pa.RecordBatch:
    """Return a batch of consecutive offsets without those that were erased."""
    if not batch.num_rows or not erased:
        return batch
    first = batch.column("_offset")[0].as_py()
    gone = erased.within(first, first + batch.num_rows)
    if not gone:
        return batch
    kept = RangeSet([(first, first + batch.num_rows)]).minus(gone)
    places = [at for low, high in kept for at in range(low - first, high - first)]
    return batch.take(pa.array(places, pa.int64()))


def _span(rows: pa.Table) -> tuple[int, int]:
    """Return the lowest offset of rows, and that behind the highest."""
    known = pc.min_max(rows["_offset"]).as_py()
    return known["min"], known["max"] + 1


def _payloads(rows: pa.Table) -> pa.Array:
    """Return the payloads of rows of a table as they were sent, from whichever column has them."""
    payloads = rows.column("payload").cast(pa.binary())
    if BYTES_COLUMN in rows.schema.names:
        payloads = pc.coalesce(payloads, rows.column(BYTES_COLUMN).cast(pa.binary()))
    return payloads.combine_chunks()


def _encoded(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _as_json(batches: Sequence[pa.RecordBatch], answer: RowsAnswer) -> list[Part]:
    members: list[Part] = []
    for row in (row for batch in batches for row in _views(batch)):
        members += (b"," if members else b"", msgspec.json.encode(row))
    return with_members(answer, "rows", members)


def _views(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows by the names of their columns, without those that are null."""
    rows: list[dict[str, Any]] = [{} for _ in range(batch.num_rows)]
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_time = pa.types.is_timestamp(column.type) and column.type.tz is not None
        values = (column.cast(pa.int64()) if is_time else column).to_pylist()
        for row, value in zip(rows, values, strict=True):
            if isinstance(value, bytes):
                _add_bytes(row, name, value)
            elif value is not None:
                row[name] = moment(value * 1000) if is_time else value
    return list(map(finished, rows)) if batch.nbytes > PAYLOAD_BYTES_MAX else rows


def _add_bytes(row: dict[str, Any], name: str, value: bytes) -> None:
    try:
        row[name] = value.decode()
    except UnicodeDecodeError:
        row[f"{name}_base64"] = base64.b64encode(value).decode()
