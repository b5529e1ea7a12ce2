"""Format of a stream's payloads: how functions parse them, and how the hub's table stores them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from weft.config.functions.formats import STRUCT_FIELDS_MAX, StructField
from weft.config.values import Section

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
