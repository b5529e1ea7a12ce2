"""Errors of a read that cannot be done as asked."""

from __future__ import annotations


class ReadError(ValueError):
    """A read that the options, or the store behind them, do not allow. The sentence says what to change."""
