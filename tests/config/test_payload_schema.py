"""A payload schema is declared in YAML, JSON or one line, and a mistake names its place and what to write."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config.errors import ConfigError
from weft.config.load import parse_schema, schema_text
from weft.config.payload_schema.documents import PayloadSample, imported, yaml_text
from weft.config.payload_schema.model import PayloadSchema, field_type
from weft.config.payload_schema.paths import format_path, parse_path
from weft.config.schema import schema
from weft.storage.payloads.check import PayloadCheck

WHOLE = """\
format: cbor
fields:
  temperature: float
  unit: string
  at: {type: timestamp(ms), from: time, required: true}
  rpm: {type: int, from: motor.rpm, unit: 1/min, description: Speed of the main motor}
  peaks: {type: array<float>, from: 'spectrum[0]["a.b"]'}
"""


def test_yaml_json_and_a_line_declare_the_same() -> None:
    declared = parse_schema(WHOLE)
    assert declared.format == "cbor"
    assert str(declared.fields["at"].type) == "timestamp(ms)"
    assert declared.fields["at"].required
    assert declared.fields["temperature"].path("temperature") == ("temperature",)
    assert declared.fields["peaks"].path("peaks") == ("spectrum", 0, "a.b")
    assert parse_schema(schema_text(declared)) == declared
    line = parse_schema(
        "temperature double, n bigint not null, d decimal(10, 2), a array<boolean>, l timestamp_ntz",
        payload_format="msgpack",
    )
    kinds = {name: str(each.type) for name, each in line.fields.items()}
    assert kinds == {
        "temperature": "float",
        "n": "int",
        "d": "decimal(10,2)",
        "a": "array<bool>",
        "l": "local_timestamp",
    }
    assert [name for name, each in line.fields.items() if each.required] == ["n"]
    assert line.format == "msgpack"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "fields: {a: double}",
            "schema:1: fields.a: expected a type such as float, int, string, timestamp(ms) or "
            'array<float>, got "double". Did you mean float?',
        ),
        ("fields:\n  a: {typ: float}", "schema:2: fields.a.typ: is not a setting. Did you mean type?"),
        (
            "format: xml\nfields: {a: int}",
            'schema:1: format: expected avro or cbor or json or msgpack or protobuf, got "xml"',
        ),
        ("fields: {a: {type: int, from: a..b}}", 'expected a path such as motor.rpm or readings[0].value, got "a..b"'),
        ("fields: {_a: int}", "names that begin with _ are the stream's own columns. Name the field otherwise"),
        ("fields: {payload: int}", "`payload` is the column of the bytes as sent"),
        ("fields: {a b: int}", 'expected a name of letters, digits and _, at most 64 characters, got "a b"'),
        ("fields: {a: int, A: int}", "A: is the same column as a: names may not differ in case only"),
        ("fields: {}", "expected names with their settings"),
        ("format: json", "fields: is missing"),
        ("a", "expected columns such as `temperature float, unit string`, or YAML with `fields:`"),
        ("a int, a int", "a is named twice"),
        ("a decimal(50,2)", "expected decimal(DIGITS,SCALE) with 1 to 38 digits"),
        ("a timestamp(min)", "expected timestamp(s), (ms), (us) or (ns)"),
        ("a local_timestamp(d)", "expected local_timestamp(s), (ms), (us) or (ns)"),
        ("a date(ms)", 'got "date(ms)". Did you mean date?'),
        ("a " + "array<" * 5000 + "int" + ">" * 5000, "expected an array of single values"),
    ],
)
def test_a_mistake_says_where_and_what_to_write(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_schema(text)
    assert sentence in str(caught.value)


def test_a_format_beside_a_schema_that_has_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave out payload_format"):
        parse_schema(WHOLE, payload_format="json")


def test_a_mapping_of_other_things_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected text, numbers, lists and mappings alone"):
        parse_schema({"fields": {"a": object()}})


@given(st.lists(st.text(max_size=5) | st.integers(0, 65_535), max_size=16))
def test_every_path_has_a_text(steps: list[str | int]) -> None:
    assert parse_path(format_path(tuple(steps))) == tuple(steps)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "$a", "a[x]", "a[-1]", 'a["b', "a b]", "[0", "$.", "a.[0]"])
def test_a_text_that_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_path(text)


def test_the_json_schema_allows_the_short_form_and_knows_the_types() -> None:
    definitions: dict[str, Any] = schema(PayloadSchema)["$defs"]
    values = definitions["PayloadSchema"]["properties"]["fields"]["additionalProperties"]["anyOf"]
    assert {"$ref": "#/$defs/SchemaField/properties/type"} in values
    assert "timestamp" in definitions["SchemaField"]["properties"]["type"]["pattern"]


@given(
    st.sampled_from(
        ["bool", "Float", "timestamp( s )", "decimal(5)", "array< int >", "date( D )", "Local_Timestamp( us )"]
    )
)
def test_a_type_is_written_back_in_one_way(text: str) -> None:
    kind = field_type(text)
    assert field_type(str(kind)) == kind


# --- JSON Schema and Avro as the model: what can be a column is one, and the rest is named


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


# --- Drafts of schemas from samples: what is found is said, and a draft is a schema


def draft(*payloads: Any, broken: int = 0) -> str:
    sample = PayloadSample()
    sample.take(payloads, broken)
    return sample.draft("json")


def fields(*payloads: Any) -> dict[str, str]:
    return {name: str(field.type) for name, field in parse_schema(draft(*payloads)).fields.items()}


def test_types_are_those_of_all_records() -> None:
    assert fields({"a": 1, "b": 1, "c": True, "d": "x"}, {"a": 2, "b": 2.5, "c": None, "e": [1, 2.5]}) == {
        "a": "int",
        "b": "float",
        "c": "bool",
        "d": "string",
        "e": "array<float>",
    }


def test_times_are_known_by_their_form_or_their_name_and_size() -> None:
    when = {"ts": 1_700_000_000_000, "n": 1_700_000_000_000, "read_at": 1_700_000_000, "iso": "2024-05-01T12:00:00Z"}
    assert fields(when) == {"ts": "timestamp(ms)", "n": "int", "read_at": "timestamp(s)", "iso": "timestamp"}
    assert fields(when, {"ts": 5, "iso": "soon"})["ts"] == "int"
    assert fields(when, {"iso": "soon"})["iso"] == "string"


def test_days_and_times_of_most_texts_are_drafted_with_what_is_known_of_them() -> None:
    days = [f"2026-11-{day:02}" for day in range(1, 29)]
    records: list[Any] = [
        {
            "ts": f"{day}T12:00:00+01:00",
            "basic": f"{day.replace('-', '')}T120000+0100",
            "day": day,
            "local": f"{day} 07:00",
        }
        for day in days
    ]
    records += [
        {"ts": "unknown", "basic": records[0]["basic"], "day": days[0], "local": "2026-11-01 07:00", "no": "2026"}
    ]
    assert fields(*records) == {
        "ts": "timestamp",
        "basic": "timestamp",
        "day": "date",
        "local": "timestamp",
        "no": "string",
    }
    lines = draft(*records).splitlines()
    assert "  ts: timestamp  # 1 of 29 texts are none" in lines
    assert next(line for line in lines if "local:" in line).startswith(
        "  local: timestamp  # without an offset, so in UTC"
    )
    assert fields(*[{"day": "2026-02-30"}] * 3, {"day": "2026-02-01"}) == {"day": "string"}


def test_a_draft_says_what_it_found() -> None:
    assert (
        draft({"m": {"rpm": 900}, "t": 1, "o": [{"x": 1}]}, {"t": "hot"}, {"t": 3}, broken=1)
        == """\
# A draft from 4 records; 1 of them are not json. Add units, descriptions and what is required.
format: json
fields:
  m_rpm: {type: int, from: m.rpm}  # 900 to 900; in 25 % of the records
  t: int  # 1 to 3; 1 of 3 are text; in 75 % of the records
  # o: arrays of objects or arrays: name single places, such as readings[0].value
"""
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=4), inside, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25)
@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), min_size=1, max_size=5))
def test_every_draft_is_a_schema(payloads: list[dict[str, Any]]) -> None:
    text = draft(*(json.loads(json.dumps(each)) for each in payloads))
    if [line for line in text.splitlines()[3:] if not line.lstrip().startswith("#")]:
        parse_schema(text)
