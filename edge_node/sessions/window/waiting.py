"""Deliveries that wait until a client's window has room for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from weft.edge_node.sessions.window.in_flight import Delivery
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.queue_budget import MESSAGE_OVERHEAD_BYTES, QueueAccount


class Waiting:
    """A queue whose bytes are counted in the client's account."""

    __slots__ = ("_account", "deliveries")

    def __init__(self, account: QueueAccount) -> None:
        self._account = account
        self.deliveries: deque[Delivery] | None = None
        """None while nothing waits: most clients never have anything here. To be read only."""

    def __bool__(self) -> bool:
        return self.deliveries is not None

    def messages(self) -> list[Message]:
        """Return what waits, in order."""
        return [message for message, _, _ in self.deliveries or ()]

    def push(self, delivery: Delivery) -> bool:
        """Let a delivery wait; return False, and do nothing, when there is no room for it."""
        cost = _cost(delivery)
        if not self._account.fits(cost):
            return False
        self._account.take(cost)
        if self.deliveries is None:
            self.deliveries = deque()
        self.deliveries.append(delivery)
        return True

    def pop(self) -> Delivery:
        """Take out the first delivery; there must be one."""
        assert self.deliveries is not None
        delivery = self.deliveries.popleft()
        self._account.free(_cost(delivery))
        if not self.deliveries:
            self.deliveries = None
        return delivery

    def drop_stored(self) -> None:
        """Forget what can be read from the log."""
        self._keep([each for each in self.deliveries or () if each[0].stream == NOWHERE])

    def clear(self) -> None:
        """Forget everything."""
        self._keep([])

    def _keep(self, kept: list[Delivery]) -> None:
        self._account.free(_costs(self.deliveries or ()) - _costs(kept))
        self.deliveries = deque(kept) if kept else None


def _costs(deliveries: Collection[Delivery]) -> int:
    return sum([len(message.payload) for message, _, _ in deliveries]) + MESSAGE_OVERHEAD_BYTES * len(deliveries)


def _cost(delivery: Delivery) -> int:
    return len(delivery[0].payload) + MESSAGE_OVERHEAD_BYTES
