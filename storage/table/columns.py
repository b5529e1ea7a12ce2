"""Columns of table rows from pieces of batches; ``storage.table.rows`` is the entry point."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from weft.protocols.batch import Buffer, Columns, Flag, HeaderPairs
from weft.protocols.chunk import LaneUpdate
from weft.protocols.columns import Checks, header_text
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.payloads import PayloadKind
from weft.protocols.topics import InvalidTopic, TopicPattern, compile_pattern
from weft.storage.table.payload_columns import BYTES_COLUMN, payload_columns
from weft.storage.table.record_time import CLOCKS, CORRECTED, FUTURE, FUTURE_US, STEPPED, BatchTimes, behind

VECTOR_CHECKS = Checks(
    lambda data: bool((_u32s(data)[1:] >= _u32s(data)[:-1]).all()),
    lambda data: int(_u32s(data).max()),
)
"""Checks of a batch's columns by numpy: faster than over a list by far."""
ROWS_MAX = 1 << 16
"""Maximum number of rows of a record batch: neighbouring batches are joined up to this many, longer ones are cut."""
BYTES_MAX = 64 << 20
"""Maximum number of bytes of a record batch of more than one row (``storage.table.costs``)."""
CACHED_CHARACTERS_MAX = 8 << 10
"""Longest list of topic patterns that stays compiled: compiled, it takes about fifty times its length."""
FOUND_CELLS_MAX = 1 << 20
"""Maximum number of levels of keys that are remembered for the next batches of a section."""
TIMESTAMP = pa.timestamp("us", tz="UTC")
"""Type of times. Delta and Spark know microseconds; the log's nanoseconds are rounded down."""
ORIGIN_COLUMN = "_origin"
"""Column of what made a record (``protocols.origin``); null for what devices sent. Tables of earlier releases lack
it."""
HEADERS = pa.map_(pa.string(), pa.string())
_CLOCKS = pa.array(CLOCKS)

Topics = Callable[[Lane], Sequence[str]]
"""A lane's topic patterns."""
Array = np.ndarray[Any, np.dtype[Any]]


class Piece(NamedTuple):
    """A run of one batch's records that becomes consecutive rows."""

    lane: int
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
    """Bytes of the rows, at most."""
    origin: str | None = None
    """Text of what made the records; None for what devices sent."""

    def keys(self) -> tuple[Array, Sequence[bytes]]:
        """Return the keys of the rows, and an index into them for each row."""
        index, keys = _slice(self.columns.key_index, np.uint32, self.first, self.rows), self.columns.keys
        if len(keys) <= self.rows:
            return index, keys
        used, index = np.unique(index, return_inverse=True)
        return index.astype(np.uint32), [keys[at] for at in used.tolist()]


class Levels:
    """Named topic levels of keys, looked up once per distinct key and set of patterns, whatever the case of names."""

    def __init__(self, fields: Sequence[str], topics: Topics) -> None:
        self.fields = fields
        self._names = [field.casefold() for field in fields]
        self._topics = topics
        self._found: dict[Lane, dict[bytes, tuple[str | None, ...]]] = {}
        self._cells = 0
        self._patterns: dict[Lane, list[TopicPattern]] = {}

    def of(self, lane: Lane, keys: Sequence[bytes]) -> list[tuple[str | None, ...]]:
        if self._cells + len(keys) * len(self.fields) > FOUND_CELLS_MAX:
            self._found, self._cells = {}, 0
        found = self._found.setdefault(lane, {})
        new = [key for key in keys if key not in found]
        if new:
            self._cells += len(new) * len(self.fields)
            patterns = self._patterns.get(lane)
            if patterns is None:
                patterns = self._patterns[lane] = compile_topics(tuple(self._topics(lane)))
            for key in new:
                topic = _text(key)
                matches = (pattern.match(topic) for pattern in patterns)
                match = next((match for match in matches if match is not None), {})
                levels = {name.casefold(): level for name, level in match.items()}
                found[key] = tuple(levels.get(name) for name in self._names)
        return [found[key] for key in keys]

    def columns(self, rows: Sequence[tuple[str | None, ...]]) -> dict[str, pa.Array]:
        """Return one array per field over a key table."""
        values = zip(*rows, strict=True)
        return {field: pa.array(column, pa.string()) for field, column in zip(self.fields, values, strict=True)}


