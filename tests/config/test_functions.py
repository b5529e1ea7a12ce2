"""Functions are read as a plant engineer writes them, and a mistake names its line."""

from __future__ import annotations

import pytest

from weft.config.errors import ConfigError
from weft.config.functions.step import FunctionStep
from weft.config.load import changed_settings, parse
from weft.config.models import EdgeConfig
from weft.config.schema import schema, settings

STREAM = "node: a\ndata_dir: /data\nstreams:\n  hot:\n    from: t/#\n    functions:\n"


def functions(lines: str) -> tuple[FunctionStep, ...]:
    return parse(STREAM + lines, "edge.yaml", EdgeConfig).config.streams["hot"].functions


def test_each_entry_is_one_function() -> None:
    first, second = functions("      - where: rms >= 0\n      - set: {fahrenheit: temperature * 1.8 + 32}\n")
    assert first.chosen == ("where", "rms >= 0")
    assert second.chosen == ("set", {"fahrenheit": "temperature * 1.8 + 32"})


@pytest.mark.parametrize(("written", "nulls"), [("", False), ("reject", False), ("null", True), ('"null"', True)])
def test_a_function_says_what_a_missing_field_is(written: str, nulls: bool) -> None:
    beside = f"        missing: {written}\n" if written else ""
    (step,) = functions(f"      - where: rms >= 0\n{beside}")
    assert step.chosen == ("where", "rms >= 0")
    assert step.takes_nulls is nulls


@pytest.mark.parametrize(
    ("written", "expression"),
    [
        ("true", "True"),
        ("3", "3"),
        ("-1e-3", "-1e-3"),
        ("null", "None"),
        ('"true"', "true"),
        ("on", "on"),
        ("'\"press 7\"'", '"press 7"'),
    ],
)
def test_an_expression_may_look_like_another_value_of_yaml(written: str, expression: str) -> None:
    (step,) = functions(f"      - set: {{x: {written}}}\n")
    assert step.set_ == {"x": expression}


def test_fields_are_selected_by_name_or_as_new_ones() -> None:
    names, one, mapping = functions("      - select: [a, b]\n      - select: a\n      - select: {rpm: motor.rpm}\n")
    assert (names.select, one.select, mapping.select) == (("a", "b"), ("a",), {"rpm": "motor.rpm"})


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            "      - where: a\n        select: b",
            "edge.yaml:7: streams.hot.functions[0]: expected one function, got where and select",
        ),
        (
            "      - where: a\n      - whre: x",
            "edge.yaml:8: streams.hot.functions[1].whre: is not a function. Did you mean where?",
        ),
        ("      - missing: null", "functions[0]: expected one function, got nothing. Known here: where"),
        ("      - where: a\n        missing: 0", "functions[0].missing: expected"),
        ("      - {}", "edge.yaml:7: streams.hot.functions[0]: expected one function, got nothing. Known here: where"),
        (
            "      - where: # rms",
            "edge.yaml:7: streams.hot.functions[0].where: expected an expression such as "
            "rms > 2.5, got nothing. A # begins a comment",
        ),
        ("      - set: {}", "functions[0].set: expected names with their values: `NAME: VALUE`, got nothing"),
        ("      - set:", "functions[0].set: expected names with their values: `NAME: VALUE`, got nothing"),
        ("      - set: [a]", "functions[0].set: expected names with their values: `NAME: VALUE`, got a list"),
        ("      where: a", "edge.yaml:6: streams.hot.functions: expected a list of entries that begin with a dash"),
        ("      - select: [[a]]", "edge.yaml:7: streams.hot.functions[0].select[0]: expected text"),
    ],
)
def test_a_mistake_names_its_line_and_what_was_expected(lines: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        functions(lines)
    assert error in str(caught.value)


def test_a_change_names_the_function() -> None:
    def config(lines: str) -> EdgeConfig:
        return parse(STREAM + lines, "edge.yaml", EdgeConfig).config

    one, other, more = (
        config(each) for each in ("      - where: a", "      - where: b", "      - where: a\n      - where: c")
    )
    assert changed_settings(one, other) == ["streams.hot.functions[0].where"]
    assert changed_settings(one, more) == ["streams.hot.functions"]


def test_the_schema_allows_one_function_an_entry() -> None:
    definition = schema(EdgeConfig)["$defs"]["FunctionStep"]
    assert (definition["minProperties"], definition["maxProperties"]) == (1, 2)  # `missing` may stand beside it
    assert {"required": ["where"]} in definition["oneOf"]
    assert {"required": ["missing"]} not in definition["oneOf"]
    assert definition["properties"]["where"]["anyOf"][0]["type"] == ["string", "number", "boolean"]
    assert {"streams.<name>.functions[]", "streams.<name>.functions[].where"} <= {
        setting.path for setting in settings(EdgeConfig)
    }
