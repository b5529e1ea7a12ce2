"""A payload schema is declared in YAML, JSON or one line, and a mistake names its place and what to write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.config.errors import ConfigError
from weft.config.load import parse_schema, schema_text
from weft.config.payload_schema.model import PayloadSchema, field_type
from weft.config.payload_schema.paths import format_path, parse_path
from weft.config.schema import schema

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
