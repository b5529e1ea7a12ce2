"""Errors of a read or a write that cannot be done as asked."""

from __future__ import annotations


class ReadError(ValueError):
    """A read that the options, or the store behind them, do not allow. The message says what to change."""


class SinkError(ValueError):
    """A write that a sink's arguments, its rows or its target do not allow. The message says what to change."""
