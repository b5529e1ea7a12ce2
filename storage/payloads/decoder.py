"""Typed columns from a column of payloads."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.config.payload_schema.documents import PayloadSample
from weft.config.payload_schema.model import DEFINED, TIMES, FieldType, PayloadSchema, SchemaFormat
from weft.protocols.payloads import NESTING_MAX, PAYLOAD_BYTES_MAX
from weft.storage.payloads.check import (
    BASE64,
    MAY_ROUND,
    ExactReader,
    Node,
    TypedDecoder,
    attribute_of,
    days_of,
    decimal_of,
    fit,
    in_json,
    int_of,
    is_float_of_whole,
    microseconds,
    tree,
)
from weft.storage.payloads.formats import (
    MISSING,
    PAYLOAD,
    Format,
    Misfit,
    RowMisfits,
    Unreadable,
    parts_of,
    whole_values,
)

# Arrays of values that fit their fields.

TIMESTAMP = pa.timestamp("us", tz="UTC")
_SIMPLE = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    BASE64: pa.binary(),
    "timestamp": TIMESTAMP,
    "local_timestamp": pa.timestamp("us"),
    "date": pa.date32(),
}
_WHOLE = frozenset({int, NoneType})


def arrow_type(kind: FieldType) -> pa.DataType:
    """Return the Arrow type of a column, as Spark accepts it."""
    if kind.item is not None:
        return pa.list_(arrow_type(kind.item))
    return pa.decimal128(kind.digits, kind.scale) if kind.name == "decimal" else _SIMPLE[kind.name]


def array_of(kind: FieldType, values: Sequence[Any]) -> pa.Array:
    """Return the column of values that fit, or are null.

    Raises:
        Misfit: one of them does not fit after all; ``fit`` finds out which one.
    """
    try:
        return pa.array(_plain(kind, values), arrow_type(kind))
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise Misfit(str(error)) from None


def _plain(kind: FieldType, values: Sequence[Any]) -> Sequence[Any]:
    """Return values that Arrow converts without changing them."""
    if kind.item is not None:
        item = kind.item
        if item.name in ("int", "decimal", *TIMES):
            return [each if each is None else _plain(item, each) for each in values]
        return values
    if kind.name in TIMES:
        number = days_of if kind.name == "date" else microseconds
        return [each if each is None else number(kind, each) for each in values]
    if kind.name == "decimal":
        return [each if each is None else decimal_of(kind, each) for each in values]
    # Arrow cuts 1.5 to 1 where the column is of integers.
    if kind.name == "int" and not _WHOLE.issuperset(map(type, values)):
        return [each if each is None else int_of(kind, each) for each in values]
    return values


# The quick way through payloads that fit and are decoded as a whole, such as CBOR: taken apart column by column.
#
# Payloads that it cannot decode are left to the exact way (``payloads.formats``). For all others, both give the same.

Types = frozenset[type[Any]]

_ALLOWED: dict[str, Types] = {
    "bool": frozenset({bool, NoneType}),
    "int": frozenset({int, float, NoneType}),
    "float": frozenset({int, float, NoneType}),
    "string": frozenset({str, NoneType}),
    "binary": frozenset({bytes, NoneType}),
    "decimal": frozenset({int, float, str, NoneType}),
    "array": frozenset({list, NoneType}),
}
_TIME_TEXT: Types = frozenset({str, datetime, NoneType})
_TIME_NUMBER: Types = frozenset({int, float, NoneType})
_OBJECT: Types = frozenset({dict, NoneType})
_ARRAY_TYPES: Types = frozenset({list, NoneType})


class QuickWhole:
    """A decoder of payloads into the values of a tree of fields."""

    def __init__(self, root: Node, kinds: Sequence[FieldType], parts: Format) -> None:
        self._root = root
        self._kinds = kinds
        self._parts = parts

    def all(self, _payloads: Any) -> None:
        """Return None: there is no way to decode many payloads at once."""
        return

    def each(self, payloads: Sequence[bytes]) -> tuple[list[list[Any]], list[int]]:
        """Return the values of payloads, and the numbers of the payloads that must be read the exact way."""
        values: list[list[Any]] = [[]] * len(self._kinds)
        others: set[int] = set()
        rows: list[Any] = []
        root = self._parts.root
        for number, payload in enumerate(payloads):
            try:
                rows.append(root(payload))
            except Unreadable:
                others.add(number)
                rows.append(None)
        self._collect(self._root, rows, values, others)
        return values, sorted(others)

    def _collect(self, node: Node, rows: list[Any], values: list[list[Any]], others: set[int]) -> None:
        for number in node.fields:
            values[number] = self._column(self._kinds[number], rows, others)
        if node.names:
            objects = _only(_OBJECT, rows, others)
            for name, inside in node.names.items():
                number_name = int(name) if name.isascii() and name.isdecimal() else None
                if number_name is None:
                    found = [None if row is None else row.get(name) for row in objects]
                else:
                    found = [None if row is None else row.get(name, row.get(number_name)) for row in objects]
                self._collect(inside, found, values, others)
        if node.places:
            arrays = _only(_ARRAY_TYPES, rows, others)
            for place, inside in node.places.items():
                found = [row[place] if row is not None and place < len(row) else None for row in arrays]
                self._collect(inside, found, values, others)

    def _column(self, kind: FieldType, rows: list[Any], others: set[int]) -> list[Any]:
        column = _only(_allowed(kind), rows, others)
        if kind.item is not None:
            if not _allowed(kind.item).issuperset(
                map(type, chain.from_iterable(row for row in column if row is not None))
            ):
                others.update(row for row, value in enumerate(column) if value is not None)
                return [None] * len(column)
            if kind.item.name == "float":
                return [None if row is None else _floats(row, number, others) for number, row in enumerate(column)]
            return column
        return _floats(column, None, others) if kind.name == "float" else column


def _allowed(kind: FieldType) -> Types:
    if kind.name in TIMES:
        return _TIME_TEXT if kind.unit is None else _TIME_NUMBER
    return _ALLOWED[kind.name]


def _only(allowed: Types, rows: list[Any], others: set[int]) -> list[Any]:
    """Return values of allowed types; rows with others are null here, and left to the exact way."""
    if allowed.issuperset(map(type, rows)):  # in C, for nearly all columns
        return rows
    others.update(number for number, value in enumerate(rows) if type(value) not in allowed)
    return [value if type(value) in allowed else None for value in rows]


def _floats(values: list[Any], row: int | None, others: set[int]) -> list[Any]:
    """Return numbers as floats. A number that is too large leaves its row (or the given one) to the exact way."""
    if int not in set(map(type, values)):
        return values
    found: list[Any] = []
    for number, value in enumerate(values):
        try:
            found.append(float(value) if type(value) is int else value)
        except OverflowError:
            others.add(number if row is None else row)
            found.append(None)
    return found


# The quick way through payloads of JSON and MessagePack that fit: msgspec decodes exactly the requested fields.
#
# Payloads that it rejects are read the exact way (``payloads.formats``). For all others, both give the same.

Values = list[list[Any]]
"""Values of the rows by field; null if a payload lacks the field."""
_OPEN, _CLOSE, _ARRAY = b"{"[0], b"}"[0], b"["[0]


class Quick:
    """A decoder of payloads into the values of a tree of fields."""

    def __init__(self, root: Node, kinds: Sequence[FieldType], name: SchemaFormat) -> None:
        """Make the decoder.

        Raises:
            LookupError: there is no quick way for these paths.
        """
        self._root = root
        self._count = len(kinds)
        self._typed = TypedDecoder(root, kinds, name)

    def all(self, payloads: pa.Array) -> Values | None:
        """Return the values of payloads that are objects of JSON and all fit; None when one of them may not.

        They are decoded as lines of one text, which takes two thirds of the time of decoding each. A line is not always
        a row: it may hold two values, or none if it is empty. But if each payload begins with ``{`` and ends with
        ``}``, no value continues in the next line: at the end of a line the text is behind a value, where no ``{`` may
        follow, or in a string, where no line may end. So each line has one value or more, and equal numbers of values
        and payloads mean one each.
        """
        if not self._typed.is_json or not self._root.names or not _are_objects(payloads):
            return None
        lines = pa.ListArray.from_arrays(pa.array([0, len(payloads)], pa.int32()), payloads)
        text = pc.binary_join(lines, b"\n")[0].as_buffer().to_pybytes()
        try:
            if not text.isascii():
                text.decode()
            rows = self._typed.decode_lines(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
            return None
        return self._values(rows) if len(rows) == len(payloads) else None

    def each(self, payloads: Sequence[bytes]) -> tuple[Values, list[int]]:
        """Return the values of payloads, and the numbers of the payloads that must be read the exact way."""
        rows = list(map(self._typed.decode, payloads))
        others = [number for number, row in enumerate(rows) if row is None]
        return self._values(rows), others

    def _values(self, rows: list[Any]) -> Values:
        values: Values = [[]] * self._count
        _collect(self._root, rows, values)
        return values


def _are_objects(payloads: pa.Array) -> bool:
    """Return whether each payload begins with ``{``, ends with ``}`` and is neither too long nor too deep."""
    _, offsets_buffer, data_buffer = payloads.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    lengths = np.diff(offsets)
    if not len(lengths) or lengths.min() < 2 or lengths.max() > PAYLOAD_BYTES_MAX:
        return False
    data = np.frombuffer(data_buffer, np.uint8)
    if not (data[offsets[:-1]] == _OPEN).all() or not (data[offsets[1:] - 1] == _CLOSE).all():
        return False
    if lengths.max() <= NESTING_MAX:
        return True
    within = data[offsets[0] : offsets[-1]]
    opening = (within == _OPEN) | (within == _ARRAY)
    counts = np.add.reduceat(opening, offsets[:-1] - offsets[0], dtype=np.int32)
    return bool((counts <= NESTING_MAX).all())


def _collect(node: Node, rows: list[Any], values: Values) -> None:
    """Collect the values of the fields below a place from each row."""
    for number in node.fields:
        values[number] = rows
    for place, inside in node.places.items():
        items = [row[place] if row is not None and len(row) > place else None for row in rows]
        _collect(inside, items, values)
    for number, inside in enumerate(node.names.values()):
        attribute = operator.attrgetter(attribute_of(number))
        if None in rows:
            _collect(inside, [None if row is None else attribute(row) for row in rows], values)
        else:
            _collect(inside, list(map(attribute, rows)), values)


MISFIT_COLUMN = "_misfit"
"""Column that names the fields of a row that do not fit; null if all fit."""
MISFITS = pa.map_(pa.string(), pa.string())
SLICE_ROWS = 8_192
SLICE_BYTES = 1 << 20
"""Bytes of payloads that are decoded at once: as objects of Python they take up to 80 times as much, and a hub's links
wait some milliseconds meanwhile."""
DECODERS_MAX = 16
"""Maximum number of schemas whose decoders a worker keeps."""


def typed_fields(schema: PayloadSchema) -> list[pa.Field]:
    """Return the typed columns of a schema in its order, and ``_misfit`` behind them."""
    fields = [_field(name, schema) for name in schema.fields]
    return [*fields, pa.field(MISFIT_COLUMN, MISFITS)]


def _field(name: str, schema: PayloadSchema) -> pa.Field:
    return pa.field(name, arrow_type(schema.fields[name].type))


def decoder_of(schema: PayloadSchema, columns: tuple[str, ...]) -> PayloadDecoder:
    """Return the decoder of a schema; a process makes each once, although tasks bring equal schemas as new objects."""
    return _decoder(msgspec.json.encode(schema), columns)


@lru_cache(maxsize=DECODERS_MAX)
def _decoder(schema: bytes, columns: tuple[str, ...]) -> PayloadDecoder:
    return PayloadDecoder(msgspec.json.decode(schema, type=PayloadSchema), columns)


class PayloadDecoder:
    """A decoder of payloads into some of the columns of a schema.

    A row's values depend neither on the other requested columns nor on the other rows of a batch.
    """

    def __init__(self, schema: PayloadSchema, columns: Collection[str]) -> None:
        """Make a decoder of the named columns, a subset of those of ``typed_fields``."""
        self._tells = MISFIT_COLUMN in columns
        # ``_misfit`` reports on all fields, so it needs all of them.
        self._names = names = [name for name in schema.fields if self._tells or name in columns]
        self._columns = [name for name in (*schema.fields, MISFIT_COLUMN) if name in columns]
        declared = [schema.fields[name] for name in self._names]
        self._kinds = [each.type if schema.format != "json" else in_json(each.type) for each in declared]
        self._required = [number for number, each in enumerate(declared) if each.required]
        root = tree([each.path(name) for name, each in zip(names, declared, strict=True)])
        parts = parts_of(schema)
        self._is_json = schema.format == "json"
        self._exact = ExactReader(names, self._kinds, root, parts)
        self._quick: Quick | QuickWhole | None = None
        if schema.format not in {"json", "msgpack"}:
            self._quick = QuickWhole(root, self._kinds, parts)
        else:
            with contextlib.suppress(LookupError):  # No quick way for this schema: the exact way is right for all.
                self._quick = Quick(root, self._kinds, schema.format)

    def columns(self, payloads: pa.Array) -> dict[str, pa.Array]:
        """Return the columns of a binary array of payloads, without nulls, in its order."""
        parts = [self._sliced(payloads.slice(first, count)) for first, count in _slices(payloads)]
        if len(parts) == 1:
            return parts[0]
        types = [*(arrow_type(kind) for kind in self._kinds), MISFITS]
        empty = dict(zip([*self._names, MISFIT_COLUMN], types, strict=True))
        return {
            name: pa.concat_arrays([part[name] for part in parts]) if parts else pa.array([], empty[name])
            for name in self._columns
        }

    def _sliced(self, payloads: pa.Array) -> dict[str, pa.Array]:
        misfits: dict[int, RowMisfits] = {}
        values = self._quick.all(payloads) if self._quick else None
        if values is None:
            values, others = self._each(payloads)
            values = self._read(payloads, others, values, misfits)
        if rounded := self._rounded(payloads, values):
            values = self._read(payloads, rounded, values, misfits)
        made = {}
        for number, (name, kind) in enumerate(zip(self._names, self._kinds, strict=True)):
            try:
                made[name] = array_of(kind, values[number])
            except Misfit:
                break
        else:
            return self._told(made, misfits, len(payloads))
        # Rows whose values do not fit are read again: the reasons are worded by the exact way.
        others = [row for row in self._unfit(values) if row not in misfits]
        values = self._read(payloads, others, values, misfits)
        made = {
            name: array_of(kind, column) for name, kind, column in zip(self._names, self._kinds, values, strict=True)
        }
        return self._told(made, misfits, len(payloads))

    def _told(self, made: dict[str, pa.Array], misfits: dict[int, RowMisfits], rows: int) -> dict[str, pa.Array]:
        """Return the requested columns."""
        self._check_required(made, misfits)
        if self._tells:
            made[MISFIT_COLUMN] = _misfit_array(misfits, rows)
        return {name: made[name] for name in self._columns}

    def _each(self, payloads: pa.Array) -> tuple[Values, list[int]]:
        """Return the values of each payload by the quick way, and the rows that it cannot decode."""
        if self._quick:
            return self._quick.each(payloads.to_pylist())
        return [[None] * len(payloads) for _ in self._names], list(range(len(payloads)))

    def _rounded(self, payloads: pa.Array, values: Values) -> list[int]:
        """Return the rows in which a whole number of JSON may have been rounded to one."""
        rows = set[int]()
        for kind, column in zip(self._kinds, values, strict=True) if self._is_json else ():
            # In C for nearly all columns: few devices write 21.0 for a whole number.
            if (kind.item or kind).name in {"int", "date"} and not _WHOLE.issuperset(map(type, column)):
                rows.update(
                    row
                    for row, value in enumerate(column)
                    if is_float_of_whole(kind, value) and MAY_ROUND.search(payloads[row].as_buffer())
                )
        return sorted(rows)

    def _unfit(self, values: Values) -> list[int]:
        """Return the rows in which a value does not fit."""
        rows = set()
        for kind, column in zip(self._kinds, values, strict=True):
            for row, value in enumerate(column):
                try:
                    if value is not None:
                        fit(kind, value)
                except Misfit:
                    rows.add(row)
        return sorted(rows)

    def _read(self, payloads: pa.Array, rows: list[int], values: Values, misfits: dict[int, RowMisfits]) -> Values:
        """Return the values with some rows read the exact way."""
        # Copied, because fields may share a list with each other and with the rows.
        values = [list(column) for column in values] if rows else values
        for row in rows:
            mismatches = RowMisfits()
            for number, value in enumerate(self._exact.read(payloads[row].as_py(), mismatches)):
                values[number][row] = value
            if mismatches.reasons:
                misfits[row] = mismatches
        return values

    def _check_required(self, made: dict[str, pa.Array], misfits: dict[int, RowMisfits]) -> None:
        for number in self._required:
            name = self._names[number]
            if not made[name].null_count:
                continue
            for row in np.flatnonzero(made[name].is_null().to_numpy(zero_copy_only=False)).tolist():
                known = misfits.setdefault(row, RowMisfits())
                if name not in known.reasons and PAYLOAD not in known.reasons:
                    known.add(name, MISSING)


def _slices(payloads: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of parts of bounded size."""
    lengths = pc.binary_length(payloads).to_numpy(zero_copy_only=False)
    first = 0
    while first < len(payloads):
        sizes = np.cumsum(lengths[first : first + SLICE_ROWS])
        count = max(1, int(np.searchsorted(sizes, SLICE_BYTES, "right")))
        yield first, count
        first += count


def _misfit_array(misfits: dict[int, RowMisfits], rows: int) -> pa.Array:
    if not misfits:
        return pa.nulls(rows, MISFITS)
    entries = [misfits[row].items() if row in misfits else None for row in range(rows)]
    return pa.array(entries, MISFITS)


# A schema and a sample of payloads: what does not fit, what is never there, and what the schema does not name.

REASONS_MAX = 100
"""Maximum number of reasons of a field that are counted singly: they have values of payloads in them."""


class FieldFindings(NamedTuple):
    """The findings about a field of a schema in a sample."""

    name: str
    values: int
    """Number of records with a value."""
    misfits: int
    reason: str | None
    """The most frequent reason of misfits; None without any."""


class SampleOfSchema:
    """A sample of payloads, held against a schema. Payloads come some thousands at a time."""

    def __init__(self, schema: PayloadSchema) -> None:
        self.records = 0
        self.misfits = 0
        """Records with a field that does not fit, or that are not of their format."""
        self._schema = schema
        self._decoder = PayloadDecoder(schema, [*schema.fields, MISFIT_COLUMN])
        self._values: Counter[str] = Counter()
        self._reasons: dict[str, Counter[str]] = {}
        # A definition names all fields that payloads can have.
        self._found = None if schema.format in DEFINED else PayloadSample()

    def take(self, payloads: Sequence[bytes]) -> None:
        """Add payloads."""
        columns = self._decoder.columns(pa.array(payloads, pa.binary()))
        self.records += len(payloads)
        for name in self._schema.fields:
            self._values[name] += len(payloads) - columns[name].null_count
        misfits = columns[MISFIT_COLUMN]
        self.misfits += len(payloads) - misfits.null_count
        for mismatches in misfits.drop_null().to_pylist():
            for name, reason in mismatches:
                counted = self._reasons.setdefault(name, Counter())
                counted[reason if reason in counted or len(counted) < REASONS_MAX else "other reasons"] += 1
        if self._found is not None:
            self._found.take(*whole_values(self._schema.format)(list(payloads)))

    def fields(self) -> list[FieldFindings]:
        """Return the fields of the schema in its order, and `payload` behind them if some are not of their format."""
        names = [*self._schema.fields, *(self._reasons.keys() - self._schema.fields.keys())]
        return [self._of(name) for name in names]

    def _of(self, name: str) -> FieldFindings:
        reasons = self._reasons.get(name, Counter())
        most = reasons.most_common(1)
        return FieldFindings(name, self._values[name], reasons.total(), most[0][0] if most else None)

    def unnamed(self) -> list[str]:
        """Return lines of a draft, as of `fields:`, for places of payloads that no field of the schema names."""
        if self._found is None:
            return []
        known = [each.path(name) for name, each in self._schema.fields.items()]
        return self._found.lines(known, {name.casefold() for name in self._schema.fields})
