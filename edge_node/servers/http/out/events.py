"""Records and live messages as JSON objects for browsers, in either of two wrappings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from weft.edge_node.subscriptions.message import Message
from weft.protocols.batch import HeaderPairs, Record

LONG_BYTES = 64 << 10
"""Length from which on an object is kept for at most ``KEPT_S``."""
KEPT_S = 1.0
_encode = msgspec.json.encode


class Wrapping(Protocol):
    """A form of events: server-sent events, or messages of a WebSocket."""

    def event(self, kind: str, data: bytes, number: int | None = None) -> list[bytes]:
        """Return one event in parts, one of which is ``data`` itself.

        Args:
            kind: ``record``, ``gap``, ``lane``, ``message`` or ``dropped``.
            data: JSON object, without line breaks.
            number: number at which a client resumes after it; None to resume at the earlier one.
        """
        ...

    def idle(self) -> bytes:
        """Return the bytes that show the client, and proxies, that the connection is alive."""
        ...

    def end(self) -> bytes:
        """Return the bytes that end the events."""
        ...


class ServerSent:
    """Server-sent events (HTML, section 9.2).

    Each is a chunk of its own (RFC 9112, 7.1): a client that reads in blocks shows an event when its chunk is there,
    and without chunks only after later events have filled its block.
    """

    def __init__(self, *, is_chunked: bool) -> None:
        """Choose the form; a client of HTTP/1.0 gets no chunks."""
        self._is_chunked = is_chunked

    def greeting(self, retry_ms: int) -> bytes:
        """Return the first bytes: the time that a client waits before it reconnects."""
        return self._piece(b"retry: %d\n\n" % retry_ms)

    def event(self, kind: str, data: bytes, number: int | None = None) -> list[bytes]:
        """Return one event in parts; a ``record`` has the default type of events in a browser."""
        head = b"" if number is None else b"id: %d\n" % number
        if kind not in ("record", "message"):
            head += f"event: {kind}\n".encode()
        head += b"data: "
        if not self._is_chunked:
            return [head, data, b"\n\n"]
        return [b"%x\r\n%b" % (len(head) + len(data) + 2, head), data, b"\n\n\r\n"]

    def idle(self) -> bytes:
        """Return a comment."""
        return self._piece(b": alive\n\n")

    def end(self) -> bytes:
        """Return the last chunk."""
        return b"0\r\n\r\n" if self._is_chunked else b""

    def _piece(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data


class EventObjects:
    """Encoder of the objects; consecutive clients share an object."""

    def __init__(self) -> None:
        self._record: tuple[int, int] | None = None
        """Stream and number of the latest object's record."""
        self._message: Message | None = None
        self._object = b""
        self._timer: asyncio.TimerHandle | None = None

    def of_record(self, stream: int, record: Record) -> bytes:
        """Return the object of a stream's record."""
        if self._record != (stream, record.seq):
            self._keep(record_event(record), (stream, record.seq), None)
        return self._object

    def of_message(self, message: Message) -> bytes:
        """Return the object of a live message."""
        if self._message is not message:
            self._keep(message_event(message), None, message)
        return self._object

    def _keep(self, made: bytes, record: tuple[int, int] | None, message: Message | None) -> None:
        self._object, self._record, self._message = made, record, message
        if len(made) > LONG_BYTES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_S, self._forget)

    def _forget(self) -> None:
        self._timer = None
        self._object, self._record, self._message = b"", None, None


def record_event(record: Record) -> bytes:
    """Return the object of a record."""
    fields: dict[str, Any] = {"seq": record.seq, "time": rfc3339(record.time), "key": record.key.decode()}
    return _with_content(fields, record.payload, record.headers)


def message_event(message: Message) -> bytes:
    """Return the object of a live message."""
    fields: dict[str, Any] = {"topic": message.topic.decode()}
    if message.retain:
        fields["retain"] = True
    return _with_content(fields, message.payload, message.headers)


def rfc3339(time_ns: int) -> str:
    """Return a time in UTC, to the nanosecond."""
    second, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _with_content(fields: dict[str, Any], payload: bytes, headers: HeaderPairs) -> bytes:
    try:
        fields["payload"] = payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = payload
    if headers:
        fields["headers"] = _headers(headers)
    return _encode(fields)


def _headers(headers: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return headers by name; repeated headers as lists."""
    found: dict[str, list[Any]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}
