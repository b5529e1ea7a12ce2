"""Bytes before an AMQP 1.0 client's ``open``: protocol headers and SASL (part 5 of the specification).

Proton checks a password while it handles its frame. A node checks passwords in threads, one after the other, so SASL is
handled here, and the engine gets the connection afterwards.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from weft.protocols.amqp1 import types
from weft.protocols.amqp1.types import Described, decode, described, encode
from weft.protocols.errors import Corrupt

AMQP: Final = b"AMQP\0\1\0\0"
"""Protocol header of AMQP 1.0."""
SASL: Final = b"AMQP\3\1\0\0"
"""Protocol header of the SASL layer before it."""
FRAME_BYTES_MAX: Final = 4096
"""Longest frame before the client has logged in. Each side must accept 512 bytes (section 5.3.1)."""
HEADER_BYTES: Final = 8

_INIT: Final = 0x41
_AMQP_FRAME, _SASL_FRAME = 0, 1


class SaslInit(NamedTuple):
    """The client's choice of a mechanism, with its first response."""

    mechanism: str
    response: bytes


class Plain(NamedTuple):
    """Response of the mechanism PLAIN (RFC 4616)."""

    username: str
    password: bytes


def frame_size(data: bytes | bytearray, at: int, size_max: int) -> int | None:
    """Return the length of the frame at ``data[at:]``; None while its length is incomplete.

    Raises:
        Corrupt: it is longer than ``size_max``, or shorter than its header.
    """
    if len(data) - at < 4:
        return None
    size = int.from_bytes(data[at : at + 4], "big")
    if not HEADER_BYTES <= size <= size_max:
        raise Corrupt(f"a frame of {size} bytes; expected {HEADER_BYTES} to {size_max}")
    return size


def sasl_init(frame: bytes) -> SaslInit:
    """Decode the only SASL frame of a client with these mechanisms.

    Raises:
        Corrupt: it is another frame, or not a frame.
    """
    offset = frame[4] * 4
    if frame[5] != _SASL_FRAME or offset < HEADER_BYTES or offset > len(frame):
        raise Corrupt("expected a SASL frame")
    value, _ = decode(frame, offset)
    if not isinstance(value, Described) or value.descriptor not in (_INIT, "amqp:sasl-init:list"):
        raise Corrupt("expected sasl-init")
    found: list[Any] = value.value if isinstance(value.value, list) else []
    mechanism, response = (*found, None, None)[:2]
    if not isinstance(mechanism, str) or not isinstance(response, bytes | None):
        raise Corrupt("sasl-init without a mechanism")
    return SaslInit(mechanism, response or b"")


def plain(response: bytes) -> Plain:
    """Decode user name and password.

    Raises:
        Corrupt: they do not have the form of PLAIN, or the client wants to act for another user.
    """
    parts = response.split(b"\0")
    if len(parts) != 3 or not parts[1]:
        raise Corrupt("a response of PLAIN has a user name and a password")
    try:
        other, username = parts[0].decode(), parts[1].decode()
    except UnicodeDecodeError:
        raise Corrupt("a user name is not in UTF-8") from None
    if other not in ("", username):
        raise Corrupt("no user may act for another")
    return Plain(username, parts[2])


def mechanisms(names: list[str]) -> bytes:
    """Encode the frame that offers mechanisms."""
    return _frame(_SASL_FRAME, described(0x40, types.fields([types.symbols(names)])))


def outcome(code: int) -> bytes:
    """Encode the outcome of SASL: 0 for success, 1 for wrong credentials, 4 for a temporary error."""
    return _frame(_SASL_FRAME, described(0x44, types.fields([types.ubyte(code)])))


def refusal(container: str, condition: str, description: str) -> bytes:
    """Encode a protocol header, ``open`` and ``close`` with an error: for a connection without an engine."""
    opened = described(0x10, types.fields([encode(container)]))
    error = described(0x1D, types.fields([encode(types.Symbol(condition)), encode(description)]))
    return AMQP + _frame(_AMQP_FRAME, opened) + _frame(_AMQP_FRAME, described(0x18, types.fields([error])))


def _frame(kind: int, body: bytes) -> bytes:
    return (len(body) + HEADER_BYTES).to_bytes(4, "big") + bytes((2, kind, 0, 0)) + body
