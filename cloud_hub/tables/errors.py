"""What can go wrong with a table."""

from __future__ import annotations


class TableError(Exception):
    """The table could not be read or changed, or does not fit the log. Nothing is lost: the log keeps the records."""


class TableConflict(TableError):
    """Another writer committed first. Read the table again and decide again."""
