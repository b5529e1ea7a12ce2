"""Typed columns from a column of payloads."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.config.payload_schema.model import PayloadSchema
from weft.config.pipelines.schema_text import parse_schema
from weft.storage.payloads.exact import ExactReader
from weft.storage.payloads.fits import fit, in_json
from weft.storage.payloads.formats import parts_of
from weft.storage.payloads.misfits import MISSING, PAYLOAD, Misfit, RowMisfits
from weft.storage.payloads.quick import Quick, Values
from weft.storage.payloads.quick_whole import QuickWhole
from weft.storage.payloads.tree import tree
from weft.storage.payloads.values import array_of, arrow_type

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


@lru_cache(maxsize=DECODERS_MAX)
def decoder_of(schema: str, columns: tuple[str, ...]) -> PayloadDecoder:
    """Return the decoder of a schema in its text form; a worker makes each once."""
    return PayloadDecoder(parse_schema(schema), columns)


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
            told = RowMisfits()
            for number, value in enumerate(self._exact.read(payloads[row].as_py(), told)):
                values[number][row] = value
            if told.reasons:
                misfits[row] = told
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
