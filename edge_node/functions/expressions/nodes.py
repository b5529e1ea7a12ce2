"""Checked parts of an expression: the Python code of each, and the data that explains its failure."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """Kind of a part's value, as far as it is known without a row."""

    ANY = "any value"
    NUMBER = "a number"
    DECIMAL = "a number "
    """Certainly a ``float``: it cannot repeat text, and only its size needs a check."""
    TEXT = "text"
    BOOL = "true or false"
    NULL = "null"
    LIST = "a list"

    @property
    def is_number(self) -> bool:
        """Return whether Python calculates with it; true and false count as 1 and 0."""
        return self in (Kind.NUMBER, Kind.DECIMAL, Kind.BOOL)

    def __str__(self) -> str:
        return self.value.strip()


class Role(enum.Enum):
    """Role of a part, which decides how its failure is explained."""

    PLAIN = enum.auto()
    """A literal, or a part that fails only when one of its own parts does."""
    FIELD = enum.auto()
    LEVEL = enum.auto()
    COMPARISON = enum.auto()
    CALCULATION = enum.auto()
    CALL = enum.auto()
    CONDITION = enum.auto()
    ALL = enum.auto()
    """``and``, or a chain of comparisons: the parts up to the first that is false are computed."""
    ANY = enum.auto()
    """``or``: the parts up to the first that is true are computed."""
    CHOICE = enum.auto()
    """``a if condition else b``: parts are the condition, then the two values."""
    DEFAULT = enum.auto()
    """``default(a, b)``: its part is computed when no field exists."""
    RESULT = enum.auto()


@dataclass(eq=False, slots=True)
class Node:
    """A checked part of an expression."""

    code: ast.expr
    """Python that computes it from ``row``, ``v`` (its values) and ``levels`` (of its topic)."""
    kind: Kind
    text: str
    """Source text of the part."""
    role: Role = Role.PLAIN
    parts: list[Node] = field(default_factory=list)
    """Parts whose values it uses, in the order in which they are computed."""
    path: tuple[str | int, ...] = ()
    """Name of a field, then the keys in brackets; or the name of a level."""
    name: str = ""
    """Operator or function."""
    literal: bool = False


def name(identifier: str) -> ast.expr:
    """Return the code that reads a name."""
    return ast.Name(identifier, ast.Load())


def call(function: str, *arguments: ast.expr) -> ast.expr:
    """Return the code of a call."""
    return ast.Call(name(function), list(arguments), [])


def constant(value: object) -> ast.expr:
    """Return the code of a literal."""
    return ast.Constant(value)  # type: ignore[arg-type]


def item(container: ast.expr, key: str | int) -> ast.expr:
    """Return the code of ``container[key]``."""
    return ast.Subscript(container, constant(key), ast.Load())


def names_of(path: tuple[str | int, ...]) -> ast.expr:
    """Return the code of a tuple of names."""
    return ast.Tuple([constant(each) for each in path], ast.Load())


KEY = ast.parse("row.key.decode('utf-8', 'replace')", mode="eval").body
TIME = ast.parse("row.time / 1e9", mode="eval").body
