"""Table rows from sections of chunks: the one place where log bytes become Arrow.

The table step and the Spark source both use this module, so a record looks the same in the log's tail and in the table.
Payloads are wrapped, not copied, if a batch is large enough for a record batch of its own; nothing here runs per record
in Python, only per batch and per distinct key.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from weft.protocols.batch import Buffer, Checks, Columns, Flag, HeaderPairs, decode_columns, decode_header, header_text
from weft.protocols.chunk import (
    CLOCKS,
    CORRECTED,
    FUTURE,
    FUTURE_US,
    STEPPED,
    BatchTimes,
    BootKey,
    SectionEntry,
    batch_times,
    behind,
    known_clocks,
    section_entries,
)
from weft.protocols.chunk_index import ClockUpdate, LaneUpdate, StreamSection
from weft.protocols.lane import Lane, by_number, format_log_id, origin_text
from weft.protocols.message_headers import TRACE
from weft.protocols.payloads import PayloadKind, is_json, keeps
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import lane_of
from weft.protocols.topics import InvalidTopic, TopicPattern, compile_pattern
from weft.storage.table.typed_columns import OWN_COLUMNS, RowCosts, TypedPart, TypedRows, typed_part
from weft.storage.table.typed_columns import ROWS_MAX as TYPED_ROWS_MAX

# Named topic levels of keys, found once per distinct key and cached for later sections.

CACHED_CHARACTERS_MAX = 8 << 10
"""Longest list of topic patterns that is kept compiled: compiled, it takes about fifty times its length."""
FOUND_BYTES_MAX = 16 << 20
"""Memory of a process for cached levels of keys; some 40,000 keys with two levels each."""
KEY_COST_BYTES = 200
"""Memory of a cached key beside its own bytes and its levels."""
LEVEL_COST_BYTES = 64
"""Memory of one level beside its text."""

Topics = Callable[[Lane], Sequence[str]]
"""A lane's topic patterns."""
Found = tuple[str | None, ...]
"""The levels of one key, in the order of the fields; None if its pattern has no such level."""


class Names(NamedTuple):
    """Names and patterns that determine the levels of a key."""

    fields: tuple[str, ...]
    """Names of the levels in lower case."""
    topics: tuple[str, ...]
    """Patterns of the lane; the first that matches names the levels."""


