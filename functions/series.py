"""Series of rows: their identity and state, bounds on their numbers, and the sources of rows that functions create."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Final, Literal

import msgspec

from weft.functions.contract import MISSING, Context, Out, Path, Row, Source, State, getter, names_in

# State of many series: bounded, and the same after a restart.

_EVICTED_SHARE = 16
"""Divisor of the series: the share removed at once when there are too many. Removing one by one would search the
beginning of the dict each time."""


class SeriesState:
    """State of up to ``series_max`` series. An entry is a list or tuple that begins with its number.

    Entries are in the order of ``put``. That order decides which are forgotten first, so each entry has a number that
    restores it after a restart.
    """

    def __init__(self, series_max: int) -> None:
        """Start empty."""
        self.state = State()
        self.get: Callable[[bytes], Any] = self.state.values.get
        """Entry of a series; None without one."""
        self._series_max = series_max
        self._next = 0
        self._is_ordered = False

    def restore(self) -> bool:
        """Order loaded entries, once. Return whether this call did: structures derived from them must then be built.
        Call it before any other method."""
        if self._is_ordered:
            return False
        self._is_ordered = True
        values = self.state.values
        entries = sorted(values.items(), key=lambda item: item[1][0])
        values.clear()
        values.update(entries)
        self._next = entries[-1][1][0] + 1 if entries else 0
        return True

    def put(self, series: bytes, *entry: Any) -> list[Any]:
        """Remember a series as the newest one, and return its entry. Call ``evict`` afterwards for a new series."""
        found = [self._next, *entry]
        self._next += 1
        state = self.state
        state.values.pop(series, None)  # a new entry goes to the end
        state.set(series, found)
        return found

    def evict(self) -> list[tuple[bytes, Any]]:
        """Forget the oldest series when there are too many, and return them with their entries."""
        values = self.state.values
        if len(values) <= self._series_max:
            return []
        count = len(values) - self._series_max + self._series_max // _EVICTED_SHARE
        oldest = [item for item, _ in zip(values.items(), range(count), strict=False)]
        for series, _ in oldest:
            self.state.delete(series)
        return oldest

    def clear(self) -> None:
        """Forget all series."""
        for series in list(self.state.values):
            self.state.delete(series)


# Identity of series and of messages in a few bytes.

KEY_BYTES_MAX = 128
"""Longest topic that is stored itself; longer ones, and other identities, are stored as a digest. So a hostile topic of
64 KiB takes no more memory than any other."""
_encode = msgspec.msgpack.Encoder().encode

Identify = Callable[[Row], bytes]
"""Row -> identity of its series, at most ``KEY_BYTES_MAX`` bytes. Raises ``ValueError`` when it has none."""


def key_of(row: Row) -> bytes:
    """Return the identity of a row's topic."""
    key = row.key
    return key if len(key) <= KEY_BYTES_MAX else b"\0" + hashlib.blake2b(key, digest_size=16).digest()


def identity(values: Sequence[Any]) -> bytes:
    """Return a short identity of some values: equal values have the same, 1 and 1.0 included.

    Raises:
        ValueError: a value has a type that payloads do not have.
    """
    packed = _packed([_whole(value) for value in values])
    # No topic has a NUL, and a digest begins with one: they cannot be confused.
    return packed if len(packed) <= 32 else b"\0" + hashlib.blake2b(packed, digest_size=16).digest()


def _packed(value: Any) -> bytes:
    try:
        return _encode(value)
    except (OverflowError, TypeError, RecursionError, ValueError) as error:
        raise ValueError(f"a value that cannot be compared: {error}") from None


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


def identify(names: Iterable[str] | None, context: Context) -> Identify:
    """Return the function that computes the identity of a row's series.

    Args:
        names: topic levels, fields, or ``key``; a level takes precedence over a field of its name. None: only the
            topic. A row without one of the fields belongs to the series of all rows without it.
    """
    if names is None or tuple(names) == ("key",):
        return key_of
    read_all = readers(names, context)

    def by_names(row: Row) -> bytes:
        found = [read(row) for read in read_all]
        return identity([None if value is MISSING else value for value in found])

    return by_names


