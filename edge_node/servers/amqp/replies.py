"""Reply codes for refusals of queues."""

from __future__ import annotations

from weft.edge_node.queues.errors import QueueError, Reason
from weft.protocols.amqp.errors import AmqpError, ReplyCode

_CODES = {
    Reason.NOT_FOUND: ReplyCode.NOT_FOUND,
    Reason.PRECONDITION_FAILED: ReplyCode.PRECONDITION_FAILED,
    Reason.IN_USE: ReplyCode.PRECONDITION_FAILED,
    Reason.ACCESS_REFUSED: ReplyCode.ACCESS_REFUSED,
    Reason.RESOURCE_LOCKED: ReplyCode.RESOURCE_LOCKED,
    Reason.NOT_ALLOWED: ReplyCode.ACCESS_REFUSED,
    Reason.UNKNOWN_KIND: ReplyCode.COMMAND_INVALID,
    Reason.TOO_MANY: ReplyCode.PRECONDITION_FAILED,
    Reason.NO_ROOM: ReplyCode.RESOURCE_ERROR,
}
"""Reason -> reply code. A used up share ends only the channel: the connection has done nothing wrong."""


def amqp_error(error: QueueError, method: int) -> AmqpError:
    """Return the exception that answers a method."""
    return AmqpError(_CODES[error.reason], str(error), method)
