"""Settings of the fields of payloads that are a row of bytes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weft.config.values import Section

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
        float,
        Meta(description="Factor: the value is the number in the payload times `scale`, plus `offset`."),
    ] = 1.0
    offset: Annotated[float, Meta(description="Number that is added after `scale`.")] = 0.0
