"""Reading of one connection: reasons to pause, their ends, and the data that arrives meanwhile.

| reason | begins when | what came meanwhile | ends when |
| --- | --- | --- | --- |
| ``DISK`` | too many bytes of all publishers wait for the disk | is handled; waits if it waited for a turn | half of
  them are durable |
| ``WRITE`` | the client does not read what it is sent | is handled | it has read most of it, or is closed after
  ``limits.write_timeout`` |
| ``ACKS`` | more acknowledgements are due to the client than it may have | is handled; HTTP: waits | half of them are
  sent |
| ``RESULT`` | a password check, or another answer from elsewhere, is due | waits | the answer is here |
| ``FAIRNESS`` | the client has had its turn, or an iteration of the loop its reads | waits | others have had theirs,
  and what the client sent before is durable |

Protocols differ in three points. HTTP has no ``DISK``: it answers 429. AMQP 0-9-1 notifies its client of a ``DISK``
that lasts. Each protocol defines a client's silence itself: it does not count while the client is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from weft.bounds import Bound, Owner, OwnerKind
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.servers.clients.context import ProtocolContext
from weft.edge_node.servers.clients.output import LONG_BYTES

# Bytes of a client that cannot be handled yet, and the owner charged with them.

FREE_BYTES = 4096
"""Bytes of one client that are not counted: enough for the small messages of devices."""


class ReadBuffer:
    """Count of the bytes that the node holds for one client.

    Args:
        bound: bytes of all clients.
        owner: the address, until ``belongs_to`` names a user.
    """

    __slots__ = ("_bound", "ahead", "charged", "owner")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        self._bound = bound
        self.ahead = b""
        """Bytes that wait for the client's turn, or for an asynchronous result."""
        self.owner = owner
        """Owner that they are charged to."""
        self.charged = 0
        """Bytes that count against the owner's share."""

    @property
    def waits(self) -> bool:
        """Return whether bytes wait."""
        return bool(self.ahead)

    def take(self) -> bytes:
        """Remove and return the waiting bytes; they are charged until the next ``charge``."""
        ahead, self.ahead = self.ahead, b""
        return ahead

    def clear(self) -> None:
        """Drop all bytes: the connection has ended."""
        self.ahead = b""
        self.charge(0)

    def charge(self, held: int) -> bool:
        """Charge the bytes held now. Return whether the owner may have so many; if not, nothing is charged."""
        size = held if held > FREE_BYTES else 0
        if size == self.charged:
            return True
        if self.charged:
            self._bound.free(self.owner, self.charged)
            self.charged = 0
        if not size:
            return True
        if not self._bound.take(self.owner, size):
            self._bound.refuse(self.owner, size)
            return False
        self.charged = size
        return True

    def belongs_to(self, owner: Owner) -> None:
        """Charge another owner from now on; bytes without room are charged at the client's next ``charge``."""
        held = self.charged
        self.charge(0)
        self.owner = owner
        if held and self._bound.take(owner, held):
            self.charged = held


KEEPS = Pause.RESULT | Pause.FAIRNESS
"""Reasons for which data is kept unparsed."""
NEVER = float("inf")


def _ignore(_: bool) -> None:
    pass


