"""``enrich``: fields from a file."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import logging
import math
import os
import sqlite3
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TextIO
from urllib.parse import quote

import msgspec

from weft.config.functions.step import Enrich as Settings
from weft.config.machine import why_unreadable
from weft.functions.contract import MISSING, AsyncFunction, Context, NotReady, Out, Row, getter

# A look-up table from an operator's file: CSV or SQLite.

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


class TableRequest(NamedTuple):
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


def read_table(wanted: TableRequest, stopped: Callable[[], bool] = bool) -> LookupTable:
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
        raise TableError(f"{name}: SQLite: {error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise TableError(f"{name}: is neither a CSV file in UTF-8 nor an SQLite database: {error}") from error


def _csv(wanted: TableRequest, name: str, stopped: Callable[[], bool]) -> LookupTable:
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


def _sqlite(wanted: TableRequest, name: str, stopped: Callable[[], bool]) -> LookupTable:
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


def _database(
    wanted: TableRequest, name: str, database: sqlite3.Connection, stopped: Callable[[], bool]
) -> LookupTable:
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


def _columns(wanted: TableRequest, name: str, header: Sequence[str]) -> tuple[int, tuple[str, ...], list[int]]:
    for column in (wanted.column, *wanted.fields):
        if column not in header:
            raise TableError(f"{name}: has no column {column}. {_known(header)}")
    fields = wanted.fields or tuple(column for column in header if column != wanted.column)
    return header.index(wanted.column), fields, [header.index(field) for field in fields]


def _table(
    wanted: TableRequest,
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
            raise TableError(f'{place}: {wanted.column} "{key:.80}" is listed twice. Keep one')
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


# Detection of changed files for functions.

CHECK_INTERVAL_S = 1.0
"""Interval between two checks of the files."""


class WatchedFiles:
    """A watch over files, by size, times and inode; their content is not read.

    ``now`` is monotonic seconds.
    """

    def __init__(self, paths: Sequence[str], interval_s: float = CHECK_INTERVAL_S) -> None:
        self._paths = paths
        self._interval_s = interval_s
        self._check_at = 0.0
        self._states: list[object] | None = None

    def changed(self, now: float) -> bool:
        """Return whether the files differ from the last check; True at the first. It checks only after the interval."""
        if self._states is not None and now < self._check_at:
            return False
        self._check_at = now + self._interval_s
        former, self._states = self._states, [_state(path) for path in self._paths]
        return self._states != former

    def forget(self) -> None:
        """Report a change at the next check."""
        self._states = None


def _state(path: str) -> object:
    try:
        found = os.stat(path)
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
    except OSError as error:
        return error.errno


log = logging.getLogger(__name__)


class Enrich(AsyncFunction):
    """Rows with fields from a CSV file or an SQLite database, looked up by one of their values
    (docs/functions/enrich.md).

    State: none. The table in memory has at most ``rows`` rows and about ``memory`` bytes; it is read in a thread, and
    meanwhile there are two of them.
    """

    def __init__(self, settings: Settings, context: Context) -> None:
        self._settings = settings
        self._context = context
        self._value = _value_getter(settings.on, context)
        self._wanted = wanted_of(settings)
        # A database in WAL mode is changed in a file beside it.
        self._files = WatchedFiles((settings.file, f"{settings.file}-wal"), CHECK_INTERVAL_S)
        self._table: LookupTable | None = None
        self._trouble = ""
        self._stopped = threading.Event()

    async def prepare(self) -> None:
        """Read the file, if it changed."""
        if self._files.changed(asyncio.get_running_loop().time()):
            try:
                table = await asyncio.to_thread(read_table, self._wanted, self._stopped.is_set)
            except TableError as error:
                self._refuse(str(error))
            else:
                self._trouble = ""
                if self._table is None or table.version != self._table.version:
                    log.info(
                        "%s: read %d rows of %s, version %s",
                        self._context.stream,
                        len(table.rows),
                        self._settings.file,
                        table.version,
                    )
                self._table = table
        if self._table is None:
            raise NotReady(self._trouble)

    def _refuse(self, why: str) -> None:
        stays = "; the rows read before stay in use" if self._table is not None else ""
        if self._trouble != f"{why}{stays}":
            log.error("%s: %s%s", self._context.stream, why, stays)
        self._trouble = f"{why}{stays}"

    async def close(self) -> None:
        """Stop reading. The end of a node waits for its threads."""
        self._stopped.set()

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows with the fields of the file."""
        assert self._table is not None
        fields, table = self._table.fields, self._table.rows
        nothing = (None,) * len(fields)
        missing = self._settings.missing
        made: list[Row] = []
        for row in rows:
            value = self._value(row)
            if value is MISSING:
                out.reject(row, f"field {self._settings.on} is missing")
                continue
            key = text_of(value)
            found = table.get(key) if key is not None else None
            if found is None:
                if missing != "keep":
                    reason = f"{self._settings.on} {value!r:.80} is not in {self._wanted.file}"
                    (out.reject if missing == "reject" else out.drop)(row, reason)
                    continue
                found = nothing
            row.values = {**row.values, **dict(zip(fields, found, strict=True))}
            row.payload = None
            made.append(row)
        return made

    def version(self) -> str:
        """Return the prefix of the hash of the table's content."""
        return self._table.version if self._table is not None else ""

    def trouble(self) -> str:
        """Return the reason why the present file is not in use."""
        return self._trouble


def wanted_of(settings: Settings) -> TableRequest:
    """Return the file and columns of the settings."""
    return TableRequest(
        file=settings.file,
        column=settings.column or settings.on.rpartition(".")[2],
        fields=settings.fields,
        numbers=frozenset(settings.numbers),
        table=settings.table,
        rows_max=settings.rows,
        bytes_max=settings.memory_bytes,
    )


def _value_getter(on: str, context: Context) -> Callable[[Row], Any]:
    if on in context.level_names:
        return lambda row: context.levels(row.key).get(on, MISSING)
    if on == "key":
        return lambda row: row.key.decode(errors="replace")
    get = getter(on)
    return lambda row: get(row.values)
