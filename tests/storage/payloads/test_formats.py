"""Payloads of the formats that have schemas: values, reasons, and versions that fit each other."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, timestamp_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft.config.load import parse_schema
from weft.config.payload_schema.documents import imported, imported_descriptors, incompatible, is_read_as, yaml_text
from weft.config.payload_schema.languages import INT32, MESSAGE, ProtoField, ProtoMessage, parse_avro, parse_descriptors
from weft.config.payload_schema.model import Compatibility, FieldType, PayloadSchema, field_type
from weft.storage.payloads.check import fit
from weft.storage.payloads.decoder import PayloadDecoder
from weft.storage.payloads.formats import FIELDS_MAX, AvroDecoder, Misfit, ProtobufDecoder, Unreadable

# --- Avro's binary encoding: values as its specification says, and a reason for everything else


SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "t", "type": ["null", "double"]},
        {"name": "s", "type": "string"},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["on", "off"]}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "map", "type": {"type": "map", "values": "boolean"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
    ],
}


def number(value: int) -> bytes:
    """Zigzag in groups of seven bits, the lowest first."""
    value = (value << 1) ^ (value >> 63)
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def text(value: str) -> bytes:
    return number(len(value.encode())) + value.encode()


def encoded(n: int = -64, t: float | None = 1.5, s: str = "é") -> bytes:
    return b"".join(
        [
            number(n),
            number(0) if t is None else number(1) + struct.pack("<d", t),
            text(s),
            number(1),
            b"\x01\x02",
            # A block with its size before it, and another without.
            number(-2),
            number(2),
            number(3),
            number(-4),
            number(1),
            number(5),
            number(0),
            number(1),
            text("k"),
            b"\x01",
            number(0),
            number(2),
            (-150).to_bytes(2, signed=True),
            number(1_700_000_000_123),
            number(20_758),
            number(1_700_000_000_123),
        ]
    )


def decoder() -> AvroDecoder:
    return AvroDecoder(parse_avro(json.dumps(SCHEMA)))


def test_numbers_are_those_of_the_specification() -> None:
    assert [number(each) for each in (0, -1, 1, -2, 2, -64, 64)] == [
        b"\0",
        b"\1",
        b"\2",
        b"\3",
        b"\4",
        b"\x7f",
        b"\x80\1",
    ]
    assert text("foo") == bytes.fromhex("06666f6f")


def test_every_type_is_read() -> None:
    assert decoder().decode(encoded()) == {
        "n": -64,
        "t": 1.5,
        "s": "é",
        "e": "off",
        "f": b"\x01\x02",
        "list": [3, -4, 5],
        "map": {"k": True},
        "d": Decimal("-1.50"),
        "at": 1_700_000_000_123,
        "day": 20_758,
        "local": 1_700_000_000_123,
    }


def test_payloads_become_typed_columns_and_others_misfits() -> None:
    found = imported(json.dumps(SCHEMA))
    assert found is not None
    schema = parse_schema(found.settings | {"framing": "confluent"})
    made = PayloadDecoder(schema, [*schema.fields, "_misfit"])
    head = b"\0\0\0\0\7"
    columns = made.columns(pa.array([head + encoded(), encoded(), head + encoded(t=None)[:-1]], pa.binary()))
    assert columns["t"].to_pylist() == [1.5, None, None]
    assert columns["d"].to_pylist() == [Decimal("-1.50"), None, None]
    assert columns["at"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, None, None]
    assert columns["day"].to_pylist() == [date(2026, 11, 1), None, None]
    assert columns["local"].to_pylist() == [datetime(2023, 11, 14, 22, 13, 20, 123_000), None, None]  # noqa: DTZ001
    reasons = [dict(row or ()).get("payload") for row in columns["_misfit"].to_pylist()]
    assert reasons == [
        None,
        "it does not begin with 0 and the id of a schema, as `framing: confluent` demands",
        "it ends within a value",
    ]


@pytest.mark.parametrize(
    ("schema", "payload", "words"),
    [
        ({"type": "array", "items": "null"}, number(1 << 60), "at most one for each byte"),
        ({"type": "array", "items": "null"}, number(-(1 << 60)) + number(0), "at most one for each byte"),
        ("bytes", number(1 << 40) + b"x", "ends within"),
        ("long", b"\xff" * 11, "more than 64 bits"),
        (["null", "int"], number(7), "branch 7 of a union of 2"),
        ("int", b"\x02\x02", "there are 1 more"),
        ({"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}, b"\x02" * 1000, "deep in"),
    ],
)
def test_what_is_hostile_is_refused(schema: Any, payload: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        AvroDecoder(parse_avro(json.dumps(schema))).decode(payload)


def test_values_that_take_no_bytes_have_a_bound() -> None:
    kind: Any = {"type": "record", "name": "r0", "fields": [{"name": "x", "type": "null"}]}
    for n in range(1, 25):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"r{n - 1}"}]
        kind = {"type": "record", "name": f"r{n}", "fields": fields}
    with pytest.raises(Unreadable, match="too many values without bytes"):
        AvroDecoder(parse_avro(json.dumps(kind))).decode(b"")
    nulls = {"type": "array", "items": {"type": "array", "items": "null"}}
    inner = number(4000) + number(0)
    with pytest.raises(Unreadable, match="too many values without bytes"):
        AvroDecoder(parse_avro(json.dumps(nulls))).decode(number(2000) + 2000 * inner + number(0))
    longs = {"type": "array", "items": "long"}
    value = AvroDecoder(parse_avro(json.dumps(longs))).decode(number(100_000) + 100_000 * b"\x02" + number(0))
    assert value == [1] * 100_000


@given(st.binary(max_size=60))
@example(encoded())
def test_any_bytes_are_a_value_or_have_a_reason(payload: bytes) -> None:
    made = decoder()
    for data in (payload, encoded()[: len(payload)] + payload):
        try:
            made.decode(data)
        except Unreadable:
            pass


# --- Protobuf's wire format, beside Google's own library


READING = """
file { name: "google/protobuf/timestamp.proto" package: "google.protobuf" syntax: "proto3"
  message_type { name: "Timestamp"
    field { name: "seconds" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }
    field { name: "nanos" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 } } }
