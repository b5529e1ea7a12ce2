"""The quick way through payloads that fit and are decoded as a whole, such as CBOR: taken apart column by column.

Payloads that it cannot decode are left to the exact way (``payloads.formats``). For all others, both give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from types import NoneType
from typing import Any

from weft.config.payload_schema.types import FieldType
from weft.storage.payloads.formats import Format
from weft.storage.payloads.misfits import Unreadable
from weft.storage.payloads.tree import Node

Types = frozenset[type[Any]]

_ALLOWED: dict[str, Types] = {
    "bool": frozenset({bool, NoneType}),
    "int": frozenset({int, float, NoneType}),
    "float": frozenset({int, float, NoneType}),
    "string": frozenset({str, NoneType}),
    "binary": frozenset({bytes, NoneType}),
    "decimal": frozenset({int, float, str, NoneType}),
    "array": frozenset({list, NoneType}),
}
_TIME_TEXT: Types = frozenset({str, datetime, NoneType})
_TIME_NUMBER: Types = frozenset({int, float, NoneType})
_OBJECT: Types = frozenset({dict, NoneType})
_ARRAY: Types = frozenset({list, NoneType})


class QuickWhole:
    """A decoder of payloads into the values of a tree of fields."""

    def __init__(self, root: Node, kinds: Sequence[FieldType], parts: Format) -> None:
        self._root = root
        self._kinds = kinds
        self._parts = parts

    def all(self, _payloads: Any) -> None:
        """Return None: there is no way to decode many payloads at once."""
        return

    def each(self, payloads: Sequence[bytes]) -> tuple[list[list[Any]], list[int]]:
        """Return the values of payloads, and the numbers of the payloads that must be read the exact way."""
        values: list[list[Any]] = [[]] * len(self._kinds)
        others: set[int] = set()
        rows: list[Any] = []
        root = self._parts.root
        for number, payload in enumerate(payloads):
            try:
                rows.append(root(payload))
            except Unreadable:
                others.add(number)
                rows.append(None)
        self._collect(self._root, rows, values, others)
        return values, sorted(others)

    def _collect(self, node: Node, rows: list[Any], values: list[list[Any]], others: set[int]) -> None:
        for number in node.fields:
            values[number] = self._column(self._kinds[number], rows, others)
        if node.names:
            objects = _only(_OBJECT, rows, others)
            for name, inside in node.names.items():
                number_name = int(name) if name.isascii() and name.isdecimal() else None
                if number_name is None:
                    found = [None if row is None else row.get(name) for row in objects]
                else:
                    found = [None if row is None else row.get(name, row.get(number_name)) for row in objects]
                self._collect(inside, found, values, others)
        if node.places:
            arrays = _only(_ARRAY, rows, others)
            for place, inside in node.places.items():
                found = [row[place] if row is not None and place < len(row) else None for row in arrays]
                self._collect(inside, found, values, others)

    def _column(self, kind: FieldType, rows: list[Any], others: set[int]) -> list[Any]:
        column = _only(_allowed(kind), rows, others)
        if kind.item is not None:
            if not _allowed(kind.item).issuperset(
                map(type, chain.from_iterable(row for row in column if row is not None))
            ):
                others.update(row for row, value in enumerate(column) if value is not None)
                return [None] * len(column)
            if kind.item.name == "float":
                return [None if row is None else _floats(row, number, others) for number, row in enumerate(column)]
            return column
        return _floats(column, None, others) if kind.name == "float" else column


def _allowed(kind: FieldType) -> Types:
    if kind.name == "timestamp":
        return _TIME_TEXT if kind.unit is None else _TIME_NUMBER
    return _ALLOWED[kind.name]


def _only(allowed: Types, rows: list[Any], others: set[int]) -> list[Any]:
    """Return values of allowed types; rows with others are null here, and left to the exact way."""
    if allowed.issuperset(map(type, rows)):  # in C, for nearly all columns
        return rows
    others.update(number for number, value in enumerate(rows) if type(value) not in allowed)
    return [value if type(value) in allowed else None for value in rows]


def _floats(values: list[Any], row: int | None, others: set[int]) -> list[Any]:
    """Return numbers as floats. A number that is too large leaves its row (or the given one) to the exact way."""
    if int not in set(map(type, values)):
        return values
    found: list[Any] = []
    for number, value in enumerate(values):
        try:
            found.append(float(value) if type(value) is int else value)
        except OverflowError:
            others.add(number if row is None else row)
            found.append(None)
    return found
