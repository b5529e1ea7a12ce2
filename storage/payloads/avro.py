"""Values from payloads in Avro's binary encoding (Apache Avro 1.12, "Binary Encoding"), within bounds.

A reader is made of closures, one for each type of the schema. Each takes the payload and a place in it, and returns the
value and the place behind it. Every length is compared with what is left, and an array has no more items than the
payload has bytes: fastavro and Avro's own reader take a count of 2^60 empty items at its word.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from weft.config.payload_schema.avro import AvroType
from weft.protocols.payloads import NESTING_MAX
from weft.storage.payloads.misfits import Unreadable

Reader = Callable[[bytes, int, int], tuple[Any, int]]
"""Function of payload, place and depth that returns the value and the place behind it."""
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_ENDS = "it ends within a value"
VALUES_MIN = 256
VALUES_PER_BYTE = 16
"""Maximum number of values of a payload, for each of its bytes, beyond ``VALUES_MIN``. Nulls, and records of nulls,
take no bytes: a schema of 60 records, each with two of the one before, would have 2^60 values in an empty payload."""


class AvroDecoder:
    """A decoder of payloads of one schema."""

    def __init__(self, root: AvroType) -> None:
        self._made: dict[int, Reader] = {}
        self._left = 0
        """Number of values that the payload may still have."""
        self._root = self._reader(root)

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload.

        Raises:
            Unreadable: it is not of the schema.
        """
        self._left = VALUES_MIN + VALUES_PER_BYTE * len(payload)
        try:
            value, at = self._root(payload, 0, 0)
        except (IndexError, struct.error):
            raise Unreadable(_ENDS) from None
        except UnicodeDecodeError:
            raise Unreadable("it has text that is not UTF-8") from None
        if at != len(payload):
            raise Unreadable(f"the value ends at byte {at}, and there are {len(payload) - at} more")
        return value

    def _reader(self, kind: AvroType) -> Reader:
        if (known := self._made.get(id(kind))) is not None:
            return known
        if kind.kind in _SIMPLE and kind.logical != "decimal":
            return _SIMPLE[kind.kind]

        def later(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            return self._made[id(kind)](data, at, depth)

        self._made[id(kind)] = later  # for a type within itself
        self._made[id(kind)] = getattr(self, f"_{kind.kind}")(kind)
        return self._made[id(kind)]

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise Unreadable("it has too many values that take no bytes")

    def _record(self, kind: AvroType) -> Reader:
        fields = [(each.name, self._reader(each.type)) for each in kind.fields]

        def read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            _check_depth(depth)
            self._take(len(fields))
            value = {}
            for name, field in fields:
                value[name], at = field(data, at, depth + 1)
            return value, at

        return read

    def _union(self, kind: AvroType) -> Reader:
        branches = [self._reader(each) for each in kind.inside]

        def read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            _check_depth(depth)
            branch, at = _long(data, at, 0)
            if not 0 <= branch < len(branches):
                raise Unreadable(f"it has branch {branch} of a union of {len(branches)}")
            return branches[branch](data, at, depth + 1)

        return read

    def _array(self, kind: AvroType) -> Reader:
        item = self._reader(kind.inside[0])

        def read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            _check_depth(depth)
            values: list[Any] = []
            while True:
                count, at = _block(data, at, len(values))
                if not count:
                    return values, at
                self._take(count)
                for _ in range(count):
                    value, at = item(data, at, depth + 1)
                    values.append(value)

        return read

    def _map(self, kind: AvroType) -> Reader:
        item = self._reader(kind.inside[0])

        def read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
            _check_depth(depth)
            values: dict[str, Any] = {}
            while True:
                count, at = _block(data, at, len(values))
                if not count:
                    return values, at
                self._take(count)
                for _ in range(count):
                    name, at = _string(data, at, 0)
                    values[name], at = item(data, at, depth + 1)

        return read

    def _enum(self, kind: AvroType) -> Reader:
        symbols = kind.symbols

        def read(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
            number, at = _long(data, at, 0)
            if not 0 <= number < len(symbols):
                raise Unreadable(f"it has symbol {number} of an enum of {len(symbols)}")
            return symbols[number], at

        return read

    def _fixed(self, kind: AvroType) -> Reader:
        size = kind.size

        def read(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
            if at + size > len(data):
                raise Unreadable(_ENDS)
            return data[at : at + size], at + size

        return _as_decimal(read, kind.scale) if kind.logical == "decimal" else read

    def _bytes(self, kind: AvroType) -> Reader:
        return _as_decimal(_bytes, kind.scale)


def _as_decimal(read: Reader, scale: int) -> Reader:
    def decimal(data: bytes, at: int, depth: int) -> tuple[Any, int]:
        value, at = read(data, at, depth)
        if len(value) > 32:
            raise Unreadable(f"a decimal has {len(value)} bytes; at most 32 are decoded")
        return Decimal(int.from_bytes(value, signed=True)).scaleb(-min(scale, 100)), at

    return decimal


def _check_depth(depth: int) -> None:
    if depth > NESTING_MAX:
        raise Unreadable(f"its values are more than {NESTING_MAX} deep in each other")


def _block(data: bytes, at: int, before: int) -> tuple[int, int]:
    """Return the number of items of the next block, and where it begins."""
    count, at = _long(data, at, 0)
    if count < 0:  # a size in bytes follows, by which readers may skip the block
        count = -count
        _, at = _long(data, at, 0)
    if before + count > len(data):
        raise Unreadable(f"it has {before + count} items in {len(data)} bytes; at most one for each byte is decoded")
    return count, at


def _null(_data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    return None, at


def _boolean(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    return data[at] != 0, at + 1


def _long(data: bytes, at: int, _depth: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        if shift > 63:
            raise Unreadable("it has a number of more than 64 bits")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), at


def _float(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _double(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _bytes(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    size, at = _long(data, at, 0)
    if not 0 <= size <= len(data) - at:
        raise Unreadable(_ENDS)
    return data[at : at + size], at + size


def _string(data: bytes, at: int, _depth: int) -> tuple[Any, int]:
    value, at = _bytes(data, at, 0)
    return value.decode(), at


_SIMPLE: dict[str, Reader] = {
    "null": _null, "boolean": _boolean, "int": _long, "long": _long, "float": _float, "double": _double,
    "bytes": _bytes, "string": _string,
}  # fmt: skip
