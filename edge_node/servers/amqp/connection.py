"""One AMQP 0-9-1 client's connection: reads to frames, frames to channels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

from weft.bounds import user_or_address
from weft.edge_node.ingest.ingest import COST_MAX, TICK_BYTES_MAX, Ingest, Pause
from weft.edge_node.queues.queue import QueueClient
from weft.edge_node.servers.amqp.channel import Channels
from weft.edge_node.servers.amqp.client import (
    HANDSHAKE_FRAME_BYTES_MAX,
    AmqpContext,
    AmqpReadBuffer,
    Peer,
    Targets,
    described,
)
from weft.edge_node.servers.amqp.handshake import Handshake, Liveness, check_secret
from weft.edge_node.servers.clients.output import Output, WritingConnection
from weft.edge_node.servers.clients.reading import KEEPS, ConnectionSlot, Reading
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator
from weft.network.accepting import SharedBufferProtocol
from weft.protocols.amqp.frames import HEARTBEAT, METHOD, PROTOCOL_HEADER, AmqpError, Frame, ReplyCode, read_frame, scan
from weft.protocols.amqp.methods import Method, commands, read_method, write_method
from weft.storage.segment_log import LogError, LogFull

# The agreed end of a connection: connection.close from either side, and close-ok from the other (section 1.4.2.5).

_CLOSE, _CLOSE_OK = commands.Connection.Close.index, commands.Connection.CloseOk.index


class Closing:
    """Closing handshake with the other side. Once it has begun, no request of the client is accepted."""

    __slots__ = ("_connection", "_ingest", "is_begun")

    def __init__(self, connection: AmqpConnection, ingest: Ingest) -> None:
        self._connection = connection
        self._ingest = ingest
        self.is_begun = False

    def begin(self, error: AmqpError) -> None:
        """Send connection.close, with the reason."""
        self.is_begun = True
        connection = self._connection
        connection.answer(commands.Connection.Close(error.code, error.text, error.method >> 16, error.method & 0xFFFF))
        connection.leave_channels()
        connection.await_last_word()

    def handle(self, frame: Frame) -> None:
        """Wait for connection.close-ok among the frames that the client sent before it saw the close."""
        if frame.channel or frame.kind != METHOD:
            return
        index = int.from_bytes(frame.payload[:4], "big")
        if index == _CLOSE:
            self._connection.answer(commands.Connection.CloseOk())
        if index in (_CLOSE, _CLOSE_OK):
            self._connection.end("connection.close-ok", logging.DEBUG, lingers=True)

    def asked(self) -> None:
        """Answer connection.close when earlier publishes are durable: the answer tells a publisher without confirms
        that they are."""
        self._ingest.batch.store()
        if self.is_begun:
            return  # there was no room for it: an exception is on its way to the client
        self.is_begun = True
        self._connection.leave_channels()
        self._ingest.on_durable(self._durable)

    def _durable(self, error: BaseException | None) -> None:
        if not self._connection.is_open:
            return
        if error is not None:
            self.begin(AmqpError(ReplyCode.INTERNAL_ERROR, f"what was published could not be stored: {error}"))
        else:
            self._connection.answer(commands.Connection.CloseOk())
            self._connection.end("connection.close", logging.DEBUG, lingers=True)


# The last seconds of a connection whose end was agreed on, until its client closes it.
#
# A socket that is closed while bytes of the client are unread is reset: the client may lose connection.close-ok with
# it, and its next write fails. Clients write until they have read close-ok, and some queue messages behind their
# close.

LINGER_S_MAX = 5.0
LINGER_BYTES_MAX = 64 << 20
"""Number of dropped bytes after which the node closes the connection."""


class Lingering(asyncio.Protocol):
    """Reader that drops the bytes that a client still sends. The connection counts for its address and user
    meanwhile."""

    __slots__ = ("_accepted", "_bytes_left", "_shared", "_slot", "_transport", "wheel_slot")

    def __init__(
        self, shared: AmqpContext, transport: asyncio.Transport, accepted: AcceptedConnection, slot: ConnectionSlot
    ) -> None:
        """Take the transport over."""
        self.wheel_slot = -1
        self._shared = shared
        self._accepted = accepted
        self._slot = slot
        self._transport = transport
        self._bytes_left = LINGER_BYTES_MAX
        is_tls = transport.get_extra_info("sslcontext") is not None
        transport.set_protocol(SharedBufferProtocol(self) if is_tls else self)
        shared.lingering.add(self)
        shared.context.wheel.set(self, shared.context.clock() + LINGER_S_MAX)
        if not transport.is_closing():
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Drop the bytes."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Free the connection's places: the client or the node has closed it."""
        self._shared.context.wheel.cancel(self)
        self._shared.lingering.discard(self)
        self._slot.free()
        self._accepted.closed()

    def due(self, now: float) -> float | None:  # noqa: ARG002
        """Close the connection of a client that does not close it."""
        self.end()
        return None

    def end(self) -> None:
        """Close the connection. Bytes that the client has not read are dropped."""
        (self._transport.abort if self._transport.get_write_buffer_size() else self._transport.close)()


