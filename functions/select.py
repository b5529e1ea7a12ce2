"""A SELECT over a few rows in SQLite's memory, with limits that give the same result each time.

The work is counted in steps of SQLite's virtual machine, not in seconds: a node under load must return the same rows as
an idle one. For the same reason there is no ``now`` and no ``random``.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from weft.functions.window_plan import WindowError, text_of

# Columns of a SELECT's table: fields of a window's rows.

COLUMNS_MAX = 500
"""Maximum number of columns of the table."""


def names_in(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a row that can be columns, by their normalised names.

    Names of columns ignore case, and SQL text cannot have a NUL.
    """
    names: dict[str, str] = {}
    for name in values:
        if "\0" not in name:
            names.setdefault(name.lower(), name)
    return names


def fitting(columns: Sequence[str], rows: Sequence[Any]) -> tuple[list[str], list[int]]:
    """Return columns for all fields of some rows, and the indexes of rows with too many fields.

    Topics with few fields are served first, so that one device that sends hundreds does not displace the others'
    columns.

    Args:
        columns: columns that exist in any case.
        rows: each of a time, a topic and values.
    """
    taken = {name.lower(): name for name in columns}
    every = taken.copy()
    for row in rows:
        _add(every, row[2])
    if len(every) <= COLUMNS_MAX:
        return [*every.values()], []
    of_topic: dict[bytes, list[int]] = {}
    for at, row in enumerate(rows):
        of_topic.setdefault(row[1], []).append(at)
    fields = {topic: len(_all(taken, (rows[at][2] for at in places))) for topic, places in of_topic.items()}
    cut: list[int] = []
    for topic in sorted(of_topic, key=lambda each: (fields[each], each)):
        for at in of_topic[topic]:
            more = {each: name for each, name in names_in(rows[at][2]).items() if each not in taken}
            if len(taken) + len(more) > COLUMNS_MAX:
                cut.append(at)
            else:
                taken |= more
    # In the rows' order, as for windows that keep all.
    return [name for each, name in every.items() if each in taken], sorted(cut)


def _add(names: dict[str, str], values: Mapping[str, Any]) -> None:
    for name in values:
        if name.lower() not in names and "\0" not in name:
            names[name.lower()] = name


def _all(known: Mapping[str, str], every: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    names = dict(known)
    for values in every:
        _add(names, values)
    return names


TABLE = "input"
VALUE_BYTES_MAX = 1 << 20
"""Longest intermediate text."""
_PROBE = "a column that no SELECT names"
_STEPS_A_LOOK = 1000
_STEPS_TO_COMPILE = 20_000
"""Maximum number of steps over no rows, to find errors that SQLite only reports at run time. The node's loop waits for
them."""
_NO_COLUMN = re.compile(r"no such column: (?:.*\.)?(.+)$")
_DATES = ("date", "time", "datetime", "julianday", "unixepoch", "strftime") + (
    ("timediff",) if sqlite3.sqlite_version_info >= (3, 43) else ()
)
_REFUSED = frozenset(
    (
        "random",
        "randomblob",
        "zeroblob",
        "changes",
        "total_changes",
        "last_insert_rowid",
        "load_extension",
        "current_date",
        "current_time",
        "current_timestamp",
        "sqlite_version",
        "sqlite_source_id",
        "fts3_tokenizer",
    )
)
_TIME_OF_MACHINE = frozenset(("now", "localtime", "utc"))
_READS = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ))


class SelectError(Exception):
    """A failed SELECT of a window, with a reason for people."""


class Limits(NamedTuple):
    """Limits of one SELECT."""

    steps: int
    """Steps of SQLite's virtual machine."""
    rows: int
    """Rows of the result."""


class SelectResult(NamedTuple):
    """Result of a SELECT."""

    rows: list[dict[str, Any]]
    """Rows of the result, by the names of its columns."""
    cut: list[int]
    """Indexes of omitted rows: the table has no columns for all of their fields."""


