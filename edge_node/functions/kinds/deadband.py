"""The function ``deadband``: drops rows that are near the last kept one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from weft.config.functions.reduce import Band, Deadband
from weft.edge_node.functions.contract import Context, Function, Gap, Out, Path, Row, Values
from weft.edge_node.functions.paths import MISSING, getter, names_in
from weft.edge_node.functions.series.identity import KEY_BYTES_MAX, fields_of, identify, key_of
from weft.edge_node.functions.series.missing import no_number, passes
from weft.edge_node.functions.series.numbers import LARGEST, added, band, is_finite
from weft.edge_node.functions.series.state import SeriesState
from weft.protocols.batch import HeaderPairs

HEADER = "weft.deadband."
"""Prefix of the header with the bound; the field's name follows."""
NEVER = (1 << 63) - 1
_NS = 1_000_000_000
_WITHIN = "within the bounds of the last kept row"

_UNTIL, _BANDS = 1, 2
"""An entry: number, time from which a row is kept in any case (ns), then the least and the greatest dropped value, for
each field. None for a field without a kept value."""


class _Field(NamedTuple):
    name: str
    get: Callable[[Values], Any]
    delta: float
    relative: float

    def bound(self, value: float) -> float:
        """Return the largest difference to a kept value that is dropped."""
        return max(self.delta, self.relative * abs(value)) if self.relative else self.delta


