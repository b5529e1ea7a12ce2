"""A backup of a busy hub is killed again and again; then the store is lost, and all that the edge holds comes again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import Start, publish, weft
from tests.support.waiting import wait_until
from tests.weft.test_edge_log import IMPORT_TOPIC as TOPIC
from tests.weft.test_edge_log import Fabric

pytestmark = [pytest.mark.processes, pytest.mark.slow]

KILLS = 6


def killed(config: Path, place: Path, after_lines: int) -> None:
    """Run a backup until it has printed some lines, and kill it."""
    command = [sys.executable, "-m", "weft", "hub", "backup", str(config), "--to", str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=config.parent) as running:
        assert running.stdout is not None
        for _ in range(after_lines):
            running.stdout.readline()
        running.kill()


def test_backups_that_are_killed_go_on_and_a_restored_hub_has_what_the_edge_holds(tmp_path: Path, start: Start) -> None:
    fabric, place = Fabric(tmp_path, start), tmp_path / "backup"
    hub, edge = fabric.hub(), fabric.edge()
    sent, ended = [0], threading.Event()

    def load() -> None:
        while not ended.is_set():
            publish(edge.mqtt_port, TOPIC, [f"message {sent[0] + at} {'x' * 1000}" for at in range(100)])
            sent[0] += 100

    def has_sent(more: int) -> Callable[[], bool]:
        wanted = sent[0] + more
        return lambda: sent[0] >= wanted

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    config = tmp_path / "hub.yaml"
    for number in range(KILLS):
        killed(config, place, number % 3)
        wait_until(has_sent(200))
    assert weft("hub", "backup", config, "--to", place).exit_code == 0
    wait_until(has_sent(500))
    ended.set()
    thread.join()
    hub.kill()
    shutil.rmtree(fabric.store)
    assert weft("hub", "verify", "--store", place).exit_code == 0
    assert weft("hub", "restore", "--from", place, "--to", fabric.store).exit_code == 0
    lanes = json.loads(weft("hub", "verify", "--store", fabric.store, "--json").stdout)["lanes"]
    assert 0 < sum(lane["next_seq"] for lane in lanes) < sent[0]
    fabric.hub()

    def is_whole() -> bool:
        report = json.loads(weft("audit", "telemetry", "--store", fabric.store, "--json").stdout)
        assert report["problems"] == []
        return bool([lane["table_records"] for lane in report["lanes"]] == [sent[0]])

    wait_until(is_whole)
    assert weft("hub", "verify", "--store", fabric.store).exit_code == 0
