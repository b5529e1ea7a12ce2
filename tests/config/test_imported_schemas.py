"""JSON Schema and Avro as the model: what can be a column is one, and the rest is named."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest

from weft.config.load import parse_schema
from weft.config.payload_schema.documents import imported, yaml_text
from weft.config.payload_schema.model import PayloadSchema
from weft.storage.payloads.check import PayloadCheck


def model(written: dict[str, Any]) -> tuple[PayloadSchema, list[str]]:
    found = imported(json.dumps(written))
    assert found is not None
    schema = parse_schema(found.settings)
    assert parse_schema(yaml_text(schema)) == schema, "`get` prints what `set` reads"
    return schema, found.left_out


def columns(schema: PayloadSchema) -> dict[str, tuple[str, str | None, bool]]:
    return {name: (str(field.type), field.from_, field.required) for name, field in schema.fields.items()}


def test_a_json_schema_is_the_model() -> None:
    schema, left_out = model(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$defs": {"motor": {"type": "object", "required": ["rpm"], "properties": {"rpm": {"type": "integer"}}}},
            "type": "object",
            "required": ["t", "motor"],
            "properties": {
                "t": {"type": ["number", "null"], "unit": "°C", "description": "Oil"},
                "motor": {"$ref": "#/$defs/motor"},
                "at": {"type": "string", "format": "date-time"},
                "local": {"type": "string", "format": "date-time-local"},
                "days": {"type": "array", "items": {"type": "string", "format": "date"}},
                "state": {"enum": ["on", "off"]},
                "raw": {"type": "string", "contentEncoding": "base64"},
                "list": {"type": "array", "items": {"type": "number"}},
                "either": {"type": ["number", "string"]},
                "rows": {"type": "array", "items": {"type": "object"}},
            },
        }
    )
    assert columns(schema) == {
        "t": ("float", None, False),
        "motor_rpm": ("int", "motor.rpm", True),
        "at": ("timestamp", None, False),
        "local": ("local_timestamp", None, False),
        "days": ("array<date>", None, False),
        "state": ("string", None, False),
        "raw": ("binary", None, False),
        "list": ("array<float>", None, False),
    }
    assert (schema.fields["t"].unit, schema.fields["t"].description) == ("°C", "Oil")
    assert left_out == ["either", "rows"]


NUMBER_OR_NULL = {"anyOf": [{"type": "number"}, {"type": "null"}]}
READING = {
    "$defs": {
        "Motor": {
            "properties": {
                "rpm": {"title": "Rpm", "type": "integer"},
                "since": {"anyOf": [{"format": "date", "type": "string"}, {"type": "null"}], "title": "Since"},
            },
            "required": ["rpm", "since"],
            "title": "Motor",
            "type": "object",
        }
    },
    "properties": {
        "t": {**NUMBER_OR_NULL, "default": None, "description": "Oil", "title": "T"},
        "needed": {**NUMBER_OR_NULL, "title": "Needed"},
        "level": {"anyOf": [{"type": "integer"}, {"type": "number"}], "title": "Level"},
        "at": {"format": "date-time", "title": "At", "type": "string"},
        "motor": {"anyOf": [{"$ref": "#/$defs/Motor"}, {"type": "null"}], "default": None},
        "spare": {"$ref": "#/$defs/Motor"},
        "modes": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": None},
        "either": {"anyOf": [{"type": "number"}, {"type": "string"}], "default": 0.0},
    },
    "required": ["needed", "level", "at", "spare"],
    "title": "Reading",
    "type": "object",
}
"""What `model_json_schema` of Pydantic 2 writes for optional and nested fields."""


def test_optional_values_of_pydantic_are_columns_that_may_be_null() -> None:
    schema, left_out = model(READING)
    assert columns(schema) == {
        "t": ("float", None, False),
        "needed": ("float", None, False),
        "level": ("float", None, True),
        "at": ("timestamp", None, True),
        "motor_rpm": ("int", "motor.rpm", False),
        "motor_since": ("date", "motor.since", False),
        "spare_rpm": ("int", "spare.rpm", True),
        "spare_since": ("date", "spare.since", False),
        "modes": ("array<string>", None, False),
    }
    assert (schema.fields["t"].description, left_out) == ("Oil", ["either"])
    fits = {"needed": None, "level": 1, "at": "2026-11-01T12:00:00Z", "spare": {"rpm": 1, "since": "2026-11-01"}}
    assert PayloadCheck(schema).misfits(json.dumps(fits).encode()) == [], "what fits the JSON Schema fits the model"


COMMONS = "https://smart-data-models.github.io/data-models/common-schema.json#/definitions/"
AIR_QUALITY = {
    "$schema": "http://json-schema.org/schema#",
    "$id": "https://smart-data-models.github.io/dataModel.Environment/AirQualityObserved/schema.json",
    "type": "object",
    "required": ["id", "type", "dateObserved"],
    "allOf": [
        {"$ref": f"{COMMONS}GSMA-Commons"},
        {"$ref": f"{COMMONS}Location-Commons"},
        {
            "properties": {
                "type": {"type": "string", "enum": ["AirQualityObserved"]},
                "dateObserved": {"type": "string", "format": "date-time"},
                "airQualityIndex": {"type": "number", "minimum": 0},
                "areaServed": {"$ref": f"{COMMONS}area"},
                "refDevice": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "string", "format": "uri"}]},
            }
        },
        {"properties": {"airQualityIndex": {"description": "of the day"}}},
    ],
}


def test_parts_of_other_files_are_lost_and_the_rest_is_not() -> None:
    schema, left_out = model(AIR_QUALITY)
    assert columns(schema) == {
        "type": ("string", None, True),
        "dateObserved": ("timestamp", None, True),
        "airQualityIndex": ("float", None, False),
        "refDevice": ("string", None, False),
    }
    assert schema.fields["airQualityIndex"].description == "of the day"
    assert [each.split()[0] for each in left_out] == ["$", "$", "areaServed"]
    assert all("is not within this file" in each for each in left_out)


def test_variants_of_an_object_are_columns_that_may_be_missing() -> None:
    cat = {"properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}, "size": {"type": "integer"}}}
    dog = {"properties": {"kind": {"const": "dog"}, "breed": {"type": "string"}, "size": {"type": "number"}}}
    pet = {"$defs": {"cat": cat, "dog": dog}, "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]}
    schema, _ = model(pet | {"required": ["kind"], "properties": {"age": {"type": ["integer", "null"]}}})
    assert columns(schema) == {
        "age": ("int", None, False),
        "kind": ("string", None, True),
        "lives": ("int", None, False),
        "size": ("float", None, False),
        "breed": ("string", None, False),
    }


ENUM = {"type": "enum", "name": "E"}
MOTOR = {"type": "record", "name": "Motor", "fields": [{"name": "rpm", "type": "int"}]}
RECORD = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant",
    "fields": [
        {"name": "t", "type": "double", "doc": "Oil"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["on", "off"]}},
        {"name": "last", "type": "State"},
        {"name": "motor", "type": ["null", MOTOR]},
        {"name": "next", "type": ["null", "Reading"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "list", "type": {"type": "array", "items": "float"}},
    ],
}


def test_a_schema_of_avro_is_the_model() -> None:
    schema, left_out = model(RECORD)
    assert {name: type_ for name, (type_, *_) in columns(schema).items()} == {
        "t": "float",
        "at": "timestamp(ms)",
        "day": "date(d)",
        "local": "local_timestamp(us)",
        "price": "decimal(6,2)",
        "state": "string",
        "last": "string",
        "motor_rpm": "int",
        "list": "array<float>",
    }
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
)
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


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_schemas_that_multiply_are_refused_soon(word: str) -> None:
    twice = {f"d{at}": {word: [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(30)}
    twice["d30"] = {"type": "object", "properties": {f"p{at}": {} for at in range(100)}}  # type: ignore[dict-item]
    began = process_time()
    with pytest.raises(ValueError, match="has more than 65536 parts"):
        imported(json.dumps({"$defs": twice, **twice["d0"]}))
    long = {"required": [f"n{at}" for at in range(50_000)], "enum": ["x"] * 10_000}
    with pytest.raises(ValueError, match="has more than 65536 parts"):
        imported(json.dumps({"$defs": {"a": long}, word: [{"$ref": "#/$defs/a"}] * 10_000}))
    circle = {"$defs": {"a": {word: [{"$ref": "#/$defs/a"}]}}, "properties": {"x": {"$ref": "#/$defs/a"}}}
    with pytest.raises(ValueError, match="in a circle"):
        imported(json.dumps(circle))
    assert process_time() - began < 5
