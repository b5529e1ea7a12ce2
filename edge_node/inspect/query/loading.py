"""Records of the log as rows: only the columns that a query reads, column by column, a batch at a time."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from weft.edge_node.inspect.query.tables import insert, level_names
from weft.edge_node.inspect.query.times import time_texts
from weft.protocols import batch
from weft.protocols.batch import Buffer, Columns, Flag, HeaderPairs
from weft.protocols.columns import header_json, read_u32s
from weft.protocols.topics import TopicPattern, compile_pattern

Values = Sequence[Any]
_HELD_ROWS_MAX = 10_000
_HELD_BYTES_MAX = 1 << 20


class StreamTable:
    """A loader for the table of one stream."""

    def __init__(
        self, connection: sqlite3.Connection, stream: str, patterns: Iterable[str], columns: Collection[str]
    ) -> None:
        """Fill the ``columns`` and ``seq``; other columns stay null, because the query does not read them."""
        self._connection = connection
        self._patterns = [compile_pattern(pattern) for pattern in patterns]
        levels = {name: name.casefold() for name in level_names(pattern for pattern in patterns)}
        wanted = {"seq", *columns}
        self._makers: dict[str, Callable[[_Rows], Values]] = {
            name: maker for name, maker in _MAKERS.items() if name in wanted
        }
        self._levels = {name: folded for name, folded in levels.items() if name in wanted}
        self._found: dict[bytes, dict[str, str]] = {}
        names = [*self._makers, *self._levels]
        self._insert = insert(stream, names)
        self._columns: list[list[Any]] = [[] for _ in names]
        """Columns to fill; the first is ``seq``."""
        self._held_bytes = 0

    def add(self, body: Buffer, since_ns: int | None, origin: str | None = None) -> int:
        """Add the records of a batch that was checked before, from ``since_ns`` on. Return their number.

        They are in the table after ``flush``: small batches are inserted together.

        Args:
            origin: text of the records' origin.

        Raises:
            CodecError: the batch does not match its header.
            sqlite3.Error: there is no room.
        """
        header = batch.decode_header(body)
        if since_ns is None and len(self._columns) == 1:
            self._columns[0].extend(range(header.base_seq, header.end_seq))
            self._flush_if_many()
            return header.count
        rows = _Rows(header.base_seq, batch.decode_columns(body, header), origin)
        if since_ns is not None and not rows.keep_since(since_ns):
            return 0
        made = [make(rows) for make in self._makers.values()]
        made += [self._level(rows, folded) for folded in self._levels.values()]
        for column, values in zip(self._columns, made, strict=True):
            column.extend(values)
        self._held_bytes += header.raw_length
        self._flush_if_many()
        return len(rows.picked)

    def _flush_if_many(self) -> None:
        if len(self._columns[0]) >= _HELD_ROWS_MAX or self._held_bytes >= _HELD_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Put the added records into the table. Raises as ``add``."""
        self._connection.executemany(self._insert, zip(*self._columns, strict=True)).close()
        self._held_bytes = 0
        for column in self._columns:
            column.clear()

    def _level(self, rows: _Rows, folded: str) -> Values:
        of_key = [self._levels_of(key).get(folded) for key in rows.columns.keys]
        return [of_key[index] for index in rows.key_indexes()]

    def _levels_of(self, key: bytes) -> dict[str, str]:
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _KEYS_REMEMBERED_MAX:
                self._found.clear()
            found = self._found[key] = _match(key.decode("utf-8", "replace"), self._patterns)
        return found


_KEYS_REMEMBERED_MAX = 65_536


def _match(topic: str, patterns: Sequence[TopicPattern]) -> dict[str, str]:
    matches = (pattern.match(topic) for pattern in patterns)
    match = next((match for match in matches if match is not None), {})
    return {name.casefold(): level for name, level in match.items()}


class _Rows:
    """A decoded batch and the indexes of the wanted records."""

    def __init__(self, base_seq: int, columns: Columns, origin: str | None) -> None:
        self.base_seq = base_seq
        self.origin = origin
        self.columns = columns
        self.times = array("q", bytes(columns.times))
        self.picked: Sequence[int] = range(len(self.times))

    def keep_since(self, since_ns: int) -> bool:
        if min(self.times) < since_ns:
            self.picked = [at for at, time in enumerate(self.times) if time >= since_ns]
        return bool(self.picked)

    def of_picked(self, values: Values) -> Values:
        return values if isinstance(self.picked, range) else [values[at] for at in self.picked]

    def key_indexes(self) -> Values:
        return self.of_picked(read_u32s(self.columns.key_index))


def _seqs(rows: _Rows) -> Values:
    return [rows.base_seq + at for at in rows.picked]


def _times(rows: _Rows) -> Values:
    return time_texts(rows.of_picked(rows.times))


def _times_ns(rows: _Rows) -> Values:
    return rows.of_picked(rows.times)


def _keys(rows: _Rows) -> Values:
    keys = [key.decode("utf-8", "replace") for key in rows.columns.keys]
    return [keys[index] for index in rows.key_indexes()]


def _payloads(rows: _Rows) -> Values:
    """Return text where it is UTF-8, so that SQLite's JSON and text functions work; else a blob.

    Text with a NUL is a blob as well: SQLite's functions would read it only up to there.
    """
    offsets = read_u32s(rows.columns.payload_offsets)
    payload = bytes(rows.columns.payload)
    if payload.isascii() and b"\0" not in payload:
        text = payload.decode("ascii")
        return [text[offsets[at] : offsets[at + 1]] for at in rows.picked]
    return [_payload(payload[offsets[at] : offsets[at + 1]]) for at in rows.picked]


def _payload(payload: bytes) -> str | bytes:
    if b"\0" in payload:
        return payload
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return payload


def _headers(rows: _Rows) -> Values:
    headers = rows.columns.headers
    return [_header_text(headers[at]) if at in headers else None for at in rows.picked]


def _header_text(pairs: HeaderPairs) -> str:
    return json.dumps([(name, header_json(value)) for name, value in pairs], ensure_ascii=False)


def _flags(rows: _Rows) -> Values:
    flags = rows.columns.flags
    return [flags[at] for at in rows.picked] if flags else [0] * len(rows.picked)


def _flag(flag: Flag) -> Callable[[_Rows], Values]:
    return lambda rows: [1 if bits & flag else 0 for bits in _flags(rows)]


def _qos(rows: _Rows) -> Values:
    return [0 if bits & Flag.PUBLISHED_QOS0 else 2 if bits & Flag.PUBLISHED_QOS2 else 1 for bits in _flags(rows)]


def _origins(rows: _Rows) -> Values:
    return [rows.origin] * len(rows.picked)


_MAKERS: dict[str, Callable[[_Rows], Values]] = {
    "seq": _seqs,
    "time": _times,
    "time_ns": _times_ns,
    "key": _keys,
    "payload": _payloads,
    "headers": _headers,
    "qos": _qos,
    "retained": _flag(Flag.RETAINED),
    "resent": _flag(Flag.DUPLICATE_SUSPECTED),
    "_origin": _origins,
}
