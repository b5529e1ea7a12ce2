"""What can be wrong with a query, whose fault it is, and what SQLite's words mean here."""

from __future__ import annotations

from collections.abc import Mapping

from weft.edge_node.inspect.query.tables import as_written, told

TOO_LARGE = (
    "the query needs more memory or temporary space than it may take: ask for fewer records with --since 10m, or name "
    "the columns that you need instead of *"
)


class QueryRefused(ValueError):
    """The SQL is wrong, or wants more than to read."""


class NoSuchTable(QueryRefused):
    """The SQL names a table that there is not, as far as was looked."""


class QueryStopped(Exception):
    """The query reached a bound: time, rows or space. Ask for less, or allow more."""


def explained(text: str, tables: Mapping[str, Mapping[str, str]]) -> QueryRefused | QueryStopped:
    """An error of SQLite as a sentence for who wrote the query."""
    if any(words in text for words in ("disk is full", "out of memory", "too big")):
        return QueryStopped(TOO_LARGE)
    if any(words in text for words in ("not authorized", "prohibited", 'near "EXPLAIN"', "authorization denied")):
        return QueryRefused("a query is one SELECT: nothing here can be changed, attached, set or loaded")
    if "one statement" in text:
        return QueryRefused("a query is one SELECT, and there is more behind it")
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
