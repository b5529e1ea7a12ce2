"""Columns of a schema's fields in a table, and the schemas of the cluster log: pure."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.config.load import parse_schema
from weft.storage.cluster_log import ClusterState, Declaration
from weft.storage.payloads.decoder import arrow_type
from weft.storage.table import schemas
from weft.storage.table.rows import row_schema
from weft.storage.table.schemas import SCHEMA, Schemas, StreamSchema
from weft.storage.table.typed_columns import COLUMNS_MAX, FIELD, arrow_fields, assign, is_typed

TYPES = (
    "float",
    "int",
    "string",
    "bool",
    "timestamp(ms)",
    "timestamp",
    "decimal(6,2)",
    "array<int>",
    "binary",
    "date",
    "date(d)",
    "local_timestamp",
    "array<local_timestamp(ms)>",
)
SCHEMAS = st.dictionaries(
    st.sampled_from(["a", "b", "A2", "line", "a_2"]),
    st.fixed_dictionaries({"type": st.sampled_from(TYPES)}, optional={"unit": st.sampled_from(["C", "K"])}),
    min_size=1,
)


def schema(version: int, fields: dict[str, Any]) -> StreamSchema:
    return StreamSchema(version, parse_schema({"fields": fields}))


def levels(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in names]


@settings(max_examples=50)
@given(st.lists(SCHEMAS, min_size=1, max_size=6), st.data())
def test_columns_are_only_added_and_a_version_finds_its_own_again(history: list[dict[str, Any]], data: Any) -> None:
    table = levels("line")
    known = [schema(at, fields) for at, fields in enumerate(history, 1)]
    found: dict[int, dict[str, str]] = {}
    # Processes that know different versions come in any order.
    for each in data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=12)):
        assigned = assign(table, each)
        before, table = table, assigned.fields or table
        assert [(old["name"], old["type"]) for old in before] == [
            (new["name"], new["type"]) for new in table[: len(before)]
        ]
        names = [field["name"].casefold() for field in table]
        assert len({*names}) == len(names), "engines take names that differ in case as one"
        assert assigned.columns.keys() == each.schema.fields.keys()
        assert found.setdefault(each.version, assigned.columns) == assigned.columns
        assert assign(table, each).fields is None, "a table that is as it should be stays as it is"
        types = {field.name: field.type for field in arrow_fields(table)}
        for name, column in assigned.columns.items():
            assert types[column] == arrow_type(each.schema.fields[name].type)


def test_a_table_has_a_bounded_number_of_typed_columns() -> None:
    table = levels("line")
    for version in range(1, 8):
        kind = ("int", "float")[version % 2]
        fields = {f"f{version // 2}_{at}": kind for at in range(256)}
        assigned = assign(table, schema(version, fields))
        table = assigned.fields or table
    assert sum(map(is_typed, table)) == COLUMNS_MAX
    assert len(assigned.left_out) == 256
    assert assigned.columns == {}


def test_a_level_or_an_owners_column_keeps_its_name() -> None:
    assigned = assign(levels(*row_schema(["t"]).names, "own"), schema(1, {"t": "float", "Own": "int"}))
    assert assigned.columns == {"t": "t_2", "Own": "Own_2"}
    assert [field["name"] for field in assigned.fields or () if FIELD in field["metadata"]] == ["t_2", "Own_2"]


def test_the_state_has_the_newest_schemas_and_names_those_it_cannot_read() -> None:
    state, known = ClusterState(bytes(16)), Schemas()

    def write(stream: str, document: bytes | None) -> None:
        state.apply(Declaration(bytes(16), state.n + 1, 0, 0, SCHEMA, f"default/{stream}", document, 0, "", "", 0), 0)

    write("a", schemas.encode_schema(parse_schema("t float")))
    later = {"schema": {"format": "xml", "fields": {"t": {"type": "float"}}}}
    write("b", msgspec.json.encode(later))
    write("c", b"[")
    write("d", msgspec.json.encode({"schema": {"fields": {"t": {"type": "floaty"}}}}))
    assert known.refresh(state)
    assert not known.refresh(state)
    (found,) = filter(None, map(known.of, [("default", name) for name in "abcd"]))
    assert (found.version, found.before) == (1, 0)
    assert sorted(known.unusable) == ["default/b", "default/c", "default/d"]
    write("a", schemas.encode_schema(parse_schema("t int"), before=1))
    write("b", schemas.encode_schema(parse_schema("t int")))
    write("c", None)
    assert known.refresh(state)
    assert [(each.version, each.before) for name in "ab" if (each := known.of(("default", name)))] == [(5, 1), (6, 0)]
    assert sorted(known.unusable) == ["default/d"]


def test_personal_data_is_marked_where_engines_and_catalogs_see_it() -> None:
    marked = {"operator": {"type": "string", "description": "Name of the operator", "personal": True}}
    table = assign(levels("line"), schema(1, marked)).fields or []
    metadata = next(field["metadata"] for field in table if is_typed(field))
    assert (metadata["weft.personal"], metadata["comment"]) == ("true", "Name of the operator (personal data)")
    later = assign(table, schema(2, {"operator": {"type": "string"}})).fields or []
    assert "weft.personal" not in next(field["metadata"] for field in later if is_typed(field))
