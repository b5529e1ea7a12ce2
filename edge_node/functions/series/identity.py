"""Identity of series and of messages in a few bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from weft.edge_node.functions.contract import Context, Path, Row
from weft.edge_node.functions.paths import MISSING, getter, names_in

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
