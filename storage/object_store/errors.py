"""Errors of a store. Each kind implies the caller's next step."""

from __future__ import annotations


class StoreError(Exception):
    """A call with an unknown outcome: a timeout, a refused connection, a full disk, a server error.

    After a write, read the object to learn the outcome; never infer it from the error.
    """


class StoreAway(StoreError):
    """The store is not in its place at present, or another one is there. A write may have happened there; nothing that
    follows from the answer may be said to anyone.

    Args:
        replaced: another store is there.
    """

    def __init__(self, why: str, *, replaced: bool = False) -> None:
        super().__init__(why)
        self.replaced = replaced


class AlreadyExists(Exception):
    """``create`` found the key taken, perhaps by an earlier attempt of the same writer: read it."""


class PreconditionFailed(Exception):
    """``swap`` found another etag, or no object. Read the object, decide again, swap again."""


class NotFound(Exception):
    """No object has this key."""


class StoreUnfit(Exception):
    """A store that breaks promises that the log depends on, or lacks a requested feature. Choose another."""
