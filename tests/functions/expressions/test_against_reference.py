"""Expressions of any form, on rows of any values, have the results of a second, plain implementation."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
from hypothesis import assume, strategies

from tests.functions.expressions import reference
from tests.support.examples import given
from weft.functions.contract import Row, Values
from weft.functions.expression_code import ExpressionError, InvalidExpression
from weft.functions.expressions import Condition, Expression, FieldMaker, compile_expression

NAMES = ("line", "machine")
LEVELS = {"line": "l1"}
FIELDS = ("a", "b", "c", "d")
SCALARS = strategies.one_of(
    strategies.integers(-3, 3),
    strategies.integers(),
    strategies.sampled_from([10**30, 10**80, 2**64, 2**300]),
    strategies.floats(),
    strategies.sampled_from(["", "a", "12", "x" * 40_000, "nan", " 7 "]),
    strategies.booleans(),
    strategies.none(),
)
VALUES = strategies.recursive(
    SCALARS,
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.sampled_from("ab"), inner),
    max_leaves=4,
)
ROWS = strategies.dictionaries(strategies.sampled_from(FIELDS), VALUES)
LITERALS = strategies.sampled_from(
    ["0", "1", "2", "-1", "0.5", "1e300", "18446744073709551615", '"a"', '"12"', '""', "True", "False", "None"]
)
PATHS = strategies.sampled_from(
    ["a", "b", "c", "d", 'a["a"]', "b[0]", 'c["a"][0]', "d[-1]", "line", "machine", 'field("a")', 'field("line")']
)


def compound(inner: strategies.SearchStrategy[str]) -> strategies.SearchStrategy[str]:
    def joined(form: str, *parts: strategies.SearchStrategy[str]) -> strategies.SearchStrategy[str]:
        return strategies.builds(form.format, *parts)

    one_call = strategies.sampled_from(
        [
            "abs",
            "min",
            "max",
            "round",
            "floor",
            "sqrt",
            "len",
            "int",
            "float",
            "str",
            "bool",
            "lower",
            "upper",
            "is_number",
            "is_text",
            "not",
            "-",
            "+",
        ]
    )
    two_calls = strategies.sampled_from(["min", "max", "startswith", "contains"])
    sign = strategies.sampled_from(
        ["+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "in", "not in", "and", "or"]
    )
    return strategies.one_of(
        joined("({} {} {})", inner, sign, inner),
        joined("({} {} {} {} {})", inner, sign, inner, sign, inner),
        joined("{}({})", one_call, inner),
        joined("{}({}, {})", two_calls, inner, inner),
        joined("round({}, {})", inner, strategies.sampled_from(["0", "2", "-3"])),
        joined("({} if {} else {})", inner, inner, inner),
        joined("({} in [{}, {}])", inner, inner, inner),
        joined("default({}, {}, {})", PATHS, PATHS, inner),
        joined("exists({})", PATHS),
        strategies.sampled_from(['exists("a.b")', 'exists("c.a.b")']),
    )


EXPRESSIONS = strategies.recursive(LITERALS | PATHS, compound, max_leaves=8)


def row(values: Values) -> Row:
    return Row(10**18, b"plant/l1", None, values)


def seen(value: Any) -> tuple[type, str]:
    """What tells 1 from 1.0 and True, and finds NaN equal to itself."""
    return type(value), repr(value)


def _evaluated(expression: Expression, each: Row) -> tuple[Any, str | None]:
    try:
        return expression.evaluate(each, LEVELS), None
    except ExpressionError as error:
        return None, error.reason


@pytest.mark.parametrize("nulls", [False, True], ids=["reject", "null"])
@given(EXPRESSIONS, ROWS, few=100, many=600)
def test_results_are_those_of_the_reference(nulls: bool, text: str, values: Values) -> None:
    try:
        expression = compile_expression(text, NAMES, nulls=nulls)
    except InvalidExpression:
        assume(False)
        return
    assert set(expression.fields) <= {*FIELDS, "line"}
    try:
        expected = reference.evaluate(text, values, LEVELS, NAMES, nulls=nulls)
    except reference.Fails:
        expected = reference.Fails
    got, reason = _evaluated(expression, row(values))
    if reason is not None:
        assert expected is reference.Fails, (expected, reason)
        assert reason
        assert "failed" not in reason
        return
    assert seen(got) == seen(expected)
    if not reference.is_path(ast.parse(text, mode="eval").body):
        assert not isinstance(got, float) or math.isfinite(got)


@given(EXPRESSIONS, EXPRESSIONS, strategies.lists(ROWS, max_size=6), few=30, many=300)
def test_many_rows_have_the_results_of_one_by_one(one: str, other: str, found: list[Values]) -> None:
    try:
        maker = FieldMaker({"x": one, "y.z": other}, NAMES, only=True)
    except InvalidExpression:
        assume(False)
        return
    failed: list[tuple[Row, str]] = []
    rows = [row(dict(values)) for values in found]
    done = maker.make_fields(list(rows), lambda _: LEVELS, lambda *each: failed.append(each))
    expected, reasons = [], []
    for values in found:
        try:
            x, z = (each.evaluate(row(values), LEVELS) for each in maker.expressions.values())
            expected.append(seen({"x": x, "y": {"z": z}}))
        except ExpressionError as error:
            reasons.append(error.reason)
    assert [seen(each.values) for each in done] == expected
    assert [reason.partition(": ")[2] for _, reason in failed] == reasons


@pytest.mark.parametrize("nulls", [False, True], ids=["reject", "null"])
@given(EXPRESSIONS, strategies.lists(ROWS, max_size=6), few=30, many=300)
def test_a_condition_holds_where_its_expression_is_true(nulls: bool, text: str, found: list[Values]) -> None:
    try:
        condition = Condition(text, NAMES, nulls=nulls)
    except InvalidExpression:
        assume(False)
        return
    rows = [row(values) for values in found]
    failed: list[Row] = []
    dropped: list[Row] = []
    kept = condition.filter_rows(rows, lambda _: LEVELS, lambda each, _: failed.append(each), dropped.append)
    for each in rows:
        try:
            result = condition.expression.evaluate(each, LEVELS)
        except ExpressionError:
            assert any(each is other for other in failed)
            continue
        is_false = result is False or (nulls and result is None)
        group = kept if result is True else dropped if is_false else failed
        assert any(each is other for other in group)
    assert len(kept) + len(dropped) + len(failed) == len(rows)
