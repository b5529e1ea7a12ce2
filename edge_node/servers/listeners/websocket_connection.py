"""A WebSocket in the form of any other transport. The library interprets its bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import SEND_EOF, Protocol, Side, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from weft.bounds import Owner, RoundRobin, Shares, address_owner
from weft.bounds.browsers import is_own_name, parse_origin, served_origin
from weft.edge_node.servers.listeners.settings import WebSocketSettings
from weft.network.admission import Admission, NetworkConnection

# The HTTP request with which a WebSocket begins (RFC 6455 section 4.2), and the checks of it. No I/O.
#
# The library reads the request and answers it; this module adds checks beyond the RFC: path, subprotocol and origin.

PROTOCOLS = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
"""Subprotocols: MQTT's [MQTT-6.0.0-3], and the one that clients of MQTT 3.1 request; the first one is preferred."""
HEAD_BYTES_MAX = 8 << 10
"""Longest request without its body; browsers send some 500 bytes, and cookies. The library allows 128 lines of it."""
END = b"\r\n\r\n"
REASON_LENGTH_MAX = 200
"""Longest reason in a log line: the library quotes the client's input."""

silent = logging.getLogger(f"{__name__}.library")
"""Logger for the library. It would log each connection, and a traceback for invalid requests of strangers; the node
counts and logs these itself."""
silent.setLevel(logging.CRITICAL + 1)

_READ = (
    "Connection",
    "Host",
    "Origin",
    "Upgrade",
    "Sec-WebSocket-Key",
    "Sec-WebSocket-Protocol",
    "Sec-WebSocket-Version",
)
"""Header fields that matter here. They are ASCII; cookies, which are ignored, may have any bytes."""


class UpgradeRefused(Exception):
    """A refused request for a WebSocket of MQTT. ``answer`` is the response in HTTP."""

    def __init__(self, response: Response, reason: str) -> None:
        """Refuse for a reason that may be logged."""
        super().__init__(f"{response.status_code}, {reason[:REASON_LENGTH_MAX]}")
        self.status = response.status_code
        response.headers["Sec-WebSocket-Version"] = "13"  # RFC 6455 section 4.4
        self.answer = response.serialize()
        """Whole response; the connection is closed after it."""


def upgrade(head: bytes, settings: WebSocketSettings) -> bytes:
    """Return the response that makes a connection a WebSocket without extensions.

    Args:
        head: the request with its empty line; nothing may follow.

    Raises:
        Refused: the connection must be closed instead.
    """
    library = ServerProtocol(subprotocols=PROTOCOLS, logger=silent)
    library.receive_data(head)
    request = next(iter(library.events_received()), None)
    if not isinstance(request, Request):
        raise _refused(library, HTTPStatus.BAD_REQUEST, "this is not an HTTP request for a WebSocket")
    if request.path.partition("?")[0] != settings.path:
        raise _refused(library, HTTPStatus.NOT_FOUND, f"MQTT is at {settings.path}")
    if not all(value.isascii() for name in _READ for value in request.headers.get_all(name)):
        raise _refused(library, HTTPStatus.BAD_REQUEST, "header fields of the upgrade are not ASCII")
    response = library.accept(request)
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        raise UpgradeRefused(response, str(library.handshake_exc))
    if not _is_welcome(request, settings):
        reason = "pages of this origin may not connect. Add it to `websocket.origins` of the listener if they should"
        raise _refused(library, HTTPStatus.FORBIDDEN, reason)
    return response.serialize()


def too_long() -> UpgradeRefused:
    """Refuse a request that has not ended after ``HEAD_BYTES_MAX`` bytes."""
    reason = f"a request of more than {HEAD_BYTES_MAX} bytes"
    return _refused(ServerProtocol(logger=silent), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)


def _refused(library: ServerProtocol, status: HTTPStatus, reason: str) -> UpgradeRefused:
    return UpgradeRefused(library.reject(status, f"{reason}\n"), reason)


def _is_welcome(request: Request, settings: WebSocketSettings) -> bool:
    """Return whether pages of an origin may connect: otherwise any page in a browser could connect to a local node."""
    text, hosts = request.headers.get("Origin"), request.headers.get_all("Host")
    if not text:
        return True
    origin = parse_origin(text)
    if settings.origins is not None:
        # Origins of other schemes, such as those of browser extensions, are compared as text.
        named = (each == text or (origin is not None and parse_origin(each) == origin) for each in settings.origins)
        return "*" in settings.origins or any(named)
    if origin is None or origin != served_origin(settings.scheme, hosts):
        return False
    # If a stranger's name resolves to this machine, its page and the listener have the same origin (DNS rebinding).
    return not settings.is_loopback or is_own_name(origin.host)


