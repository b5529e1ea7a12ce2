"""Heartbeats and time-outs of one connection (section 4.2.7): one place in the timer wheel for all of them."""

from __future__ import annotations

from typing import Protocol

from weft.edge_node.servers.amqp.client import Peer, Shared
from weft.protocols.amqp.frames import HEARTBEAT_FRAME
from weft.protocols.amqp.methods import Method, commands

BLOCKED_AFTER_S = 1.0
"""Time for which the disk holds a client before connection.blocked: a busy disk holds publishers for milliseconds."""
BLOCKED = "connection.blocked"
"""Capability of clients that want to know."""
TERMS_S_MAX = 10.0
"""Time from connection.tune to connection.open: the listener minds the time before it."""
NEVER = float("inf")


class Connection(Protocol):
    """Connection, as its time-outs know it."""

    peer: Peer

    @property
    def is_paused(self) -> bool:
        """Return whether the client is not read."""
        ...

    def send(self, data: bytes) -> None:
        """Write whole frames."""

    def answer(self, method: Method, channel: int = 0) -> None:
        """Write one method."""

    def give_up(self, reason: str) -> None:
        """Close the connection."""


class Liveness:
    """Times of one connection, in seconds of the loop's clock."""

    __slots__ = ("_awaited", "_blocked_at", "_close_at", "_connection", "_heartbeat_s", "_is_blocked", "_next_beat",
                 "_shared", "_write_until", "heard", "wheel_slot", "wrote")  # fmt: skip

    def __init__(self, connection: Connection, shared: Shared) -> None:
        self._connection = connection
        self._shared = shared
        self.wheel_slot = -1
        self.heard = 0.0
        """Time of the last read."""
        self.wrote = False
        """True once something was written since the last heartbeat was due."""
        self._heartbeat_s = 0
        self._next_beat = NEVER
        self._write_until = NEVER
        self._close_at = NEVER
        self._awaited = ""
        self._blocked_at = NEVER
        self._is_blocked = False

    def tunes(self) -> None:
        """Wait no longer than ``TERMS_S_MAX`` for the client's terms."""
        self._close_at, self._awaited = self._shared.broker.clock() + TERMS_S_MAX, "connection.open"
        self._wait()

    def begin(self, heartbeat_s: int) -> None:
        """Mind heartbeats; 0 for none."""
        self._close_at = NEVER
        self._heartbeat_s = heartbeat_s
        self.heard = now = self._shared.broker.clock()
        if heartbeat_s:
            self._next_beat = now + heartbeat_s / 2
        self._wait()

    def cannot_write(self) -> None:
        """Give the client some time to read."""
        self._write_until = self._shared.broker.clock() + self._shared.broker.settings.write_timeout_s
        self._wait()

    def can_write(self) -> None:
        """Note that the client has read."""
        self._write_until = NEVER
        self._wait()

    def held_by_disk(self) -> None:
        """Tell the client in a while, if that lasts."""
        if self._blocked_at == NEVER and not self._is_blocked:
            self._blocked_at = self._shared.broker.clock() + BLOCKED_AFTER_S
            self._wait()

    def released_by_disk(self) -> None:
        """Send connection.unblocked, after connection.blocked."""
        self._blocked_at = NEVER
        if self._is_blocked:
            self._is_blocked = False
            self._connection.answer(commands.Connection.Unblocked())

    def closes(self, seconds: float) -> None:
        """Wait no longer than that for the client's last word."""
        self._close_at, self._awaited = self._shared.broker.clock() + seconds, "connection.close-ok"
        self._next_beat = NEVER
        self._wait()

    def end(self) -> None:
        """Mind nothing any more."""
        self._shared.broker.wheel.cancel(self)

    def due(self, now: float) -> float | None:
        """Do what is due. For the timer wheel."""
        connection, counters = self._connection, self._shared.broker.counters
        if now >= self._close_at:
            connection.give_up(f"{self._awaited} did not come")
            return None
        if now >= self._write_until:
            counters.write_timeouts += 1
            connection.give_up(
                f"did not read what it was sent for {self._shared.broker.settings.write_timeout_s:g} s"
            )  # fmt: skip
            return None
        if now >= self._blocked_at:
            self._block()
        if connection.is_paused:
            self.heard = now  # a client that is not read cannot be blamed for silence
        if now >= self._next_beat:
            if now >= self.heard + 2 * self._heartbeat_s:
                counters.keep_alive_timeouts += 1
                connection.give_up(f"silent for {2 * self._heartbeat_s} s, two times its heartbeat")
                return None
            if not self.wrote:
                connection.send(HEARTBEAT_FRAME)
            self.wrote = False
            self._next_beat = now + self._heartbeat_s / 2
        return self._next()

    def _block(self) -> None:
        self._blocked_at = NEVER
        peer = self._connection.peer
        if peer is not None and BLOCKED in peer.capabilities:
            self._is_blocked = True
            self._shared.counters.amqp_blocked += 1
            self._connection.answer(commands.Connection.Blocked("too many bytes wait for the disk"))

    def _next(self) -> float | None:
        when = min(self._next_beat, self._write_until, self._close_at, self._blocked_at)
        return None if when == NEVER else when

    def _wait(self) -> None:
        when, wheel = self._next(), self._shared.broker.wheel
        wheel.cancel(self) if when is None else wheel.set(self, when)
