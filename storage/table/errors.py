"""Errors of tables."""

from __future__ import annotations


class TableError(Exception):
    """A table that could not be read or changed, or does not fit the log. Nothing is lost: the log keeps the
    records."""


class TableConflict(TableError):
    """A commit that lost to another writer, or with an unknown outcome. Read the table again and decide again."""