CLOSE_TIMEOUT_S = 2.0
"""Longest time that a client may take to answer the node's closing frame, and to read the bytes before it."""

PIECE_BYTES = 2048
"""Bytes that the library interprets at once: 341 frames at most, a millisecond."""
# A turn and no rate: devices that acknowledge quickly send thousands of small messages a second, each in a frame of
# its own.
FRAMES_AT_ONCE = 64
"""Frames of one client after which others have their turn. One read has room for 43,690 pings, 0.15 s of the loop."""
WAITING_BYTES_MAX, WAITING_BYTES_OF_ONE_MAX = 64 << 20, 16 << 20
"""Maximum bytes that wait for their clients' turns, of all clients of a listener and of those of one address."""

_BINARY, _CONTINUATION, _TEXT = Opcode.BINARY, Opcode.CONT, Opcode.TEXT


@dataclass(frozen=True, slots=True)
class WebSocketContext:
    """State shared by all connections of a listener."""

    settings: WebSocketSettings
    connect: Callable[[asyncio.Transport, NetworkConnection], asyncio.Protocol]
    """Function that creates the MQTT connection of an open WebSocket."""
    admission: Admission
    opened: Callable[[WebSocketTransport], None]
    """Function called when a connection was made, before its upgrade."""
    ended: Callable[[WebSocketTransport], None]
    round_robin: RoundRobin = field(default_factory=lambda: RoundRobin(lambda: None))
    """Turns of the clients that sent more frames than are handled at once."""
    waiting: Shares[Owner] = field(default_factory=lambda: Shares(WAITING_BYTES_MAX, WAITING_BYTES_OF_ONE_MAX))
    """Bytes that wait for these turns."""


