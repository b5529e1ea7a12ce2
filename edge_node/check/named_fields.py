"""Detection of functions that reject every payload of bytes, as they need fields of another format.

A stream whose first functions need fields, and that has no ``payload``, is read as JSON. As bytes all its rows would go
to the errors, so no configuration with results changes its meaning.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence

from weft.config.functions.step import FunctionStep

VALUE = "value"
"""Field that a payload of bytes has."""
_OTHER_NAMES = frozenset({"key", "time"})
"""Names in expressions that are not fields."""
_PASSING = frozenset({"where", "sample", "dedupe", "changes"})
"""Functions that only drop rows: behind them a row is unchanged, and has no other destination."""


def needs_fields(steps: Sequence[FunctionStep], levels_at: Callable[[int], Collection[str]]) -> bool:
    """Return whether some functions, in sequence, certainly reject every payload of bytes.

    Args:
        levels_at: position of a function -> named levels of the topics that reach it.
    """
    for at, step in enumerate(steps):
        levels = levels_at(at)
        if not step.takes_nulls and any(_reads(text, levels) for text in _expressions(step)):
            return True
        if any(name.partition(".")[0] != VALUE for name in _names(step, levels)):
            return True
        if isinstance(step.select, tuple) and VALUE not in (name.partition(".")[0] for name in step.select):
            return True
        if step.chosen[0] not in _PASSING:
            return False
    return False


def _expressions(step: FunctionStep) -> Iterator[str]:
    """Yield expressions that a function computes for every row."""
    if step.where is not None:
        yield step.where
    if step.set_ is not None:
        yield from step.set_.values()
    if isinstance(step.select, dict):
        yield from step.select.values()
    if step.alert is not None:
        yield step.alert.when
    if step.route is not None and step.route.rules[0].where is not None:
        yield step.route.rules[0].where
    if step.window is not None:
        yield from step.window.emit.values()


def _names(step: FunctionStep, levels: Collection[str]) -> Iterator[str]:
    """Yield fields that windows require in every row."""
    windows = step.window or step.sql
    if windows is not None:
        yield from (name for name in windows.by if name not in levels and name not in ("key", "none"))
        if windows.time is not None:
            yield windows.time


def _reads(text: str, levels: Collection[str]) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # the check of functions reports the problem
    return any(name != VALUE and name not in levels and name not in _OTHER_NAMES for name in _surely_read(tree))


def _surely_read(tree: ast.expr) -> Iterator[str]:
    """Yield the names that an expression reads unconditionally."""
    match tree:
        case ast.Name(id=name):
            yield name
        case ast.Subscript(value=value) | ast.UnaryOp(operand=value) | ast.IfExp(test=value):
            yield from _surely_read(value)
        case ast.BoolOp(values=[first, *_]):
            yield from _surely_read(first)
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right, *_]):
            yield from _surely_read(left)
            yield from _surely_read(right)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from _surely_read(part)
        case ast.Call(func=ast.Name(id=function), args=parts) if function not in {"exists", "default", "field"}:
            for part in parts:
                yield from _surely_read(part)