class FoundLevels:
    """Levels of keys by their ``Names``, up to ``bytes_max``; then the cache is emptied.

    The keys of a stream are those of its machines: each section of a chunk has nearly the same ones. Threads may share
    an instance.
    """

    def __init__(self, bytes_max: int = FOUND_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._found: dict[Names, dict[bytes, Found]] = {}
        self._lock = threading.Lock()

    def of(self, names: Names, keys: Sequence[bytes], patterns: Callable[[], Sequence[TopicPattern]]) -> list[Found]:
        """Return the levels of each key.

        Args:
            patterns: compiles the topics of ``names``; called for unknown keys.
        """
        # Another thread may remove this dict from the cache meanwhile; its contents remain valid.
        found = self._found.get(names, {})
        new = [key for key in dict.fromkeys(keys) if key not in found]
        if not new:
            return [found[key] for key in keys]
        made = _find(names.fields, new, patterns())
        self._keep(names, made)
        return [made[key] if key in made else found[key] for key in keys]

    @property
    def kept_keys(self) -> int:
        """Return the number of cached keys."""
        with self._lock:
            return sum(map(len, self._found.values()))

    def _keep(self, names: Names, made: dict[bytes, Found]) -> None:
        each = KEY_COST_BYTES + LEVEL_COST_BYTES * len(names.fields)
        # The levels of a key are parts of it.
        cost = len(made) * each + 2 * sum(map(len, made))
        with self._lock:
            if names not in self._found:
                cost += sum(map(len, names.topics)) + LEVEL_COST_BYTES * (len(names.topics) + len(names.fields))
            if self._bytes + cost > self._bytes_max:
                self._found, self._bytes = {}, 0
            if cost <= self._bytes_max:
                self._found.setdefault(names, {}).update(made)
                self._bytes += cost


_FOUND = FoundLevels()


class Levels:
    """Named topic levels of keys as columns, independent of the case of names."""

    def __init__(self, fields: Sequence[str], topics: Topics) -> None:
        self.fields = fields
        self._folded = tuple(field.casefold() for field in fields)
        self._topics = topics
        self._names: dict[Lane, Names] = {}
        self._own = FoundLevels()
        """Levels by long lists of patterns, which are not kept beyond a section."""
        self._compiled: dict[Names, list[TopicPattern]] = {}

    def of(self, lane: Lane, keys: Sequence[bytes]) -> list[Found]:
        """Return the levels of each key of a lane."""
        names = self._names.get(lane)
        if names is None:
            names = self._names[lane] = Names(self._folded, tuple(self._topics(lane)))
        found = self._own if _is_long(names.topics) else _FOUND
        return found.of(names, keys, lambda: self._patterns(names))

    def _patterns(self, names: Names) -> list[TopicPattern]:
        if names not in self._compiled:
            self._compiled[names] = compile_topics(names.topics)
        return self._compiled[names]

    def columns(self, rows: Sequence[Found]) -> dict[str, pa.Array]:
        """Return one array per field over a key table."""
        values = zip(*rows, strict=True)
        return {field: pa.array(column, pa.string()) for field, column in zip(self.fields, values, strict=True)}


def _find(fields: Sequence[str], keys: Sequence[bytes], patterns: Sequence[TopicPattern]) -> dict[bytes, Found]:
    made: dict[bytes, Found] = {}
    for key in keys:
        topic = key_text(key)
        matches = (pattern.match(topic) for pattern in patterns)
        match = next((match for match in matches if match is not None), {})
        levels = {name.casefold(): level for name, level in match.items()}
        made[key] = tuple(levels.get(name) for name in fields)
    return made


def _is_long(topics: Sequence[str]) -> bool:
    return sum(map(len, topics)) > CACHED_CHARACTERS_MAX


def compile_topics(topics: tuple[str, ...]) -> list[TopicPattern]:
    """Return the patterns that compile. A pattern that does not came from an edge of another release, and names no
    levels here."""
    # Long lists, which take much memory, are compiled for each section, at its owner's cost.
    return _compile(topics) if _is_long(topics) else _compiled(topics)


def _compile(topics: tuple[str, ...]) -> list[TopicPattern]:
    patterns = []
    for topic in topics:
        with contextlib.suppress(InvalidTopic):
            patterns.append(compile_pattern(topic))
    return patterns


_compiled = lru_cache(maxsize=128)(_compile)


def key_text(key: bytes) -> str:
    """Return a key as text. Topics are UTF-8 (MQTT 3.1.1 section 1.5.3); other bytes become U+FFFD."""
    return key.decode("utf-8", "replace")


# Columns with one value in every row, cached and cut to the rows of a record batch.
#
# Half of a row's columns nearly always are of this kind: its edge, its log, the state of its clock, and values that
# most records lack. Writing them again for each record batch took as much time as all other columns.

KEPT_ROWS_MAX = 8 << 10
"""Rows of a cached column: as many as in a record batch of a Spark task (``spark_sinks.source.partitions``)."""
KEPT_ROWS_MIN = 256
"""Rows below which a column of text is not cached: a hub gets few records at a time from each of thousands of nodes."""
KEPT_TEXT_BYTES_MAX = 64
"""Longest cached text."""
KEPT_TEXTS_MAX = 32
"""Maximum number of cached texts: 18 MiB if all have the maximum length, 6 MiB with names of twenty bytes."""
KEPT_TYPES_MAX = 8


def repeated_text(text: str, rows: int) -> pa.Array:
    """Return a column of text that has ``text`` in each of ``rows``."""
    encoded = text.encode()
    if KEPT_ROWS_MIN <= rows <= KEPT_ROWS_MAX and len(encoded) <= KEPT_TEXT_BYTES_MAX:
        return _kept_text(encoded).slice(0, rows)
    return _text(encoded, rows)


def nulls(kind: pa.DataType, rows: int) -> pa.Array:
    """Return a column of nulls."""
    return _kept_nulls(kind).slice(0, rows) if rows <= KEPT_ROWS_MAX else pa.nulls(rows, kind)


def falses(rows: int) -> pa.Array:
    """Return a column of booleans that are false."""
    return _kept_falses().slice(0, rows) if rows <= KEPT_ROWS_MAX else pa.array(np.zeros(rows, np.bool_))


def _text(text: bytes, rows: int) -> pa.Array:
    # Copied as a run of bytes: Arrow's `take` looks up each row, and took more time than decompression.
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text * rows)], 0)


