"""Liveness of the peer and the offset of its clock: PING, PONG, silence, and clocks compared as in NTP."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from weft.protocols.link import Frame, Ping, Pong
from weft.replication.events import ConnectionLost, Fault

SECOND = 1_000_000_000
SAMPLES = 8
"""Number of clock samples kept; the one with the shortest round trip counts (RFC 5905 section 10, clock filter)."""


class PeerClock(NamedTuple):
    """Estimate of the peer's wall clock."""

    base: int
    """The peer's wall clock minus our monotonic clock, ns: add a monotonic reading to get the peer's time."""
    error: int
    """Half the round trip, ns: ``base`` is right within this."""

    def offset(self, now: int, wall: int) -> int:
        """Return the nanoseconds to add to our wall clock ``wall``, read at monotonic ``now``, to get the peer's."""
        return self.base + now - wall


class Liveness:
    """Timers and answers that both ends need. All times are monotonic nanoseconds.

    At most one PING and one PONG wait to be sent, so a peer that does not read costs no memory.
    """

    def __init__(
        self, ping_interval: int, silence: int, wall_clock: Callable[[], int], now: int, *, only_silent: bool = False
    ) -> None:
        """Begin at ``now``. With ``only_silent``, a peer that sends anything is not pinged: one side's PING is
        enough."""
        self._only_silent = only_silent
        self._ping_interval = ping_interval
        self._silence = silence
        self._wall_clock = wall_clock
        self._heard = now
        self._paused = False
        self._next_ping = now + ping_interval
        self._asked: int | None = None
        self._owed: list[Frame] = []
        self._samples: deque[PeerClock] = deque(maxlen=SAMPLES)
        self.answers = 0
        """Number of times that the peer told its time."""
        self.round_trip: int | None = None
        """Time from the last PING that was answered to its PONG, ns."""
        self.answered: int | None = None
        """Time of that PING."""

    @property
    def peer_clock(self) -> PeerClock | None:
        """Return the best of the last samples."""
        return min(self._samples, key=lambda sample: sample.error, default=None)

    @property
    def last_answer(self) -> PeerClock | None:
        """Return the last sample."""
        return self._samples[-1] if self._samples else None

    def ask(self, now: int) -> None:
        """Have ``handle_timeout`` queue a PING at once."""
        self._next_ping = min(self._next_ping, now)

    def heard(self, now: int) -> None:
        """Note that bytes came from the peer."""
        self._heard = now
        if self._only_silent:
            self._next_ping = now + self._ping_interval

    def pause(self) -> None:
        """Note that the owner stops reading: the peer's silence means nothing until ``resume``."""
        self._paused = True

    def resume(self, now: int) -> None:
        """Note that the owner reads again."""
        self._paused = False
        self._heard = now

    def deadline(self) -> int:
        """Return the time at which ``handle_timeout`` has something to do."""
        return self._next_ping if self._paused else min(self._next_ping, self._heard + self._silence)

    def ping_is_due(self, now: int) -> bool:
        """Return whether ``handle_timeout`` will queue a PING."""
        return now >= self._next_ping

    def handle_timeout(self, now: int) -> ConnectionLost | None:
        """Queue a PING when one is due; return ``Lost`` when the peer was silent for too long."""
        if not self._paused and now >= self._heard + self._silence:
            seconds = self._silence / SECOND
            return ConnectionLost(
                Fault.NETWORK, f"the peer said nothing for {seconds:g} s; the network between may be cut"
            )
        if now >= self._next_ping:
            self._next_ping = now + self._ping_interval
            # Sent again even if the last PING was not answered: it shows a peer that waits for this end that this end
            # is alive.
            if not any(isinstance(owed, Ping) for owed in self._owed):
                self._asked = now
                self._owed.append(Ping(now))
        return None

    def receive(self, frame: Ping | Pong, now: int) -> None:
        """Answer a PING, or take a sample from the PONG that answers ours. Any other PONG is ignored."""
        if isinstance(frame, Ping):
            self._owed = [owed for owed in self._owed if not isinstance(owed, Pong)]
            self._owed.append(Pong(frame.sent, self._wall_clock()))
        elif frame.sent == self._asked:
            self.sample(self._asked, frame.clock, now)
            self.round_trip, self.answered = now - self._asked, self._asked
            self._asked = None

    def sample(self, sent: int, peer_wall: int, now: int) -> None:
        """Note that the peer read ``peer_wall`` somewhere between our ``sent`` and ``now``."""
        self.answers += 1
        self._samples.append(PeerClock(peer_wall - (sent + now) // 2, (now - sent + 1) // 2))

    @property
    def owes(self) -> bool:
        """Return whether ``frames`` would return any."""
        return bool(self._owed)

    def frames(self) -> list[Frame]:
        """Return the PING and PONG to send now, each once."""
        owed, self._owed = self._owed, []
        return owed
