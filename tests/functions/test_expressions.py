"""Expressions on rows: results, reasons when there is none, and what is refused before there is a row."""

from __future__ import annotations

import ast
import math
from typing import Any

import pytest
from hypothesis import assume, strategies

from tests.functions import expression_reference as reference
from tests.support.examples import given
from weft.functions.contract import Row, Values
from weft.functions.expression_code import ExpressionError, InvalidExpression
from weft.functions.expressions import Condition, Expression, FieldMaker, compile_expression

LEVELS = {"line": "l1"}
NAMES = ("line", "machine")
VALUES: Values = {
    "rms": 1.5,
    "status": "n/a",
    "motor": {"rpm": 3, "on": True},
    "axes": [1, 2],
    "off": None,
    "zero": 0,
    "flag": True,
    "line": "a field",
    "time": "a field",
    "huge": 10**300,
    "unit": "µm",
    "µm": 7,
    "a b": {"c": 1},
    "min": 4,
}


def row(values: Values | None = None) -> Row:
    values = dict(VALUES if values is None else values)
    return Row(1_700_000_000_500_000_000, b"plant/l1/m2", b"{}", values)


def evaluate(text: str) -> Any:
    return compile_expression(text, NAMES).evaluate(row(), LEVELS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rms >= 0", True),
        ("rms * 1.8 + 32", 34.7),
        ("1 < rms < 2", True),
        ("2 < rms < nothing", False),
        ('status == "n/a"', True),
        ("status == 3", False),
        ("off == None", True),
        ('motor["rpm"] + 1', 4),
        ("axes[0] + axes[-1]", 3),
        ("line", "l1"),
        ('field("line")', "a field"),
        ('line + "/" + status', "l1/n/a"),
        ("key", "plant/l1/m2"),
        ("time", 1_700_000_000.5),
        ('field("time")', "a field"),
        ('field("a b")["c"]', 1),
        ("µm", 7),
        ("min + min(3, rms)", 5.5),
        ("default(nothing, 7)", 7),
        ("default(off, 7)", 7),
        ("default(zero, 7)", 0),
        ('default(motor["x"], axes[9], status["x"], rms)', 1.5),
        ('default(machine, "?")', "?"),
        ("exists(nothing) or exists(machine)", False),
        ('exists(off) and exists("motor.rpm") and exists(line)', True),
        ("rms if flag else nothing", 1.5),
        ("not flag", False),
        ("flag or nothing", True),
        ("rms in [1, 1.5] and 3 not in axes", True),
        ('"rpm" in motor', True),
        ('"/" in status', True),
        ("round(rms * 1.111, 2)", 1.67),
        ("floor(rms) + ceil(rms) + abs(-2)", 5),
        ('sqrt(motor["rpm"] + 1) + log(1) + log10(100) + exp(0)', 5.0),
        ("len(status) + len(axes)", 5),
        ('int("12") + float("0.5") + int(rms)', 13.5),
        ("str(rms) + str(3) + str(flag)", "1.53True"),
        ('upper(line) + lower("A") + strip(" b ")', "L1ab"),
        ('startswith(status, "n") and endswith(status, "a") and contains(axes, 2)', True),
        ("max(axes)", 2),
        ("7 // 2 + 7 % 4 + rms ** 2", 8.25),
        ("huge * huge // huge == huge", None),
        ("huge > 1", True),
        ("bool(zero)", False),
        ("is_number(rms) and is_text(status) and not is_number(flag) and not is_nan(rms)", True),
        ("rms\n  > 1", True),
    ],
)
def test_results(text: str, expected: object) -> None:
    if expected is None:
        with pytest.raises(ExpressionError):
            evaluate(text)
    else:
        assert evaluate(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing > 1", "field nothing is missing"),
        ('motor["x"]', "field motor.x is missing"),
        ("axes[5]", "field axes.5 is missing"),
        ('status["x"] == 1', "status is text and has no x"),
        ('machine == "a"', "the topic has no level machine"),
        ("status >= 0", "cannot compare text with a number: status is 'n/a'"),
        ("off < 3", "cannot compare null with a number: off is null"),
        ("0 < rms < status", "cannot compare a number with text: rms is 1.5, status is 'n/a'"),
        ("3 in rms", "cannot look for a number in a number: rms is 1.5"),
        ("1 / zero", "division by zero: zero is 0"),
        ("status * 3", "cannot calculate with text: status is 'n/a'"),
        ("axes * 1000000", "cannot calculate with a list: axes is a list"),
        ("status % 3", "cannot calculate with text: status is 'n/a'"),
        ("-status", "cannot calculate with text: status is 'n/a'"),
        ("axes + axes", "cannot calculate with a list: axes is a list, axes is a list"),
        ("huge * huge", "the result of huge * huge is too large: an integer of more than 256 bits"),
        ("huge + 1", "the result of huge + 1 is an integer of more than 64 bits"),
        ("rms * 1e308 * 1e308", "the result of rms * 1e308 * 1e308 is an infinite number"),
        ("-18446744073709551615", "the result of -18446744073709551615 is an integer of more than 64 bits"),
        ("rms ** 100000", "the result of rms ** 100000 is too large"),
        ("sqrt(-rms)", "sqrt has no result: -rms is -1.5"),
        ("lower(rms)", "lower cannot take a number: rms is 1.5"),
        ("int(status)", "int has no result: status is 'n/a'"),
        ("status and flag", "status is text instead of true or false: 'n/a'"),
        ("1 if zero else 2", "zero is a number instead of true or false: 0"),
        ("nothing if flag else 1", "field nothing is missing"),
        ("flag and nothing", "field nothing is missing"),
        ("default(nothing, nothing) + 1", "field nothing is missing"),
        ("bool(status)", "bool cannot take text: status is 'n/a'"),
        ('float("nan") * 1', 'the result of float("nan") * 1 is not a number'),
    ],
)
def test_reasons_name_the_field_and_its_value(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as error:
        evaluate(text)
    assert error.value.reason == reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rms.mean >= 0", 'column 1: attributes are not allowed; write rms["mean"]'),
        ("1 + name.lower()", "column 5: methods are not allowed; functions take the value in parentheses: lower(name)"),
        ("lambda: 1", "column 1: lambda is not allowed"),
        ("1 + [x for x in y]", "column 5: comprehensions are not allowed"),
        ("f'{a}'", 'column 1: f-strings are not allowed; join texts with +: "line " + line'),
        ("(a := 1)", "column 2: `:=` is not allowed"),
        ("max(*a)", "column 1: arguments are values alone"),
        ("max(key=a)", "column 1: arguments are values alone"),
        ("__import__('os')", "column 1: __import__ is not a function here. There are: abs, "),
        ("eval('1')", "column 1: eval is not a function here"),
        ("abs(1)(2)", "column 1: abs(1) is not a function here"),
        ("__class__", 'names that begin with __ are not allowed; write field("__class__")'),
        ("a && b", "column 4: write `and` and `or` instead of && and ||"),
        ("a = 3", "column 3: write == to compare"),
        ("!a", "column 1: write `not` instead of !"),
        ("a is None", "`is` is not allowed; write == or !="),
        ("a == null", 'column 6: write None, or field("null")'),
        ("round(a, b)", "column 10: round takes a literal number of digits"),
        ("round(a, -99)", "column 10: round takes a literal number of digits"),
        ("line > 3", "column 1: cannot compare text with a number: line > 3; write float(line)"),
        ("line * 2", "column 1: cannot calculate with text: line; write float(line)"),
        ('"a" * 1000000000', "column 1: cannot calculate with text"),
        ("line + 1", "column 8: cannot join text and a number; write str(1)"),
        ("a[b]", "brackets take a literal text or integer"),
        ("a[1:2]", "brackets take a literal text or integer"),
        ("abs(a)[0]", "brackets may only follow a field"),
        ('name or "unknown"', "and this is text; write a comparison, or default(name"),
        ("1e999", "column 1: 1e999 is infinite"),
        ("9" * 30, "column 1: an integer has at most 64 bits"),
        ("[1, 2]", "column 1: a list may only follow `in`"),
        ("", "column 1: the expression is empty"),
        ("a > 1 # and b", "column 7: comments are not allowed"),
        ("a and (b", "column 7: '(' was never closed"),
        ("temp-c x", "column 8: "),
        ("class > 1", 'a field whose name is not an identifier is field("its name")'),
        ("exists(a + 1)", "column 8: a + 1 is not a field; write exists(rms)"),
        ("default(" + "a, " * 30 + "1)", "default takes at most 20 values"),
        ("default(a)", "write default(rms, 0)"),
        ("a & b", "conditions are joined by `and` and `or`"),
        ("b'x'", "literals are numbers, text, True, False and None"),
        ("-" * 3_900 + "x", "nested deeper than 50"),
        ("(" * 60 + "x" + ")" * 60 + "." * 60, "column "),
        ("+".join("a" * 300), "nested deeper than 50; make fields in a `set` first"),
        ("a in [" + ",".join("1" * 500) + "]", "more than 200 names, values and operators"),
        ("x" * 5_000, "5000 characters; an expression has at most 4000"),
        ("'\\ud800'", "text with half a surrogate pair"),
        ("a\0b", "null bytes"),
    ],
)
def test_what_is_not_allowed_is_refused_with_its_column_and_what_to_write(text: str, said: str) -> None:
    with pytest.raises(InvalidExpression) as error:
        compile_expression(text, NAMES)
    assert said in str(error.value)
    assert 1 <= error.value.column <= len(text) + 1


