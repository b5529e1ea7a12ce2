"""Heartbeats and time-outs of one connection (section 4.2.7): one entry in the timer wheel for all of them."""

from __future__ import annotations

from typing import Protocol

from weft.edge_node.servers.amqp.client import Peer, Shared
from weft.edge_node.servers.clients.reading import NEVER, Reading
from weft.protocols.amqp.frames import HEARTBEAT_FRAME
from weft.protocols.amqp.methods import Method, commands

BLOCKED_AFTER_S = 1.0
"""Time for which the disk holds a client before connection.blocked: a busy disk holds publishers for milliseconds."""
BLOCKED = "connection.blocked"
"""Capability of clients that want this notification."""
TERMS_S_MAX = 10.0
"""Time from connection.tune to connection.open: the listener bounds the time before it."""


class TimedConnection(Protocol):
    """Interface of the connection for its time-outs."""

    peer: Peer
    reading: Reading

    def send(self, data: bytes) -> None:
        """Write whole frames."""

    def answer(self, method: Method, channel: int = 0) -> None:
        """Write one method."""

    def end(self, reason: str) -> None:
        """Close the connection."""


class Liveness:
    """Times of one connection, in seconds of the loop's clock."""

    __slots__ = ("_awaited", "_blocked_at", "_close_at", "_connection", "_heartbeat_s", "_is_blocked", "_next_beat",
                 "_shared", "wheel_slot", "wrote")  # fmt: skip

    def __init__(self, connection: TimedConnection, shared: Shared) -> None:
        self._connection = connection
        self._shared = shared
        self.wheel_slot = -1
        self.wrote = False
        """True if data was written since the last heartbeat was due."""
        self._heartbeat_s = 0
        self._next_beat = NEVER
        self._close_at = NEVER
        self._awaited = ""
        self._blocked_at = NEVER
        self._is_blocked = False

    def tunes(self) -> None:
        """Wait no longer than ``TERMS_S_MAX`` for the client's terms."""
        self._close_at, self._awaited = self._shared.context.clock() + TERMS_S_MAX, "connection.open"
        self.wait()

    def begin(self, heartbeat_s: int) -> None:
        """Start heartbeats; 0 for none."""
        self._close_at = NEVER
        self._heartbeat_s = heartbeat_s
        self._connection.reading.heard = now = self._shared.context.clock()
        if heartbeat_s:
            self._next_beat = now + heartbeat_s / 2
        self.wait()

    def on_disk(self, held: bool) -> None:
        """Notify the client that the disk holds it, if that lasts for a while, and when it no longer does."""
        if held:
            if self._blocked_at == NEVER and not self._is_blocked:
                self._blocked_at = self._shared.context.clock() + BLOCKED_AFTER_S
                self.wait()
            return
        self._blocked_at = NEVER
        if self._is_blocked:
            self._is_blocked = False
            self._connection.answer(commands.Connection.Unblocked())

    def closes(self, seconds: float) -> None:
        """Set the longest wait for the client's close-ok."""
        self._close_at, self._awaited = self._shared.context.clock() + seconds, "connection.close-ok"
        self._next_beat = NEVER
        self.wait()

    def end(self) -> None:
        """Stop all time-outs."""
        self._shared.context.wheel.cancel(self)

    def due(self, now: float) -> float | None:
        """Handle the time-outs that are due. For the timer wheel."""
        connection, reading, counters = self._connection, self._connection.reading, self._shared.context.counters
        if now >= self._close_at:
            connection.end(f"{self._awaited} did not come")
            return None
        if reading.is_stuck(now):
            connection.end(reading.stuck)
            return None
        if now >= self._blocked_at:
            self._block()
        if reading.pause:
            reading.heard = now  # silence of a client that is not read does not count
        if now >= self._next_beat:
            if now >= reading.heard + 2 * self._heartbeat_s:
                counters.keep_alive_timeouts += 1
                connection.end(f"silent for {2 * self._heartbeat_s} s, two times its heartbeat")
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
        when = min(self._next_beat, self._connection.reading.write_until, self._close_at, self._blocked_at)
        return None if when == NEVER else when

    def wait(self) -> None:
        """Set the timer."""
        when, wheel = self._next(), self._shared.context.wheel
        wheel.cancel(self) if when is None else wheel.set(self, when)
