"""Open windows of all groups: in memory for the hot path, and in ``State`` for the next start."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, Protocol

import msgspec

from weft.config.functions.windows import Grid
from weft.functions.contract import Gap, Row, State
from weft.functions.window_plan import (
    ALWAYS,
    CHUNK,
    CLOSED,
    FIRST,
    GAPS,
    GROUP,
    LAST,
    LATE,
    NEVER,
    PANE,
    SEEN,
    START,
    Full,
    Group,
    Late,
    Pane,
    Plan,
    Refusal,
    Shares,
    chunk_key,
    iso_text,
    of_chunk_key,
    of_pane_key,
    pane_key,
    topic_of,
)

Numbers = list[Any]
_KEPT_BYTES, _NUMBER_BYTES = 64, 32
"""Memory of a kept row beside its content, and of a number."""
CHUNK_ROWS = 64
"""Rows of a piece. A step writes the last piece again, so a row is written up to so many times."""
LOOKED_CHUNKS_MAX = 32
"""Maximum number of pieces searched for rows to remove for another: less than a millisecond."""


class Bounds(msgspec.Struct, frozen=True):
    """Bounds of a function's memory."""

    groups: int
    panes: int
    panes_of_group: int
    kept_bytes: int
    """Maximum memory of the rows that all open windows keep."""


