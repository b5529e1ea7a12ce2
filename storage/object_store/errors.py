"""What a store can answer besides a value. Each kind tells the caller what to do next."""

from __future__ import annotations


class StoreError(Exception):
    """Nobody knows whether it happened: a timeout, a refused connection, a full disk, a server error.

    After a write, read the object to learn the outcome; never decide from the error.
    """


class AlreadyExists(Exception):
    """``create`` found the key taken. It may be an earlier attempt of one's own: read it."""


class PreconditionFailed(Exception):
    """``swap`` found another etag, or no object. Read the object, decide again, swap again."""


class NotFound(Exception):
    """No object has this key."""


class StoreUnfit(Exception):
    """The store does not keep the promises that the log depends on, or cannot do what was asked. Choose another."""