@lru_cache(maxsize=KEPT_TEXTS_MAX)
def _kept_text(text: bytes) -> pa.Array:
    return _text(text, KEPT_ROWS_MAX)


@lru_cache(maxsize=KEPT_TYPES_MAX)
def _kept_nulls(kind: pa.DataType) -> pa.Array:
    # `pa.nulls` makes a map whose keys and values have room for each row, all of which would be sent to Java.
    return pa.array([None] * KEPT_ROWS_MAX, kind)


@lru_cache(maxsize=1)
def _kept_falses() -> pa.Array:
    return pa.array(np.zeros(KEPT_ROWS_MAX, np.bool_))


# A column of payloads as the columns of a table: unchanged bytes, or text beside the bytes that are not text.

BYTES_COLUMN = "_payload_bytes"
"""Column of the payloads that are not of their stream's kind; null in all other rows."""


def payload_fields(kind: PayloadKind) -> list[pa.Field]:
    """Return the fields of a table for a payload kind."""
    if kind is PayloadKind.BYTES:
        return [pa.field("payload", pa.binary(), nullable=False)]
    return [pa.field("payload", pa.string()), pa.field(BYTES_COLUMN, pa.binary())]


def payload_columns(payloads: pa.Array, kind: PayloadKind) -> dict[str, pa.Array]:
    """Return the columns of ``payload_fields`` for payloads without nulls.

    Each payload is in exactly one of the columns, bit for bit: text is its bytes, checked and unchanged.
    """
    if kind is PayloadKind.BYTES:
        return {"payload": payloads}
    text = _as_text(payloads)
    if text is not None and kind is PayloadKind.TEXT:
        return _all_kept(text)
    kept = list(map(is_json if text is not None else _check(kind), payloads.to_pylist()))
    if text is not None and all(kept):
        return _all_kept(text)
    mask = pa.array(kept, pa.bool_())
    nothing = pa.scalar(None, pa.binary())
    found = pc.if_else(mask, payloads, nothing).cast(pa.string())
    return {"payload": found, BYTES_COLUMN: pc.if_else(mask, nothing, payloads)}


def _as_text(payloads: pa.Array) -> pa.Array | None:
    """Return the payloads as text without a copy, or None if one of them is not UTF-8. Arrow checks each on its own."""
    try:
        return payloads.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _all_kept(text: pa.Array) -> dict[str, pa.Array]:
    return {"payload": text, BYTES_COLUMN: pa.nulls(len(text), pa.binary())}


def _check(kind: PayloadKind) -> Callable[[bytes], bool]:
    return lambda payload: keeps(kind, payload)


# Columns of table rows from pieces of batches; ``storage.table.rows`` is the entry point.

