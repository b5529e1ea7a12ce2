"""Turns of streams in the table step: a tenant delays another by at most one bounded step."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from weft.protocols.shard.shard_state import StreamKey


class Turns:
    """Schedules turns of streams, some at a time: the tenant with the least used time is next, with its longest waiting
    stream. The remaining streams of a pass come first in the next one.

    Args:
        places: number of turns at a time. One tenant has all except one of them while another one has work.
        seconds_max: time after which a pass begins no further turn.
        monotonic: seconds.
    """

    def __init__(self, places: int, seconds_max: float, monotonic: Callable[[], float]) -> None:
        self._places = places
        self._seconds_max = seconds_max
        self._monotonic = monotonic
        self._waiting: dict[str, deque[StreamKey]] = {}
        self._used: dict[str, float] = {}
        """Seconds used by each tenant since all of them were last without work."""
        self._running: dict[str, int] = {}

    async def run(self, keys: Iterable[StreamKey], turn: Callable[[StreamKey], Awaitable[bool]]) -> bool:
        """Give each stream turns until it needs no more, or the time of a pass is over.

        Args:
            turn: turn of a stream; returns whether it needs another one.

        Returns:
            True if streams need more turns.
        """
        self._enter(keys)
        until = self._monotonic() + self._seconds_max
        tasks: dict[asyncio.Task[bool], tuple[StreamKey, float]] = {}
        try:
            while True:
                # At least one turn in a pass, or the work would never end.
                while len(tasks) < self._places and (self._monotonic() < until or not tasks) and (key := self._take()):
                    tasks[asyncio.create_task(_awaited(turn(key)))] = key, self._monotonic()
                if not tasks:
                    return bool(self._waiting)
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    key, began = tasks.pop(task)
                    self._leave(key, self._monotonic() - began)
                    if task.result():
                        self._waiting.setdefault(key[0], deque()).append(key)
                if self._monotonic() >= until and not tasks:
                    return bool(self._waiting)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._running.clear()

    def _enter(self, keys: Iterable[StreamKey]) -> None:
        wanted = dict.fromkeys(keys)
        left = {tenant: [key for key in queue if key in wanted] for tenant, queue in self._waiting.items()}
        waiting = {tenant: deque(queue) for tenant, queue in left.items() if queue}
        # A tenant without work must not accumulate unused time.
        floor = min((self._used[tenant] for tenant in waiting), default=0.0)
        self._used = {tenant: self._used[tenant] for tenant in waiting}
        for key in wanted.keys() - {key for queue in waiting.values() for key in queue}:
            waiting.setdefault(key[0], deque())
        known = {key for queue in waiting.values() for key in queue}
        for key in wanted:
            if key not in known:
                waiting[key[0]].append(key)
        for tenant in waiting:
            self._used.setdefault(tenant, floor)
        self._waiting = waiting

    def _take(self) -> StreamKey | None:
        """Return the stream of the next turn; None if none may begin now."""
        alone = len(self._waiting.keys() | self._running.keys()) == 1
        most = self._places if alone else max(1, self._places - 1)
        open_to = [tenant for tenant in self._waiting if self._running.get(tenant, 0) < most]
        if not open_to:
            return None
        tenant = min(open_to, key=lambda each: (self._running.get(each, 0) > 0, self._used[each]))
        queue = self._waiting[tenant]
        key = queue.popleft()
        if not queue:
            del self._waiting[tenant]
        self._running[tenant] = self._running.get(tenant, 0) + 1
        return key

    def _leave(self, key: StreamKey, seconds: float) -> None:
        tenant = key[0]
        self._used[tenant] += seconds
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]


async def _awaited(turn: Awaitable[bool]) -> bool:
    return await turn
