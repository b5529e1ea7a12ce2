"""A failed test is run again by itself, and a wrong outcome is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stage import LEFT, SHARED, UNSTEADY_MAX
from tests.support.outcomes import WrongOutcome, is_wrong_outcome, outcome
from tests.temporary_folder import LEFT_BEHIND

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
