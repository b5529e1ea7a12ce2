"""SQL over a node's log, read only: the tables that a query names are loaded into a temporary database."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from weft.config.units import parse_duration_ns
from weft.edge_node.inspect.summary import StreamSummary, summarise
from weft.edge_node.inspect.tail import Start, Wait, find_beginning, settled_commits, sleep
from weft.edge_node.inspect.view import Commit, Cursor, DamagedBytes, Durability, LogDirectory
from weft.edge_node.streams import STATE_STREAMS
from weft.protocols import batch
from weft.protocols.batch import BatchHeader, Buffer, Columns, Flag, HeaderPairs, header_json, read_u32s
from weft.protocols.errors import CodecError
from weft.protocols.segment import Footer
from weft.protocols.topics import TopicPattern, compile_pattern
from weft.storage.segment_log.index import reason_name

# Permissions of a query, which may only read, and its columns, so that only these are loaded.

_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})
VALUE_BYTES_MAX = 64 << 20
"""Longest text or blob that a query may compute; the longest record has 17 MiB."""


@dataclass
class Reads:
    """Table -> its columns that a statement reads."""

    columns: dict[str, set[str]] = field(default_factory=dict)

    def authorize(self, action: int, first: str | None, second: str | None, *_others: object) -> int:
        """Allow reading, and record the columns that are read (for ``set_authorizer``)."""
        if action == sqlite3.SQLITE_READ and first is not None:
            # An empty column means a table without read columns: SELECT count(*).
            self.columns.setdefault(first, set()).update({second} if second else ())
        return authorize(action, first, second)


def authorize(action: int, _first: str | None, second: str | None, *_others: object) -> int:
    """Allow only reading (for ``set_authorizer``)."""
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if (second or "").lower() in _FORBIDDEN_FUNCTIONS else sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def what_it_reads(connection: sqlite3.Connection, sql: str) -> dict[str, set[str]]:
    """Return table -> columns that a statement reads; it is compiled, not run.

    Raises:
        sqlite3.Error, sqlite3.Warning: it is not valid, has more than one statement, or does more than read.
    """
    reads = Reads()
    connection.set_authorizer(reads.authorize)
    try:
        connection.execute(f"EXPLAIN {sql}").close()
    finally:
        connection.set_authorizer(None)
    return reads.columns


def confine(connection: sqlite3.Connection, file_bytes_max: int, heap_bytes_max: int) -> None:
    """Bound the size of a database and the cost of its statements, and prepare it for ``authorize``."""
    # SQLite declares these once, by a CREATE TABLE that a reader may not execute.
    connection.execute("SELECT 1 FROM json_each('1'), json_tree('1')").close()
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
    for pragma in (
        "journal_mode = OFF",
        "synchronous = OFF",
        "temp_store = MEMORY",
        "cache_size = -65536",
        f"max_page_count = {file_bytes_max // page_bytes}",
        f"hard_heap_limit = {heap_bytes_max}",
    ):
        connection.execute(f"PRAGMA {pragma}").close()


# Tables of a query: one for each stream, ``weft_streams`` and ``weft_gaps``.

BEFORE_LEVELS = {"time": "TEXT", "time_ns": "INTEGER", "seq": "INTEGER PRIMARY KEY", "key": "TEXT"}
AFTER_LEVELS = {
    "payload": "",
    "headers": "TEXT",
    "qos": "INTEGER",
    "retained": "INTEGER",
    "resent": "INTEGER",
    "_origin": "TEXT",
}
"""Columns of every stream and their types; the stream's named topic levels are between the two."""
STREAMS_TABLE = "weft_streams"
GAPS_TABLE = "weft_gaps"
STREAMS = {
    "stream": "TEXT",
    "records": "INTEGER",
    "first_seq": "INTEGER",
    "next_seq": "INTEGER",
    "first_time": "TEXT",
    "last_time": "TEXT",
    "gaps": "INTEGER",
    "records_lost": "INTEGER",
    "topics": "TEXT",
}
GAPS = {
    "stream": "TEXT",
    "first": "INTEGER",
    "end": "INTEGER",
    "records": "INTEGER",
    "reason": "TEXT",
    "time": "TEXT",
    "time_ns": "INTEGER",
}
OWN_TABLES = {STREAMS_TABLE: STREAMS, GAPS_TABLE: GAPS}
LEVELS_MAX = 512
"""Maximum number of named topic levels that become columns of one stream."""