class Select:
    """A compiled SELECT. For one thread at a time."""

    def __init__(self, text: str, levels: Sequence[str], limits: Limits) -> None:
        """Compile a SELECT, and determine the columns that it names.

        Raises:
            WindowError: it is not an allowed SELECT; the message has the reason.
        """
        self._text = text
        self._limits = limits
        self._levels = [name for name in levels if name not in ("key", "time")]
        self._steps = 0
        self._refused = ""
        self._dates = sqlite3.connect(":memory:", check_same_thread=False)
        self._db = self._open()
        self._reads_probe = False
        self._takes_all = True
        self._named: list[str] = []
        self._columns: list[str] = []
        self._compiles = True
        self._compile()
        self._takes_all = self._reads_unnamed()
        """True where a SELECT reads columns that it does not name, as ``*`` does. Otherwise unnamed fields are left
        out, so that a device that sends hundreds of them cannot fill the table."""
        self._compiles = False

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA temp_store = MEMORY")
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for name in _DATES:
            db.create_function(name, -1, self._date_function(name), deterministic=True)
        return db

    def _date_function(self, name: str) -> Any:
        def call(*values: Any) -> Any:
            # Without arguments, or with only a modifier, SQLite uses the present time.
            texts = [each.strip().lower() if isinstance(each, str) else "" for each in values]
            given = values[1:] if name == "strftime" else values
            if not given or _TIME_OF_MACHINE & {*texts} or texts[len(values) - len(given)].startswith("subsec"):
                self._refused = f"{name} of now, localtime or utc: a window gives the same rows whenever it runs"
                raise ValueError(self._refused)
            marks = ", ".join("?" * len(values))
            return self._dates.execute(f"SELECT {name}({marks})", values).fetchone()[0]

        return call

    def _compile(self) -> None:
        for _ in range(COLUMNS_MAX):
            try:
                self._run([], {})
            except SelectError as error:
                if self._steps > _STEPS_TO_COMPILE:
                    return  # it is valid, but much work even without rows
                found = _NO_COLUMN.search(str(error))
                if found is None:
                    raise WindowError(f"select: {error}") from None
                # A field that no row has is null, not an error: the fields of rows are unknown here.
                self._named.append(found[1].strip('"[]`'))
            else:
                return
        raise WindowError(f"select: more than {COLUMNS_MAX} columns")

    def _reads_unnamed(self) -> bool:
        self._reads_probe = False
        with contextlib.suppress(SelectError, sqlite3.Error):
            self._fill([*dict.fromkeys(("key", "time", *self._levels, *self._named)), _PROBE], [], {})
            self._select()
        self._db.set_authorizer(None)
        self._db.set_progress_handler(None, 0)
        return self._reads_probe

    @property
    def columns_left(self) -> int | None:
        """Return the maximum number of fields of a row; None where the SELECT reads only named columns."""
        fixed = {*map(str.lower, ("key", "time", *self._levels))}
        return COLUMNS_MAX - len(fixed) if self._takes_all else None

    def rows(self, rows: Iterable[bytes], levels: Mapping[bytes, Mapping[str, str]]) -> SelectResult:
        """Return the result for some rows.

        Args:
            rows: each packed: time in ns, key, values, and data that is not visible to the SELECT.
            levels: levels of the topic, by key.

        Raises:
            SelectError: it took too many steps, returned too many rows, or failed.
        """
        return self._run([msgspec.msgpack.decode(each)[:3] for each in rows], levels)

    def _run(self, rows: list[Any], levels: Mapping[bytes, Mapping[str, str]]) -> SelectResult:
        columns, cut = [*dict.fromkeys(("key", "time", *self._levels, *self._named))], list[int]()
        if self._takes_all:
            columns, cut = fitting(columns, rows)
            if cut:
                left = {*cut}
                rows = [row for at, row in enumerate(rows) if at not in left]
        try:
            self._fill(columns, rows, levels)
            return SelectResult(self._select(), cut)
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            text = "it took too long" if str(error) == "interrupted" else str(error)
            raise SelectError(self._refused or text) from None
        finally:
            self._db.set_authorizer(None)
            self._db.set_progress_handler(None, 0)

    def _fill(self, columns: list[str], rows: list[Any], levels: Mapping[bytes, Mapping[str, str]]) -> None:
        db = self._db
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        if columns == self._columns:
            db.execute(f"DELETE FROM {TABLE}")  # noqa: S608
        else:
            self._columns = []
            db.execute(f"DROP TABLE IF EXISTS {TABLE}")
            db.execute(f"CREATE TABLE {TABLE} ({names})")
            self._columns = columns
        marks = ", ".join("?" * len(columns))
        fields = columns[2 + len(self._levels) :]
        db.executemany(
            f"INSERT INTO {TABLE} VALUES ({marks})",  # noqa: S608
            (
                (
                    text_of(key),
                    time / 1e9,
                    *(levels.get(key, {}).get(name) for name in self._levels),
                    *(_column(values.get(name)) for name in fields),
                )
                for time, key, values in rows
            ),
        )

    def _select(self) -> list[dict[str, Any]]:
        self._steps, self._refused = 0, ""
        self._db.set_authorizer(self._authorize)
        self._db.set_progress_handler(self._look, _STEPS_A_LOOK)
        cursor = self._db.execute(self._text)
        if cursor.description is None:
            raise SelectError("it gives no rows; write a SELECT")
        found = cursor.fetchmany(self._limits.rows + 1)
        if len(found) > self._limits.rows:
            raise SelectError(f"it gives more than {self._limits.rows:,} rows (results_max)")
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, each, strict=True)) for each in found]

    def _look(self) -> int:
        self._steps += _STEPS_A_LOOK
        if self._steps <= (_STEPS_TO_COMPILE if self._compiles else self._limits.steps):
            return 0
        self._refused = f"it took more than {self._limits.steps:,} steps (steps_max)"
        return 1

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        self._reads_probe |= action == sqlite3.SQLITE_READ and second == _PROBE
        if action in _READS:
            # SQLite's own tables are not allowed.
            if action == sqlite3.SQLITE_READ and (first or "").lower().startswith(("sqlite_", "pragma_")):
                self._refused = f"{first} is not there; the only table is {TABLE}"
                return sqlite3.SQLITE_DENY
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            name = (second or "").lower()
            if name not in _REFUSED:
                return sqlite3.SQLITE_OK
            self._refused = f"{name} is not allowed: a window gives the same rows whenever it runs"
            return sqlite3.SQLITE_DENY
        self._refused = f"only a SELECT over the table {TABLE} may run here, without WITH RECURSIVE"
        return sqlite3.SQLITE_DENY

    def close(self) -> None:
        """Free the memory."""
        self._db.close()
        self._dates.close()


def _column(value: Any) -> Any:
    """Return a value in SQLite's form: lists and mappings as JSON."""
    if type(value) in (str, float, bytes) or value is None:
        return value
    if type(value) is bool:
        return int(value)
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 63 else float(value)
    return msgspec.json.encode(value).decode()


# Code of the process that runs the SELECTs of a ``sql`` function, in place of a user's code.
#
# A process instead of a thread of the node: a SELECT sorts in memory, and SQLite can only bound the memory of a whole
# process, which the node's sessions would share.

_selects: dict[str, Select] = {}


def process(record: dict[str, Any], ctx: object) -> dict[str, Any]:  # noqa: ARG001
    """Return the result of a window's SELECT, or the reason why it has none."""
    text = record["select"]
    if text not in _selects:
        _selects[text] = Select(text, record["names"], Limits(*record["limits"]))
    try:
        return _selects[text].rows(record["rows"], dict(record["levels"]))._asdict()
    except SelectError as error:
        return {"error": str(error)}
