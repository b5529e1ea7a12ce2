"""Errors of traces."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace that cannot be made as asked. The sentence says what to change."""