def level_names(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the named topic levels of a stream that become columns, in the order of its patterns.

    SQL ignores case: among names that differ only in case, the first becomes a column. A level with the name of another
    column of every stream has no column; ``level(key, n)`` returns it.
    """
    taken = {*BEFORE_LEVELS, *AFTER_LEVELS, "rowid", "oid", "_rowid_"}
    names: list[str] = []
    for pattern in patterns:
        for name in compile_pattern(pattern).fields:
            if name.casefold() not in taken and len(names) < LEVELS_MAX:
                taken.add(name.casefold())
                names.append(name)
    return tuple(names)


def columns_of(streams: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """Return table -> column -> type, for streams by name with their patterns."""
    tables = {
        name: BEFORE_LEVELS | dict.fromkeys(level_names(patterns), "TEXT") | AFTER_LEVELS
        for name, patterns in streams.items()
    }
    return tables | OWN_TABLES


def create(connection: sqlite3.Connection, tables: Mapping[str, Mapping[str, str]]) -> None:
    """Create the empty tables."""
    for table, columns in tables.items():
        spelt = ", ".join(f"{quoted(name)} {kind}".rstrip() for name, kind in columns.items())
        connection.execute(f"CREATE TABLE {quoted(table)} ({spelt})").close()


def insert(table: str, columns: Collection[str]) -> str:
    """Return the statement that adds a row of these columns, or skips it when its key exists already."""
    names, marks = ", ".join(map(quoted, columns)), ", ".join("?" * len(columns))
    return f"INSERT OR IGNORE INTO {quoted(table)} ({names}) VALUES ({marks})"  # noqa: S608 - all identifiers are quoted


def quoted(name: str) -> str:
    """Return an identifier of SQL, in quotes."""
    return '"' + name.replace('"', '""') + '"'


def columns_text(tables: Mapping[str, Mapping[str, str]]) -> str:
    """Return the tables and their columns in a line, for the author of a misspelt name."""
    return "; ".join(f"{as_written(name)}({', '.join(columns)})" for name, columns in tables.items())


def as_written(name: str) -> str:
    """Return a table's name in the spelling of a query."""
    return name if name.replace("_", "a").isalnum() and not name[0].isdigit() else quoted(name)


# Errors of a query: their cause, and SQLite's errors in the query's terms.

TOO_LARGE = (
    "the query needs more memory or temporary space than allowed. Read fewer records with --since 10m, or name "
    "the columns that you need instead of *"
)


class QueryRefused(ValueError):
    """Wrong SQL, or SQL that would do more than read."""


class NoSuchTable(QueryRefused):
    """An error: the SQL names a table that does not exist, as far as the log was read."""


class QueryStopped(Exception):
    """A query that reached a bound: time, rows or space. Ask for less, or allow more."""


def explained(text: str, tables: Mapping[str, Mapping[str, str]]) -> QueryRefused | QueryStopped:
    """Return an error of SQLite as a sentence for the author of the query."""
    if any(words in text for words in ("disk is full", "out of memory", "too big")):
        return QueryStopped(TOO_LARGE)
    if any(words in text for words in ("not authorized", "prohibited", 'near "EXPLAIN"', "authorization denied")):
        return QueryRefused("a query must be one SELECT: it cannot change, attach, set or load anything")
    if "one statement" in text:
        return QueryRefused("a query must be one SELECT, and there is more text after it")
    if "malformed JSON" in text:
        return QueryRefused(
            "a payload is not JSON: write iif(json_valid(payload), payload ->> '$.name', NULL) "
            "instead of payload ->> '$.name'"
        )
    if text.startswith("no such table"):
        return NoSuchTable(f"{text}; tables: {', '.join(map(as_written, tables))}")
    if text.startswith("no such column"):
        name = text.rpartition(": ")[2].rpartition(".")[2]
        return QueryRefused(
            f"{text}. For a field of a JSON payload, write payload ->> '$.{name}'. Columns: {columns_text(tables)}"
        )
    if "incomplete input" in text or 'near ";"' in text:
        return QueryRefused("the query ends too early: expected a SELECT, such as SELECT * FROM weft_streams")
    if text.startswith("no such function"):
        return QueryRefused(f"{text}. Those of SQLite can be used, such as avg, min, max, count and json_extract")
    if text.endswith("syntax error"):
        text += ". Expected a SELECT, such as SELECT * FROM weft_streams"
    if quoted_ones := [as_written(table) for table in tables if as_written(table) != table]:
        return QueryRefused(f"{text}; some names need quotes: {', '.join(quoted_ones)}")
    return QueryRefused(text)


# Times in queries: text in UTC such as ``2026-11-20 07:51:26.123456789``.
#
# It is SQLite's own form of a time, so that its functions accept it, with nanoseconds and a fixed length, so that the
# text sorts like the time.

_SECOND_NS = 10**9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST = "0000-01-01 00:00:00.000000000"
_TEXT = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d(?::\d\d(?::\d\d(?:\.\d{1,9})?)?)?)?")


