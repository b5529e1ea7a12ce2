"""The messages of one queue that are ready to be delivered, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice

from weft.edge_node.queues.queue.runs import SeqRuns


class _Level:
    """Messages of one priority."""

    __slots__ = ("fresh", "returned")

    def __init__(self) -> None:
        self.fresh = SeqRuns()
        self.returned: list[int] = []
        """A heap of those that were taken and came back. Each is older than all fresh ones: it was taken first."""


class Ready:
    """Numbers of messages by priority, and within one by age. What comes back goes to its former place."""

    __slots__ = ("_levels", "count")

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        """Highest first."""
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for level in self._levels.values():
            yield from sorted(level.returned)
            yield from level.fresh

    def add(self, seq: int, priority: int) -> None:
        """Add a message that is newer than all others."""
        level = self._levels.get(priority)
        if level is None:
            level = self._begin(priority)
        level.fresh.append(seq)
        self.count += 1

    def put_back(self, seq: int, priority: int) -> None:
        """Add a message that was taken."""
        level = self._levels.get(priority)
        if level is None:
            level = self._begin(priority)
        heappush(level.returned, seq)
        self.count += 1

    def put_runs(self, runs: SeqRuns, priority: int) -> None:
        """Take over the messages of a priority that has none."""
        self._begin(priority).fresh = runs
        self.count += len(runs)

    def peek(self) -> tuple[int, int]:
        """Return number and priority of the next message. There must be one."""
        for priority, level in self._levels.items():
            if level.returned:
                return level.returned[0], priority
            if level.fresh.count:
                return level.fresh.first, priority
        raise IndexError("the queue is empty")

    def pop(self) -> None:
        """Take the message that ``peek`` returned."""
        for level in self._levels.values():
            if level.returned:
                heappop(level.returned)
                break
            if level.fresh.count:
                level.fresh.pop()
                break
        self.count -= 1

    def next(self, count: int) -> list[int]:
        """Return the numbers of the next messages."""
        return list(islice(self, count))

    def runs(self) -> Iterator[tuple[int, SeqRuns, list[int]]]:
        """Yield priority, fresh messages, and those that came back, of each priority."""
        for priority, level in self._levels.items():
            yield priority, level.fresh, level.returned

    def ends(self) -> Iterator[int]:
        """Yield numbers of which the lowest and the highest are those of all messages."""
        for level in self._levels.values():
            if level.fresh.count:
                yield level.fresh.first
                yield level.fresh.last
            if level.returned:
                yield level.returned[0]
                yield max(level.returned)

    def _begin(self, priority: int) -> _Level:
        level = self._levels[priority] = _Level()
        if len(self._levels) > 1:
            self._levels = {each: self._levels[each] for each in sorted(self._levels, reverse=True)}
        return level
