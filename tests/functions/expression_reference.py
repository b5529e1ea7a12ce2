"""A second implementation of expressions, as plain as it can be: it walks Python's tree and looks at every value.

It knows the language and nothing of how expressions are compiled. ``Fails`` is all that it says of a row without a
result.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

TEXT_MAX = 65_536
FACTOR_MAX = 2**256
NUMBERS = (int, float)
"""Types that are calculated with; true and false are integers."""


class Fails(Exception):
    """The expression has no result on the row."""


class Missing:
    """A field that is not there."""


MISSING = Missing()
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def evaluate(
    text: str, values: Mapping[str, Any], levels: Mapping[str, str], names: tuple[str, ...], *, nulls: bool = False
) -> Any:
    """Return the result. With ``nulls`` a missing field is null, and null is what SQL takes it for.

    Raises:
        Fails: there is none.
    """
    tree = ast.parse(text, mode="eval").body
    try:
        found = (_Nulls if nulls else _Walk)(values, levels, names).value(tree)
    except (TypeError, ValueError, ArithmeticError, LookupError):
        raise Fails from None
    is_made = not is_path(tree) and not isinstance(tree, ast.Constant)
    if is_made and isinstance(found, float) and not math.isfinite(found):
        raise Fails
    if is_made and type(found) is int and not -(2**63) <= found < 2**64:
        raise Fails
    return found


def is_path(tree: ast.expr) -> bool:
    if isinstance(tree, ast.Call):
        return isinstance(tree.func, ast.Name) and tree.func.id == "field"
    return isinstance(tree, ast.Name) or (isinstance(tree, ast.Subscript) and is_path(tree.value))


class _Walk:
    def __init__(self, values: Mapping[str, Any], levels: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._values, self._levels, self._names = values, levels, names

    def value(self, tree: ast.expr) -> Any:
        if is_path(tree):
            found = self.path(tree)
            if found is MISSING:
                raise Fails
            return found
        return getattr(self, f"of_{type(tree).__name__}")(tree)

    def path(self, tree: ast.expr) -> Any:
        if isinstance(tree, ast.Name):
            known = self._levels if tree.id in self._names else self._values
            return known.get(tree.id, MISSING)
        if isinstance(tree, ast.Call):
            return self._values.get(ast.literal_eval(tree.args[0]), MISSING)
        assert isinstance(tree, ast.Subscript)
        whole = self.path(tree.value)
        try:
            return whole[ast.literal_eval(tree.slice)]
        except (TypeError, LookupError):
            return MISSING

    def number(self, tree: ast.expr) -> Any:
        return _number(self.value(tree))

    def truth(self, tree: ast.expr) -> bool:
        found = self.value(tree)
        if not isinstance(found, bool):
            raise Fails
        return found

    def of_Constant(self, tree: ast.Constant) -> Any:
        return tree.value

    def of_UnaryOp(self, tree: ast.UnaryOp) -> Any:
        if isinstance(tree.op, ast.Not):
            return not self.truth(tree.operand)
        found = self.number(tree.operand)
        return -found if isinstance(tree.op, ast.USub) else +found

    def of_BoolOp(self, tree: ast.BoolOp) -> bool:
        for each in tree.values:
            if self.truth(each) is isinstance(tree.op, ast.Or):
                return isinstance(tree.op, ast.Or)
        return isinstance(tree.op, ast.And)

    def of_IfExp(self, tree: ast.IfExp) -> Any:
        return self.value(tree.body if self.truth(tree.test) else tree.orelse)

    def of_BinOp(self, tree: ast.BinOp) -> Any:
        left, right = self.value(tree.left), self.value(tree.right)
        if isinstance(tree.op, ast.Add) and isinstance(left, str) and isinstance(right, str):
            if len(left) + len(right) > TEXT_MAX:
                raise Fails
            return left + right
        left, right = _number(left), _number(right)
        match tree.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Div():
                return left / right
            case ast.Pow():
                return math.pow(left, right)
        decimals = isinstance(left, float) or isinstance(right, float)
        if any(type(each) is int and abs(each) > FACTOR_MAX for each in (left, right)):
            if not (decimals and isinstance(tree.op, ast.Mult)):
                raise Fails
        match tree.op:
            case ast.Mult():
                return left * right
            case ast.FloorDiv():
                return left // right
            case _:
                return left % right

    def of_Compare(self, tree: ast.Compare) -> bool:
        left = self.value(tree.left)
        for sign, side in zip(tree.ops, tree.comparators, strict=True):
            if isinstance(side, ast.List | ast.Tuple):
                right: Any = [self.value(each) for each in side.elts]
            else:
                right = self.value(side)
            if not _COMPARE[type(sign)](left, right):
                return False
            left = right
        return True

    def of_Call(self, tree: ast.Call) -> Any:
        assert isinstance(tree.func, ast.Name)
        name = tree.func.id
        if name == "exists":
            if isinstance(tree.args[0], ast.Constant):
                found: Any = self._values
                for part in str(tree.args[0].value).split("."):
                    if not isinstance(found, dict) or part not in found:
                        return False
                    found = found[part]
                return True
            return self.path(tree.args[0]) is not MISSING
        if name == "default":
            for each in tree.args[:-1]:
                found = self.path(each)
                if found is not MISSING and found is not None:
                    return found
            return self.value(tree.args[-1])
        return getattr(self, f"call_{name}")(*map(self.value, tree.args))

    def call_abs(self, x: Any) -> Any:
        return abs(_number(x))

    def call_min(self, *values: Any) -> Any:
        return min(_list(values))

    def call_max(self, *values: Any) -> Any:
        return max(_list(values))

    def call_round(self, x: Any, digits: int | None = None) -> Any:
        return round(_number(x)) if digits is None else round(_number(x), digits)

    def call_floor(self, x: Any) -> Any:
        return math.floor(_number(x))

    def call_sqrt(self, x: Any) -> float:
        return math.sqrt(_number(x))

    def call_len(self, x: Any) -> int:
        return len(x)

    def call_int(self, x: Any) -> int:
        return int(_short(x))

    def call_float(self, x: Any) -> float:
        return float(_short(x))

    def call_str(self, x: Any) -> str:
        if not isinstance(x, str | int | float) or (type(x) is int and not -(2**63) <= x < 2**64):
            raise Fails
        return str(x)

    def call_bool(self, x: Any) -> bool:
        return bool(_number(x))

    def call_lower(self, x: Any) -> str:
        return _text(x).lower()

    def call_upper(self, x: Any) -> str:
        return _text(x).upper()

    def call_startswith(self, x: Any, part: Any) -> bool:
        return _text(x, TEXT_MAX * 99).startswith(_text(part, TEXT_MAX * 99))

    def call_contains(self, x: Any, part: Any) -> bool:
        return part in x

    def call_is_number(self, x: Any) -> bool:
        return isinstance(x, NUMBERS) and not isinstance(x, bool)

    def call_is_text(self, x: Any) -> bool:
        return isinstance(x, str)


class _Null(Exception):
    """A part is null, so that what is made of it is."""


class _Nulls(_Walk):
    """Null as in SQL: unknown, and so is what is made of it."""

    def path(self, tree: ast.expr) -> Any:
        found = super().path(tree)
        return None if found is MISSING else found

    def known(self, tree: ast.expr) -> Any:
        found = self.value(tree)
        if found is None and not isinstance(tree, ast.Constant):
            raise _Null
        return found

    def truth(self, tree: ast.expr) -> Any:
        found = self.value(tree)
        if found is not None and not isinstance(found, bool):
            raise Fails
        return found

    def number(self, tree: ast.expr) -> Any:
        return _number(self.known(tree))

    def of_UnaryOp(self, tree: ast.UnaryOp) -> Any:
        if isinstance(tree.op, ast.Not):
            found = self.truth(tree.operand)
            return None if found is None else not found
        return self.or_null(super().of_UnaryOp, tree)

    def of_BoolOp(self, tree: ast.BoolOp) -> Any:
        return self.joined((partial(self.truth, each) for each in tree.values), isinstance(tree.op, ast.Or))

    def joined(self, conditions: Iterable[Callable[[], Any]], decides: bool) -> Any:
        found: bool | None = not decides
        for each in conditions:
            value = each()
            if value is decides:
                return decides
            found = None if value is None else found
        return found

    def of_BinOp(self, tree: ast.BinOp) -> Any:
        def computed(tree: ast.BinOp) -> Any:
            values = [self.known(tree.left), self.known(tree.right)]
            return _Walk({"left": values[0], "right": values[1]}, {}, ()).of_BinOp(
                ast.BinOp(ast.Name("left"), tree.op, ast.Name("right"))
            )

        return self.or_null(computed, tree)

    def of_Compare(self, tree: ast.Compare) -> Any:
        sides = [tree.left, *tree.comparators]

        def compared(at: int) -> Any:
            if is_null(sides[at]) or is_null(sides[at + 1]):
                return _COMPARE[type(tree.ops[at])](self.listed(sides[at]), self.listed(sides[at + 1]))
            try:
                left = self.known(sides[at])
                right = self.listed(sides[at + 1])
            except _Null:
                return None
            return None if right is None else _COMPARE[type(tree.ops[at])](left, right)

        return self.joined((partial(compared, at) for at in range(len(tree.ops))), decides=False)

    def listed(self, tree: ast.expr) -> Any:
        return [self.value(each) for each in tree.elts] if isinstance(tree, ast.List | ast.Tuple) else self.value(tree)

    def of_Call(self, tree: ast.Call) -> Any:
        assert isinstance(tree.func, ast.Name)
        name = tree.func.id
        if name == "exists" and not isinstance(tree.args[0], ast.Constant):
            return self.is_there(tree.args[0])
        if name in ("exists", "default", "is_number", "is_text"):
            return super().of_Call(tree)
        try:
            return getattr(self, f"call_{name}")(*map(self.known, tree.args))
        except _Null:
            return None

    def is_there(self, tree: ast.expr) -> bool:
        return _Walk(self._values, self._levels, self._names).path(tree) is not MISSING

    def or_null(self, of: Callable[[Any], Any], tree: ast.expr) -> Any:
        try:
            return of(tree)
        except _Null:
            return None


def is_null(tree: ast.expr) -> bool:
    """Return whether an expression is null by its text alone."""
    if isinstance(tree, ast.IfExp):
        return is_null(tree.body) and is_null(tree.orelse)
    return isinstance(tree, ast.Constant) and tree.value is None


def _number(value: Any) -> Any:
    if not isinstance(value, NUMBERS):
        raise Fails
    return value


def _text(value: Any, most: int = TEXT_MAX) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise Fails
    return value


def _short(value: Any) -> Any:
    return _text(value, 64) if isinstance(value, str) else _number(value)


def _list(values: tuple[Any, ...]) -> Any:
    if len(values) > 1:
        return values
    if not isinstance(values[0], list):
        raise Fails
    return values[0]
