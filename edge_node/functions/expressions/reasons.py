"""Reasons for people why an expression has no result on a row.

After the whole expression has failed, its parts are computed one after the other, by the same operations, to find the
first that fails. Only failing rows have this cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.edge_node.functions.contract import Row
from weft.edge_node.functions.expressions.generate import Operation, single_operations
from weft.edge_node.functions.expressions.nodes import Node, Role
from weft.edge_node.functions.expressions.operations import TooLarge

_SHOWN_MAX = 40
"""Characters of a value in a reason."""
_SAID_MAX = 4
"""Values in a reason."""
Levels = Mapping[str, str]


class Reasons:
    """Reasons of one expression."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._operations: dict[Node, Operation] = {}

    def reason(self, row: Row, levels: Levels) -> str:
        """Return the reason why the expression has no result on a row."""
        if not self._operations:
            self._operations = single_operations(self._root)
        try:
            _Values(self._operations, row, levels).of(self._root)
        except _Failed as failed:
            return _explained(failed, row)
        return "there is a result"  # Not reached: the same operations on the same values fail again.


class _Failed(Exception):
    def __init__(self, node: Node, values: list[Any], error: Exception) -> None:
        self.node, self.values, self.error = node, values, error


class _Values:
    """Values of the parts of an expression on a row, each computed once, and only if the expression needs it."""

    def __init__(self, operations: Mapping[Node, Operation], row: Row, levels: Levels) -> None:
        self._operations, self._row, self._levels = operations, row, levels
        self._known: dict[Node, Any] = {}

    def of(self, node: Node) -> Any:
        if node not in self._known:
            self._known[node] = self._compute(node)
        return self._known[node]

    def _compute(self, node: Node) -> Any:
        match node.role:
            case Role.ALL:
                return self._joined(node, stops=False)
            case Role.ANY:
                return self._joined(node, stops=True)
            case Role.CHOICE:
                test, body, other = node.parts
                return self.of(body if self.of(test) else other)
            case Role.DEFAULT:
                found = self._run(node, [_NOTHING])
                return self.of(node.parts[0]) if found is _NOTHING else found
        return self._run(node, [self.of(part) for part in node.parts])

    def _joined(self, node: Node, *, stops: bool) -> bool | None:
        """Return the result of joined conditions, up to the first that decides. With nulls as in SQL, conditions may be
        null."""
        found: bool | None = not stops
        for part in node.parts:
            value: bool | None = self.of(part)
            if value is stops:
                return stops
            found = None if value is None else found
        return found

    def _run(self, node: Node, values: list[Any]) -> Any:
        try:
            return self._operations[node](self._row, self._row.values, self._levels, values)
        except Exception as error:
            raise _Failed(node, values, error) from None


_NOTHING = object()


def _explained(failed: _Failed, row: Row) -> str:
    node, values, error = failed.node, failed.values, failed.error
    match node.role:
        case Role.FIELD:
            return _missing(node, row)
        case Role.LEVEL:
            return f"the topic has no level {node.path[0]}"
        case Role.COMPARISON:
            return _not_comparable(node, values)
        case Role.CALCULATION:
            return _not_calculable(node, values, error)
        case Role.CALL:
            return _not_callable(node, values, error)
        case Role.CONDITION:
            return f"{_subject(node.parts[0])} is {_kind(values[0])} instead of true or false: {_shown(values[0])}"
        case Role.RESULT:
            return f"the result of {_subject(node.parts[0])} is {error}"
    return f"{_subject(node)}: {error}"


def _missing(node: Node, row: Row) -> str:
    value: Any = row.values
    done: list[str] = []
    for name in node.path:
        if not hasattr(value, "__getitem__"):
            return f"{'.'.join(done)} is {_kind(value)} and has no {name}"
        done.append(str(name))
        try:
            value = value[name]
        except LookupError:
            return f"field {'.'.join(done)} is missing"
        except TypeError:
            return f"{'.'.join(done[:-1])} is {_kind(value)} and has no {name}"
    return f"field {'.'.join(done)} cannot be read"


def _not_comparable(node: Node, values: list[Any]) -> str:
    left, right = (_kind(value) for value in values)
    verb = f"cannot look for {left} in {right}" if "in" in node.name else f"cannot compare {left} with {right}"
    return verb + _said(node, values)


def _not_calculable(node: Node, values: list[Any], error: Exception) -> str:
    if isinstance(error, ZeroDivisionError):
        return f"division by zero: {_subject(node.parts[1])} is 0"
    if isinstance(error, OverflowError | ValueError):
        what = f": {error}" if isinstance(error, TooLarge) else ""
        verb = "is no number" if isinstance(error, ValueError) else "is too large"
        return f"the result of {_subject(node)} {verb}{what}"
    wrong = next((value for value in values if not isinstance(value, int | float)), None)
    return f"cannot calculate with {_kind(wrong)}" + _said(node, values, numbers=False)


def _not_callable(node: Node, values: list[Any], error: Exception) -> str:
    if isinstance(error, TypeError):
        kinds = " and ".join(dict.fromkeys(_kind(value) for value in values))
        return f"{node.name} cannot take {kinds}" + _said(node, values)
    if isinstance(error, TooLarge):
        return f"{node.name}: {error}"
    if isinstance(error, OverflowError):
        return f"the result of {node.name} is too large" + _said(node, values)
    return f"{node.name} has no result" + _said(node, values)


def _said(node: Node, values: list[Any], *, numbers: bool = True) -> str:
    """Return the values of the parts that are not literals, as a clause."""
    said = [
        f"{_subject(part)} is {_shown(value)}"
        for part, value in zip(node.parts, values, strict=True)
        if not part.literal and (numbers or not isinstance(value, int | float))
    ]
    if len(said) > _SAID_MAX:
        said[_SAID_MAX:] = ["..."]
    return f": {', '.join(said)}" if said else ""


def _subject(node: Node) -> str:
    return node.text if len(node.text) <= 2 * _SHOWN_MAX else f"{node.text[: 2 * _SHOWN_MAX]}..."


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    for types, words in _KINDS:
        if isinstance(value, types):
            return words
    return type(value).__name__


_KINDS: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    (int | float, "a number"),
    (str, "text"),
    (bytes, "bytes"),
    (list | tuple, "a list"),
    (dict, "a mapping"),
)


def _shown(value: Any) -> str:
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]!r}..."
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, int) and value.bit_length() > 256:
        return "an integer of more than 256 bits"
    return repr(value) if isinstance(value, int | float) else _kind(value)
