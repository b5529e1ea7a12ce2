"""One MQTT client's connection: reads to packets, packets to the session."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any, cast

import msgspec

from weft.bounds import Bound, Owner, user_or_address
from weft.edge_node.access.identity import AccessDenied, Credentials, Denial, Identity, session_name
from weft.edge_node.ingest.ingest import COST_MAX, TICK_BYTES_MAX, Pause
from weft.edge_node.ingest.routing import RouteCache
from weft.edge_node.servers.clients.output import Output, WritingConnection
from weft.edge_node.servers.clients.reading import KEEPS, NEVER, ReadBuffer, Reading
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator
from weft.edge_node.servers.mqtt.packet_handlers import PacketHandlers
from weft.edge_node.servers.mqtt.publishes import Publishes
from weft.edge_node.servers.mqtt.server import MqttClient, MqttServer
from weft.edge_node.sessions.packets_out import Wire
from weft.edge_node.sessions.session import Session
from weft.protocols.mqtt.connection import Connection, ConnectionState
from weft.protocols.mqtt.decoder import Reassembly, decode
from weft.protocols.mqtt.packets import (
    ConnAck,
    Connect,
    ConnectRefused,
    MqttError,
    Packet,
    PingReq,
    Properties,
    ReasonCode,
    Subscribe,
    Unsubscribe,
    Version,
)
from weft.protocols.mqtt.publish_run import single
from weft.storage.segment_log import LogError, LogFailed, LogFull

# Protocols of connections that never send CONNECT: people point browsers, probes and TLS clients at MQTT's port.

_HTTP_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"PRI * HTTP/2")
_TLS_HANDSHAKE = b"\x16\x03"
"""Content type and major version of a TLS record (RFC 8446 section 5.1)."""
_PROXY = (b"PROXY ", b"\r\n\r\n\x00\r\nQUIT\n")


def named(data: bytes) -> str | None:
    """Name the protocol of a connection's first bytes, and the remedy; None for an unknown one."""
    if data.startswith(_HTTP_METHODS):
        return (
            "it speaks HTTP and this is a port for MQTT. The status page is at `http.bind`, MQTT over WebSocket at `ws`"
        )
    if data.startswith(_TLS_HANDSHAKE):
        return "it speaks TLS and this listener has none. Connect without TLS, or give the listener `tls`"
    if data.startswith(_PROXY):
        return "it sends a PROXY header and this listener expects none. Set `proxy_protocol`, or connect directly"
    return None


# CONNECT to CONNACK: the client's identity, its session, and the content of CONNACK (MQTT 5.0 sections 3.1, 3.2).

CHANGES_WAIT_S_MAX = 5.0
"""Longest time that a client waits because the sessions of its user have changed too often."""

_DENIALS = {
    Denial.WRONG: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    Denial.NOT_ALLOWED: ReasonCode.NOT_AUTHORIZED,
    Denial.BUSY: ReasonCode.SERVER_BUSY,
}


