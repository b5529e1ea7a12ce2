"""Errors of tables."""

from __future__ import annotations


class TableError(Exception):
    """A table that could not be read or changed, or does not fit the log. Nothing is lost: the log keeps the
    records."""
