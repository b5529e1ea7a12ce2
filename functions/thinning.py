"""Functions that thin out series: ``deadband``, ``changes``, ``dedupe``, ``sample`` and ``swinging_door``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from weft.config.functions.step import Band, Changes, Deadband, Dedupe, Sample, SwingingDoor
from weft.functions.contract import MISSING, Context, Function, Gap, Out, Path, Row, State, Values, getter, names_in
from weft.functions.series import (
    KEY_BYTES_MAX,
    LARGEST,
    Calendar,
    SeriesState,
    added,
    band,
    content,
    difference,
    exact,
    fields_of,
    identify,
    identity,
    is_finite,
    key_of,
    no_number,
    passes,
    readers,
)
from weft.protocols.batch import HeaderPairs

# The function ``deadband``: drops rows that are near the last kept one.

DEADBAND_HEADER = "weft.deadband."
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
    number in K's header `weft.deadband.FIELD`. The guarantee excludes rows that could not be compared (``missing``).

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
        self._header = DEADBAND_HEADER + self._fields[0].name
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
            pairs.append((DEADBAND_HEADER + field.name, bound))
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


# The function ``changes``: drops rows that repeat the last kept one.

_REPEATS_UNTIL, _SEEN = 1, 2
"""An entry: number, time from which a row is kept in any case (ns), then the identity of the last payload, or of each
field's last value, None for a field that never occurred."""


class ChangesFunction(Function):
    """Keeps a row when a field (or the payload) differs from the last kept row of its series.

    Guarantee: each dropped row equals the last kept row of its series: in its values, where 1 and 1.0 are equal and
    true and 1 are not, or in its payload, byte by byte. Long values are compared by digests of 128 bits.

    State: up to 32 bytes for each field of each series, up to ``keys_max``; it changes only when a row is kept.
    """

    def __init__(self, settings: Changes, context: Context) -> None:
        """Prepare the fields."""
        self._names = settings.fields or ()
        self._fields = [getter(name) for name in self._names]
        self._series = SeriesState(settings.keys_max)
        self.state = self._series.state
        self._identify = identify(settings.by, context)
        silence = settings.max_silence_s
        self._max_silence = NEVER if silence is None else round(silence * _NS)
        self._missing = settings.missing
        self._reads = frozenset(names_in(name) for name in self._names) | fields_of(settings.by, context)
        self.reads_values = bool(self._reads)

    def reads(self) -> frozenset[Path]:
        """Return the compared fields, and those that identify series."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows that are kept."""
        self._series.restore()
        return [row for row in rows if self._keeps(row, out)]

    def gap(self, gap: Gap, out: Out) -> None:  # noqa: ARG002
        """Start all series again: changes in the gap are unknown, so the next row of each is kept."""
        self._series.restore()
        self._series.clear()

    def _keeps(self, row: Row, out: Out) -> bool:
        try:
            series = self._identify(row)
            seen: list[Any] = self._seen(row)
        except ValueError as error:
            return passes(row, self._missing, f"changes: {error}", out)
        if self._fields and all(each is None for each in seen):
            return passes(row, self._missing, f"changes: the payload has no field {' or '.join(self._names)}", out)
        entry = self._series.get(series)
        if entry is not None:
            last = entry[_SEEN:]
            # A missing field counts as unchanged.
            seen = [old if new is None else new for new, old in zip(seen, last, strict=True)]
            if seen == last and row.time < entry[_REPEATS_UNTIL]:
                out.drop(row, "repeats the last kept row")
                return False
        until = NEVER if self._max_silence == NEVER else row.time + self._max_silence
        self._series.put(series, until, *seen)
        self._series.evict()
        return True

    def _seen(self, row: Row) -> list[bytes | None]:
        if not self._fields:
            return [identity([content(row)])]
        found = [get(row.values) for get in self._fields]
        return [None if value is MISSING else identity([value]) for value in found]


# The function ``dedupe``: drops repeats of a message.

_FORGOTTEN_AT_ONCE = 8
"""Maximum number of identities forgotten for each new one: enough to catch up without a long pause."""

_SEEN_TIME = 1
"""An entry after its number: time of the kept row, ns."""


