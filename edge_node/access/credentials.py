"""Credentials of a client, whatever the protocol, and the reasons for which it is not let in."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Credentials(NamedTuple):
    """Claims of a client about itself. A certificate comes with its connection."""

    client_id: str = ""
    """Client identifier of protocols that have one: what ``%c`` in access rules stands for. With an empty one no such
    rule grants anything."""
    username: str | None = None
    """None for a client that did not say who it is."""
    password: bytes | None = None


class Denial(Enum):
    """Reason for which a client is not let in. Each protocol has a word of its own for it."""

    WRONG = auto()
    """User name or password is missing, or wrong."""
    NOT_ALLOWED = auto()
    """Clients of its kind may not come in here."""
    BUSY = auto()
    """Too many passwords wait to be checked: it may try again."""


class AccessDenied(Exception):
    """A client is not let in. The sentence never holds a password."""

    def __init__(self, denial: Denial, reason: str) -> None:
        super().__init__(reason)
        self.denial = denial
