"""Code of fields and calculations."""

from __future__ import annotations

import ast

from weft.edge_node.functions.expressions import nodes
from weft.edge_node.functions.expressions.nodes import Kind, Node, Role

_CALLED = {"+": "add", "*": "multiply", "//": "divide_down", "%": "remainder", "**": "power"}


def has(container: str, path: tuple[str | int, ...]) -> ast.expr:
    """Return the code that checks whether a field or level exists."""
    if len(path) == 1:
        return ast.Compare(nodes.constant(path[0]), [ast.In()], [nodes.name(container)])
    return nodes.call("has", nodes.name(container), nodes.names_of(path))


def get(node: Node) -> ast.expr:
    """Return the code that reads a field or level; null where it is missing."""
    container = nodes.name("v" if node.role is Role.FIELD else "levels")
    if len(node.path) == 1:
        return ast.Call(ast.Attribute(container, "get", ast.Load()), [nodes.constant(node.path[0])], [])
    return nodes.call("get", container, nodes.names_of(node.path))


def kind_of(operator: str, left: Kind, right: Kind) -> Kind:
    """Return the kind of a calculation's result."""
    if Kind.DECIMAL in (left, right) or operator in ("/", "**"):
        return Kind.DECIMAL
    # Two fields that are added may be numbers or texts; any other result is a number.
    return Kind.ANY if operator == "+" and left is right is Kind.ANY else Kind.NUMBER


def code_of(operator: str, sign: ast.operator, parts: tuple[Node, Node], codes: list[ast.expr]) -> ast.expr:
    """Return the code of a calculation. Python's own operator where its cost is bounded, else a call that checks the
    operands."""
    (left, right), (first, second) = parts, codes
    plain = ast.BinOp(first, sign, second)
    is_number = left.kind.is_number or right.kind.is_number
    if operator == "+":
        return plain if is_number else nodes.call("add", first, second)
    if operator in ("-", "/"):
        return plain  # Only numbers, whose results grow by a bit.
    if operator == "*" and Kind.DECIMAL in (left.kind, right.kind):
        return plain  # A float cannot repeat text, and has a fixed size.
    return nodes.call(_CALLED[operator], first, second)


def is_encodable(text: str) -> bool:
    """Return whether a text has no lone surrogate."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