log = logging.getLogger(__name__)

LONG_READ_BYTES = 32 << 10
SCAN_BYTES_MAX = 16 << 10
"""Bytes of publishes that are handled from a longer read before the client's turn is checked."""
CLOSE_S_MAX = 5.0
"""Longest time that a client may take to answer connection.close."""
REASON_SHOWN_MAX = 300


class AmqpConnection(WritingConnection):
    """Server side of one connection. Every method runs on the event loop's thread."""

    __slots__ = (
        "_authenticator",
        "_batch",
        "_begun",
        "_channels",
        "_closing",
        "_context",
        "_fast",
        "_handshake",
        "_shared",
        "accepted",
        "frame_bytes_max",
        "has_sent_wrong_secret",
        "is_writable",
        "live",
        "peer",
        "queue_client",
        "read_buffer",
        "reading",
        "slot",
        "targets",
    )

    def __init__(self, shared: AmqpContext, authenticator: Authenticator, accepted: AcceptedConnection) -> None:
        """Begin a connection, which the listener has counted."""
        self._context = shared.context
        self._batch = shared.context.ingest.batch
        self._fast = False
        """True while every read begins with a frame, and the client has published on an open channel."""
        self._transport: asyncio.Transport | None = None
        self.accepted = accepted
        self.read_buffer = AmqpReadBuffer(shared.context.unfinished, user_or_address(None, accepted.origin))
        self.slot = ConnectionSlot(shared.context.connection_bound, shared.context.counters)
        self.frame_bytes_max = HANDSHAKE_FRAME_BYTES_MAX
        self.has_sent_wrong_secret = False
        self.is_writable = True
        self.peer: Peer = cast(Peer, None)
        self.queue_client: QueueClient = cast(QueueClient, None)
        self.targets = Targets(shared.context.wall_clock, shared.context.pacing.budget.spend)
        self._shared = shared
        self._begun = False  # True once the protocol header came
        self._channels: Channels | None = None
        self._closing = Closing(self, self._context.ingest)
        self._authenticator = authenticator
        self._handshake: Handshake | None = None
        self.live = Liveness(self, shared)
        self.reading = Reading(shared.context, self.read_buffer, self._read_ahead, on_disk=self.live.on_disk)

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the protocol header; the listener bounds the time."""
        self._transport = cast(asyncio.Transport, transport)
        self.reading.begin(self._transport)
        self._output = Output(self._transport, self._context.writes, self, self.read_buffer.owner)
        self._context.arrived(self)
        self._shared.clients.add(self)

    def data_received(self, data: bytes) -> None:
        """Handle one read: parse all of it, gather its records, and note pending confirms."""
        at = 0
        batch = self._batch
        if self._fast and len(data) <= LONG_READ_BYTES and not batch.is_heavy:
            at = scan(data, 0, self.targets, batch, LONG_READ_BYTES, COST_MAX - batch.cost)
            if at:
                if not batch.begun:
                    batch.begin()
                self.reading.heard = batch.now
                batch.bytes += at
                if batch.bytes > TICK_BYTES_MAX:
                    batch.store()
                else:
                    batch.relieve()
                if at == len(data):
                    return
        now = self._context.clock()
        if self.reading.admits(now):
            self._read(data, now, at)
        elif self._transport is not None:
            self._fast = False
            self.read_buffer.ahead += data[at:] if at else data
            self._settle()
            self.reading.put_off()

    def falls_behind(self) -> None:
        """Stop reading from a client that does not read, and close it if that lasts for ``write_timeout_s``."""
        self.is_writable = False
        self.reading.falls_behind()
        self.live.wait()
        if self._channels is not None:
            self._channels.pause()

    def catches_up(self) -> None:
        """Resume reading and delivery for a client that has caught up."""
        self.is_writable = True
        self.reading.catches_up()
        self.live.wait()
        if self._channels is not None:
            self._channels.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection of a client that has gone, with or without connection.close."""
        if self._transport is not None:
            self.end(f"connection lost ({exc or 'closed by the client'})", logging.INFO)

    # --- for channels, handshake and back-pressure

    def send(self, data: bytes) -> None:
        """Write whole frames."""
        self.live.wrote = True
        super().send(data)

    def send_all(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write whole frames that came in parts."""
        self.live.wrote = True
        super().send_all(parts)

    def answer(self, method: Method, channel: int = 0) -> None:
        """Write one method."""
        self.send(write_method(method, channel))

    def end_channel(self, number: int) -> None:
        """Forget a channel that is closed."""
        if self._channels is not None:
            self._channels.remove(number)

    def welcome(self, peer: Peer, frame_bytes_max: int, channels_max: int, heartbeat_s: int) -> None:
        """Accept methods for channels from now on. The caller then sends connection.open-ok."""
        self.peer = peer
        self.queue_client = QueueClient(peer.owner, peer.identity)
        self.frame_bytes_max = frame_bytes_max
        self.read_buffer.belongs_to(peer.owner)
        self._output.owner = peer.owner
        self._channels = Channels(self._shared, self, channels_max)
        self._handshake = None
        self.live.begin(heartbeat_s)
        self.accepted.opened()

    def fail(self, error: AmqpError) -> None:
        """Close the connection with an exception: send it, and wait some seconds for the client's answer."""
        if self._transport is None or self._closing.is_begun:
            return
        self._context.counters.protocol_errors += 1
        self._shared.counters.amqp_connection_errors += 1
        self._batch.store()  # publishes before the error are valid
        reason, stranger_at = error.text[:REASON_SHOWN_MAX], self.accepted.origin if self.peer is None else None
        self._context.disconnect_log.closed(
            log, f"closing AMQP client {described(self)}", reason, stranger_at=stranger_at
        )
        self._closing.begin(error)

    def refuse_silently(self, reason: str) -> None:
        """Close a connection without an answer: its client is not known."""
        self._context.counters.protocol_errors += 1
        self.end(reason)

    def shut_down(self) -> None:
        """Close because the node stops: the client may come back."""
        if self._transport is None:
            return
        self._batch.store()
        if not self._closing.is_begun and self._channels is not None:
            self._closing.begin(AmqpError(ReplyCode.CONNECTION_FORCED, "the node stops"))
        self.end("the node stops", logging.INFO)

    def expel(self) -> None:
        """Close the connection of a user that is no longer admitted."""
        if self._closing.is_begun:
            return
        self._context.counters.clients_expelled += 1
        self.fail(AmqpError(ReplyCode.CONNECTION_FORCED, "the user was removed, or has another password"))

    # --- one read

    def _read_ahead(self, now: float) -> None:
        if data := self.read_buffer.take():
            self._read(data, now, 0)

    def _read(self, data: bytes, now: float, at: int) -> None:
        if self._transport is None:
            return
        self.reading.heard = now
        self._context.pacing.budget.begin(now)
        self._batch.bytes += len(data) - at
        self._output.cork()
        try:
            self._parse_read(data, at)
        except AmqpError as error:
            self._broken(error)
        except LogError as error:
            code = ReplyCode.RESOURCE_ERROR if isinstance(error, LogFull) else ReplyCode.INTERNAL_ERROR
            self.fail(AmqpError(code, str(error)))
        except Exception:
            # A fault in the node's code. Where the client waited for its turn, the caller serves other clients, too:
            # without this handler the connection would stay open and never be read again.
            log.exception("what AMQP client %s sent could not be handled", described(self))
            self._broken(AmqpError(ReplyCode.INTERNAL_ERROR, "internal error of the node; its log has the details"))
        self._batch.gathered()
        self._context.fan_out.flush()
        self._output.uncork()
        read_buffer = self.read_buffer
        if read_buffer.ahead or read_buffer.charged or read_buffer.partial or read_buffer.content_bytes:
            self._settle()
        self.reading.handled(len(data))
        self._fast = bool(self.targets) and not read_buffer.partial and not self.reading.pause & KEEPS

    def _settle(self) -> None:
        if self._transport is not None and not self.read_buffer.settle():
            self.fail(
                AmqpError(ReplyCode.RESOURCE_ERROR, "no memory for messages that are not whole (limits.unfinished)")
            )

    def _parse_read(self, data: bytes, at: int) -> None:
        read_buffer = self.read_buffer
        if read_buffer.partial:
            whole, taken = read_buffer.complete(data[at:] if at else data, self.frame_bytes_max)
            at += taken
            if whole:
                self._batch.joined_bytes += len(whole)
                self._parse(whole, 0)
        if not self.reading.pause & KEEPS:
            at = self._parse(data, at)
        if at < len(data) and self._transport is not None:
            if self.reading.pause & KEEPS:
                read_buffer.ahead = data[at:]
            else:
                read_buffer.keep(data[at:], self.frame_bytes_max)

    def _parse(self, data: bytes, at: int) -> int:
        """Handle the frames of ``data[at:]``; return the offset of the first incomplete one."""
        size, budget, batch, reading = len(data), self._context.pacing.budget, self._batch, self.reading
        if not self._begun and at < size:
            if len(data) - at < len(PROTOCOL_HEADER):
                return at
            at += self._begin(data[at : at + len(PROTOCOL_HEADER)])
        while at < size and self._transport is not None and not reading.pause & KEEPS:
            if self.targets:
                before, at = at, scan(data, at, self.targets, batch, at + SCAN_BYTES_MAX, COST_MAX - batch.cost)
                if at > before:
                    batch.relieve()
                    if at < size and not budget.spend(0):
                        reading.end_turn()
                    continue
            found = read_frame(data, at, self.frame_bytes_max)
            if found is None:
                break
            frame, at = found
            self._context.counters.packets_received += 1
            self._handle(frame)
            batch.relieve()
            if not budget.spend() and at < size:
                reading.end_turn()
        return at

    def _begin(self, header: bytes) -> int:
        self._begun = True
        if header != PROTOCOL_HEADER:
            # "the server MUST send a valid protocol header, then close the connection", 2.2.4.
            self.send(PROTOCOL_HEADER)
            self._output.uncork()
            self.end(f"it asks for {header!r}, which is not AMQP 0-9-1")
            return len(header)
        self._handshake = Handshake(self._shared, self._authenticator, self, self.live, self._transport)
        self._handshake.begin()
        return len(header)

    def _handle(self, frame: Frame) -> None:
        kind, number, payload = frame
        if kind == HEARTBEAT:
            if number or payload:
                raise AmqpError(ReplyCode.FRAME_ERROR, "a heartbeat frame is empty and on channel 0")
            return
        if self._closing.is_begun:
            self._closing.handle(frame)
        elif number:
            if self._channels is None:
                raise AmqpError(ReplyCode.CHANNEL_ERROR, "the connection is not open yet")
            self._channels.handle(frame)
        elif kind == METHOD:
            self._on_method(read_method(payload))
        else:
            raise AmqpError(ReplyCode.CHANNEL_ERROR, f"a frame of type {kind} on channel 0")

    def _on_method(self, method: Method) -> None:
        if isinstance(method, commands.Connection.Close):
            self._closing.asked()
        elif self._handshake is not None:
            self._handshake.handle(method)
        elif isinstance(method, commands.Connection.UpdateSecret):
            secret = method.new_secret
            data = secret.encode() if isinstance(secret, str) else secret
            self.reading.hold(Pause.RESULT)
            self._context.run(check_secret(self._authenticator, self, self._transport, data))
        elif method.index >> 16 == commands.Connection.index >> 16:
            raise AmqpError(ReplyCode.COMMAND_INVALID, "the connection is open already", method.index)
        else:
            raise AmqpError(ReplyCode.COMMAND_INVALID, "channel 0 is for the connection alone", method.index)

    # --- the end

    def _broken(self, error: AmqpError) -> None:
        if self._handshake is not None:
            self._handshake.failed(error)
        else:
            self.fail(error)

    def await_last_word(self) -> None:
        """Resume reading at once, and wait some seconds for the client's answer to connection.close."""
        self._fast = False
        self.read_buffer.content_bytes = 0
        self.live.closes(CLOSE_S_MAX)
        self.reading.last_words()

    def leave_channels(self) -> None:
        """End all channels."""
        channels, self._channels = self._channels, None
        self.targets.clear()
        if channels is not None:
            channels.close()

    def end(self, reason: str, level: int = logging.WARNING, *, lingers: bool = False) -> None:
        """Close the transport; once. Bytes that the socket has not taken are dropped where the client does not read.

        Args:
            lingers: leave the closing to the client, for some seconds.
        """
        if self._transport is None:
            return
        self._batch.store()
        transport, self._transport, self._fast = self._transport, None, False
        self.reading.end()
        stranger_at = self.accepted.origin if self.peer is None else None
        self._context.disconnect_log.closed(log, f"closed AMQP client {described(self)}", reason, level, stranger_at)
        if self._handshake is not None:
            self._handshake.cancel()
        self.leave_channels()
        if self.queue_client is not None:
            self._context.routing.remembering.discard(self.targets)
            self._shared.queues.topology.remembering.discard(self.targets)
            self._shared.queues.disconnects.begin(self.queue_client)
        self.read_buffer.clear()
        self.live.end()
        if self.peer is not None:
            self._context.routing.leave(self.peer.routes)
        self._shared.clients.discard(self)
        self._context.left(self)
        if lingers and not transport.is_closing():  # a closing transport may not call connection_lost again
            if not self._output.finish():
                self._output.drop()
            Lingering(self._shared, transport, self.accepted, self.slot)
            return
        self.slot.free()
        self.accepted.closed()
        self.shut(transport, drains=self.is_writable)
