"""Generation of Python functions from checked parts.

The code comes from templates of this package, in which names in capitals are placeholders of checked code. It runs in a
namespace without builtins: it can only reach ``row``, its values, the levels of its topic, and the operations.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft.edge_node.functions.expressions.calls import CALLS
from weft.edge_node.functions.expressions.nodes import Node
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
        template: Python code of this package.
        expressions: name in the template -> code that replaces it.
        more: further names that the template uses.
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
        return self._expressions.get(node.id, node)


Operation = Callable[[Any, Any, Any, list[Any]], Any]
"""(row, its values, levels, values of the parts) -> value of a part of an expression."""


def single_operations(root: Node) -> dict[Node, Operation]:
    """Compile each part of an expression by itself: its function receives the values of the part's own parts, and does
    not compute them."""
    found = list(dict.fromkeys(_parts(root)))
    parameters = ast.arguments([], [ast.arg(name) for name in ("row", "v", "levels", "parts")], None, [], [], None, [])
    made = ast.List([ast.Lambda(parameters, _Single(node).visit(node.code)) for node in found], ast.Load())
    module = ast.Module([ast.Assign([ast.Name("run", ast.Store())], made)], [])
    namespace = dict(_NAMESPACE)
    exec(compile(ast.fix_missing_locations(module), "<expression>", "exec"), namespace)  # noqa: S102 - code of ours
    return dict(zip(found, namespace["run"], strict=True))


def _parts(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from _parts(part)


class _Single(ast.NodeTransformer):
    """Copy of a part's code in which the code of its own parts is replaced by their values."""

    def __init__(self, node: Node) -> None:
        self._places = {id(part.code): at for at, part in enumerate(node.parts)}

    def visit(self, node: ast.AST) -> Any:
        at = self._places.get(id(node))
        if at is not None:
            return ast.Subscript(ast.Name("parts", ast.Load()), ast.Constant(at), ast.Load())
        return type(node)(**{name: self._copied(value) for name, value in ast.iter_fields(node)})

    def _copied(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._copied(each) for each in value]
        return self.visit(value) if isinstance(value, ast.AST) else value


def lines(indent: int, *statements: str) -> str:
    """Return lines of a template."""
    return "".join(f"{' ' * indent}{each}\n" for each in statements)
