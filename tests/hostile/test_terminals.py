"""What a device sends is shown on a terminal, never obeyed by it."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.edge_node.inspect.view.logs import append, open_log
from tests.support import forked
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.processes
PAYLOAD = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e{}"
"""Changes the window's title, clears the screen, changes the colour (in one byte), and writes from right to left."""
TOPIC = "plant/\x9b31m/m1/telemetry"
QUERY = "SELECT key, payload FROM telemetry"
COMMANDS = {
    "tail": ("edge", "tail", "<data>"),
    "tail as JSON": ("edge", "tail", "<data>", "--json"),
    "query": ("edge", "query", "<data>", QUERY),
    "query as CSV": ("edge", "query", "<data>", QUERY, "--csv"),
    "query as JSON": ("edge", "query", "<data>", QUERY, "--json"),
    "dump": ("log", "dump", "<data>", "--records"),
    "dump as JSON": ("log", "dump", "<data>", "--records", "--json"),
}


def run(arguments: Sequence[str], *, on_terminal: bool) -> str:
    """What a command prints on standard output."""
    command = [sys.executable, "-m", "weft", *arguments]
    if not on_terminal:
        return str(forked.run(command, capture_output=True, check=True, timeout=PATIENCE_S).stdout, "utf-8")
    control, terminal = os.openpty()
    process = forked.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL)
    os.close(terminal)
    printed = b""
    try:
        while more := os.read(control, 65_536):
            printed += more
    except OSError:  # the command has ended
        pass
    finally:
        os.close(control)
    assert process.wait(PATIENCE_S) == 0
    return printed.decode()


def test_control_characters_of_devices_reach_programs_and_no_terminal(tmp_path: Path) -> None:
    with contextlib.closing(open_log(tmp_path)) as log:
        append(log, PAYLOAD.encode(), key=TOPIC.encode(), headers={0: ((TOPIC, PAYLOAD),)})
    for name, command in COMMANDS.items():
        shown = run([str(tmp_path) if each == "<data>" else each for each in command], on_terminal=True)
        strange = {c for c in shown if not c.isprintable()} - {"\r", "\n", "\t"}
        assert not strange, f"{name}: {strange}"
        assert "\r" not in shown.replace("\r\n", ""), name  # the terminal's own line ends
    for on_terminal in (True, False):
        line = run(["edge", "query", str(tmp_path), QUERY, "--json"], on_terminal=on_terminal)
        assert json.loads(line) == {"key": TOPIC, "payload": PAYLOAD}, "escaped in JSON it is the same document"
    piped = run(["edge", "query", str(tmp_path), QUERY, "--csv"], on_terminal=False)
    assert list(csv.reader(io.StringIO(piped, newline="")))[1] == [TOPIC, PAYLOAD]
