"""The HTTP request with which a WebSocket begins (RFC 6455 section 4.2), and the checks of it. No I/O.

The library reads the request and answers it; this module adds checks beyond the RFC: path, subprotocol and origin.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from weft.bounds.browsers import is_own_name, parse_origin, served_origin
from weft.edge_node.servers.listeners.settings import WebSocketSettings

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
    "Connection", "Host", "Origin", "Upgrade", "Sec-WebSocket-Key", "Sec-WebSocket-Protocol", "Sec-WebSocket-Version",
)  # fmt: skip
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
        raise _refused(library, HTTPStatus.BAD_REQUEST, "this is no HTTP request for a WebSocket")
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
