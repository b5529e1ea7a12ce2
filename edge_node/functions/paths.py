"""Nested fields, by dotted paths: ``motor.rpm`` is the field ``rpm`` of the field ``motor``.

Such a path cannot contain a name with a dot; expressions reach that field with ``field("a.b")``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from weft.edge_node.functions.contract import Values

PATH_NAMES_MAX = 16
"""Maximum number of names in a path."""


class MissingType:
    """Type of ``MISSING``."""


MISSING: Final = MissingType()
"""Value of a field that a row does not have. A null field has None."""


def names_in(path: str) -> tuple[str, ...]:
    """Return the names in a path.

    Raises:
        ValueError: a name is empty, or there are too many.
    """
    names = tuple(path.split("."))
    if not all(names):
        raise ValueError(f'expected a field such as rms or motor.rpm, got "{path}"')
    if len(names) > PATH_NAMES_MAX:
        raise ValueError(f'"{path}" has {len(names)} names; a path has at most {PATH_NAMES_MAX}')
    return names


def check_no_overlap(paths: Collection[str]) -> None:
    """Check that no path leads into the field of another.

    Raises:
        ValueError: one does, such as ``motor.rpm`` and ``motor``; or a path is not valid.
    """
    known = {names_in(path): path for path in paths}
    for names, path in known.items():
        for length in range(1, len(names)):
            if other := known.get(names[:length]):
                raise ValueError(f'"{path}" lies in "{other}"; name only one of them')


def getter(path: str) -> Callable[[Values], Any]:
    """Return a function that takes the fields of a row and returns the value at a path, or ``MISSING``."""
    first, *rest = names_in(path)
    if not rest:
        return lambda values: values.get(first, MISSING)

    def get(values: Values) -> Any:
        value: Any = values.get(first, MISSING)
        for name in rest:
            if not isinstance(value, dict):
                return MISSING
            value = value.get(name, MISSING)
        return value

    return get


def put(value: Any, names: tuple[str, ...], at: int, new: Any) -> Values:
    """Return a mapping with a new value at a path, as a copy: rows may share nested values.

    Args:
        value: mapping, or None for an empty one.
        names: path.
        at: index in the path at which the mapping is.
        new: value.

    Raises:
        TypeError: a value on the path is not a mapping.
    """
    if value is None:
        value = {}
    elif not isinstance(value, Mapping):
        raise TypeError(f"{'.'.join(names[:at])} is no mapping, and cannot have a field {names[at]}")
    name = names[at]
    return {**value, name: new if at + 1 == len(names) else put(value.get(name), names, at + 1, new)}


def without(values: Values, names: tuple[str, ...]) -> Values:
    """Return fields without the one at a path, as a copy; the same fields where it is missing."""
    first = names[0]
    if first not in values:
        return values
    if len(names) == 1:
        return {name: value for name, value in values.items() if name != first}
    inner = values[first]
    if not isinstance(inner, dict):
        return values
    return {**values, first: without(inner, names[1:])}
