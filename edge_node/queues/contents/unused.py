"""Queues that are deleted when no client has used them for a while (``x-expires``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weft.edge_node.queues.queue.queue import Queue
from weft.edge_node.timing.timer_wheel import TimerWheel


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
