"""Bounds that hold for payloads of every format, and the conversion of a decoded payload to fields.

A payload of a stranger may expand to much more memory than it has bytes: a byte of MessagePack is an empty map. A
decoded payload takes at most ``MEMORY_PER_BYTE`` bytes for each of its own, so callers that decode many payloads at
once count their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, NoReturn

from weft.edge_node.functions.contract import Values
from weft.edge_node.functions.payloads import PayloadError

PAYLOAD_BYTES_MAX = 256 << 10
"""Longest payload that is decoded. Readings have hundreds of bytes, a spectrum of 8,192 values 72 KiB; longer ones are
files, which would decode to 80 times their size in the memory of a small node."""
MEMORY_PER_BYTE = 80
"""Memory for each byte of a payload: an empty map of MessagePack is one byte here, and 72 in a list of Python."""
DEPTH_MAX = 32
"""Deepest nesting of lists and mappings. Decoders have limits of their own that depend on the remaining stack; with
this one the same payload is refused everywhere."""
QUICK_BYTES_MAX = 4 << 10
"""Longest payload, or piece of one, that is decoded even if lists are keys of its mappings, which are refused
afterwards. Their hashes are predictable: 14,000 colliding ones fit into 256 KiB, and would take seconds. In 4 KiB it is
a millisecond."""

VALUE = "value"
"""Field of a payload that is one number, text or list."""

TOO_DEEP = f"its lists and mappings are more than {DEPTH_MAX} deep in each other"
"""Reason of a refusal, the same in every decoder."""

_TEXT = frozenset({str})
_CONTAINERS = frozenset({dict, list})
_PLAIN = frozenset({str, int, float, bool, bytes, NoneType})
Readings = Mapping[type, Callable[[Any], Any]]
"""Type of a library -> function that converts it to a value of fields."""
_NONE: Readings = {}


def check_length(payload: bytes) -> None:
    """Refuse payloads that are longer than ``PAYLOAD_BYTES_MAX``.

    Raises:
        PayloadError: the payload is longer.
    """
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise PayloadError(f"it has {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} are decoded")


def fields_of(value: Any, others: Readings = _NONE) -> Values:
    """Return the fields of a library's decoded value, which may be changed by this.

    Keys that are integers become text. A value other than a mapping becomes the field ``value``.

    Args:
        others: conversions of types that are neither a list nor a mapping nor among those of ``Values``.

    Raises:
        PayloadError: it has a value that fields cannot have.
    """
    # When it is encoded again it is in a mapping, one level deeper, and must still be decodable.
    return _mapping(value, others, 0) if type(value) is dict else {VALUE: _plain(value, others, 1)}


def check_depth(values: Values) -> None:
    """Refuse fields in which lists and mappings are more than ``DEPTH_MAX`` deep.

    Raises:
        PayloadError: they are.
    """
    if not _PLAIN.issuperset(map(type, values.values())):
        _measure(values, 0)


def _measure(value: Any, depth: int) -> None:
    if isinstance(value, dict):
        inside: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inside = value
    else:
        return
    _check_depth(depth)
    if not _PLAIN.issuperset(map(type, inside)):
        for each in inside:
            _measure(each, depth + 1)


def _plain(value: Any, others: Readings, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return _mapping(value, others, depth)
    if kind is list:
        _check_depth(depth)
        if not _PLAIN.issuperset(map(type, value)):
            is_deepest = depth + 1 == DEPTH_MAX
            for index, each in enumerate(value):
                if each or is_deepest or type(each) not in _CONTAINERS:  # empty ones need no change
                    value[index] = _plain(each, others, depth + 1)
        return value
    if (reading := others.get(kind)) is not None:
        return reading(value)
    return _refuse(kind)


def _mapping(value: dict[Any, Any], others: Readings, depth: int) -> Values:
    if depth >= DEPTH_MAX:
        raise PayloadError(TOO_DEEP)
    if not value:
        return value
    # These two checks of all keys and values run in C: most mappings are flat, and cost nothing more.
    if not _TEXT.issuperset(map(type, value)):
        value = _with_text_keys(value)
    if not _PLAIN.issuperset(map(type, value.values())):
        for key, each in value.items():
            if type(each) not in _PLAIN:
                value[key] = _plain(each, others, depth + 1)
    return value


def _with_text_keys(value: dict[Any, Any]) -> Values:
    """Return a mapping whose integer keys are text: devices save bytes with them, as in SenML (RFC 8428)."""
    found: Values = {}
    for key, each in value.items():
        if type(key) is not str and type(key) is not int:
            raise PayloadError(f"a name of a field is of the type {type(key).__name__}; only text and integers can be")
        found[str(key)] = each
    if len(found) < len(value):
        raise PayloadError("two names of fields are the same integer, once as a number and once as text")
    return found


def _check_depth(depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise PayloadError(TOO_DEEP)


def _refuse(kind: type) -> NoReturn:
    raise PayloadError(f"it has a value of the type {kind.__name__}, which fields cannot have")
