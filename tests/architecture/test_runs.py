"""How the tests are run: which, in which order, again, and in forked processes."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from tests import changed, first_imports
from tests.durations import UNLISTED_S
from tests.rotation import PARTS, is_near, part_of
from tests.searches import has_turn
from tests.second_run import plain
from tests.stage import LEFT, SHARED, UNSTEADY_MAX
from tests.support import forked, process_facts
from tests.support.coverage_table import table
from tests.support.outcomes import WrongOutcome, is_wrong_outcome, outcome
from tests.support.slices import VARIABLE, Slice, slice_of_commit
from tests.support.waiting import PATIENCE_S
from tests.temporary_folder import LEFT_BEHIND

# --- A failed test is run again by itself, and a wrong outcome is not


ROOT = Path(__file__).parents[2]
CONFTEST = """\
from tests.stage import Failures

def pytest_addoption(parser):
    parser.addoption("--failures-to")

def pytest_configure(config):
    config.pluginmanager.register(Failures(config))

def pytest_sessionfinish(session):
    from pathlib import Path

    from tests.temporary_folder import LEFT_BEHIND

    if Path("left").exists():  # what `TemporaryFolder` does where files are left
        session.exitstatus = LEFT_BEHIND
"""
INI = "[pytest]\naddopts = -p no:cacheprovider -p no:schemathesis -p no:anyio -p no:hypothesispytest\n"
TESTS = """\
from pathlib import Path
from tests.support.outcomes import outcome

HERE = Path(__file__).parent

def tries(name):
    with (HERE / name).open("a") as file:
        file.write("x")
    return len((HERE / name).read_text())

def test_good(): pass

def test_late():
    print("what it printed")
    assert tries("late") > 1, "too late"

def test_bad():
    tries("bad")
    assert False, "a fault"

async def lost():
    with outcome():
        assert [1, 3] == [1, 2, 3]

def test_lost():
    import asyncio

    async def storm():
        async with asyncio.TaskGroup() as group:
            group.create_task(lost())

    tries("lost")
    asyncio.run(storm())
