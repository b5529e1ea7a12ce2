"""Typed columns of a table: which of its columns has the values of which field of a schema.

Delta keeps metadata for each column, and there a typed column says of which field it is. A table only ever gets
columns: a field whose type or unit changed gets a further one, so that rows of all versions read as they were written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec.structs import replace as with_fields

from weft.config.payload_schema.model import PayloadSchema, SchemaField
from weft.config.payload_schema.paths import format_path
from weft.protocols.batch import Columns
from weft.storage.payloads.decoder import MISFIT_COLUMN, MISFITS, PayloadDecoder, arrow_type
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
BOUNDED = ("long", "double", "string", "timestamp", "date")
"""Delta types whose bounds the log can have. Of times without a zone, the files' own bounds serve."""
_SIMPLE = {
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "date": pa.date32(),
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
    metadata = dict(field.get("metadata") or {})
    since = str(metadata.get(SINCE, ""))
    if since.isdecimal() and int(since) > version:
        return False
    wanted = metadata | {FIELD: name}
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
    if wanted == metadata:
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


def _is_known(kind: Any) -> bool:
    """Return whether a column's type is one of this release. Of a later one, a column is null in the rows made here."""
    if isinstance(kind, dict):
        return kind.get("type") == "array" and _is_known(kind.get("elementType"))
    return kind in _SIMPLE or kind.startswith("decimal(")


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
    typed = [_arrow_field(field) for field in found if is_typed(field) and _is_known(field["type"])]
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


# Values of typed columns from payloads, by one version of a stream's schema.

ROWS_MAX = 16 << 10
"""Rows of a record batch with typed columns: where no payload fits, a row takes 16 us, and the table step looks at the
clock between two batches."""


class TypedRows:
    """The typed columns of rows that one process makes: always those of the version that it knows.

    Args:
        version: version of the schema.
        columns: field -> column of the table.
    """

    def __init__(self, version: int, schema: PayloadSchema, columns: Mapping[str, str]) -> None:
        self.version, self.schema = version, schema
        self.columns = dict(columns)
        self._decoder: PayloadDecoder | None = None

    def __reduce__(self) -> tuple[type[TypedRows], tuple[int, PayloadSchema, dict[str, str]]]:
        """Return what makes it again elsewhere, such as in a task of Spark."""
        return TypedRows, (self.version, self.schema, self.columns)

    def is_of(self, version: int, columns: Mapping[str, str]) -> bool:
        """Return whether these are the columns of a version."""
        return (self.version, self.columns) == (version, columns)

    def arrays(self, payloads: pa.Array) -> dict[str, pa.Array]:
        """Return the columns of payloads, by the names of the table.

        Args:
            payloads: binary, without nulls.
        """
        if self._decoder is None:
            self._decoder = PayloadDecoder(self.schema, [*self.columns, MISFIT_COLUMN])
        made = self._decoder.columns(payloads)
        found = {column: made[field] for field, column in self.columns.items()}
        versions = pa.array(np.full(len(payloads), self.version, np.int64))
        return found | {MISFIT_COLUMN: made[MISFIT_COLUMN], SCHEMA_COLUMN: versions}


class TypedPart(NamedTuple):
    """The typed columns of a table's rows."""

    fields: Sequence[pa.Field]
    """All that the table has, those of ``OWN_COLUMNS`` included."""
    rows: TypedRows | None
    """Maker of those of one version; the others are null, and all of them without one."""

    @classmethod
    def of(cls, schema: pa.Schema, rows: TypedRows | None) -> TypedPart | None:
        """Return the typed columns of a schema of rows; None if it has none."""
        fields = typed_part(schema)
        return cls(fields, rows) if fields else None


def beside(schema: PayloadSchema, levels: Collection[str]) -> PayloadSchema:
    """Return a schema whose fields have other names than a stream's topic levels: the columns of readers that make them
    of all rows, whatever version of the schema those were written by."""
    topic = {name.casefold() for name in levels}
    taken = topic | {name.casefold() for name in schema.fields}
    fields: dict[str, SchemaField] = {}
    for name, each in schema.fields.items():
        free, number = name, 1
        if name.casefold() in topic:
            while free.casefold() in taken:
                number += 1
                free = f"{name}_{number}"
            taken.add(free.casefold())
        fields[free] = each if free == name else with_fields(each, from_=format_path(each.path(name)))
    return with_fields(schema, fields=fields)


def declared_part(declared: StreamSchema, levels: Collection[str]) -> TypedPart:
    """Return the typed columns of a declared schema for readers, all made of the payloads.

    Args:
        levels: the stream's topic levels.
    """
    schema = beside(declared.schema, levels)
    comments = {name: comment_of(each) for name, each in schema.fields.items()}
    fields = [
        pa.field(name, arrow_type(each.type), metadata={FIELD: name} | ({COMMENT: comment} if comment else {}))
        for (name, each), comment in zip(schema.fields.items(), comments.values(), strict=True)
    ]
    columns = {name: name for name in schema.fields}
    return TypedPart([*fields, *OWN_COLUMNS], TypedRows(declared.version, schema, columns))


# The typed columns of one table: those that its stream's schema asks for, in the version that this process knows.

_logger = logging.getLogger(__name__)


class Typing:
    """The typed columns of a table.

    Processes learn of a version within seconds of each other. Each makes its rows by the version that it knows and
    writes that version beside them, so rows are right in any order; columns are only ever added.

    Args:
        key: name of the table, for the log.
        schema: returns the declared schema of the stream, as this process knows it.
    """

    def __init__(self, key: str, schema: Callable[[], StreamSchema | None]) -> None:
        self._key, self._schema = key, schema
        self._warned = 0
        """Version about which there was a warning."""
        self.rows: TypedRows | None = None
        """Maker of the typed columns, after ``grown``; None without a schema."""

    def grown(self, fields: Sequence[DeltaField]) -> list[dict[str, Any]] | None:
        """Adopt the schema as it is known now. Return the columns that a table with ``fields`` has to have for it;
        None if these do."""
        declared = self._schema()
        if declared is None:
            self.rows = None
            return None
        assigned = assign(fields, declared)
        if assigned.left_out and self._warned != declared.version:
            self._warned = declared.version
            _logger.warning(
                "%s has %d typed columns, its limit; fields without a column: %s. For other columns, move the table "
                "away: the hub makes it again from the log",
                self._key,
                COLUMNS_MAX,
                ", ".join(assigned.left_out[:20]),
            )
        if self.rows is None or not self.rows.is_of(declared.version, assigned.columns):
            self.rows = TypedRows(declared.version, declared.schema, assigned.columns)
        return assigned.fields

    def created(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a new table: those of ``schema``, and the typed ones."""
        declared = self._schema()
        if declared is None:
            return schema
        names = [{"name": name, "type": "other", "metadata": {}} for name in schema.names]
        wanted: Sequence[Mapping[str, Any]] = assign(names, declared).fields or []
        for field in arrow_fields(wanted):
            schema = schema.append(field)
        return schema


# Bytes of a batch's records as table rows, computed before a row is made.
#
# A batch has each key once, but each of its rows repeats it, and a level of the key is repeated in its column. So the
# length of a batch does not bound the size of its rows.

ROW_BYTES = 128
"""Bytes of a row's columns of fixed length, and of the names of its edge and log."""
LEVEL_BYTES = 16
"""Bytes of one topic level of one row, beside the text."""
TYPED_BYTES = 9
"""Bytes of one typed column of one row, beside text."""
PAIR_BYTES = 160
"""Bytes of one header pair while a row is made, beside the text."""


class RowCut(NamedTuple):
    """Records ``[first, first + rows)`` of a batch, and the bytes of their rows."""

    first: int
    rows: int
    bytes: int


class RowCosts:
    """Costs of rows of a schema.

    Args:
        fields: number of topic levels among the columns.
    """

    def __init__(self, schema: pa.Schema, fields: int) -> None:
        typed = typed_part(schema)
        self._row_bytes = ROW_BYTES + LEVEL_BYTES * fields + TYPED_BYTES * len(typed)
        self._payloads = 1 + sum(not pa.types.is_primitive(field.type) for field in typed)
        """Number of copies of its payload in a row: each field may have all of it."""
        self._keys = ("_key" in schema.names) + (fields > 0)
        """Number of copies of its key in a row."""
        self._has_headers = "_headers" in schema.names
        self._has_payloads = "payload" in schema.names
        self._has_origin = "_origin" in schema.names

    def cut(  # noqa: PLR0917
        self, columns: Columns, first: int, end: int, rows_max: int, bytes_max: int, origin: str | None = None
    ) -> Iterator[RowCut]:
        """Yield the records ``[first, end)`` in runs whose rows have at most ``bytes_max`` bytes, or in single records.

        Args:
            origin: text of the records' origin, which each row has.
        """
        text = len(origin.encode()) if origin is not None and self._has_origin else 0
        bound = self._bound(columns, first, end) + (end - first) * text
        if bound <= bytes_max:
            for at in range(first, end, rows_max):
                rows = min(rows_max, end - at)
                yield RowCut(at, rows, bound * rows // (end - first))
            return
        ends = np.cumsum(self._each(columns, first, end) + text)
        at, before = first, 0
        while at < end:
            fitting = int(np.searchsorted(ends, before + bytes_max, "right")) - (at - first)
            rows = min(max(1, fitting), rows_max, end - at)
            after = int(ends[at - first + rows - 1])
            yield RowCut(at, rows, after - before)
            at, before = at + rows, after

    def _bound(self, columns: Columns, first: int, end: int) -> int:
        """Return an upper bound of the bytes of the rows, without reading each."""
        total = (end - first) * (self._row_bytes + self._keys * max(map(len, columns.keys)))
        if self._has_payloads:
            offsets = _numbers(columns.payload_offsets)
            total += (int(offsets[end]) - int(offsets[first])) * self._payloads
        if self._has_headers and columns.headers:
            total += sum(map(_pairs_bytes, columns.headers.values()))
        return total

    def _each(self, columns: Columns, first: int, end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        costs = np.full(end - first, self._row_bytes, np.int64)
        if self._keys:
            lengths = np.fromiter(map(len, columns.keys), np.int64, len(columns.keys))
            costs += self._keys * lengths[_numbers(columns.key_index)[first:end]]
        if self._has_payloads:
            ends = _numbers(columns.payload_offsets)[first : end + 1].astype(np.int64)
            costs += (ends[1:] - ends[:-1]) * self._payloads
        if self._has_headers:
            for index, pairs in columns.headers.items():
                if first <= index < end:
                    costs[index - first] += _pairs_bytes(pairs)
        return costs


def _numbers(column: Any) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.frombuffer(column, np.uint32)


def _pairs_bytes(pairs: Any) -> int:
    """Return the bytes of one record's headers: base64 is a third longer than the bytes, a number has at most 25
    digits."""
    texts = sum(len(name) + (len(value) if isinstance(value, str | bytes) else 25) for name, value in pairs)
    return PAIR_BYTES * len(pairs) + 2 * texts
