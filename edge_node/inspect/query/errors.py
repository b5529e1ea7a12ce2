"""Errors of a query: their cause, and SQLite's errors in the query's terms."""

from __future__ import annotations

from collections.abc import Mapping

from weft.edge_node.inspect.query.tables import as_written, told

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
            f"{text}. For a field of a JSON payload, write payload ->> '$.{name}'. Columns: {told(tables)}"
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
