"""A look-up table from an operator's file: CSV or SQLite."""

from __future__ import annotations

import csv
import hashlib
import math
import os
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TextIO
from urllib.parse import quote

import msgspec

from weft.config.machine import why_unreadable

HASH_CHARACTERS = 12
LINE_CHARACTERS_MAX = 1 << 20
"""Longest line of a CSV file. Another file than CSV may be one line of a gigabyte."""
COLUMNS_MAX = 2000
VALUE_BYTES_MAX = 1 << 20
STEPS_MAX = 200_000_000
"""Maximum number of SQLite's steps for all rows: ten seconds. A view may be an endless query."""
_STEPS_A_LOOK = 10_000
_SQLITE_MAGIC = b"SQLite format 3\0"
_ROW_BYTES = 250
"""Memory of a row beside its text: the tuple, its entry in the mapping, and the heads of key and values."""
_ROWS_A_TURN = 50
_WHOLE_FLOAT_MAX = 1 << 53


class TableError(ValueError):
    """An unusable file for a table, with its name, the place and the remedy."""


class Wanted(NamedTuple):
    """A file, and the columns and bounds of the table."""

    file: str
    column: str
    """Column that is looked up in."""
    fields: tuple[str, ...]
    """Columns to return; none for all others."""
    numbers: frozenset[str]
    table: str | None
    rows_max: int
    bytes_max: int


class LookupTable(NamedTuple):
    """The rows of a file."""

    fields: tuple[str, ...]
    rows: dict[str, tuple[Any, ...]]
    """Value of the column, as text -> values of the fields."""
    version: str
    """Prefix of the hash of the content: equal for equal content."""