VECTOR_CHECKS = Checks(
    lambda data: bool((_u32s(data)[1:] >= _u32s(data)[:-1]).all()), lambda data: int(_u32s(data).max())
)
"""Checks of a batch's columns by numpy: much faster than over a list."""
ROWS_MAX = 1 << 16
"""Maximum number of rows of a record batch: neighbouring batches are joined up to this number, longer ones are cut."""
BYTES_MAX = 64 << 20
"""Maximum number of bytes of a record batch of more than one row (``storage.table.typed_columns``)."""
TIMESTAMP = pa.timestamp("us", tz="UTC")
"""Type of times. Delta and Spark have microseconds; the log's nanoseconds are rounded down."""
ORIGIN_COLUMN = "_origin"
"""Column of a record's origin (``lane.Origin``); null for records of devices. Tables of earlier releases lack
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
    return pa.schema([*_BEFORE, *(pa.field(name, pa.string()) for name in fields), *_AFTER, *payload_fields(payload)])


def usable_fields(declared: Iterable[str], columns: Collection[str] = ()) -> list[str]:
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
    for name in declared:
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
            lane_of(update),
            offset + at - entry.skip,
            at,
            rows,
            header.base_seq + at,
            times,
            entry.received,
            columns,
            cost,
            origin,
        )


# Rows without those that were erased: the log has them until the collector deletes its chunks.

Erased = Mapping[int, RangeSet]
"""Shard -> offsets of erased rows."""
ERASED_PROPERTY: Final = "weft.erased"
"""Property of a table that was made after an erasure: the log may have records that are no rows of it."""
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def without(rows: Rows, shard: int, erased: Erased | None) -> Rows:
    """Return the rows of a shard that were not erased."""
    offsets = (erased or {}).get(shard)
    if offsets is None or not rows.num_rows:
        return rows
    column: Any = rows.column("_offset")
    mine = column.to_numpy()
    # Of the whole set, which may have a million ranges, only those of these rows are looked at.
    bounds = np.array(offsets.within(int(mine.min()), int(mine.max()) + 1), np.int64).reshape(-1, 2)
    # Of an offset within a range, the range's first one is at or before it, and its end is not.
    is_kept = np.searchsorted(bounds[:, 0], mine, "right") == np.searchsorted(bounds[:, 1], mine, "right")
    return rows.filter(pa.array(is_kept))


def of_shards(erased: Erased | None, spans: Mapping[int, tuple[int, int]]) -> Erased:
    """Return the part of the offsets within one span of each shard."""
    erased = erased or {}
    return {shard: RangeSet(erased[shard].within(*span)) for shard, span in spans.items() if shard in erased}


# Rows of traced messages among those that become a table's: their header ``weft.trace`` names the edge's span.

TRACED_MAX = 256
"""Maximum number of traced rows of one file; spans of further ones are left out, so that no edge uses up the rest."""
_US_NS = 1000


class TracedRow(NamedTuple):
    """A row of a traced message, or several with the same span. Times are nanoseconds since 1970."""

    trace: str
    """The edge's span, in the form of ``traceparent``."""
    rows: int
    edge: str
    log: str
    seq: int
    shard: int
    offset: int
    received: int
    """Time at which the hub received its batch."""
    chunk: int = 0
    created: int = 0
    """Time at which that chunk was made."""


OnTraced = Callable[[tuple[str, str], int, Sequence[TracedRow]], None]
"""Receiver of (tenant, stream), the table's version, and its traced rows, once they are durable."""


def traced_rows(batch: pa.RecordBatch, room: int) -> Iterator[TracedRow]:
    """Yield the traced rows of a batch in their order, without their chunks; the first of several with one span.

    A batch without a traced row costs one pass over its headers in C, and none if no row has headers.

    Args:
        room: maximum number.
    """
    headers = batch.column("_headers")
    if headers.null_count == len(headers):
        return
    traces = pc.map_lookup(headers, pa.scalar(TRACE), "first")
    if traces.null_count == len(traces):
        return
    firsts: dict[str, tuple[int, int]] = {}
    for index in pc.indices_nonzero(traces.is_valid()).to_pylist():
        trace = traces[index].as_py()
        first, count = firsts.get(trace, (index, 0))
        if count or len(firsts) < room:
            firsts[trace] = first, count + 1
    for trace, (index, count) in firsts.items():
        row = {name: batch.column(name)[index] for name in ("_edge", "_log", "_seq", "_shard", "_offset", "_received")}
        received = row.pop("_received").value * _US_NS
        edge, log, seq, shard, offset = (value.as_py() for value in row.values())
        yield TracedRow(trace, count, edge, log, seq, shard, offset, received)
