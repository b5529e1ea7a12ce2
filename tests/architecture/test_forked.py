"""A forked process is like one that an interpreter of its own runs, in all that commands and their tests depend on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import forked, process_facts
from tests.support.waiting import PATIENCE_S

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


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize(
    "options",
    [{}, {"start_new_session": True}, {"umask": 0o077}, {"env": {"TZ": "Asia/Tokyo", "WHERE": "here"}}],
    ids=str,
)
def test_it_begins_alike(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_BY_A_TEST", "späť")
    monkeypatch.chdir(forked.ROOT)
    options = options | {"env": os.environ | options.get("env", {})}  # without what C has put into the environment
    one, other = (json.loads(said(popen, "status", **options)[1]) for popen in KINDS)
    assert {name: (one[name], other[name]) for name in one if one[name] != other[name]} == {}
    assert one["parent"] == os.getpid()
    assert one["input"] == "given"


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


@pytest.mark.parametrize("end", ["none", "status", "words", "exception", "interrupt", "signal", "thread"])
def test_it_ends_alike(end: str) -> None:
    (status, _, rest, errors), (other_status, _, other_rest, other_errors) = (said(popen, end) for popen in KINDS)
    assert (other_status, other_rest) == (status, rest)
    assert other_errors.splitlines()[-1:] == errors.splitlines()[-1:]


def test_its_death_is_seen_at_once() -> None:
    process = forked.Popen([*COMMAND, "none"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)
    process.stdin.close()  # type: ignore[union-attr]


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


@pytest.mark.parametrize("options", [{"env": {}}, {"pass_fds": [0]}, {"process_group": 0}], ids=str)
def test_an_interpreter_is_started_for_what_a_fork_cannot_have(options: dict[str, Any]) -> None:
    forked.listeners.append(lambda *_: pytest.fail("it was forked"))
    try:
        if "env" in options:
            options = options | {"env": os.environ | {"PYTHONPATH": "elsewhere"}}
        assert said(forked.Popen, "status", **options)[0] == 7
    finally:
        forked.listeners.pop()