def readers(names: Iterable[str], context: Context) -> list[Callable[[Row], Any]]:
    """Return for each name a function that reads a topic level, a field or ``key`` of a row; ``MISSING`` for no
    value."""
    return [_reader(name, context) for name in names]


def fields_of(names: Iterable[str] | None, context: Context) -> frozenset[Path]:
    """Return the fields that ``identify`` or ``readers`` would read."""
    return frozenset(names_in(name) for name in names or () if name != "key" and name not in context.level_names)


def _reader(name: str, context: Context) -> Callable[[Row], Any]:
    if name == "key":
        return lambda row: row.key
    if name in context.level_names:
        return lambda row: context.levels(row.key).get(name, MISSING)
    get = getter(name)
    return lambda row: get(row.values)


def content(row: Row) -> bytes:
    """Return the payload of a row, or an equivalent encoding of its values.

    Raises:
        ValueError: a value has a type that payloads do not have.
    """
    if row.payload is not None:
        return row.payload
    return _packed(row.values)


# Treatment of rows that a function cannot compare: the setting ``missing``.

Missing = Literal["pass", "reject", "drop"]
_SHOWN_MAX = 40


def passes(row: Row, missing: Missing, reason: str, out: Out) -> bool:
    """Return whether a row is kept although it cannot be compared. Report the reason where it is not."""
    if missing == "pass":
        return True
    if missing == "reject":
        out.reject(row, reason)
    else:
        out.drop(row, reason.partition(": ")[2])  # the display names the function
    return False


def no_number(function: str, field: str, value: Any) -> str:
    """Return the reason for a field without a finite number."""
    if value is MISSING:
        return f"{function}: the payload has no field {field}"
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."
    return f"{function}: {field} is not a finite number of at most 64 bits: {shown}"


# Bounds on numbers that hold in exact arithmetic, despite rounding of floats.

LARGEST: Final = sys.float_info.max
EXACT_INT_MAX: Final = 1 << 53
"""Largest magnitude up to which every integer is a double."""
INT_MIN: Final = -(1 << 63)
INT_END: Final = 1 << 64
"""End of the integers that fit MessagePack, and so the state."""


