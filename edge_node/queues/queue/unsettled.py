"""Messages of one queue that are delivered and not settled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from weft.edge_node.queues.message import Delivery


class Unsettled:
    """Deliveries by the numbers of their messages."""

    __slots__ = ("_deliveries", "bytes")

    def __init__(self) -> None:
        self._deliveries: dict[int, Delivery] = {}
        self.bytes = 0
        """Payload bytes."""

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries.values())

    def __contains__(self, delivery: Delivery) -> bool:
        return self._deliveries.get(delivery.seq) is delivery

    def hold(self, delivery: Delivery) -> None:
        """Add a delivery."""
        self._deliveries[delivery.seq] = delivery
        self.bytes += delivery.size

    def free(self, delivery: Delivery) -> None:
        """Remove a delivery."""
        del self._deliveries[delivery.seq]
        self.bytes -= delivery.size

    def first(self, count: int) -> list[Delivery]:
        """Return the oldest deliveries."""
        return list(islice(self._deliveries.values(), count))

    def has(self, seq: int) -> bool:
        """Return whether a message is among them."""
        return seq in self._deliveries

    def between(self, first: int, end: int) -> list[int]:
        """Return the messages from ``first`` to before ``end``, in order."""
        return sorted(seq for seq in self._deliveries if first <= seq < end)
