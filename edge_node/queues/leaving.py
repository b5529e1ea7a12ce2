"""The end of connections: their queues, consumers and deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from weft.bounds import Rounds
from weft.edge_node.queues.queue.queue import Consumption, Queue, QueueClient

SLICE = 32
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
        for _ in range(SLICE):
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
