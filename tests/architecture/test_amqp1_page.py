"""docs/reference/amqp1.md says of everything that AMQP 1.0 has here which tests are about it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "amqp1.md"


def named() -> list[str]:
    """The tests in the last column of the page's table."""
    table = PAGE.read_text().partition("## What is supported")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert all(row.rstrip(" |").endswith("`") for row in rows), "a row without a test"
    return [test for row in rows for test in re.findall(r"`([a-z0-9_/]+\.py::test_\w+)`", row.rsplit(" | ", 1)[1])]


def functions_in(path: Path) -> list[str]:
    """The tests of a file, as the page names them."""
    below = path.relative_to(ROOT / "tests").as_posix()
    return [
        f"{below}::{node.name}"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def test_the_page_names_tests_that_there_are() -> None:
    there = {
        test
        for path in (ROOT / "tests").rglob("test_*.py")
        if "amqp1" in str(path) or "rhea" in path.name
        for test in functions_in(path)
    }
    found = named()
    assert len(found) > 30  # the table was read
    assert [test for test in found if test not in there] == []
