"""Use of queues by clients: they consume, get and settle, until they cancel, leave or lose the right."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from weft.bounds import Owner
from weft.edge_node.queues.contents import Contents, DueQueues
from weft.edge_node.queues.definitions import READ, QueueError, Reason, consumer_priority
from weft.edge_node.queues.delivery import Deliveries
from weft.edge_node.queues.limits import QueueContext
from weft.edge_node.queues.queue import Consumer, Consumption, Credit, Getter, Got, Queue, QueueClient
from weft.edge_node.queues.ready import Delivery, Outcome
from weft.edge_node.queues.registry import Registry

logger = logging.getLogger(__name__)

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
        due: gets the queues whose messages have all come back.
    """

    def __init__(self, context: QueueContext, contents: Contents, due: DueQueues) -> None:
        self._round_robin = context.round_robin
        self._contents = contents
        self._due = due
        self._waiting: dict[Owner, deque[_Work]] = {}

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Settle deliveries of one client: some now and, if they are many, the rest in later turns of its owner.
        Unknown ones are skipped: their queue was deleted, or their client has gone."""
        if len(deliveries) <= SETTLED_AT_ONCE and not self._waiting:
            self._contents.settle(deliveries, outcome)
            return
        owner = next((each.holder.client.owner for each in deliveries if isinstance(each.holder, Consumption)), None)
        if owner is None:
            return
        waiting = self._waiting.get(owner)
        if waiting is None and len(deliveries) <= SETTLED_AT_ONCE:
            self._contents.settle(deliveries, outcome)
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
        self._resume(owner)

    def finish(self) -> None:
        """Settle all of them now."""
        while self._waiting:
            self._step(next(iter(self._waiting)))

    def _resume(self, owner: Owner) -> None:
        if owner in self._waiting and self._step(owner):
            self._round_robin.wait(owner, partial(self._resume, owner))

    def _step(self, owner: Owner) -> bool:
        """Settle a slice. Return whether there is more."""
        waiting = self._waiting[owner]
        deliveries, outcome, returning = waiting[0]
        self._contents.settle([deliveries.popleft() for _ in range(min(SETTLED_AT_ONCE, len(deliveries)))], outcome)
        if deliveries:
            return True
        for queue in returning:
            queue.resume()
            self._due.soon(queue)
        waiting.popleft()
        if not waiting:
            del self._waiting[owner]
        return bool(waiting)


# Consumers, and clients that wait for one message.


def refused(consumption: Consumption) -> QueueError | None:
    """Return why a consumer may not have its queue by the access rules as they are now; None if it may."""
    definition = consumption.queue.definition
    try:
        consumption.client.check(READ, definition.name, definition.owner, "queue")
    except QueueError as error:
        return error
    return None


class Consumptions:
    """Beginning and end of delivery to clients. Event loop's thread only."""

    def __init__(  # noqa: PLR0917
        self,
        context: QueueContext,
        registry: Registry,
        contents: Contents,
        due: DueQueues,
        deliveries: Deliveries,
        settling: Settling,
    ) -> None:
        self._batch = context.batch
        self._consumers = context.bounds.consumers
        self._registry = registry
        self._expiry = registry.expiry
        self._contents = contents
        self._due = due
        self._deliveries = deliveries
        self._settling = settling

    def consume(
        self,
        client: QueueClient,
        name: str,
        consumer: Consumer,
        credit: Sequence[Credit] = (),
        *,
        needs_acks: bool = True,
        exclusive: bool = False,
        priority: int = 0,
        arguments: Mapping[str, Any] | None = None,
    ) -> Consumption:
        """Deliver a queue's messages to a consumer, as far as all its credit goes: from the end of this turn of the
        loop on.

        Args:
            credit: may be shared by several consumers.
            needs_acks: False settles messages when they are sent.
            arguments: ``x-priority`` overrides ``priority``; others are ignored.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED; ACCESS_REFUSED by access rules, and where one of the consumers is
                exclusive; PRECONDITION_FAILED where an argument is invalid; TOO_MANY.
        """
        queue = self._registry.queue(client, name)
        if queue.consumptions and (exclusive or queue.consumptions.is_exclusive):
            raise QueueError(
                Reason.ACCESS_REFUSED, f"queue {name!r} is in exclusive use, or has consumers: only one may have it so"
            )
        priority = consumer_priority(arguments or {}) or priority
        if not self._consumers.take(client.owner):
            self._consumers.refuse(client.owner)
            raise QueueError(
                Reason.TOO_MANY,
                f"{client.owner} has used up its share of consumers: cancel some, or raise "
                f"{self._consumers.quota.raised(is_share=True)}",
            )
        consumption = Consumption(
            queue,
            client,
            consumer,
            credit,
            self._due.soon,
            needs_acks=needs_acks,
            exclusive=exclusive,
            priority=priority,
        )
        client.consumptions[consumption] = None
        queue.consumptions.add(consumption)
        self._expiry.in_use(queue)
        self._due.reconsider(queue)
        return consumption

    def cancel(self, consumption: Consumption) -> None:
        """End delivery to a consumer, or a ``get`` that waits, which then has no answer. Messages already sent may
        still be settled."""
        queue = consumption.queue
        if not consumption.active:
            return
        consumption.end()
        if queue.deleted:
            return
        if consumption in queue.getters:
            queue.answered(consumption)
            self._contents.free_share(consumption.client.owner)
            return
        self._consumers.free(consumption.client.owner)
        queue.consumptions.remove(consumption)
        if queue.consumptions:
            self._due.soon(queue)
        elif queue.definition.auto_delete and refused(consumption) is None:
            self._batch.store()
            self._registry.remove_queue(queue)
        else:
            self._expiry.used(queue)

    def get(self, client: QueueClient, name: str, then: Got, *, needs_acks: bool = True) -> Consumption:
        """Send a client one message of a queue, now or once it is read from the log.

        Returns:
            The client's wait: active until it has its answer. ``cancel`` ends it.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED, ACCESS_REFUSED, TOO_MANY. ``then`` is not called.
        """
        self._batch.store()
        queue = self._registry.queue(client, name)
        # A get without acknowledgement takes a share, too, while it waits: a client may send thousands at once.
        self._contents.take_share(client.owner)
        self._expiry.used(queue)
        consumption = Consumption(
            queue, client, Getter(queue, then), (), self._due.soon, needs_acks=needs_acks, exclusive=False, priority=0
        )
        client.consumptions[consumption] = None
        queue.ask(consumption)
        if queue.ready.withheld:
            self._due.reconsider(queue)
        self._deliveries.deliver(queue)
        return consumption

    def leave(self, consumption: Consumption) -> None:
        """Cancel a consumer or a ``get``, and put its unsettled messages back into their queue."""
        unsettled = sorted(consumption.unsettled, key=lambda each: each.seq)
        self.cancel(consumption)
        self._settling.settle(unsettled, Outcome.REQUEUE)


