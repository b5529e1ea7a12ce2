"""The HTTP request with which a WebSocket begins, and its answer (RFC 6455 section 4.2). No I/O."""

from __future__ import annotations

import binascii
import contextlib
from base64 import b64decode, b64encode
from hashlib import sha1
from urllib.parse import urlsplit

from edge_node.listeners.settings import WebSocketSettings

PROTOCOLS = ("mqtt", "mqttv3.1")
"""The subprotocol [MQTT-6.0.0-3], and what clients of MQTT 3.1 ask for."""
HEAD_BYTES_MAX = 8 << 10
"""Of a request without its body; browsers send some 500 bytes, and cookies."""
END = b"\r\n\r\n"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_STATUS = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
}


class Refused(Exception):
    """The request is not one that may become a WebSocket of MQTT. ``answer`` says so in HTTP."""

    def __init__(self, status: int, reason: str, field: str = "") -> None:
        """Refuse.

        Args:
            field: a header line that the answer must have.
        """
        super().__init__(reason)
        self.status = status
        self._field = f"{field}\r\n" if field else ""

    @property
    def answer(self) -> bytes:
        """The whole response; the connection is closed after it."""
        body = f"{self}\n".encode()
        head = (
            f"HTTP/1.1 {self.status} {_STATUS[self.status]}\r\n{self._field}Connection: close\r\n"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def upgrade(head: bytes, settings: WebSocketSettings) -> bytes:
    """The response that makes a connection a WebSocket.

    Args:
        head: the request up to and without its empty line, at most ``HEAD_BYTES_MAX`` bytes.

    Raises:
        Refused: it is to be closed instead.
    """
    fields = _fields(head, settings)
    if "websocket" not in _tokens(fields, "upgrade") or "upgrade" not in _tokens(fields, "connection"):
        raise Refused(426, "this is MQTT over WebSocket", "Upgrade: websocket")
    if _one(fields, "sec-websocket-version") != "13":
        raise Refused(400, "expected version 13 of WebSocket", "Sec-WebSocket-Version: 13")
    key = _one(fields, "sec-websocket-key")
    if not _is_key(key):
        raise Refused(400, "expected a Sec-WebSocket-Key of 16 bytes in base64")
    protocol = next((each for each in _tokens(fields, "sec-websocket-protocol") if each in PROTOCOLS), None)
    if protocol is None:
        raise Refused(400, "expected the WebSocket subprotocol mqtt [MQTT-6.0.0-3]")
    origin = _one(fields, "origin")
    if origin and not _is_welcome(origin, _one(fields, "host"), settings.origins):
        raise Refused(403, "pages of this origin may not connect; `origins` says which may")
    accept = b64encode(sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    ).encode()


def _fields(head: bytes, settings: WebSocketSettings) -> dict[str, list[str]]:
    """Header fields by their names in lower case, once the first line is what it should be."""
    first, *lines = head.decode("latin-1").split("\r\n")
    match first.split(" "):
        case ["GET", target, "HTTP/1.1"]:
            pass
        case [_, _, "HTTP/1.1" | "HTTP/1.0"]:
            raise Refused(405, "expected GET with HTTP/1.1", "Allow: GET")
        case _:
            raise Refused(400, "this is no HTTP request")
    if target.partition("?")[0] != settings.path:
        raise Refused(404, f"MQTT is at {settings.path}")
    fields: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise Refused(400, "a header line without a name")
        fields.setdefault(name.lower(), []).append(value.strip(" \t"))
    return fields


def _tokens(fields: dict[str, list[str]], name: str) -> list[str]:
    """The words of a list that may be in several fields. Those that mean HTTP itself are compared in lower case."""
    words = [word.strip(" \t") for value in fields.get(name, ()) for word in value.split(",")]
    return words if name == "sec-websocket-protocol" else [word.lower() for word in words]


def _one(fields: dict[str, list[str]], name: str) -> str:
    values = fields.get(name, [""])
    if len(values) > 1:
        raise Refused(400, f"more than one {name}")
    return values[0]


def _is_key(key: str) -> bool:
    try:
        return len(b64decode(key.encode("latin-1"), validate=True)) == 16
    except binascii.Error:
        return False


def _is_welcome(origin: str, host: str, origins: tuple[str, ...] | None) -> bool:
    """Whether pages of an origin may connect: otherwise any page in a browser could speak to a local node."""
    if origins is not None:
        return "*" in origins or origin in origins
    with contextlib.suppress(ValueError):
        return urlsplit(origin).hostname == urlsplit(f"//{host}").hostname
    return False
