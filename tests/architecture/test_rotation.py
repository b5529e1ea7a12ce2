"""Slow tests take turns: each in one part of four, and those near a change at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import changed
from tests.rotation import PARTS, is_near, part_of
from tests.support.slices import VARIABLE

ROOT = Path(__file__).parents[2]
CONFTEST = """\
from tests.rotation import Rotation
from tests.searches import Searches

def pytest_addoption(parser):
    parser.addoption("--rotate")

def pytest_configure(config):
    for name in ("slow", "search"):
        config.addinivalue_line("markers", name)
    config.pluginmanager.register(Searches())
    config.pluginmanager.register(Rotation(config))
"""
TESTS = """\
import pytest

def test_quick(): pass

@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/a.md", "docs/b.md"])
def test_slow(page): pass

@pytest.mark.search(turns=4)
@pytest.mark.parametrize("number", range(4))
def test_turns(number): pass
"""


def test_the_longest_files_are_dealt_out_evenly() -> None:
    seconds = {"a": 60.0, "b": 50.0, "c": 50.0, "d": 30.0, "e": 20.0, "f": 10.0}
    totals = [sum(took for file, took in seconds.items() if part_of(file, seconds) == part) for part in range(PARTS)]
    assert max(totals) - min(totals) <= min(seconds.values())


def test_a_page_is_near_to_the_test_that_follows_it() -> None:
    near = frozenset({"docs/a.md", "tests/storage/test_log.py"})
    assert is_near("tests/end_to_end/test_pages.py::test_a_page[docs/a.md]", near)
    assert not is_near("tests/end_to_end/test_pages.py::test_a_page[docs/b.md]", near)
    assert is_near("tests/storage/test_log.py::test_it[x]", near)


def test_near_are_changed_tests_and_those_of_a_changed_module_and_not_all_that_share_a_helper() -> None:
    module, helper, page = "storage/log.py", "tests/support/waiting.py", "docs/a.md"
    mirrored, user, other = "tests/storage/test_x.py", "tests/weft/test_cli.py", "tests/weft/test_other.py"
    graph = {module: {user, "storage/read.py"}, helper: {user, other, mirrored}}
    files = [module, helper, mirrored, user, other]
    assert changed.near([module, helper, page], graph, files) == sorted([module, helper, page, mirrored, user])


@pytest.mark.slow
def test_four_commits_in_a_row_make_every_slow_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p no:schemathesis -p no:anyio\n")
    for name in ("test_a.py", "test_b.py", "test_c.py", "test_d.py"):
        (tmp_path / name).write_text(TESTS)
    (tmp_path / "near").write_text("docs/a.md\n")

    def made(number: int) -> set[str]:
        command = [sys.executable, "-m", "pytest", "-v", "--rotate=near", str(tmp_path)]
        variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), VARIABLE: str(number)}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"part {number % PARTS + 1} of {PARTS}" in done.stdout
        return {line.split()[0] for line in done.stdout.splitlines() if " PASSED" in line}

    runs = [made(number) for number in range(7, 11)]
    always = {test for test in set.intersection(*runs) if "quick" in test or "docs/a.md" in test}
    assert len(always) == 8, "quick ones, and those near the change, each time"
    assert len(set.union(*runs)) == 4 * 7
    assert all(sum(test in run for run in runs) == 1 for test in set.union(*runs) - always)