"""


def run(folder: Path, chosen: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(INI)
    (folder / "test_some.py").write_text(TESTS)
    # The run that this test is of has options that the planted conftest does not know, and a number of its own.
    outer = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", SHARED)}
    variables = {**outer, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **environment}
    command = [sys.executable, "-m", "tests.stage", "test_some.py", "-k", chosen, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n1",)], ids=["one", "workers"])
def test_a_test_that_passes_the_second_time_is_listed_with_its_failure(
    processes: tuple[str, ...], tmp_path: Path
) -> None:
    shared = tmp_path / "unsteady"
    done = run(tmp_path, "good or late", *processes, **{SHARED: str(shared)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stage: failed: test_some.py::test_late" in done.stdout.partition("run again")[0], "at once"
    reported = done.stdout.partition("unsteady tests")[2]
    assert "test_some.py::test_late" in reported
    assert "too late" in reported
    assert "what it printed" in reported
    assert shared.read_text() == "test_some.py::test_late\n"
    shared.write_text("a\n" * UNSTEADY_MAX)
    (tmp_path / "late").unlink()
    assert run(tmp_path, "late", **{SHARED: str(shared)}).returncode == 1, "the stages of a run share the number"


@pytest.mark.slow
def test_a_test_that_fails_again_is_red_and_named_once(tmp_path: Path) -> None:
    done = run(tmp_path, "good or late or bad")
    assert done.returncode == 1
    reported = done.stdout.partition("failed again")[2]
    assert reported.splitlines()[1:] == ["test_some.py::test_bad"]
    assert (tmp_path / "bad").read_text() == "xxx"
    assert (tmp_path / "late").read_text() == "xx"


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n1",)], ids=["one", "workers"])
def test_a_lost_record_is_red_at_once(processes: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, "late or lost", *processes)
    assert done.returncode == 1
    assert "test_some.py::test_lost" in done.stdout.partition("wrong outcomes")[2]
    assert (tmp_path / "lost").read_text() == "x"


def test_files_left_behind_count_as_an_unsteady_test(tmp_path: Path) -> None:
    (tmp_path / "left").touch()
    shared = tmp_path / "unsteady"
    shared.write_text("a\n" * (UNSTEADY_MAX - 1))
    done = run(tmp_path, "good", **{SHARED: str(shared)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert shared.read_text().splitlines()[-1] == LEFT
    assert run(tmp_path, "good", **{SHARED: str(shared)}).returncode == LEFT_BEHIND, "no more than so many"


def test_a_wait_is_no_outcome() -> None:
    with pytest.raises(TimeoutError) as waited, outcome():
        raise TimeoutError
    assert not is_wrong_outcome(waited.value)
    with pytest.raises(WrongOutcome, match="lost"), outcome():
        assert [] == [1], "lost"


# --- ``./run test --changed`` finds the tests that a change can touch, the nearest first


LOG, READ = "storage/log.py", "storage/read.py"
OF_LOG, OF_READ, OF_CLI = "tests/storage/test_log.py", "tests/storage/test_read.py", "tests/weft/test_cli.py"
GRAPH = {LOG: {READ}, READ: {OF_READ, OF_CLI}}


def test_tests_of_the_same_room_come_before_those_behind_imports() -> None:
    far = changed.distances([LOG], GRAPH, [LOG, READ, OF_LOG, OF_READ, OF_CLI])
    assert far == {LOG: 0, READ: 1, OF_LOG: 1, OF_READ: 1, OF_CLI: 2}
    chosen = changed.choose(far, seconds=2 * UNLISTED_S)
    assert (chosen.files, chosen.left_out) == ([OF_LOG, OF_READ], [OF_CLI])


def test_a_changed_test_runs_whatever_it_costs() -> None:
    assert changed.choose({OF_CLI: 0}, seconds=0).files == [OF_CLI]


def test_a_test_that_is_gone_does_not_run() -> None:
    assert changed.distances([OF_READ, OF_CLI], GRAPH, [LOG, READ, OF_CLI]) == {OF_CLI: 0}


def test_the_graph_of_this_project() -> None:
    graph = changed.importers(changed.python_files())
    assert "storage/segment_log/log.py" in graph["storage/segment_log/settings.py"]
    assert "tests/architecture/test_runs.py" in graph["tests/changed.py"]
    assert "tests/architecture/test_runs.py" in graph["tests/architecture/conftest.py"]
    assert "tests/architecture/test_tidy.py" in changed.distances(["docs/durability.md"], {}, changed.python_files())


# --- Slow tests take turns: each in one part of four, and those near a change at once


ROTATION_CONFTEST = """\
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
ROTATION_TESTS = """\
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
    (tmp_path / "conftest.py").write_text(ROTATION_CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p no:schemathesis -p no:anyio\n")
    for name in ("test_a.py", "test_b.py", "test_c.py", "test_d.py"):
        (tmp_path / name).write_text(ROTATION_TESTS)
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


# --- Searches: which seeds a run takes, and how a failure is repeated


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


SEARCHES_CONFTEST = """\
from tests.searches import Searches

def pytest_configure(config):
    config.addinivalue_line("markers", "search: moves")
    config.addinivalue_line("markers", "slow: slow")
    config.pluginmanager.register(Searches())
"""
SEARCHES_TESTS = """\
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


