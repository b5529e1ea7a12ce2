"""Compiled expressions, for one row or for many."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from typing import Any

from weft.edge_node.functions.contract import Path, Row
from weft.edge_node.functions.expressions import nodes
from weft.edge_node.functions.expressions.bounds import FLOAT_MAX
from weft.edge_node.functions.expressions.errors import ExpressionError, InvalidExpression
from weft.edge_node.functions.expressions.generate import function
from weft.edge_node.functions.expressions.nodes import Kind, Node, Role
from weft.edge_node.functions.expressions.parse import parse
from weft.edge_node.functions.expressions.reasons import Levels, Reasons

LevelsOf = Callable[[bytes], Mapping[str, str]]
"""Function that returns the named levels of a topic, such as ``Context.levels``."""
Failed = Callable[[Row, str], None]
"""Function that takes a row without result, and the reason, such as ``Out.reject``."""

_ONE = """
def run(row, levels):
    v = row.values
    return EXPRESSION
"""
_FILTER = """
def run(rows, levels_of, failed, drop):
    kept = []
    keep = kept.append
    for row in rows:
        try:
            v = row.values
            LEVELS
            if EXPRESSION:
                keep(row)
            else:
                drop(row)
        except Failure as error:
            failed(row, error)
    return kept
"""


class Expression:
    """A compiled expression. It has no state, and may be used by several threads."""

    def __init__(
        self, text: str, root: Node, paths: frozenset[Path], levels: frozenset[str], *, nulls: bool = False
    ) -> None:
        self.text = text
        self.paths = paths
        """Fields of the payload that it reads; for nested fields all names of the path."""
        self.fields = frozenset(path[0] for path in paths)
        """Fields of the payload that it reads, by their first name."""
        self.levels = levels
        """Named levels of the topic that it reads."""
        self.kind = root.kind
        """Kind of its results, as far as it is known."""
        self.node = root
        self._result = _with_checked_result(root, nulls=nulls)
        self._run = function(_ONE, {"EXPRESSION": self._result.code})
        self._reasons = Reasons(self._result)

    @property
    def code(self) -> ast.expr:
        """Python code that computes a checked result from ``row``, its values ``v`` and ``levels``."""
        return self._result.code

    def evaluate(self, row: Row, levels: Mapping[str, str]) -> Any:
        """Return the result for a row.

        Args:
            row: record with its decoded values.
            levels: named levels of its topic.

        Raises:
            ExpressionError: a field is missing, has the wrong type, or the result is not a value for payloads.
        """
        try:
            return self._run(row, levels)
        except Exception:
            raise ExpressionError(self.reason(row, levels)) from None

    def reason(self, row: Row, levels: Levels) -> str:
        """Return the reason why a row has no result."""
        return self._reasons.reason(row, levels)


def compile_expression(text: str, levels: Collection[str], *, nulls: bool = False) -> Expression:
    """Compile an expression.

    Args:
        text: source, a checked subset of Python.
        levels: names of topic levels; they take precedence over fields of the same name.
        nulls: treat a missing field as null, and compute null from null, as in SQL.

    Raises:
        InvalidExpression: the text is not valid; the error has the column and the remedy.
    """
    return Expression(text, *parse(text, levels, nulls=nulls), nulls=nulls)


class Condition:
    """A compiled expression that is true or false, for many rows."""

    def __init__(self, text: str, levels: Collection[str], *, nulls: bool = False) -> None:
        """Compile a condition.

        Args:
            nulls: as for ``compile_expression``; a condition that is null does not hold.

        Raises:
            InvalidExpression: the text is not an expression, or is certainly neither true nor false.
        """
        self.expression = compile_expression(text, levels, nulls=nulls)
        root = self.expression.node
        if root.kind not in (Kind.BOOL, Kind.ANY):
            raise InvalidExpression(1, f"a condition is true or false, and this is {root.kind}; write a comparison")
        if root.kind is Kind.ANY:
            code = nodes.call("condition_or_null" if nulls else "condition", root.code)
            root = Node(code, Kind.BOOL, root.text, Role.CONDITION, [root])
        self._reasons = Reasons(root)
        template = _FILTER.replace("LEVELS", levels_line(self.expression.levels))
        self._run = function(template, {"EXPRESSION": root.code})
        self._one = function(_ONE, {"EXPRESSION": root.code})

    def holds(self, row: Row, levels: Mapping[str, str]) -> bool:
        """Return whether the condition holds for a row.

        Raises:
            ExpressionError: it is neither true nor false there.
        """
        try:
            return bool(self._one(row, levels))
        except Exception:
            raise ExpressionError(self._reasons.reason(row, levels)) from None

    def filter_rows(
        self, rows: list[Row], levels_of: LevelsOf, failed: Failed, dropped: Callable[[Row], object] = lambda _: None
    ) -> list[Row]:
        """Return the rows for which the condition holds, in order.

        Args:
            rows: records with their decoded values.
            levels_of: topic -> its named levels.
            failed: receives rows on which the condition fails, with the reason.
            dropped: receives rows for which it does not hold.
        """

        def explain(row: Row, _error: Exception) -> None:
            failed(row, self._reasons.reason(row, levels_of(row.key)))

        kept: list[Row] = self._run(rows, levels_of, explain, dropped)
        return kept


def levels_line(levels: Collection[str]) -> str:
    """Return the template's line that looks up the levels of a row's topic, if they are used."""
    return "levels = levels_of(row.key)" if levels else "pass"


def _with_checked_result(root: Node, *, nulls: bool) -> Node:
    """Return an expression with a check of its result: no infinite number, and no integer that formats cannot hold."""
    is_literal = root.literal and root.role is Role.PLAIN  # and no sign before one: -(2**64 - 1) is out of bounds
    if root.role in (Role.FIELD, Role.LEVEL) or is_literal or root.kind in (Kind.TEXT, Kind.BOOL, Kind.NULL):
        return root  # A value of the payload passes unchanged.
    code = nodes.call("result", root.code)
    if root.kind is Kind.DECIMAL and not nulls:
        # Inline, for the common case: a conversion of units costs a comparison more, and no call.
        value = ast.NamedExpr(ast.Name("t0", ast.Store()), root.code)
        limits: list[ast.expr] = [value, nodes.constant(FLOAT_MAX)]
        is_finite = ast.Compare(nodes.constant(-FLOAT_MAX), [ast.LtE(), ast.LtE()], limits)
        code = ast.IfExp(is_finite, nodes.name("t0"), nodes.call("result", nodes.name("t0")))
    return Node(code, root.kind, root.text, Role.RESULT, [root])
