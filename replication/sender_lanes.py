"""The lanes of one connection at its sending end: their numbers on the link, and queues of lanes with work.

The cost of a commit or a message depends on the lanes that it touches, not on the lanes that are idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from weft.protocols.errors import Corrupt
from weft.protocols.link import Frame, LaneClosed, LaneOpen, RefuseCode
from weft.protocols.ranges import RangeSet
from weft.replication.policy.lane_choice import LaneChoice
from weft.replication.policy.send_policy import SendPolicy
from weft.replication.sender_lane import LinkLaneState, SenderLane


class SenderLanes:
    """All lanes of a connection, by the source's numbers."""

    def __init__(self, policy: SendPolicy | None = None) -> None:
        self._policy = policy
        self._choice: LaneChoice | None = None
        """Set while the policy has another order than plain turns."""
        self._lanes: dict[int, SenderLane] = {}
        self._numbers: dict[int, SenderLane] = {}
        """Lanes that are opening or open, by the link's numbers."""
        self._next_number = 1
        self._unanswered: dict[int, None] = {}
        self._retries: dict[int, int] = {}
        """Closed lane -> time of its next offer."""
        self._turn: deque[int] = deque()
        """Lanes that may have records to read, each once."""
        self._background: deque[int] = deque()
        """Lanes that may have records to read when no other lane has."""
        self._queued: set[int] = set()
        self._with_gaps: dict[int, None] = {}
        self._unnamed: dict[int, None] = {}
        """Lanes for which the next message may name higher numbers than the last ``named_ends``."""

    def __getitem__(self, key: int) -> SenderLane:
        """Return an added lane."""
        return self._lanes[key]

    def __contains__(self, key: int) -> bool:
        """Return whether a lane was added and not removed."""
        return key in self._lanes

    @property
    def all_closed(self) -> bool:
        """Return whether no lane is opening or open."""
        return not self._numbers

    @property
    def opening(self) -> list[int]:
        """Return the lanes that the receiver has not answered."""
        return list(self._unanswered)

    def open(self) -> Iterator[int]:
        """Iterate over the lanes that the receiver has accepted."""
        return (lane.key for lane in self._numbers.values() if lane.state is LinkLaneState.OPEN)

    def get_open(self, key: int) -> SenderLane | None:
        """Return a lane if it is open."""
        lane = self._lanes.get(key)
        return lane if lane is not None and lane.state is LinkLaneState.OPEN else None

    def numbered(self, number: int) -> SenderLane | None:
        """Return the lane with a number of the link; None if it was closed while an answer was in flight.

        Raises:
            Corrupt: no lane ever had the number.
        """
        if not 0 < number < self._next_number:
            raise Corrupt(f"lane {number} was never offered")
        return self._numbers.get(number)

    # -- from closed to open and back

    def add(self, lane: SenderLane) -> LaneOpen:
        """Add a lane and return the frame that offers it.

        Raises:
            ValueError: it was added already.
        """
        if lane.key in self._lanes:
            raise ValueError(f"lane {lane.key} is offered already")
        self._lanes[lane.key] = lane
        return self._offer(lane)

    def _offer(self, lane: SenderLane) -> LaneOpen:
        # A number is used only once: frames of a closed lane that are still in flight must not count for another lane.
        number, self._next_number = self._next_number, self._next_number + 1
        self._numbers[number] = lane
        self._unanswered[lane.key] = None
        return lane.open(number)

    def opened(self, lane: SenderLane, held: RangeSet) -> None:
        """Note that the receiver accepted a lane, of which it holds ``held``."""
        lane.opened(held)
        self._unanswered.pop(lane.key, None)
        self.names_more(lane)
        self.touch(lane)

    def close(self, lane: SenderLane, retry_at: int) -> None:
        """Note that a lane is closed; ``offer_again`` returns it from ``retry_at`` on."""
        self._numbers.pop(lane.number, None)
        lane.state = LinkLaneState.CLOSED
        self._unanswered.pop(lane.key, None)
        self._with_gaps.pop(lane.key, None)
        self._unnamed.pop(lane.key, None)
        self._retries[lane.key] = retry_at
        if self._choice is not None:
            self._choice.forget(lane.key)

    def remove(self, key: int) -> Frame | None:
        """Remove a lane; return the frame for the receiver, unless the lane is closed already."""
        lane = self._lanes[key]
        was_open = lane.state is not LinkLaneState.CLOSED
        self.close(lane, 0)
        del self._lanes[key], self._retries[key]
        return LaneClosed(lane.number, RefuseCode.CLOSED, "the sender withdraws the lane", "") if was_open else None

    def offer_again(self, now: int) -> list[Frame]:
        """Return the frames that offer closed lanes again, if it is time."""
        due = [key for key, time in self._retries.items() if now >= time]
        for key in due:
            del self._retries[key]
        return [self._offer(self._lanes[key]) for key in due]

    @property
    def next_retry(self) -> int | None:
        """Return the time from which ``offer_again`` returns a frame."""
        return min(self._retries.values(), default=None)

    # -- work

    def touch(self, lane: SenderLane) -> None:
        """Note that an open lane may have something to send."""
        if lane.offered.is_background:
            if lane.key not in self._background:
                self._background.append(lane.key)
        elif self._choice is not None:
            self._choice.add(lane)
        elif lane.key not in self._queued:
            self._queued.add(lane.key)
            self._turn.append(lane.key)
        if lane.has_gaps:
            self._with_gaps[lane.key] = None
            self.names_more(lane)

    def names_more(self, lane: SenderLane) -> None:
        """Note that the next message may name new numbers of a lane."""
        self._unnamed[lane.key] = None

    def take_named_ends(self) -> dict[int, int]:
        """Return the ends of the lanes with ``names_more`` since the last call."""
        ends = {key: self._lanes[key].named_end() for key in self._unnamed}
        self._unnamed.clear()
        return ends

    def next_wanted(self) -> tuple[SenderLane, int] | None:
        """Return the next lane with records to read, and the first number; None also while the policy lets data
        wait."""
        policy = self._policy
        if policy is None:
            return self._next_in_turn() or self._next_of_background()
        if policy.is_held:
            return None
        if policy.chooses or self._choice is not None:
            self._follow(policy)
        found = self._choice.next() if self._choice is not None else self._next_in_turn()
        found = found or self._next_of_background()
        if found is None:
            policy.is_drained()
        return found

    def _next_of_background(self) -> tuple[SenderLane, int] | None:
        for _ in range(len(self._background)):
            lane = self.get_open(self._background[0])
            seq = lane.wanted() if lane is not None else None
            if lane is not None and seq is not None:
                if self._policy is not None and self._policy.shuts(lane.identity.stream):
                    self._background.rotate(-1)
                    continue
                return lane, seq
            self._background.popleft()
        return None

    def _follow(self, policy: SendPolicy) -> None:
        """Choose lanes as the policy does now."""
        if not policy.chooses:
            self._choice = None
            for key in self._chosen():
                self.touch(self._lanes[key])
            return
        if self._choice is None:
            self._choice = LaneChoice(policy, self.get_open)
            self._turn.clear()
            self._queued.clear()
        self._choice.follow(self._chosen)

    def _chosen(self) -> Iterator[int]:
        return (key for key in self.open() if not self._lanes[key].offered.is_background)

    @property
    def hold_ends(self) -> int | None:
        """Return the time at which the policy may let data go on."""
        return self._policy.deadline() if self._policy is not None else None

    def _next_in_turn(self) -> tuple[SenderLane, int] | None:
        while self._turn:
            key = self._turn[0]
            lane = self.get_open(key)
            seq = lane.wanted() if lane is not None else None
            if lane is not None and seq is not None:
                self._turn.rotate(-1)
                return lane, seq
            self._turn.popleft()
            self._queued.discard(key)
        return None

    def take_gap_frames(self, limit: int) -> Iterator[Frame]:
        """Return up to ``limit`` gap notices; lanes with more keep their place. None while data waits."""
        if self._policy is not None and self._policy.is_held:
            return
        for key in list(self._with_gaps):
            for frame in self._lanes[key].gap_frames(limit):
                limit -= 1
                yield frame
            if self._lanes[key].has_gaps:
                return
            del self._with_gaps[key]
