"""The time-table of a night is whole: at most eight hours of two processes, with a row for every search of the
tests."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nightly.jobs import NIGHT_HOURS, NIGHT_PROCESSES
from tests.nightly.timetable import JOBS

ROOT = Path(__file__).parents[2]
MARK = "pytest.mark.search"


def is_search(node: ast.AST) -> bool:
    """Whether a decorator, or what a module gives to ``pytestmark``, marks tests as searches."""
    return any(isinstance(part, ast.Attribute) and ast.unparse(part) == MARK for part in ast.walk(node))


def searches_of(source: str, name: str) -> Iterator[str]:
    """Find the searches of a file: tests with the mark, and properties of ``tests/support/examples.py``."""
    tree = ast.parse(source)
    given_names = {
        each.asname or each.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "tests.support.examples"
        for each in node.names
        if each.name == "given"
    }
    is_all = any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and is_search(node.value)
        for node in tree.body
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            given = any(ast.unparse(each).partition("(")[0] in given_names for each in node.decorator_list)
            if is_all or given or any(map(is_search, node.decorator_list)):
                yield f"{name}::{node.name}"


@functools.cache
def searches() -> set[str]:
    found = set[str]()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text()
        if "search" in source or "examples" in source:
            found.update(searches_of(source, str(path.relative_to(ROOT))))
    return found


def covers(tests: str, search: str) -> bool:
    return search == tests or search.startswith((f"{tests}::", f"{tests}/"))


def test_the_rows_have_room_in_a_night() -> None:
    minutes = sum(job.minutes for job in JOBS.values())
    assert minutes <= NIGHT_HOURS * 60 * NIGHT_PROCESSES, (
        f"the rows of tests/nightly/timetable.py have {minutes} minutes, and a night has "
        f"{NIGHT_HOURS * 60 * NIGHT_PROCESSES}: a new row takes its minutes from others"
    )


@pytest.mark.parametrize("name", JOBS)
def test_a_job_has_time_for_a_slice(name: str) -> None:
    """A row that never comes to its end would not be searched."""
    job = JOBS[name]
    assert job.slice_s <= job.minutes * 60
    assert "{seed}" in job.repeat


def test_every_search_has_a_row() -> None:
    found = searches()
    assert len(found) > 50
    covered = {search for job in JOBS.values() for tests in job.tests for search in found if covers(tests, search)}
    assert sorted(found - covered) == [], "name them in a row of JOBS in tests/nightly/timetable.py"


def test_no_row_is_for_tests_that_are_gone() -> None:
    found = searches()
    gone = {tests for job in JOBS.values() for tests in job.tests if not any(covers(tests, each) for each in found)}
    assert gone == set(), "take them out of JOBS in tests/nightly/timetable.py"


def test_searches_are_found() -> None:
    source = """
import pytest
from tests.support.examples import given

@pytest.mark.search
def test_marked(): ...

@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=[pytest.mark.s3, pytest.mark.search])])
def test_in_part(seed): ...

@given(x=1)
def test_property(x): ...

@pytest.mark.slow
def test_slow(): ...
"""
    assert list(searches_of(source, "f")) == ["f::test_marked", "f::test_in_part", "f::test_property"]
    whole = "import pytest\npytestmark = [pytest.mark.search]\ndef test_any(): ...\n"
    assert list(searches_of(whole, "f")) == ["f::test_any"]


def test_a_night_makes_a_hundred_thousand_histories_of_wrong_clocks() -> None:
    jobs = JOBS["clocks"], JOBS["set_back"]
    assert sum(job.minutes * 60 / job.slice_s * job.slice_units for job in jobs) >= 100_000