def text_of(value: Any) -> str | None:
    """Return a value in the form for comparison: as text, so that 7 in a payload finds 7 in a CSV file. None for a type
    without a look-up."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) <= _WHOLE_FLOAT_MAX:
        return str(int(value))
    return str(value) if isinstance(value, int | float) else None


class Stopped(Exception):
    """The table is no longer needed."""


def read_table(wanted: Wanted, stopped: Callable[[], bool] = bool) -> LookupTable:
    """Return the table of a file.

    Args:
        stopped: returns whether the table is no longer needed.

    Raises:
        Stopped: ``stopped`` returned True.
        TableError: the file cannot be read or is not valid.
    """
    name = os.path.basename(wanted.file)
    try:
        if not stat.S_ISREG(os.stat(wanted.file).st_mode):
            # Opening a pipe would wait for a writer, and a device may have no end.
            raise TableError(f"{name}: is not a regular file")
        with open(wanted.file, "rb") as file:
            is_sqlite = file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
        return (_sqlite if is_sqlite else _csv)(wanted, name, stopped)
    except OSError as error:
        raise TableError(f"{wanted.file}: {why_unreadable(error)}") from error
    except sqlite3.Error as error:
        raise TableError(f"{name}: SQLite says: {error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise TableError(f"{name}: is neither a CSV file in UTF-8 nor an SQLite database: {error}") from error


def _csv(wanted: Wanted, name: str, stopped: Callable[[], bool]) -> LookupTable:
    # "utf-8-sig": spreadsheets put a byte order mark before the first column's name.
    with open(wanted.file, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(_lines(file, name, stopped), strict=True)
        header = next(reader, None)
        if not header:
            raise TableError(f"{name}: is empty. Its first line has to name the columns")
        if len(header) > COLUMNS_MAX:
            raise TableError(f"{name}, line 1: names more than {COLUMNS_MAX:,} columns")
        if repeated := sorted(column for column, count in Counter(header).items() if count > 1):
            raise TableError(f"{name}, line 1: two columns are named {repeated[0]}. Rename one")
        at, fields, positions = _columns(wanted, name, header)
        if unknown := sorted(wanted.numbers - set(header)):
            raise TableError(f"{name}: has no column {unknown[0]}, which `numbers` names. {_known(header)}")

        def rows() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
            for row in reader:
                if not row:
                    continue
                place = f"{name}, line {reader.line_num}"
                if len(row) != len(header):
                    raise TableError(f"{place}: has {len(row)} values, and line 1 names {len(header)} columns")
                values = (
                    _number(row[i], header[i], place) if header[i] in wanted.numbers else row[i] for i in positions
                )
                yield place, row[at], tuple(values)

        return _table(wanted, name, fields, rows(), stopped)


def _lines(file: TextIO, name: str, stopped: Callable[[], bool]) -> Iterator[str]:
    number = 0
    while line := file.readline(LINE_CHARACTERS_MAX):
        number += 1
        if number % _ROWS_A_TURN == 0:
            if stopped():
                raise Stopped
            time.sleep(0)  # lets the node's loop run
        if len(line) == LINE_CHARACTERS_MAX and not line.endswith(("\n", "\r")):
            raise TableError(f"{name}, line {number}: has more than {LINE_CHARACTERS_MAX:,} characters")
        yield line


def _sqlite(wanted: Wanted, name: str, stopped: Callable[[], bool]) -> LookupTable:
    with closing(sqlite3.connect(f"file:{quote(wanted.file)}?mode=ro", uri=True)) as database:
        steps = 0

        def look() -> bool:
            nonlocal steps
            steps += _STEPS_A_LOOK
            return stopped() or steps > STEPS_MAX

        database.set_progress_handler(look, _STEPS_A_LOOK)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
        try:
            return _database(wanted, name, database, stopped)
        except sqlite3.OperationalError:
            if stopped():
                raise Stopped from None
            if steps > STEPS_MAX:
                raise TableError(
                    f"{name}: takes more work than {STEPS_MAX:,} steps. Make a table of the view"
                ) from None
            raise


def _database(wanted: Wanted, name: str, database: sqlite3.Connection, stopped: Callable[[], bool]) -> LookupTable:
    names = [
        row[0]
        for row in database.execute(
            "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
    ]
    table = wanted.table or (names[0] if len(names) == 1 else None)
    if table is None:
        raise TableError(f"{name}: has {len(names)} tables. Name one in `table`. {_known(names)}")
    if table not in names:
        raise TableError(f"{name}: has no table {table}. {_known(names)}")
    quoted = '"' + table.replace('"', '""') + '"'
    cursor = database.execute(f"SELECT * FROM {quoted} LIMIT {wanted.rows_max + 1}")  # noqa: S608 - quoted
    header = [each[0] for each in cursor.description]
    at, fields, positions = _columns(wanted, name, header)
    found = (
        (f"{name}, row {number}", row[at], tuple(row[i] for i in positions)) for number, row in enumerate(cursor, 1)
    )
    return _table(wanted, name, fields, found, stopped)


def _columns(wanted: Wanted, name: str, header: Sequence[str]) -> tuple[int, tuple[str, ...], list[int]]:
    for column in (wanted.column, *wanted.fields):
        if column not in header:
            raise TableError(f"{name}: has no column {column}. {_known(header)}")
    fields = wanted.fields or tuple(column for column in header if column != wanted.column)
    return header.index(wanted.column), fields, [header.index(field) for field in fields]


def _table(
    wanted: Wanted,
    name: str,
    fields: tuple[str, ...],
    rows: Iterable[tuple[str, Any, tuple[Any, ...]]],
    stopped: Callable[[], bool],
) -> LookupTable:
    found: dict[str, tuple[Any, ...]] = {}
    size = 0
    encode = msgspec.msgpack.Encoder().encode
    # Row by row: one call for all of them would hold the interpreter's lock, and so the node's loop.
    digest = hashlib.sha256(encode([wanted.column, fields]))
    for place, value, values in rows:
        key = text_of(value)
        if key is None:
            continue  # NULL, which equals no record's value
        if key in found:
            raise TableError(f'{place}: {wanted.column} "{key:.80}" is there twice. Keep one')
        found[key] = values
        try:
            digest.update(encode((key, values)))
        except (OverflowError, ValueError):
            raise TableError(
                f"{place}: has an integer of more than 64 bits. Leave its column out of `numbers`"
            ) from None
        if len(found) % _ROWS_A_TURN == 0:
            if stopped():
                raise Stopped
            time.sleep(0)  # as in ``_lines``
        size += _ROW_BYTES + len(key) + sum(len(each) if isinstance(each, str | bytes) else 8 for each in values)
        if len(found) > wanted.rows_max:
            raise TableError(f"{name}: has more than {wanted.rows_max:,} rows. Raise `rows`, or shorten it")
        if size > wanted.bytes_max:
            raise TableError(f"{name}: takes more than {wanted.bytes_max:,} bytes. Raise `memory`, or shorten it")
    return LookupTable(fields, found, digest.hexdigest()[:HASH_CHARACTERS])


def _number(text: str, column: str, place: str) -> int | float | None:
    text = text.strip()
    if not text:
        return None
    try:
        try:
            return int(text)
        except ValueError:
            if math.isfinite(found := float(text)):
                return found
    except ValueError:
        pass
    raise TableError(f'{place}: {column} is not a number: "{text:.80}". Leave it out of `numbers`, or mend it')


def _known(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10]) or "none"
    return f"There are: {shown}{', ...' if len(names) > 10 else ''}"
