"""A run says what its tests took and why, and fails when that is more than its budget."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.costs import known
from tests.costs.causes import cause_of
from tests.costs.figures import Cost, Costs
from tests.costs.speed import REFERENCE_S, sample_s

ROOT = Path(__file__).parents[2]
CONFTEST = """\
from tests.costs.meter import Meter

def pytest_addoption(parser):
    parser.addoption("--costs-to")
    parser.addoption("--costs-before")
    parser.addoption("--budget", type=float)

def pytest_configure(config):
    config.pluginmanager.register(Meter(config))
"""
TESTS = """\
import subprocess, sys, time

def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_that_computes():
    spend(0.2)

def test_that_starts_an_interpreter():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.2: pass"], check=True)

def test_that_sleeps():
    time.sleep(0.3)
"""


def run(folder: Path, *arguments: str, tests: str = TESTS) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "processes",
    [pytest.param([], marks=pytest.mark.slow), ["--numprocesses=1", "--dist=loadfile"]],
    ids=["one", "workers"],
)
def test_costs_are_charged_to_files_and_causes(processes: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, "--costs-to=costs.json", *processes)
    assert done.returncode == 0, done.stdout + done.stderr
    costs = msgspec.json.decode((tmp_path / "costs.json").read_bytes(), type=Costs)
    (cost,) = costs.files.values()
    assert cost.tests == 3
    assert 0.2 <= cost.own_s < 5
    assert 0.2 <= cost.others_s["interpreters"] < 5
    assert cost.started == {"interpreters": 1}
    assert 0.3 <= cost.sleeps_s < 5
    assert cost.waits_s > 0.2  # less what the test computed around it
    assert costs.processor_s > 0


ORPHANS = """\
import subprocess, sys, time

SPEND = "import time\\nwhile time.process_time() < 0.2: pass"
BETWEEN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPEND!r}])"

def test_that_leaves_a_process_behind():
    subprocess.run([sys.executable, "-c", BETWEEN], check=True, stdout=subprocess.PIPE)

def test_that_comes_after_it():
    time.sleep(1)
"""


@pytest.mark.slow
def test_what_no_test_waited_for_counts(tmp_path: Path) -> None:
    done = run(tmp_path, "--costs-to=costs.json", "--numprocesses=1", "--dist=loadfile", tests=ORPHANS)
    assert done.returncode == 0, done.stdout + done.stderr
    costs = msgspec.json.decode((tmp_path / "costs.json").read_bytes(), type=Costs)
    (cost,) = costs.files.values()
    assert 0.2 <= cost.others_s["interpreters"] + costs.orphans_s < 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "status"), [(["--costs-to=costs.json"], pytest.ExitCode.TESTS_FAILED), ([], pytest.ExitCode.OK)]
)
def test_a_run_over_its_budget_names_what_grew_and_fails_in_ci(
    tmp_path: Path, more: list[str], status: pytest.ExitCode
) -> None:
    done = run(tmp_path, "--budget=0.1", *more)
    assert done.returncode == status
    assert "3 passed" in done.stdout
    assert "of 0 s that they may take" in done.stdout


def test_a_file_whose_turn_it_was_not_keeps_what_was_known_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("made.py", "waits.py", "gone.py")
    monkeypatch.setattr(known, "known", lambda: {name: known.Known(slow_s=9, slow_waits_s=3) for name in names})
    monkeypatch.setattr(known, "ROOT", tmp_path)
    monkeypatch.setattr(known, "FILE", tmp_path / "known.json")
    for name in names[:2]:
        (tmp_path / name).touch()
    known.keep(Costs(), Costs(files={"made.py": Cost(wall_s=5, own_s=4)}))
    found = msgspec.json.decode(known.FILE.read_bytes(), type=dict[str, known.Known])
    made, waits = known.Known(slow_s=4, slow_waits_s=1), known.Known(slow_s=9, slow_waits_s=3)
    assert found == {"made.py": made, "waits.py": waits}


def test_the_files_that_grew_are_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "known", lambda: {"a.py": known.Known(quick_s=1), "b.py": known.Known(quick_s=9)})
    costs = Costs(files={"a.py": Cost(own_s=4), "b.py": Cost(own_s=10), "new.py": Cost(own_s=9)})
    assert known.grown(costs, slow=False) == [
        "new.py: 9.0 s of processor time, 0.0 s before",
        "a.py: 4.0 s of processor time, 1.0 s before",
    ]


def test_figures_are_kept_at_the_speed_of_the_machine_of_the_budgets() -> None:
    costs = Costs(files={"a.py": Cost(wall_s=10, own_s=6)}, samples=2, samples_s=2 * 2 * REFERENCE_S)
    assert costs.slowness == pytest.approx(2)
    assert costs.of("a.py") == (3, 4)


@pytest.mark.parametrize("collects", [True, False])
def test_a_sample_is_small_and_leaves_the_garbage_collector_as_it_was(collects: bool) -> None:
    was_on = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        assert 0 < min(sample_s() for _ in range(5)) < 20 * REFERENCE_S
        assert gc.isenabled() is collects
    finally:
        (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (["/x/.venv/bin/python", "-m", "weft", "edge", "run", "edge.yaml"], "nodes and hubs"),
        (["/x/.venv/bin/weft", "hub", "run", "hub.yaml"], "nodes and hubs"),
        (["python3", "-m", "weft", "edge", "status"], "commands"),
        (["python3", "-c", "print()"], "interpreters"),
        (["/usr/lib/jvm/java-17/bin/java", "-cp", "x"], "Spark"),
        (["mosquitto", "-c", "x"], "servers of others"),
        (["sleep", "1"], "other processes"),
        ([], "other processes"),
    ],
)
def test_causes(command: list[str], cause: str) -> None:
    assert cause_of(command) == cause
