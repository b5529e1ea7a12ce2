"""What can be wrong with a query, whose fault it is, and what SQLite's words mean here."""

from __future__ import annotations

from collections.abc import Mapping

from edge_node.query.tables import told

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
    kind = NoSuchTable if text.startswith("no such table") else QueryRefused
    return kind(f"{text}; tables: {told(tables)}")
