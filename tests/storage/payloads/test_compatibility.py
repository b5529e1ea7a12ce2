"""Compatibility of versions of a schema: what it promises of payloads, by the checks that decide what fits."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.config.load import parse_schema
from weft.config.payload_schema.documents import Compatibility, incompatible, is_read_as
from weft.config.payload_schema.model import FieldType, PayloadSchema, field_type
from weft.storage.payloads.check import fit
from weft.storage.payloads.formats import Misfit

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
