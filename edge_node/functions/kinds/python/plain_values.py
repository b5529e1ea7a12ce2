"""Values that a user's code returns or keeps, as the node and its formats can hold them."""

from __future__ import annotations

import datetime
from types import NoneType
from typing import Any

import msgspec

DEPTH_MAX = 32
"""Deepest lists and mappings in each other, as in payloads. Whether a decoder takes deeper ones depends on the stack
that is left: a state that was written now might not be read at the next start."""

_PLAIN = frozenset({str, int, float, bool, bytes, NoneType})
_NAMES = frozenset({str, int})


def plain(value: Any, depth: int = 1) -> Any:
    """Return a value with times as text. Objects that MessagePack knows no more of than this module stay as they are.

    Raises:
        TypeError: it cannot be part of a record.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if depth > DEPTH_MAX:
        raise TypeError(f"lists and mappings are more than {DEPTH_MAX} deep in each other")
    if isinstance(value, list | tuple):
        return value if {*map(type, value)} <= _PLAIN else [plain(each, depth + 1) for each in value]
    if isinstance(value, dict):  # also a record that comes back
        if not {*map(type, value)} <= _NAMES:
            raise TypeError("a mapping has a name that is no text")
        if {*map(type, value.values())} <= _PLAIN:
            return value
        return {name: plain(each, depth + 1) for name, each in value.items()}
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, msgspec.Raw | msgspec.msgpack.Ext):
        raise TypeError(f"a value of type {kind.__name__} cannot be part of a record: use text, numbers, lists")
    return value
