"""Permissions of a query, which may only read, and its columns, so that only these are loaded."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

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