def compile_topics(topics: tuple[str, ...]) -> list[TopicPattern]:
    """Return the patterns that compile. Another one came from an edge of another release: it names no levels here."""
    # What takes much memory is compiled for each section, in its owner's time.
    return _compiled(topics) if sum(map(len, topics)) <= CACHED_CHARACTERS_MAX else _compile(topics)


def _compile(topics: tuple[str, ...]) -> list[TopicPattern]:
    patterns = []
    for topic in topics:
        with contextlib.suppress(InvalidTopic):
            patterns.append(compile_pattern(topic))
    return patterns


_compiled = lru_cache(maxsize=128)(_compile)


def _text(key: bytes) -> str:
    """Return a key as text. Topics are UTF-8 (MQTT 3.1.1 section 1.5.3); other bytes become U+FFFD."""
    return key.decode("utf-8", "replace")


class RowBuilder:
    """Joins pieces until a record batch is full, then makes its columns in one go."""

    def __init__(  # noqa: PLR0917
        self,
        schema: pa.Schema,
        lanes: Sequence[LaneUpdate],
        shard: int,
        levels: Levels | None,
        payload: PayloadKind = PayloadKind.BYTES,
        rows_max: int = ROWS_MAX,
    ) -> None:
        self._schema = schema
        self._names = frozenset(schema.names)
        self._payload = payload
        self._rows_max = rows_max
        self._lanes = [Lane(lane.tenant, lane.edge, lane.log_id, lane.stream) for lane in lanes]
        self._shard = shard
        self._levels = levels
        self._reset()

    def _reset(self) -> None:
        self._pieces: list[Piece] = []
        self.rows = 0
        self._bytes = 0

    def takes(self, piece: Piece) -> bool:
        """Return whether ``piece`` still fits; an empty builder takes any."""
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
            ((ORIGIN_COLUMN,), self._origins),
            (("payload", BYTES_COLUMN), self._payloads),
        ):
            if not self._names.isdisjoint(names):
                made |= make()
        batch = pa.RecordBatch.from_arrays([made[name] for name in self._schema.names], schema=self._schema)
        self._reset()
        return batch

    def _repeat(self, values: Sequence[int], dtype: type) -> Array:
        """Return one value per piece, repeated for its rows."""
        counts = [piece.rows for piece in self._pieces]
        return np.repeat(np.array(values, dtype), counts)

    def _runs(self, starts: Sequence[int]) -> pa.Array:
        """Return numbers that count up from each piece's start."""
        counts = [piece.rows for piece in self._pieces]
        firsts = np.cumsum([0, *counts[:-1]])
        return pa.array(np.repeat(np.array(starts, np.int64) - firsts, counts) + np.arange(self.rows, dtype=np.int64))

    def _offsets(self) -> dict[str, pa.Array]:
        return {"_offset": self._runs([piece.offset for piece in self._pieces])}

    def _seqs(self) -> dict[str, pa.Array]:
        return {"_seq": self._runs([piece.seq for piece in self._pieces])}

    def _lane_names(self) -> dict[str, pa.Array]:
        lanes = [self._lanes[piece.lane] for piece in self._pieces]
        made = {"_shard": pa.array(np.full(self.rows, self._shard, np.int32))}
        if "_edge" in self._names:
            made["_edge"] = self._texts([lane.edge for lane in lanes])
        if "_log" in self._names:
            made["_log"] = self._texts([format_log_id(lane.log_id) for lane in lanes])
        return made

    def _texts(self, values: Sequence[str]) -> pa.Array:
        """Return one text per piece, repeated for its rows. Copied as runs of bytes: Arrow's ``take`` looks up each
        row, and took more time for the names of edge and log than decompression."""
        encoded = [value.encode() for value in values]
        offsets = np.zeros(self.rows + 1, np.int32)
        np.cumsum(self._repeat([len(value) for value in encoded], np.int32), out=offsets[1:])
        text = b"".join(value * piece.rows for value, piece in zip(encoded, self._pieces, strict=True))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), self.rows, buffers, null_count=0)

    def _times(self) -> dict[str, pa.Array]:
        stamps = np.concatenate([_slice(p.columns.times, np.int64, p.first, p.rows) for p in self._pieces])
        changes = any(piece.times.changes for piece in self._pieces)
        if not changes and self._names.isdisjoint(("_clock", "_received", "_edge_time")):
            return {"_time": _timestamps(stamps // 1000)}
        received = self._repeat([piece.received // 1000 for piece in self._pieces], np.int64)
        clock = self._repeat([piece.times.clock for piece in self._pieces], np.int8)
        times = stamps + self._repeat([piece.times.shift for piece in self._pieces], np.int64) if changes else stamps
        taken = times // 1000
        clock[taken - FUTURE_US > received] = FUTURE
        made = {"_received": _timestamps(received), "_edge_time": pa.nulls(self.rows, TIMESTAMP)}
        if changes:
            stepped = self._step(times, taken)
            clock[stepped] = STEPPED
            changed = stepped | (self._repeat([piece.times.clock for piece in self._pieces], np.int8) == CORRECTED)
            made["_edge_time"] = pa.array(stamps // 1000, TIMESTAMP, mask=~changed)
        # Nearly always one state for all rows.
        alike = (clock == clock[0]).all()
        clocks = self._texts([CLOCKS[clock[0]]] * len(self._pieces)) if alike else _CLOCKS.take(pa.array(clock))
        return made | {"_time": _timestamps(taken), "_clock": clocks}

    def _step(self, times: Array, taken: Array) -> Array:
        """Move the records that stand before what was claimed complete behind it. Return which ones these are."""
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
        levels: list[tuple[str | None, ...]] = []
        for piece in self._pieces:
            index, used = piece.keys()
            indexes.append(index + np.uint32(len(keys)))
            keys += used
            if self._levels:
                levels += self._levels.of(self._lanes[piece.lane], used)
        rows = pa.array(np.concatenate(indexes))
        tables = {"_key": _key_texts(keys)} if "_key" in self._names else {}
        if self._levels:
            tables |= self._levels.columns(levels)
        return {name: table.take(rows) for name, table in tables.items() if name in self._names}

    def _resent(self) -> dict[str, pa.Array]:
        bits = np.zeros(self.rows, np.uint8)
        at = 0
        for piece in self._pieces:
            if piece.columns.flags:
                bits[at : at + piece.rows] = _slice(piece.columns.flags, np.uint8, piece.first, piece.rows)
            at += piece.rows
        return {"_resent": pa.array((bits & Flag.DUPLICATE_SUSPECTED) != 0)}

    def _headers(self) -> dict[str, pa.Array]:
        if not any(piece.columns.headers for piece in self._pieces):
            return {"_headers": pa.nulls(self.rows, HEADERS)}
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
            return {ORIGIN_COLUMN: pa.nulls(self.rows, pa.string())}
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
        return payload_columns(parts[0] if len(parts) == 1 else pa.concat_arrays(parts), self._payload)


def _unique(pairs: HeaderPairs) -> list[tuple[str, str | None]]:
    """Return header pairs for a map column, whose names must differ. Values become text (``header_text``), nil null.
    Those of a repeated name are joined by ', ' in their order, as in HTTP (RFC 9110 section 5.3), without nil."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        parts = values.setdefault(name, [])
        text = header_text(value)
        if text is not None:
            parts.append(text)
    return [(name, ", ".join(parts) if parts else None) for name, parts in values.items()]


def _key_texts(keys: Sequence[bytes]) -> pa.Array:
    """Return keys as text, as ``_text`` makes it of each."""
    try:
        return pa.array(keys, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # one of them is not UTF-8
        return pa.array(map(_text, keys), pa.string())


def _u32s(data: Buffer) -> Array:
    return np.frombuffer(data, np.dtype("<u4"))


def _slice(column: Buffer, dtype: type, first: int, count: int) -> Array:
    return np.frombuffer(column, dtype)[first : first + count]


def _aligned(offsets: Buffer) -> pa.Buffer:
    """Return offsets aligned for Arrow: bodies that were stored uncompressed may stand at any byte of a section."""
    values = np.frombuffer(offsets, np.int32)
    return pa.py_buffer(values if values.flags.aligned else values.copy())


def _timestamps(microseconds: Array) -> pa.Array:
    return pa.Array.from_buffers(TIMESTAMP, len(microseconds), [None, pa.py_buffer(microseconds)], null_count=0)
