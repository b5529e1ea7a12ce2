"""A night that is stopped goes on where it was, and each failure is reported with the command that reproduces it."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from tests.nightly import __main__ as nightly
from tests.nightly import jobs
from tests.nightly.jobs import JOBS, Failure, Job, Outcome, run_slice
from tests.nightly.state import Night, State

ROOT = Path(__file__).parents[2]
SIMULATION = {"simulation": JOBS["simulation"]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nightly.json"


def test_a_slice_that_was_cut_short_is_made_again(file: Path) -> None:
    night = Night(file, SIMULATION)
    night.note(night.next(10), Outcome(10, []), 1.0)
    lost = night.next(10)
    after = Night(file, SIMULATION)
    assert after.next(10) == lost
    after.note(lost, Outcome(10, []), 1.0)
    assert (after.row("simulation").seeds, after.next(10).first) == (20, 21)


def test_a_job_gets_its_share_of_the_time(file: Path) -> None:
    night = Night(file, {name: JOBS[name] for name in ("power_cuts", "simulation")})
    for _ in range(50):
        night.note(night.next(10), Outcome(1, []), 1.0)
    share = JOBS["power_cuts"].share
    assert night.row("power_cuts").seconds / night.row("simulation").seconds == pytest.approx(share, rel=0.1)


def test_the_next_night_takes_other_seeds(file: Path) -> None:
    night = Night(file, SIMULATION)
    night.note(night.next(10), Outcome(10, []), 1.0)
    night.close()
    night = Night(file, SIMULATION)
    assert night.state.rows == {}
    assert night.next(10).first == 11


def fail(seed: int) -> int:
    if seed == 3:
        raise AssertionError("record 7 is gone")
    return 1


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Job]:
    made = {"failing": Job("tries", fail, "python -m again {seed}", slice_seeds=10)}
    monkeypatch.setattr(jobs, "JOBS", made)
    monkeypatch.setattr(nightly, "JOBS", made)
    return made


def test_a_failing_seed_does_not_end_its_slice(failing: Mapping[str, Job]) -> None:
    failure = Failure(3, "AssertionError: record 7 is gone", "python -m again 3")
    assert run_slice("failing", 1, 6) == Outcome(4, [failure])


def test_a_failure_is_told_and_makes_exit_status_1(
    failing: Mapping[str, Job], file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    night = Night(file, failing)
    night.note(night.next(5), run_slice("failing", 1, 6), 1.0)
    given = argparse.Namespace(
        state=file, results=tmp_path, jobs=["failing"], hours=0.0, processes=1, slice_seeds=None
    )  # fmt: skip
    assert nightly.spend(given) == 1
    printed = capsys.readouterr().out
    assert "failing, seed 3 FAILED" in printed
    assert "python -m again 3" in printed.splitlines()[-1]
    (results,) = tmp_path.glob("nightly-????-??-??.json")
    assert json.loads(results.read_text())["results"]["jobs"]["failing"]["failures"][0]["seed"] == 3


@pytest.mark.parametrize("stop", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_night_that_is_stopped_leaves_no_seed_out(stop: signal.Signals, file: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "tests.nightly", "--jobs", "simulation", "--slice-seeds", "1", "--processes", "1",
        "--state", str(file), "--results", str(tmp_path),
    ]  # fmt: skip
    with subprocess.Popen([*command, "--hours", "1"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(3)]
        process.send_signal(stop)
        process.stdout.read()
        assert process.wait(60) == (130 if stop == signal.SIGINT else -stop)
    assert [line.partition(",")[0] for line in told] == [f"simulation: seeds {n} to {n}" for n in (1, 2, 3)]
    stopped = msgspec.json.decode(file.read_bytes(), type=State)
    done = stopped.rows["simulation"].seeds
    # A kill may also come between two slices.
    assert [(each.first, each.end) for each in stopped.open] in ([], [(done + 1, done + 2)])
    # No time is left: what was open is made once more with the next hours, so a little is added.
    hours = stopped.seconds / 3600 + 0.0001
    again = subprocess.run(
        [*command, "--hours", str(hours)], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    assert again.stdout.splitlines()[1].startswith(f"simulation: seeds {done + 1} to {done + 1}, 1 histories")
    state = msgspec.json.decode(file.read_bytes(), type=State)
    (results,) = tmp_path.glob("nightly-????-??-??.json")
    figures = json.loads(results.read_text())["results"]["jobs"]["simulation"]
    assert state.open == []
    assert figures["seeds"] == figures["done"] == figures["next_seed"] - 1 == state.next_seeds["simulation"] - 1


@pytest.mark.parametrize("name", ["simulation", "mqtt_codec"])
def test_a_seed_can_be_repeated(name: str) -> None:
    command = shlex.split(JOBS[name].repeat.format(seed=2))
    assert command[0] == ".venv/bin/python"
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.stdout.endswith(f"{JOBS[name].unit}: every promise was kept\n")
