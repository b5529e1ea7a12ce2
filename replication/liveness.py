"""Liveness of the peer and the offset of its clock; a sender's patience with data in flight, and its proofs that the
hub's store takes what is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from weft.protocols.chunk_index import LaneFlag
from weft.protocols.errors import Corrupt
from weft.protocols.link import CANARY, Canary, CanaryBack, Frame, LaneOpen, Ping, Pong, Welcome
from weft.replication.events import ConnectionLost, Fault

# Liveness of the peer and the offset of its clock: PING, PONG, silence, and clocks compared as in NTP.

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
        self.is_paused = False
        """True while the owner does not read: the peer's silence means nothing."""
        self._next_ping = now + ping_interval
        self._asked: int | None = None
        self._owed: list[Frame] = []
        self._samples: deque[PeerClock] = deque(maxlen=SAMPLES)
        self.answers = 0
        """Number of times that the peer sent its time."""
        self.round_trip: int | None = None
        """Time from the last PING that was answered to its PONG, ns."""
        self.answered: int | None = None
        """Time of that PING."""

    @property
    def peer_clock(self) -> PeerClock | None:
        """Return the best of the last samples."""
        # The sample with the shortest round trip is the most exact, as in NTP; an average would be moved by every delay
        # on the way.
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
        # The peer could not be heard while this end did not read, so its silence begins now.
        self._heard = now
        # Only one end pings. The hub asks an edge that has been silent for longer, so an idle link costs one question
        # in 45 s.
        if self._only_silent:
            self._next_ping = now + self._ping_interval

    def pause(self) -> None:
        """Note that the owner stops reading: the peer's silence means nothing until ``resume``."""
        self.is_paused = True

    def resume(self, now: int) -> None:
        """Note that the owner reads again."""
        self.is_paused = False
        self._heard = now

    def deadline(self) -> int:
        """Return the time at which ``handle_timeout`` has something to do."""
        return self._next_ping if self.is_paused else min(self._next_ping, self._heard + self._silence)

    def ping_is_due(self, now: int) -> bool:
        """Return whether ``handle_timeout`` will queue a PING."""
        return now >= self._next_ping

    def handle_timeout(self, now: int) -> ConnectionLost | None:
        """Queue a PING when one is due; return ``Lost`` when the peer was silent for too long."""
        # Measured from anything the peer sent: on a link full of data a PONG may wait behind them.
        if not self.is_paused and now >= self._heard + self._silence:
            seconds = self._silence / SECOND
            return ConnectionLost(
                Fault.NETWORK, f"the peer was silent for {seconds:g} s; the network between may be cut"
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
            # Only the newest question is answered. A peer that pings without reading gets no queue of answers.
            self._owed = [owed for owed in self._owed if not isinstance(owed, Pong)]
            self._owed.append(Pong(frame.sent, self._wall_clock()))
        elif frame.sent == self._asked:
            self.sample(self._asked, frame.clock, now)
            self.round_trip, self.answered = now - self._asked, self._asked
            self._asked = None

    def beat(self) -> None:
        """Queue a PONG that answers no PING: it says that this end lives (RFC 6455 section 5.5.3 has the same)."""
        if not self._owed:
            self._owed.append(Pong(0, self._wall_clock()))

    def sample(self, sent: int, peer_wall: int, now: int) -> None:
        """Note that the peer read ``peer_wall`` somewhere between our ``sent`` and ``now``."""
        self.answers += 1
        # The peer's clock was read somewhere within the round trip, so half of it bounds the error.
        self._samples.append(PeerClock(peer_wall - (sent + now) // 2, (now - sent + 1) // 2))

    @property
    def owes(self) -> bool:
        """Return whether ``frames`` would return any."""
        return bool(self._owed)

    def frames(self) -> list[Frame]:
        """Return the PING and PONG to send now, each once."""
        owed, self._owed = self._owed, []
        return owed


# Patience of a sender with data in flight, and its proofs that the hub's store takes what is sent.
#
# A PONG shows that the hub's process answers, and says nothing of its store. Three answers come only after a commit:
# the first LANE_OPENED of a connection (the epoch is durable), ACK (the records are), and CANARY_BACK, which is asked
# for where none of the others came for a while.


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
        # From the first byte in flight, and again from each answer: many small answers on a slow link are progress.
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


# Beats of a hub: short signs of life while a sender waits for a commit.
#
# A hub that takes data and says nothing may be slow, or its host may be stopped or gone. An acknowledgement cannot tell
# these apart before ``ack_timeout``, which leaves a store time for a retry. A beat can, in seconds. Idle links have
# none: 10,000 edges with one a second each would be 10,000 messages a second.

BEATS_PER_TIMEOUT = 3
"""Looks in a row at which a hub has to be silent."""
ROUND_TRIPS_PER_LOOK = 2
"""Round trips that a look leaves for, at least: the last one measured may have been a short one."""


class BeatWatch:
    """The silence of a hub that a sender waits for. All times are monotonic nanoseconds.

    Silence is counted by looks that found none, one after the other, and not by the clock: a sender that was suspended,
    or whose event loop was busy, reads what came meanwhile before the next look.

    Args:
        timeout: silence after which the hub counts as gone; 0 never.
    """

    def __init__(self, timeout: int) -> None:
        self._interval = timeout // BEATS_PER_TIMEOUT
        self.silent_looks = 0
        """Looks in a row that found silence."""
        self.is_on = False
        """True when the hub sends beats."""
        self.deadline: int | None = None
        """Time of the next look; None while nothing is awaited."""

    def awaits(self, anything: bool, now: int, round_trip: int) -> None:
        """Note whether the sender waits for anything of the hub."""
        if not (anything and self.is_on and self._interval):
            self.deadline = None
        elif self.deadline is None:
            self.silent_looks = 0
            self._set(now, round_trip)

    def heard(self, now: int, round_trip: int) -> None:
        """Note that something came from the hub, or that bytes of this end still arrive at its machine."""
        if self.deadline is not None:
            self.silent_looks = 0
            self._set(now, round_trip)

    def is_due(self, now: int) -> bool:
        """Return whether ``handle_timeout`` will look."""
        return self.deadline is not None and now >= self.deadline

    def handle_timeout(self, now: int, round_trip: int) -> ConnectionLost | None:
        """Look, if it is time; return ``ConnectionLost`` when the hub was silent for too long."""
        if not self.is_due(now):
            return None
        self.silent_looks += 1
        waited = self._set(now, round_trip) * self.silent_looks
        if self.silent_looks < BEATS_PER_TIMEOUT:
            return None
        return ConnectionLost(
            Fault.NETWORK,
            f"the hub has data of this node and was silent for {waited / SECOND:.3g} s; its host, or the network "
            "between, may be down",
        )

    def _set(self, now: int, round_trip: int) -> int:
        interval = max(self._interval, ROUND_TRIPS_PER_LOOK * round_trip)
        self.deadline = now + interval
        return interval


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
        # It rides with a PING, so that an idle link proves its store at the cost of a few bytes.
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
        # Only if a later PING was answered: otherwise the network is the cause, and the store is not known.
        late = self._since is not None and pinged is not None and pinged >= self._since + self._patience
        return self._since if late else None

    def is_fresh(self, now: int) -> bool:
        """Return whether the proof says something of the present: a hub that answers questions would be overdue."""
        return self.proof is not None and (self.is_answered or now < self.proof.at + self._interval)
