"""A client that requested one message of a queue."""

from __future__ import annotations

from collections.abc import Callable

from weft.edge_node.queues.errors import QueueError
from weft.edge_node.queues.message import Delivery
from weft.edge_node.queues.queue.queue import Queue
from weft.edge_node.subscriptions.log_records import LogRecord

Got = Callable[[tuple[Delivery, LogRecord, int] | None], None]
"""Answer to ``Queues.get``: delivery, message, and number of messages left; None from an empty queue."""


class Getter:
    """The ``Consumer`` of such a client."""

    __slots__ = ("_queue", "_then")

    def __init__(self, queue: Queue, then: Got) -> None:
        self._queue = queue
        self._then = then

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        """Pass the message on, with the number of messages left."""
        self._then((*batch[0], self._queue.count) if batch else None)

    def cancelled(self, _error: QueueError) -> None:
        """Answer that there is none: the queue was deleted, or the client may no longer read it."""
        self._then(None)