class DedupeFunction(Function):
    """Keeps the first row with an identity and drops others with it for ``within`` after that.

    Guarantee: each dropped row has the identity of a kept row that came before it, received less than ``within`` ago.
    Repeats may get through: after ``within``, and when there were more than ``ids_max`` identities in that time, as the
    oldest are then forgotten. Identities longer than 32 bytes are compared by digests of 128 bits.

    State: up to ``ids_max`` identities of at most 32 bytes, with a time each; it changes only when a row is kept.
    """

    def __init__(self, settings: Dedupe, context: Context) -> None:
        """Start without identities."""
        self._within = round(settings.within_s * _NS)
        self._has_key = not settings.across_keys
        self._names = settings.by or ()
        self._readers = readers(self._names, context)
        self._missing = settings.missing
        self._ids_max = settings.ids_max
        self._ids = SeriesState(settings.ids_max)
        self.state: State = self._ids.state
        self._order: deque[tuple[int, bytes]] = deque()
        """Numbers of entries and their identities, the oldest first. A renewed identity has a new number; its old one
        is skipped."""
        self._reads = fields_of(settings.by, context)
        self.reads_values = bool(self._reads)

    def reads(self) -> frozenset[Path]:
        """Return the fields that identify a message."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows that are not repeats."""
        if self._ids.restore():
            self._list()
        return [row for row in rows if self._keeps(row, out)]

    def _keeps(self, row: Row, out: Out) -> bool:
        try:
            found = self._identity(row)
        except ValueError as error:
            return passes(row, self._missing, f"dedupe: {error}", out)
        entry = self._ids.get(found)
        # Also where time stepped back: two rows a year apart, in either direction, are not repeats.
        if entry is not None and abs(row.time - entry[_SEEN_TIME]) < self._within:
            out.drop(row, "repeats a message")
            return False
        self._order.append((self._ids.put(found, row.time)[0], found))
        self._forget(row.time)
        return True

    def _forget(self, now: int) -> None:
        """Forget expired identities, a few at a time, and the oldest beyond the bound."""
        if len(self._order) > 2 * self._ids_max + 64:
            self._list()
        count = 0
        while self._order:
            number, found = self._order[0]
            entry = self._ids.get(found)
            if entry is not None and entry[0] == number:
                is_over = count < _FORGOTTEN_AT_ONCE and now - entry[_SEEN_TIME] >= self._within
                if not is_over and len(self.state.values) <= self._ids_max:
                    return
                self.state.delete(found)
                count += 1
            self._order.popleft()

    def _list(self) -> None:
        self._order = deque((entry[0], found) for found, entry in self.state.values.items())

    def _identity(self, row: Row) -> bytes:
        key = [row.key] if self._has_key else []
        if not self._names:
            return identity([*key, content(row)])
        values = [read(row) for read in self._readers]
        for name, value in zip(self._names, values, strict=True):
            if value is MISSING:
                raise ValueError(f"the payload has no field {name}")
        return identity([*key, *values])


# The function ``sample``: keeps a sample of the rows.

_LEFT_OUT = "not one of those to keep"

_COUNT = 1
"""An entry after its number: rows since the last kept one, or the number of the last period with a kept row."""


