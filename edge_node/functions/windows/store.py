"""Open windows of all groups: in memory for the hot path, and in ``State`` for the next start."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from weft.edge_node.functions.contract import State
from weft.edge_node.functions.windows.groups import (
    CHUNK,
    CLOSED,
    FIRST,
    GROUP,
    NEVER,
    PANE,
    SEEN,
    START,
    Group,
    Pane,
    chunk_key,
    of_chunk_key,
    of_pane_key,
    pane_key,
)
from weft.edge_node.functions.windows.refusal import Full, Refusal
from weft.edge_node.functions.windows.shares import Shares, topic_of

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
        self.pad: Callable[[Numbers], None] = _keep
        """Function that adds the numbers that windows of an earlier release lack."""
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
        pane = Pane(start, key, numbers)
        if self.weight_of is not None:
            pane.shares = Shares()
        return pane

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
                self.pad(value)
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


def _keep(numbers: Numbers) -> None:
    """Add nothing."""


def memory_of(item: Any) -> int:
    """Return the approximate memory of a kept row: packed, or as a list of its time and numbers."""
    return _KEPT_BYTES + (len(item) if type(item) is bytes else _NUMBER_BYTES * len(item))


def new_memory(time: int) -> list[int]:
    """Return the memory of a group with its first row at a time."""
    memory = [NEVER, NEVER, 0, time]
    assert len(memory) == SEEN + 1
    assert memory[CLOSED] == NEVER
    return memory