class DeadbandFunction(Function):
    """Keeps a row when a field moved, or after ``max_silence``; drops the others.

    Guarantee: let K be a kept row of a series with a value of a field, in the order of the rows. Up to the next kept
    row of the series with that field, each dropped row had a value x with |x - K| <= bound, exactly, where bound is the
    number in K's header ``weft.deadband.FIELD``. The guarantee excludes rows that could not be compared (``missing``).

    State: one entry for each series, up to ``keys_max``; an entry changes only when a row is kept.
    """

    def __init__(self, settings: Deadband, context: Context) -> None:
        """Prepare the fields.

        Raises:
            ValueError: the settings name no field, or a field has no band.
        """
        self._fields = [
            _Field(name, getter(name), each.delta or 0.0, each.relative or 0.0)
            for name, each in bands(settings).items()
        ]
        self._series = SeriesState(settings.keys_max)
        self.state = self._series.state
        self._identify = identify(settings.by, context)
        names = frozenset(names_in(field.name) for field in self._fields)
        self._reads = names | fields_of(settings.by, context)
        self._is_plain = self._identify is key_of and len(self._fields) == 1 and "." not in self._fields[0].name
        silence = settings.max_silence_s
        self._header = HEADER + self._fields[0].name
        self._max_silence = NEVER if silence is None else round(silence * _NS)
        self._missing = settings.missing

    def reads(self) -> frozenset[Path]:
        """Return the fields with bands, and those that identify series."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows that are kept, with their bounds."""
        self._series.restore()
        if self._is_plain:
            return self._by_key(rows, out)
        return [row for row in rows if self._keeps(row, out)]

    def gap(self, gap: Gap, out: Out) -> None:  # noqa: ARG002
        """Start all series again: changes in the gap are unknown, so the next row of each is kept."""
        self._series.restore()
        self._series.clear()

    def _by_key(self, rows: list[Row], out: Out) -> list[Row]:
        """Process rows of one field by topic: the usual case, and the hot loop of a node that reduces its data."""
        name, get, drop = self._fields[0].name, self._series.get, out.drop
        kept: list[Row] = []
        for row in rows:
            key = row.key
            entry = get(key if len(key) <= KEY_BYTES_MAX else key_of(row))
            if entry is not None:
                _, until, low, high = entry
                try:
                    # NaN is in no band, and other types raise: _judge has the reasons.
                    if low <= row.values[name] <= high and row.time < until:
                        drop(row, _WITHIN)
                        continue
                except (KeyError, TypeError):
                    pass
            value = row.values.get(name)
            if type(value) is float and -LARGEST <= value <= LARGEST:
                self._keep_one(row, key_of(row), value)
                kept.append(row)
            elif self._judge(row, key_of(row), entry, out):
                kept.append(row)
        return kept

    def _keep_one(self, row: Row, series: bytes, value: float) -> None:
        """Do what ``_keep`` does, for the usual case."""
        field = self._fields[0]
        bound = field.delta if not field.relative else field.bound(value)
        pairs = ((self._header, bound),)
        row.headers = with_bounds(row.headers, pairs) if row.headers else pairs
        until = NEVER if self._max_silence == NEVER else row.time + self._max_silence
        self._series.put(series, until, *band(value, bound))
        self._series.evict()

    def _keeps(self, row: Row, out: Out) -> bool:
        try:
            series = self._identify(row)
        except ValueError as error:
            return passes(row, self._missing, f"deadband: {error}", out)
        entry = self._series.get(series)
        if entry is not None and self._stays(row, entry):
            out.drop(row, _WITHIN)
            return False
        return self._judge(row, series, entry, out)

    def _stays(self, row: Row, entry: list[Any]) -> bool:
        """Return whether all fields of a row are numbers within the bounds."""
        values, at, has_any = row.values, _BANDS, False
        try:
            for field in self._fields:
                value = field.get(values)
                if value is not MISSING:
                    has_any = True
                    if not entry[at] <= value <= entry[at + 1]:
                        return False
                at += 2
        except TypeError:  # not a number, or the first of its field
            return False
        return has_any and row.time < entry[_UNTIL]

    def _judge(self, row: Row, series: bytes, entry: list[Any] | None, out: Out) -> bool:
        """Return whether a row outside the bounds is kept, and remember a kept one."""
        values = [field.get(row.values) for field in self._fields]
        for field, value in zip(self._fields, values, strict=True):
            if value is not MISSING and not is_finite(value):
                if self._missing == "pass":
                    # The reader of the output now has a value that is not a number: the next number is new.
                    self._series.state.delete(series)
                return passes(row, self._missing, no_number("deadband", field.name, value), out)
        if all(value is MISSING for value in values):
            names = " or ".join(field.name for field in self._fields)
            return passes(row, self._missing, no_number("deadband", names, MISSING), out)
        self._keep(row, series, entry, values)
        return True

    def _keep(self, row: Row, series: bytes, entry: list[Any] | None, values: list[Any]) -> None:
        edges: list[float | None] = list(entry[_BANDS:]) if entry is not None else [None] * (2 * len(values))
        pairs = []
        for at, (field, value) in enumerate(zip(self._fields, values, strict=True)):
            if value is MISSING:
                continue
            bound = field.bound(value)
            edges[2 * at : 2 * at + 2] = band(value, bound)
            pairs.append((HEADER + field.name, bound))
        row.headers = with_bounds(row.headers, tuple(pairs))
        until = NEVER if self._max_silence == NEVER else row.time + self._max_silence
        self._series.put(series, until, *edges)
        self._series.evict()


def bands(settings: Deadband) -> dict[str, Band]:
    """Return field -> band.

    Raises:
        ValueError: no field is named, one is named in both ways, or one has no band.
    """
    if (settings.field_ is None) == (not settings.fields):
        raise ValueError("deadband: set either `field` with `delta` or `relative`, or `fields` with a band for each")
    if settings.field_ is None and (settings.delta is not None or settings.relative is not None):
        raise ValueError(
            "deadband: with `fields`, set `delta` and `relative` of each field, as in {temperature: {delta: 0.2}}"
        )
    found = settings.fields
    if settings.field_ is not None:
        found = {settings.field_: Band(delta=settings.delta, relative=settings.relative)}
    for name, each in found.items():
        if each.delta is None and each.relative is None:
            raise ValueError(f"deadband: set `delta` or `relative` for {name}")
    return found


def with_bounds(headers: HeaderPairs, pairs: HeaderPairs) -> HeaderPairs:
    """Return headers with bounds. A bound of an earlier function of the same kind is added: a dropped value may be off
    by both."""
    if not headers:
        return pairs
    new = dict(pairs)
    kept = []
    for name, value in headers:
        if name not in new:
            kept.append((name, value))
        elif isinstance(value, float):
            new[name] = added(float(new[name] or 0), value)
    return (*kept, *new.items())
