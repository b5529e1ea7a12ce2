"""Code with null as in SQL: calculations with null are null, and conditions have three values."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from weft.edge_node.functions.expressions import nodes


class Nulls:
    """Generator of such code for one expression. Each value is computed once, and checked under a name of its own."""

    def __init__(self) -> None:
        self._names = 0

    def of(
        self, codes: Sequence[ast.expr], known: Sequence[bool], make: Callable[[list[ast.expr]], ast.expr]
    ) -> ast.expr:
        """Return code that is null when one of some values is null, and otherwise combines them.

        Args:
            known: values that are never null.
        """
        tests: list[ast.expr] = []
        given: list[ast.expr] = []
        for code, is_known in zip(codes, known, strict=True):
            if is_known:
                given.append(code)
                continue
            name, value = self._named(code)
            tests.append(_is(value, None))
            given.append(name)
        if not tests:
            return make(given)
        test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests)
        return ast.IfExp(test, nodes.constant(None), make(given))

    def joined(self, codes: Sequence[ast.expr], *, stops: bool) -> ast.expr:
        """Return code of conditions joined by ``and``, or by ``or``. Conditions behind a deciding one are not computed.

        Args:
            stops: value that decides alone: false for ``and``, true for ``or``.
        """
        found = codes[0]
        for code in codes[1:]:
            first, value = self._named(found)
            second, other = self._named(code)
            # If the first does not decide, the result is the second, unless the first is null and the second does not
            # decide.
            counts = ast.BoolOp(ast.Or(), [_is(other, stops), _is(first, not stops)])
            rest = ast.IfExp(counts, second, nodes.constant(None))
            found = ast.IfExp(_is(value, stops), nodes.constant(stops), rest)
        return found

    def _named(self, code: ast.expr) -> tuple[ast.expr, ast.expr]:
        self._names += 1
        name = f"n{self._names}"
        return nodes.name(name), ast.NamedExpr(ast.Name(name, ast.Store()), code)


def _is(code: ast.expr, value: bool | None) -> ast.expr:
    return ast.Compare(code, [ast.Is()], [nodes.constant(value)])
