"""Settings of windows in nanoseconds, checked against each other."""

from __future__ import annotations

from dataclasses import dataclass

from weft.config.functions.window_grid import Grid, grid_problem
from weft.config.functions.windows import Windowing
from weft.edge_node.functions.windows.times import digits_of, nanoseconds

PARTS_MAX = 10_000
"""Maximum number of parts (``every``) of one hopping window."""
LONGER = 86_400 * 10**9
"""Most by which setting the clocks makes a window longer: zones have crossed the date line."""
_SESSION_DIGITS = 6


class WindowError(ValueError):
    """Contradicting settings of a window; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Times of windows in ns."""

    every: int
    """Distance between two starts; 0 for sessions."""
    size: int
    offset: int
    gap: int
    """Silence that ends a session; 0 for windows of fixed length."""
    longest: int
    by_event: bool
    lateness: int
    idle: int
    """Silence of a group after which its windows close."""
    ahead: int
    digits: int
    """Digits of a second in the bounds of windows."""
    grid: Grid | None = None
    """Windows by the clocks of a zone; None for those of UTC."""

    @property
    def is_hopping(self) -> bool:
        """Return whether windows overlap."""
        return self.size > self.every

    @property
    def span(self) -> int:
        """Return the longest window."""
        if self.grid is not None:
            return self.size + LONGER
        return self.longest + self.gap if self.gap else self.size

    @property
    def open_at_once(self) -> int:
        """Return the number of open windows, or parts of them, of a group with continuous rows."""
        return (self.size + self.lateness) // self.every + 2 if self.every else 0

    @property
    def remember(self) -> int:
        """Return the time for which a group without open windows is remembered, so that late rows are recognised."""
        return max(3600 * 10**9, 10 * (self.idle + self.lateness))

    @classmethod
    def of(cls, settings: Windowing) -> Plan:
        """Return the plan of some settings.

        Raises:
            WindowError: they contradict each other.
        """
        _check(settings)
        every, size, offset = (
            nanoseconds(each or 0) for each in (settings.every_s, settings.size_s, settings.offset_s)
        )
        grid = _grid(settings, every, offset)
        gap, lateness = nanoseconds(settings.gap_s or 0), nanoseconds(settings.lateness_s)
        size = size or every
        if every and size % every:
            raise WindowError("size is not a multiple of every; windows are put together from parts of that length")
        if every and size // every > PARTS_MAX:
            raise WindowError(f"size is more than {PARTS_MAX:,} times every; take a longer every")
        return cls(
            every=every,
            size=size,
            offset=offset,
            gap=gap,
            longest=nanoseconds(settings.longest_s),
            by_event=settings.time is not None,
            lateness=lateness,
            idle=(gap or size) + lateness if settings.idle_s is None else nanoseconds(settings.idle_s),
            ahead=nanoseconds(settings.ahead_s),
            digits=_SESSION_DIGITS if gap else digits_of(every, offset),
            grid=grid,
        )


def _grid(settings: Windowing, every: int, offset: int) -> Grid | None:
    if settings.zone is None:
        return None
    if settings.gap_s is not None or settings.size_s not in (None, settings.every_s):
        other = "gap" if settings.gap_s is not None else "size"
        raise WindowError(f"zone does not go with {other}: only windows that follow each other have a local time")
    grid = Grid(every // 1_000, offset // 1_000, settings.zone)
    problem = grid_problem(grid.every_us, grid.offset_us, grid.zone)
    if problem is None and (every % 1_000_000_000 or offset % 1_000_000_000):
        problem = "offset", "is no number of whole seconds, and a zone needs one"
    if problem is not None:
        raise WindowError(" ".join(problem))
    return grid


def _check(settings: Windowing) -> None:
    if settings.gap_s is None and settings.every_s is None:
        raise WindowError("a window needs every (such as 1m), or gap (such as 30s) for sessions")
    if settings.gap_s is not None:
        for name, value in (("every", settings.every_s), ("size", settings.size_s), ("offset", settings.offset_s)):
            if value:
                raise WindowError(f"{name} does not go with gap: a session begins and ends with its rows")
        if settings.longest_s <= settings.gap_s:
            raise WindowError("longest is not longer than gap")
    if settings.offset_s and settings.every_s and settings.offset_s >= settings.every_s:
        raise WindowError("offset is not shorter than every")
    if settings.time is None and (settings.lateness_s or settings.idle_s is not None):
        raise WindowError(
            "lateness and idle need time, the field with the time of the event: by the node's own time no row is late"
        )
    if len(settings.by) > 1 and "none" in settings.by:
        raise WindowError("by: none stands alone")
    if len(set(settings.by)) < len(settings.by):
        raise WindowError("by names something twice")
