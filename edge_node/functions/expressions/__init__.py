"""Expressions of edge functions: a checked subset of Python, compiled once (docs/functions/expressions.md)."""

from __future__ import annotations

from weft.edge_node.functions.expressions.errors import ExpressionError, InvalidExpression
from weft.edge_node.functions.expressions.expression import (
    Condition,
    Expression,
    Failed,
    LevelsOf,
    compile_expression,
)
from weft.edge_node.functions.expressions.fields import FieldMaker

__all__ = [
    "Condition",
    "Expression",
    "ExpressionError",
    "Failed",
    "FieldMaker",
    "InvalidExpression",
    "LevelsOf",
    "compile_expression",
]
