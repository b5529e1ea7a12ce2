"""Protobuf's wire format, beside Google's own library."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config.load import parse_schema
from weft.config.payload_schema.documents import imported_descriptors, yaml_text
from weft.config.payload_schema.languages import INT32, MESSAGE, ProtoField, ProtoMessage, parse_descriptors
from weft.config.payload_schema.model import PayloadSchema
from weft.storage.payloads.decoder import PayloadDecoder
from weft.storage.payloads.formats import FIELDS_MAX, ProtobufDecoder, Unreadable

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


SCHEMA = schema()
DECODER = ProtobufDecoder(parse_descriptors(SCHEMA.definition or ""))
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
    made = PayloadDecoder(SCHEMA, [*SCHEMA.fields, "_misfit"])
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
        {"format": "protobuf", "definition": SCHEMA.definition, "framing": "confluent", "fields": {"t": "float"}}
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
def test_what_is_hostile_is_refused(payload: bytes, words: str) -> None:
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
def test_any_bytes_are_a_value_or_have_a_reason(noise: bytes, fields: dict[str, Any]) -> None:
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
