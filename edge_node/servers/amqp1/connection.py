"""One AMQP 1.0 client's connection: reads to frames, frames to the engine, and the engine's output."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any, cast

from weft.bounds import user_or_address
from weft.edge_node.access.identity import AccessDenied, Credentials, Denial, Identity
from weft.edge_node.check.rules import MISSING, is_installed
from weft.edge_node.ingest.ingest import Pause
from weft.edge_node.servers.amqp1.context import Amqp1Context
from weft.edge_node.servers.amqp1.mapping import Amqp1ReadBuffer
from weft.edge_node.servers.clients.output import Output, WritingConnection
from weft.edge_node.servers.clients.reading import FULL, KEEPS, NEVER, ConnectionSlot, Reading
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator
from weft.protocols import amqp1 as frames
from weft.protocols.amqp1 import AMQP, FRAME_BYTES_MAX, HEADER_BYTES, SASL, frame_size, refusal
from weft.protocols.errors import Corrupt

if TYPE_CHECKING:
    from weft.edge_node.servers.amqp1.engine import Engine, OutgoingLink
    from weft.edge_node.servers.amqp1.links import Links


# From the protocol header to the engine: SASL, the client's identity, and room for it.

OK, WRONG, LATER = 0, 1, 4
"""Outcomes of SASL."""
logger = logging.getLogger(__name__)
_DENIALS = {Denial.WRONG: WRONG, Denial.NOT_ALLOWED: WRONG, Denial.BUSY: LATER}


class Denied(Exception):
    """Refusal of a client, in the terms of SASL and AMQP."""

    def __init__(self, outcome: int, condition: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        """Outcome of SASL. After ``OK`` AMQP reports the reason, as SASL cannot."""
        self.condition = condition


class Opening:
    """The time before a client is admitted. Only SASL is accepted meanwhile."""

    __slots__ = ("_authenticator", "_client", "_has_sasl", "_parts", "_task", "_transport")

    def __init__(
        self, parts: Amqp1Context, authenticator: Authenticator, client: Amqp1Connection, transport: Any
    ) -> None:
        self._parts = parts
        self._authenticator = authenticator
        self._client = client
        self._transport = transport
        self._has_sasl = False
        self._task: asyncio.Task[None] | None = None

    def step(self, data: bytearray) -> None:
        """Handle the received part of a protocol header or a SASL frame.

        Raises:
            Corrupt: it is neither.
        """
        if self._task is not None:
            return
        if self._has_sasl:
            size = frame_size(data, 0, FRAME_BYTES_MAX)
            if size is not None and len(data) >= size:
                init = frames.sasl_init(bytes(data[:size]))
                del data[:size]
                self._log_in(init)
            return
        if len(data) < HEADER_BYTES:
            return
        header = bytes(data[:HEADER_BYTES])
        if header == SASL:
            del data[:HEADER_BYTES]
            self._has_sasl = True
            self._client.send(SASL + frames.mechanisms(self._mechanisms()))
            self.step(data)
        elif header == AMQP:
            self._begin(Credentials())
        else:
            raise Corrupt(f"expected a protocol header of AMQP 1.0, got {header!r}")

    def cancel(self) -> None:
        """Stop: the connection is gone."""
        if self._task is not None:
            self._task.cancel()

    def _mechanisms(self) -> list[str]:
        has_certificate = bool(self._transport.get_extra_info("peercert"))
        return [*(["EXTERNAL"] if has_certificate else []), "PLAIN", "ANONYMOUS"]

    def _credentials(self, init: frames.SaslInit) -> Credentials:
        """Return the client's credentials.

        Raises:
            Corrupt: they cannot be parsed.
        """
        if init.mechanism == "PLAIN":
            found = frames.plain(init.response)
            return Credentials("", found.username, found.password)
        if init.mechanism not in self._mechanisms():
            offered = ", ".join(self._mechanisms())
            raise Corrupt(f"the mechanism {init.mechanism[:40]!r} was not offered; use one of {offered}")
        return Credentials()

    def _log_in(self, init: frames.SaslInit) -> None:
        try:
            credentials = self._credentials(init)
        except Corrupt as error:  # the frame itself is valid: SASL has an outcome for its content
            self._deny(Denied(WRONG, "amqp:unauthorized-access", str(error)))
        else:
            self._begin(credentials)

    def _begin(self, credentials: Credentials) -> None:
        self._client.reading.hold(Pause.RESULT)
        self._task = self._parts.context.run(self._let_in(credentials))

    async def _let_in(self, credentials: Credentials) -> None:
        try:
            identity = await self._identify(credentials)
        except Denied as denied:
            self._task = None
            self._deny(denied)
        except Exception:
            logger.exception("AMQP 1.0 client at %s could not be admitted", self._client.accepted.name)
            self._task = None
            self._client.close("a mistake of the node's")
        else:
            self._task = None
            if self._has_sasl:
                self._client.send(frames.outcome(OK))
            self._client.welcome(identity)
            self._client.reading.resume(Pause.RESULT)

    async def _identify(self, credentials: Credentials) -> Identity:
        """Return the client's identity once the engine is loaded.

        Raises:
            Denied: it is refused.
        """
        try:
            identity = await self._authenticator.authenticate(
                credentials, self._transport, self._client.accepted.origin
            )
        except AccessDenied as error:
            raise Denied(_DENIALS[error.denial], "amqp:unauthorized-access", str(error)) from None
        if not is_installed():
            raise Denied(OK, "amqp:not-implemented", MISSING)
        if not await self._client.accepted.room():
            reason = "as many clients as limits.connections allows are connected"
            raise Denied(LATER, "amqp:resource-limit-exceeded", reason)
        # In a thread: the first import takes as long as a hundred messages.
        await asyncio.to_thread(importlib.import_module, "weft.edge_node.servers.amqp1.links")
        if not identity.admitted:
            raise Denied(WRONG, "amqp:unauthorized-access", "its user has changed")
        if not self._client.slot.take(user_or_address(identity.username, self._client.accepted.origin)):
            raise Denied(LATER, "amqp:resource-limit-exceeded", FULL)
        return identity

    def _deny(self, denied: Denied) -> None:
        self._parts.context.counters.protocol_errors += 1
        if self._has_sasl:
            self._client.send(frames.outcome(denied.outcome))
        if not self._has_sasl or denied.outcome == OK:
            self._client.refuse(denied.condition, str(denied))
        else:
            self._client.close(str(denied), drains=True)


log = logging.getLogger(__name__)

SLICE_BYTES = 16 << 10
SLICE_FRAMES = 32
"""Frames passed to the engine before the client's turn is checked; ``SLICE_BYTES`` bounds their bytes."""
OUTPUT_BYTES = 64 << 10
"""Bytes of output that the engine makes in a turn: 4 MiB take it 20 ms."""
_FREE = (0x14, 0x15)
"""Performatives charged only with their time, without a further cost: transfers and dispositions are a node's
purpose."""


