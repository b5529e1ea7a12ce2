"""Windows by the clocks of a time zone: shifts and local days, which are longer or shorter when clocks are set."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

from weft.config.functions.window_grid import Grid
from weft.edge_node.functions.windows.groups import CLOSED, LATE, Group, Pane
from weft.edge_node.functions.windows.plan import Plan
from weft.edge_node.functions.windows.refusal import Late
from weft.edge_node.functions.windows.shapes import Closing, too_late
from weft.edge_node.functions.windows.store import Store

_start = attrgetter("start")
_MICROSECOND = 1_000
"""Nanoseconds. A grid has whole microseconds, so a time within one belongs to its window."""


class LocalPanes:
    """Windows of a grid with a zone. They follow each other and never overlap."""

    def __init__(self, plan: Plan, store: Store, grid: Grid) -> None:
        self._grid = grid
        self._digits = plan.digits
        self._store = store

    def place(self, group: Group, t: int, time: int) -> Pane:
        """Return the window of a row, and open it if there is none."""
        start, end = self._window(t)
        memory = group.memory
        if memory is not None and end <= memory[CLOSED]:
            memory[LATE] += 1
            self._store.state.touch(group.memory_key)
            raise Late(too_late(t, memory[CLOSED], self._digits))
        panes = group.panes
        at = bisect_left(panes, start, key=_start)
        if at < len(panes) and panes[at].start == start:
            pane = panes[at]
        else:
            pane = self._store.open_pane(group, at, start, time)
            group.next = self.next_end(group)
        group.turn_to(pane, start, end)
        return pane

    def is_passed(self, t: int, limit: int) -> bool:
        """Return whether the window of a row is over."""
        return self._window(t)[1] <= limit

    def pass_by(self, group: Group, t: int, limit: int) -> None:  # noqa: ARG002 - `place` looks at the row
        """Treat all windows up to a time as closed."""
        memory = group.memory
        assert memory is not None
        memory[CLOSED] = max(memory[CLOSED], self._window(limit)[0])
        self._store.state.touch(group.memory_key)

    def next_end(self, group: Group) -> int:
        """Return the end of the window that closes next."""
        return self._window(group.panes[0].start)[1]

    def over(self, group: Group, limit: int) -> list[Closing]:
        """Return the windows that end at or before a time."""
        found: list[Closing] = []
        for pane in group.panes:
            end = self._window(pane.start)[1]
            if end > limit:
                break
            found.append(Closing(pane.start, end, [pane]))
        return found

    def close(self, group: Group, closing: Closing) -> None:
        """Forget a window."""
        if group.memory is not None:
            group.memory[CLOSED] = max(group.memory[CLOSED], closing.end)
            self._store.state.touch(group.memory_key)
        group.turn_away()
        self._store.close_pane(group, closing.panes[0])

    def _window(self, t: int) -> tuple[int, int]:
        """Return start and end of the window that holds a time."""
        number = self._grid.number(t // _MICROSECOND)
        return self._grid.start(number) * _MICROSECOND, self._grid.start(number + 1) * _MICROSECOND
