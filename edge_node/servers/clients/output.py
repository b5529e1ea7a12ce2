"""Output of a connection: immediate writes, answers gathered in a turn, and writes that wait for the client's turn.

A write of some hundred bytes takes 10 µs, most of them the system's. So one message for thousands of clients, or one of
megabytes for hundreds, would be a step of seconds: after the first ones, and beyond ``LONG_BYTES``, clients have turns,
and in each a piece is written. Waiting data is not copied: clients share a long payload.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from weft.bounds import FanOutCap, Owner, RoundRobin
from weft.edge_node.counters import Counters

CORKED_BYTES_MAX = 16 << 10
"""Bytes of answers that are written together."""
LONG_BYTES = 32 << 10
"""Bytes beyond which a write waits for its turn."""
PIECE_BYTES, PIECE_BYTES_MAX = 32 << 10, 256 << 10
"""Bytes written in a turn when many clients wait, and when few do: waking a reader for each small piece costs more than
the write. The transport holds about as much, which it may copy or encrypt."""
ROUND_BYTES = 4 << 20
"""Bytes after which other work has its turn: one to two milliseconds."""
BACKLOG_BYTES_MAX = 32 << 20
"""Bytes waiting for turns beyond which clients that send much are not read."""
TURNS_MAX = 128
"""Turns before the loop does other work. Its clock does not measure their cost: uvloop writes at the end of its
iteration."""
SMALL_BYTES = 512
"""Length below which waiting writes are joined."""
LAST_S_MAX = 5.0
"""Time in which a closed client can read its last bytes. The connection no longer counts by then."""
WAITING_FACTOR = 16
"""Times ``limits.send_queue`` that may wait while the socket has room: the wait is then for the turns of others."""


class OutputClient(Protocol):
    """Interface of the connection for its output."""

    def falls_behind(self) -> None:
        """Handle that the client does not read."""

    def catches_up(self) -> None:
        """Handle that the client reads again."""


class Writes:
    """Parts that the outputs of a node's connections share.

    Args:
        waiting_bytes_max: bytes for one client that may wait, beyond one message.
    """

    __slots__ = (
        "_held",
        "_limit",
        "backlog",
        "counters",
        "fan_out_cap",
        "piece_bytes",
        "round_robin",
        "waiting_bytes_max",
    )

    def __init__(self, fan_out_cap: FanOutCap, counters: Counters, waiting_bytes_max: int) -> None:
        self.fan_out_cap = fan_out_cap
        self.counters = counters
        self.waiting_bytes_max = waiting_bytes_max
        self.round_robin = RoundRobin(self._look, pause_s=0, turns_max=TURNS_MAX)
        """Queues of clients that wait for a turn to write."""
        self.backlog = 0
        """Bytes that wait only for turns, not for sockets."""
        self.piece_bytes = PIECE_BYTES_MAX
        """Bytes written in a turn: more when fewer clients wait."""
        self._held: list[tuple[Owner, Callable[[], None]]] = []

    @property
    def is_full(self) -> bool:
        """Return whether so much waits for turns that its producers should wait."""
        return self.backlog > BACKLOG_BYTES_MAX

    def when_short(self, owner: Owner, callback: Callable[[], None]) -> None:
        """Call back when less waits, at the owner's turn."""
        self._held.append((owner, callback))
        self._look()

    def _look(self) -> None:
        waiting = len(self.round_robin)
        self.piece_bytes = max(PIECE_BYTES, min(PIECE_BYTES_MAX, ROUND_BYTES // (waiting or 1)))
        if self._held and self.backlog <= BACKLOG_BYTES_MAX // 2:
            held, self._held = self._held, []
            for owner, callback in held:
                self.round_robin.wait(owner, callback)


class Output:
    """Ordered output of packets to a transport.

    While it is corked, packets are gathered: a write for each PINGREQ would make thousands of small segments, and a
    congested network drops those of other clients.
    """

    __slots__ = (
        "_client",
        "_counters",
        "_fan_out_cap",
        "_is_behind",
        "_is_blocked",
        "_is_queued",
        "_transport",
        "_waiting",
        "_waiting_bytes",
        "_writes",
        "corked",
        "owner",
    )

    def __init__(
        self, transport: asyncio.WriteTransport, writes: Writes, client: OutputClient, owner: Owner | None
    ) -> None:
        self._transport = transport
        self._counters, self._fan_out_cap = writes.counters, writes.fan_out_cap
        self._writes = writes
        self._client = client
        self.owner = owner
        """Owner in whose turns this client is served."""
        self.corked: bytearray | None = None
        """Gathered packets; None while it is not corked."""
        self._waiting: deque[bytes | bytearray | memoryview] | None = None
        """Bytes that wait for a turn or for the socket, in order; None if there are none and the socket takes more."""
        self._waiting_bytes = 0
        self._is_blocked = False
        self._is_queued = False
        self._is_behind = False
        transport.set_write_buffer_limits(high=min(2 * PIECE_BYTES, writes.waiting_bytes_max))

    def write(self, data: bytes) -> None:
        """Write whole packets."""
        self._counters.bytes_sent += len(data)
        if self.corked is None:
            if self._waiting is None and len(data) <= LONG_BYTES and not self._fan_out_cap.is_reached:
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
        """Write whole packets in parts."""
        size = sum(map(len, parts))
        is_small = size < SMALL_BYTES * len(parts)
        if size <= LONG_BYTES and (is_small or (self._waiting is None and not self._fan_out_cap.is_reached)):
            self.write(b"".join(parts))
            return
        self._counters.bytes_sent += size
        if self.corked:
            self._wait(self._taken())
        self._wait(*([b"".join(parts)] if is_small else parts))

    def cork(self) -> None:
        """Gather writes until ``uncork``."""
        if self.corked is None:
            self.corked = bytearray()

    def uncork(self) -> None:
        """Write the gathered packets."""
        corked, self.corked = self.corked, None
        if corked:
            self._write(corked)

    def finish(self) -> bool:
        """Pass all waiting bytes to the transport: they are the last. Return False, and pass nothing, if they are too
        many for a client that leaves."""
        self.uncork()
        if self._waiting_bytes > self._writes.waiting_bytes_max:
            return False
        waiting, self._waiting = self._waiting, None
        self._count(-self._waiting_bytes)
        if waiting:
            self._transport.write(b"".join(waiting))
        return True

    def drop(self) -> None:
        """Drop the waiting bytes: the transport is closed at once."""
        self.corked = self._waiting = None
        self._count(-self._waiting_bytes)

    # --- the socket

    def block(self) -> None:
        """Stop writing: the transport holds enough."""
        if not self._is_blocked:
            self._is_blocked = True
            self._writes.backlog -= self._waiting_bytes
        if self._waiting is None:
            self._waiting = deque()
        self._look(0)

    def unblock(self) -> None:
        """Resume writing."""
        if self._is_blocked:
            self._is_blocked = False
            self._writes.backlog += self._waiting_bytes
        self._queue()

    # --- inside

    def _taken(self) -> bytearray:
        corked, self.corked = self.corked or bytearray(), bytearray()
        return corked

    def _write(self, data: bytearray) -> None:
        if self._waiting is None and not self._fan_out_cap.is_reached:
            self._transport.write(data)
        else:
            self._wait(data)

    def _wait(self, *parts: bytes | bytearray | memoryview) -> None:
        waiting, before = self._waiting, self._waiting_bytes
        if waiting is None:
            waiting = self._waiting = deque()
        for data in parts:
            if len(data) <= SMALL_BYTES and waiting and isinstance(last := waiting[-1], bytearray):
                last += data
            elif data:
                waiting.append(bytearray(data) if len(data) <= SMALL_BYTES else data)
            self._count(len(data))
        self._queue()
        if not self._is_behind and (self._is_blocked or before):
            self._look(before)

    def _count(self, size: int) -> None:
        self._waiting_bytes += size
        if not self._is_blocked:
            self._writes.backlog += size

    def _queue(self) -> None:
        if not self._is_queued and not self._is_blocked:
            self._is_queued = True
            self._writes.round_robin.wait(self.owner, self._resume)

    def _look(self, before: int) -> None:
        """Report that the client is behind, if it is.

        Args:
            before: bytes that waited already before the latest ones.
        """
        most = self._writes.waiting_bytes_max
        if not self._is_behind and (
            (self._is_blocked and self._waiting_bytes > most) or before > WAITING_FACTOR * most
        ):
            self._is_behind = True
            self._client.falls_behind()

    def _resume(self) -> None:
        """Write a piece of the waiting bytes."""
        self._is_queued = False
        waiting = self._waiting
        if waiting is None or self._is_blocked:
            return
        piece, size, most = [], 0, self._writes.piece_bytes
        while waiting and size < most:
            part = waiting.popleft()
            if size + len(part) > most:
                view = memoryview(part)
                waiting.appendleft(view[most - size :])
                part = view[: most - size]
            piece.append(part)
            size += len(part)
        self._count(-size)
        if not waiting:
            self._waiting = None
        if piece:
            self._transport.write(b"".join(piece))
        if self._waiting:
            self._queue()
        if self._is_behind and self._waiting_bytes <= self._writes.waiting_bytes_max // 4:
            self._is_behind = False
            self._client.catches_up()


class WritingConnection(asyncio.Protocol):
    """A connection that writes by an ``Output``."""

    __slots__ = ("_output", "_transport")
    _output: Output
    _transport: asyncio.Transport | None
    """None once it is closed."""

    @property
    def is_open(self) -> bool:
        """Return whether data can still be sent to the client."""
        return self._transport is not None

    def send(self, data: bytes) -> None:
        """Write whole packets; do nothing once it is closed."""
        if self._transport is not None:
            self._output.write(data)

    def send_all(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write whole packets in parts, which other clients may share."""
        if self._transport is not None:
            self._output.write_all(parts)

    def shut(self, transport: asyncio.Transport, *, drains: bool) -> None:
        """Close the transport: after the waiting bytes, for which the client has ``LAST_S_MAX``, or at once."""
        if drains and self._output.finish():
            transport.close()
            asyncio.get_running_loop().call_later(LAST_S_MAX, transport.abort)
        else:
            self._output.drop()
            transport.abort()

    def pause_writing(self) -> None:
        """Keep writes: the socket is full."""
        self._output.block()

    def resume_writing(self) -> None:
        """Resume writing: the socket has room."""
        self._output.unblock()