def searches_run(folder: Path, *arguments: str, slice_: str, named: str = "") -> str:
    (folder / "conftest.py").write_text(SEARCHES_CONFTEST)
    (folder / "test_some.py").write_text(SEARCHES_TESTS)
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
    passed, failed = (
        searches_run(tmp_path, "-k", "seeds or other", *processes, slice_=number) for number in ("1", "2")
    )
    assert "slice 1 (WEFT_SLICE=1 repeats it)" in passed
    assert "WEFT_SLICE=1 ./run" not in passed
    assert "seed 1000000028" in failed
    (reported,) = re.findall(r"^WEFT_SLICE=.*$", failed, re.MULTILINE)
    assert shlex.split(reported) == ["WEFT_SLICE=2", "./run", "test", "--all", "test_some.py::test_seeds[a b]"]


@pytest.mark.slow
def test_a_search_is_a_slow_test(tmp_path: Path) -> None:
    found = searches_run(tmp_path, "-m", "slow", "-k", "not turns", "--collect-only", "-q", slice_="1").splitlines()
    assert found[:3] == [
        f"test_some.py::{name}" for name in ("test_seeds[a b]", "test_seeds[c]", "test_property[many]")
    ]
    assert "3/9 tests collected" in found[-1]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-n1"]], ids=["one", "workers"])
def test_searches_take_turns_where_a_folder_is_asked_for(processes: list[str], tmp_path: Path) -> None:
    def made(slice_: str, named: str = "") -> set[str]:
        shown = searches_run(tmp_path, "-rA", "-k", "turns", *processes, slice_=slice_, named=named)
        return set(re.findall(r"^PASSED test_some.py::test_turns\[(\d)\]$", shown, re.MULTILINE))

    first, second = made("1"), made("2")
    assert (len(first), first | second) == (2, {"0", "1", "2", "3"})
    assert made("3") == first
    assert made("night-1") == made("1", named="test_some.py") == first | second


@pytest.mark.slow
def test_examples_of_searches_move_with_the_slice_and_those_of_quick_tests_do_not(tmp_path: Path) -> None:
    def examples(size: str, slice_: str) -> list[str]:
        return re.findall(
            r"number (\d+)$", searches_run(tmp_path, "-s", "-k", f"property and {size}", slice_=slice_), re.MULTILINE
        )

    assert len(examples("many", "5")) == 5
    assert examples("many", "5") == examples("many", "5") != examples("many", "6")
    assert examples("few", "5") == examples("few", "6")


# --- Of two runs that share their work, each test is in the one or the other


SECOND_RUN_CONFTEST = """\
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
SECOND_RUN_TESTS = """\
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
    (tmp_path / "conftest.py").write_text(SECOND_RUN_CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n    java\n")
    (tmp_path / "test_some.py").write_text(SECOND_RUN_TESTS)
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


# --- Each worker imports a part of the tests first; together they import all


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("files", [0, 1, 7, 100])
def test_each_file_is_in_one_part(files: int, count: int) -> None:
    names = [Path(f"test_{number}.py") for number in range(files)]
    parts = [first_imports.part(names, number, count) for number in range(count)]
    assert [name for part in parts for name in part] == names
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_only_a_run_of_all_tests_imports_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(first_imports.TESTS.parent)
    assert first_imports.are_of_all(["tests"])
    assert first_imports.are_of_all([str(first_imports.TESTS)])
    assert not first_imports.are_of_all(["tests/config"])
    assert not first_imports.are_of_all(["tests", "docs"])


def test_a_module_that_cannot_be_imported_is_left_to_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_imports, "TESTS", tmp_path)
    monkeypatch.syspath_prepend(tmp_path.parent)
    (tmp_path / "test_that_is_skipped.py").write_text("import pytest\npytest.skip('', allow_module_level=True)\n")
    (tmp_path / "test_that_is_wrong.py").write_text("1 / 0\n")
    (tmp_path / "test_which_is_good.py").write_text("")
    first_imports.import_part(0, 1)
    assert f"{tmp_path.name}.test_which_is_good" in sys.modules


# --- A run of tests that leaves something behind fails, and says what; the next one clears up


