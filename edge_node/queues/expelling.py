"""End of consumers that lose their right when access rules change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from weft.bounds import Rounds
from weft.edge_node.queues.errors import QueueError
from weft.edge_node.queues.queue.queue import Consumption, Queue
from weft.edge_node.queues.rights import READ

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
