"""Settings of a payload schema. Streams and pipelines declare the same one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
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

SchemaFormat = Literal["json", "cbor", "msgpack", "avro", "protobuf"]
DEFINED: tuple[SchemaFormat, ...] = ("avro", "protobuf")
"""Formats whose payloads cannot be read without a definition."""
DEFINITION_CHARACTERS_MAX = 48 << 10
Framing = Literal["confluent", "single_object"]


class SchemaField(Section, frozen=True, kw_only=True, omit_defaults=True):
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
    personal: Annotated[
        bool,
        Meta(
            description="Whether the values are personal data. The column's comment says so, and its metadata "
            "(`weft.personal`); `weft hub schema list` names the field."
        ),
    ] = False

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
    definition: Annotated[
        Annotated[str, Meta(min_length=1, max_length=DEFINITION_CHARACTERS_MAX)] | None,
        Meta(
            description="Definition without which payloads cannot be read: for `format: avro` a schema in Avro's JSON, "
            "for `format: protobuf` a descriptor set in base64."
        ),
    ] = None
    message: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Message of Protobuf that the payloads are, with its package. Unset: the only one."),
    ] = None
    framing: Annotated[
        Framing | None,
        Meta(
            description="Bytes before each payload of Avro or Protobuf, which are passed over. `confluent` has 0 and "
            "the four bytes of a registry's id. `single_object` has the ten bytes of Avro's single-object encoding."
        ),
    ] = None
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
    yield from _check_definition(schema, at)
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


def _check_definition(schema: PayloadSchema, at: KeyPath) -> Iterator[Finding]:
    if schema.format not in DEFINED:
        for name in ("definition", "message", "framing"):
            if getattr(schema, name) is not None:
                yield Finding((*at, name), f"payloads of format {schema.format} have none: leave it out")
        return
    if schema.definition is None:
        yield Finding((*at, "format"), f"payloads of format {schema.format} can only be read with `definition`: set it")
        return
    if schema.format == "avro" and schema.message is not None:
        yield Finding((*at, "message"), "payloads of Avro have none: leave it out")
    if schema.format == "protobuf" and schema.framing == "single_object":
        yield Finding((*at, "framing"), "single_object is of Avro; payloads of Protobuf may have `confluent`")
    # Imported here: edges have this model, and few have a definition.
    from weft.config.payload_schema.avro import parse_avro
    from weft.config.payload_schema.protobuf import parse_descriptors

    try:
        if schema.format == "avro":
            parse_avro(schema.definition)
        else:
            parse_descriptors(schema.definition, schema.message)
    except ValueError as error:
        yield Finding((*at, "definition"), str(error))


def column_name(path: Path, taken: Collection[str]) -> str:
    """Return a name of a column for a path.

    Args:
        taken: names that others have, in lower case.
    """
    name = re.sub(r"\W", "_", "_".join(map(str, path))).strip("_")[:NAME_CHARACTERS_MAX] or "field"
    base = f"{name[: NAME_CHARACTERS_MAX - 6]}_value" if name.casefold() == PAYLOAD else name
    name, number = base, 1
    while name.casefold() in taken:
        number += 1
        name = f"{base[: NAME_CHARACTERS_MAX - 5]}_{number}"
    return name