# The end of connections: their queues, consumers and deliveries.

CONSUMERS_AT_ONCE = 32
"""Queues and consumers of one client that are removed before other owners have a turn: it may have thousands."""
TURN_S = 0.001
"""Time after which other owners have a turn in any case."""


class Disconnects:
    """Ended connections that still have queues, consumers or deliveries. Event loop's thread only."""

    def __init__(self, context: QueueContext, registry: Registry, consumptions: Consumptions) -> None:
        self._batch = context.batch
        self._round_robin = context.round_robin
        self._registry = registry
        self._consumptions = consumptions
        self._clients: dict[QueueClient, None] = {}

    def begin(self, client: QueueClient) -> None:
        """End a connection's part: delete its exclusive queues, cancel its consumers, and put unsettled messages back
        into their queues: a few now, the rest in later turns of its owner."""
        self._batch.store()
        self._clients[client] = None
        self._resume(client)

    def finish(self) -> None:
        """Remove all of them now."""
        for client in list(self._clients):
            while not self._step(client):
                pass

    def _resume(self, client: QueueClient) -> None:
        if client in self._clients and not self._step(client):
            self._round_robin.wait(client.owner, partial(self._resume, client))

    def _step(self, client: QueueClient) -> bool:
        """Remove a few of them. Return whether that was all."""
        clock = asyncio.get_running_loop().time
        until = clock() + TURN_S
        for _ in range(CONSUMERS_AT_ONCE):
            if client.exclusive:
                self._registry.remove_queue(next(reversed(client.exclusive)))
            elif client.consumptions:
                consumption, _ = client.consumptions.popitem()
                self._consumptions.leave(consumption)
            else:
                del self._clients[client]
                return True
            if clock() >= until:
                break
        return False


# End of consumers that lose their right when access rules change.

STEP_S = 0.002
"""Time after which other owners have a turn: a node may have 65,536 queues and consumers, and a user many rules."""


class Revocation:
    """Repeated check of consumers against the access rules. Consumers that may no longer read their queue are ended,
    and their unsettled messages go back. Event loop's thread only.

    Until the check reaches a consumer, it may keep others waiting. It gets no message that it may not read, and does
    not end its queue by leaving.

    Args:
        due: gets the queues with messages that no consumer was allowed to have.
    """

    def __init__(self, context: QueueContext, registry: Registry, consumptions: Consumptions, due: DueQueues) -> None:
        self._round_robin = context.round_robin
        self._queues = registry.queues
        self._consumptions = consumptions
        self._due = due
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
                self._round_robin.wait(None, self._step)
                return

    def _all(self) -> Iterator[Callable[[], None]]:
        for queue in list(self._queues.values()):
            for consumption in (*queue.consumptions, *queue.getters):
                yield partial(self._look_at, consumption)
            yield partial(self._look_at_messages, queue)

    def _look_at_messages(self, queue: Queue) -> None:
        if queue.ready.withheld and not queue.deleted:
            self._due.reconsider(queue)

    def _look_at(self, consumption: Consumption) -> None:
        error = refused(consumption) if consumption.active else None
        if error is None:
            return
        owner, queue = consumption.client.owner, consumption.queue
        logger.info("%s is no longer a consumer of queue %r: %s", owner, queue.name, error)
        self._consumptions.leave(consumption)
        try:
            consumption.consumer.cancelled(error)
        except Exception:
            logger.exception("the end of a consumer of queue %r without the right to read it failed", queue.name)
