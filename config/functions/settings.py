"""Parts common to the settings of several functions: base class, chosen fields, and the formats of payloads."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.units import Expression, Section

# Base class of the settings of functions that do more than pass rows to the next one.


class FunctionSettings(Section, frozen=True, kw_only=True):
    """Settings of a function, with the facts that the configuration's checks need. Other functions need only a
    Section."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the streams that the function writes rows to, beside its own."""
        return ()

    @property
    def new_key(self) -> tuple[str, ...] | None:
        """Return the names whose values make up the keys of the rows that come out, joined by ``/``; None where keys
        stay. Empty where all rows have the same key."""
        return None

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the MQTT topics that the function publishes to, with names in braces where values are filled in."""
        return ()

    @property
    def new_patterns(self) -> tuple[str, ...] | None:
        """Return the patterns of the keys of the rows that come out, where ``new_key`` cannot express them."""
        return None

    @property
    def reads(self) -> Literal["sparkplug"] | None:
        """Return the payload format that the function parses itself, as the first one of its stream; None for one that
        works with fields. Rows that it makes are JSON, unless the stream has a format of its own."""
        return None


# Settings of functions that choose and compute the fields of each row.

FIELDS_MAX = 256
"""Largest number of fields that a function names."""

Fields = Annotated[dict[str, Expression], Meta(min_length=1, max_length=FIELDS_MAX)]
"""Name of a field -> expression."""
Names = Annotated[tuple[str, ...], Meta(min_length=1, max_length=FIELDS_MAX)]
Select = Names | Fields


# Settings of the fields of payloads that are a row of bytes.

STRUCT_FIELDS_MAX = 256
"""Largest number of fields of a payload that is a row of bytes."""
STRUCT_TYPES = r"^(bool|[iu](8|16|32|64)|f(16|32|64)|(text|bytes|skip)\[[1-9][0-9]{0,4}\])$"
"""Types of such fields: numbers by their bits; text, bytes and skipped bytes by their length in bytes."""


class StructField(Section, frozen=True, kw_only=True):
    """A field at a fixed place in a payload: `{name: temperature, type: i16, scale: 0.1}`."""

    type_: Annotated[
        str,
        Meta(
            pattern=STRUCT_TYPES,
            examples=["i16", "f32", "text[8]"],
            description="Type of the field: `bool`, `i8` to `i64`, `u8` to `u64`, `f16`, `f32`, `f64`, `text[N]`, "
            "`bytes[N]` or `skip[N]`, with N bytes. Text is UTF-8 and ends at the first of the NUL bytes at its end.",
        ),
    ] = field(name="type")
    name: Annotated[str, Meta(max_length=256, description="Name of the field. `skip[N]` has none.")] = ""
    scale: Annotated[
        float, Meta(description="Factor: the value is the number in the payload times `scale`, plus `offset`.")
    ] = 1.0
    offset: Annotated[float, Meta(description="Number that is added after `scale`.")] = 0.0


# Format of a stream's payloads: how functions parse them, and how the hub's table stores them.

PayloadFormat = Literal["bytes", "text", "json", "number", "cbor", "msgpack", "sparkplug", "struct"]
_IN_TABLES: dict[str, Literal["bytes", "text", "json"]] = {"json": "json", "text": "text", "number": "text"}
"""Format -> kind of the table's column. All others are bytes there."""


class Payload(Section, frozen=True, kw_only=True):
    """Format of payloads. `payload: json` is short for `payload: {format: json}`."""

    format: Annotated[
        PayloadFormat,
        Meta(
            description="Format of the payloads. The table has `json` and `text` (UTF-8) as a string, for the "
            "JSON operators of query engines. Payloads that are neither keep their bytes in a separate column. "
            "Functions read the fields of every format but `bytes`. `number` is one number as text, such as `21.5`. "
            "`sparkplug` is Sparkplug B. `struct` is a packet of fixed layout, see `fields`. Set it before the first "
            "record reaches the hub: a table's columns never change."
        ),
    ] = "bytes"
    fields: Annotated[
        tuple[StructField, ...],
        Meta(max_length=STRUCT_FIELDS_MAX, description="Fields of a `struct`, in the order of their bytes."),
    ] = ()
    byte_order: Annotated[Literal["little", "big"], Meta(description="Byte order of the numbers in a `struct`.")] = (
        "little"
    )

    @property
    def kind(self) -> Literal["bytes", "text", "json"]:
        """Return the kind of the table's payload column."""
        return _IN_TABLES.get(self.format, "bytes")
