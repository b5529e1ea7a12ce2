"""Shapes of windows: the window of a row, and the closing of windows."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple, NoReturn, Protocol

from weft.edge_node.functions.windows.groups import ALWAYS, CLOSED, LAST, LATE, START, Group, Pane
from weft.edge_node.functions.windows.plan import Plan
from weft.edge_node.functions.windows.refusal import Late
from weft.edge_node.functions.windows.store import Store
from weft.edge_node.functions.windows.times import iso_text

_start = attrgetter("start")


class Closing(NamedTuple):
    """A window that is closing."""

    start: int
    end: int
    panes: list[Pane]


class Shape(Protocol):
    """Rules of one kind of windows."""

    def place(self, group: Group, t: int, time: int) -> Pane:
        """Return the window of a row, and open it if there is none. For overlapping windows, return their shared part.

        Args:
            t: time by which the row belongs to windows.
            time: time at which the node received it.

        Raises:
            Late: its windows are closed.
            Refusal: there are too many windows.
        """
        ...

    def is_passed(self, t: int, limit: int) -> bool:
        """Return whether a row of a time may belong to windows that end at or before another time."""
        ...

    def pass_by(self, group: Group, t: int, limit: int) -> None:
        """Treat windows that end at or before a time as closed, even those that no row opened.

        Raises:
            Late: a row of this time belongs only to such windows.
        """
        ...

    def next_end(self, group: Group) -> int:
        """Return the end of the window that closes next, of a group with open windows."""
        ...

    def over(self, group: Group, limit: int) -> list[Closing]:
        """Return the windows of a group that end at or before a time, by their end."""
        ...

    def close(self, group: Group, closing: Closing) -> None:
        """Forget a window, and panes that no other window needs."""
        ...


class Panes:
    """Windows of a fixed length. Overlapping (hopping) windows share panes of length ``every``, so that a row is
    counted once; the panes are merged when a window ends."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._every, self._size, self._offset = plan.every, plan.size, plan.offset
        self._digits = plan.digits
        self._store = store

    def place(self, group: Group, t: int, time: int) -> Pane:
        """Return the pane of a row, and open it if there is none."""
        start = (t - self._offset) // self._every * self._every + self._offset
        memory = group.memory
        is_late = memory is not None and start + self._every <= memory[CLOSED]
        if memory is not None and start + self._size <= memory[CLOSED]:
            self._count_late(group, memory)
            raise Late(too_late(t, memory[CLOSED], self._digits))
        panes = group.panes
        at = bisect_left(panes, start, key=_start)
        if at < len(panes) and panes[at].start == start:
            pane = panes[at]
        else:
            pane = self._store.open_pane(group, at, start, time)
            group.next = self.next_end(group)
        if memory is not None and is_late:
            self._count_late(group, memory)
            group.turn_away()  # The next such row must be counted as late as well.
        else:
            group.turn_to(pane, start, start + self._every)
        return pane

    def is_passed(self, t: int, limit: int) -> bool:
        """Return whether the first window of a row's pane is over."""
        return (t - self._offset) // self._every * self._every + self._offset + self._every <= limit

    def pass_by(self, group: Group, t: int, limit: int) -> None:  # noqa: ARG002 - `place` looks at the row
        """Treat all windows up to a time as closed."""
        memory = group.memory
        assert memory is not None
        phase = self._offset + self._size
        memory[CLOSED] = max(memory[CLOSED], (limit - phase) // self._every * self._every + phase)
        self._store.state.touch(group.memory_key)

    def _count_late(self, group: Group, memory: list[int]) -> None:
        memory[LATE] += 1
        self._store.state.touch(group.memory_key)

    def next_end(self, group: Group) -> int:
        """Return the end of the window that closes next."""
        end = group.panes[0].start + self._every
        # Panes whose last window was emitted are gone, so the window after the last one has rows.
        return end if group.memory is None else max(end, group.memory[CLOSED] + self._every)

    def over(self, group: Group, limit: int) -> list[Closing]:
        """Return the windows that end at or before a time."""
        panes = group.panes
        found: list[Closing] = []
        end = self.next_end(group) if panes else ALWAYS
        if len(panes) == 1 and self._size == self._every:  # nearly always
            return [Closing(panes[0].start, end, panes.copy())] if end <= limit else found
        while end <= limit:
            first = bisect_left(panes, end - self._size, key=_start)
            after = bisect_left(panes, end, key=_start)
            if first < after:
                found.append(Closing(end - self._size, end, panes[first:after]))
            elif first == len(panes):
                break
            else:
                end = panes[first].start
            end += self._every
        return found

    def close(self, group: Group, closing: Closing) -> None:
        """Forget the panes that no later window has."""
        if group.memory is not None:
            group.memory[CLOSED] = max(group.memory[CLOSED], closing.end)
            self._store.state.touch(group.memory_key)
        group.turn_away()
        for pane in closing.panes:
            if pane.start + self._size > closing.end:
                break
            self._store.close_pane(group, pane)


class Sessions:
    """Windows of rows that follow each other within ``gap``."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._gap, self._longest = plan.gap, plan.longest
        self._digits = plan.digits
        self._store = store

    def place(self, group: Group, t: int, time: int) -> Pane:
        """Return the session of a row. It may begin one, make one longer, or join two."""
        memory = group.memory
        if memory is not None and t < memory[CLOSED]:
            # Sessions of a group never overlap: this row would begin one within an emitted one.
            self._turn_back(group, memory, t, memory[CLOSED])
        panes = group.panes
        pane = next((each for each in panes if self._takes(each, t, t)), None)
        if pane is None:
            at = next((at for at, each in enumerate(panes) if each.numbers[START] > t), len(panes))
            pane = self._store.open_pane(group, at, t, time)
        else:
            numbers = pane.numbers
            numbers[START], numbers[LAST] = min(numbers[START], t), max(numbers[LAST], t)
            for other in [each for each in panes if each is not pane]:
                if self._takes(other, numbers[START], numbers[LAST]):
                    self._store.absorb(group, pane, other)
            panes.sort(key=lambda each: (each.numbers[START], each.start))
        group.next = self.next_end(group)
        if len(panes) == 1:
            group.turn_to(pane, 0, 0)
        else:
            group.turn_away()
        return pane

    def is_passed(self, t: int, limit: int) -> bool:
        """Return whether a closed session may take a row."""
        return t < limit

    def pass_by(self, group: Group, t: int, limit: int) -> None:
        """Refuse a row that would begin a closed session."""
        memory = group.memory
        if memory is not None and t + self._gap <= limit and not any(self._takes(each, t, t) for each in group.panes):
            self._turn_back(group, memory, t, limit)

    def _turn_back(self, group: Group, memory: list[int], t: int, closed: int) -> NoReturn:
        memory[LATE] += 1
        self._store.state.touch(group.memory_key)
        raise Late(too_late(t, closed, self._digits))

    def _takes(self, pane: Pane, first: int, last: int) -> bool:
        """Return whether a session may have rows from ``first`` to ``last`` as well."""
        start, end = pane.numbers[START], pane.numbers[LAST]
        near = first - end < self._gap and start - last < self._gap
        return bool(near and max(end, last) - min(start, first) < self._longest)

    def _end(self, pane: Pane) -> int:
        end: int = min(pane.numbers[LAST] + self._gap, pane.numbers[START] + self._longest)
        return end

    def next_end(self, group: Group) -> int:
        """Return the end of the session that closes next."""
        return min(map(self._end, group.panes))

    def over(self, group: Group, limit: int) -> list[Closing]:
        """Return the sessions that end at or before a time."""
        ends = [(self._end(pane), pane.numbers[START], pane.start, pane) for pane in group.panes]
        return [Closing(start, end, [pane]) for end, start, _, pane in sorted(ends) if end <= limit]

    def close(self, group: Group, closing: Closing) -> None:
        """Forget a session."""
        if group.memory is not None:
            group.memory[CLOSED] = max(group.memory[CLOSED], closing.end)
            self._store.state.touch(group.memory_key)
        group.turn_away()
        self._store.close_pane(group, closing.panes[0])


def too_late(t: int, closed: int, digits: int) -> str:
    """Return the reason why a row is not counted."""
    until = iso_text(closed, digits)
    return f"came too late: its time is {iso_text(t, 6)}, and its group's windows up to {until} are closed"
