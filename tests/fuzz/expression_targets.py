"""Targets of what a configuration brings into functions: the text of expressions, on rows that devices send.

Besides its documented errors nothing may be raised; the code that a text becomes has no name, attribute or call but
ours; and no text makes a row cost more than a pass over it for each operator.
"""

from __future__ import annotations

import ast
import math
from functools import cache

from tests.fuzz.target import Target
from weft.functions.contract import Row
from weft.functions.expression_code import (
    CALLS,
    INTEGER_MAX,
    INTEGER_MIN,
    OPERATIONS,
    TEXT_MAX,
    ExpressionError,
    InvalidExpression,
)
from weft.functions.expressions import Condition, FieldMaker, compile_expression

LEVELS = {"line": "l1"}
NAMES = ("line", "machine")
_KNOWN = {"v", "levels", "row", *OPERATIONS, *(f"call_{name}" for name in CALLS)}
_NODES = (
    ast.Name,
    ast.Constant,
    ast.Subscript,
    ast.UnaryOp,
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.Tuple,
    ast.NamedExpr,
    ast.Attribute,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)
_ATTRIBUTES = {"row.key", "row.key.decode", "row.time", "v.get", "levels.get"}
TEXT = "x" * (TEXT_MAX // 2)


@cache
def rows() -> tuple[Row, ...]:
    """Rows with what is dangerous: long texts, large integers, values of all types under the same names."""
    found: list[dict[str, object]] = [
        {},
        dict.fromkeys("abc", TEXT),
        dict.fromkeys("abc", 10**70),
        {"a": 10**400, "b": -1e308, "c": math.nan},
        {"a": {"a": 1, "b": [1, "x", {}]}, "b": [*range(50)], "c": None},
        {"a": True, "b": 0, "c": "12"},
        {"a": 3, "b": 0.5, "c": -7},
    ]
    return tuple(Row(10**18, b"plant/l1/\xff", None, values) for values in found)


def _expression(data: bytes) -> None:
    """The first byte says how the text behind it is used."""
    if not data:
        return
    text = data[1:].decode(errors="surrogateescape")
    try:
        (_one, _condition, _field)[data[0] % 3](text)
    except InvalidExpression as error:
        _check_message(error, text)


def _check_message(error: InvalidExpression, text: str) -> None:
    assert 1 <= error.column <= max(len(text), 1) + 1
    assert len(str(error)) < 1_000


def _one(text: str) -> None:
    expression = compile_expression(text, NAMES)
    _check_code(expression.code)
    for row in rows():
        try:
            result = expression.evaluate(row, LEVELS)
        except ExpressionError as error:
            _check_reason(error.reason)
        else:
            _check_result(result, row)


def _condition(text: str) -> None:
    failed: list[str] = []
    dropped: list[Row] = []
    condition = Condition(text, NAMES)
    kept = condition.filter_rows(
        list(rows()), lambda _: LEVELS, lambda _, reason: failed.append(reason), dropped.append
    )
    assert len(kept) + len(dropped) + len(failed) == len(rows())
    for reason in failed:
        _check_reason(reason)


def _field(text: str) -> None:
    failed: list[str] = []
    copies = [Row(row.time, row.key, None, dict(row.values)) for row in rows()]
    maker = FieldMaker({"x.y": text}, NAMES, only=False)
    made = maker.make_fields(copies, lambda _: LEVELS, lambda _, reason: failed.append(reason))
    assert len(made) + len(failed) == len(copies)
    for reason in failed:
        _check_reason(reason)
    for row in made:
        _check_result(row.values["x"]["y"], row)


def _check_reason(reason: str) -> None:
    assert 0 < len(reason) < 1_000
    assert reason != "there is a result"


def _check_code(code: ast.expr) -> None:
    temporaries = {each.target.id for each in ast.walk(code) if isinstance(each, ast.NamedExpr)}
    assert all(name[0] == "t" and name[1:].isdigit() for name in temporaries)
    for each in ast.walk(code):
        assert isinstance(each, _NODES), ast.dump(each)
        if isinstance(each, ast.Attribute):
            assert ast.unparse(each) in _ATTRIBUTES
        elif isinstance(each, ast.Name):
            assert each.id in _KNOWN or each.id in temporaries
        elif isinstance(each, ast.Call):
            assert ast.unparse(each.func) in _ATTRIBUTES or ast.unparse(each.func) in _KNOWN
            assert not each.keywords
        elif isinstance(each, ast.BinOp):
            assert isinstance(each.op, ast.Add | ast.Sub | ast.Mult | ast.Div)


def _check_result(result: object, row: Row) -> None:
    if _is_in(result, row.values):
        return
    assert result is None or type(result) in (bool, int, float, str)
    if isinstance(result, str):
        assert len(result) <= 3 * TEXT_MAX  # capital letters of ΐ
    elif isinstance(result, float):
        assert math.isfinite(result)
    elif isinstance(result, int):
        assert INTEGER_MIN <= result <= INTEGER_MAX


def _is_in(result: object, whole: object) -> bool:
    if result is whole:
        return True
    if isinstance(whole, dict):
        return any(_is_in(result, each) for each in whole.values())
    return isinstance(whole, list) and any(_is_in(result, each) for each in whole)


TEXTS = (
    'rms >= 0 and line == "l1"',
    "(a - 32) / 1.8",
    'a["b"][0] * default(c, 1)',
    'a["b"][2]',
    "b[-1] + b[49]",
    'line + "/" + upper(c)',
    '"high" if b > 4.5 else "normal"',
    "a in [1, 'x', b] or exists(\"a.b\")",
    "1 < b < 9 != c",
    "round(b, 2) + floor(a) * ceil(b) // 7 % 3 ** 2",
    "sqrt(abs(a)) + exp(b) + log(c, 10) + log10(c)",
    "min(b) + max(a, b, c)",
    "len(a) + int(c) + float(c)",
    "str(a) + strip(lower(c))",
    "startswith(c, key) and endswith(c, '2') and contains(b, 3)",
    "bool(a) and not is_nan(b) and is_number(a) and is_text(c)",
    "time > 0 and exists(line) and exists(machine)",
    'field("a")["b"] == None',
    "default(machine, a, 'x')",
    "-a + +b - -c",
    "µ == ℌ",
    "'\\x00\\ud800\\N{BULLET}'",
    "a * a * a * a * a * a * a * a * a * a",
    "a" + " + a" * 40,
    "'x' * 9999999999",
    "a * 1000000000",
    "[0] * 99999999",
    "9 ** 9 ** 9 ** 9",
    "b ** 1e9",
    "1 << 9999999999",
    "round(5, -999999999)",
    "'%999999999d' % 5",
    "c % 5",
    "a % b",
    "a // 3 % 7 * a",
    "a.__class__.__mro__",
    "().__class__.__bases__[0].__subclasses__()",
    "__import__('os').system('true')",
    "lambda: 1",
    "[x for x in a]",
    "f'{a.__class__}'",
    "f'{a:>999999999}'",
    "(a := 1)",
    "str.format('{0.__class__}', a)",
    "getattr(a, 'x')",
    "v['a'] and row.key",
    "row",
    "levels",
    "t0",
    "t1 + default(a, b, t1)",
    "call_abs(a)",
    "has(a)",
    "print(1)",
    "*a",
    "a[b]",
    "a[::]",
    "int('" + "9" * 3_000 + "')",
    "(" * 190 + "a" + ")" * 190,
    "-" * 3_000 + "a",
    "not " * 45 + "a",
    "a if a else " * 45 + "a",
    "a in [" + "1," * 190 + "1]",
    "(a " + "< b " * 90 + ")",
    "default(" + "a," * 19 + "1)",
    "max(" + "a," * 18 + "a)",
    "".join(f"default(a, default(b, {number})) + " for number in range(20)) + "1",
    "upper(" * 45 + "c" + ")" * 45,
    "a # b",
    "a\n >\n b",
    "a\\\n> b",
    "a;b",
    "a=b",
    "\0",
    "",
    " ",
    "#",
)
"""Texts of all forms, and what would cost too much, or reach too far, if it were Python."""


def _seeds() -> list[bytes]:
    return [
        *(bytes([at % 3]) + text.encode(errors="surrogateescape") for at, text in enumerate(TEXTS)),
        *(b"\0" + text.encode(errors="surrogateescape") for text in TEXTS),
    ]


EXPRESSIONS = Target(_expression, _seeds, head=1, memory_per_byte=4 << 10)
"""A letter may be a field: a node of three trees, and a function that explains why it has no value."""
TARGETS = {"expressions": EXPRESSIONS}
