"""Values that aggregates accept, and their results."""

from __future__ import annotations

import math
from typing import Any

from weft.edge_node.functions.windows.refusal import Refusal

FLOAT_MAX = 1.7976931348623157e308
INTEGER_MIN = -(1 << 63)
INTEGER_MAX = (1 << 64) - 1
"""Largest integer in ``State``; larger ones become floats."""
SUM_MAX = 9.2e18
"""Largest sum that is kept as an integer: the range of MessagePack, slightly reduced because of the precision of
floats."""
TEXT_BYTES_MAX = 1024
"""Longest text that ``first`` and ``last`` remember, in bytes of UTF-8."""


def number(value: Any, text: str) -> float | None:
    """Return a value as a number for aggregates; None where it is null.

    Args:
        value: result of an expression.
        text: the expression.

    Raises:
        Refusal: it is not a number.
    """
    if value is None:
        return None
    if type(value) is bool:
        return int(value)
    if type(value) is int:
        return value if INTEGER_MIN <= value <= INTEGER_MAX else _as_float(value, text)
    if type(value) is not float:
        raise Refusal(f"{text} is {_kind(value)}; aggregates such as sum and max take numbers")
    if not math.isfinite(value):
        raise Refusal(f"{text} is {value}; aggregates take finite numbers")
    return value


def _as_float(value: int, text: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Refusal(f"{text} is an integer of {value.bit_length()} bits; aggregates take up to 1024") from None


def scalar(value: Any, text: str) -> Any:
    """Return a value that ``first`` and ``last`` can remember.

    Raises:
        Refusal: it is a list, a mapping or a long text.
    """
    if value is None or type(value) is bool:
        return value
    if type(value) is int or type(value) is float:
        return number(value, text)
    if type(value) is str:
        if len(value.encode(errors="replace")) <= TEXT_BYTES_MAX:
            return value
        raise Refusal(f"{text} is a text of more than {TEXT_BYTES_MAX} bytes; first and last take shorter ones")
    raise Refusal(f"{text} is {_kind(value)}; first, last and count take numbers, text, true and false")


def finite(value: float | None) -> float | None:
    """Return a result, or None where it is too large for a number."""
    return value if value is not None and math.isfinite(value) else None


def deviation(count: int, squares: float) -> float | None:
    """Return the standard deviation of a sample; None where there are fewer than two values."""
    if count < 2:
        return None
    return finite(math.sqrt(squares / (count - 1))) if squares >= 0 else None


def merge_deviation(numbers: list[Any], other: list[Any], at: int, count: int, other_count: int) -> None:
    """Add mean and sum of squares of other values to those at a place (Chan, Golub and LeVeque 1979)."""
    if not other_count:
        return
    if not count:
        numbers[at], numbers[at + 1] = other[at], other[at + 1]
        return
    total = count + other_count
    difference = other[at] - numbers[at]
    numbers[at] += difference * other_count / total
    numbers[at + 1] += other[at + 1] + difference * difference * count * other_count / total


_KINDS = ((str, "text"), (bytes, "bytes"), (dict, "a mapping"), (list, "a list"))


def _kind(value: Any) -> str:
    return next((words for type_, words in _KINDS if isinstance(value, type_)), type(value).__name__)
