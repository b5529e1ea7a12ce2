"""Events over WebSocket (RFC 6455). The library interprets the frames."""

from __future__ import annotations

import logging
import struct

from websockets.datastructures import Headers
from websockets.frames import CloseCode
from websockets.http11 import Request as WebSocketRequest
from websockets.protocol import SEND_EOF, Protocol, Side, State
from websockets.server import ServerProtocol

from weft.edge_node.servers.http.request import Problem, Request

_TEXT = 0x81
"""FIN and the opcode."""
RECEIVED_BYTES_MAX = 4096
"""Longest message that a client may send; its content is ignored."""
_silent = logging.getLogger(f"{__name__}.library")
_silent.setLevel(logging.CRITICAL + 1)


def upgrade(request: Request) -> bytes:
    """Return the answer that makes a connection a WebSocket.

    Raises:
        Problem: the request is not a valid upgrade.
    """
    headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.fields])
    library = ServerProtocol(logger=_silent)
    response = library.accept(WebSocketRequest(request.target.decode("latin-1"), headers))
    if response.status_code != 101:
        raise Problem(
            response.status_code,
            f"no WebSocket: {library.handshake_exc}; see RFC 6455",
            closes=True,
            fields=(("Sec-WebSocket-Version", "13"), ("Upgrade", "websocket")),
        )
    return response.serialize()


def _head(size: int) -> bytes:
    """Return the head of a whole text message of a server (section 5.2)."""
    if size < 126:
        return bytes((_TEXT, size))
    return struct.pack(">BBH", _TEXT, 126, size) if size < 1 << 16 else struct.pack(">BBQ", _TEXT, 127, size)


class WebSocketWrapping:
    """Events as text messages."""

    def __init__(self) -> None:
        self._library = Protocol(Side.SERVER, max_size=RECEIVED_BYTES_MAX, logger=_silent)

    def event(self, kind: str, data: bytes, number: int | None = None) -> list[bytes]:  # noqa: ARG002
        """Return one message in parts: the event's object, with its kind unless it is a record or message."""
        if kind not in ("record", "message"):
            data = b'{"event":"%b",%b' % (kind.encode(), data[1:])
        if self._library.state is not State.OPEN:
            return []
        # Not by the library, which would copy an object that many clients share.
        return [_head(len(data)), data]

    def idle(self) -> bytes:
        """Return a ping."""
        self._library.send_ping(b"")
        return self._taken()

    def received(self, data: bytes) -> tuple[bytes, bool]:
        """Handle the client's input. Return the answer to it, and whether the connection must be closed."""
        if self._library.state is State.CLOSED:
            return b"", True
        self._library.receive_data(data)
        self._library.events_received()
        writes = self._library.data_to_send()
        return b"".join(writes), SEND_EOF in writes

    def end(self) -> bytes:
        """Return the closing frame."""
        if self._library.state is not State.OPEN:
            return b""
        self._library.send_close(CloseCode.GOING_AWAY)
        return self._taken()

    def forget(self) -> None:
        """Break a reference cycle, which otherwise only a full garbage collection would."""
        self._library.parser.close()

    def _taken(self) -> bytes:
        return b"".join(self._library.data_to_send())
