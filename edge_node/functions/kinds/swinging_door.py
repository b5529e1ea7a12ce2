"""The function ``swinging_door``: keeps the points of a line that is near all rows."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from weft.config.functions.reduce import SwingingDoor
from weft.edge_node.functions.contract import Context, Function, Gap, Out, Row
from weft.edge_node.functions.kinds.deadband import with_bounds
from weft.edge_node.functions.paths import MISSING, getter
from weft.edge_node.functions.series.calendar import Calendar
from weft.edge_node.functions.series.identity import identify
from weft.edge_node.functions.series.missing import no_number, passes
from weft.edge_node.functions.series.numbers import LARGEST, difference, exact, is_finite
from weft.edge_node.functions.series.state import SeriesState

HEADER = "weft.swinging_door."
"""Prefix of the header with the bound; the field's name follows."""
TIME_MAX: Final = 1 << 63
"""End of the device's own times, so that differences are finite."""
HELD_BYTES_MAX: Final = 8 << 10
"""Longest row that is held back, packed with its fields; a longer one is emitted at once. This bounds the memory of all
series for any input."""
_NS = 1_000_000_000
_TICK_ROWS = 1000
"""Maximum number of rows that a call of ``tick`` returns, some two milliseconds of work."""

# Slopes and their limits are rounded a few times each: at most 9 roundings of 2**-53 of the compared values. The limits
# are narrowed by 2**-49 of them, and by the possible loss of quotients near zero, so that the exact line keeps the
# exact bound.
_ROUNDINGS: Final = 2.0**-49
_UNDERFLOW: Final = 1e-290

_UNTIL, _TIME, _VALUE, _LOW, _HIGH, _HELD, _HELD_SINCE, _HELD_TIME, _HELD_VALUE = range(1, 10)
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
    ``weft.swinging_door.FIELD``. Rows that could not be compared end the line or pass (``missing``).

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
        self._bounds = ((HEADER + settings.field_, settings.delta),)
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
            entry[_LOW], entry[_UNTIL] = None, max(gap.after, entry[_HELD_SINCE])
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
        if time == entry[_TIME if held is None else _HELD_TIME]:
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
        start = entry[_TIME]
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
            entry[_UNTIL] = max(entry[_UNTIL], row.time)
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
        self._deadlines.put(-(-entry[_UNTIL] // _NS), series)
        self._held.put(entry[_HELD_SINCE] // _NS, series)
        if entry[_LOW] is None:
            self._ended.add(series)

    def _unhold(self, series: bytes, entry: list[Any]) -> None:
        self._deadlines.take(-(-entry[_UNTIL] // _NS), series)
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
    time, key, payload, values, headers, seq, stream, *more = _decode(packed)
    source = tuple(more[0]) if more else ()  # an earlier release kept none
    return Row(time, key, payload, values, tuple((name, value) for name, value in headers), seq, stream, source=source)
