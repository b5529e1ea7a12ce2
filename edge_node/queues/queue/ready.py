"""The messages of one queue that are ready to be delivered, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice

from weft.edge_node.queues.queue.runs import SeqRuns


class _Level:
    """Ready messages of one priority."""

    __slots__ = ("fresh", "returned")

    def __init__(self) -> None:
        self.fresh = SeqRuns()
        self.returned: list[int] = []
        """Heap of messages that were taken and came back. Each is older than all fresh ones: it was taken before
        them."""


class Ready:
    """Numbers of messages by priority, and within one by age. A message that comes back regains its place."""

    __slots__ = ("_levels", "bytes", "count", "withheld")

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        """Highest first."""
        self.count = 0
        """Number of messages ready for any reader."""
        self.bytes = 0
        """Payload bytes of all messages. The size of a message that is not in memory is an estimate; the sum is
        exact."""
        self.withheld: list[tuple[int, int]] = []
        """Number and priority of messages that no present reader may have. Changed by the methods alone."""

    @property
    def total(self) -> int:
        """Return the number of messages, withheld ones included."""
        return self.count + len(self.withheld)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for level in self._levels.values():
            yield from sorted(level.returned)
            yield from level.fresh

    def add(self, seq: int, priority: int, size: int) -> None:
        """Add a message that is newer than all others."""
        level = self._levels.get(priority)
        if level is None:
            level = self._begin(priority)
        level.fresh.append(seq)
        self.count += 1
        self.bytes += size

    def put_back(self, seq: int, priority: int, size: int) -> None:
        """Add a message that was taken."""
        self.bytes += size
        self._return(seq, priority)

    def _return(self, seq: int, priority: int) -> None:
        level = self._levels.get(priority)
        if level is None:
            level = self._begin(priority)
        heappush(level.returned, seq)
        self.count += 1

    def restore(self, levels: Mapping[int, SeqRuns], others: Mapping[int, int], size: int) -> None:
        """Restore the messages that a start read.

        Args:
            levels: priority -> messages in their order.
            others: message outside of that order -> priority.
            size: payload bytes of all.
        """
        for priority, runs in levels.items():
            if runs:
                self._begin(priority).fresh = runs
                self.count += len(runs)
        for seq, priority in others.items():
            self._return(seq, priority)
        self.bytes = size

    def peek(self) -> tuple[int, int]:
        """Return number and priority of the next message. There must be one."""
        for priority, level in self._levels.items():
            if level.returned:
                return level.returned[0], priority
            if level.fresh.count:
                return level.fresh.first, priority
        raise IndexError("the queue is empty")

    def pop(self, size: int) -> None:
        """Take the message that ``peek`` returned, with its part of the bytes."""
        self.bytes -= size
        self._pop()

    def withhold(self) -> int:
        """Set the next message aside until ``offer``. Return its number."""
        seq, priority = self.peek()
        self._pop()
        self.withheld.append((seq, priority))
        return seq

    def offer(self) -> None:
        """Put withheld messages back to their places."""
        withheld, self.withheld = self.withheld, []
        for seq, priority in withheld:
            self._return(seq, priority)

    def _pop(self) -> None:
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

    def levels(self) -> Iterator[tuple[int, SeqRuns, list[int]]]:
        """Yield for each priority its number, its fresh messages and those that came back."""
        for priority, level in self._levels.items():
            yield priority, level.fresh, level.returned

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield [first, end) of all messages, withheld ones included."""
        for level in self._levels.values():
            yield from level.fresh.runs()
            for seq in level.returned:
                yield seq, seq + 1
        for seq, _ in self.withheld:
            yield seq, seq + 1

    def span(self) -> tuple[int, int]:
        """Return first and end of the numbers of all messages. There must be one."""
        ends = [seq for seq, _ in self.withheld]
        for level in self._levels.values():
            if level.fresh.count:
                ends += level.fresh.first, level.fresh.last
            if level.returned:
                ends += level.returned[0], max(level.returned)
        return min(ends), max(ends) + 1

    def _begin(self, priority: int) -> _Level:
        level = self._levels[priority] = _Level()
        if len(self._levels) > 1:
            self._levels = {each: self._levels[each] for each in sorted(self._levels, reverse=True)}
        return level
