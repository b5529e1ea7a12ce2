"""Kinds of functions and formats of payloads by the names that a configuration gives them. What needs a large
library is imported where a configuration has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from weft.config.functions.settings import Payload
from weft.config.functions.step import Sparkplug
from weft.functions.contract import Context, Format, Function, PayloadError, Values
from weft.functions.enrich import Enrich
from weft.functions.fields import Set, make_redact, make_select
from weft.functions.formats import BytesFormat, JsonFormat, MsgpackFormat, NumberFormat, StructFormat, TextFormat
from weft.functions.python import Python
from weft.functions.routing import AlertFunction, RouteFunction, Where
from weft.functions.sql import SqlFunction
from weft.functions.thinning import (
    ChangesFunction,
    DeadbandFunction,
    DedupeFunction,
    SampleFunction,
    SwingingDoorFunction,
)
from weft.functions.windows import WindowFunction

# Format of a stream's payloads, from its settings.

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
        from weft.functions.cbor_format import CborFormat

        return CborFormat()
    try:
        from weft.functions.sparkplug_payloads import SparkplugFormat
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
    from weft.functions.sparkplug_payloads import SparkplugRows

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


# The function ``sparkplug``, created where a configuration has it: most nodes do not need protobuf, some 8 MB.


def make_sparkplug(settings: Sparkplug, context: Context) -> Function:
    """Return a new function.

    Raises:
        ValueError: the library that it needs is not installed.
    """
    try:
        from weft.functions.sparkplug import SparkplugFunction
    except ImportError:
        raise ValueError("it needs a library that is not installed: pip install 'weft-fabric[sparkplug]'") from None
    return SparkplugFunction(settings, context)


# Kinds of functions by the name that a configuration gives them.

Make = Callable[[Any, Context], Function]
"""(settings, context) -> a new function. Raises ``ValueError``, with a sentence, for settings that cannot work."""

KINDS: dict[str, Make] = {
    "python": Python,
    "where": Where,
    "set": Set,
    "select": make_select,
    "redact": make_redact,
    "route": RouteFunction,
    "sample": SampleFunction,
    "deadband": DeadbandFunction,
    "swinging_door": SwingingDoorFunction,
    "changes": ChangesFunction,
    "dedupe": DedupeFunction,
    "enrich": Enrich,
    "alert": AlertFunction,
    "sparkplug": make_sparkplug,
    "window": WindowFunction,
    "sql": SqlFunction,
}
"""Field of ``config.functions.step.FunctionStep`` -> factory of the function."""
