"""The page of MQTT's normative statements names tests that exist and that say themselves what they are for."""

from __future__ import annotations

from functools import cache

import pytest

from tests.architecture.mqtt_conformance import (
    NOT_COVERED,
    PAGE,
    ROOT,
    Row,
    Statement,
    named_tests,
    names_in,
    rows,
    tags,
)

ROWS = rows(PAGE.read_text())


@cache
def carried_by(path: str) -> dict[str, set[Statement]]:
    file = ROOT / "tests" / path
    return names_in(file) if file.is_file() else {}


def test_every_statement_is_listed_once() -> None:
    statements = [(row.version, row.number) for row in ROWS]
    assert len(statements) == len(set(statements)) > 300


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.version}-{row.number}")
def test_every_test_that_the_page_names_exists_and_names_the_statement(row: Row) -> None:
    if row.covered_by == NOT_COVERED or row.covered_by.startswith("does not apply: "):
        return
    assert named_tests(row), row.covered_by
    for path, name in named_tests(row):
        assert (row.version, row.number) in carried_by(path).get(name, set()), (
            f"tests/{path}::{name} does not name it; run: ./run fix"
        )


def test_how_tests_name_statements() -> None:
    text = "v5 [MQTT-1.1.1-1], [MQTT-1.1.1-2]; v3 [MQTT-2.2.2-3]"
    assert set(tags(text)) == {(5, "1.1.1-1"), (5, "1.1.1-2"), (3, "2.2.2-3")}
    assert set(tags("[MQTT-4.4.4-4] of both, v4 is none")) == {(3, "4.4.4-4"), (5, "4.4.4-4")}
