"""Table rows from sections of chunks: the one place where log bytes become Arrow.

The table step and the Spark source both use this module, so a record looks the same in the log's tail and in the table.
Payloads are wrapped, not copied, if a batch is large enough for a record batch of its own; nothing here runs per record
in Python, only per batch and per distinct key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import zstandard

from weft.protocols.batch import Buffer, decode_columns, decode_header
from weft.protocols.chunk import ClockUpdate, LaneUpdate, SectionEntry, StreamSection, section_entries
from weft.protocols.origin import by_number, origin_text
from weft.protocols.payloads import PayloadKind
from weft.protocols.shard.lane_state import lane_of
from weft.storage.table.columns import (
    BYTES_MAX,
    HEADERS,
    ORIGIN_COLUMN,
    ROWS_MAX,
    TIMESTAMP,
    TOMBSTONE_COLUMN,
    VECTOR_CHECKS,
    Piece,
    RowBuilder,
)
from weft.storage.table.costs import RowCosts
from weft.storage.table.levels import Levels, Topics
from weft.storage.table.payload_columns import BYTES_COLUMN, payload_fields
from weft.storage.table.record_time import BootKey, batch_times, known_clocks
from weft.storage.table.typed_columns import OWN_COLUMNS
from weft.storage.table.typed_rows import ROWS_MAX as TYPED_ROWS_MAX
from weft.storage.table.typed_rows import TypedPart

_BEFORE = (
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_shard", pa.int32(), nullable=False),
    pa.field("_edge", pa.string(), nullable=False),
    pa.field("_log", pa.string(), nullable=False),
    pa.field("_seq", pa.int64(), nullable=False),
    pa.field("_time", TIMESTAMP, nullable=False),
    pa.field("_clock", pa.string(), nullable=False),
    pa.field("_received", TIMESTAMP, nullable=False),
    pa.field("_key", pa.string(), nullable=False),
)
_AFTER = (
    pa.field("_resent", pa.bool_(), nullable=False),
    pa.field("_headers", HEADERS),
    pa.field("_edge_time", TIMESTAMP),
    pa.field(ORIGIN_COLUMN, pa.string()),
)

FIXED_COLUMNS = frozenset(
    {*(field.name for field in (*_BEFORE, *_AFTER, *OWN_COLUMNS)), "payload", BYTES_COLUMN, TOMBSTONE_COLUMN}
)
"""Columns that are not topic levels, for any kind of payload."""
LEVELS_MAX = 512
"""Maximum number of named topic levels that become columns of one stream."""


def row_schema(fields: Sequence[str], payload: PayloadKind = PayloadKind.BYTES) -> pa.Schema:
    """Return the columns of a stream's table and of its tail.

    Args:
        fields: the stream's named topic levels, from ``usable_fields``.
        payload: the stream's payload kind.
    """
    return pa.schema(
        [*_BEFORE, *(pa.field(name, pa.string()) for name in fields), *_AFTER, *payload_fields(payload)],
    )


def usable_fields(told: Iterable[str], columns: Collection[str] = ()) -> list[str]:
    """Return the named topic levels that become columns, among those declared by edges, in their order.

    Spark and Delta treat column names that differ only in case as one column: the first spelling names it, and it has
    the values of all of them. A level with the name of a fixed column gets no column, nor do levels beyond
    ``LEVELS_MAX``. Their values remain readable in ``_key``.

    Args:
        columns: columns of an existing table; its spelling takes precedence, and its columns are not returned.
    """
    others = {name.casefold() for name in columns} - FIXED_COLUMNS
    taken = others | FIXED_COLUMNS
    names: list[str] = []
    for name in told:
        if name.casefold() not in taken and len(others) + len(names) < LEVELS_MAX:
            taken.add(name.casefold())
            names.append(name)
    return names


class RowsOf(NamedTuple):
    """A section whose records become rows."""

    section: StreamSection
    data: Buffer
    """The section's bytes, checked against its CRC before."""
    lanes: Sequence[LaneUpdate]
    """``lanes_of`` the section in the index of its chunk."""
    clocks: Iterable[ClockUpdate] = ()
    """``clocks_of`` the section in that index."""


