"""Of two runs that share their work, each test is in the one or the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_run import plain

ROOT = Path(__file__).parents[2]
CONFTEST = """\
import pytest
from tests.second_run import SecondRun

def pytest_addoption(parser):
    parser.addoption("--passed-to")
    parser.addoption("--not-again")

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.pluginmanager.register(SecondRun(config))

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.path.name))

def pytest_pycollect_makemodule(module_path):
    if module_path.name != "test_some.py":
        with open("imported", "a") as file:
            print(module_path.stem, file=file)
"""
TESTS = """\
import os, pytest

def test_good(): pass

@pytest.mark.parametrize("text", ["a@b", "test_some.py@x"])
def test_with_names(text): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.java
def test_of_java(): pass

def test_that_needs_a_compiler():
    if "COMPILER" not in os.environ:
        pytest.skip("no compiler")

@pytest.fixture
def broken_end():
    yield
    assert "COMPILER" in os.environ

def test_whose_end_fails(broken_end): pass
"""
OTHERS = {
    "test_settled": "def test_settled(): pass",
    "test_settled_but_slow": "import pytest\ndef test_quick(): pass\n@pytest.mark.slow\ndef test_of_others(): pass",
    "test_settled_but_java": "import pytest\n@pytest.mark.java\ndef test_on_both(): pass",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "processes",
    [pytest.param([], marks=pytest.mark.slow), ["--numprocesses=1", "--dist=loadgroup"]],
    ids=["one", "workers"],
)
def test_a_second_run_makes_what_the_first_has_not_settled(processes: list[str], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n    java\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    for name, text in OTHERS.items():
        (tmp_path / f"{name}.py").write_text(text)

    def run(*arguments: str, **environment: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *processes, *arguments]
        variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), **environment}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        # Workers' lines have the outcome before the name.
        found = re.findall(r"::(test_\w+)\S* PASSED|PASSED \S+::(test_\w+)", done.stdout)
        return {alone or of_worker for alone, of_worker in found}

    first = run("-m", "not slow", "--passed-to=passed")
    (tmp_path / "imported").unlink()
    second = run("--not-again=passed", COMPILER="cc")
    of_others = {"test_settled", "test_quick", "test_on_both"}
    assert first - of_others == {"test_good", "test_with_names", "test_of_java", "test_whose_end_fails"}
    assert second - {"test_of_others", "test_on_both"} == {
        "test_slow",
        "test_of_java",
        "test_that_needs_a_compiler",
        "test_whose_end_fails",
    }
    assert first > of_others
    assert second > {"test_of_others", "test_on_both"}
    imported = set((tmp_path / "imported").read_text().split())
    assert imported == OTHERS.keys() - {"test_settled"}, "a file with nothing to do is not imported"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tests/config/test_a.py::test_b@config/test_a.py", "tests/config/test_a.py::test_b"),
        ("tests/interop/test_a.py::test_b[x@y]@interop", "tests/interop/test_a.py::test_b[x@y]"),
        ("tests/config/test_a.py::test_b[x@y]", "tests/config/test_a.py::test_b[x@y]"),
        ("tests/config/test_a.py::test_b", "tests/config/test_a.py::test_b"),
    ],
)
def test_names_are_the_same_with_and_without_workers(name: str, expected: str) -> None:
    assert plain(name) == expected
