"""The pages of conformance name tests that exist, and tests of everything that they have."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.amqp_conformance import NOT_COVERED as AMQP_CONFORMANCE_NOT_COVERED
from tests.architecture.amqp_conformance import PAGE as AMQP_CONFORMANCE_PAGE
from tests.architecture.amqp_conformance import filled, items
from tests.architecture.amqp_conformance import rows as amqp_conformance_rows
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

# --- The page of MQTT's normative statements names tests that exist and that say themselves what they are for


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


# --- docs/reference/amqp-conformance.md says of every method and field of AMQP 0-9-1 which test is about it


def test_the_page_has_every_method_and_field_in_order() -> None:
    assert [row.item for row in amqp_conformance_rows(AMQP_CONFORMANCE_PAGE.read_text())] == items()


def test_the_page_names_the_tests_that_there_are() -> None:
    assert filled(AMQP_CONFORMANCE_PAGE.read_text()) == AMQP_CONFORMANCE_PAGE.read_text(), "run: ./run fix"


def test_everything_is_covered() -> None:
    assert [
        row.item
        for row in amqp_conformance_rows(AMQP_CONFORMANCE_PAGE.read_text())
        if row.covered_by == AMQP_CONFORMANCE_NOT_COVERED
    ] == []


# --- docs/reference/amqp1.md says of everything that AMQP 1.0 has here which tests are about it


AMQP1_PAGE_ROOT = Path(__file__).parents[2]
AMQP1_PAGE_PAGE = AMQP1_PAGE_ROOT / "docs" / "reference" / "amqp1.md"


def named() -> list[str]:
    """The tests in the last column of the page's table."""
    table = AMQP1_PAGE_PAGE.read_text().partition("## What is supported")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert all(row.rstrip(" |").endswith("`") for row in rows), "a row without a test"
    return [test for row in rows for test in re.findall(r"`([a-z0-9_/]+\.py::test_\w+)`", row.rsplit(" | ", 1)[1])]


def functions_in(path: Path) -> list[str]:
    """The tests of a file, as the page names them."""
    below = path.relative_to(AMQP1_PAGE_ROOT / "tests").as_posix()
    return [
        f"{below}::{node.name}"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def test_the_page_names_tests_that_there_are() -> None:
    there = {
        test
        for path in (AMQP1_PAGE_ROOT / "tests").rglob("test_*.py")
        if "amqp1" in str(path) or "rhea" in path.name
        for test in functions_in(path)
    }
    found = named()
    assert len(found) > 30  # the table was read
    assert [test for test in found if test not in there] == []