class Store:
    """Groups and their open windows. Each change goes to ``State`` at once."""

    def __init__(
        self, bounds: Bounds, new: Callable[[int, int], Numbers], merge: Callable[[Numbers, Numbers], None]
    ) -> None:
        self.state = State()
        self.groups: dict[bytes, Group] = {}
        self.by_name: dict[Any, Group] = {}
        """Groups by the text in rows."""
        self.open = 0
        """Number of open windows."""
        self._busy = 0
        """Number of groups with open windows."""
        self.kept_bytes = 0
        """Approximate memory of the rows that they keep."""
        self.weight_of: Callable[[bytes], int] | None = None
        """Function that returns the weight of a kept row, where topics have shares in a window; set before the first
        row."""
        self._bounds = bounds
        self._new = new
        self._merge = merge
        self._firsts: list[tuple[int, bytes]] = []
        """Heap of open windows by their oldest row; closed ones stay until they reach the top."""

    def oldest(self) -> int | None:
        """Return the time of the oldest row in an open window."""
        heap, values = self._firsts, self.state.values
        while heap:
            time, key = heap[0]
            numbers = values.get(key)
            if numbers is not None and numbers[FIRST] == time:
                return time
            heapq.heappop(heap)
        return None

    def add(self, group: Group) -> None:
        """Add a group.

        Raises:
            Refusal: the bound on groups is reached, and all have open windows.
        """
        if len(self.groups) >= self._bounds.groups and not self._make_room():
            raise Refusal(f"all {self._bounds.groups:,} groups have open windows (keys_max)")
        self._enter(group)
        if group.memory is not None:
            self.state.set(group.memory_key, group.memory)

    def _enter(self, group: Group) -> None:
        self.groups[group.gid] = group
        if group.name is not None:
            self.by_name[group.name] = group

    def remove(self, group: Group) -> None:
        """Forget a group without open windows."""
        group.due = None
        del self.groups[group.gid]
        if group.name is not None:
            del self.by_name[group.name]
        if group.memory is not None:
            self.state.delete(group.memory_key)

    def _make_room(self) -> bool:
        """Forget an eighth of the groups: the ones without open windows that were silent longest."""
        if self._busy >= len(self.groups):  # A search of all groups for each row of new keys would block the node.
            return False
        idle = [
            (group.memory[SEEN] if group.memory is not None else 0, group.gid)
            for group in self.groups.values()
            if not group.panes
        ]
        # An eighth at a time: a search of all groups for each new key would let one device block the node.
        for _, gid in heapq.nsmallest(self._bounds.groups // 8 + 1, idle):
            self.remove(self.groups[gid])
        return bool(idle)

    def open_pane(self, group: Group, at: int, start: int, time: int) -> Pane:
        """Open a window at an index of the group's list.

        Args:
            start: first time of the window; for a session, time of the row.
            time: ingest time of the row.

        Raises:
            Full: the bound on windows is reached.
        """
        if self.open >= self._bounds.panes:
            raise Full(f"all {self._bounds.panes:,} windows are open (windows_max)")
        if len(group.panes) >= self._bounds.panes_of_group:
            raise Full(f"all {self._bounds.panes_of_group:,} windows of one group are open (a share of windows_max)")
        pane = self._pane(start, pane_key(start, group.gid), self._new(time, start))
        if not group.panes:
            self._busy += 1
        group.panes.insert(at, pane)
        self.open += 1
        self.state.set(pane.key, pane.numbers)
        heapq.heappush(self._firsts, (time, pane.key))
        return pane

    def _pane(self, start: int, key: bytes, numbers: Numbers) -> Pane:
        return Pane(start, key, numbers, None if self.weight_of is None else Shares())

    def lower(self, pane: Pane, time: int) -> None:
        """Note that a row of a window is older than earlier ones."""
        pane.numbers[FIRST] = time
        heapq.heappush(self._firsts, (time, pane.key))

    def close_pane(self, group: Group, pane: Pane) -> None:
        """Forget a window."""
        group.panes.remove(pane)
        if not group.panes:
            self._busy -= 1
        group.turn_away()
        self.open -= 1
        self.state.delete(pane.key)
        for number in range(pane.chunks):
            key = chunk_key(pane, number)
            self.kept_bytes -= sum(map(memory_of, self.state.values[key]))
            self.state.delete(key)

    def absorb(self, group: Group, pane: Pane, other: Pane) -> None:
        """Add another window of a group to a window: a row has joined two sessions."""
        time = pane.numbers[FIRST]
        self._merge(pane.numbers, other.numbers)
        kept = list(self.kept(other))
        self.close_pane(group, other)
        for item in kept:
            self.keep(pane, item)
        self.state.touch(pane.key)
        if pane.numbers[FIRST] != time:
            self.lower(pane, pane.numbers[FIRST])

    def keep(self, pane: Pane, item: Any) -> None:
        """Keep a row of a window, or the needed part of it."""
        if not pane.chunks or len(pane.tail) >= CHUNK_ROWS:
            pane.tail = []
            self.state.set(chunk_key(pane, pane.chunks), pane.tail)
            pane.chunks += 1
        else:
            self.state.touch(chunk_key(pane, pane.chunks - 1))
        pane.tail.append(item)
        self.kept_bytes += memory_of(item)
        if pane.shares is not None and self.weight_of is not None:
            pane.shares.add(topic_of(item), pane.chunks - 1, self.weight_of(item))

    def newest(self, pane: Pane, topic: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield the kept rows of a topic that has some, the newest first: piece, index in it, and row. Only a few of
        the newest pieces are searched."""
        assert pane.shares is not None
        chunks, left = pane.shares.chunks(topic), LOOKED_CHUNKS_MAX
        for number in reversed(chunks.copy()):
            if not left:
                return
            items = self.state.values[chunk_key(pane, number)]
            found = False
            for at in range(len(items) - 1, -1, -1):
                if topic_of(items[at]) == topic:
                    found = True
                    yield number, at, items[at]
            if found:
                left -= 1
            else:  # not counted: a piece without such rows is visited only once, and after a crash there are none
                chunks.remove(number)

    def cut(self, pane: Pane, number: int, at: int) -> None:
        """Remove a kept row. Later rows in its piece move up."""
        assert pane.shares is not None
        assert self.weight_of is not None
        key = chunk_key(pane, number)
        item = self.state.values[key].pop(at)  # an empty piece stays: a start counts the pieces
        self.state.touch(key)
        self.kept_bytes -= memory_of(item)
        pane.shares.take(topic_of(item), self.weight_of(item))

    @property
    def is_full(self) -> bool:
        """Return whether no window may keep another row."""
        return self.kept_bytes >= self.kept_bytes_max

    @property
    def kept_bytes_max(self) -> int:
        """Return the memory at which no window may keep another row."""
        return self._bounds.kept_bytes

    def why_full(self) -> str:
        """Return the reason why no window may keep another row."""
        return f"the rows of all open windows take {self.kept_bytes:,} bytes already (memory)"

    def kept(self, pane: Pane) -> Iterator[Any]:
        """Yield the rows kept of a window, in the order of arrival."""
        for number in range(pane.chunks):
            yield from self.state.values[chunk_key(pane, number)]

    def restore(self, group_of: Callable[[bytes, list[int] | None], Group], *, is_session: bool) -> None:
        """Restore the windows from ``State`` after a start."""
        panes: dict[bytes, Pane] = {}
        for key, value in self.state.items():
            if key[:1] == PANE:
                start, gid = of_pane_key(key)
                panes[key] = self._pane(start, key, value)
            elif key[:1] == GROUP:
                self._enter(group_of(key[1:], value))
        for key, value in self.state.items():
            if key[:1] == CHUNK:
                number, of = of_chunk_key(key)
                pane = panes[of]
                self.kept_bytes += sum(map(memory_of, value))
                if number >= pane.chunks:
                    pane.chunks, pane.tail = number + 1, value
        if self.weight_of is not None:
            for pane in panes.values():
                self._share_out(pane, self.weight_of)
        for key, pane in panes.items():
            _, gid = of_pane_key(key)
            if gid not in self.groups:
                self._enter(group_of(gid, None))
            self.groups[gid].panes.append(pane)
            heapq.heappush(self._firsts, (pane.numbers[FIRST], key))
        self.open = len(panes)
        self._busy = sum(bool(group.panes) for group in self.groups.values())
        for group in self.groups.values():
            group.panes.sort(
                key=(lambda pane: (pane.numbers[START], pane.start)) if is_session else (lambda pane: pane.start)
            )

    def _share_out(self, pane: Pane, weight_of: Callable[[bytes], int]) -> None:
        assert pane.shares is not None
        for number in range(pane.chunks):
            for item in self.state.values[chunk_key(pane, number)]:
                pane.shares.add(topic_of(item), number, weight_of(item))


def memory_of(item: Any) -> int:
    """Return the approximate memory of a kept row: packed, or as a list of its time and numbers."""
    return _KEPT_BYTES + (len(item) if type(item) is bytes else _NUMBER_BYTES * len(item))


def new_memory(time: int) -> list[int]:
    """Return the memory of a group with its first row at a time."""
    memory = [NEVER, NEVER, 0, time]
    assert len(memory) == SEEN + 1
    assert memory[CLOSED] == NEVER
    return memory


# Gaps in the input, and the windows that they make incomplete.

GAPS_MAX = 16
"""Maximum number of separate gaps of an input at a time. Further ones are merged."""
NAMED_MAX = 8
"""Maximum number of gaps that one row names."""
_AFTER, _UNTIL, _INPUT, _TEXT = 0, 1, 2, 3
_UNKNOWN = -1
_MORE = " and later ones"


class WindowGaps:
    """Gaps that windows may still overlap, each from the last row before it to the first row after it."""

    def __init__(self, state: State, lateness: int | None) -> None:
        """Start without gaps.

        Args:
            lateness: longest delay of a row after its event, in ns; None for windows of ingest time.
        """
        self._state = state
        self._lateness = lateness
        self._gaps: list[list[Any]] = []
        self.is_open = False
        """True while a gap has no row after it."""

    def restore(self) -> None:
        """Restore the gaps from ``State`` after a start."""
        self._gaps = self._state.values.get(GAPS, [])
        self._note()

    def _note(self) -> None:
        self.is_open = any(gap[_UNTIL] == _UNKNOWN for gap in self._gaps)

    def add(self, gap: Gap) -> None:
        """Note a gap. ``Gap.end`` is the first number after it."""
        numbers = f"{gap.first}" if gap.end == gap.first + 1 else f"{gap.first}-{gap.end - 1}"
        self._gaps.append([gap.after, _UNKNOWN, gap.input, f"{gap.input} {numbers}: {gap.reason}"])
        same = [gap for gap in self._gaps if gap[_INPUT] == self._gaps[-1][_INPUT]]
        if len(same) > GAPS_MAX:
            first, second = same[:2]
            text = first[_TEXT] if first[_TEXT].endswith(_MORE) else first[_TEXT] + _MORE
            second[:] = [first[_AFTER], second[_UNTIL], second[_INPUT], text]
            self._gaps.remove(first)
        self._state.set(GAPS, self._gaps)
        self._note()

    def see(self, rows: list[Row]) -> None:
        """Find the first rows after gaps. Rows that a function created have no input, and end every gap."""
        for gap in self._gaps:
            if gap[_UNTIL] == _UNKNOWN:
                time = next((row.time for row in rows if row.input in (gap[_INPUT], "")), None)
                if time is not None:
                    gap[_UNTIL] = time
                    self._state.touch(GAPS)
        self._note()

    def text(self, first: int, start: int, end: int) -> str:
        """Return the gaps that may hold rows of a window, as text; empty where there are none.

        Args:
            first: ingest time of the window's oldest row.
            start: first time of the window.
            end: end of the window.
        """
        if not self._gaps:
            return ""
        found = [gap[_TEXT] for gap in self._gaps if self._overlaps(gap, first, start, end)]
        more = f"; and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        return "; ".join(found[:NAMED_MAX]) + more

    def _overlaps(self, gap: list[Any], first: int, start: int, end: int) -> bool:
        until = ALWAYS if gap[_UNTIL] == _UNKNOWN else gap[_UNTIL]
        if self._lateness is None:
            return gap[_AFTER] < end and start <= until
        # The times of missing events are unknown. They belong to windows that were open at the gap, or to windows of
        # that time.
        return first <= until or (gap[_AFTER] - self._lateness < end and start <= until)

    def forget(self, before: int) -> None:
        """Forget gaps that were over before a time."""
        if self._gaps:
            kept = [gap for gap in self._gaps if gap[_UNTIL] == _UNKNOWN or gap[_UNTIL] >= before]
            if len(kept) < len(self._gaps):
                self._gaps = kept
                if kept:
                    self._state.set(GAPS, kept)
                else:
                    self._state.delete(GAPS)


# Schedule of groups by the tick at which they have work.


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


# Shapes of windows: the window of a row, and the closing of windows.

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
    return f"arrived too late: its time is {iso_text(t, 6)}, and its group's windows up to {until} are closed"


# Windows by the clocks of a time zone: shifts and local days, which are longer or shorter when clocks are set.

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
