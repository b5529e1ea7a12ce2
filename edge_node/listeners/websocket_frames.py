"""Frames of a WebSocket, seen from the server (RFC 6455 section 5). No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterator

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
CONTROL_BYTES_MAX = 125
HEAD_BYTES_MAX = 14
_FINAL, _RESERVED, _MASKED = 0x80, 0x70, 0x80

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED_DATA, TOO_BIG = 1000, 1001, 1002, 1003, 1009
"""Why a WebSocket is closed (section 7.4.1)."""


class BadFrame(Exception):
    """The client broke the protocol, or wants too much. ``code`` is what the closing frame says."""

    def __init__(self, reason: str, code: int = PROTOCOL_ERROR) -> None:
        """Say what is wrong."""
        super().__init__(reason)
        self.code = code


class Frames:
    """What one client sends: its frames, put together to messages of at most ``bytes_max`` bytes."""

    __slots__ = ("_bytes_max", "_head", "_left", "_mask", "_message", "_opcode", "_part")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._head = b""
        """The beginning of a frame's head that a read ended in."""
        self._opcode = -1
        """Of the frame whose payload is still to come, its final bit included; -1 between frames."""
        self._left = 0
        """Bytes of that payload."""
        self._mask = b""
        """With its next byte first."""
        self._part: bytes | bytearray | None = None
        """What there is of that payload."""
        self._message: bytearray | None = None
        """Fragments of a message so far; None between messages."""

    def receive(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Read on.

        Yields:
            (opcode, payload) of whole binary messages and of control frames, in the order in which they end.

        Raises:
            BadFrame: the connection is to be closed; what was yielded before is good.
        """
        at = 0
        while at < len(data):
            if self._opcode < 0:
                at = self._begin(data, at)
                if self._opcode < 0:
                    return
            piece = data[at : at + self._left]
            at += len(piece)
            self._take(piece)
            if not self._left:
                yield from self._end()

    def _begin(self, data: bytes, at: int) -> int:
        """Take a frame's head, or keep what there is of it; returns where its payload begins."""
        kept = len(self._head)
        head = self._head + data[at : at + HEAD_BYTES_MAX - kept]
        size = _head_bytes(head)
        if size > len(head):
            self._head = head
            return len(data)
        first, second = head[0], head[1]
        length = second & 127
        if length == 126:
            (length,) = struct.unpack_from("!H", head, 2)
        elif length == 127:
            (length,) = struct.unpack_from("!Q", head, 2)
        self._check(first, second, length)
        self._opcode, self._left, self._mask, self._head = first, length, head[size - 4 : size], b""
        return at + size - kept

    def _check(self, first: int, second: int, length: int) -> None:
        opcode = first & 15
        if first & _RESERVED:
            raise BadFrame("a frame with reserved bits")
        if not second & _MASKED:
            raise BadFrame("a client's frame without a mask")
        if opcode in (CLOSE, PING, PONG):
            if length > CONTROL_BYTES_MAX or not first & _FINAL:
                raise BadFrame("a control frame that is too long, or a fragment")
        elif opcode == TEXT:
            raise BadFrame("a text message; MQTT comes in binary ones [MQTT-6.0.0-1]", UNSUPPORTED_DATA)
        elif opcode not in (BINARY, CONTINUATION) or (opcode == BINARY) != (self._message is None):
            raise BadFrame(f"a frame with opcode {opcode} where none may be")
        elif length + len(self._message or b"") > self._bytes_max:
            raise BadFrame(f"a message over {self._bytes_max} bytes", TOO_BIG)

    def _take(self, piece: bytes) -> None:
        mask = self._mask
        if mask != b"\0\0\0\0" and piece:
            size = len(piece)
            repeated = (mask * (size // 4 + 1))[:size]
            masked = int.from_bytes(piece, "little") ^ int.from_bytes(repeated, "little")
            piece = masked.to_bytes(size, "little")
            turn = size % 4
            self._mask = mask[turn:] + mask[:turn]
        self._left -= len(piece)
        if self._part is None:
            self._part = piece if not self._left else bytearray(piece)
        else:
            self._part += piece

    def _end(self) -> Iterator[tuple[int, bytes]]:
        first, payload = self._opcode, self._part or b""
        self._opcode, self._part = -1, None
        opcode = first & 15
        if opcode in (CLOSE, PING, PONG):
            yield opcode, bytes(payload)
            return
        if self._message is not None:
            self._message += payload
            payload = self._message
        if first & _FINAL:
            self._message = None
            yield BINARY, bytes(payload)
        else:
            self._message = bytearray(payload) if self._message is None else self._message


def frame(opcode: int, payload: bytes) -> bytes:
    """One frame of a server, which is a whole message."""
    length = len(payload)
    if length < 126:
        head = struct.pack("!BB", _FINAL | opcode, length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", _FINAL | opcode, 126, length)
    else:
        head = struct.pack("!BBQ", _FINAL | opcode, 127, length)
    return head + payload


def closing(code: int) -> bytes:
    """The frame that says that no other follows."""
    return frame(CLOSE, struct.pack("!H", code))


def _head_bytes(head: bytes) -> int:
    """How long a head is that begins so, mask included; more than there is where that is not known yet."""
    if len(head) < 2:
        return HEAD_BYTES_MAX
    extended = {126: 2, 127: 8}.get(head[1] & 127, 0)
    return 2 + extended + (4 if head[1] & _MASKED else 0)
