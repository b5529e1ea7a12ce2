"""Errors of tables."""

from __future__ import annotations


class TableError(Exception):
    """A table that could not be read or changed, or does not fit the log. Nothing is lost: the log keeps the
    records."""


class TableDiverged(TableError):
    """A table that holds rows of another history than the log's. No more rows are added to it: they would be doubled
    or missing among those that are there."""


class TableConflict(TableError):
    """A commit that lost against another writer. Read the table again and decide again."""