class Handshake:
    """One CONNECT. The connection is not parsed meanwhile."""

    __slots__ = ("_authenticator", "_client", "_context", "_machine", "_server", "_task", "client_id")

    def __init__(
        self, server: MqttServer, authenticator: Authenticator, client: MqttClient, machine: Connection
    ) -> None:
        self._server, self._context = server, server.context
        self._authenticator = authenticator
        self._client = client
        self._machine = machine
        self._task: asyncio.Task[None] | None = None
        self.client_id = ""
        """Client identifier in CONNECT; empty until that has come."""

    def begin(self, packet: Connect, transport: Any) -> None:
        """Ask the authenticator, then welcome or refuse the client."""
        self.client_id = packet.client_id
        self._task = self._context.run(self._let_in(packet, transport))

    def cancel(self) -> None:
        """Stop the handshake of a connection that is gone."""
        if self._task is not None:
            self._task.cancel()

    async def _let_in(self, packet: Connect, transport: Any) -> None:
        client = self._client
        try:
            # Before any bound by user: whose share a connection takes is not known until then.
            identity = await self._identify(packet, transport)
            await self._await_changes(packet, identity)
            has_room = await self._has_room(packet, identity)
            self._task = None
            if has_room:
                self._welcome(packet, identity)
            else:  # the listener has logged it, once for many
                reason = "as many clients as limits.connections allows are connected"
                refusal = ConnectRefused(ReasonCode.QUOTA_EXCEEDED, reason, version=packet.version)
                client.fail(refusal, logging.DEBUG)
        except ConnectRefused as error:
            self._task = None
            client.fail(error)

    async def _identify(self, packet: Connect, transport: Any) -> Identity:
        if packet.properties.authentication_method is not None:
            code = ReasonCode.BAD_AUTHENTICATION_METHOD
            raise ConnectRefused(code, "no enhanced authentication here", "4.12.0-1", packet.version)
        credentials = Credentials(packet.client_id, packet.username, packet.password)
        try:
            return await self._authenticator.authenticate(credentials, transport, self._client.accepted.origin)
        except AccessDenied as error:
            raise ConnectRefused(_DENIALS[error.denial], str(error), version=packet.version) from None

    async def _await_changes(self, packet: Connect, identity: Identity) -> None:
        """Wait until the owner may change its sessions again: a persistent session is journaled when its client comes
        and goes.

        Raises:
            ConnectRefused: that takes too long.
        """
        lasts = packet.properties.session_expiry_interval if packet.version == Version.V5 else not packet.clean_start
        # Nothing of such a connection outlives it, so it changes no stored session.
        if not lasts and packet.will is None:
            return
        owner = user_or_address(identity.username, self._client.accepted.origin)
        while wait_s := self._server.changes.rates.debt_s(owner):
            # Refused with the time rather than kept waiting: a client that gets no CONNACK connects again and makes it
            # worse.
            if wait_s > CHANGES_WAIT_S_MAX:
                self._server.changes.refuse(owner)
                reason = f"the sessions of its user change too often; try again in {wait_s:.0f} s"
                raise ConnectRefused(ReasonCode.CONNECTION_RATE_EXCEEDED, reason, version=packet.version)
            await asyncio.sleep(wait_s)

    async def _has_room(self, packet: Connect, identity: Identity) -> bool:
        """Wait until the client can be admitted. One that takes over its own connection needs no room: a device that
        lost its network comes back before its old connection is known to be dead.

        Raises:
            ConnectRefused: the client lost its permission meanwhile.
        """
        # A take-over frees the place that it needs. A full node would otherwise keep devices out whose old connection
        # is dead.
        takes_over = self._server.sessions.is_connected(session_name(identity.username, packet.client_id))
        has_room = takes_over or await self._client.accepted.room()
        # The users file may have changed while the connection waited for a place.
        if has_room and not identity.admitted:
            raise ConnectRefused(ReasonCode.NOT_AUTHORIZED, "its user has changed", version=packet.version)
        return has_room

    def _welcome(self, packet: Connect, identity: Identity) -> None:
        context, client, machine = self._context, self._client, self._machine
        if packet.will is not None and packet.will.topic.startswith(b"$SYS/"):
            # Bridges of Mosquitto would not connect otherwise; their publishes to $SYS are treated in the same way.
            packet = msgspec.structs.replace(packet, will=None)
        # Random, because a client identifier that can be guessed could be taken over.
        client_id = packet.client_id or f"auto-{secrets.token_hex(12)}"
        self._check_will(packet, identity)
        try:
            name = session_name(identity.username, client_id)
            session, present = self._server.sessions.open(packet, name, identity, client, client.accepted.origin)
        except (LogFull, LogFailed) as error:
            raise ConnectRefused(
                ReasonCode.SERVER_BUSY, f"its session cannot be kept: {error}", version=packet.version
            ) from error
        client.welcome(session, context.routing.routes_of(identity))
        answer = machine.encode(ConnAck(present, ReasonCode.SUCCESS, self._announcement(packet, client_id, session)))
        if session.awaits_journal:
            machine.state = ConnectionState.AWAITING_CONNECT
            context.ingest.on_durable(lambda error: self._accept(session, answer, error))
        else:
            self._accept(session, answer, None)

    def _accept(self, session: Session, answer: bytes, error: BaseException | None) -> None:
        client, machine = self._client, self._machine
        if error is not None:
            client.refuse(error)
        elif client.is_open and session.window.is_of(client):
            machine.state = ConnectionState.OPEN
            client.send(answer)
            wire = Wire(session.version, machine.client_packet_bytes_max, machine.client_topic_alias_maximum)
            self._server.sessions.resume(session, wire, machine.client_receive_maximum)
            client.reading.resume()  # CONNACK is the first packet that the client gets [MQTT-3.2.0-1]

    def _announcement(self, packet: Connect, client_id: str, session: Session) -> Any:
        asked = packet.properties.session_expiry_interval or 0
        return self._machine.announcement(
            assigned_client_identifier=client_id if client_id != packet.client_id else None,
            session_expiry_interval=session.expiry_s if session.expiry_s != asked else None,
        )

    def _check_will(self, packet: Connect, identity: Identity) -> None:
        will = packet.will
        if will is not None and not identity.unrestricted and not identity.may_publish(will.topic):
            reason = f"it may not publish its will to {will.topic.decode()!r}"
            raise ConnectRefused(ReasonCode.NOT_AUTHORIZED, reason, version=packet.version)
        if will is not None and self._context.routing.refuses(will.topic):
            reason = f"no stream matches {will.topic.decode()!r}, the topic of its will (`unrouted: refuse`)"
            raise ConnectRefused(ReasonCode.TOPIC_NAME_INVALID, reason, version=packet.version)


