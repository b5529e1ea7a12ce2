"""Credentials of a client of any protocol, and the reasons for a refusal."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Credentials(NamedTuple):
    """Claims of a client about itself. A certificate comes with its connection."""

    client_id: str = ""
    """Client identifier of protocols that have one: it replaces ``%c`` in access rules. With an empty one no such rule
    grants access."""
    username: str | None = None
    """None for a client without one."""
    password: bytes | None = None


class Denial(Enum):
    """Reason of a refusal. Each protocol maps it to its own code."""

    WRONG = auto()
    """User name or password is missing, or wrong."""
    NOT_ALLOWED = auto()
    """Clients of its kind are not admitted at the listener."""
    BUSY = auto()
    """Too many passwords wait to be checked: it may try again."""


class AccessDenied(Exception):
    """A refused client. The text never contains a password."""

    def __init__(self, denial: Denial, reason: str) -> None:
        super().__init__(reason)
        self.denial = denial
