"""Deliveries of the messages in a queue, which are records of the node's stream of queued messages (``LogRecord``)."""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

ENTRY_BYTES = 128
"""Bytes that a message in a queue is charged with beside its payload: its topic, its place in the log and in the
queue's index."""


class Holder(Protocol):
    """Holder of unsettled messages: a consumption, or a client that gets them one by one."""

    def settled(self, delivery: Delivery) -> None:
        """Forget a delivery."""


class Delivery:
    """A message sent to a reader. It is settled once, by ``Queues.settle``, unless no acknowledgement is wanted.
    Compared by identity; the message itself is not kept in memory, so that many may be unsettled."""

    __slots__ = ("attempts", "holder", "priority", "redelivered", "seq", "size")

    def __init__(self, seq: int, size: int, attempts: int, priority: int, *, redelivered: bool, holder: Holder) -> None:
        self.seq = seq
        self.size = size
        """Bytes of the payload."""
        self.attempts = attempts
        """Failed deliveries before this one: the client disconnected, or reported the failure. ``x-delivery-count`` of
        AMQP."""
        self.priority = priority
        self.redelivered = redelivered
        """True if it was, or may have been, delivered before."""
        self.holder = holder


class Outcome(enum.Enum):
    """Outcome of a delivery, for the message."""

    ACCEPT = "accept"
    """It was handled: it leaves the queue. AMQP 0-9-1's ack, AMQP 1.0's accepted."""
    REJECT = "reject"
    """It leaves the queue and is dead-lettered, if the queue names a dead-letter exchange. Reject and nack without
    requeue, rejected, and modified with undeliverable-here."""
    REQUEUE = "requeue"
    """It goes back to its place in the queue, and counts as a failed delivery. Reject and nack with requeue, recover,
    modified with delivery-failed."""
    RELEASE = "release"
    """It goes back to its place, and the delivery does not count as failed; the next one is flagged as redelivered.
    AMQP 1.0's released."""


class Declared(NamedTuple):
    """Answer to the declaration of a queue."""

    name: str
    messages: int
    """Messages that are ready to be delivered."""
    consumers: int
