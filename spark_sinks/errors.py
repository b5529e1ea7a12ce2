"""What a reader is told when a read cannot be done as asked."""

from __future__ import annotations


class ReadError(ValueError):
    """The options, or the store behind them, do not allow this read. The sentence says what to change."""