TEMPORARY_FOLDER_CONFTEST = """\
import pytest
from tests import temporary_folder

temporary_folder.LEAVE_S_MAX = 0.2

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.pluginmanager.register(temporary_folder.TemporaryFolder(config))
"""
LEAVES = """\
import subprocess

def test_a_program_leaves_a_file(tmp_path):
    (tmp_path / "mine").touch()
    subprocess.run(["mktemp", "-t", "forgotten.XXXX"], check=True)
"""
FAILS = "def test_fails(tmp_path):\n    (tmp_path / 'evidence').touch()\n    assert False\n"
GOOD = "def test_good(tmp_path):\n    (tmp_path / 'mine').touch()\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The temporary folder of the machine."""
    (tmp_path / "conftest.py").write_text(TEMPORARY_FOLDER_CONFTEST)
    (tmp_path / "pytest.ini").write_text(f"{INI}tmp_path_retention_policy = failed\n")
    (tmp_path / "machine").mkdir()
    return tmp_path / "machine"


def temporary_folder_run(folder: Path, test: str) -> tuple[int, str]:
    (folder.parent / "test_it.py").write_text(test)
    # Without the options of this run, some of which only its own conftest knows.
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q"]
    done = subprocess.run(
        command, cwd=folder.parent, env=environment, check=False, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout


def test_what_is_left_fails_the_run(folder: Path) -> None:
    status, said = temporary_folder_run(folder, LEAVES)
    assert status == LEFT_BEHIND
    assert "1 passed" in said
    assert "left in the temporary folder" in said
    assert "forgotten." in said


@pytest.mark.slow
def test_folders_of_failed_tests_stay_until_the_next_run(folder: Path) -> None:
    status, said = temporary_folder_run(folder, FAILS)
    assert status == 1
    (evidence,) = folder.rglob("evidence")
    (kept,) = folder.iterdir()
    assert f"The folders of failed tests are in {kept} until the next run." in said
    assert evidence.is_relative_to(kept)
    status, said = temporary_folder_run(folder, GOOD)
    assert (status, os.listdir(folder)) == (0, [])


def test_a_good_run_leaves_nothing_and_another_that_goes_on_alone(folder: Path) -> None:
    inner = f"""\
import subprocess, sys, tempfile
from pathlib import Path
from tests.temporary_folder import TemporaryFolder

def test_outer():
    mine = Path(tempfile.gettempdir()).parent
    tempfile.tempdir = {str(folder)!r}
    TemporaryFolder._remove_earlier()
    tempfile.tempdir = None
    assert mine.is_dir()
"""
    status, said = temporary_folder_run(folder, inner)
    assert (status, os.listdir(folder)) == (0, []), said


# --- coverage table


def summary(lines: int, covered: int, branches: int = 0, taken: int = 0) -> dict[str, dict[str, int]]:
    figures = {"num_statements": lines, "covered_lines": covered, "num_branches": branches, "covered_branches": taken}
    return {"summary": figures, "totals": figures}


def test_files_are_summed_by_package_and_room() -> None:
    files = {
        "edge_node/node.py": summary(100, 50),
        "edge_node/servers/clients/broker.py": summary(90, 60, 10, 5),
        "edge_node/sessions/journal.py": summary(100, 100),
        "config/load.py": summary(0, 0),
    }
    console = Console(width=60, file=io.StringIO(), record=True)
    console.print(table({"files": files, "totals": summary(290, 210, 10, 5)["totals"]}))
    rows = [line.replace("│", "").split() for line in console.export_text().splitlines() if "%" in line]
    assert rows == [
        ["config", "0", "0", "100.0%"],
        ["edge_node", "290", "10", "71.7%"],
        ["servers", "90", "10", "65.0%"],
        ["sessions", "100", "0", "100.0%"],
        ["all", "290", "10", "71.7%"],
    ]


# --- A forked process is like one that an interpreter of its own runs, in all that commands and their tests depend on


COMMAND = [sys.executable, "-m", process_facts.__name__]
NOBODY = 65_534
KINDS = (subprocess.Popen, forked.Popen)


def said(popen: type[subprocess.Popen[Any]], *arguments: str, **options: Any) -> tuple[int, str, str, str]:
    """Status, facts, the rest of the output, and errors."""
    with popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        out, errors = process.communicate("given", timeout=60)
    facts, _, rest = out.partition("\n")
    return process.returncode, facts, rest, errors


@pytest.fixture
def forks() -> None:
    """Without this, two interpreters might be compared."""
    reports: list[int] = []
    forked.listeners.append(lambda pid, _: reports.append(pid))
    try:
        process = forked.Popen([*COMMAND, "status"], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        assert process.wait(60) == 7
    finally:
        forked.listeners.pop()
    assert reports == [process.pid]


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    "options",
    [{}, {"start_new_session": True}, {"umask": 0o077}, {"env": {"TZ": "Asia/Tokyo", "WHERE": "here"}}],
    ids=str,
)
def test_it_begins_alike(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_BY_A_TEST", "späť")
    monkeypatch.chdir(forked.ROOT)
    # A node that ran in this process before has it ignored, and only one of the kinds would inherit that.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    options = options | {"env": os.environ | options.get("env", {})}  # without what C has put into the environment
    try:
        one, other = (json.loads(said(popen, "status", **options)[1]) for popen in KINDS)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert {name: (one[name], other[name]) for name in one if one[name] != other[name]} == {}
    assert one["parent"] == os.getpid()
    assert one["input"] == "given"


@pytest.mark.usefixtures("forks")
def test_it_begins_alike_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft", "config", "schema", "edge"]
    one, other = (
        popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True).communicate(timeout=60)[0] for popen in KINDS
    )
    assert one == other
    (tmp_path / "here.py").write_text("import sys; print(sys.path[0], __file__)")
    command = [sys.executable, "-m", "here"]
    one, other = (
        popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True).communicate(timeout=60)[0] for popen in KINDS
    )
    assert one == other == f"{tmp_path} {tmp_path}/here.py\n"


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("end", ["none", "status", "words", "exception", "interrupt", "signal", "thread"])
def test_it_ends_alike(end: str) -> None:
    (status, _, rest, errors), (other_status, _, other_rest, other_errors) = (said(popen, end) for popen in KINDS)
    assert (other_status, other_rest) == (status, rest)
    assert other_errors.splitlines()[-1:] == errors.splitlines()[-1:]


