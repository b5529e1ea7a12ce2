"""Turns of lanes that share a link in proportion to their weights (stride scheduling)."""

from __future__ import annotations

import heapq


class FairTurns:
    """Lanes that wait, the one that had least for its weight first. Every lane gets its turn: others pass it only until
    they had as much for their weight.

    Each call costs the logarithm of the number of waiting lanes.
    """

    def __init__(self) -> None:
        self._passes: dict[int, float] = {}
        """Lane -> bytes that it had for each unit of its weight."""
        self._waiting: dict[int, int] = {}
        """Waiting lane -> its weight."""
        self._heap: list[tuple[float, int, int]] = []
        """(pass, serial, lane). An entry counts while the lane waits with that serial."""
        self._serials: dict[int, int] = {}
        self._serial = 0
        self._at = 0.0
        """Pass of the lane that was served last."""

    def add(self, key: int, weight: int) -> None:
        """Let a lane wait, if it does not yet. One that comes back has no claim to what it left to others."""
        if key not in self._waiting:
            self._waiting[key] = weight
            self._push(key, max(self._passes.get(key, 0.0), self._at))

    def _push(self, key: int, at: float) -> None:
        self._serial += 1
        self._passes[key], self._serials[key] = at, self._serial
        heapq.heappush(self._heap, (at, self._serial, key))

    def first(self) -> int | None:
        """Return the lane whose turn it is; None if none waits."""
        while self._heap:
            _, serial, key = self._heap[0]
            if key in self._waiting and self._serials[key] == serial:
                return key
            heapq.heappop(self._heap)
        return None

    def charge(self, key: int, size: int) -> None:
        """Note that a lane had ``size`` bytes; it waits on, if it waited."""
        before = self._passes.get(key)
        if before is None:
            return
        self._at = max(self._at, before)
        if key in self._waiting:
            self._push(key, before + size / self._waiting[key])

    def drop(self, key: int) -> None:
        """Let a lane wait no longer."""
        self._waiting.pop(key, None)

    def forget(self, key: int) -> None:
        """Drop a lane that is gone."""
        self.drop(key)
        self._passes.pop(key, None)
        self._serials.pop(key, None)
