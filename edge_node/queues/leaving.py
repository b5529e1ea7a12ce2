"""The end of connections: their queues, consumers and deliveries."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from weft.bounds import Owner, Rounds
from weft.edge_node.queues.definitions import READ, QueueError
from weft.edge_node.queues.queue import Consumption, Queue, QueueClient
from weft.edge_node.queues.ready import Delivery, Outcome
from weft.edge_node.timing import TimerWheel

CONSUMERS_AT_ONCE = 32
"""Queues and consumers of one client that are removed before other owners have a turn: it may have thousands."""
TURN_S = 0.001
"""Time after which other owners have a turn in any case."""


class Leaving:
    """Ended connections that still have queues, consumers or deliveries. Event loop's thread only.

    Args:
        remove: deletes a queue.
        leave: cancels a consumer, and puts its unsettled messages back.
    """

    def __init__(self, rounds: Rounds, remove: Callable[[Queue], None], leave: Callable[[Consumption], None]) -> None:
        self._rounds = rounds
        self._remove = remove
        self._leave = leave
        self._clients: dict[QueueClient, None] = {}

    def begin(self, client: QueueClient) -> None:
        """Remove a client's queues, consumers and deliveries: a few now, the rest in later turns of its owner."""
        self._clients[client] = None
        self._go_on(client)

    def finish(self) -> None:
        """Remove all of them now."""
        for client in list(self._clients):
            while not self._step(client):
                pass

    def _go_on(self, client: QueueClient) -> None:
        if client in self._clients and not self._step(client):
            self._rounds.wait(client.owner, partial(self._go_on, client))

    def _step(self, client: QueueClient) -> bool:
        """Remove a few of them. Return whether that was all."""
        clock = asyncio.get_running_loop().time
        until = clock() + TURN_S
        for _ in range(CONSUMERS_AT_ONCE):
            if client.exclusive:
                self._remove(next(reversed(client.exclusive)))
            elif client.consumptions:
                consumption, _ = client.consumptions.popitem()
                self._leave(consumption)
            else:
                del self._clients[client]
                return True
            if clock() >= until:
                break
        return False


# End of consumers that lose their right when access rules change.

STEP_S = 0.002
"""Time after which other owners have a turn: a node may have 65,536 queues and consumers, and a user many rules."""

logger = logging.getLogger(__name__)


def refused(consumption: Consumption) -> QueueError | None:
    """Return why a consumer may not have its queue by the access rules as they are now; None if it may."""
    definition = consumption.queue.definition
    try:
        consumption.client.check(READ, definition.name, definition.owner, "queue")
    except QueueError as error:
        return error
    return None


class Expelling:
    """Repeated check of consumers against the access rules. Consumers that may no longer read their queue are ended,
    and their unsettled messages go back. Event loop's thread only.

    Until the check reaches a consumer, it may keep others waiting. It gets no message that it may not read, and does
    not end its queue by leaving.

    Args:
        queues: name -> queue, of all queues.
        leave: cancels a consumer, and puts its unsettled messages back.
        reconsider: offers messages that no consumer was allowed to have.
    """

    def __init__(
        self,
        rounds: Rounds,
        queues: Mapping[str, Queue],
        leave: Callable[[Consumption], None],
        reconsider: Callable[[Queue], None],
    ) -> None:
        self._rounds = rounds
        self._queues = queues
        self._leave = leave
        self._reconsider = reconsider
        self._left: Iterator[Callable[[], None]] = iter(())
        self._waits = False

    def begin(self) -> None:
        """Check all queues and consumers: some now, the rest in later turns."""
        self._left = self._all()
        if not self._waits:
            self._step()

    def _step(self) -> None:
        self._waits = False
        clock = asyncio.get_running_loop().time
        until = clock() + STEP_S
        for look in self._left:
            look()
            if clock() >= until:
                self._waits = True
                self._rounds.wait(None, self._step)
                return

    def _all(self) -> Iterator[Callable[[], None]]:
        for queue in list(self._queues.values()):
            for consumption in (*queue.consumptions, *queue.getters):
                yield partial(self._look_at, consumption)
            yield partial(self._look_at_messages, queue)

    def _look_at_messages(self, queue: Queue) -> None:
        if queue.ready.withheld and not queue.deleted:
            self._reconsider(queue)

    def _look_at(self, consumption: Consumption) -> None:
        error = refused(consumption) if consumption.active else None
        if error is None:
            return
        owner, queue = consumption.client.owner, consumption.queue
        logger.info("%s is no longer a consumer of queue %r: %s", owner, queue.name, error)
        self._leave(consumption)
        try:
            consumption.consumer.cancelled(error)
        except Exception:
            logger.exception("the end of a consumer of queue %r without the right to read it failed", queue.name)


# Settlement of deliveries that clients acknowledge, reject or return: at once for a few, else in turns of the owner.

SETTLED_AT_ONCE = 128
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
        if len(deliveries) <= SETTLED_AT_ONCE and not self._waiting:
            self._settle(deliveries, outcome)
            return
        owner = next((each.holder.client.owner for each in deliveries if isinstance(each.holder, Consumption)), None)
        if owner is None:
            return
        waiting = self._waiting.get(owner)
        if waiting is None and len(deliveries) <= SETTLED_AT_ONCE:
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
        self._settle([deliveries.popleft() for _ in range(min(SETTLED_AT_ONCE, len(deliveries)))], outcome)
        if deliveries:
            return True
        for queue in returning:
            queue.go_on()
            self._deliver_soon(queue)
        waiting.popleft()
        if not waiting:
            del self._waiting[owner]
        return bool(waiting)


# Queues that are deleted when no client has used them for a while (``x-expires``).


class _Unused:
    """A queue without consumers that expires."""

    __slots__ = ("_expire", "queue", "until", "wheel_slot")

    def __init__(self, queue: Queue, expire: Callable[[Queue], None]) -> None:
        self.queue = queue
        self._expire = expire
        self.until = 0.0
        self.wheel_slot = -1

    def due(self, now: float) -> float | None:
        """Delete the queue if its time is over."""
        if now < self.until:
            return self.until
        self._expire(self.queue)
        return None


class UnusedQueues:
    """Timer of queues that expire. Consumers, ``get`` and repeated declarations count as use; a restart begins the time
    again."""

    def __init__(self, wheel: TimerWheel, expire: Callable[[Queue], None]) -> None:
        self._wheel = wheel
        self._expire = expire
        self._waiting: dict[Queue, _Unused] = {}

    def used(self, queue: Queue) -> None:
        """Start the time of a queue, unless it has consumers."""
        expires_ms = queue.definition.arguments.expires_ms
        if expires_ms is None or queue.consumptions:
            return
        waiting = self._waiting.get(queue)
        if waiting is None:
            waiting = self._waiting[queue] = _Unused(queue, self._expire)
        waiting.until = asyncio.get_running_loop().time() + expires_ms / 1000
        self._wheel.set(waiting, waiting.until)

    def is_over(self, queue: Queue) -> bool:
        """Return whether a queue's time is over, and no client has used it since."""
        waiting = self._waiting.get(queue)
        return waiting is not None and asyncio.get_running_loop().time() >= waiting.until

    def in_use(self, queue: Queue) -> None:
        """Stop the time of a queue that has a consumer, or is deleted."""
        waiting = self._waiting.pop(queue, None)
        if waiting is not None:
            self._wheel.cancel(waiting)
