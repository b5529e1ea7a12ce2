"""Series of rows, and what a function remembers of each: bounded, and the same after a restart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from weft.edge_node.functions.contract import Context, Row, State
from weft.edge_node.functions.paths import MISSING, getter

KEY_BYTES_MAX = 128
"""Longest topic that is remembered as it is; of a longer one, and of other identities, a digest. So a hostile topic of
64 KiB takes no more memory than any other."""
_EVICTED_SHARE = 16
"""Part of the series that goes at once when there are too many: one by one would search the beginning of the dict each
time."""

_encode = msgspec.msgpack.Encoder().encode

Identify = Callable[[Row], bytes]
"""Row -> identity of its series, at most ``KEY_BYTES_MAX`` bytes. Raises ``ValueError`` when it has none."""


def key_of(row: Row) -> bytes:
    """Return the identity of a row's topic."""
    key = row.key
    return key if len(key) <= KEY_BYTES_MAX else b"\0" + hashlib.blake2b(key, digest_size=16).digest()


def identity(values: Sequence[Any]) -> bytes:
    """Return a short identity of some values: equal ones have the same, also 1 and 1.0.

    Raises:
        ValueError: a value is not one that payloads have.
    """
    packed = _packed([_whole(value) for value in values])
    # A NUL is in no topic, and a digest begins with one: neither can be taken for the other.
    return packed if len(packed) <= 32 else b"\0" + hashlib.blake2b(packed, digest_size=16).digest()


def _packed(value: Any) -> bytes:
    try:
        return _encode(value)
    except (OverflowError, TypeError, RecursionError, ValueError) as error:
        raise ValueError(f"a value that cannot be compared: {error}") from None


def _whole(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value


def identify(names: Iterable[str] | None, context: Context) -> Identify:
    """Return what tells the series of a row.

    Args:
        names: topic levels, fields, or ``key``; a level wins over a field of its name. None: the topic alone. A row
            without one of the fields belongs to the series of all rows without it.
    """
    if names is None or tuple(names) == ("key",):
        return key_of
    read_all = readers(names, context)

    def by_names(row: Row) -> bytes:
        found = [read(row) for read in read_all]
        return identity([None if value is MISSING else value for value in found])

    return by_names


def readers(names: Iterable[str], context: Context) -> list[Callable[[Row], Any]]:
    """Return what reads a topic level, a field or ``key`` of a row, for each name; ``MISSING`` for no value."""
    return [_reader(name, context) for name in names]


def reads_fields(names: Iterable[str] | None, context: Context) -> bool:
    """Return whether ``identify`` would look into payloads."""
    return any(name != "key" and name not in context.level_names for name in names or ())


def _reader(name: str, context: Context) -> Callable[[Row], Any]:
    if name == "key":
        return lambda row: row.key
    if name in context.level_names:
        return lambda row: context.levels(row.key).get(name, MISSING)
    get = getter(name)
    return lambda row: get(row.values)


def content(row: Row) -> bytes:
    """Return the payload of a row, or other bytes that stand for what it would be.

    Raises:
        ValueError: a value is not one that payloads have.
    """
    if row.payload is not None:
        return row.payload
    return _packed(row.values)


class SeriesState:
    """State of up to ``series_max`` series. An entry is a list or tuple that begins with its number.

    Entries are in the order in which they were put. That order decides which are forgotten first, so each entry has
    a number that brings it back after a restart.
    """

    def __init__(self, series_max: int) -> None:
        """Start empty."""
        self.state = State()
        self.get: Callable[[bytes], Any] = self.state.values.get
        """Entry of a series; None when it has none."""
        self._series_max = series_max
        self._next = 0
        self._is_ordered = False

    def restore(self) -> bool:
        """Bring loaded entries in order, once. Return whether that was now: then anything made of them is yet to be
        made. Call before anything else."""
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
        """Remember a series as the newest one, and return its entry. Follow with ``evict`` when it is a new one."""
        found = [self._next, *entry]
        self._next += 1
        state = self.state
        state.values.pop(series, None)  # a new one goes to the end
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
