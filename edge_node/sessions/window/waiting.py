"""Deliveries that wait until a client's window has room for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from weft.edge_node.sessions.window.in_flight import Delivery
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.queue_budget import MESSAGE_OVERHEAD_BYTES, QueueAccount


class Waiting:
    """A queue whose bytes are counted in the client's account."""

    __slots__ = ("_account", "_stored_bytes", "_unstored", "deliveries")

    def __init__(self, account: QueueAccount) -> None:
        self._account = account
        self.deliveries: deque[Delivery] | None = None
        """None while nothing waits: most clients never have anything here. Read it only."""
        self._stored_bytes = self._unstored = 0
        """Bytes of deliveries that can be read from the log, and number of the others."""

    def __bool__(self) -> bool:
        return self.deliveries is not None

    def messages(self) -> list[Message]:
        """Return the waiting messages, in order."""
        return [message for message, _, _ in self.deliveries or ()]

    def push(self, delivery: Delivery) -> bool:
        """Append a delivery; return False, and do nothing, when there is no room for it."""
        cost = _cost(delivery)
        if not self._account.fits(cost):
            return False
        self._account.take(cost)
        if delivery[0].stream == NOWHERE:
            self._unstored += 1
        else:
            self._stored_bytes += cost
        if self.deliveries is None:
            self.deliveries = deque()
        self.deliveries.append(delivery)
        return True

    def pop(self) -> Delivery:
        """Remove and return the first delivery; there must be one."""
        assert self.deliveries is not None
        delivery = self.deliveries.popleft()
        cost = _cost(delivery)
        self._account.free(cost)
        if delivery[0].stream == NOWHERE:
            self._unstored -= 1
        else:
            self._stored_bytes -= cost
        if not self.deliveries:
            self.deliveries = None
        return delivery

    def set_aside(self) -> Collection[Delivery]:
        """Keep only deliveries that cannot be read from the log.

        Without such, the deliveries are not inspected: thousands of clients may do this in one step.

        Returns:
            The deliveries that waited until now.
        """
        waited: Collection[Delivery] = self.deliveries or ()
        self.deliveries = deque([each for each in waited if each[0].stream == NOWHERE]) if self._unstored else None
        self._account.free(self._stored_bytes)
        self._stored_bytes = 0
        return waited

    def clear(self) -> None:
        """Forget all deliveries."""
        self._account.free(sum(map(_cost, self.deliveries or ())))
        self.deliveries = None
        self._stored_bytes = self._unstored = 0


def _cost(delivery: Delivery) -> int:
    return len(delivery[0].payload) + MESSAGE_OVERHEAD_BYTES