class SampleFunction(Function):
    """Keeps the first of each ``every`` rows of a series, or the first row of each ``period``.

    Guarantee: none about dropped rows; no value is changed, and the first row of each series is kept. With ``period``,
    each period in which a series has rows keeps one of them. A row whose time steps back to another period counts as
    the first of a new one.

    State: one number for each series, up to ``keys_max``; with ``every`` it changes with each row.
    """

    def __init__(self, settings: Sample, context: Context) -> None:
        """Start with the first row of each series.

        Raises:
            ValueError: neither or both of ``every`` and ``period`` are set.
        """
        if (settings.every is None) == (settings.period_s is None):
            raise ValueError("sample: set either `every` (a number of rows) or `period` (a duration)")
        self._every = settings.every
        self._period = 0 if settings.period_s is None else max(1, round(settings.period_s * _NS))
        self._series = SeriesState(settings.keys_max)
        self.state = self._series.state
        self._identify = identify(settings.by, context)
        self._reads = fields_of(settings.by, context)
        self.reads_values = bool(self._reads)

    def reads(self) -> frozenset[Path]:
        """Return the fields that identify series."""
        return self._reads

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the rows that are kept."""
        self._series.restore()
        return self._by_count(rows, out, self._every) if self._every is not None else self._by_period(rows, out)

    def _by_count(self, rows: list[Row], out: Out, every: int) -> list[Row]:
        kept: list[Row] = []
        get, touch = self._series.get, self._series.state.touch
        for row in rows:
            series = self._series_of(row, out)
            if series is None:
                continue
            entry = get(series)
            if entry is not None and entry[_COUNT] < every:
                entry[_COUNT] += 1
                touch(series)
                out.drop(row, _LEFT_OUT)
                continue
            self._keep(series, 1)
            kept.append(row)
        return kept

    def _by_period(self, rows: list[Row], out: Out) -> list[Row]:
        kept: list[Row] = []
        get = self._series.get
        for row in rows:
            series = self._series_of(row, out)
            if series is None:
                continue
            period = row.time // self._period
            entry = get(series)
            # Not "<": after a clock that was far ahead is set back, the series continues.
            if entry is not None and entry[_COUNT] == period:
                out.drop(row, _LEFT_OUT)
                continue
            self._keep(series, period)
            kept.append(row)
        return kept

    def _series_of(self, row: Row, out: Out) -> bytes | None:
        try:
            return self._identify(row)
        except ValueError as error:
            out.reject(row, f"sample: {error}")
            return None

    def _keep(self, series: bytes, count: int) -> None:
        self._series.put(series, count)
        self._series.evict()


# The function ``swinging_door``: keeps the points of a line that is near all rows.

SWINGING_DOOR_HEADER = "weft.swinging_door."
"""Prefix of the header with the bound; the field's name follows."""
TIME_MAX: Final = 1 << 63
"""End of the device's own times, so that differences are finite."""
HELD_BYTES_MAX: Final = 8 << 10
"""Longest row that is held back, packed with its fields; a longer one is emitted at once. This bounds the memory of all
series for any input."""
_TICK_ROWS = 1000
"""Maximum number of rows that a call of ``tick`` returns, some two milliseconds of work."""

# Slopes and their limits are rounded a few times each: at most 9 roundings of 2**-53 of the compared values. The limits
# are narrowed by 2**-49 of them, and by the possible loss of quotients near zero, so that the exact line keeps the
# exact bound.
_ROUNDINGS: Final = 2.0**-49
_UNDERFLOW: Final = 1e-290

_LINE_UNTIL, _LAST_TIME, _VALUE, _LOW, _HIGH, _HELD, _HELD_SINCE, _HELD_TIME, _HELD_VALUE = range(1, 10)
"""An entry after its number: the time by which a held row is emitted (ns); the pivot, which is the last emitted row, by
its time on the line and its value; the limits of the slope to the next pivot (``_LOW`` is None: the line has ended);
and the row that is held back, packed, with its times and value: None where there is none."""


