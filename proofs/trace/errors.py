"""Errors of traces."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace that cannot be made. The message says what to change."""
