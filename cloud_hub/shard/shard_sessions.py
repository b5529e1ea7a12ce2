"""All link sessions of one shard: what they have pending, its bound, and who is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from weft.cloud_hub.shard.lane_session import LaneIntake, PendingItem, SessionRefused, bounds, weight
from weft.protocols.chunk import Mark
from weft.protocols.lane import Lane, format_log_id
from weft.protocols.link import RefuseCode
from weft.protocols.shard_state import LaneState, ShardState


class Intakes:
    """Sessions of one shard and their pending items.

    Args:
        bytes_max: past this much pending, ``take`` waits.
        ranges_per_lane_max: a session that leaves more holes than this is refused.
        wake: called when there is something new to commit.
    """

    def __init__(self, bytes_max: int, ranges_per_lane_max: int, wake: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._ranges_per_lane_max = ranges_per_lane_max
        self._wake = wake
        self._lanes: dict[Lane, list[LaneIntake]] = {}
        self._active: dict[LaneIntake, None] = {}
        self._room = asyncio.Event()
        self.pending_bytes = 0
        """Bytes taken from links and not committed yet."""
        self.refused = 0
        """Sessions that were sent away."""

    def __iter__(self) -> Iterator[LaneIntake]:
        """The sessions with something pending, longest waiting first."""
        return iter(list(self._active))

    @property
    def sessions(self) -> int:
        """How many there are, pending or not."""
        return sum(map(len, self._lanes.values()))

    @property
    def urgent(self) -> bool:
        """Whether more than marks is pending."""
        return any(intake.urgent for intake in self._active)

    @property
    def pending(self) -> bool:
        """Whether anything is pending."""
        return bool(self._active)

    def add(self, intake: LaneIntake) -> None:
        """A session begins: its epoch is to be committed."""
        self._lanes.setdefault(intake.lane, []).append(intake)
        self._touch(intake)

    async def take(self, intake: LaneIntake, items: Iterable[PendingItem]) -> None:
        """Add pending items; returns when there is room for more. Items of a refused session are dropped."""
        if not self._registered(intake):
            return
        for item in items:
            intake.known.add(*bounds(item))
            intake.items.append(item)
            self.pending_bytes += weight(item)
        if len(intake.known) > self._ranges_per_lane_max:
            message = f"lane {intake.lane} would have more than {self._ranges_per_lane_max} separate ranges"
            self.refuse(intake, RefuseCode.OVERLOADED, message, "send the oldest missing records first")
            return
        self._touch(intake)
        while self.pending_bytes >= self._bytes_max and self._registered(intake):
            self._room.clear()
            await self._room.wait()

    def mark(self, intake: LaneIntake, mark: Mark) -> None:
        """Take a mark; the newest of a session is the one that is committed."""
        if self._registered(intake):
            intake.mark = mark
            self._touch(intake)

    def leave(self, intake: LaneIntake) -> None:
        """The link is gone. What it brought is still committed, unless the edge opens a new session first."""
        intake.closed = True
        intake.opened.cancel()
        if not intake.items:
            self._forget(intake)

    def fence(self, state: ShardState, lanes: Iterable[Lane]) -> None:
        """Refuse the sessions that lost their lane: a higher epoch came, or another session took the same one."""
        for lane in lanes:
            for intake in list(self._lanes.get(lane, ())):
                held = state.lanes.get(lane)
                if held is not None and (
                    held.epoch > intake.epoch or (held.epoch == intake.epoch and not intake.granted)
                ):
                    self._refuse_fenced(intake, held)

    def _refuse_fenced(self, intake: LaneIntake, held: LaneState) -> None:
        lane = intake.lane
        self.refuse(
            intake,
            RefuseCode.IDENTITY_CONFLICT,
            f"edge {lane.edge}, log {format_log_id(lane.log_id)}: a connection with epoch {held.epoch} has taken over, "
            f"this one has {intake.epoch}",
            "if the log was copied to a second node, give that node an empty data_dir; otherwise connect again",
        )

    def settle(self, state: ShardState) -> None:
        """Answer every session from the state: its opening, and what was committed of its items."""
        for intake in self:
            held = state.lanes.get(intake.lane)
            freed = intake.settle(held)
            self.pending_bytes -= freed
            if held is not None and intake.granted and intake.opening:
                intake.known = held.ranges.copy()
                intake.opened.set_result(held.ranges.copy())
            elif held is not None and freed and not intake.closed:
                intake.acknowledge(held.ranges.copy())
            del self._active[intake]
            if intake.pending:
                self._active[intake] = None  # behind those that have not had their turn
            elif intake.closed:
                self._forget(intake)
        self._room.set()

    def refuse(self, intake: LaneIntake, code: RefuseCode, message: str, advice: str) -> None:
        """End a session and drop what it has pending."""
        self._forget(intake)
        self.refused += 1
        if intake.opening:
            intake.opened.set_exception(SessionRefused(code, message, advice))
        elif not intake.closed:
            intake.refuse(code, message, advice)
        intake.closed = True

    def refuse_all(self, code: RefuseCode, message: str, advice: str, *, opening_only: bool = False) -> None:
        """End every session, or every one that is not open yet."""
        for intake in [intake for lane in list(self._lanes.values()) for intake in lane]:
            if intake.opening or not opening_only:
                self.refuse(intake, code, message, advice)

    def _registered(self, intake: LaneIntake) -> bool:
        return intake in self._lanes.get(intake.lane, ())

    def _touch(self, intake: LaneIntake) -> None:
        self._active[intake] = None
        self._wake()

    def _forget(self, intake: LaneIntake) -> None:
        if not self._registered(intake):
            return
        self._lanes[intake.lane].remove(intake)
        if not self._lanes[intake.lane]:
            del self._lanes[intake.lane]
        self._active.pop(intake, None)
        self.pending_bytes -= sum(map(weight, intake.items))
        intake.items.clear()
        self._room.set()
