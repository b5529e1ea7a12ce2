"""Columns of table rows from pieces of batches; ``storage.table.rows`` is the entry point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from weft.protocols.batch import Buffer, Columns, Flag, HeaderPairs
from weft.protocols.columns import Checks, header_text
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.storage.table.levels import Found, Levels, key_text
from weft.storage.table.payload_columns import BYTES_COLUMN, payload_columns
from weft.storage.table.record_time import CLOCKS, CORRECTED, FUTURE, FUTURE_US, STEPPED, BatchTimes, behind
from weft.storage.table.repeated import falses, nulls, repeated_text
from weft.storage.table.typed_columns import typed_part
from weft.storage.table.typed_rows import TypedRows

VECTOR_CHECKS = Checks(
    lambda data: bool((_u32s(data)[1:] >= _u32s(data)[:-1]).all()),
    lambda data: int(_u32s(data).max()),
)
"""Checks of a batch's columns by numpy: much faster than over a list."""
ROWS_MAX = 1 << 16
"""Maximum number of rows of a record batch: neighbouring batches are joined up to this number, longer ones are cut."""
BYTES_MAX = 64 << 20
"""Maximum number of bytes of a record batch of more than one row (``storage.table.costs``)."""
TIMESTAMP = pa.timestamp("us", tz="UTC")
"""Type of times. Delta and Spark have microseconds; the log's nanoseconds are rounded down."""
ORIGIN_COLUMN = "_origin"
"""Column of a record's origin (``protocols.origin``); null for records of devices. Tables of earlier releases lack
it."""
LATER_COLUMNS = (ORIGIN_COLUMN,)
"""Text columns that tables of earlier releases lack: the hub adds them, and earlier rows have null there."""
TOMBSTONE_COLUMN = "_tombstone"
"""Column that says whether a record deletes its key: with the flag, or without a payload. No table has it."""
HEADERS = pa.map_(pa.string(), pa.string())
_CLOCKS = pa.array(CLOCKS)

Array = np.ndarray[Any, np.dtype[Any]]


class Piece(NamedTuple):
    """A run of one batch's records that becomes consecutive rows."""

    lane: Lane
    offset: int
    """Log offset of the first record."""
    first: int
    """Index in the batch of the first record."""
    rows: int
    seq: int
    times: BatchTimes
    received: int
    columns: Columns
    cost: int
    """Maximum bytes of the rows."""
    origin: str | None = None
    """Text of the records' origin; None for records of devices."""

    def keys(self) -> tuple[Array, Sequence[bytes]]:
        """Return the keys of the rows, and an index into them for each row."""
        index, keys = _slice(self.columns.key_index, np.uint32, self.first, self.rows), self.columns.keys
        if len(keys) <= self.rows:
            return index, keys
        used, index = np.unique(index, return_inverse=True)
        return index.astype(np.uint32), [keys[at] for at in used.tolist()]


