"""The lane and record that a connection reads next, by order and priorities."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weft.replication.liveness import SECOND
from weft.replication.policy.fair_turns import FairTurns
from weft.replication.policy.rules import HOLES_MAX, Order
from weft.replication.policy.send_policy import SendPolicy
from weft.replication.sender_lane import SenderLane

FRESH_NS = 10 * SECOND
"""Age from which a new record counts as history, so that still newer ones go before it."""
BALANCE_BYTES = 256 << 10
"""Bytes that history or new records may owe each other: what one of them left while it had nothing to send is gone."""


@dataclass
class _Cursor:
    """Place of a lane from which on records count as new."""

    number: int
    """Number of the lane on the link: one that is opened again has another."""
    tip: int
    looked_at: int
    """Time of the last look at the age of new records."""
    end_then: int
    """End of the lane at that time."""


class LaneChoice:
    """The choice on one connection. With ``fresh_first`` a lane may wait twice: with its new records, and with those
    before them."""

    def __init__(self, policy: SendPolicy, get_open: Callable[[int], SenderLane | None]) -> None:
        self._policy = policy
        self._get_open = get_open
        self._fresh, self._old = FairTurns(), FairTurns()
        self._cursors: dict[int, _Cursor] = {}
        self._shut: set[int] = set()
        """Lanes with work whose streams the schedule shuts."""
        self._version = 0
        self._balance = 0.0
        """Bytes that history may send before new records; below 0, those that new records may send before history."""
        self._last: tuple[SenderLane, int, FairTurns] | None = None
        """The lane chosen last, its bytes before, and the turns that it was in."""

    def add(self, lane: SenderLane) -> None:
        """Note that an open lane may have records to read."""
        if lane.key in self._shut:
            return
        weight = self._policy.priority(lane.identity.stream)
        self._old.add(lane.key, weight)
        if self._policy.rules.order is Order.FRESH_FIRST:
            self._fresh.add(lane.key, weight)
            self._cursor(lane)  # what comes from now on is new

    def forget(self, key: int) -> None:
        """Drop a lane that is closed."""
        self._fresh.forget(key)
        self._old.forget(key)
        self._shut.discard(key)
        self._cursors.pop(key, None)

    def follow(self, lanes: Callable[[], Iterable[int]]) -> None:
        """Queue all open ``lanes`` again if the policy has changed."""
        if self._version == self._policy.version:
            return
        self._version = self._policy.version
        self._settle()
        self._fresh, self._old = FairTurns(), FairTurns()
        self._shut.clear()
        for key in lanes():
            lane = self._get_open(key)
            if lane is not None:
                self.add(lane)

    def next(self) -> tuple[SenderLane, int] | None:
        """Return the next lane and the number to read from; None if nothing may be read."""
        self._settle()
        while True:
            fresh = self._wanted(self._fresh, is_fresh=True)
            if fresh is not None and self._balance <= 0:
                return self._take(fresh, self._fresh)
            old = self._wanted(self._old, is_fresh=False)
            if old is not None:
                return self._take(old, self._old)
            if fresh is not None:
                return self._take(fresh, self._fresh)
            return None

    def _take(self, found: tuple[SenderLane, int], turns: FairTurns) -> tuple[SenderLane, int]:
        self._last = found[0], found[0].read_bytes, turns
        return found

    def _settle(self) -> None:
        """Charge what the lane chosen last has read since."""
        if self._last is None:
            return
        lane, before, turns = self._last
        self._last = None
        size = max(1, lane.read_bytes - before)
        turns.charge(lane.key, size)
        share = self._policy.rules.history_share
        change = size * share if turns is self._fresh else -size * (1 - share)
        self._balance = max(-BALANCE_BYTES, min(BALANCE_BYTES, self._balance + change))

    def _wanted(self, turns: FairTurns, *, is_fresh: bool) -> tuple[SenderLane, int] | None:
        while (key := turns.first()) is not None:
            lane = self._get_open(key)
            if lane is not None and self._policy.shuts(lane.identity.stream):
                self._shut.add(key)
                self._fresh.drop(key)
                self._old.drop(key)
                continue
            seq = self._seq(lane, is_fresh=is_fresh) if lane is not None else None
            if lane is not None and seq is not None:
                return lane, seq
            turns.drop(key)
        return None

    def _seq(self, lane: SenderLane, *, is_fresh: bool) -> int | None:
        oldest = lane.wanted()
        if oldest is None or self._policy.rules.order is Order.STRICT:
            return oldest
        cursor = self._cursor(lane)
        if is_fresh:
            return oldest if oldest >= cursor.tip else lane.wanted(cursor.tip)
        return oldest if oldest < cursor.tip else None

    def _cursor(self, lane: SenderLane) -> _Cursor:
        now, cursor = self._policy.now, self._cursors.get(lane.key)
        if cursor is None or cursor.number != lane.number:
            cursor = self._cursors[lane.key] = _Cursor(lane.number, 0, now, lane.end)
            self._move(cursor, lane)
        elif now - cursor.looked_at >= max(FRESH_NS, 2 * self._policy.rules.every):
            fresh = lane.wanted(cursor.tip)
            if fresh is not None and fresh < cursor.end_then:
                self._move(cursor, lane)
            cursor.looked_at, cursor.end_then = now, lane.end
        return cursor

    @staticmethod
    def _move(cursor: _Cursor, lane: SenderLane) -> None:
        """Let new records begin at the lane's end, if that makes no hole too many; else with the newest hole."""
        holes = lane.holes()
        cursor.tip = lane.end if len(holes) <= HOLES_MAX else holes[-1][0]