class SwingingDoorFunction(Function):
    """Keeps rows as pivots such that the straight line between two of them passes within ``delta`` of all rows between.

    Unlike the swinging door of historians, whose pivots are rows although its doors promise only some line, a row is
    held as the next pivot only while the line to that very row passes all rows between. It keeps a few rows more, and
    the bound is ``delta`` and not twice that.

    Guarantee: each dropped row lies, in order and in time, between two pivots of its series that follow each other, and
    is within ``delta`` of the line through them in exact arithmetic. ``delta`` is in the pivots' header
    `weft.swinging_door.FIELD`. Rows that could not be compared end the line or pass (``missing``).

    A row whose time is not after that of the one before begins a new line, unless it repeats its time and value.

    State: for each series, up to ``keys_max``, the pivot's numbers and one row, which changes with each row. A held row
    is emitted at the first whole second ``max_silence`` after its pivot. A forgotten series emits its row first.
    """

    def __init__(self, settings: SwingingDoor, context: Context) -> None:
        """Start without series."""
        self._name = settings.field_
        self._get = getter(settings.field_)
        self._delta = settings.delta
        self._time_name = settings.time
        self._get_time = None if settings.time is None else getter(settings.time)
        self._identify = identify(settings.by, context)
        self._series = SeriesState(settings.keys_max)
        self.state = self._series.state
        self._max_silence = round(settings.max_silence_s * _NS)
        self._missing = settings.missing
        self._bounds = ((SWINGING_DOOR_HEADER + settings.field_, settings.delta),)
        self._deadlines = Calendar()
        """Series with a held row, at the second by which it is emitted."""
        self._held = Calendar()
        """The same, at the second in which the row was received."""
        self._ended: set[bytes] = set()
        """Series among them whose line has ended in a gap."""

    def process(self, rows: list[Row], out: Out) -> list[Row]:
        """Return the pivots that the rows released."""
        self._restore()
        emitted: list[Row] = []
        if self._ended:
            self._come_out(list(self._ended), emitted)
        for row in rows:
            try:
                series = self._identify(row)
            except ValueError as error:
                if passes(row, self._missing, f"swinging_door: {error}", out):
                    emitted.append(row)
                continue
            self._add(row, series, emitted, out)
        return emitted

    def tick(self, time: int, out: Out) -> list[Row]:  # noqa: ARG002
        """Return rows that were held back long enough, at most ``_TICK_ROWS`` at once: by their deadline, and within a
        second by age."""
        self._restore()
        second = self._deadlines.first()
        if second is None or second * _NS > time:
            return []
        emitted: list[Row] = []
        self._come_out(self._deadlines.series_at(second), emitted, _TICK_ROWS)
        return emitted

    def gap(self, gap: Gap, out: Out) -> None:  # noqa: ARG002
        """End all lines: no line continues across missing rows. Held rows are emitted before the next row, or at their
        time."""
        self._restore()
        for series, entry in list(self._series.state.items()):
            if entry[_HELD] is None:
                self._series.state.delete(series)
                continue
            self._unhold(series, entry)
            entry[_LOW], entry[_LINE_UNTIL] = None, max(gap.after, entry[_HELD_SINCE])
            self._hold(series, entry)
            self._series.state.touch(series)

    def due(self) -> int | None:
        """Return the second at which the next held row must be emitted."""
        self._restore()
        second = self._deadlines.first()
        return None if second is None else second * _NS

    def oldest(self) -> int | None:
        """Return the second in which the oldest held row was received."""
        self._restore()
        second = self._held.first()
        return None if second is None else second * _NS

    # --- inside

    def _restore(self) -> None:
        if not self._series.restore():
            return
        for series, entry in self._series.state.items():
            if entry[_HELD] is not None:
                self._hold(series, entry)

    def _come_out(self, several: list[bytes], emitted: list[Row], count: int | None = None) -> None:
        """Emit held rows, the oldest first, as pivots of lines that continue unless they have ended."""
        found = sorted((self._series.get(series)[_HELD_SINCE], series) for series in several)
        for _, series in found[:count]:
            entry = self._series.get(series)
            self._release(series, entry, emitted)
            if entry[_LOW] is None:
                self._series.state.delete(series)
            else:
                self._begin(series, entry[_HELD_SINCE], entry[_HELD_TIME], entry[_HELD_VALUE])

    def _add(self, row: Row, series: bytes, emitted: list[Row], out: Out) -> None:
        entry = self._series.get(series)
        value = self._get(row.values)
        time = row.time if self._get_time is None else self._get_time(row.values)
        if type(value) is not float or not -LARGEST <= value <= LARGEST or self._get_time is not None:
            reason = self._no_point(value, time)
            if reason is not None:
                if passes(row, self._missing, reason, out):
                    if value is not MISSING:
                        # It is part of the series but not a point: the line does not continue across it.
                        self._end(series, entry, emitted)
                    emitted.append(row)
                return
            value, time = exact(value), exact(time)
        if entry is None:
            emitted.append(self._pivot(row))
            self._begin(series, row.time, time, value)
            self._evict(emitted)
            return
        held = entry[_HELD]
        if time == entry[_LAST_TIME if held is None else _HELD_TIME]:
            if value == entry[_VALUE if held is None else _HELD_VALUE]:
                out.drop(row, "repeats the row before it")
                return
        elif self._extends(row, series, entry, time, value):
            return
        if held is None:
            # Not after the pivot, or too far away for a line of doubles.
            emitted.append(self._pivot(row))
            self._begin(series, row.time, time, value)
            return
        self._release(series, entry, emitted)
        entry = self._begin(series, entry[_HELD_SINCE], entry[_HELD_TIME], entry[_HELD_VALUE])
        if self._extends(row, series, entry, time, value):
            return
        emitted.append(self._pivot(row))
        self._begin(series, row.time, time, value)

    def _extends(self, row: Row, series: bytes, entry: list[Any], time: float, value: float) -> bool:
        """Hold a row if the line to it passes all rows since the pivot. Return whether it does."""
        held = entry[_HELD]
        start = entry[_LAST_TIME]
        duration = time - start if type(time) is type(start) else difference(time, start)
        if duration <= 0 or (held is not None and time <= entry[_HELD_TIME]):
            return False
        pivot = entry[_VALUE]
        change = value - pivot if type(value) is float and type(pivot) is float else difference(value, pivot)
        # An infinite slope is outside, and so is any slope once the limits have crossed.
        if not entry[_LOW] <= change / duration <= entry[_HIGH]:
            return False
        try:
            # Pack it at once, not when the step is saved: here a row that a state cannot hold can still be emitted.
            packed = pack_row(row)
        except ValueError:
            return False
        if len(packed) > HELD_BYTES_MAX:
            return False
        delta = self._delta
        room = delta - (abs(change) + delta) * _ROUNDINGS - _UNDERFLOW
        low, high = (change - room) / duration, (change + room) / duration
        entry[_LOW] = max(low, entry[_LOW])
        entry[_HIGH] = min(high, entry[_HIGH])
        before, entry[_HELD_SINCE] = entry[_HELD_SINCE], row.time
        entry[_HELD], entry[_HELD_TIME], entry[_HELD_VALUE] = packed, time, value
        if held is None:
            # Not in the past, whose ticks may all be over.
            entry[_LINE_UNTIL] = max(entry[_LINE_UNTIL], row.time)
            self._hold(series, entry)
        else:
            self._held.move(before // _NS, row.time // _NS, series)
        self._series.state.touch(series)
        return True

    def _no_point(self, value: Any, time: Any) -> str | None:
        if not is_finite(value):
            return no_number("swinging_door", self._name, value)
        if self._get_time is not None and not (is_finite(time) and abs(time) < TIME_MAX):
            return no_number("swinging_door", self._time_name or "time", time)
        return None

    def _end(self, series: bytes, entry: list[Any] | None, emitted: list[Row]) -> None:
        if entry is not None:
            if entry[_HELD] is not None:
                self._release(series, entry, emitted)
            self._series.state.delete(series)

    def _pivot(self, row: Row) -> Row:
        row.headers = with_bounds(row.headers, self._bounds)
        return row

    def _release(self, series: bytes, entry: list[Any], emitted: list[Row]) -> None:
        self._unhold(series, entry)
        emitted.append(self._pivot(unpack_row(entry[_HELD])))

    def _begin(self, series: bytes, since: int, time: float, value: float) -> list[Any]:
        """Begin a line at a pivot. Return the entry."""
        return self._series.put(
            series, since + self._max_silence, time, value, -LARGEST, LARGEST, None, None, None, None
        )

    def _evict(self, emitted: list[Row]) -> None:
        for series, entry in self._series.evict():
            if entry[_HELD] is not None:
                self._release(series, entry, emitted)

    def _hold(self, series: bytes, entry: list[Any]) -> None:
        self._deadlines.put(-(-entry[_LINE_UNTIL] // _NS), series)
        self._held.put(entry[_HELD_SINCE] // _NS, series)
        if entry[_LOW] is None:
            self._ended.add(series)

    def _unhold(self, series: bytes, entry: list[Any]) -> None:
        self._deadlines.take(-(-entry[_LINE_UNTIL] // _NS), series)
        self._held.take(entry[_HELD_SINCE] // _NS, series)
        self._ended.discard(series)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def pack_row(row: Row) -> bytes:
    """Return a row as bytes.

    Raises:
        ValueError: a state cannot hold a value, such as an integer of more than 64 bits.
    """
    try:
        return _encode((row.time, row.key, row.payload, row.values, row.headers, row.seq, row.input, row.source))
    except (OverflowError, TypeError, RecursionError, ValueError) as error:
        raise ValueError(f"a value that cannot be remembered: {error}") from None


def unpack_row(packed: bytes) -> Row:
    """Return the row that ``pack_row`` packed."""
    time, key, payload, values, headers, seq, stream, source = _decode(packed)
    pairs = tuple((name, value) for name, value in headers)
    return Row(time, key, payload, values, pairs, seq, stream, source=tuple(source))
