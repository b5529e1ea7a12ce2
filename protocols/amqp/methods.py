"""Methods: a peer's requests, with fields in the order and of the types of the specification.

``pamqp`` has every class and method; its commands are the values that are read and written. Fields are read here: in
one pass, with errors that have a reply code, and a refusal of strings that are not UTF-8.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from typing import Any

from pamqp import commands
from pamqp.base import Frame as Method

from weft.protocols.amqp.errors import AmqpError, ReplyCode
from weft.protocols.amqp.field_table import read_table, read_text, text_or_bytes, write_table, write_text
from weft.protocols.amqp.frames import METHOD, frame

__all__ = ["CLASSES", "METHODS", "Method", "commands", "name_of", "read_method", "write_method"]

METHODS: Mapping[int, Any] = commands.INDEX_MAPPING
"""Class << 16 | method -> type of the method."""
CLASSES = frozenset(index >> 16 for index in METHODS)
"""Numbers of the classes that exist."""
_INDEX = struct.Struct(">I")
_INTEGERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": _INDEX,
    "longlong": struct.Struct(">Q"),
}


def name_of(index: int) -> str:
    """Return a method's name as in the specification: ``queue.declare``; for unknown methods the numbers."""
    known = METHODS.get(index)
    if known is None:
        return f"{index >> 16}.{index & 0xFFFF}"
    return str(known.name).replace(".", " ").split()[0].lower() + "." + _dashed(str(known.name).split(".")[1])


def read_method(payload: bytes) -> Method:
    """Return the method in a frame's payload.

    Raises:
        AmqpError: there is no such method, or its fields are not well formed.
    """
    if len(payload) < _INDEX.size:
        raise AmqpError(ReplyCode.SYNTAX_ERROR, "a method frame without class and method")
    (index,) = _INDEX.unpack_from(payload)
    known = METHODS.get(index)
    if known is None:
        what = "method" if index >> 16 in CLASSES else "class"
        code = ReplyCode.NOT_IMPLEMENTED if what == "method" else ReplyCode.COMMAND_INVALID
        raise AmqpError(code, f"there is no {what} {name_of(index)}", index)
    try:
        return _read_fields(known, payload)
    except AmqpError as error:
        error.method = index
        raise


def write_method(method: Method, channel: int) -> bytes:
    """Return a frame with a method. Field tables may hold what ``field_table`` can write."""
    parts = [_INDEX.pack(method.index)]
    bits = shift = 0
    for name, kind in _fields(method.index):
        value = getattr(method, name)
        if kind == "bit":
            bits |= bool(value) << shift
            shift += 1
            continue
        if shift:
            parts.append(bytes((bits,)))
            bits = shift = 0
        if kind == "shortstr":
            parts.append(write_text(value or "", name))
        elif kind == "longstr":
            data = value if isinstance(value, bytes) else (value or "").encode()
            parts.append(_INDEX.pack(len(data)) + data)
        elif kind == "table":
            parts.append(write_table(value or {}))
        else:
            parts.append(_INTEGERS[kind].pack(value))
    if shift:
        parts.append(bytes((bits,)))
    return frame(METHOD, channel, b"".join(parts))


@functools.cache
def _fields(index: int) -> tuple[tuple[str, str], ...]:
    known = METHODS[index]
    return tuple((name, known.amqp_type(name)) for name in known.attributes())


def _read_fields(known: Any, payload: bytes) -> Method:
    at, end = _INDEX.size, len(payload)
    values: dict[str, Any] = {}
    shift = 0
    for name, kind in _fields(known.index):
        if kind == "bit":
            if shift == 0:
                if at >= end:
                    raise _short(name)
                at += 1
            values[name] = bool(payload[at - 1] >> shift & 1)
            shift += 1
            continue
        shift = 0
        if kind == "shortstr":
            values[name], at = read_text(payload, at, end, name)
        elif kind == "table":
            values[name], at = read_table(payload, at, end)
        elif kind == "longstr":
            values[name], at = _read_long_string(payload, at, name)
        else:
            form = _INTEGERS[kind]
            if at + form.size > end:
                raise _short(name)
            values[name] = form.unpack_from(payload, at)[0]
            at += form.size
    if at != end:
        raise AmqpError(ReplyCode.SYNTAX_ERROR, f"{end - at} octets behind the last field")
    method: Method = known.__new__(known)  # without pamqp's checks of values: Weft's have a reply code each
    for name, value in values.items():
        setattr(method, name, value)
    return method


def _read_long_string(payload: bytes, at: int, name: str) -> tuple[str | bytes, int]:
    if at + 4 > len(payload):
        raise _short(name)
    start = at + 4
    at = start + int(_INDEX.unpack_from(payload, at)[0])
    if at > len(payload):
        raise _short(name)
    return text_or_bytes(payload[start:at]), at


def _short(name: str) -> AmqpError:
    return AmqpError(ReplyCode.SYNTAX_ERROR, f"the field {name} passes the end of its frame")


def _dashed(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).removeprefix("-")
