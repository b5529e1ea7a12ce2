"""Schema that an edge checks payloads against: in its configuration, or in a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, field

from weft.config.errors import Finding, KeyPath
from weft.config.payload_schema.model import FIELDS_MAX, PayloadSchema, SchemaField, check_schema
from weft.config.values import Path


class CheckedSchema(PayloadSchema, frozen=True, kw_only=True):
    """Schema of the messages of a stream, which the node checks when it takes them.

    `schema: FILE` is short for `schema: {file: FILE}`.
    """

    file: Annotated[
        Path | None,
        Meta(
            description="File with the schema, in any form that `weft hub schema set` takes: YAML, JSON Schema, a "
            "schema of Avro, or a descriptor set of Protobuf. It is read when the configuration is read. Beside it "
            "only `message` may be set."
        ),
    ] = None
    fields: Annotated[
        dict[str, Annotated[SchemaField, Meta(extra_json_schema={"x-short": "type"})]],
        Meta(max_length=FIELDS_MAX, description="Fields of the payloads, by name. Other fields are not looked at."),
    ] = field(default_factory=dict)

    def with_its_file(self, parse: Callable[..., Any]) -> Self:
        """Return the schema with what its file has, if it names one. Blocks.

        Raises:
            ValueError, ConfigError: the file cannot be used, or settings stand beside it.
        """
        if self.file is None:
            return self
        if self != type(self)(file=self.file, message=self.message):
            raise ValueError("the file has format and fields of its own: remove the others here, or `file`")
        # Imported here: few edges have such a file.
        from weft.config.payload_schema.files import read_schema_file

        try:
            text = read_schema_file(self.file, self.message).text
        except ValueError as error:
            raise ValueError(f"{self.file}: {error}") from None
        found = parse(text, self.file, PayloadSchema, lambda schema: list(check_schema(schema))).config
        return msgspec.structs.replace(self, **{name: getattr(found, name) for name in PayloadSchema.__struct_fields__})


def check_checked(schema: CheckedSchema, at: KeyPath) -> list[Finding]:
    """Return the problems of a schema in an edge's configuration.

    Args:
        at: place of the schema in the configuration.
    """
    if not schema.fields:
        return [Finding(at, "has no fields: set `fields`, such as `{temperature: float}`, or `file`")]
    return [*check_schema(schema, at), *_arrays(schema, at)]


def _arrays(schema: PayloadSchema, at: KeyPath) -> list[Finding]:
    """Return the fields that would have an array looked at more than once: a check is one step of the node."""
    known: dict[Any, str] = {}
    found = []
    for name, each in schema.fields.items():
        if each.type.item is not None and (other := known.setdefault(each.path(name), name)) != name:
            message = f"is the same array as {other}, and a node looks at each array once. Remove one of the two"
            found.append(Finding((*at, "fields", name), message))
    return found
