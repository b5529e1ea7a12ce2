"""Reading of one connection: pauses, turns, and what waits for them."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from weft.bounds import user_or_address
from weft.edge_node.ingest.back_pressure import Pause
from weft.edge_node.servers.amqp.client import Peer, Shared
from weft.edge_node.servers.amqp.inbox import Inbox
from weft.edge_node.servers.amqp.liveness import Liveness
from weft.edge_node.servers.broker.output import WritingConnection
from weft.edge_node.servers.broker.place import Place
from weft.edge_node.servers.listeners.door import Arrival
from weft.protocols.amqp.errors import AmqpError, ReplyCode

WAITING = Pause.ASKING | Pause.TURN
"""Reasons for which what came is kept unparsed."""


class Reads(WritingConnection):
    """A connection that is read as far as disk, turns and its own socket allow."""

    __slots__ = ("_broker", "_fast", "_live", "_missed_turn", "_pause", "_turn", "arrival", "inbox",
                 "place")  # fmt: skip

    _live: Liveness
    peer: Peer

    def __init__(self, shared: Shared, arrival: Arrival) -> None:
        self.arrival = arrival
        self.inbox = Inbox(shared.broker.unfinished, user_or_address(None, arrival.origin))
        self.place = Place(shared.broker.places, shared.broker.counters)
        self._broker = shared.broker
        self._turn = shared.broker.ingest.turn
        self._pause = 0
        self._missed_turn = False  # True once its turn came while publishers wait for the disk
        self._fast = False
        """True while every read begins with a frame, and the client has published on an open channel."""
        self._transport: asyncio.Transport | None = None

    @abstractmethod
    def fail(self, error: AmqpError) -> None:
        """Close the connection with an exception."""

    def send(self, data: bytes) -> None:
        """Write whole frames."""
        self._live.wrote = True
        super().send(data)

    def send_all(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write whole frames that came in parts."""
        self._live.wrote = True
        super().send_all(parts)

    @abstractmethod
    def _read(self, data: bytes, now: float, at: int) -> None:
        """Handle what came, from an offset on."""

    @property
    def is_open(self) -> bool:
        """Return whether the client can still be sent something."""
        return self._transport is not None

    @property
    def is_paused(self) -> bool:
        """Return whether the client is not read."""
        return bool(self._pause)

    def hold(self, reason: Pause) -> None:
        """Stop reading."""
        if not self._pause and self._transport is not None:
            self._transport.pause_reading()
        self._pause |= reason
        if reason is Pause.DISK:
            self._live.held_by_disk()

    def release(self, reason: Pause) -> None:
        """Read on, if this was the last reason not to."""
        if not self._pause & reason:
            return
        self._pause &= ~reason
        if reason is Pause.DISK:
            self._live.released_by_disk()
        if self._missed_turn and not self._pause & Pause.DISK:
            self._missed_turn = False
            self._broker.rounds.wait(self.inbox.owner, partial(self.go_on, Pause.TURN))
        self._read_on()

    def await_turn(self, go_on: Callable[[], None]) -> None:
        """Stop reading, and call back when others have had their turn."""
        self.hold(Pause.TURN)
        self._broker.rounds.wait(self.inbox.owner, go_on)

    def go_on(self, waited_for: Pause = Pause.ASKING) -> None:
        """Parse what came while the connection waited for an answer or its turn, and read on."""
        self._pause &= ~waited_for
        if self.inbox.ahead and self._pause & Pause.DISK:
            # All clients together may have read ahead much more than may wait for the disk.
            self._pause |= Pause.TURN
            self._missed_turn = True
        elif data := self.inbox.take():
            self._read(data, self._broker.clock(), 0)
        self._read_on()

    def _put_off(self, data: bytes) -> None:
        """Keep a read for the time when the client may go on."""
        if self._transport is None:
            return
        self.inbox.ahead += data
        self._settle()
        if self._transport is not None and not self._pause & WAITING:
            self._fast = False
            self.await_turn(partial(self.go_on, Pause.TURN))

    def _wait_for_turn(self) -> None:
        """Go on when others had their turn and what came is durable: all wait for the commits of one client."""
        if not self._pause & WAITING:
            self.hold(Pause.TURN)
            self._turn.store()
            self._broker.ingest.on_durable(lambda _: self.await_turn(partial(self.go_on, Pause.TURN)))

    def _settle(self) -> None:
        if self._transport is not None and not self.inbox.settle():
            self.fail(
                AmqpError(ReplyCode.RESOURCE_ERROR, "no memory for messages that are not whole (limits.unfinished)")
            )

    def _read_on(self) -> None:
        if not self._pause and self._transport is not None:
            self._live.heard = self._broker.clock()
            self._transport.resume_reading()

    def _client(self) -> str:
        """Return the client for log lines."""
        if self.peer is None:
            return f"at {self.arrival.name}"
        named = repr(self.peer.name[:80]) if self.peer.name else "without a name"
        user = self.peer.identity.username
        return f"{named} of user {user!r} at {self.arrival.name}" if user else f"{named} at {self.arrival.name}"
