"""Schemas in JSON Schema (draft 2020-12 and those before it) as fields of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.config.payload_schema.paths import STEPS_MAX, Path, format_path

REFERENCES_MAX = 64
"""Maximum number of references that follow each other."""
PLACES_MAX = 4096
_TYPES = {"boolean": "bool", "integer": "int", "number": "float", "string": "string"}


def json_schema_fields(schema: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield the places that can be columns, with the settings of their fields; None for one that cannot.

    Raises:
        ValueError: a reference leads nowhere, or the schema is too large.
    """
    for number, found in enumerate(_fields(schema, schema, (), is_required=False)):
        if number >= PLACES_MAX:
            raise ValueError(f"the JSON Schema has more than {PLACES_MAX} places")
        yield found


def _fields(
    root: dict[str, Any], written: Any, path: Path, *, is_required: bool
) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    schema = _resolved(root, written)
    kind = _kind(schema)
    properties = schema.get("properties")
    if isinstance(properties, dict) and kind in {None, "object"}:
        # An object without properties is a place: references that name each other and end in one would give none.
        if len(path) >= STEPS_MAX or not properties:
            yield path, None
            return
        required = schema.get("required")
        names = required if isinstance(required, list) else []
        for name, inside in properties.items():
            # What is required within something optional may be missing with it.
            yield from _fields(root, inside, (*path, name), is_required=name in names and (is_required or not path))
        return
    type_ = _type(root, schema, kind)
    if type_ is None:
        yield path, None
        return
    settings: dict[str, Any] = {"type": type_, "from": format_path(path)} | ({"required": True} if is_required else {})
    unit = schema.get("unit", schema.get("x-unit"))
    text = schema.get("description", schema.get("title"))
    settings |= {"unit": unit[:64]} if isinstance(unit, str) and unit else {}
    yield path, settings | ({"description": text[:1024]} if isinstance(text, str) and text else {})


def _resolved(root: dict[str, Any], written: Any) -> dict[str, Any]:
    for _ in range(REFERENCES_MAX):
        if not isinstance(written, dict):
            return {}
        if not isinstance(reference := written.get("$ref"), str):
            return written
        if reference != "#" and not reference.startswith("#/"):
            raise ValueError(f"JSON Schema: {reference[:80]} is not within this file. Write it into `$defs`")
        found: Any = root
        for step in reference.split("/")[1:]:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise ValueError(f"JSON Schema: there is no {reference[:80]}")
        written = {**found, **{name: value for name, value in written.items() if name != "$ref"}}
    raise ValueError("JSON Schema: its references lead in a circle")


def _kind(schema: dict[str, Any]) -> str | None:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        others = [each for each in kinds if each != "null"]
        # A whole number is a number.
        kinds = "number" if {*map(str, others)} == {"integer", "number"} else others[0] if len(others) == 1 else None
    return kinds if isinstance(kinds, str) else None


def _type(root: dict[str, Any], schema: dict[str, Any], kind: str | None) -> str | None:
    if kind == "string" and schema.get("format") == "date-time":
        return "timestamp"
    if kind == "string" and schema.get("contentEncoding") == "base64":
        return "binary"
    if kind == "array":
        items = _resolved(root, schema.get("items"))
        item = _type(root, items, _kind(items)) if _kind(items) != "array" else None
        return f"array<{item}>" if item else None
    values = schema.get("enum")
    if kind is None and isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        return "string"
    return _TYPES.get(kind or "")
