"""A client that asked for one message of a queue."""

from __future__ import annotations

from collections.abc import Callable

from weft.edge_node.queues.errors import QueueError
from weft.edge_node.queues.message import Delivery
from weft.edge_node.queues.queue.queue import Queue
from weft.edge_node.subscriptions.log_records import LogRecord

Got = Callable[[tuple[Delivery, LogRecord, int] | None], None]
"""Answer to ``Queues.get``: delivery, message, and how many are left; None from an empty queue."""


class Getter:
    """The ``Consumer`` of such a client."""

    __slots__ = ("_queue", "_then")

    def __init__(self, queue: Queue, then: Got) -> None:
        self._queue = queue
        self._then = then

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        """Give it on, with how many are left."""
        self._then((*batch[0], self._queue.count) if batch else None)

    def cancelled(self, _error: QueueError) -> None:
        """Say that there is none: the queue is gone, or not for the client any more."""
        self._then(None)