class RowBuilder:
    """Joins pieces until a record batch is full, then makes its columns at once."""

    def __init__(
        self,
        schema: pa.Schema,
        shard: int,
        levels: Levels | None,
        payload: PayloadKind = PayloadKind.BYTES,
        rows_max: int = ROWS_MAX,
        *,
        typed: TypedRows | None = None,
    ) -> None:
        self._schema = schema
        self._ordered = schema.names
        self._names = frozenset(self._ordered)
        self._payload, self._typed = payload, typed
        self._typed_fields = typed_part(schema)
        self._rows_max = rows_max
        self._shard = shard
        self._levels = levels
        self._reset()

    def _reset(self) -> None:
        self._pieces: list[Piece] = []
        self.rows = 0
        self._bytes = 0

    def takes(self, piece: Piece) -> bool:
        """Return whether ``piece`` still fits; an empty builder accepts any."""
        rows = self.rows + piece.rows
        return not self._pieces or (rows <= self._rows_max and self._bytes + piece.cost <= BYTES_MAX)

    def add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self.rows += piece.rows
        self._bytes += piece.cost

    def flush(self) -> pa.RecordBatch:
        made: dict[str, pa.Array] = {}
        for names, make in (
            (("_offset",), self._offsets),
            (("_seq",), self._seqs),
            (("_shard", "_edge", "_log"), self._lane_names),
            (("_time", "_clock", "_received", "_edge_time"), self._times),
            (("_key", *(self._levels.fields if self._levels else ())), self._keys),
            (("_resent",), self._resent),
            (("_headers",), self._headers),
            ((TOMBSTONE_COLUMN,), self._tombstones),
            ((ORIGIN_COLUMN,), self._origins),
            (("payload", BYTES_COLUMN, *(field.name for field in self._typed_fields)), self._payloads),
        ):
            if not self._names.isdisjoint(names):
                made |= make()
        batch = pa.RecordBatch.from_arrays([made[name] for name in self._ordered], schema=self._schema)
        self._reset()
        return batch

    def _repeat(self, values: Sequence[int], dtype: type) -> Array:
        """Return one value per piece, repeated for its rows."""
        if len(values) == 1:
            return np.full(self.rows, values[0], dtype)
        return np.repeat(np.array(values, dtype), [piece.rows for piece in self._pieces])

    def _joined(self, parts: Sequence[Array]) -> Array:
        """Return the pieces' parts of a column as one array."""
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _runs(self, starts: Sequence[int]) -> pa.Array:
        """Return numbers that count up from each piece's start."""
        if len(starts) == 1:
            return pa.array(np.arange(starts[0], starts[0] + self.rows, dtype=np.int64))
        counts = [piece.rows for piece in self._pieces]
        firsts = np.cumsum([0, *counts[:-1]])
        return pa.array(np.repeat(np.array(starts, np.int64) - firsts, counts) + np.arange(self.rows, dtype=np.int64))

    def _offsets(self) -> dict[str, pa.Array]:
        return {"_offset": self._runs([piece.offset for piece in self._pieces])}

    def _seqs(self) -> dict[str, pa.Array]:
        return {"_seq": self._runs([piece.seq for piece in self._pieces])}

    def _lane_names(self) -> dict[str, pa.Array]:
        lanes = [piece.lane for piece in self._pieces]
        made = {"_shard": pa.array(np.full(self.rows, self._shard, np.int32))}
        if "_edge" in self._names:
            made["_edge"] = self._texts([lane.edge for lane in lanes])
        if "_log" in self._names:
            made["_log"] = self._texts([format_log_id(lane.log_id) for lane in lanes])
        return made

    def _texts(self, values: Sequence[str]) -> pa.Array:
        """Return one text per piece, repeated for its rows. They are copied as runs of bytes: Arrow's ``take`` looks up
        each row, and took more time for the names of edge and log than decompression."""
        if len(set(values)) == 1:
            return repeated_text(values[0], self.rows)
        encoded = [value.encode() for value in values]
        offsets = np.zeros(self.rows + 1, np.int32)
        np.cumsum(self._repeat([len(value) for value in encoded], np.int32), out=offsets[1:])
        text = b"".join(value * piece.rows for value, piece in zip(encoded, self._pieces, strict=True))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), self.rows, buffers, null_count=0)

    def _times(self) -> dict[str, pa.Array]:
        stamps = self._joined([_slice(p.columns.times, np.int64, p.first, p.rows) for p in self._pieces])
        changes = any(piece.times.changes for piece in self._pieces)
        if not changes and self._names.isdisjoint(("_clock", "_received", "_edge_time")):
            return {"_time": _timestamps(stamps // 1000)}
        received = self._repeat([piece.received // 1000 for piece in self._pieces], np.int64)
        states = [piece.times.clock for piece in self._pieces]
        times = stamps + self._repeat([piece.times.shift for piece in self._pieces], np.int64) if changes else stamps
        taken = times // 1000
        made = {"_received": _timestamps(received), "_edge_time": nulls(TIMESTAMP, self.rows)}
        clock: Array | None = None
        if (ahead := taken - FUTURE_US > received).any():
            clock = self._repeat(states, np.int8)
            clock[ahead] = FUTURE
        if changes:
            stepped = self._step(times, taken)
            changed = stepped | (self._repeat(states, np.int8) == CORRECTED)
            made["_edge_time"] = pa.array(stamps // 1000, TIMESTAMP, mask=~changed)
            if stepped.any():
                clock = self._repeat(states, np.int8) if clock is None else clock
                clock[stepped] = STEPPED
        # Nearly always one state for all rows of a batch.
        clocks = self._texts([CLOCKS[state] for state in states]) if clock is None else _CLOCKS.take(pa.array(clock))
        return made | {"_time": _timestamps(taken), "_clock": clocks}

    def _step(self, times: Array, taken: Array) -> Array:
        """Move records with times before the moment that was claimed complete behind it. Return a mask of the moved
        ones."""
        stepped = np.zeros(self.rows, np.bool_)
        at = 0
        for piece in self._pieces:
            floor = piece.times.floor
            if floor is not None:
                seqs = np.arange(piece.seq, piece.seq + piece.rows)
                stepped[at : at + piece.rows] = (seqs >= floor.seq) & (times[at : at + piece.rows] <= floor.time)
                taken[at : at + piece.rows][stepped[at : at + piece.rows]] = behind(floor) // 1000
            at += piece.rows
        return stepped

    def _keys(self) -> dict[str, pa.Array]:
        indexes: list[Array] = []
        keys: list[bytes] = []
        levels: list[Found] = []
        for piece in self._pieces:
            index, used = piece.keys()
            indexes.append(index + np.uint32(len(keys)) if keys else index)
            keys += used
            if self._levels:
                levels += self._levels.of(piece.lane, used)
        rows = pa.array(self._joined(indexes))
        tables = {"_key": _key_texts(keys)} if "_key" in self._names else {}
        if self._levels:
            tables |= self._levels.columns(levels)
        return {name: table.take(rows) for name, table in tables.items() if name in self._names}

    def _resent(self) -> dict[str, pa.Array]:
        if not any(piece.columns.flags for piece in self._pieces):
            return {"_resent": falses(self.rows)}
        bits = np.zeros(self.rows, np.uint8)
        at = 0
        for piece in self._pieces:
            if piece.columns.flags:
                bits[at : at + piece.rows] = _slice(piece.columns.flags, np.uint8, piece.first, piece.rows)
            at += piece.rows
        return {"_resent": pa.array((bits & Flag.DUPLICATE_SUSPECTED) != 0)}

    def _tombstones(self) -> dict[str, pa.Array]:
        empty: list[Array] = []
        for piece in self._pieces:
            ends = _slice(piece.columns.payload_offsets, np.uint32, piece.first, piece.rows + 1)
            is_empty = ends[1:] == ends[:-1]
            if piece.columns.flags:
                is_empty |= (_slice(piece.columns.flags, np.uint8, piece.first, piece.rows) & Flag.TOMBSTONE) != 0
            empty.append(is_empty)
        return {TOMBSTONE_COLUMN: pa.array(self._joined(empty))}

    def _headers(self) -> dict[str, pa.Array]:
        if not any(piece.columns.headers for piece in self._pieces):
            return {"_headers": nulls(HEADERS, self.rows)}
        rows: list[list[tuple[str, str | None]] | None] = [None] * self.rows
        at = 0
        for piece in self._pieces:
            for index, pairs in piece.columns.headers.items():
                if piece.first <= index < piece.first + piece.rows:
                    rows[at + index - piece.first] = _unique(pairs)
            at += piece.rows
        return {"_headers": pa.array(rows, HEADERS)}

    def _origins(self) -> dict[str, pa.Array]:
        texts = dict.fromkeys(piece.origin for piece in self._pieces)
        if [*texts] == [None]:
            return {ORIGIN_COLUMN: nulls(pa.string(), self.rows)}
        if len(texts) == 1:
            return {ORIGIN_COLUMN: self._texts([piece.origin or "" for piece in self._pieces])}
        index = {text: at for at, text in enumerate(texts)}
        rows = self._repeat([index[piece.origin] for piece in self._pieces], np.int32)
        return {ORIGIN_COLUMN: pa.array(texts, pa.string()).take(pa.array(rows))}

    def _payloads(self) -> dict[str, pa.Array]:
        parts = [
            pa.Array.from_buffers(
                pa.binary(),
                piece.rows,
                [None, _aligned(piece.columns.payload_offsets), pa.py_buffer(piece.columns.payload)],
                null_count=0,
                offset=piece.first,
            )
            for piece in self._pieces
        ]
        payloads = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return payload_columns(payloads, self._payload) | self._typed_columns(payloads)

    def _typed_columns(self, payloads: pa.Array) -> dict[str, pa.Array]:
        """Return the typed columns; those of other versions of the schema are null."""
        made = self._typed.arrays(payloads) if self._typed is not None and self._typed_fields else {}
        return {field.name: pa.nulls(self.rows, field.type) for field in self._typed_fields} | made


def _unique(pairs: HeaderPairs) -> list[tuple[str, str | None]]:
    """Return header pairs for a map column, whose names must differ. Values become text (``header_text``), nil null.
    Values of a repeated name are joined by ', ' in their order, as in HTTP (RFC 9110 section 5.3), without nil."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        parts = values.setdefault(name, [])
        text = header_text(value)
        if text is not None:
            parts.append(text)
    return [(name, ", ".join(parts) if parts else None) for name, parts in values.items()]


def _key_texts(keys: Sequence[bytes]) -> pa.Array:
    """Return keys as text, as ``key_text`` does for each."""
    try:
        return pa.array(keys, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # one of them is not UTF-8
        return pa.array(map(key_text, keys), pa.string())


def _u32s(data: Buffer) -> Array:
    return np.frombuffer(data, np.dtype("<u4"))


def _slice(column: Buffer, dtype: type, first: int, count: int) -> Array:
    return np.frombuffer(column, dtype)[first : first + count]


def _aligned(offsets: Buffer) -> pa.Buffer:
    """Return offsets aligned for Arrow: bodies that were stored uncompressed may begin at any byte of a section."""
    values = np.frombuffer(offsets, np.int32)
    return pa.py_buffer(values if values.flags.aligned else values.copy())


def _timestamps(microseconds: Array) -> pa.Array:
    return pa.Array.from_buffers(TIMESTAMP, len(microseconds), [None, pa.py_buffer(microseconds)], null_count=0)
