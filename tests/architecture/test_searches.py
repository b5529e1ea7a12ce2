"""Searches: which seeds a run takes, and how a failure is repeated."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.searches import has_turn
from tests.support.slices import VARIABLE, Slice, slice_of_commit

ROOT = Path(__file__).parents[2]


def test_consecutive_slices_search_consecutive_seeds_and_nights_others() -> None:
    found = [seed for number in range(5) for seed in Slice(number).seeds(ci=7, night=100)]
    assert found == list(range(found[0], found[0] + 35))
    nights = [seed for number in range(1, 4) for seed in Slice(number, is_night=True).seeds(ci=7, night=100)]
    assert nights == list(range(100, 400))
    assert not set(nights) & set(found)


def test_consecutive_slices_take_turns_of_what_can_be_counted() -> None:
    assert [Slice(number).some("abcde", ci=2) for number in range(5)] == [
        ["a", "b"],
        ["c", "d"],
        ["e", "a"],
        ["b", "c"],
        ["d", "e"],
    ]
    assert Slice(3, is_night=True).some("abcde", ci=2) == list("abcde")
    assert Slice(3).some("ab", ci=4) == ["a", "b"]


def test_every_turn_comes_and_a_night_takes_all() -> None:
    for file in ("tests/a/test_b.py", "tests/a/test_c.py"):
        for at in range(4):
            made = [number for number in range(12) if has_turn(Slice(number), file, at, 3)]
            assert [later - earlier for later, earlier in zip(made[1:], made, strict=False)] == [3, 3, 3]
    assert sum(has_turn(Slice(7), "f", at, 3) for at in range(3)) == 1, "tests of a file follow one another"
    assert has_turn(Slice(7, is_night=True), "f", 0, 3)
    assert has_turn(Slice(7, is_night=True), "f", 1, 3)


@pytest.mark.parametrize("one", [Slice(926), Slice(7, is_night=True)])
def test_a_slice_is_written_as_it_is_read(one: Slice) -> None:
    assert Slice.parse(str(one)) == one


def git(folder: Path, *arguments: str) -> None:
    own = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    name = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True, env=own)


def test_the_slice_moves_with_the_commit(tmp_path: Path) -> None:
    assert slice_of_commit(tmp_path) == 0, "no checkout"
    git(tmp_path, "init", "-q", "whole")
    whole = tmp_path / "whole"
    found = []
    for number in range(3):
        git(whole, "commit", "-q", "--allow-empty", "-m", str(number))
        found.append(slice_of_commit(whole))
    assert found == [1, 2, 3]
    git(tmp_path, "clone", "-q", "--depth", "1", whole.as_uri(), "shallow")
    drawn = slice_of_commit(tmp_path / "shallow")
    git(whole, "commit", "-q", "--allow-empty", "-m", "another")
    git(tmp_path / "shallow", "fetch", "-q", "--depth", "1")
    git(tmp_path / "shallow", "reset", "-q", "--hard", "FETCH_HEAD")
    assert slice_of_commit(tmp_path / "shallow") != drawn > 3


CONFTEST = """\
from tests.searches import Searches

def pytest_configure(config):
    config.addinivalue_line("markers", "search: moves")
    config.addinivalue_line("markers", "slow: slow")
    config.pluginmanager.register(Searches())
"""
TESTS = """\
import pytest
from hypothesis import strategies
from tests.support.examples import given
from tests.support.slices import SLICE

@pytest.mark.search
@pytest.mark.parametrize("kind", ["a b", "c"])
def test_seeds(kind):
    for seed in SLICE.seeds(ci=10, night=100):
        assert seed % 25 != 3 or kind == "c", f"seed {seed}"

def test_other():
    raise AssertionError("no search")

@pytest.mark.search(turns=2)
@pytest.mark.parametrize("kind", range(4))
def test_turns(kind):
    pass

@given(strategies.integers(0, 1 << 60), few=5, many=5)
def test_property(number):
    print("number", number)
"""


def run(folder: Path, *arguments: str, slice_: str, named: str = "") -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(TESTS)
    # In CI, Hypothesis would take the same examples each time.
    variables = {**os.environ, VARIABLE: slice_, "PYTHONPATH": str(ROOT), "CI": "true"}
    variables.pop("PYTEST_ADDOPTS", None)  # with options that this run's conftest does not have
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    command.append(f"--basetemp={folder / '.base'}")
    command += [str(folder / named), *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-n1"]], ids=["one", "workers"])
def test_a_search_that_fails_says_how_to_repeat_it(processes: list[str], tmp_path: Path) -> None:
    passed, failed = (run(tmp_path, "-k", "seeds or other", *processes, slice_=number) for number in ("1", "2"))
    assert "slice 1 (WEFT_SLICE=1 repeats it)" in passed
    assert "WEFT_SLICE=1 ./run" not in passed
    assert "seed 1000000028" in failed
    (reported,) = re.findall(r"^WEFT_SLICE=.*$", failed, re.MULTILINE)
    assert shlex.split(reported) == ["WEFT_SLICE=2", "./run", "test", "--all", "test_some.py::test_seeds[a b]"]


@pytest.mark.slow
def test_a_search_is_a_slow_test(tmp_path: Path) -> None:
    found = run(tmp_path, "-m", "slow", "-k", "not turns", "--collect-only", "-q", slice_="1").splitlines()
    assert found[:3] == [
        f"test_some.py::{name}" for name in ("test_seeds[a b]", "test_seeds[c]", "test_property[many]")
    ]
    assert "3/9 tests collected" in found[-1]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-n1"]], ids=["one", "workers"])
def test_searches_take_turns_where_a_folder_is_asked_for(processes: list[str], tmp_path: Path) -> None:
    def made(slice_: str, named: str = "") -> set[str]:
        shown = run(tmp_path, "-rA", "-k", "turns", *processes, slice_=slice_, named=named)
        return set(re.findall(r"^PASSED test_some.py::test_turns\[(\d)\]$", shown, re.MULTILINE))

    first, second = made("1"), made("2")
    assert (len(first), first | second) == (2, {"0", "1", "2", "3"})
    assert made("3") == first
    assert made("night-1") == made("1", named="test_some.py") == first | second


@pytest.mark.slow
def test_examples_of_searches_move_with_the_slice_and_those_of_quick_tests_do_not(tmp_path: Path) -> None:
    def examples(size: str, slice_: str) -> list[str]:
        return re.findall(
            r"number (\d+)$", run(tmp_path, "-s", "-k", f"property and {size}", slice_=slice_), re.MULTILINE
        )

    assert len(examples("many", "5")) == 5
    assert examples("many", "5") == examples("many", "5") != examples("many", "6")
    assert examples("few", "5") == examples("few", "6")
