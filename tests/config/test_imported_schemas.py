"""JSON Schema and Avro as the model: what can be a column is one, and the rest is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weft.config.load import parse_schema
from weft.config.payload_schema.documents import imported, yaml_text
from weft.config.payload_schema.model import PayloadSchema


def model(written: dict[str, Any]) -> tuple[PayloadSchema, list[str]]:
    found = imported(json.dumps(written))
    assert found is not None
    schema = parse_schema(found.settings)
    assert parse_schema(yaml_text(schema)) == schema, "`get` prints what `set` reads"
    return schema, found.left_out


def columns(schema: PayloadSchema) -> dict[str, tuple[str, str | None, bool]]:
    return {name: (str(field.type), field.from_, field.required) for name, field in schema.fields.items()}


def test_a_json_schema_is_the_model() -> None:
    schema, left_out = model({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"motor": {"type": "object", "required": ["rpm"], "properties": {"rpm": {"type": "integer"}}}},
        "type": "object",
        "required": ["t", "motor"],
        "properties": {
            "t": {"type": ["number", "null"], "unit": "°C", "description": "Oil"},
            "motor": {"$ref": "#/$defs/motor"},
            "at": {"type": "string", "format": "date-time"},
            "state": {"enum": ["on", "off"]},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "list": {"type": "array", "items": {"type": "number"}},
            "either": {"type": ["number", "string"]},
            "rows": {"type": "array", "items": {"type": "object"}},
        },
    })  # fmt: skip
    assert columns(schema) == {
        "t": ("float", None, True),
        "motor_rpm": ("int", "motor.rpm", True),
        "at": ("timestamp", None, False),
        "state": ("string", None, False),
        "raw": ("binary", None, False),
        "list": ("array<float>", None, False),
    }
    assert (schema.fields["t"].unit, schema.fields["t"].description) == ("°C", "Oil")
    assert left_out == ["either", "rows"]


ENUM = {"type": "enum", "name": "E"}
MOTOR = {"type": "record", "name": "Motor", "fields": [{"name": "rpm", "type": "int"}]}
RECORD = {
    "type": "record", "name": "Reading", "namespace": "plant",
    "fields": [
        {"name": "t", "type": "double", "doc": "Oil"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["on", "off"]}},
        {"name": "last", "type": "State"},
        {"name": "motor", "type": ["null", MOTOR]},
        {"name": "next", "type": ["null", "Reading"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "list", "type": {"type": "array", "items": "float"}},
    ],
}  # fmt: skip


def test_a_schema_of_avro_is_the_model() -> None:
    schema, left_out = model(RECORD)
    assert {name: type_ for name, (type_, *_) in columns(schema).items()} == {
        "t": "float", "at": "timestamp(ms)", "price": "decimal(6,2)", "state": "string", "last": "string",
        "motor_rpm": "int", "list": "array<float>",
    }  # fmt: skip
    assert (schema.format, schema.fields["t"].description) == ("avro", "Oil")
    assert left_out == ["next", "tags"]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"type": "record", "name": "A", "fields": [{"name": "x", "type": "B"}]}, "no type 'B'"),
        ({"type": "record", "fields": []}, "has no name"),
        ({"type": "record", "name": "A", "fields": []}, "no field that can be a column"),
        ({"type": "record", "name": "A", "fields": [{"name": "x", "type": ENUM}]}, "symbols of Avro"),
        ({"properties": {"x": {"$ref": "#/x"}}}, "there is no #/x"),
        ({"properties": {"x": {"$ref": "other.json"}}}, "not within this file"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"x": {"$ref": "#/$defs/a"}}}, "in a circle"),
        ({"properties": {f"f{at}": {"type": "number"} for at in range(300)}}, "more than 256 fields"),
    ],
)  # fmt: skip
def test_mistakes_are_named(written: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        imported(json.dumps(written))


def test_schemas_that_grow_without_end_are_bounded() -> None:
    tree: dict[str, Any] = {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}
    with pytest.raises(ValueError, match="no field"):
        imported(json.dumps(tree))
    kinds: dict[str, Any] = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for at in range(1, 20):
        fields = [{"name": "a", "type": kinds}, {"name": "b", "type": f"R{at - 1}"}]
        kinds = {"type": "record", "name": f"R{at}", "fields": fields}
    with pytest.raises(ValueError, match=r"more than 256 fields|no field"):
        imported(json.dumps(kinds))
    nested: dict[str, Any] = {
        f"d{at}": {"properties": {f"p{n}": {"$ref": f"#/$defs/d{at + 1}"} for n in range(10)}} for at in range(15)
    }
    nested["d15"] = {"properties": {}}
    with pytest.raises(ValueError, match="no field"):
        imported(json.dumps({"$schema": "x", "$defs": nested, **nested["d0"]}))
