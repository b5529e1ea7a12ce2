"""A real line of 64 KiB/s with 200 ms and 2 % loss: new messages pass the history, and nothing is lost or doubled."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.link.bad_line import LIVE_RATE, ROOM, measure
from tests.support.outcomes import outcome

SECONDS, DEAD_S = 30, 60
pytestmark = [pytest.mark.processes, pytest.mark.search(turns=4), pytest.mark.timeout(590)]


def run(folder: Path, order: str, seconds: int, *options: str) -> dict[str, Any]:
    command = [*ROOM, "ip", "tuntap", "add", "probe", "mode", "tun"]
    if shutil.which("ip") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs iproute2, user and network namespaces, and /dev/net/tun")
    (found,) = measure(folder, [order], "--seconds", str(seconds), *options)
    print(found)
    with outcome():
        assert not found["doubled"]
        assert found["live"] == seconds * LIVE_RATE
    return found


@pytest.mark.skipif(os.cpu_count() == 1, reason="all ends share one core")
def test_new_messages_pass_the_history(tmp_path: Path) -> None:
    found = run(tmp_path, "fresh_first", SECONDS)
    assert found["history_s"] > SECONDS * 0.8, "history was gone before the measure was over"
    assert found["live_ms"]["p99"] < found["history_s"] * 1000 / 4, "behind history they come with its end"


@pytest.mark.parametrize("dead", ["up", "down"])
def test_a_line_that_is_dead_in_one_direction_loses_and_doubles_nothing(tmp_path: Path, dead: str) -> None:
    run(tmp_path, "fresh_first", SECONDS, "--dead", dead, "--dead-seconds", str(DEAD_S))
