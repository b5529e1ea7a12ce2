"""Tables of a query: one for each stream, ``weft_streams`` and ``weft_gaps``."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence

from weft.protocols.topics import compile_pattern

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
    "stream": "TEXT", "records": "INTEGER", "first_seq": "INTEGER", "next_seq": "INTEGER", "first_time": "TEXT",
    "last_time": "TEXT", "gaps": "INTEGER", "records_lost": "INTEGER", "topics": "TEXT",
}  # fmt: skip
GAPS = {
    "stream": "TEXT", "first": "INTEGER", "end": "INTEGER", "records": "INTEGER", "reason": "TEXT", "time": "TEXT",
    "time_ns": "INTEGER",
}  # fmt: skip
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


def told(tables: Mapping[str, Mapping[str, str]]) -> str:
    """Return the tables and their columns in a line, for the author of a misspelt name."""
    return "; ".join(f"{as_written(name)}({', '.join(columns)})" for name, columns in tables.items())


def as_written(name: str) -> str:
    """Return a table's name in the spelling of a query."""
    return name if name.replace("_", "a").isalnum() and not name[0].isdigit() else quoted(name)