def rows_of(  # noqa: PLR0917
    sections: Iterable[RowsOf],
    shard: int,
    fields: Sequence[str],
    topics: Topics,
    first_offset: int = 0,
    end_offset: int | None = None,
    *,
    columns: Collection[str] | None = None,
    edges: Collection[str] | None = None,
    payload: PayloadKind = PayloadKind.BYTES,
    joined: bool = True,
    rows_max: int | None = None,
    typed: TypedPart | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of sections of one stream and shard as rows, offsets ascending. Rows of several small sections
    are made together: that costs a fraction.

    Args:
        fields: named topic levels, as in ``row_schema``. A level that a key's pattern lacks is null.
        topics: a lane's topic patterns; the first that matches a key names its levels.
        first_offset, end_offset: only offsets in ``[first_offset, end_offset)``.
        columns: make only these columns (in the schema's order); None makes all.
        edges: only records of these edge nodes; batches of others are skipped without being decompressed.
        payload: the stream's payload kind, as in ``row_schema``.
        rows_max: number of rows up to which neighbouring batches are joined, and above which they are cut; None means
            ``ROWS_MAX``.
        joined: False gives each batch rows of its own, so that a failing one can be identified.
        typed: columns from the payloads, behind the others.

    Raises:
        Corrupt: a section's contents differ from its index.
    """
    rows_max = ROWS_MAX if rows_max is None else rows_max
    schema = row_schema(fields, payload)
    if typed is not None:
        schema = pa.schema([*schema, *typed.fields])
        rows_max = min(rows_max, TYPED_ROWS_MAX) if typed.rows is not None else rows_max
    if columns is not None:
        schema = pa.schema([field for field in schema if field.name in columns])
        if TOMBSTONE_COLUMN in columns:
            schema = schema.append(pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False))
    levels = Levels(fields, topics) if not set(fields).isdisjoint(schema.names) else None
    builder = RowBuilder(schema, shard, levels, payload, rows_max, typed=typed.rows if typed else None)
    costs, decompressor = RowCosts(schema, len(fields) if levels else 0), zstandard.ZstdDecompressor()
    for each in sections:
        end = each.section.base_offset + each.section.count
        last = end if end_offset is None else min(end_offset, end)
        footer = _Footer(each.lanes, known_clocks(each.clocks), costs, rows_max, decompressor)
        for piece in _pieces(each, footer, range(max(first_offset, each.section.base_offset), last), edges):
            if not builder.takes(piece):
                yield builder.flush()
            builder.add(piece)
            if not joined:
                yield builder.flush()
    if builder.rows:
        yield builder.flush()


class _Footer(NamedTuple):
    """Parts of a chunk's index that its rows need."""

    lanes: Sequence[LaneUpdate]
    clocks: dict[BootKey, int]
    costs: RowCosts
    rows_max: int
    decompressor: zstandard.ZstdDecompressor
    """Decompressor of all batches: making one takes longer than decompressing a small batch."""


def _pieces(rows: RowsOf, footer: _Footer, wanted: range, edges: Collection[str] | None) -> Iterator[Piece]:
    offset = rows.section.base_offset
    for entry in section_entries(rows.section, rows.data, footer.lanes):
        first = max(offset, wanted.start)
        end = min(offset + entry.take, wanted.stop)
        if first < end and (edges is None or footer.lanes[entry.lane].edge in edges):
            yield from _cut(entry, first - offset, end - offset, offset, footer)
        offset += entry.take


def _cut(entry: SectionEntry, first: int, end: int, offset: int, footer: _Footer) -> Iterator[Piece]:
    """Yield records ``[first, end)`` of an entry's counted ones, in pieces of bounded size."""
    header, update = decode_header(entry.batch), footer.lanes[entry.lane]
    columns = decode_columns(entry.batch, header, checks=VECTOR_CHECKS, decompressor=footer.decompressor)
    times = batch_times(header, update, footer.clocks)
    # The batch's own chunk resolves the origin's number, which may have had another meaning in earlier chunks.
    origin = origin_text(header.origin, by_number(update.origins)) if header.origin else None
    costs = footer.costs.cut(columns, entry.skip + first, entry.skip + end, footer.rows_max, BYTES_MAX, origin)
    for at, rows, cost in costs:
        yield Piece(
            lane_of(update), offset + at - entry.skip, at, rows, header.base_seq + at, times, entry.received, columns,
            cost, origin,
        )  # fmt: skip