def test_an_expression_tells_the_fields_and_levels_that_it_reads() -> None:
    expression = compile_expression('a > 1 and b["c"] < 2 and exists("d.e") and line == key + field("f g")', NAMES)
    assert set(expression.fields) == {"a", "b", "d", "f g"}
    assert set(expression.levels) == {"line"}


def test_a_condition_has_to_be_true_or_false() -> None:
    with pytest.raises(InvalidExpression, match="a condition is true or false, and this is a number"):
        Condition("rms + 1", ())
    condition = Condition("flag", ())
    assert condition.holds(row(), {})
    with pytest.raises(ExpressionError, match="flag is text instead of true or false: 'yes'"):
        condition.holds(row({"flag": "yes"}), {})


def test_a_condition_filters_rows_and_goes_on_behind_those_on_which_it_fails() -> None:
    condition = Condition('rms > 1 and line == "l1"', NAMES)
    rows = [row({"rms": value}) for value in (2, 0, "x", 3, None)] + [row({})]
    failed: list[tuple[Row, str]] = []
    kept = condition.filter_rows(rows, lambda _: LEVELS, lambda *one: failed.append(one))
    assert kept == [rows[0], rows[3]]
    assert failed == [
        (rows[2], "cannot compare text with a number: rms is 'x'"),
        (rows[4], "cannot compare null with a number: rms is null"),
        (rows[5], "field rms is missing"),
    ]