def is_finite(value: Any) -> bool:
    """Return whether a value of a payload is a number for which a bound can hold. True and False are 1 and 0."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and INT_MIN <= value < INT_END


def band(value: float, delta: float) -> tuple[float, float]:
    """Return the least and the greatest number that is at most ``delta`` from ``value``, or narrower by a rounding.

    A number x between them satisfies |x - value| <= delta exactly, not only after rounding.

    Args:
        value: a number for which ``is_finite`` holds.
        delta: at least 0 and finite.
    """
    if isinstance(value, int):
        if abs(value) > EXACT_INT_MAX:
            # Whole numbers, so that nothing is rounded; narrower than requested by less than 1.
            whole = int(delta)
            return max(value - whole, INT_MIN), min(value + whole, INT_END - 1)
        value = float(value)
    low, high = value - delta, value + delta
    # Knuth's TwoSum: low + error is the exact difference, and so on. A sum that was rounded away from ``value`` moves
    # back.
    part = low - value
    if (value - (low - part)) - (delta + part) > 0:
        low = math.nextafter(low, value)
    part = high - value
    if (value - (high - part)) + (delta - part) < 0:
        high = math.nextafter(high, value)
    return max(low, -LARGEST), min(high, LARGEST)


def added(bound: float, other: float) -> float:
    """Return the sum of two bounds, rounded up: it must not be less than both together."""
    total = bound + other
    part = total - bound
    # Knuth's TwoSum, as in ``band``: the part lost by rounding.
    lost = (bound - (total - part)) + (other - part)
    return math.nextafter(total, math.inf) if lost > 0 else total


def difference(left: float, right: float) -> float:
    """Return ``left - right`` with one rounding, also for integers that no double represents. Infinite when it is too
    large."""
    if isinstance(left, float) and isinstance(right, float):
        return left - right
    exact = Fraction(left) - Fraction(right)
    try:
        return float(exact)
    except OverflowError:
        return math.copysign(math.inf, exact)


def exact(value: float) -> float:
    """Return an integer as a double where both are equal, and other values unchanged."""
    return float(value) if isinstance(value, int) and abs(value) <= EXACT_INT_MAX else value


# Series by the second at which they have work.


class Calendar:
    """Seconds with their series, and the first such second."""

    def __init__(self) -> None:
        """Start empty."""
        self._series: dict[int, dict[bytes, None]] = {}
        self._first: int | None = None

    def put(self, second: int, series: bytes) -> None:
        """Add a series at a second. A series has at most one second; ``move`` changes it."""
        there = self._series.get(second)
        if there is not None:
            there[series] = None
            return
        self._series[second] = {series: None}
        if self._first is not None and second < self._first:
            self._first = second

    def take(self, second: int, series: bytes) -> None:
        """Remove a series from a second."""
        there = self._series[second]
        del there[series]
        if not there:
            self._remove(second)

    def move(self, old: int, new: int, series: bytes) -> None:
        """Move a series from a second to another."""
        if old != new:
            self.take(old, series)
            self.put(new, series)

    def first(self) -> int | None:
        """Return the first second that has series; None when there is none."""
        if self._first is None and self._series:
            self._first = min(self._series)
        return self._first

    def series_at(self, second: int) -> list[bytes]:
        """Return the series of a second."""
        return list(self._series.get(second, ()))

    def _remove(self, second: int) -> None:
        del self._series[second]
        if second == self._first:
            self._first = None  # ``first`` looks for the next one


# Sources of rows that functions create: for each input the first and the last number, and the number of used records.
#
# They are flat lists, so that ``State`` can hold them: input, first, last, count, then the next input.

UNKNOWN = ""
"""Name in place of an input where a row's source is unknown."""
INPUTS_MAX = 8
"""Maximum number of inputs of one row. With more, its source is unknown."""
_WIDTH = 4


def source_of(row: Row) -> Source:
    """Return the source of a row: its own record, or the records it was made of. Empty where they are unknown."""
    return (row.input, row.seq, row.seq, 1) if row.seq >= 0 else row.source


def note(sources: list[Any], row: Row) -> None:
    """Add a row to the sources of a window."""
    join(sources, source_of(row) or (UNKNOWN,))


def join(sources: list[Any], other: Sequence[Any]) -> None:
    """Add the sources of other rows."""
    if UNKNOWN in (*sources[:1], *other[:1]):
        sources[:] = [UNKNOWN]
        return
    for name, first, last, count in _parts(other):
        at = next((at for at in range(0, len(sources), _WIDTH) if sources[at] == name), None)
        if at is not None:
            low, high, number = sources[at + 1 : at + _WIDTH]
            sources[at + 1 : at + _WIDTH] = [min(low, first), max(high, last), number + count]
        elif len(sources) < INPUTS_MAX * _WIDTH:
            sources += [name, first, last, count]
        else:
            sources[:] = [UNKNOWN]
            return


def take(sources: list[Any], row: Row) -> None:
    """Remove a row that is no longer used. The first and the last number stay."""
    for name, _, _, count in _parts(source_of(row)):
        for at in range(0, len(sources) - 1, _WIDTH):
            if sources[at] == name:
                sources[at + _WIDTH - 1] -= count


def known(sources: Sequence[Any]) -> Source:
    """Return the source of a window's result; empty where it is unknown."""
    if UNKNOWN in sources[:1]:
        return ()
    return tuple(value for part in _parts(sources) if part[-1] > 0 for value in part)


def text_of(source: Source) -> str:
    """Return a source in the form of a record's header: ``telemetry 120-150/17``."""
    return ", ".join(_text(*part) for part in _parts(source))


def _text(name: str, first: int, last: int, count: int) -> str:
    numbers = f"{first}" if first == last else f"{first}-{last}"
    return f"{name} {numbers}" + (f"/{count}" if count != last - first + 1 else "")


def _parts(sources: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return (tuple(sources[at : at + _WIDTH]) for at in range(0, len(sources), _WIDTH))
