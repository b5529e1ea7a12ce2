"""Operations that compiled expressions call in place of Python's own, which could cost too much on a row.

They raise ``TypeError`` and the like as Python does; ``reasons.py`` finds the value and the problem later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from weft.edge_node.functions.expressions.bounds import (
    FACTOR_MAX,
    FLOAT_MAX,
    INTEGER_MAX,
    INTEGER_MIN,
    NUMBER_TEXT_MAX,
    TEXT_MAX,
)


class TooLarge(OverflowError):
    """A number or text beyond the bounds of expressions."""


def add(left: Any, right: Any) -> Any:
    """Add numbers, or join texts."""
    total = left + right
    if type(total) is float or type(total) is int:
        return total
    if type(total) is not str:
        raise TypeError("neither numbers nor texts")
    if len(total) > TEXT_MAX:
        raise TooLarge(f"a text of more than {TEXT_MAX} characters")
    return total


def multiply(left: Any, right: Any) -> Any:
    """Multiply numbers; texts and lists are not repeated."""
    if type(left) is float or type(right) is float:
        return left * right
    return _factor(left) * _factor(right)


def divide_down(left: Any, right: Any) -> Any:
    """Return ``left // right``."""
    return _factor(left) // _factor(right)


def remainder(left: Any, right: Any) -> Any:
    """Return ``left % right`` of numbers; text on the left is refused, because Python would format it."""
    return _factor(left) % _factor(right)


def _factor(value: Any) -> Any:
    number = +value  # a TypeError for a value that is not a number
    if type(number) is int and not -FACTOR_MAX <= number <= FACTOR_MAX:
        raise TooLarge("an integer of more than 256 bits")
    return number


def condition(value: Any) -> bool:
    """Return a value that is true or false.

    Raises:
        TypeError: it is another value. Python would treat the text "off" as true.
    """
    if value is True or value is False:
        return bool(value)
    raise TypeError("neither true nor false")


def condition_or_null(value: Any) -> bool:
    """Return a value that is true or false; null is not true.

    Raises:
        TypeError: it is another value.
    """
    return value is not None and condition(value)


def result(value: Any) -> Any:
    """Return a computed value that every format of payloads can hold.

    Raises:
        TooLarge: an infinite number, or an integer of more than 64 bits.
        ValueError: not a number.
    """
    if type(value) is float:
        if -FLOAT_MAX <= value <= FLOAT_MAX:
            return value
        if value != value:  # noqa: PLR0124 - NaN
            raise ValueError("not a number")
        raise TooLarge("an infinite number")
    if type(value) is int and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise TooLarge("an integer of more than 64 bits")
    return value


def has(value: Any, path: tuple[str | int, ...]) -> bool:
    """Return whether a field, or a part of a field, exists."""
    for name in path:
        try:
            value = value[name]
        except (LookupError, TypeError):
            return False
    return True


def get(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return a part of a field; None where it is missing."""
    for name in path:
        try:
            value = value[name]
        except (LookupError, TypeError):
            return None
    return value


# --- functions that expressions call by name


def to_int(value: Any) -> int:
    """Convert a text or number to an integer; decimals are cut off."""
    return int(_readable(value))


def to_float(value: Any) -> float:
    """Convert a text or number to a decimal number."""
    return float(_readable(value))


def _readable(value: Any) -> Any:
    if type(value) is str:
        if len(value) > NUMBER_TEXT_MAX:
            raise TooLarge(f"a text of more than {NUMBER_TEXT_MAX} characters")
        return value
    if isinstance(value, int | float):
        return value
    raise TypeError("neither text nor a number")


def to_str(value: Any) -> str:
    """Return the text of a number or of true and false, as Python writes them; return text unchanged."""
    if isinstance(value, str | float):
        return str(value)
    if isinstance(value, int):
        return str(result(value))
    raise TypeError("neither a number nor text")


def to_bool(value: Any) -> bool:
    """Return whether a number is not zero. Text is refused: Python would treat "false" as true."""
    if isinstance(value, int | float):
        return bool(value)
    raise TypeError("not a number")


def lower(value: str) -> str:
    """Return a text in lower case."""
    return str.lower(_short(value))


def upper(value: str) -> str:
    """Return a text in upper case."""
    return str.upper(_short(value))


def strip(value: str) -> str:
    """Return a text without the white space around it."""
    return str.strip(value)


def _short(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("not text")
    if len(value) > TEXT_MAX:
        raise TooLarge(f"a text of more than {TEXT_MAX} characters")
    return value


def contains(whole: Any, part: Any) -> bool:
    """Return whether a text has a part, or a list an item."""
    return part in whole


def smallest(*values: Any) -> Any:
    """Return the smallest of some values, or of one list."""
    return min(_items(values))


def largest(*values: Any) -> Any:
    """Return the largest of some values, or of one list."""
    return max(_items(values))


def _items(values: tuple[Any, ...]) -> Any:
    if len(values) > 1:
        return values
    if type(values[0]) is not list:
        raise TypeError("not a list")
    return values[0]


def is_number(value: Any) -> bool:
    """Return whether a value is a number; true and false are not numbers."""
    return type(value) is float or type(value) is int


def is_text(value: Any) -> bool:
    """Return whether a value is text."""
    return type(value) is str


def power(base: Any, exponent: Any) -> float:
    """Return a power as a decimal number: as an integer it might have millions of digits."""
    return math.pow(base, exponent)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "add": add,
    "multiply": multiply,
    "divide_down": divide_down,
    "remainder": remainder,
    "power": power,
    "condition": condition,
    "condition_or_null": condition_or_null,
    "result": result,
    "has": has,
    "get": get,
}
"""Further names in generated code, besides the functions of ``calls.py``."""