class WebSocketTransport(asyncio.Transport, asyncio.Protocol):
    """A connection: the protocol of its socket, and the transport of its MQTT side.

    Written bytes go out as binary messages [MQTT-6.0.0-1]. Received bytes are a stream: packets need not begin with
    messages [MQTT-6.0.0-2], so fragments are passed on as they come.
    """

    __slots__ = (
        "_charged",
        "_connection",
        "_head",
        "_is_paused",
        "_library",
        "_protocol",
        "_rest",
        "_shared",
        "_stopped",
        "_timer",
        "_transport",
        "_waits",
    )

    def __init__(self, shared: WebSocketContext, connection: NetworkConnection) -> None:
        super().__init__()
        self._shared = shared
        self._connection = connection
        self._transport: asyncio.Transport
        self._head = b""
        """Received part of the HTTP request, until it is complete."""
        self._rest = b""
        """Received bytes that wait for the client's turn. Nothing more is read meanwhile."""
        self._charged: tuple[Owner, int] | None = None
        """The owner that they are charged to, and their number."""
        self._waits = False
        """True from the end of a turn to the next one."""
        self._is_paused = False
        """True while the MQTT side reads nothing."""
        self._stopped = False
        """True while nothing is read from the socket."""
        self._library: Protocol | None = None
        """Library object from the upgrade on, a new one: the handshake's would keep the request, some 5 KB."""
        self._protocol: asyncio.Protocol | None = None
        """Protocol that gets the bytes, from the upgrade on."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer that runs from the first closing frame on, the node's or the client's."""

    # --- asyncio.Protocol, of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request; the admission bounds the wait."""
        self._transport = cast(asyncio.Transport, transport)
        self._shared.opened(self)

    def data_received(self, data: bytes) -> None:
        """Handle one read."""
        if self._library is None:
            if not self._transport.is_closing():
                self._read_head(data)
        else:
            self._rest += data
            if not self._waits:
                self._resume()

    def pause_writing(self) -> None:
        """Pause the MQTT side: the client does not read."""
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Resume the MQTT side."""
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the socket."""
        self._shared.ended(self)
        if self._timer is not None:
            self._timer.cancel()
        self._rest = b""
        self._charge()
        library, self._library = self._library, None
        if library is not None:
            library.parser.close()  # the two hold each other, a cycle that only a full garbage collection would free
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        else:
            self._connection.closed()

    # --- asyncio.Transport, of the MQTT connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data as one message. Nothing is sent once either side has closed."""
        library = self._library
        if library is not None and library.state is State.OPEN and data:
            library.send_binary(bytes(data))
            self._send(library)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the socket has not taken."""
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the buffer sizes that pause and resume the protocol's writing."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return (low, high) of the write buffer."""
        return self._transport.get_write_buffer_limits()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information from the socket beneath."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or being closed."""
        return self._timer is not None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Read nothing until ``resume_reading``."""
        self._is_paused = True
        self._stop()

    def resume_reading(self) -> None:
        """Read again."""
        self._is_paused = False
        self._read_on()

    def close(self) -> None:
        """Send the waiting bytes and a closing frame; then wait a little for the client's."""
        self._close(CloseCode.NORMAL_CLOSURE)

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass bytes to another protocol from now on."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that gets the bytes."""
        assert self._protocol is not None
        return self._protocol

    # --- inside

    def go_away(self) -> None:
        """Close because the listener ends."""
        self._close(CloseCode.GOING_AWAY) if self._library is not None else self._transport.abort()

    def _read_head(self, data: bytes) -> None:
        head, end, rest = (self._head + data).partition(END)
        try:
            if len(head) > HEAD_BYTES_MAX:
                raise too_long()
            if not end:
                self._head = head
                return
            answer = upgrade(head + end, self._shared.settings)
        except UpgradeRefused as error:
            admission = self._shared.admission
            admission.listener_counters.handshakes_failed += 1
            admission.complain("websocket", "no WebSocket with %s: %s", self._connection.name, error)
            self._transport.write(error.answer)
            self._transport.close()
            return
        self._head = b""
        self._transport.write(answer)
        bytes_max = self._shared.admission.limits.websocket_message_bytes_max
        self._library = Protocol(Side.SERVER, max_size=bytes_max, logger=silent)
        self._protocol = self._shared.connect(self, self._connection)
        self._protocol.connection_made(self)
        if rest:
            self.data_received(rest)

    def _resume(self) -> None:
        """Interpret received bytes for one turn."""
        self._waits = False
        at, frames = 0, 0
        while (library := self._library) is not None and at < len(self._rest) and frames < FRAMES_AT_ONCE:
            piece = self._rest[at : at + PIECE_BYTES]
            at += len(piece)
            frames += self._read(library, piece) if self._timer is None else self._read_to_end(library, piece)
        self._rest = self._rest[at:]
        self._read_on()

    def _read_on(self) -> None:
        """Read more; before that, interpret what waits, after the turns of others."""
        if not self._charge():
            self._complain("more small frames than may wait for its turns")
            self._rest = b""
            self._transport.abort()
        elif self._rest:
            self._stop()
            if not self._waits:
                self._waits = True
                self._shared.round_robin.wait(address_owner(self._connection.origin), self._resume)
        elif self._stopped and not (self._is_paused and self._timer is None):
            self._stopped = False
            self._transport.resume_reading()

    def _charge(self) -> bool:
        """Charge the client's address with the waiting bytes. Return whether it may have so many."""
        waiting = self._shared.waiting
        if self._charged is not None:
            waiting.free(*self._charged)
            self._charged = None
        if not self._rest:
            return True
        charged = (address_owner(self._connection.origin), len(self._rest))
        if not waiting.take(*charged):
            return False
        self._charged = charged
        return True

    def _stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self._transport.pause_reading()

    def _read(self, library: Protocol, data: bytes) -> int:
        """Pass on received messages, then send pongs, and close if the client did or broke the protocol. Return the
        number of frames."""
        library.receive_data(data)
        pieces, frames = [], cast(list[Frame], library.events_received())
        for frame in frames:
            opcode = frame.opcode
            if opcode is _BINARY or opcode is _CONTINUATION:
                pieces.append(frame.data)
            elif opcode is _TEXT:
                self._complain("a text message; MQTT needs binary ones [MQTT-6.0.0-1]")
                library.fail(CloseCode.UNSUPPORTED_DATA)
                break
        else:
            if library.parser_exc is not None:
                self._complain(str(library.parser_exc))
        received = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if received and self._protocol is not None:
            self._protocol.data_received(cast(bytes, received))
        self._send(library)
        return len(frames)

    def _read_to_end(self, library: Protocol, data: bytes) -> int:
        """Look for the client's closing frame; pings are not answered any more. Return the number of frames."""
        library.receive_data(data)
        frames = library.events_received()
        if SEND_EOF in library.data_to_send():
            self._transport.close()
        return len(frames)

    def _send(self, library: Protocol) -> None:
        writes = library.data_to_send()
        if writes:
            self._transport.write(writes[0] if len(writes) == 1 else b"".join(writes))
            if SEND_EOF in writes:
                self._transport.close()
                self._begin_to_end()

    def _close(self, code: CloseCode) -> None:
        library = self._library
        if library is None or library.state is not State.OPEN or self._transport.is_closing():
            return
        library.send_close(code)
        self._send(library)
        self._begin_to_end()
        self._read_on()

    def _begin_to_end(self) -> None:
        """Bound the wait for the client: to read the remaining bytes, and to send its closing frame."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def _complain(self, what: str) -> None:
        self._shared.admission.complain("frame", "closed WebSocket of %s: %s", self._connection.name, what)
