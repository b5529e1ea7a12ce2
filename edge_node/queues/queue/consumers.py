"""The consumers of one queue, and their turns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from weft.bounds import Owner


class ConsumerClient(Protocol):
    """Connection of a consumer."""

    owner: Owner

    def may_read(self, topic: bytes) -> bool:
        """Return whether access rules let it read messages of a topic."""
        ...


class Consumer(Protocol):
    """A consumer, as turns need it; implemented by ``queue.Consumption``."""

    active: bool
    parked: bool
    priority: int
    exclusive: bool
    needs_acks: bool

    @property
    def client(self) -> ConsumerClient:
        """Return its connection."""
        ...

    @property
    def room(self) -> int:
        """Return the number of messages that it can take now."""
        ...

    def wait(self) -> None:
        """Resume once there is credit again."""


ConsumerT = TypeVar("ConsumerT", bound=Consumer)


class Consumers(Generic[ConsumerT]):
    """Consumers by turns: highest priority first; within a priority, the one that waited longest.

    Consumers without credit are set aside until they have some again, so that a message costs the same whether ten
    consumers or ten thousand have used up theirs.

    Args:
        single_active: one of them gets all messages; the next one follows when it leaves.
    """

    __slots__ = ("_all", "_order", "_single_active")

    def __init__(self, *, single_active: bool) -> None:
        self._single_active = single_active
        self._all: dict[ConsumerT, None] = {}
        self._order: list[ConsumerT] = []
        """Consumers that may have credit, and some that have left."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[ConsumerT]:
        return iter(self._all)

    def __contains__(self, consumption: object) -> bool:
        return consumption in self._all

    @property
    def is_exclusive(self) -> bool:
        """Return whether one of them is exclusive."""
        return len(self._all) == 1 and next(iter(self._all)).exclusive

    def add(self, consumption: ConsumerT) -> None:
        """Add a consumer, behind all others of its priority."""
        self._all[consumption] = None
        self._insert(consumption)

    def remove(self, consumption: ConsumerT) -> None:
        """Remove a consumer that has ended."""
        self._all.pop(consumption, None)
        if not self._all:
            self._order.clear()

    def wake(self, consumption: ConsumerT) -> None:
        """Consider a consumer again: it may have credit."""
        if consumption.parked:
            consumption.parked = False
            self._insert(consumption)

    def may_anybody_read(self, topic: bytes) -> bool:
        """Return whether access rules let one of them read messages of a topic."""
        return any(each.client.may_read(topic) for each in self._all)

    def room(self, most: int) -> int:
        """Return the number of messages that they can take now; beyond ``most`` it is approximate."""
        room = 0
        for each in self._order:
            if each.active:
                room += max(each.room, 0)
                if room >= most:
                    break
        return room

    def choose(self, topic: bytes | None, has_share: Callable[[Owner], bool]) -> ConsumerT | None:
        """Return the consumer that gets the next message; None when none can take it now.

        Args:
            topic: of the message; None when it is not known yet.
            has_share: returns whether an owner may have one more unacknowledged message; called once for each.
        """
        order, at = self._order, 0
        full: set[Owner] = set()
        while at < len(order):
            found = order[at]
            if not found.active:
                del order[at]
                continue
            if found.needs_acks and found.client.owner in full:
                at += 1
                continue
            if found.room <= 0:
                found.wait()
                if self._single_active:
                    return None
                found.parked = True
                del order[at]
                continue
            if topic is None or found.client.may_read(topic):
                if not found.needs_acks or has_share(found.client.owner):
                    return found
                full.add(found.client.owner)
            if self._single_active:
                return None
            at += 1
        return None

    def took(self, consumption: ConsumerT) -> None:
        """Move a consumer that got a message behind the others of its priority."""
        order = self._order
        if len(order) > 1 and not self._single_active:
            order.remove(consumption)  # it is one of the first
            self._insert(consumption)

    def _insert(self, consumption: ConsumerT) -> None:
        order, priority = self._order, consumption.priority
        # The active consumer stays active, even if others have a higher priority.
        least = 0
        if self._single_active:
            while order and not order[0].active:
                del order[0]
            least = min(1, len(order))
        if len(order) <= least or order[-1].priority >= priority:
            order.append(consumption)
        else:
            order.insert(bisect_right(order, -priority, least, key=lambda each: -each.priority), consumption)
