"""Format of a stream's payloads, from its settings."""

from __future__ import annotations

from typing import NamedTuple

from weft.config.functions.payload import Payload
from weft.edge_node.functions.contract import Function, Values
from weft.edge_node.functions.formats.json_format import JsonFormat
from weft.edge_node.functions.formats.msgpack_format import MsgpackFormat
from weft.edge_node.functions.formats.plain import BytesFormat, NumberFormat, TextFormat
from weft.edge_node.functions.formats.struct_format import StructFormat
from weft.edge_node.functions.payloads import Format, PayloadError

_SIMPLE: dict[str, type[Format]] = {
    "json": JsonFormat,
    "msgpack": MsgpackFormat,
    "number": NumberFormat,
    "text": TextFormat,
    "bytes": BytesFormat,
}


class Decoding(NamedTuple):
    """Decoding of payloads at the beginning of a chain."""

    format: Format
    first: Function | None = None
    """First function, which decodes rows, where decoding needs a memory; ``format`` then does nothing."""


def format_of(payload: Payload) -> Format:
    """Return a new format of payloads.

    Raises:
        ValueError: the fields of a struct contradict each other, or a library is not installed; the message has the
            remedy.
    """
    if payload.format in _SIMPLE:
        return _SIMPLE[payload.format]()
    if payload.format == "struct":
        return StructFormat(payload.byte_order, payload.fields)
    # Imported here: most nodes do not need these libraries, of 2 to 8 MB of memory.
    if payload.format == "cbor":
        from weft.edge_node.functions.formats.cbor_format import CborFormat

        return CborFormat()
    try:
        from weft.edge_node.functions.formats.sparkplug.payload import SparkplugFormat
    except ImportError:
        raise ValueError(
            "payloads of Sparkplug B need a library that is not installed: pip install 'weft-fabric[sparkplug]'"
        ) from None
    return SparkplugFormat()


def decoding_of(payload: Payload) -> Decoding:
    """Return the decoding of a chain's input.

    Raises:
        ValueError: as ``format_of``.
    """
    found = format_of(payload)
    if payload.format != "sparkplug":
        return Decoding(found)
    from weft.edge_node.functions.formats.sparkplug.births import SparkplugRows

    return Decoding(Undecoded(), SparkplugRows())


def converts(given: Payload, wanted: Payload) -> bool:
    """Return whether payloads of one format must be encoded again for another one.

    ``bytes`` may be anything, and JSON and numbers are text.
    """
    if given == wanted or "bytes" in (given.format, wanted.format):
        return False
    return wanted.format != "text" or given.format not in ("json", "number")


class Undecoded:
    """Format of a chain whose first function decodes."""

    def decode(self, payload: bytes) -> Values:  # noqa: ARG002
        """Return no fields."""
        return {}

    def encode(self, values: Values) -> bytes:
        """Refuse fields: a chain writes in the format of its output.

        Raises:
            PayloadError: always.
        """
        raise PayloadError(f"{len(values)} fields have no format to be written in")