@pytest.mark.usefixtures("forks")
def test_its_death_is_seen_at_once() -> None:
    process = forked.Popen([*COMMAND, "none"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)
    process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.usefixtures("forks")
def test_orphans_are_not_adopted_after_a_fork() -> None:
    with forked.Popen([*COMMAND, "none"], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL):
        pass
    with subprocess.Popen(["sh", "-c", "sleep 100 & echo $!"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        orphan = psutil.Process(int(shell.stdout.readline()))
        shell.wait()
        try:
            assert orphan.ppid() != os.getpid()
        finally:
            orphan.kill()


@pytest.mark.usefixtures("forks")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_it_becomes_another_user(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft", "user", "list", "--file", str(tmp_path / "users")]
    (tmp_path / "users").touch(0o600)
    assert forked.run(command, timeout=60).returncode == 0
    done = forked.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "user nobody may not use it" in done.stderr


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("options", [{"env": {}}, {"pass_fds": [0]}, {"process_group": 0}], ids=str)
def test_an_interpreter_is_started_for_what_a_fork_cannot_have(options: dict[str, Any]) -> None:
    forked.listeners.append(lambda *_: pytest.fail("it was forked"))
    try:
        if "env" in options:
            options = options | {"env": os.environ | {"PYTHONPATH": "elsewhere"}}
        assert said(forked.Popen, "status", **options)[0] == 7
    finally:
        forked.listeners.pop()
