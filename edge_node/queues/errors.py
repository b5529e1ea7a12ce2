"""Refusals of requests about exchanges and queues, the same for every protocol."""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """Reason of a refused request; each protocol maps it to its own reply code."""

    NOT_FOUND = "not found"
    """There is no such exchange or queue. AMQP 0-9-1: 404, a channel error."""
    PRECONDITION_FAILED = "precondition failed"
    """It exists with other properties or arguments, an argument has an invalid value, or a delivery is unknown. 406, a
    channel error."""
    IN_USE = "in use"
    """The request deletes it only if it is unused or empty, and it is not. 406, a channel error."""
    ACCESS_REFUSED = "access refused"
    """Access rules forbid it, its name is reserved, or a consumer reads it exclusively. 403, a channel error."""
    RESOURCE_LOCKED = "resource locked"
    """It is exclusive to another connection, or only one of it and a declaration is exclusive. 405, a channel error."""
    NOT_ALLOWED = "not allowed"
    """No client may do that, such as publish to an internal exchange or rebind the default one. 403 or 530."""
    UNKNOWN_KIND = "unknown kind"
    """There is no exchange of that type. 503, a connection error."""
    TOO_MANY = "too many"
    """A share of exchanges, queues, bindings or deliveries is used up. 506, or 406 where a channel error is wanted."""
    NO_ROOM = "no room"
    """The log is full or has failed: nothing was changed. 506 or 541."""


class QueueError(Exception):
    """A request about exchanges or queues that was refused. Nothing was changed.

    Its text states the problem and the remedy; AMQP's reply text contains it.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