log = logging.getLogger(__name__)


class ClientConnection(WritingConnection):
    """Server side of one connection. Every method runs on the event loop's thread."""

    __slots__ = (
        "_authenticator",
        "_batch",
        "_context",
        "_fast",
        "_handlers",
        "_handshake",
        "_machine",
        "_packet_bytes_max",
        "_read_buffer",
        "_server",
        "accepted",
        "reading",
        "wheel_slot",
    )

    def __init__(self, server: MqttServer, authenticator: Authenticator, accepted: AcceptedConnection) -> None:
        """Begin a connection, which the listener has counted."""
        self.accepted = accepted
        self.wheel_slot = -1
        self._server, self._context = server, server.context
        self._authenticator = authenticator
        self._machine = Connection(server.limits)
        self._batch = self._context.ingest.batch
        self._packet_bytes_max = self._context.settings.limits.message_bytes
        self._fast: Publishes | None = None
        """Publishes of the fast path. Set while only packets of an open session may come, every read begins with a
        packet, and publishes are stored at the end of the turn."""
        owner = user_or_address(None, accepted.origin)
        self._read_buffer = MqttReadBuffer(self._context.unfinished, owner, self._context.settings.limits.connect_bytes)
        self._handlers: PacketHandlers | None = None
        self._handshake: Handshake | None = None
        self.reading = Reading(self._context, self._read_buffer, self._read_ahead)
        self._transport: asyncio.Transport | None = None

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for CONNECT; the listener bounds the time."""
        self._transport = cast(asyncio.Transport, transport)
        self.reading.begin(self._transport)
        self._output = Output(self._transport, self._context.writes, self, self._read_buffer.owner)
        self._context.arrived(self)

    def data_received(self, data: bytes) -> None:
        """Handle one read: parse all of it, gather or append its records, and note pending acknowledgements."""
        publishes = self._fast
        if publishes is not None:
            batch = self._batch
            # Most reads of a fleet are one plain publish at QoS 1. This way takes it without a loop, an object or a
            # parser, and leaves anything else to the full one.
            if not batch.is_heavy and single(
                data, publishes.known, batch, publishes, self._packet_bytes_max, publishes.in_5
            ):
                if not batch.begun:
                    batch.begin()
                self.reading.heard = batch.now
                publishes.due += 1
                if publishes.due > publishes.due_max:
                    publishes.hold_back()
                batch.bytes += len(data)
                if batch.bytes > TICK_BYTES_MAX or batch.cost > COST_MAX:
                    batch.store()
                return
        now = self._context.clock()
        if self.reading.admits(now):
            self._read(data, now)
        # The loop has handled reads for its share of this iteration. The bytes wait for a turn, in which owners are
        # served in rounds.
        elif self._transport is not None:
            self._fast = None
            self._read_buffer.ahead += data
            self._settle()
            self.reading.put_off()

    def _read_ahead(self, now: float) -> None:
        if data := self._read_buffer.take():
            self._read(data, now)

    def _read(self, data: bytes, now: float) -> None:
        if self._transport is None:
            return
        reading = self.reading
        reading.heard = now
        self._context.pacing.budget.begin(now)
        self._batch.bytes += len(data)
        try:
            try:
                self._parse_read(data)
            finally:  # packets before a malformed one are valid
                if self._handlers is not None:
                    self._handlers.publishes.end_read()
        except MqttError as error:
            self._broken(error, data)
        except LogError as error:
            self.refuse(error)
        self._batch.gathered()
        self._context.fan_out.flush()
        if self._output.corked is not None:
            self._output.uncork()
        read_buffer, is_whole = self._read_buffer, not self._read_buffer.partial
        if read_buffer.ahead or read_buffer.charged or not is_whole:
            self._settle()
        publishes = self._handlers.publishes if self._handlers is not None else None
        reading.handled(len(data))
        is_plain = self._transport is not None and is_whole and not reading.pause & KEEPS
        self._fast = publishes if is_plain and publishes is not None and publishes.is_fast else None

    def falls_behind(self) -> None:
        """Stop reading from a client that does not read, and close it if that lasts for ``write_timeout_s``."""
        self.reading.falls_behind()
        if self._handlers is not None:
            self._handlers.session.window.pause(self)
        self._wait()

    def catches_up(self) -> None:
        """Resume reading from a client that has caught up."""
        self.reading.catches_up()
        self._wait()
        if self._handlers is not None:
            self._handlers.session.window.resume(self)
            self._context.fan_out.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection of a client that has gone, with or without DISCONNECT."""
        if self._transport is not None:
            self._close(f"connection lost ({exc or 'closed by the client'})", logging.INFO)

    # --- for sessions, intake and back-pressure

    def answer(self, packet: Packet) -> None:
        """Write one packet in the client's version."""
        self.send(self._machine.encode(packet))

    def displace(self, code: ReasonCode) -> None:
        """Close the connection: its session belongs to another connection now, or has ended [MQTT-3.1.4-3]."""
        self._close(f"{code.name.lower().replace('_', ' ')}", logging.INFO, code=code)

    def refuse(self, error: BaseException) -> None:
        """Close without acknowledging: the client's messages could not be stored. The client will send them again."""
        if self._transport is not None:
            self._context.counters.log_refusals += 1
            code = ReasonCode.QUOTA_EXCEEDED if isinstance(error, LogFull) else ReasonCode.UNSPECIFIED_ERROR
            self._close(f"what it sent could not be stored and is not acknowledged: {error}", code=code)

    def has_left(self, code: int, *, with_will: bool) -> None:
        """Close the connection after DISCONNECT."""
        self._close(f"DISCONNECT with reason code {code:#04x}", logging.DEBUG, with_will=with_will)

    def shut_down(self) -> None:
        """Close because the node stops, without publishing the will: the client has done nothing wrong."""
        self._close("the node stops", logging.INFO, code=ReasonCode.SERVER_SHUTTING_DOWN, with_will=False)

    def due(self, now: float) -> float | None:
        """Close the connection if the client did not send, or did not read, for too long. For the timer wheel."""
        reading, limit = self.reading, self._machine.silence_s_max
        if reading.is_stuck(now):
            self._close(reading.stuck)
            return None
        if reading.pause:
            reading.heard = now  # silence of a client that is not read does not count
        if limit is not None and self._handlers is not None and now >= reading.heard + limit:
            self._context.counters.keep_alive_timeouts += 1
            clause = "3.1.2-22" if self._machine.version == Version.V5 else "3.1.2-24"
            code = ReasonCode.KEEP_ALIVE_TIMEOUT
            self._close(f"silent for {limit:g} s, 1.5 times its keep alive [MQTT-{clause}]", code=code)
            return None
        return self._next_due()

    # --- one read

    def _parse_read(self, data: bytes) -> None:
        at, read_buffer = 0, self._read_buffer
        if read_buffer.partial:
            packet, at = read_buffer.partial.complete(data)
            if packet:
                self._batch.joined_bytes += len(packet)
                self._parse(packet, 0)
        at = self._parse(data, at)  # handles nothing if the packet must wait
        if at < len(data) and self._transport is not None:
            if self.reading.pause & KEEPS:
                read_buffer.ahead = data[at:]
            else:
                read_buffer.partial.keep(data[at:])

    def _parse(self, data: bytes, at: int) -> int:
        """Handle the packets of ``data[at:]``; return the offset of the first incomplete one."""
        machine, reading, budget, size = self._machine, self.reading, self._context.pacing.budget, len(data)
        while at < size and self._transport is not None and not reading.pause & KEEPS:
            handlers = self._handlers
            if handlers is not None:
                before, at = at, handlers.scan(data, at)
                if at > before:
                    if at < size and not budget.spend(0):
                        reading.end_turn()
                    continue
            # Before CONNECT is accepted the sender is unknown, and gets only the small bound.
            limit = self._packet_bytes_max if handlers is not None else self._context.settings.limits.connect_bytes
            decoded = decode(data, at, limit, machine.version)
            if decoded is None:
                break
            packet, at = decoded
            packet = machine.receive(packet)
            self._context.counters.packets_received += 1
            if handlers is None:
                assert isinstance(packet, Connect)  # the state table allows no other packet first
                self._on_connect(packet)
                continue
            self._output.cork()
            handlers.handle(packet)
            # 131,072 PINGREQs fit into one read. A client has its turn, then the others have theirs.
            if not budget.spend(cost(packet)) and at < size:
                reading.end_turn()
        return at

    def _settle(self) -> None:
        # Incomplete packets are memory that a client can hold without sending anything more, so they are charged to its
        # user.
        if self._transport is not None and not self._read_buffer.settle():
            self._close("no memory for packets that are not whole (limits.unfinished)", code=ReasonCode.QUOTA_EXCEEDED)

    # --- packets

    def _on_connect(self, packet: Connect) -> None:
        self.reading.hold(Pause.RESULT)
        self._handshake = Handshake(self._server, self._authenticator, self, self._machine)
        self._handshake.begin(packet, self._transport)

    def welcome(self, session: Session, routes: RouteCache) -> None:
        """Handle packets for this session from now on. The caller then sends CONNACK, and calls ``reading.resume``."""
        machine = self._machine
        publishes = Publishes(self._server, self, session, routes, machine.answers_due_max, machine.encode)
        self._handlers = PacketHandlers(self._server, self, machine, session, publishes)
        self._handshake = None
        self._read_buffer.welcome(session.owner, self._packet_bytes_max)
        self._output.owner = session.owner
        self.reading.heard = self._context.clock()
        self._wait()
        self.accepted.opened()

    def fail(self, error: MqttError, level: int = logging.WARNING) -> None:
        """Close a connection whose CONNECT was refused, by the authenticator or for lack of room: CONNACK has the
        reason."""
        self._context.counters.protocol_errors += 1
        answer = ConnAck(False, error.code, Properties(reason_string=str(error)))
        self._close(str(error), level, words=self._machine.encode(answer))

    # --- timers

    def _wait(self) -> None:
        when, wheel = self._next_due(), self._context.wheel
        wheel.cancel(self) if when is None else wheel.set(self, when)

    def _next_due(self) -> float | None:
        limit = self._machine.silence_s_max if self._handlers is not None else None
        when = min(self.reading.write_until, NEVER if limit is None else self.reading.heard + limit)
        return None if when == NEVER else when

    # --- the end

    def _broken(self, error: MqttError, data: bytes) -> None:
        self._context.counters.protocol_errors += 1
        is_first = self._handlers is None and self._handshake is None
        # "Malformed packet" does not help a person who pointed a browser at the port.
        reason = (named(data) if is_first else None) or str(error)
        self._close(reason, words=self._machine.last_words(error))

    def _close(
        self,
        reason: str,
        level: int = logging.WARNING,
        *,
        code: ReasonCode | None = None,
        words: bytes = b"",
        with_will: bool = True,
    ) -> None:
        """Log the reason, leave the session, publish the will, close the transport, in that order; once.

        Without a last packet, bytes that the socket has not taken are dropped, so that a client that does not read
        cannot stay.
        """
        if self._transport is None:
            return
        self._output.uncork()
        self._batch.store()  # messages from before the end precede the will
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self.reading.end()
        self._fast = None
        who, stranger_at = f"closed MQTT client {self._client()} at {self.accepted.name}", self.accepted.origin
        self._context.disconnect_log.closed(log, who, reason, level, stranger_at if self._handlers is None else None)
        if code is not None and not words:
            words = self._machine.farewell(code, reason)
        # A client that does not read gets no last words: waiting for it would keep its memory.
        drains = bool(words) and not self.reading.pause & Pause.WRITE
        if drains:
            self._output.write(words)
        if self._handshake is not None:
            self._handshake.cancel()
        self._machine.state = ConnectionState.CLOSED
        self._read_buffer.clear()
        self._leave(with_will=with_will)
        self.shut(transport, drains=drains)

    def _client(self) -> str:
        """Return the client's name for log lines."""
        if self._handlers is not None:
            return repr(self._handlers.session.client_id)
        # A refused CONNECT names its client, too; without a CONNECT only the address is known.
        client_id = self._handshake.client_id if self._handshake is not None else None
        return repr(client_id) if client_id else "without an identifier" if client_id == "" else "without a CONNECT"

    def _leave(self, *, with_will: bool) -> None:
        context, handlers = self._context, self._handlers
        context.wheel.cancel(self)
        if handlers is not None:
            context.routing.leave(handlers.publishes.routes)
            if handlers.session.window.is_of(self):
                self._server.sessions.close(handlers.session, with_will=with_will)
        context.left(self)
        self.accepted.closed()


def cost(packet: Packet) -> int:
    """Return the charge of a packet. Publishes are charged only with their time: clients that send much are the node's
    purpose."""
    if isinstance(packet, Subscribe | Unsubscribe):
        return len(packet.filters)
    return isinstance(packet, PingReq)


class MqttReadBuffer(ReadBuffer):
    """Store of unhandled bytes of one client, charged to its owner.

    Args:
        bound: bytes of all clients.
        owner: the address, until ``belongs_to`` names a user.
        packet_bytes_max: longest CONNECT.
    """

    __slots__ = ("partial",)

    def __init__(self, bound: Bound, owner: Owner, packet_bytes_max: int) -> None:
        super().__init__(bound, owner)
        self.partial = Reassembly(packet_bytes_max)

    def welcome(self, owner: Owner, packet_bytes_max: int) -> None:
        """Charge the client's session from now on; its packets may be longer. Only packets sent ahead are held then."""
        self.belongs_to(owner)
        self.partial = Reassembly(packet_bytes_max)

    def settle(self) -> bool:
        """Charge the bytes held now. Return whether the owner may have so many; if not, nothing is charged."""
        return self.charge(self.partial.held + len(self.ahead))