def time_text(ns: int) -> str:
    """Return a time, ns since 1970. Times outside of the years 1 to 9999 are written as the nearest valid time."""
    return f"{_second_text(ns // _SECOND_NS)}.{ns % _SECOND_NS:09d}"


def time_texts(times: Iterable[int]) -> list[str]:
    """Return the texts of many times: neighbours share their second, and often all of it."""
    texts: list[str] = []
    known, text, second, prefix = None, "", None, ""
    for ns in times:
        if ns != known:
            known = ns
            if ns // _SECOND_NS != second:
                second = ns // _SECOND_NS
                prefix = _second_text(second)
            text = f"{prefix}.{ns % _SECOND_NS:09d}"
        texts.append(text)
    return texts


def _second_text(second: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=second)).strftime("%4Y-%m-%d %H:%M:%S")
    except OverflowError:
        return "0001-01-01 00:00:00" if second < 0 else "9999-12-31 23:59:59"


def earliest_ns(text: str) -> int | None:
    """Return the earliest time whose text does not sort before ``text``; None when the form of ``text`` does not allow
    that."""
    if not _TEXT.fullmatch(text):
        return None
    full = text + _EARLIEST[len(text) :]
    try:
        second = datetime.fromisoformat(full[:19]).replace(tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    return (second.days * 86_400 + second.seconds) * _SECOND_NS + int(full[20:])


def shifted(now_ns: int, offset: str = "") -> int:
    """Return the time of ``now('-10m')``.

    Raises:
        ValueError: the offset is not a sign and a duration.
    """
    offset = offset.strip()
    if not offset:
        return now_ns
    if offset[0] not in "+-":
        raise ValueError(f"now() takes an offset with its sign, such as now('-{offset.split()[0]}'); got {offset!r}")
    nanoseconds = parse_duration_ns(offset[1:])
    return now_ns + nanoseconds if offset[0] == "+" else now_ns - nanoseconds


# Records of the log as rows: only the columns that a query reads, column by column, a batch at a time.

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


# ``weft_streams`` and ``weft_gaps``: the contents of a log, as tables.


def fill(
    connection: sqlite3.Connection, patterns: Mapping[str, Sequence[str]], found: Mapping[str, StreamSummary]
) -> None:
    """Fill both tables.

    Args:
        patterns: the existing streams, with their topic patterns.
        found: the log's contents.
    """
    for name in [*patterns, *(found.keys() - patterns.keys() - STATE_STREAMS)]:
        stream, topics = found.get(name, StreamSummary(0)), patterns.get(name, ())
        connection.execute(insert(STREAMS_TABLE, STREAMS), _stream(name, stream, topics)).close()
        rows = [
            (name, gap.first, gap.end, gap.end - gap.first, reason_name(gap.reason), time_text(gap.time), gap.time)
            for gap in stream.gaps
        ]
        connection.executemany(insert(GAPS_TABLE, GAPS), rows).close()


def _stream(name: str, stream: StreamSummary, topics: Sequence[str]) -> list[Any]:
    first_seq = next(iter(stream.held), (None,))[0]
    lost = sum(gap.end - gap.first for gap in stream.gaps)
    times = [None if time is None else time_text(time) for time in (stream.first_time, stream.last_time)]
    return [name, stream.held.count(), first_seq, stream.next_seq, *times, len(stream.gaps), lost, " ".join(topics)]


# Analysis of the words of a query, to skip records that it certainly does not need.
#
# Only two shapes are recognised: a single SELECT over a single stream whose WHERE is a chain of ANDs, and one over
# the first or the newest few records. All other queries are left to SQLite, which gets all records and returns the
# same result, slower.

_TOKEN = re.compile(
    r"\s+|--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]"
    r"|[^\W\d][\w$]*|\d[\w.]*|<=|>=|<>|!=|==|<<|>>|\|\||->>|->|.",
    re.DOTALL,
)
_UNCLEAR = frozenset(
    {"OR", "NOT", "CASE", "BETWEEN", "UNION", "INTERSECT", "EXCEPT", "JOIN", "WITH", "EXISTS", "COLLATE", "VALUES"}
)
_END_OF_WHERE = frozenset({"GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", ";"})
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_FUNCTIONS = frozenset({"NOW", "DATETIME", "DATE", "STRFTIME"})
_MORE_THAN_ROWS = frozenset({"DISTINCT", "WHERE", "UNION", "INTERSECT", "EXCEPT", "WITH", "VALUES", "OVER", "OFFSET"})
_OF_ONE_ROW = frozenset({"LEVEL", "JSON_EXTRACT", "JSON_VALID", "LENGTH", "SUBSTR", "ROUND", "DATETIME", "DATE", "IIF"})
_LIKE_ISO = re.compile(r"'\d{4}-\d\d-\d\d[Tt]")


def words(sql: str) -> list[str]:
    """Return the tokens of a statement without spaces and comments."""
    return [part for part in _TOKEN.findall(sql) if not part.isspace() and not part.startswith(("--", "/*"))]


def refuse_other_times(tokens: Sequence[str]) -> None:
    """Refuse ``time > '2026-11-20T07:00'``: as text it sorts behind every time of that day, which is never intended.

    Raises:
        QueryRefused: the query has such a comparison.
    """
    for name, operator, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        left, right = (name, value) if _LIKE_ISO.match(value) else (value, name)
        if left.lower() == "time" and operator in (*_MIRRORED, "=", "==") and _LIKE_ISO.match(right):
            fixed = right[:11] + " " + right[12:].rstrip("Z'z") + "'"
            raise QueryRefused(f"times are written with a space here, in UTC: {fixed} instead of {right}")


def earliest_wanted(tokens: Sequence[str], table: str, evaluate: Callable[[str], object]) -> int | None:
    """Return the earliest time, ns since 1970, of records that can matter; None when all may.

    Args:
        table: the only stream that the query reads.
        evaluate: returns the value of a constant expression.
    """
    upper = [part.upper() for part in tokens]
    if upper.count("SELECT") != 1 or upper.count("WHERE") != 1 or not _UNCLEAR.isdisjoint(upper):
        return None
    if _mentions(tokens, table) != 1:
        return None
    bounds = [_bound(term, evaluate) for term in _terms(tokens, upper)]
    return max((bound for bound in bounds if bound is not None), default=None)


class Few(NamedTuple):
    """The number of records that a query reads from one end of a stream."""

    rows: int
    newest: bool


def few_wanted(tokens: Sequence[str], table: str) -> Few | None:
    """Return the n of ``SELECT ... FROM table [ORDER BY seq [DESC]] LIMIT n``; None for other queries.

    Args:
        table: the only stream that the query reads.
    """
    upper = [each.upper() for each in tokens if each != ";"]
    if upper.count("SELECT") != 1 or not _MORE_THAN_ROWS.isdisjoint(upper) or _mentions(tokens, table) != 1:
        return None
    calls = {name for name, after in pairwise(upper) if after == "("}
    if not calls <= _OF_ONE_ROW or len(upper) < 2 or upper[-2] != "LIMIT" or not upper[-1].isdecimal():
        return None
    start = upper.index("FROM") if "FROM" in upper else 0
    if upper[start + 1].strip('"`[]').lower() != table:
        return None
    order = upper[start + 2 : -2]
    if order in ([], ["ORDER", "BY", "SEQ", "DESC"]):
        return Few(int(upper[-1]), newest=bool(order))
    return None


def _mentions(tokens: Sequence[str], table: str) -> int:
    """Return the number of times that the query names the table other than before a column: a table joined to itself
    has no single bound."""
    pairs = zip(tokens, [*tokens[1:], ""], strict=True)
    return sum(1 for part, after in pairs if after != "." and part.strip('"`[]').lower() == table)


def _terms(tokens: Sequence[str], upper: Sequence[str]) -> Iterator[list[str]]:
    """Yield the terms of the WHERE between its ANDs."""
    term: list[str] = []
    depth = 0
    for part, word in zip(tokens, upper, strict=True):
        if word == "WHERE":
            term, depth = [], 0
            continue
        depth += (part == "(") - (part == ")")
        if depth == 0 and word in _END_OF_WHERE:
            break
        if depth == 0 and word == "AND":
            yield term
            term = []
        else:
            term.append(part)
    yield term


def _bound(term: Sequence[str], evaluate: Callable[[str], object]) -> int | None:
    if len(term) > 2 and term[1] == ".":
        term = term[2:]
    column, *rest = term or [""]
    if column.lower() in ("time", "time_ns") and rest and rest[0] in (">", ">="):
        return _value(column, rest[1:], evaluate)
    last = term[-1] if term else ""
    before = term[-2] if len(term) > 1 else ""
    if last.lower() in ("time", "time_ns") and before in ("<", "<="):
        return _value(last, term[:-2], evaluate)
    return None


def _value(column: str, operand: Sequence[str], evaluate: Callable[[str], object]) -> int | None:
    if not _is_constant(operand):
        return None
    value = evaluate(" ".join(operand))
    if column.lower() == "time_ns":
        return value if isinstance(value, int) else None
    return earliest_ns(value) if isinstance(value, str) else None


def _is_constant(operand: Sequence[str]) -> bool:
    """Return whether a term is a literal, or a call of a time function with only literals."""
    if len(operand) == 1:
        return operand[0][0] == "'" or operand[0].isdecimal()
    if len(operand) < 3 or operand[0].upper() not in _FUNCTIONS or operand[1] != "(" or operand[-1] != ")":
        return False
    return all(part == "," or part[0] == "'" or part.isdecimal() for part in operand[2:-1])


# One query: find its tables, load them, run it within its bounds.

FILE_BYTES_MAX = 1 << 30
HEAP_BYTES_MAX = 768 << 20
GRACE_S = 0.5
"""Time after the deadline in which SQLite itself detects it."""
_PROGRESS_STEPS = 20_000
"""Number of steps of SQLite's machine between two checks of the clock: a few milliseconds."""


@dataclass(frozen=True)
class QuerySettings:
    """The bounds of a query."""

    rows_max: int = 10_000_000
    """Maximum number of records to load."""
    timeout_s: float = 60.0
    """Maximum run time, loading included."""
    since_ns: int | None = None
    """Earliest time of receipt of the records, ns since 1970."""
    file_bytes_max: int = FILE_BYTES_MAX
    """Maximum size of the loaded records: 64 MiB of memory, and then a temporary file."""
    heap_bytes_max: int = HEAP_BYTES_MAX
    """Memory of all of SQLite in this process: its cache, and the sorting and grouping of queries. The lowest bound of
    all queries of a process counts."""


class Result(NamedTuple):
    """The result of a query, row by row."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]
    """Rows. Raises ``QueryRefused`` and ``QueryStopped`` as ``Query.run`` does."""


class Query:
    """A database for one query. ``close`` it. For one thread."""

    def __init__(
        self,
        directory: LogDirectory,
        streams: Mapping[str, Sequence[str]],
        durability: Durability,
        settings: QuerySettings,
        *,
        now_ns: int,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Wait = sleep,
    ) -> None:
        """Prepare for a query over the log in ``directory``.

        Args:
            streams: the existing streams, with their topic patterns as far as known.
            now_ns: the time of ``now()``, ns since 1970.
        """
        self._directory = directory
        self._streams = streams
        self._durability = durability
        self._settings = settings
        self._now_ns = now_ns
        self._monotonic = monotonic
        self._wait = wait
        self._deadline = monotonic() + settings.timeout_s
        self._loaded = 0
        self._function_error: Exception | None = None
        self._is_in_sqlite = False
        self.damage: list[DamagedBytes] = []
        """Unreadable bytes of the log: rows lack their records."""
        self._tables = columns_of(streams)
        self._connection = sqlite3.connect("", isolation_level=None)
        confine(self._connection, settings.file_bytes_max, settings.heap_bytes_max)
        self._connection.create_function("now", -1, self._now, deterministic=True)
        self._connection.create_function("level", 2, _level, deterministic=True)
        create(self._connection, self._tables)

    def close(self) -> None:
        """Drop all loaded data."""
        self._connection.close()

    def why_stuck(self) -> str | None:
        """Return the message of a query that does not end by itself; None while it may. For any thread.

        SQLite checks the clock between the steps of its machine. One step can call a function that takes minutes, such
        as ``instr`` with two long texts, and only the end of the process ends it.
        """
        is_stuck = self._is_in_sqlite and self._monotonic() > self._deadline + GRACE_S
        return self._too_long() if is_stuck else None

    @property
    def is_in_sqlite(self) -> bool:
        """Return whether SQLite is running now. For any thread."""
        return self._is_in_sqlite

    def run(self, sql: str) -> Result:
        """Load the tables that ``sql`` reads, and start the query.

        Raises:
            QueryRefused: the SQL is wrong, or not a SELECT.
            QueryStopped: a bound was reached.
            NoLog, OSError, UnsupportedVersion: the log cannot be read.
            KeyboardInterrupt: while SQLite was running.
        """
        parts = words(sql)
        refuse_other_times(parts)
        reads = self._guarded(lambda: what_it_reads(self._connection, sql))
        self._guarded(lambda: self._load(reads, parts))
        self._connection.set_progress_handler(self._is_late, _PROGRESS_STEPS)
        self._connection.set_authorizer(authorize)
        cursor = self._guarded(lambda: self._connection.execute(sql))
        return Result(tuple(column[0] for column in cursor.description or ()), self._rows(cursor))

    def _rows(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        while (row := self._guarded(cursor.fetchone)) is not None:
            yield row

    def _load(self, reads: Mapping[str, set[str]], parts: Sequence[str]) -> None:
        wanted = {name: reads[name] for name in self._streams if name in reads}
        since, few = self._settings.since_ns, None
        if len(wanted) == 1:
            (table,) = wanted
            bound = earliest_wanted(parts, table, self._evaluate)
            since = max((each for each in (since, bound) if each is not None), default=None)
            few = few_wanted(parts, table) if since is None else None
        if wanted:
            self._load_records(wanted, since, few)
        if STREAMS_TABLE in reads or GAPS_TABLE in reads:
            fill(self._connection, self._streams, summarise(self._directory).streams)

    def _load_records(self, wanted: Mapping[str, set[str]], since: int | None, few: Few | None) -> None:
        fills = {
            name: StreamTable(self._connection, name, self._streams[name], columns) for name, columns in wanted.items()
        }

        def is_too_old(footer: Footer) -> bool:
            lanes = [lane for lane in (*footer.lanes, *footer.moved) if footer.streams.get(lane.stream) in wanted]
            return all(since is not None and lane.last_time < since for lane in lanes)

        place, enough = None, math.inf
        if few is not None and not few.newest:
            enough = few.rows
        elif few is not None:
            place = find_beginning(self._directory, wanted.__contains__, Start(last=few.rows)).place
        cursor = Cursor(self._directory, place, wanted.__contains__, is_too_old)
        self._connection.execute("BEGIN").close()
        try:
            for commit in settled_commits(cursor, self._durability, self._wait):
                self._add(commit, fills, since, enough)
                if self._loaded >= enough:
                    break
            for fill in fills.values():
                fill.flush()
        finally:
            cursor.close()
        self._connection.execute("COMMIT").close()

    def _add(self, commit: Commit, fills: Mapping[str, StreamTable], since: int | None, enough: float) -> None:
        if self._is_late():
            raise QueryStopped(self._too_long())
        for item in commit.items:
            if self._loaded >= enough:
                return
            if isinstance(item, DamagedBytes):
                self.damage.append(item)
                continue
            name, entry = item
            header = entry.value
            if not isinstance(header, BatchHeader) or (since and max(header.first_time, header.last_time) < since):
                continue
            try:
                self._loaded += fills[name].add(entry.body, since, commit.origins.get(header.origin))
            except CodecError:
                self.damage.append(DamagedBytes(commit.file, entry.offset, entry.end))
            if self._loaded > self._settings.rows_max:
                raise QueryStopped(
                    f"the query reads more than {self._settings.rows_max} records: ask for fewer with --since 10m or "
                    "WHERE time > now('-10m'), or allow more with --rows-max"
                )

    def _evaluate(self, expression: str) -> object:
        """Return the value of a constant expression; None when it has none."""
        try:
            row = self._connection.execute(f"SELECT {expression}").fetchone()
        except sqlite3.Error:
            return None
        return row[0] if row else None

    def _now(self, *offset: object) -> str:
        try:
            return time_text(shifted(self._now_ns, *map(str, offset[:1])))
        except (ValueError, OverflowError) as error:
            self._function_error = ValueError(f"now(): {error}") if "now(" not in str(error) else error
            raise

    def _is_late(self) -> bool:
        return self._monotonic() > self._deadline

    def _too_long(self) -> str:
        return f"the query took longer than {self._settings.timeout_s:g} s: ask for less, or allow more with --timeout"

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Call SQLite, and convert its errors to sentences."""
        self._is_in_sqlite = True
        try:
            return call()
        except sqlite3.Error as error:
            if "interrupted" in str(error):
                # Ctrl-C ends SQLite through the progress handler, in which Python swallows the exception.
                raise (QueryStopped(self._too_long()) if self._is_late() else KeyboardInterrupt) from None
            raise self._explained(error) from None
        except sqlite3.Warning as error:
            raise self._explained(error) from None
        except MemoryError:
            raise QueryStopped(TOO_LARGE) from None
        finally:
            self._is_in_sqlite = False

    def _explained(self, error: Exception) -> QueryRefused | QueryStopped:
        if self._function_error is not None:
            return QueryRefused(str(self._function_error))
        return explained(str(error), self._tables)


def _level(key: object, number: object) -> str | None:
    """Return the ``number``-th level of a topic, counted from 1; NULL when there is none."""
    if not isinstance(key, str) or not isinstance(number, int):
        return None
    levels = key.split("/")
    return levels[number - 1] if 1 <= number <= len(levels) else None


__all__ = [
    "FILE_BYTES_MAX",
    "HEAP_BYTES_MAX",
    "NoSuchTable",
    "Query",
    "QueryRefused",
    "QuerySettings",
    "QueryStopped",
    "Result",
]
