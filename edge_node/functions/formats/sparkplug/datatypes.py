"""Datatypes of Sparkplug B and their values (Sparkplug 3.0, section 6.4.16)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

from weft.edge_node.functions.payloads import PayloadError


class Datatype(IntEnum):
    """Datatypes by their number in a metric."""

    UNKNOWN = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    UINT8 = 5
    UINT16 = 6
    UINT32 = 7
    UINT64 = 8
    FLOAT = 9
    DOUBLE = 10
    BOOLEAN = 11
    STRING = 12
    DATETIME = 13
    TEXT = 14
    UUID = 15
    DATASET = 16
    BYTES = 17
    FILE = 18
    TEMPLATE = 19
    INT8_ARRAY = 22
    INT16_ARRAY = 23
    INT32_ARRAY = 24
    INT64_ARRAY = 25
    UINT8_ARRAY = 26
    UINT16_ARRAY = 27
    UINT32_ARRAY = 28
    UINT64_ARRAY = 29
    FLOAT_ARRAY = 30
    DOUBLE_ARRAY = 31
    BOOLEAN_ARRAY = 32
    STRING_ARRAY = 33
    DATETIME_ARRAY = 34


_INTEGERS = {
    Datatype.INT8: (8, True), Datatype.INT16: (16, True), Datatype.INT32: (32, True), Datatype.INT64: (64, True),
    Datatype.UINT8: (8, False), Datatype.UINT16: (16, False), Datatype.UINT32: (32, False),
    Datatype.UINT64: (64, False), Datatype.DATETIME: (64, False),
}  # fmt: skip
"""Datatype -> its bits, and whether it has a sign. A time is milliseconds since 1970."""
_ARRAYS = {
    Datatype.INT8_ARRAY: "b", Datatype.INT16_ARRAY: "h", Datatype.INT32_ARRAY: "i", Datatype.INT64_ARRAY: "q",
    Datatype.UINT8_ARRAY: "B", Datatype.UINT16_ARRAY: "H", Datatype.UINT32_ARRAY: "I", Datatype.UINT64_ARRAY: "Q",
    Datatype.FLOAT_ARRAY: "f", Datatype.DOUBLE_ARRAY: "d", Datatype.DATETIME_ARRAY: "Q",
}  # fmt: skip
"""Datatype -> code of ``struct`` for an item."""
_FLOATS = frozenset({Datatype.FLOAT, Datatype.DOUBLE})
_TEXTS = frozenset({Datatype.STRING, Datatype.TEXT, Datatype.UUID})


_NAMES = {
    each: each.name.title().replace("_", "").replace("Uint", "UInt")
    for each in Datatype
} | {Datatype.UUID: "UUID", Datatype.DATASET: "DataSet", Datatype.DATETIME: "DateTime",
     Datatype.DATETIME_ARRAY: "DateTimeArray"}  # fmt: skip
"""Datatype -> its name in the specification: ``UInt16``, ``DateTimeArray``."""


def title_of(datatype: int) -> str:
    """Return the name of a datatype in the specification; its number where it has none."""
    return _NAMES.get(datatype) or str(datatype)  # type: ignore[call-overload]


def name_of(datatype: int) -> str:
    """Return the name of a datatype for people."""
    try:
        return Datatype(datatype).name.lower()
    except ValueError:
        return f"datatype {datatype}"


# --- reading


def integer(raw: int, datatype: int | None) -> int:
    """Return the value of an integer on the wire.

    The wire has no negative numbers. Senders write an Int8 of -1 as 255, or as 2**32 - 1: both are read.

    Raises:
        PayloadError: the datatype is not known, or the number does not fit into it.
    """
    if not datatype:
        raise PayloadError("it is an integer without a datatype, and the birth that gives it one is not known")
    bits, is_signed = _INTEGERS.get(datatype, (0, False))  # type: ignore[call-overload]
    if not bits:
        raise PayloadError(f"it is an integer, and its datatype is {name_of(datatype)}")
    number: int = raw & (1 << bits) - 1
    if is_signed and number >> bits - 1:
        number -= 1 << bits
    if raw not in (number, number & (1 << bits) - 1, number & 0xFFFF_FFFF, number & 0xFFFF_FFFF_FFFF_FFFF):
        raise PayloadError(f"it is {raw}, which does not fit into its datatype, {name_of(datatype)}")
    return number


def floating(number: float, datatype: int | None) -> float:
    """Return a float of the datatypes for floats.

    Raises:
        PayloadError: the datatype is another one.
    """
    return number if not datatype or datatype in _FLOATS else _mismatch("a float", datatype)


def boolean(value: bool, datatype: int | None) -> bool:
    """Return a truth value of its datatype.

    Raises:
        PayloadError: the datatype is another one.
    """
    return value if not datatype or datatype == Datatype.BOOLEAN else bool(_mismatch("true or false", datatype))


def text(value: Any, datatype: int | None) -> str:
    """Return text of the datatypes for text.

    Raises:
        PayloadError: the datatype is another one, or the text is not UTF-8.
    """
    if datatype and datatype not in _TEXTS:
        _mismatch("text", datatype)
    return utf8(value)


def utf8(value: Any) -> str:
    """Return text from protobuf, which returns bytes where they are not UTF-8.

    Raises:
        PayloadError: it is not UTF-8.
    """
    if type(value) is not str:
        raise PayloadError("it has a text that is not UTF-8")
    return value


def binary(value: bytes, datatype: int | None) -> Any:
    """Return bytes, or the list of numbers, truth values or texts that they encode.

    Raises:
        PayloadError: the datatype is another one, or the bytes do not match it.
    """
    if not datatype or datatype in (Datatype.BYTES, Datatype.FILE):
        return value
    if datatype in _ARRAYS:
        code = _ARRAYS[Datatype(datatype)]
        count, rest = divmod(len(value), struct.calcsize(f"<{code}"))
        if rest:
            raise PayloadError(f"it has {len(value)} bytes, which are no list of its datatype, {name_of(datatype)}")
        return list(struct.unpack(f"<{count}{code}", value))
    if datatype == Datatype.BOOLEAN_ARRAY:
        return _booleans(value)
    if datatype == Datatype.STRING_ARRAY:
        return _texts(value)
    return _mismatch("bytes", datatype)


def _mismatch(what: str, datatype: int) -> Any:
    raise PayloadError(f"it is {what}, and its datatype is {name_of(datatype)}")


def _booleans(value: bytes) -> list[bool]:
    count = int.from_bytes(value[:4], "little")
    bits = value[4:]
    if len(value) < 4 or len(bits) != (count + 7) // 8:
        raise PayloadError(f"it has {len(value)} bytes, which are no list of its datatype, boolean_array")
    return [bool(bits[at >> 3] >> (7 - (at & 7)) & 1) for at in range(count)]


def _texts(value: bytes) -> list[str]:
    if value and value[-1]:
        raise PayloadError("the last text of its list does not end with NUL")
    try:
        return value.decode().split("\0")[:-1]
    except UnicodeDecodeError:
        raise PayloadError("its list of texts is not UTF-8") from None


# --- writing


def written_integer(number: int) -> tuple[Datatype, int]:
    """Return the datatype of an integer, and the number on the wire.

    Raises:
        PayloadError: it has more than 64 bits.
    """
    if -(1 << 63) <= number < 1 << 63:
        return Datatype.INT64, number & (1 << 64) - 1
    if 0 <= number < 1 << 64:
        return Datatype.UINT64, number
    raise PayloadError("an integer has more than 64 bits")


def written_list(values: list[Any]) -> tuple[Datatype, bytes]:
    """Return the datatype of a list of numbers, truth values or texts, and its bytes.

    Raises:
        PayloadError: the list has something else, or a mixture.
    """
    kinds = set(map(type, values))
    if kinds <= {bool} and values:
        return Datatype.BOOLEAN_ARRAY, _packed_booleans(values)
    if kinds <= {int}:
        datatype = Datatype.INT64_ARRAY if max(values, default=0) < 1 << 63 else Datatype.UINT64_ARRAY
        return datatype, _packed(datatype, values)
    if kinds <= {int, float}:
        return Datatype.DOUBLE_ARRAY, _packed(Datatype.DOUBLE_ARRAY, [float(each) for each in values])
    if kinds == {str} and not any("\0" in each for each in values):
        return Datatype.STRING_ARRAY, "".join(f"{each}\0" for each in values).encode()
    raise PayloadError("a list can have numbers, truth values, texts without NUL, or rows with the same fields")


def column(values: list[Any]) -> Datatype:
    """Return the datatype of a dataset's column, in which some values may be missing.

    Raises:
        PayloadError: the values have no datatype in common.
    """
    present = [value for value in values if value is not None]
    kinds = set(map(type, present))
    if kinds == {int}:
        least, most = min(present), max(present)
        if least >= -(1 << 63) and most < 1 << (64 if least >= 0 else 63):
            return Datatype.INT64 if most < 1 << 63 else Datatype.UINT64
    elif kinds and kinds <= {int, float}:
        return Datatype.DOUBLE
    elif kinds == {bool}:
        return Datatype.BOOLEAN
    elif kinds <= {str}:
        return Datatype.STRING
    raise PayloadError("a column of a dataset has numbers, truth values or texts, and no mixture of them")


def _packed(datatype: Datatype, values: list[Any]) -> bytes:
    return struct.pack(f"<{len(values)}{_ARRAYS[datatype]}", *values)


def _packed_booleans(values: list[bool]) -> bytes:
    bits = bytearray((len(values) + 7) // 8)
    for at, value in enumerate(values):
        bits[at >> 3] |= value << (7 - (at & 7))
    return len(values).to_bytes(4, "little") + bits