def test_new_fields_see_the_row_as_it_came_and_a_row_that_fails_stays_as_it_was() -> None:
    maker = FieldMaker({"a": "b", "b": "a", "m.x": "a + 1", "m.y.z": "line"}, NAMES, only=False)
    inner = {"k": 1}
    rows = [
        row({"a": 1, "b": 2, "m": inner}),
        row({"a": 1, "m": inner}),
        row({"a": 1, "b": 2, "m": 5}),
        row({"a": 1, "b": 2}),
    ]
    before = [dict(each.values) for each in rows]
    failed: list[tuple[Row, str]] = []
    done = maker.make_fields(rows, lambda _: LEVELS, lambda *one: failed.append(one))
    assert done == [rows[0], rows[3]]
    assert rows[0].values == {"a": 2, "b": 1, "m": {"k": 1, "x": 2, "y": {"z": "l1"}}}
    assert rows[3].values == {"a": 2, "b": 1, "m": {"x": 2, "y": {"z": "l1"}}}
    assert [each.payload for each in rows] == [None, b"{}", b"{}", None]
    assert inner == {"k": 1}
    assert failed == [(rows[1], "a: field b is missing"), (rows[2], "m is not a mapping, and cannot have a field x")]
    assert [each.values for each in rows[1:3]] == before[1:3]


def test_only_the_new_fields() -> None:
    maker = FieldMaker({"c": "a * 2", "m.x": "a"}, (), only=True)
    rows = [row({"a": 1, "m": {"k": 1}})]
    assert maker.make_fields(rows, lambda _: {}, lambda _, reason: pytest.fail(reason)) == rows
    assert rows[0].values == {"c": 2, "m": {"x": 1}}


def test_fields_that_cannot_stand_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r'"m\.x" lies in "m"; name only one of them'):
        FieldMaker({"m.x": "1", "m": "2"}, (), only=False)
    with pytest.raises(InvalidExpression, match="rpm: column 1: lambda"):
        FieldMaker({"rpm": "lambda: 1"}, (), only=False)


# --- Expressions of any form, on rows of any values, have the results of a second, plain implementation


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
AGAINST_REFERENCE_VALUES = strategies.recursive(
    SCALARS,
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.sampled_from("ab"), inner),
    max_leaves=4,
)
ROWS = strategies.dictionaries(strategies.sampled_from(FIELDS), AGAINST_REFERENCE_VALUES)
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


def against_reference_row(values: Values) -> Row:
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
    got, reason = _evaluated(expression, against_reference_row(values))
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
    rows = [against_reference_row(dict(values)) for values in found]
    done = maker.make_fields(list(rows), lambda _: LEVELS, lambda *each: failed.append(each))
    expected, reasons = [], []
    for values in found:
        try:
            x, z = (each.evaluate(against_reference_row(values), LEVELS) for each in maker.expressions.values())
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
    rows = [against_reference_row(values) for values in found]
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