file { name: "reading.proto" package: "plant" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
  message_type { name: "Reading"
    field { name: "t" number: 1 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
    field { name: "n" number: 2 label: LABEL_OPTIONAL type: TYPE_SINT64 }
    field { name: "s" number: 3 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "state" number: 4 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".plant.State" }
    field { name: "at" number: 5 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" }
    field { name: "list" number: 6 label: LABEL_REPEATED type: TYPE_INT32 }
    field { name: "tags" number: 7 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".plant.Reading.TagsEntry" }
    field { name: "inner" number: 8 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".plant.Reading" }
    field { name: "f" number: 9 label: LABEL_OPTIONAL type: TYPE_FLOAT }
    field { name: "u" number: 10 label: LABEL_OPTIONAL type: TYPE_FIXED64 }
    field { name: "b" number: 11 label: LABEL_OPTIONAL type: TYPE_BOOL }
    field { name: "raw" number: 12 label: LABEL_OPTIONAL type: TYPE_BYTES }
    field { name: "maybe" number: 13 label: LABEL_OPTIONAL type: TYPE_INT64 oneof_index: 0 proto3_optional: true }
    field { name: "names" number: 2000 label: LABEL_REPEATED type: TYPE_STRING }
    oneof_decl { name: "_maybe" }
    nested_type { name: "TagsEntry" options { map_entry: true }
      field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
      field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_INT64 } } }
  enum_type { name: "State" value { name: "OFF" number: 0 } value { name: "ON" number: 1 } } }
"""
DESCRIPTORS = text_format.Parse(READING, descriptor_pb2.FileDescriptorSet())


def reading_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in DESCRIPTORS.file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("plant.Reading"))


Reading = reading_class()


def schema() -> PayloadSchema:
    found = imported_descriptors(DESCRIPTORS.SerializeToString(), None)
    assert found.left_out == ["tags", "inner"]
    made = parse_schema(found.settings)
    assert parse_schema(yaml_text(made)) == made
    return made


PROTOBUF_SCHEMA = schema()
DECODER = ProtobufDecoder(parse_descriptors(PROTOBUF_SCHEMA.definition or ""))
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "t": st.floats(allow_nan=False),
        "n": INT64,
        "s": st.text(max_size=5),
        "state": st.integers(0, 1),
        "list": st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=4),
        "tags": st.dictionaries(st.text(max_size=3), INT64, max_size=3),
        "f": st.floats(allow_nan=False, width=32),
        "u": st.integers(0, (1 << 64) - 1),
        "b": st.booleans(),
        "raw": st.binary(max_size=4),
        "maybe": INT64,
        "names": st.lists(st.text(max_size=3), max_size=3),
    },
)


@settings(max_examples=60)
@given(FIELDS, FIELDS)
def test_values_are_those_of_googles_library(outer: dict[str, Any], inner: dict[str, Any]) -> None:
    at = timestamp_pb2.Timestamp(seconds=1_700_000_000, nanos=123_456_789)
    message = Reading(**outer, inner=Reading(**inner), at={"seconds": at.seconds, "nanos": at.nanos})
    found = DECODER.decode(message.SerializeToString())
    assert found.pop("at") == datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC)
    assert found.pop("inner") == expected(inner)
    assert found == expected(outer)


def expected(fields: dict[str, Any]) -> dict[str, Any]:
    numbers = {"t": 0.0, "n": 0, "f": 0.0, "u": 0, "b": False}
    defaults = {**numbers, "s": "", "list": [], "tags": {}, "raw": b"", "names": []}
    return defaults | fields | {"state": ["OFF", "ON"][fields.get("state", 0)]}


def test_payloads_become_typed_columns() -> None:
    made = PayloadDecoder(PROTOBUF_SCHEMA, [*PROTOBUF_SCHEMA.fields, "_misfit"])
    first = Reading(t=1.5, state=1, at={"seconds": 5}, list=[1, -2]).SerializeToString()
    columns = made.columns(pa.array([first, b"", b"\x09\x00"], pa.binary()))
    assert columns["t"].to_pylist() == [1.5, 0.0, None]
    assert columns["state"].to_pylist() == ["ON", "OFF", None]
    assert columns["at"].cast(pa.int64()).to_pylist() == [5_000_000, None, None]
    assert columns["list"].to_pylist() == [[1, -2], [], None]
    assert columns["maybe"].to_pylist() == [None, None, None]
    assert columns["_misfit"].to_pylist() == [None, None, [("payload", "it ends within a value")]]


def test_framing_is_passed_over() -> None:
    framed = parse_schema(
        {
            "format": "protobuf",
            "definition": PROTOBUF_SCHEMA.definition,
            "framing": "confluent",
            "fields": {"t": "float"},
        }
    )
    made, body = PayloadDecoder(framed, ["t", "_misfit"]), Reading(t=2.5).SerializeToString()
    payloads = [b"\0\0\0\0\7\0" + body, b"\0\0\0\0\7\x04\x02\x00" + body, body]
    columns = made.columns(pa.array(payloads, pa.binary()))
    assert columns["t"].to_pylist() == [2.5, 2.5, None]


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\x1a\xff\xff\xff\xff\x0f", "ends within"),
        (b"\x10" + b"\xff" * 11, "more than 64 bits"),
        (b"\x08\x01", "wire type 0, which is none of its type"),
        (b"\x07", "wire type 7"),
        (b"\xa3\x06" * 300, "deep in each other"),
    ],
)
def test_hostile_protobuf_is_refused(payload: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        DECODER.decode(payload)


def test_messages_within_each_other_are_bounded() -> None:
    message = Reading()
    for _ in range(90):
        message = Reading(inner=message)
    assert DECODER.decode(message.SerializeToString())["inner"]
    inside = message.SerializeToString()
    for _ in range(60):
        size = len(inside)
        inside = b"\x42" + bytes([size & 0x7F | 0x80, size >> 7]) + inside
    with pytest.raises(Unreadable, match="deep in each other"):
        DECODER.decode(inside)


@settings(max_examples=60)
@given(st.binary(max_size=40), FIELDS)
def test_any_bytes_of_protobuf_are_a_value_or_have_a_reason(noise: bytes, fields: dict[str, Any]) -> None:
    good = Reading(**fields).SerializeToString()
    for payload in (noise, good[: len(noise)] + noise, good + noise):
        with contextlib.suppress(Unreadable):
            DECODER.decode(payload)


@pytest.mark.parametrize(
    ("data", "message", "words"),
    [
        (
            DESCRIPTORS.SerializeToString(),
            "plant.Other",
            "has no message plant.Other; it has google.protobuf.Timestamp",
        ),
        (DESCRIPTORS.SerializeToString()[:-3], None, "ends within a field"),
        (b"not one", None, "ends within a field"),
        (b"", None, "name the message"),
    ],
)
def test_mistakes_in_definitions_are_named(data: bytes, message: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        imported_descriptors(data, message)


def test_two_bytes_are_a_message_with_many_fields_and_only_so_many_are_filled() -> None:
    inner = ProtoMessage("Inner", {n: ProtoField(f"f{n}", n, INT32, False, True, "") for n in range(1, 257)})
    root = ProtoMessage("Root", {1: ProtoField("list", 1, MESSAGE, True, False, "Inner", inner)})
    fits = FIELDS_MAX // 256 - 1
    assert len(ProtobufDecoder(root).decode(b"\x0a\x00" * fits)["list"]) == fits
    with pytest.raises(Unreadable, match="more than 131072 fields together"):
        ProtobufDecoder(root).decode(b"\x0a\x00" * (1 << 19))


def test_types_that_name_each_other_are_looked_at_within_bounds() -> None:
    messages = "".join(
        f'message_type {{ name: "M{at}" '
        + "".join(
            f'field {{ name: "f{n}" number: {n} label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".M{at + 1}" }} '
            for n in range(1, 11)
        )
        + "} "
        for at in range(15)
    )
    text = f'file {{ name: "x" syntax: "proto3" {messages} message_type {{ name: "M15" }} }}'
    data = text_format.Parse(text, descriptor_pb2.FileDescriptorSet()).SerializeToString()
    with pytest.raises(ValueError, match="no field that can be a column"):
        imported_descriptors(data, "M0")


# --- Compatibility of versions of a schema: what it promises of payloads, by the checks that decide what fits


NAMES = (
    "bool",
    "int",
    "float",
    "string",
    "timestamp",
    "timestamp(s)",
    "timestamp(ms)",
    "date",
    "date(d)",
    "local_timestamp",
    "local_timestamp(ms)",
    "decimal(4,2)",
    "decimal(10,2)",
    "decimal(10,5)",
    "decimal(21,2)",
    "decimal(38,18)",
)
TYPES = st.sampled_from([*NAMES, *(f"array<{name}>" for name in NAMES)]).map(field_type)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-1000, 1000),
    st.floats(),
    st.text(max_size=4),
    st.decimals(allow_nan=False),
    st.sampled_from(
        [
            "2026-11-01T00:00:00Z",
            "2026-11-01T00:00:00",
            "2026-11-01",
            "12.50",
            1.0,
            99.99,
            (1 << 63) - 1,
            Decimal("1.25"),
        ]
    ),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3))


def fits(kind: FieldType, value: Any) -> bool:
    try:
        fit(kind, value)
    except Misfit:
        return False
    return True


@given(TYPES, TYPES, VALUES)
def test_what_fits_a_type_fits_every_type_that_reads_it(given_type: FieldType, wanted: FieldType, value: Any) -> None:
    if is_read_as(given_type, wanted) and fits(given_type, value):
        assert fits(wanted, value)


@pytest.mark.parametrize(
    ("before", "after", "backward", "forward"),
    [
        ("a int", "a int, b float", None, None),
        ("a int, b float", "a int", None, None),
        ("a int", "a float", None, "a: not every float is a int"),
        ("a float", "a string", "a: not every float is a string", "a: not every string is a float"),
        ("a int", "a int not null", "a is required, and may be missing in the other version", None),
        ("a int", "a int, b int not null", "b is required, and the other version does not have it", None),
        ("a int, b int not null", "a int", None, "b is required, and the other version does not have it"),
        (
            "fields: {t: {type: float, unit: C}}",
            "fields: {t: {type: float, unit: K}}",
            "t has unit C, and not K",
            "t has unit K, and not C",
        ),
        ("fields: {t: {type: float, from: a.t}}", "t float", "t is at a.t, and not at t", "t is at t, and not at a.t"),
        ("a timestamp(s)", "a timestamp(ms)", "not every timestamp(s) is a timestamp(ms)", "not every timestamp(ms)"),
        ("a date", "a timestamp", "a: not every date is a timestamp", "a: not every timestamp is a date"),
        (
            "a local_timestamp",
            "a timestamp",
            "a: not every local_timestamp is a timestamp",
            "a: not every timestamp is a local_timestamp",
        ),
        ("a date", "a date(d)", "a: not every date is a date(d)", "a: not every date(d) is a date"),
        ("format: cbor\nfields: {a: int}", "a int", "cbor cannot be read as json", "json cannot be read as cbor"),
    ],
)
def test_rules_name_the_field_and_the_reason(
    before: str, after: str, backward: str | None, forward: str | None
) -> None:
    one, other = parse_schema(before), parse_schema(after)
    for rule, reasons in (("backward", [backward]), ("forward", [forward]), ("full", [backward, forward])):
        found = incompatible(one, other, rule)  # type: ignore[arg-type]
        wanted = [reason for reason in reasons if reason is not None]
        assert len(found) == len(wanted), found
        assert all(reason in said for reason, said in zip(wanted, found, strict=True)), found
    assert incompatible(one, other, "none") == []


def avro(*fields: dict[str, Any]) -> PayloadSchema:
    definition = json.dumps({"type": "record", "name": "R", "fields": list(fields)})
    return parse_schema({"format": "avro", "definition": definition, "fields": {"t": "float"}})


T = {"name": "t", "type": "double"}


@pytest.mark.parametrize("rule", ["backward", "forward", "full"])
def test_payloads_of_avro_need_the_definition_that_wrote_them(rule: Compatibility) -> None:
    assert incompatible(avro(T), avro(T | {"doc": "oil"}), rule) == []
    assert "by the definition alone" in incompatible(avro(T), avro(T, {"name": "u", "type": "int"}), rule)[0]


def _proto(*fields: tuple[str, int, int]) -> PayloadSchema:
    """A descriptor set with one message of proto3."""

    def part(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    message = part(1, b"R") + b"".join(
        part(2, part(1, name.encode()) + bytes([3 << 3, number, 4 << 3, 1, 5 << 3, kind]))
        for name, number, kind in fields
    )
    file = part(1, b"r.proto") + part(4, message) + part(12, b"proto3")
    definition = base64.b64encode(part(1, file)).decode()
    return parse_schema({"format": "protobuf", "definition": definition, "fields": {"t": "float"}})


def test_fields_of_protobuf_keep_number_name_and_type() -> None:
    one = _proto(("t", 1, 1))
    assert incompatible(one, _proto(("t", 1, 1), ("n", 2, 3)), "full") == []
    assert "field t of R is of another type" in incompatible(one, _proto(("t", 1, 9)), "backward")[0]
    assert "field 1 of R is t, and not u" in incompatible(one, _proto(("u", 1, 1)), "backward")[0]
