"""Signals to real nodes: SIGHUP never ends one, whenever it comes, and says what it did not apply."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import STOP_S_MAX, Log, Start, weft
from tests.support.waiting import Patience, wait_until

pytestmark = pytest.mark.processes

EDGE = """\
node: press-shop-7
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
auth: {users_file: users}
http: {bind: "127.0.0.1:0"}
disk: {budget: 64MiB}
streams: {telemetry: {from: "plant/#"}}
"""
HUB = "listen: 127.0.0.1:0\nstore: store\nshards: 1\ntables: null\n"
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [\w.]+: .+")


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "password").write_text("secret")
    assert weft("user", "add", "a", "--file", tmp_path / "users", "--password-file", tmp_path / "password")
    found = {"edge": tmp_path / "edge.yaml", "hub": tmp_path / "hub.yaml"}
    found["edge"].write_text(EDGE)
    found["hub"].write_text(HUB)
    return found


def hang_up(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGHUP)


@contextlib.contextmanager
def starting(kind: str, config: Path, log: Log) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "weft", kind, "run", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log.file, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(STOP_S_MAX)


def handles(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal (proc(5): SigCgt)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (number - 1))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs proc(5)")
@pytest.mark.parametrize("kind", ["edge", "hub"])
def test_a_hang_up_while_a_node_starts_ends_nothing_and_is_not_forgotten(
    kind: str, configs: dict[str, Path], log: Log
) -> None:
    with starting(kind, configs[kind], log) as process:
        wait_until(lambda: handles(process, signal.SIGHUP))
        hang_up(process)
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        wait_until(lambda: log.has("SIGHUP: "))
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S_MAX) == 0
    assert log.has("SIGTERM: stopping")


@pytest.mark.parametrize("kind", ["edge", "hub"])
def test_a_hang_up_while_a_node_stops_is_no_crash(configs: dict[str, Path], start: Start, kind: str) -> None:
    process = start(kind, configs[kind]).process
    process.terminate()
    patience = Patience()
    while process.poll() is None and not patience.is_over():
        hang_up(process)
    assert process.wait(STOP_S_MAX) == 0


def test_an_edge_says_what_it_read_again_and_which_settings_need_a_restart(
    start: Start, configs: dict[str, Path], log: Log
) -> None:
    edge = start("edge", configs["edge"])
    hang_up(edge.process)
    wait_until(lambda: log.has("SIGHUP: reading again: users"))
    wait_until(lambda: log.has(f"no setting in {configs['edge']} has changed"))
    configs["edge"].write_text(EDGE.replace("64MiB", "128MiB").replace("streams: {", "streams: {other: {from: x}, "))
    hang_up(edge.process)
    wait_until(lambda: log.has("have changed and need a restart: disk.budget"))
    assert log.has("configuration 2 ")
    assert log.has(": streams.other (new)")
    configs["edge"].write_text(EDGE.replace("64MiB", "as much as there is"))
    hang_up(edge.process)
    wait_until(lambda: log.has("is not valid, and the node could not start with it"))
    assert edge.json("status")["disk"]["budget_bytes"] == 64 << 20
    assert edge.stop() == 0


def test_a_hub_says_which_settings_need_a_restart(start: Start, configs: dict[str, Path], log: Log) -> None:
    hub = start("hub", configs["hub"])
    hang_up(hub.process)
    wait_until(lambda: log.has("SIGHUP: no certificate is set"))
    configs["hub"].write_text(HUB.replace("shards: 1", "shards: 2"))
    hang_up(hub.process)
    wait_until(lambda: log.has("have changed and need a restart: shards"))
    assert hub.stop() == 0


def test_every_line_has_its_time_also_under_systemd(
    start: Start, configs: dict[str, Path], log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1234567")
    for kind in ("edge", "hub"):
        node = start(kind, configs[kind])
        hang_up(node.process)
    wait_until(lambda: log.has("edge.yaml has changed") and log.has("hub.yaml has changed"))
    assert [line for line in log.text.splitlines() if not LINE.fullmatch(line)] == []
