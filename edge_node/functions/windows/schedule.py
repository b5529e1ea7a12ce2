"""Schedule of groups by the tick at which they have work."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from weft.edge_node.functions.windows.groups import Group


class Schedule:
    """Ticks and the groups that wait for them.

    Each row moves its group's tick to a later one. So an entry is only a lower bound, and is checked again at its tick:
    a row costs nothing here.
    """

    def __init__(self, due_of: Callable[[Group], int]) -> None:
        self._due_of = due_of
        """Function that returns the tick that a group waits for now."""
        self._ticks: list[int] = []
        self._groups: dict[int, dict[bytes, Group]] = {}

    def enter(self, group: Group, tick: int) -> None:
        """Schedule a check of a group by a tick at the latest."""
        if group.due is not None and group.due <= tick:
            return
        if group.due is not None:
            self._groups[group.due].pop(group.gid, None)
        group.due = tick
        groups = self._groups.get(tick)
        if groups is None:
            groups = self._groups[tick] = {}
            heapq.heappush(self._ticks, tick)
        groups[group.gid] = group

    def first(self) -> int | None:
        """Return the first tick that a group waits for."""
        while self._ticks:
            tick = self._ticks[0]
            groups = self._groups[tick]
            while groups:
                gid, group = next(iter(groups.items()))
                if group.due == tick:
                    due = self._due_of(group)
                    if due <= tick:
                        return tick
                    group.due = None
                    del groups[gid]
                    self.enter(group, due)
                else:
                    del groups[gid]
            self._drop(tick)
        return None

    def take(self, tick: int) -> list[Group]:
        """Return the groups that wait for a tick or an earlier one. They are removed from the schedule."""
        taken: list[Group] = []
        while self._ticks and self._ticks[0] <= tick:
            first = self._ticks[0]
            found = [group for group in self._groups[first].values() if group.due == first]
            self._drop(first)
            for group in found:
                group.due = None
                # Its tick may have moved: check no earlier than then, as after a restart.
                due = self._due_of(group)
                if due <= tick:
                    taken.append(group)
                else:
                    self.enter(group, due)
        return taken

    def _drop(self, tick: int) -> None:
        heapq.heappop(self._ticks)
        del self._groups[tick]
