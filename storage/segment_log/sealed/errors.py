"""Errors of an encrypted data directory."""

from __future__ import annotations


class KeyUnavailable(OSError):
    """The key of an encrypted directory is missing, unusable or another one. Nothing was written."""
