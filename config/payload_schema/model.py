"""Settings of a payload schema. Streams and pipelines declare the same one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.errors import Finding, KeyPath
from weft.config.payload_schema.paths import Path, parse_path
from weft.config.payload_schema.types import FieldType, field_type
from weft.config.units import quoted
from weft.config.values import Section

FIELDS_MAX = 256
"""Largest number of fields of a schema."""
NAME_CHARACTERS_MAX = 64
PAYLOAD = "payload"
"""Column of the payload itself, which no field may be named after."""
_NAME = re.compile(r"[^\W_]\w*")

SchemaFormat = Literal["json", "cbor", "msgpack"]


class SchemaField(Section, frozen=True, kw_only=True):
    """A typed column: `temperature: float` is short for `temperature: {type: float}`."""

    type_: Annotated[
        str,
        Meta(
            extra_json_schema={"x-unit": "field_type"},
            description="Type of the column: `bool`, `int`, `float`, `string`, `binary`, `timestamp`, "
            "`decimal(DIGITS,SCALE)`, or `array<TYPE>` of one of these. `int` and `float` have 64 bits. A `timestamp` "
            "is text in ISO 8601; `timestamp(s)`, `(ms)`, `(us)` and `(ns)` are numbers since 1970.",
        ),
    ] = field(name="type")
    from_: Annotated[
        str | None,
        Meta(
            extra_json_schema={"x-unit": "field_path"},
            description="Path in the payload: `motor.rpm`, `readings[0].value`, or `$` for the payload itself. "
            "Unset: the field of the column's name.",
        ),
    ] = field(default=None, name="from")
    required: Annotated[
        bool,
        Meta(description="Whether a payload without the field is a misfit. Otherwise the column is null."),
    ] = False
    unit: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="Unit of the values for people, such as `°C`. It becomes a comment of the column."),
    ] = None
    description: Annotated[
        Annotated[str, Meta(max_length=1024)] | None,
        Meta(description="Meaning of the values for people. It becomes a comment of the column."),
    ] = None

    @property
    def type(self) -> FieldType:
        """Return the parsed type."""
        return field_type(self.type_)

    def path(self, name: str) -> Path:
        """Return the path in the payload of the field called ``name``."""
        return (name,) if self.from_ is None else parse_path(self.from_)


class PayloadSchema(Section, frozen=True, kw_only=True):
    """Format of payloads, and their fields that become typed columns."""

    format: Annotated[SchemaFormat, Meta(description="Format of the payloads.")] = "json"
    fields: Annotated[
        dict[str, Annotated[SchemaField, Meta(extra_json_schema={"x-short": "type"})]],
        Meta(
            min_length=1,
            max_length=FIELDS_MAX,
            description="Typed columns, by name, in this order. A name begins with a letter and has letters, digits "
            "and `_`; names that differ in case only are the same column.",
        ),
    ]


def check_schema(schema: PayloadSchema, at: KeyPath = ()) -> Iterator[Finding]:
    """Yield the problems with the names of a schema, as a check for ``config.load.parse``.

    Args:
        at: place of the schema in the file.
    """
    seen: dict[str, str] = {}
    for name in schema.fields:
        path = (*at, "fields", name)
        if name.startswith("_"):
            yield Finding(path, "names that begin with _ are the stream's own columns. Name the field otherwise, and "
                          f"set `from: {name}`")  # fmt: skip
        elif name.casefold() == PAYLOAD:
            yield Finding(path, "`payload` is the column of the bytes as sent. Name the field otherwise, and set "
                          f"`from: {name}`")  # fmt: skip
        elif not _NAME.fullmatch(name) or len(name) > NAME_CHARACTERS_MAX:
            yield Finding(path, f"expected a name of letters, digits and _, at most {NAME_CHARACTERS_MAX} characters, "
                          f"got {quoted(name)}. Name the column so, and set `from` to the field")  # fmt: skip
        elif (other := seen.setdefault(name.casefold(), name)) != name:
            yield Finding(path, f"is the same column as {other}: names may not differ in case only")
