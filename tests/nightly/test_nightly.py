"""A night that is stopped continues where it was, and each failure is reported with the command that reproduces it."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.nightly import __main__ as nightly
from tests.nightly.jobs import REPORT_CHARACTERS, CannotRun, Failure, Job, Made, Outcome, report, run_slice, skipped
from tests.nightly.state import Night, Row, State, reached
from tests.nightly.state import Slice as Seeds
from tests.nightly.timetable import JOBS
from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
SIMULATION = {"simulation": JOBS["simulation"]}
HOUR_S = 3600.0


def begin(night: Night, seconds_left: float = HOUR_S) -> Seeds:
    begun = night.next(seconds_left, 10)
    assert begun is not None
    return begun


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "nightly.json"


def test_a_slice_that_was_cut_short_is_made_again(file: Path) -> None:
    night = Night(file, SIMULATION)
    night.note(begin(night), Outcome(10, []), 1.0)
    lost = begin(night)
    after = Night(file, SIMULATION)
    assert begin(after) == lost
    after.note(lost, Outcome(10, []), 1.0)
    assert (after.row("simulation").seeds, begin(after).first) == (20, 21)


def test_a_job_gets_its_minutes(file: Path) -> None:
    chosen = {name: JOBS[name] for name in ("power_cuts", "upgrade")}
    night = Night(file, chosen)
    for _ in range(50):
        night.note(begin(night), Outcome(1, []), 1.0)
    share = JOBS["power_cuts"].minutes / JOBS["upgrade"].minutes
    assert night.row("power_cuts").seconds / night.row("upgrade").seconds == pytest.approx(share, rel=0.1)


def test_a_slice_that_would_last_longer_than_the_night_is_not_begun(file: Path) -> None:
    night = Night(file, {name: JOBS[name] for name in ("spark_storms", "simulation")})
    assert {begin(night, 120).job for _ in range(3)} == {"simulation"}
    assert night.next(0.5, 10) is None


def test_a_job_that_cannot_run_here_leaves_its_time_to_the_others(file: Path) -> None:
    night = Night(file, {name: JOBS[name] for name in ("storms", "simulation")})
    for _ in range(4):
        begun = begin(night, 10 * HOUR_S)
        night.note(begun, Outcome(0, [], ["no Go"]) if begun.job == "storms" else Outcome(10, []), 1.0)
    assert (night.row("storms").seeds, night.row("simulation").seeds) == (10, 30)


def test_the_next_night_takes_other_seeds(file: Path) -> None:
    night = Night(file, SIMULATION)
    night.note(begin(night), Outcome(10, []), 1.0)
    night.close()
    night = Night(file, SIMULATION)
    assert night.state.rows == {}
    assert begin(night).first == 11


def fail(seed: int) -> Made:
    if seed == 3:
        raise AssertionError("record 7 is gone")
    return Made(1)


def job_of(run: Callable[[int], Made]) -> Job:
    """Return a job of ten tries a minute."""
    return Job("tries", 60, run, "python -m again {seed}", (), slice_seeds=10, slice_units=10, slice_s=60.0)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Job]:
    made = {"failing": job_of(fail)}
    monkeypatch.setattr(nightly, "JOBS", made)
    return made


def test_a_failing_seed_does_not_end_its_slice(failing: Mapping[str, Job]) -> None:
    failure = Failure(3, "AssertionError: record 7 is gone", "python -m again 3")
    assert run_slice(failing["failing"], 1, 6) == Outcome(4, [failure])


def test_a_failure_is_told_and_makes_exit_status_1(
    failing: Mapping[str, Job], file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    night = Night(file, failing)
    night.note(begin(night), run_slice(failing["failing"], 1, 6), 1.0)
    given = argparse.Namespace(
        state=file, results=tmp_path, jobs=["failing"], hours=0.0, processes=1, slice_seeds=None, plan=False
    )
    assert nightly.spend(given) == 1
    printed = capsys.readouterr().out
    assert "failing, seed 3 FAILED" in printed
    assert "python -m again 3" in printed.splitlines()[-1]
    (results,) = tmp_path.glob("nightly-????-??-??.json")
    assert json.loads(results.read_text())["results"]["jobs"]["failing"]["failures"][0]["seed"] == 3


def test_a_night_says_what_it_reached_of_its_plan_and_why_not_more() -> None:
    names = ("whole", "late", "slow", "strange", "failed")
    rows = {
        "whole": Row(seeds=30, done=120, seconds=720.0),
        "late": Row(seeds=10, done=10, seconds=60.0),
        "slow": Row(seeds=20, done=20, seconds=720.0),
        "strange": Row(seeds=10, left_out=["no Go"]),
        "failed": Row(seeds=120, done=100, seconds=720.0, failures=[Failure(3, "", "")]),
    }
    made = reached(rows, {}, dict.fromkeys(names, job_of(fail)), hours=1.0, processes=1)
    assert {name: (each.reached, each.plan, each.minutes_planned) for name, each in made.items()} == {
        "whole": (120, 120, 12.0),
        "late": (10, 120, 12.0),
        "slow": (20, 120, 12.0),
        "strange": (0, 120, 12.0),
        "failed": (100, 120, 12.0),
    }
    assert {name: each.not_reached for name, each in made.items()} == {
        "whole": "",
        "late": "no time: 1.0 of 12.0 minutes",
        "slow": "slower than planned: 0.0278 instead of 0.167 a second",
        "strange": "cannot run here: no Go",
        "failed": "seeds failed",
    }
    assert made["whole"].rate == 0.167


def test_the_reason_of_a_failure_is_kept_whatever_libraries_write_behind_it() -> None:
    output = "\n".join(
        [
            "E       AssertionError: 3 records are lost",
            "FAILED tests/x.py::test_y - AssertionError: 3 records are lost",
            "1 failed, 7 passed in 3.21s",
            *(f' - leaked function "f{number}"' for number in range(500)),
        ]
    )
    reported = report(output)
    assert "E       AssertionError: 3 records are lost" in reported
    assert "FAILED tests/x.py::test_y" in reported
    assert len(reported) <= REPORT_CHARACTERS + 10


def test_what_this_machine_lacks_is_told() -> None:
    some = "..s\nSKIPPED [1] tests/a/test_b.py:33: minio is not installed\n3 passed, 1 skipped in 2.00s\n"
    assert skipped(some) == ("minio is not installed",)
    with pytest.raises(CannotRun, match="no Go"):
        skipped("s\nSKIPPED [2] tests/a/test_b.py:33: no Go\n2 skipped, 4 deselected in 2.00s\n")

    def lacks(seed: int) -> Made:
        raise CannotRun("no Go")

    assert run_slice(job_of(lacks), 1, 5) == Outcome(0, [], ["no Go"])


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_night_that_is_stopped_leaves_no_seed_out(stop: signal.Signals, file: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.nightly",
        "--jobs",
        "simulation",
        "--slice-seeds",
        "1",
        "--processes",
        "1",
        "--state",
        str(file),
        "--results",
        str(tmp_path),
    ]
    with subprocess.Popen([*command, "--hours", "1"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(stop)
        process.stdout.read()
        assert process.wait(PATIENCE_S) == (130 if stop == signal.SIGINT else -stop)
    assert [line.partition(",")[0] for line in lines] == [f"simulation: seeds {n} to {n}" for n in (1, 2, 3)]
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
    assert figures["seeds"] == figures["reached"] == figures["next_seed"] - 1 == state.next_seeds["simulation"] - 1


def test_nodes_that_a_slice_has_started_end_with_it() -> None:
    """They have sessions of their own, so that a kill of the slice's would leave them."""
    script = "import subprocess, sys; subprocess.run([*sys.argv[1:], 'sleep', '100'], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", script, "setsid", "--wait"]) as child:
        parent = psutil.Process(child.pid)
        wait_until(lambda: any(each.name() == "sleep" for each in parent.children(recursive=True)))
        family = parent.children(recursive=True)
        nightly.end_family(child.pid)
    psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("name", ["simulation", "mqtt_codec"])
def test_a_seed_can_be_repeated(name: str) -> None:
    command = shlex.split(JOBS[name].repeat.format(seed=2))
    assert command[0] == ".venv/bin/python"
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.endswith(f"{JOBS[name].unit}: every promise was kept\n")
