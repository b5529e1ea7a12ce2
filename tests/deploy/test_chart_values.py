"""Values of the charts: their schemas refuse what is misspelt, and know the settings of this release."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from docs.tools.chart_schemas import CHARTS, chart_schemas


def test_the_schemas_have_the_settings_of_this_release() -> None:
    for file, text in chart_schemas().items():
        assert (CHARTS / file).read_text() == text, "run: ./run docs"


@pytest.mark.parametrize(
    ("chart", "within", "name"),
    [
        ("weft-hub", (), "replica"),
        ("weft-hub", ("hub",), "stoer"),
        ("weft-hub", ("hub", "limits"), "pnding"),
        ("weft-hub", ("networkPolicy",), "form"),
        ("weft-edge", ("edge",), "lnks"),
        ("weft-edge", ("edge", "links", "cloud"), "tokenfile"),
        ("weft-edge", ("service",), "typ"),
    ],
)
def test_what_a_chart_does_not_know_is_refused(chart: str, within: tuple[str, ...], name: str) -> None:
    import jsonschema  # compiles forty grammars, which every worker would wait for

    values: Any = yaml.safe_load((CHARTS / chart / "values.yaml").read_text())
    judge = jsonschema.Draft7Validator(json.loads((CHARTS / chart / "values.schema.json").read_text()))
    assert list(judge.iter_errors(values)) == []
    section = values
    for each in within:
        section = section.setdefault(each, {})
    section[name] = "x"
    (error,) = judge.iter_errors(values)
    assert f"'{name}' was unexpected" in error.message
