"""Typed columns of a table: which of its columns has the values of which field of a schema.

Delta keeps metadata for each column, and there a typed column says of which field it is. A table only ever gets
columns: a field whose type or unit changed gets a further one, so that rows of all versions read as they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from weft.config.payload_schema.model import SchemaField
from weft.storage.payloads.decoder import MISFIT_COLUMN, MISFITS
from weft.storage.payloads.values import arrow_type
from weft.storage.table.schemas import StreamSchema

FIELD, UNIT, SINCE, COMMENT = "weft.field", "weft.unit", "weft.schema", "comment"
"""Keys of a column's metadata: the schema's field, its unit, the version that said so last, and the comment that
engines show."""
PERSONAL = "weft.personal"
"""Key of a column's metadata: `true` where the values are personal data."""
SCHEMA_COLUMN = "_schema"
"""Column of the version of the schema by which a row's typed columns were made; null if there was none."""
OWN_COLUMNS = (pa.field(SCHEMA_COLUMN, pa.int64()), pa.field(MISFIT_COLUMN, MISFITS))
"""Columns beside the typed ones, added with the first of them."""
COLUMNS_MAX = 1024
"""Maximum number of typed columns of a table: each is in the table's schema and in every file's footer for good."""
STATISTICS_MAX = 32
"""Maximum number of typed columns with bounds in the table's log, where each has some for every file."""
BOUNDED = ("long", "double", "string", "timestamp")
"""Delta types whose bounds the log can have."""
_SIMPLE = {
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DELTA_NAMES = {kind: name for name, kind in _SIMPLE.items()}

DeltaField = Mapping[str, Any]
"""A column in the schema of a Delta table."""


class Assignment(NamedTuple):
    """The columns of a schema's fields in a table."""

    columns: dict[str, str]
    """Field -> column."""
    fields: list[dict[str, Any]] | None
    """All columns that the table needs, in its order; None if it has them as they are."""
    left_out: list[str]
    """Fields that get no column, since the table has as many as it may have."""


def assign(fields: Sequence[DeltaField], declared: StreamSchema) -> Assignment:
    """Return the columns for the fields of a schema.

    Args:
        fields: the table's columns.
    """
    wanted = [dict(field) for field in fields]
    taken = {field["name"].casefold() for field in wanted}
    changed = False
    for own in OWN_COLUMNS:
        if own.name not in taken:
            wanted.append({"name": own.name, "type": _delta_type(own.type), "nullable": True, "metadata": {}})
            taken.add(own.name)
            changed = True
    columns: dict[str, str] = {}
    left_out: list[str] = []
    of_field: dict[str, list[dict[str, Any]]] = {}
    for field in filter(is_typed, wanted):
        of_field.setdefault(str(field["metadata"][FIELD]), []).append(field)
    typed = sum(map(len, of_field.values()))
    for name, each in declared.schema.fields.items():
        kind = _delta_type(arrow_type(each.type))
        found = next((field for field in of_field.get(name, ()) if _serves(field, kind, each.unit)), None)
        if found is None and typed >= COLUMNS_MAX:
            left_out.append(name)
            continue
        if found is None:
            column = _free(name, taken)
            taken.add(column.casefold())
            found = {"name": column, "type": kind, "nullable": True, "metadata": {}}
            wanted.append(found)
            typed += 1
        changed |= _describe(found, name, each, declared.version)
        columns[name] = found["name"]
    return Assignment(columns, wanted if changed else None, left_out)


def _serves(field: DeltaField, kind: Any, unit: str | None) -> bool:
    """Return whether a column has the field's values: in one column, numbers of two units could not be compared."""
    return _plain(field["type"]) == _plain(kind) and (unit is None or field["metadata"].get(UNIT) in {None, unit})


def _free(name: str, taken: set[str]) -> str:
    """Return a name that no column has, in any case."""
    column, number = name, 1
    while column.casefold() in taken:
        number += 1
        column = f"{name}_{number}"
    return column


def _describe(field: dict[str, Any], name: str, declared: SchemaField, version: int) -> bool:
    """Write a field's unit and description into a column's metadata. Return whether that changed it.

    A process that knows an older version must not take a newer one's words back.
    """
    told = dict(field.get("metadata") or {})
    since = str(told.get(SINCE, ""))
    if since.isdecimal() and int(since) > version:
        return False
    wanted = told | {FIELD: name}
    if declared.unit is not None:
        wanted[UNIT] = declared.unit
    if (comment := comment_of(declared)) is not None:
        wanted[COMMENT] = comment
    else:
        wanted.pop(COMMENT, None)
    if declared.personal:
        wanted[PERSONAL] = "true"
    else:
        wanted.pop(PERSONAL, None)
    if wanted == told:
        return False
    field["metadata"] = wanted | {SINCE: str(version)}
    return True


def comment_of(declared: SchemaField) -> str | None:
    """Return the comment of a declared field: its description, its unit, and whether it is personal data."""
    unit = f"[{declared.unit}]" if declared.unit else None
    personal = "(personal data)" if declared.personal else None
    return " ".join(part for part in (declared.description, unit, personal) if part) or None


def is_typed(field: DeltaField) -> bool:
    """Return whether a column has the values of a field of a schema."""
    return FIELD in (field.get("metadata") or {})


def typed_names(schema: pa.Schema) -> list[str]:
    """Return the typed columns of a schema of rows, in its order."""
    return [field.name for field in schema if field.metadata and FIELD.encode() in field.metadata]


def typed_part(schema: pa.Schema) -> list[pa.Field]:
    """Return the typed columns of a schema of rows, and ``OWN_COLUMNS`` as far as it has them."""
    own = {field.name for field in OWN_COLUMNS}
    typed = {*typed_names(schema)}
    return [field for field in schema if field.name in typed or field.name in own]


def bounded_names(schema: pa.Schema) -> list[str]:
    """Return the typed columns whose bounds the table's log has for every file."""
    names = [name for name in typed_names(schema) if _DELTA_NAMES.get(schema.field(name).type) in BOUNDED]
    return names[:STATISTICS_MAX]


def arrow_fields(fields: Iterable[DeltaField]) -> list[pa.Field]:
    """Return the typed columns of a table as columns of rows, those of ``OWN_COLUMNS`` behind them."""
    found = list(fields)
    typed = [_arrow_field(field) for field in found if is_typed(field)]
    kinds = {field["name"]: _plain(field["type"]) for field in found}
    return [*typed, *(own for own in OWN_COLUMNS if kinds.get(own.name) == _plain(_delta_type(own.type)))]


def _arrow_field(field: DeltaField) -> pa.Field:
    metadata = {key: str(value) for key, value in field["metadata"].items()}
    return pa.field(field["name"], _arrow_type(field["type"]), metadata=metadata)


def _arrow_type(kind: Any) -> pa.DataType:
    if isinstance(kind, dict):
        return pa.list_(_arrow_type(kind["elementType"]))
    if kind.startswith("decimal"):
        digits, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(digits), int(scale))
    return _SIMPLE[kind]


def _delta_type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _delta_type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        key, value = _delta_type(kind.key_type), _delta_type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _DELTA_NAMES[kind]


def _plain(kind: Any) -> Any:
    """Return a type without what does not change its values: engines may say otherwise whether items can be null."""
    if isinstance(kind, dict):
        return {key: _plain(value) for key, value in kind.items() if not key.lower().endswith("containsnull")}
    return kind
