"""Misfits: differences between a payload and its schema, worded for people, within bounds."""

from __future__ import annotations

from typing import Any

from weft.config.payload_schema.types import FieldType
from weft.config.units import quoted

MISFITS_MAX = 16
"""Maximum number of misfits named in a row: a payload of another schema would otherwise name each of 256 fields."""
MORE = "..."
"""Key of the number of further misfits."""
PAYLOAD = "payload"
"""Key of a payload that cannot be read as a whole. No field has this name."""
MISSING = "required, and missing"
NUMBER_CHARACTERS_MAX = 40
REASON_CHARACTERS_MAX = 240
"""Longest reason: reasons of libraries may repeat the payload."""

_WORDS = {
    "bool": "true or false",
    "int": "a whole number of 64 bits",
    "float": "a number of 64 bits",
    "string": "text",
    "binary": "bytes",
    "base64": "text in base64",
    "timestamp": "a time as text in ISO 8601",
    "array": "an array",
}


class Misfit(Exception):
    """A value that does not fit its column. The text is the reason."""


class Unreadable(Exception):
    """A payload, or a part of one, that is not of its format. The text is the reason."""


def expected(kind: FieldType, value: Any) -> Misfit:
    """Return the misfit of a value of the wrong type."""
    if kind.unit is not None:
        words = f"a time as a number of {kind.unit} since 1970"
    elif kind.name == "decimal":
        words = f"a number of at most {kind.digits} digits, {kind.scale} of them after the point"
    else:
        words = _WORDS[kind.name]
    return Misfit(f"expected {words}, got {shown(value)}")


def shown(value: Any) -> str:
    """Return a value as text for a misfit, shortened if it is long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple | set | frozenset):
        return f"an array of {len(value)}"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    try:
        text = str(value)
    except ValueError:  # an integer of more digits than Python writes
        text = "a number of thousands of digits"
    return text if len(text) <= NUMBER_CHARACTERS_MAX else f"{text[:NUMBER_CHARACTERS_MAX]}..."


class RowMisfits:
    """Misfits of one row, by field. At most ``MISFITS_MAX`` are kept; the rest is counted."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._more = 0

    def add(self, name: str, reason: str) -> None:
        """Record why a field does not fit."""
        if len(self.reasons) < MISFITS_MAX:
            self.reasons[name] = reason[:REASON_CHARACTERS_MAX]
        else:
            self._more += 1

    def items(self) -> list[tuple[str, str]]:
        """Return the entries of the column."""
        more = [(MORE, f"and {self._more} more")] if self._more else []
        return [*self.reasons.items(), *more]
