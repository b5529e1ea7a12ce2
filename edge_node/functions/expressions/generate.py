"""Checked parts to Python functions.

The code is made of templates of ours, in which names in capitals stand for checked code. It runs in a namespace without
builtins: what it can reach is ``row``, its values, the levels of its topic, and the operations.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.edge_node.functions.expressions.calls import CALLS
from weft.edge_node.functions.expressions.operations import OPERATIONS

_NAMESPACE: Mapping[str, Any] = {
    "__builtins__": {},
    "Failure": Exception,
    **OPERATIONS,
    **{f"call_{name}": call.function for name, call in CALLS.items()},
}


def function(template: str, expressions: Mapping[str, ast.expr], **more: Any) -> Callable[..., Any]:
    """Compile the function ``run`` of a template.

    Args:
        template: Python code of ours.
        expressions: name in the template -> code that takes its place.
        more: names that the template uses besides.
    """
    tree = _Filled(expressions).visit(ast.parse(template))
    namespace = {**_NAMESPACE, **more}
    exec(compile(ast.fix_missing_locations(tree), "<expression>", "exec"), namespace)  # noqa: S102 - code of ours
    run: Callable[..., Any] = namespace["run"]
    return run


class _Filled(ast.NodeTransformer):
    def __init__(self, expressions: Mapping[str, ast.expr]) -> None:
        self._expressions = expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        code = self._expressions.get(node.id)
        return node if code is None else copy.deepcopy(code)


def lines(indent: int, *statements: str) -> str:
    """Return lines of a template."""
    return "".join(f"{' ' * indent}{each}\n" for each in statements)


def mapping(names: Sequence[str], prefix: str) -> str:
    """Return the text of a mapping in a template: each name with the placeholder of its number."""
    return "{" + ", ".join(f"{name!r}: {prefix}{at}" for at, name in enumerate(names)) + "}"