class Reading:
    """Control of a connection's reading. Belongs to the event loop's thread.

    Args:
        held: bytes that wait, and the owner in whose turns this client is served.
        handle: handles the held bytes, given the time; called at the client's turn.
        keeps: reasons for which data is kept.
        on_disk: called when a wait for the disk begins and ends.
    """

    __slots__ = (
        "_context",
        "_handle",
        "_joined",
        "_keeps",
        "_missed_turn",
        "_on_disk",
        "_read_buffer",
        "_transport",
        "heard",
        "pause",
        "write_until",
    )

    def __init__(
        self,
        context: ProtocolContext,
        held: ReadBuffer,
        handle: Callable[[float], None],
        keeps: int = KEEPS,
        on_disk: Callable[[bool], None] = _ignore,
    ) -> None:
        self._context = context
        self._read_buffer = held
        self._handle = handle
        self._keeps = keeps
        self._on_disk = on_disk
        self._missed_turn = False  # True once its turn came while publishers wait for the disk
        self._joined = False
        self._transport: asyncio.Transport | None = None
        self.pause = 0
        """Reasons for which the client is not read, as bits."""
        self.heard = context.clock()
        """Time of the last read, or of the end of the last pause."""
        self.write_until = NEVER
        """Time at which a client that does not read is closed."""

    def begin(self, transport: asyncio.Transport) -> None:
        """Read from a transport."""
        self._transport = transport

    def join(self) -> None:
        """Take part in back-pressure: the client publishes."""
        if not self._joined:
            self._joined = True
            self._context.ingest.back_pressure.join(self)

    def end(self) -> None:
        """Stop reading: the connection is closed. Pending turns are dropped."""
        self._transport = None
        self._context.ingest.back_pressure.leave(self)

    # --- data from the client

    def admits(self, now: float) -> bool:
        """Return whether data may be handled at once; otherwise the caller keeps it, and calls ``put_off``."""
        pacing = self._context.pacing
        return not self.pause & self._keeps and (now < pacing.reads_until or pacing.admits(now))

    def put_off(self) -> None:
        """Handle the held bytes when others have had their turn, unless they wait for another reason already."""
        if not self.pause & self._keeps:
            self.await_turn()

    def handled(self, size: int) -> None:
        """Note the end of a read of so many bytes: a client that sent much waits while writes of its messages' copies
        do."""
        writes = self._context.writes
        if size > LONG_BYTES and writes.is_full and self._transport is not None and not self.pause & self._keeps:
            self.hold(Pause.FAIRNESS)
            writes.when_short(self._read_buffer.owner, partial(self.resume, Pause.FAIRNESS))

    # --- pauses

    def hold(self, reason: Pause) -> None:
        """Stop reading."""
        if not self.pause and self._transport is not None:
            self._transport.pause_reading()
        self.pause |= reason
        if reason is Pause.DISK:
            self._on_disk(True)

    def release(self, reason: Pause) -> None:
        """Resume reading, if no other reason remains. Do nothing if the reason did not hold."""
        if not self.pause & reason:
            return
        if reason & self._keeps:
            self.resume(reason)
            return
        self.pause &= ~reason
        if reason is Pause.DISK:
            self._on_disk(False)
        if self._missed_turn and not self.pause & Pause.DISK:
            self._missed_turn = False
            self._context.round_robin.wait(self._read_buffer.owner, partial(self.resume, Pause.FAIRNESS))
        self._resume()

    def await_turn(self, reason: Pause = Pause.FAIRNESS, resume: Callable[[], None] | None = None) -> None:
        """Stop reading, and resume when others have had their turn.

        Args:
            resume: called then, even if the connection is closed; by default the method of this name.
        """
        self.hold(reason)
        self._context.round_robin.wait(self._read_buffer.owner, resume or partial(self.resume, reason))

    def end_turn(self) -> None:
        """Store the gathered records, stop reading, and resume when they are durable and others have had their turn:
        every client waits for the commits of each."""
        if not self.pause & self._keeps:
            self.hold(Pause.FAIRNESS)
            ingest = self._context.ingest
            ingest.batch.store()
            ingest.on_durable(lambda _: self.await_turn())

    def resume(self, waited_for: Pause = Pause.RESULT) -> None:
        """Handle the data that arrived while the client waited, and resume reading. A fault in the node's code ends the
        connection, as in a read."""
        self.pause &= ~waited_for
        transport = self._transport
        if transport is None:
            return
        if self._read_buffer.waits and self.pause & Pause.DISK:
            # All clients together may have sent ahead much more than may wait for the disk.
            self.pause |= Pause.FAIRNESS
            self._missed_turn = True
        elif not self.pause & self._keeps:
            try:
                self._handle(self._context.clock())
            except Exception:
                transport.abort()
                raise
        self._resume()

    def resume_in_turn(self, waited_for: Pause) -> None:
        """Resume now, or, if many clients resume at the same time, when others have had their turn."""
        pacing = self._context.pacing
        now = self._context.clock()
        if now < pacing.reads_until or pacing.admits(now):
            self.resume(waited_for)
        else:
            self.pause &= ~waited_for
            self.await_turn()

    def last_words(self) -> None:
        """Wait only for the disk and the socket from now on: the connection is about to end."""
        self.pause &= Pause.DISK | Pause.WRITE
        self._resume()

    def _resume(self) -> None:
        if not self.pause and self._transport is not None:
            self.heard = self._context.clock()
            self._transport.resume_reading()

    # --- a client that does not read

    def falls_behind(self) -> None:
        """Stop reading from a client that does not read, which ``is_stuck`` if that lasts."""
        self.hold(Pause.WRITE)
        self.write_until = self._context.clock() + self._context.settings.limits.write_timeout_s

    def catches_up(self) -> None:
        """Resume reading from a client that has caught up."""
        self.write_until = NEVER
        self.release(Pause.WRITE)

    def is_stuck(self, now: float) -> bool:
        """Return whether the client has not read for too long and must be closed, and count it."""
        if now < self.write_until:
            return False
        self._context.counters.write_timeouts += 1
        return True

    @property
    def stuck(self) -> str:
        """Return the reason for log lines."""
        return f"did not read what it was sent for {self._context.settings.limits.write_timeout_s:g} s"


# Place of one connection among those of its user, of all protocols.

FULL = "too many connections of one user (limits.user_share of limits.connections); use fewer"


class ConnectionSlot:
    """Count of one connection from its client's login to its end, in the bound that also counts MQTT sessions."""

    __slots__ = ("_bound", "_counters", "_owner")

    def __init__(self, bound: Bound, counters: Counters) -> None:
        """Start without a client."""
        self._bound = bound
        self._counters = counters
        self._owner: Owner | None = None

    def take(self, owner: Owner) -> bool:
        """Return whether the client is admitted: always without a user, as addresses have bounds of their own."""
        if owner.kind is OwnerKind.USER and self._bound.is_own_share_full(owner):
            self._bound.refuse(owner)
            self._counters.connections_refused += 1
            return False
        self._bound.hold(owner)
        self._owner = owner
        return True

    def free(self) -> None:
        """Forget the client; do nothing without one."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self._bound.free(owner)
