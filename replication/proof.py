"""Patience of a sender with data in flight, and its proofs that the hub's store takes what is sent.

A PONG shows that the hub's process answers, and says nothing of its store. Three answers come only after a commit: the
first LANE_OPENED of a connection (the epoch is durable), ACK (the records are), and CANARY_BACK, which is asked for
where none of the others came for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from weft.protocols.chunk import LaneFlag
from weft.protocols.errors import Corrupt
from weft.protocols.link import Frame, LaneOpen, Ping, Welcome
from weft.protocols.link.canary import CANARY, Canary, CanaryBack


class AckPatience:
    """The time that a sender waits for an acknowledgement of batches in flight. All times are monotonic nanoseconds.

    A hub that pings is alive, but may be unable to write to its store. Another node of the hub may then accept the
    data.
    """

    def __init__(self, timeout: int) -> None:
        self._timeout = timeout
        self._since: int | None = None

    @property
    def since(self) -> int | None:
        """Return the time at which the patience began; None while nothing is awaited."""
        return self._since

    @property
    def deadline(self) -> int | None:
        """Return the time at which the patience ends; None while nothing is awaited."""
        return None if self._since is None else self._since + self._timeout

    def awaits(self, anything: bool, now: int) -> None:
        """Note whether anything is in flight without an answer."""
        if not anything:
            self._since = None
        elif self._since is None:
            self._since = now

    def answered(self, now: int) -> None:
        """Note an answer: the patience begins again."""
        if self._since is not None:
            self._since = now

    def still_sending(self, now: int) -> None:
        """Note that bytes still leave this machine, so the hub may not have the batches yet: the patience begins
        again."""
        self.answered(now)

    def is_over(self, now: int) -> bool:
        """Return whether the hub acknowledged nothing for too long."""
        deadline = self.deadline
        return deadline is not None and now >= deadline


class Proof(NamedTuple):
    """The newest frame that is known to be durable at the hub."""

    sent: int
    """Time at which it was sent, monotonic ns."""
    took: int
    """Time from then to the answer, without the time for which the hub let question and answer wait, ns."""
    at: int
    """Time of the answer, monotonic ns."""


class CanaryWatch:
    """The proofs of one connection, and the questions for more. All times are monotonic nanoseconds.

    A question rides with a PING and the marks, and its answer with a PONG: neither costs a packet.

    Args:
        interval: time without a proof after which the next PING takes a question along.
        patience: time that the hub has for a commit, beyond what its WELCOME says of marks.
        now: beginning of the connection.
    """

    def __init__(self, interval: int, patience: int, now: int) -> None:
        self._interval, self._patience = interval, patience
        self.proof: Proof | None = None
        self.is_answered = False
        """True when the hub's release answers questions."""
        self._due = now + interval
        self._opening: tuple[int, int] | None = None
        """(number, time) of the first lane that was opened. A later one may have its epoch from an earlier time."""
        self._number, self._sent = 0, 0
        self._since: int | None = None
        """Time of the first question without a proof since."""

    def welcome(self, welcome: Welcome) -> None:
        """Note what the hub says of itself."""
        self.is_answered = CANARY in welcome.features
        self._patience += welcome.mark_interval

    def rides(self, frames: Iterable[Frame], now: int) -> list[Frame]:
        """Look at the frames of a message that is sent now. Return the question that goes with them, if one is due."""
        if self._opening is None:
            self._opening = next(
                ((each.lane, now) for each in frames if isinstance(each, LaneOpen) and not each.flags & LaneFlag.RELAY),
                None,
            )
        if now < self._due or not self.is_answered or not any(isinstance(each, Ping) for each in frames):
            return []
        self._number, self._sent, self._due = self._number + 1, now, now + self._interval
        self._since = now if self._since is None else self._since
        return [Canary(self._number)]

    def opened(self, lane: int, now: int) -> None:
        """Note that the hub opened a lane."""
        if self._opening is not None and self._opening[0] == lane:
            self.proves(self._opening[1], now)

    def answered(self, back: CanaryBack, now: int) -> None:
        """Take an answer; one to an earlier question is late, and adds nothing.

        Raises:
            Corrupt: nothing was asked under its number.
        """
        if back.number > self._number:
            raise Corrupt(f"CANARY_BACK {back.number}, while {self._number} questions were sent")
        if back.number == self._number:
            self.proves(self._sent, now, back.waited)

    def proves(self, sent: int | None, now: int, waited: int = 0) -> None:
        """Note that what was sent at ``sent`` is durable; nothing with None."""
        if sent is not None and (self.proof is None or sent >= self.proof.sent):
            self.proof = Proof(sent, max(0, now - sent - waited), now)
            self._since, self._due = None, now + self._interval

    def overdue(self, pinged: int | None) -> int | None:
        """Return the time of a question to which the hub owes the answer, although it answered a later PING.

        Args:
            pinged: time of the last PING that the hub answered.
        """
        late = self._since is not None and pinged is not None and pinged >= self._since + self._patience
        return self._since if late else None

    def is_fresh(self, now: int) -> bool:
        """Return whether the proof says something of the present: a hub that answers questions would be overdue."""
        return self.proof is not None and (self.is_answered or now < self.proof.at + self._interval)
