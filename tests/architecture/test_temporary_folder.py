"""A run of tests that leaves something behind fails, and says what; the next one clears up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.temporary_folder import LEFT_BEHIND

ROOT = Path(__file__).parents[2]
CONFTEST = """\
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
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntmp_path_retention_policy = failed\n")
    (tmp_path / "machine").mkdir()
    return tmp_path / "machine"


def run(folder: Path, test: str) -> tuple[int, str]:
    (folder.parent / "test_it.py").write_text(test)
    # Without the options of this run, some of which only its own conftest knows.
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=folder.parent, env=environment, check=False, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout


def test_what_is_left_fails_the_run(folder: Path) -> None:
    status, said = run(folder, LEAVES)
    assert status == LEFT_BEHIND
    assert "1 passed" in said
    assert "left in the temporary folder" in said
    assert "forgotten." in said


@pytest.mark.slow
def test_folders_of_failed_tests_stay_until_the_next_run(folder: Path) -> None:
    status, said = run(folder, FAILS)
    assert status == 1
    (evidence,) = folder.rglob("evidence")
    (kept,) = folder.iterdir()
    assert f"The folders of failed tests are in {kept} until the next run." in said
    assert evidence.is_relative_to(kept)
    status, said = run(folder, GOOD)
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
    status, said = run(folder, inner)
    assert (status, os.listdir(folder)) == (0, []), said
