"""Deliveries that wait until a client's window has room for them."""

from __future__ import annotations

from collections import deque

from weft.edge_node.sessions.window.in_flight import Delivery
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.queue_budget import MESSAGE_OVERHEAD_BYTES, QueueAccount


class Waiting:
    """A queue whose bytes are counted in the client's account."""

    __slots__ = ("_account", "_deliveries")

    def __init__(self, account: QueueAccount) -> None:
        self._account = account
        self._deliveries: deque[Delivery] | None = None
        """None while nothing waits: most clients never have anything here."""

    def __bool__(self) -> bool:
        return self._deliveries is not None

    def messages(self) -> list[Message]:
        """Return what waits, in order."""
        return [message for message, _, _ in self._deliveries or ()]

    def push(self, delivery: Delivery) -> bool:
        """Let a delivery wait; return False, and do nothing, when there is no room for it."""
        cost = _cost(delivery)
        if not self._account.fits(cost):
            return False
        self._account.take(cost)
        if self._deliveries is None:
            self._deliveries = deque()
        self._deliveries.append(delivery)
        return True

    def pop(self) -> Delivery:
        """Take out the first delivery; there must be one."""
        assert self._deliveries is not None
        delivery = self._deliveries.popleft()
        self._account.free(_cost(delivery))
        if not self._deliveries:
            self._deliveries = None
        return delivery

    def drop_stored(self) -> None:
        """Forget what can be read from the log."""
        self._keep([each for each in self._deliveries or () if each[0].stream == NOWHERE])

    def clear(self) -> None:
        """Forget everything."""
        self._keep([])

    def _keep(self, kept: list[Delivery]) -> None:
        before = sum(map(_cost, self._deliveries or ()))
        self._account.free(before - sum(map(_cost, kept)))
        self._deliveries = deque(kept) if kept else None


def _cost(delivery: Delivery) -> int:
    return len(delivery[0].payload) + MESSAGE_OVERHEAD_BYTES
