"""Marks in the log about the deliveries of one queue, so that a message redelivered after a crash is flagged."""

from __future__ import annotations

from weft.edge_node.queues.message import Delivery
from weft.edge_node.queues.queue.unsettled import Unsettled

AHEAD_MAX = 1024
"""Maximum number of messages marked before they are delivered. After a crash they are flagged as redelivered, even
those that were not delivered."""
EXACT = 16
"""Number of marks, counted from the first, that cover only the messages delivered at once."""


class DeliveryMarks:
    """Messages below a mark may have been delivered. A mark is durable before the first of them goes out.

    | mark | is |
    | --- | --- |
    | ``durable`` | in the log: messages below it may go out |
    | ``writing`` | on its way to the log; equal to ``durable`` or lower while none is |
    | ``suspect`` | position of ``durable`` at the last crash: messages below it may have been delivered |
    """

    __slots__ = ("_times", "attempts", "durable", "suspect", "writing")

    def __init__(self) -> None:
        self.durable = self.writing = self.suspect = 0
        self._times = 0
        self.attempts: dict[int, int] = {}
        """Message that came back -> its failed deliveries. Changed by the methods alone."""

    def restore(self, suspect: int, attempts: dict[int, int]) -> None:
        """Restore the marks that a start read."""
        self.suspect, self.attempts = suspect, attempts

    @property
    def is_writing(self) -> bool:
        """Return whether a mark is on its way to the log."""
        return self.writing > self.durable

    @property
    def highest(self) -> int:
        """Return the highest mark that the log has or is about to have."""
        return max(self.durable, self.writing)

    def ahead(self, count: int) -> int:
        """Return the number of messages to mark where ``count`` can be delivered. Marking ahead saves readers that take
        a message or two at a time from waiting for the disk each time."""
        self._times += 1
        return max(count, min(1 << max(self._times - EXACT, 0), AHEAD_MAX))

    def write(self, end: int) -> None:
        """Note that a mark is on its way to the log."""
        self.writing = end

    def written(self, end: int) -> None:
        """Note that it is durable."""
        self.durable = max(self.durable, end)

    def write_with_messages(self, end: int) -> None:
        """Note a mark that is durable when the messages below it are, which are stored after it."""
        self.durable = self.writing = end

    def was_delivered(self, seq: int) -> bool:
        """Return whether a message may have been delivered before."""
        return seq < self.suspect or seq in self.attempts

    def came_back(self, delivery: Delivery, *, failed: bool) -> int:
        """Note that a message came back. Return the number of its failed deliveries."""
        attempts = self.attempts[delivery.seq] = delivery.attempts + failed
        return attempts

    def left(self, seq: int) -> None:
        """Forget a message that has left the queue."""
        self.attempts.pop(seq, None)

    def only(self, unsettled: Unsettled) -> None:
        """Forget all messages except the delivered ones."""
        self.attempts = {seq: count for seq, count in self.attempts.items() if unsettled.has(seq)}