class Amqp1Connection(WritingConnection):
    """Server side of one connection. Every method runs on the event loop's thread."""

    __slots__ = (
        "_authenticator",
        "_budget",
        "_has_begun",
        "_is_flushing",
        "_links",
        "_opening",
        "_owing",
        "_parts",
        "_read_buffer",
        "accepted",
        "engine",
        "identity",
        "reading",
        "slot",
        "wheel_slot",
    )

    def __init__(self, parts: Amqp1Context, authenticator: Authenticator, accepted: AcceptedConnection) -> None:
        """Begin a connection, which the listener has counted."""
        context = parts.context
        self.accepted = accepted
        self.wheel_slot = -1
        self.slot = ConnectionSlot(context.connection_bound, context.counters)
        self.identity: Identity | None = None
        """Identity of the client once it was admitted."""
        self.engine: Engine | None = None
        self._parts = parts
        self._authenticator = authenticator
        self._budget = context.pacing.budget
        self._read_buffer = Amqp1ReadBuffer(context.unfinished, user_or_address(None, accepted.origin))
        self._opening: Opening | None = None
        self._links: Links | None = None
        self._has_begun = False
        self._owing: set[OutgoingLink] = set()
        self._is_flushing = False  # True while the engine waits for its turn to write more
        self.reading = Reading(context, self._read_buffer, self._read_ahead)
        self._transport: asyncio.Transport | None = None

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the protocol header; the listener bounds the time."""
        self._transport = cast(asyncio.Transport, transport)
        self.reading.begin(self._transport)
        self._output = Output(self._transport, self._parts.context.writes, self, self._read_buffer.owner)
        self._opening = Opening(self._parts, self._authenticator, self, self._transport)
        self._parts.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Handle one read, or keep it until the client's turn."""
        if self._transport is None:
            return
        context = self._parts.context
        now = context.clock()
        self._read_buffer.data += data
        context.ingest.batch.bytes += len(data)
        if self.reading.admits(now):
            self._read(now)
        else:
            self._settle()
            self.reading.put_off()

    def _read_ahead(self, now: float) -> None:
        if self._read_buffer.data:
            self._read(now)

    def _read(self, now: float) -> None:
        context, size = self._parts.context, len(self._read_buffer.data)
        self._budget.begin(now)
        try:
            if self._opening is not None:
                self._opening.step(self._read_buffer.data)
            if self.engine is not None:
                self._frames(self.engine)
        except Corrupt as error:
            self._broken(str(error))
        if self._links is not None:
            self._links.sending.end_read()
        context.ingest.batch.gathered()
        context.fan_out.flush()
        self.flush()
        self._settle()
        self.reading.handled(size)

    def falls_behind(self) -> None:
        """Stop reading from a client that does not read, and close it if that lasts."""
        self.reading.falls_behind()
        self._parts.context.wheel.set(self, self.reading.write_until)

    def catches_up(self) -> None:
        """Resume reading from a client that has caught up."""
        self.reading.catches_up()
        self.look_at_times()
        if self._links is not None:
            self._links.room()
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection of a client that has gone."""
        self.close(f"connection lost ({exc or 'closed by the client'})", logging.INFO)

    # --- for other objects

    @property
    def takes_more(self) -> bool:
        """Return whether the client's socket has room."""
        return self._transport is not None and not self.reading.pause & Pause.WRITE

    def flush(self) -> None:
        """Write the engine's output."""
        engine = self.engine
        if engine is None or self._transport is None:
            return
        data = engine.output(OUTPUT_BYTES)
        if data:
            self.send(data)
        if len(data) >= OUTPUT_BYTES:
            self.flush_in_turn()
            return
        self._made_frames()
        if engine.error is not None:
            self._parts.context.counters.protocol_errors += 1
            self.close(engine.error, drains=True)
        elif engine.ended:
            self.close("closed by the client", logging.DEBUG, drains=True)

    def flush_in_turn(self) -> None:
        """Write the engine's output at the client's turn."""
        if not self._is_flushing:
            self._is_flushing = True
            self._parts.context.writes.round_robin.wait(self._read_buffer.owner, self._flush_on)

    def _flush_on(self) -> None:
        """Write more of the engine's output, unless the client does not read."""
        self._is_flushing = False
        if self.takes_more:
            self.flush()

    def owes(self, link: OutgoingLink) -> None:
        """Call the link's ``left`` once the engine has made frames."""
        self._owing.add(link)

    def _made_frames(self) -> None:
        """Let links resume whose messages have left the engine."""
        for link in tuple(self._owing):
            if link.left():
                self.flush_in_turn()
            if not link.unsent:
                self._owing.discard(link)

    def room_in_turn(self) -> None:
        """Let links resume at the client's turn: others of its user have freed memory."""
        self._parts.context.writes.round_robin.wait(self._read_buffer.owner, self._room_on)

    def _room_on(self) -> None:
        if self._links is not None and self.takes_more:
            self._links.room()
            self.flush_in_turn()

    def welcome(self, identity: Identity) -> None:
        """Pass the connection of an admitted client to the engine. The caller then calls ``reading.resume``."""
        from weft.edge_node.servers.amqp1.engine import Engine
        from weft.edge_node.servers.amqp1.links import Links

        parts = self._parts
        self.identity, self._opening = identity, None
        self._read_buffer.belongs_to(user_or_address(identity.username, self.accepted.origin))
        self._output.owner = self._read_buffer.owner
        self._links = Links(parts, self, identity, self._read_buffer)
        self.engine = engine = Engine(parts.engine_settings(), self._links)
        self._links.begin(engine)
        self.accepted.opened()

    def refuse(self, condition: str, description: str) -> None:
        """Close a connection that no engine serves, with the reason."""
        self.send(refusal(self._parts.container, condition, description))
        self.close(description, drains=True)

    def end(self, condition: str, description: str) -> None:
        """Close the connection with an error of the protocol."""
        if self.engine is not None and self._transport is not None:
            self.engine.close(condition, description)
            self.send(self.engine.output())
        self.close(description, drains=True)

    def permissions_changed(self) -> None:
        """Check again whether the client is admitted, and its rights."""
        if self.identity is not None and not self.identity.admitted:
            self._parts.context.counters.clients_expelled += 1
            self.end("amqp:unauthorized-access", "its user was removed, or has another password")
        elif self._links is not None:
            self._links.permissions_changed()
            self.flush()

    def due(self, now: float) -> float | None:
        """Close the connection if the client did not send, or did not read, for too long. For the timer wheel."""
        if self.reading.is_stuck(now):
            self.close(self.reading.stuck)
            return None
        engine = self.engine
        when = None
        if engine is not None:
            when = engine.tick(now)
            engine.handle()
            if engine.error is not None:
                self._parts.context.counters.keep_alive_timeouts += 1
            self.flush()
        if self._transport is None:
            return None
        next_due = min(self.reading.write_until, NEVER if when is None else when)
        return None if next_due == NEVER else next_due

    # --- frames

    def _frames(self, engine: Engine) -> None:
        """Pass whole frames to the engine, until the client's turn is over."""
        held, at, begin, frames, cost = self._read_buffer.data, 0, 0, 0, 0
        if not self._has_begun and len(held) >= HEADER_BYTES:
            if held[:HEADER_BYTES] != AMQP:
                raise Corrupt(f"expected the protocol header of AMQP 1.0, got {bytes(held[:HEADER_BYTES])!r}")
            self._has_begun, at = True, HEADER_BYTES
            self._parts.context.call_soon(self.look_at_times)
        while self._has_begun and not self.reading.pause & KEEPS and self._transport is not None:
            size = frame_size(held, at, self._parts.frame_bytes_max)
            if size is None or at + size > len(held):
                break
            cost += size < 11 or held[at + 10] not in _FREE
            at, frames = at + size, frames + 1
            if at - begin < SLICE_BYTES and frames < SLICE_FRAMES:
                continue
            self._push(engine, bytes(held[begin:at]))
            begin, spent = at, cost
            frames = cost = 0
            if not self._budget.spend(spent) and at < len(held):
                if self._links is not None:
                    self._links.sending.end_read()
                self.reading.end_turn()
        if at > begin:
            self._push(engine, bytes(held[begin:at]))
        del held[:at]

    def _push(self, engine: Engine, data: bytes) -> None:
        if self._transport is not None:
            engine.receive(data)
            engine.handle()
            self._parts.context.ingest.batch.relieve()

    def _settle(self) -> None:
        if self._transport is not None and not self._read_buffer.settle():
            self.end("amqp:resource-limit-exceeded", "no memory for messages that are not whole (limits.unfinished)")

    def look_at_times(self) -> None:
        """Compute the next deadline: the client has sent its idle time-out."""
        when = self.due(self._parts.context.clock())
        if when is not None:
            self._parts.context.wheel.set(self, when)

    # --- the end

    def _broken(self, reason: str) -> None:
        self._parts.context.counters.protocol_errors += 1
        if self.engine is not None:
            self.end("amqp:connection:framing-error", reason)
        else:
            self.close(reason)

    def close(self, reason: str, level: int = logging.WARNING, *, drains: bool = False) -> None:
        """Log the reason, detach the links and close the transport; once.

        Args:
            drains: True to send written bytes first.
        """
        if self._transport is None:
            return
        transport, self._transport = self._transport, None
        self.reading.end()
        parts, context = self._parts, self._parts.context
        context.ingest.batch.store()
        who = f"closed AMQP 1.0 client {self._name()} at {self.accepted.name}"
        context.disconnect_log.closed(log, who, reason, level, self.accepted.origin if self.identity is None else None)
        if self._opening is not None:
            self._opening.cancel()
        if self._links is not None:
            self._links.end()
        engine, self.engine = self.engine, None
        if engine is not None:
            # Later: this may be within one of its events.
            context.call_soon(engine.free)
        context.wheel.cancel(self)
        self._read_buffer.clear()
        parts.connections.discard(self)
        self.slot.free()
        self.accepted.closed()
        self.shut(transport, drains=drains and not self.reading.pause & Pause.WRITE)

    def _name(self) -> str:
        if self._links is not None and self._links.container:
            return repr(self._links.container[:80])
        return "without an identifier"
