"""Settlement of deliveries that clients acknowledge, reject or return: at once for a few, else in turns of the
owner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from weft.bounds import Owner
from weft.edge_node.queues.message import Delivery, Outcome
from weft.edge_node.queues.queue.queue import Consumption, Queue

SLICE = 128
"""Deliveries that are settled before other owners have a turn: a client may have 65,536, a third of a second of the
loop."""
_GIVES_BACK = frozenset({Outcome.REQUEUE, Outcome.RELEASE})


class _Work(NamedTuple):
    deliveries: deque[Delivery]
    outcome: Outcome
    returning: frozenset[Queue]
    """Queues that wait for all deliveries, to keep their order."""


class Settling:
    """Deliveries that wait for settlement, owner by owner, in the order of arrival. Event loop's thread only.

    Args:
        settle: settles deliveries at once.
        next_round: calls back at an owner's turn.
        deliver_soon: called with queues whose messages have all come back.
    """

    def __init__(
        self,
        settle: Callable[[Sequence[Delivery], Outcome], None],
        next_round: Callable[[Owner | None, Callable[[], None]], None],
        deliver_soon: Callable[[Queue], None],
    ) -> None:
        self._settle = settle
        self._next_round = next_round
        self._deliver_soon = deliver_soon
        self._waiting: dict[Owner, deque[_Work]] = {}

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Settle deliveries of one client. Unknown ones are skipped."""
        if len(deliveries) <= SLICE and not self._waiting:
            self._settle(deliveries, outcome)
            return
        owner = next((each.holder.client.owner for each in deliveries if isinstance(each.holder, Consumption)), None)
        if owner is None:
            return
        waiting = self._waiting.get(owner)
        if waiting is None and len(deliveries) <= SLICE:
            self._settle(deliveries, outcome)
            return
        queues = frozenset[Queue]()
        if outcome in _GIVES_BACK:
            queues = frozenset(each.holder.queue for each in deliveries if isinstance(each.holder, Consumption))
            for queue in queues:
                queue.hold_back()
        work = _Work(deque(deliveries), outcome, queues)
        if waiting is not None:
            waiting.append(work)
            return
        self._waiting[owner] = deque([work])
        self._go_on(owner)

    def finish(self) -> None:
        """Settle all of them now."""
        while self._waiting:
            self._step(next(iter(self._waiting)))

    def _go_on(self, owner: Owner) -> None:
        if owner in self._waiting and self._step(owner):
            self._next_round(owner, partial(self._go_on, owner))

    def _step(self, owner: Owner) -> bool:
        """Settle a slice. Return whether there is more."""
        waiting = self._waiting[owner]
        deliveries, outcome, returning = waiting[0]
        self._settle([deliveries.popleft() for _ in range(min(SLICE, len(deliveries)))], outcome)
        if deliveries:
            return True
        for queue in returning:
            queue.go_on()
            self._deliver_soon(queue)
        waiting.popleft()
        if not waiting:
            del self._waiting[owner]
        return bool(waiting)
