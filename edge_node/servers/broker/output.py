"""Output of a connection: what is written at once, what waits for the other answers of a turn, and what for its turn.

A write of some hundred bytes takes 10 µs, most of them the system's. So one message for thousands of clients, or one of
megabytes for hundreds, would be a step of seconds: after the first ones, and beyond ``LONG_BYTES``, clients have turns,
and in each a piece is written. What waits is not copied: a long payload is in memory once, however many clients get it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from weft.bounds import Crowd, Owner, Rounds
from weft.edge_node.counters import Counters

CORKED_BYTES_MAX = 16 << 10
"""Bytes of answers that are written together."""
LONG_BYTES = 32 << 10
"""Bytes beyond which a write waits for its turn."""
PIECE_BYTES = 32 << 10
"""Bytes that are written in a turn, and about as many that the transport holds: it may copy or encrypt them."""
TURNS_MAX = 128
"""Turns before the loop does something else. Its clock does not say what they cost: uvloop writes at the end of its
iteration."""
SMALL_BYTES = 512
"""Bytes below which what waits is joined."""
WAITING_FACTOR = 4
"""Times ``limits.send_queue`` that may wait while the socket takes what it gets: then it is others that are served."""


class Client(Protocol):
    """The connection, as its output knows it."""

    def falls_behind(self) -> None:
        """Take note that the client does not read what it is sent."""

    def catches_up(self) -> None:
        """Take note that it does again."""


class Writes:
    """Parts that the outputs of a node's connections share.

    Args:
        waiting_bytes_max: bytes for one client that may wait, beyond one message.
    """

    __slots__ = ("counters", "crowd", "rounds", "waiting_bytes_max")

    def __init__(self, crowd: Crowd, counters: Counters, waiting_bytes_max: int) -> None:
        self.crowd = crowd
        self.counters = counters
        self.waiting_bytes_max = waiting_bytes_max
        self.rounds = Rounds(lambda: None, pause_s=0, turns_max=TURNS_MAX)
        """Queues of clients that wait for a turn to be written to."""


class Output:
    """Writes packets to a transport, in order.

    While it is corked, they are gathered: a write for each PINGREQ would make small segments by the thousand, and a
    network that is full of them drops those of other clients.
    """

    __slots__ = ("_client", "_counters", "_crowd", "_is_behind", "_is_blocked", "_is_queued", "_transport",
                 "_waiting", "_waiting_bytes", "_writes", "corked", "owner")  # fmt: skip

    def __init__(self, transport: asyncio.WriteTransport, writes: Writes, client: Client, owner: Owner | None) -> None:
        self._transport = transport
        self._counters, self._crowd = writes.counters, writes.crowd
        self._writes = writes
        self._client = client
        self.owner = owner
        """Owner among whose clients this one has turns."""
        self.corked: bytearray | None = None
        """Gathered packets; None while it is not corked."""
        self._waiting: deque[bytes | bytearray | memoryview] | None = None
        """Bytes that wait for a turn or for the socket, in order; None if there are none and the socket takes more."""
        self._waiting_bytes = 0
        self._is_blocked = False
        self._is_queued = False
        self._is_behind = False
        transport.set_write_buffer_limits(high=min(2 * PIECE_BYTES, writes.waiting_bytes_max))

    @property
    def holds(self) -> bool:
        """Return whether something was not given to the transport yet."""
        return bool(self._waiting_bytes) or bool(self.corked)

    def write(self, data: bytes) -> None:
        """Write whole packets."""
        self._counters.bytes_sent += len(data)
        if self.corked is None:
            if self._waiting is None and len(data) <= LONG_BYTES and not self._crowd.is_here:
                self._transport.write(data)
            else:
                self._wait(data)
            return
        if len(data) > LONG_BYTES:
            self._wait(self._taken())
            self._wait(data)
            return
        self.corked += data
        if len(self.corked) > CORKED_BYTES_MAX:
            self._write(self._taken())

    def write_all(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write whole packets that came in parts."""
        size = sum(map(len, parts))
        if size <= LONG_BYTES:
            self.write(b"".join(parts))
            return
        self._counters.bytes_sent += size
        if self.corked:
            self._wait(self._taken())
        if size < SMALL_BYTES * len(parts):
            parts = [b"".join(parts)]
        for part in parts:
            self._wait(part)

    def cork(self) -> None:
        """Gather what is written until ``uncork``."""
        if self.corked is None:
            self.corked = bytearray()

    def uncork(self) -> None:
        """Write what was gathered."""
        corked, self.corked = self.corked, None
        if corked:
            self._write(corked)

    def finish(self) -> None:
        """Give all that waits to the transport: it is the last."""
        self.uncork()
        waiting, self._waiting, self._waiting_bytes = self._waiting, None, 0
        if waiting:
            self._transport.write(b"".join(waiting))

    def drop(self) -> None:
        """Drop what waits: the transport is closed at once."""
        self.corked = self._waiting = None
        self._waiting_bytes = 0

    # --- the socket

    def block(self) -> None:
        """Write nothing more: the transport holds enough."""
        self._is_blocked = True
        if self._waiting is None:
            self._waiting = deque()
        self._look(0)

    def unblock(self) -> None:
        """Go on."""
        self._is_blocked = False
        self._queue()

    # --- inside

    def _taken(self) -> bytearray:
        corked, self.corked = self.corked or bytearray(), bytearray()
        return corked

    def _write(self, data: bytearray) -> None:
        if self._waiting is None and not self._crowd.is_here:
            self._transport.write(data)
        else:
            self._wait(data)

    def _wait(self, data: bytes | bytearray | memoryview) -> None:
        if not data:
            return
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        if len(data) <= SMALL_BYTES and waiting and isinstance(last := waiting[-1], bytearray):
            last += data
        else:
            waiting.append(bytearray(data) if len(data) <= SMALL_BYTES else data)
        before = self._waiting_bytes
        self._waiting_bytes += len(data)
        self._queue()
        if not self._is_behind and (self._is_blocked or before):
            self._look(before)

    def _queue(self) -> None:
        if not self._is_queued and not self._is_blocked:
            self._is_queued = True
            self._writes.rounds.wait(self.owner, self._go_on)

    def _look(self, before: int) -> None:
        """Say that the client is behind, if it is.

        Args:
            before: bytes that waited already when the latest ones came.
        """
        most = self._writes.waiting_bytes_max
        if not self._is_behind and (
            (self._is_blocked and self._waiting_bytes > most) or before > WAITING_FACTOR * most
        ):
            self._is_behind = True
            self._client.falls_behind()

    def _go_on(self) -> None:
        """Write a piece of what waits."""
        self._is_queued = False
        waiting = self._waiting
        if waiting is None or self._is_blocked:
            return
        piece, size = [], 0
        while waiting and size < PIECE_BYTES:
            part = waiting.popleft()
            if size + len(part) > PIECE_BYTES:
                view = memoryview(part)
                waiting.appendleft(view[PIECE_BYTES - size :])
                part = view[: PIECE_BYTES - size]
            piece.append(part)
            size += len(part)
        self._waiting_bytes -= size
        if not waiting:
            self._waiting = None
        if piece:
            self._transport.write(b"".join(piece))
        if self._waiting:
            self._queue()
        if self._is_behind and self._waiting_bytes <= self._writes.waiting_bytes_max // 4:
            self._is_behind = False
            self._client.catches_up()


class Sending(asyncio.Protocol):
    """A connection that writes by an ``Output``."""

    __slots__ = ("_output", "_transport")
    _output: Output
    _transport: asyncio.Transport | None
    """None once it is closed."""

    def send(self, data: bytes) -> None:
        """Write something whole; nothing happens once it is closed."""
        if self._transport is not None:
            self._output.write(data)

    def send_all(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write something whole that came in parts, of which other clients may get the same."""
        if self._transport is not None:
            self._output.write_all(parts)

    def shut(self, transport: asyncio.Transport, *, drains: bool) -> None:
        """Close the transport: with what waits, or at once."""
        if drains:
            self._output.finish()
            transport.close()
        else:
            self._output.drop()
            transport.abort()

    def pause_writing(self) -> None:
        """Keep what is written: the socket does not take it."""
        self._output.block()

    def resume_writing(self) -> None:
        """Write on."""
        self._output.unblock()
