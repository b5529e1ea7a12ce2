"""Schemas in other languages as the model: JSON Schema, and definitions of Avro and Protobuf, which also
say how payloads are read."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from weft.config.payload_schema.avro import avro_fields, parse_avro
from weft.config.payload_schema.json_schema import json_schema_fields
from weft.config.payload_schema.model import FIELDS_MAX, column_name
from weft.config.payload_schema.paths import Path, format_path
from weft.config.payload_schema.protobuf import parse_descriptors, protobuf_fields

LEFT_OUT_MAX = 1000
"""Maximum number of places without a column that are counted."""


class Imported(NamedTuple):
    """A schema of another language."""

    settings: dict[str, Any]
    """The settings of the model, unchecked."""
    left_out: list[str]
    """Paths of places that get no column: values of several types, maps, arrays of objects."""


def imported(text: str) -> Imported | None:
    """Return the model of a text that is JSON Schema or a schema of Avro; None if it is neither.

    Raises:
        ValueError: it is one, with a mistake.
    """
    try:
        written = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(written, dict):
        return None
    if written.get("type") in {"record", "error"} and isinstance(written.get("fields"), list):
        settings, left_out = _fields(avro_fields(parse_avro(text)))
        return Imported({"format": "avro", "definition": json.dumps(written), "fields": settings}, left_out)
    if "$schema" in written or isinstance(written.get("properties"), dict):
        settings, left_out = _fields(json_schema_fields(written))
        return Imported({"format": "json", "fields": settings}, left_out)
    return None


def imported_descriptors(data: bytes, message: str | None) -> Imported:
    """Return the model of a message of a descriptor set of Protobuf.

    Raises:
        ValueError: it is no descriptor set, or does not have the message.
    """
    definition = base64.b64encode(data).decode()
    settings, left_out = _fields(protobuf_fields(parse_descriptors(definition, message)))
    named = {"message": message} if message is not None else {}
    return Imported({"format": "protobuf", "definition": definition, **named, "fields": settings}, left_out)


def _fields(places: Iterable[tuple[Path, dict[str, Any] | None]]) -> tuple[dict[str, Any], list[str]]:
    fields: dict[str, Any] = {}
    taken, left_out = set[str](), list[str]()
    for path, settings in islice(places, FIELDS_MAX + LEFT_OUT_MAX):
        if settings is None or not path:
            left_out.append(format_path(path))
            continue
        if len(fields) == FIELDS_MAX:
            raise ValueError(f"it has more than {FIELDS_MAX} fields: declare those that are wanted as columns, in YAML")
        name = column_name(path, taken)
        taken.add(name.casefold())
        fields[name] = settings if path != (name,) else {key: value for key, value in settings.items() if key != "from"}
    if not fields:
        raise ValueError("it has no field that can be a column")
    return fields, left_out
