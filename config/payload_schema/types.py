"""Types of fields: ``float``, ``timestamp(ms)``, ``decimal(10,2)``, ``array<string>``."""

from __future__ import annotations

import re
from typing import NamedTuple

from weft.config.units import quoted

SCALARS = ("bool", "int", "float", "string", "binary", "timestamp")
TIME_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Unit of a time as a number -> its nanoseconds."""
DECIMAL_DIGITS_MAX = 38
"""Most digits of a decimal, as in Spark and Delta."""
TYPE_PATTERN = (
    r"^(array<\s*)?(bool|int|float|string|binary|timestamp(\((s|ms|us|ns)\))?"
    r"|decimal\(\s*[0-9]{1,2}\s*(,\s*[0-9]{1,2}\s*)?\))(\s*>)?$"
)
SPARK_NAMES = {"boolean": "bool", "bigint": "int", "long": "int", "integer": "int", "double": "float"}
"""Spark's names of types -> ours. Only the short text form accepts them."""
WORDS = "a type such as float, int, string, timestamp(ms) or array<float>"

_TIME = re.compile(r"timestamp\(\s*(\w+)\s*\)")
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,2})\s*(?:,\s*([0-9]{1,2})\s*)?\)")
_ARRAY = re.compile(r"array\s*<(.*)>", re.DOTALL)
_MEANT = {
    **SPARK_NAMES,
    "number": "float",
    "real": "float",
    "text": "string",
    "str": "string",
    "bytes": "binary",
    "date": "timestamp",
    "datetime": "timestamp",
    "time": "timestamp",
    "list": "array<float>",
    "array": "array<float>",
    "decimal": "decimal(10,2)",
}


class FieldType(NamedTuple):
    """A type of a field. ``str`` gives its text form."""

    name: str
    """One of ``SCALARS``, ``decimal`` or ``array``."""
    unit: str | None = None
    """Unit of a time that is a number since 1970; None for text in ISO 8601."""
    digits: int = 0
    """Digits of a decimal, those after the point included."""
    scale: int = 0
    """Digits of a decimal after the point."""
    item: FieldType | None = None
    """Type of an array's items."""

    def __str__(self) -> str:
        if self.item is not None:
            return f"array<{self.item}>"
        if self.name == "decimal":
            return f"decimal({self.digits},{self.scale})"
        return f"{self.name}({self.unit})" if self.unit else self.name


def field_type(text: str) -> FieldType:
    """Return the type of a text form.

    Raises:
        ValueError: it is not a type; the message suggests a similar one.
    """
    form = text.strip().lower()
    if match := _ARRAY.fullmatch(form):
        if _ARRAY.match(match[1].strip()):
            raise ValueError(f"expected an array of single values such as array<float>, got {quoted(text)}")
        return FieldType("array", item=field_type(match[1]))
    if match := _TIME.fullmatch(form):
        if match[1] not in TIME_UNITS:
            raise ValueError(f"expected timestamp(s), (ms), (us) or (ns), got {quoted(text)}")
        return FieldType("timestamp", match[1])
    if match := _DECIMAL.fullmatch(form):
        digits, scale = int(match[1]), int(match[2] or 0)
        if not 1 <= digits <= DECIMAL_DIGITS_MAX or scale > digits:
            raise ValueError(
                f"expected decimal(DIGITS,SCALE) with 1 to {DECIMAL_DIGITS_MAX} digits, SCALE of them after the "
                f"point, got {quoted(text)}"
            )
        return FieldType("decimal", digits=digits, scale=scale)
    if form in SCALARS:
        return FieldType(form)
    raise ValueError(f"expected {WORDS}, got {quoted(text)}{_hint(form)}")


def _hint(form: str) -> str:
    import difflib  # where there is a mistake, and not in every node

    near = _MEANT.get(form) or next(iter(difflib.get_close_matches(form, [*SCALARS, *_MEANT], 1)), None)
    return f". Did you mean {_MEANT.get(near, near)}?" if near else ""
