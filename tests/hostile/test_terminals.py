"""What a device sends is shown on a terminal, never obeyed by it."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.edge_node.inspect.logs import append, open_log
from tests.support import forked
from tests.support.waiting import PATIENCE_S, Patience, wait_until
from weft.output import FAILURE_EXIT_CODE, STOPPED_EXIT_CODE

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


# --- A query ends when its time is over, or the person who asked wants it to, also inside one function of SQLite


SEARCH = "SELECT instr(printf('%.*c', 30000000, 'a'), printf('%.*c', 15000000, 'a') || 'b')"
"""One call, which looks at no clock for hours."""
COUNT = "WITH RECURSIVE r(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
COMPILED = " ".join(
    ("WITH a AS (SELECT", ", ".join(["abs(1)"] * 1000), ")", " UNION ALL ".join(["SELECT * FROM a"] * 500))
)
"""One that asks a million times, before it runs, whether it may read."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with contextlib.closing(open_log(tmp_path)) as opened:
        append(opened, b"1")
    return tmp_path


def start(log: Path, sql: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "weft", "edge", "query", str(log), sql, *options]
    return forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("sql", [SEARCH, COUNT], ids=["search", "count"])
def test_a_query_ends_with_its_time(log: Path, sql: str) -> None:
    patience = Patience(10)
    query = start(log, sql, "--timeout", "1s", "--json")
    output, errors = query.communicate(timeout=PATIENCE_S)
    assert not patience.is_over()
    assert query.returncode == FAILURE_EXIT_CODE
    assert output == ""
    assert "longer than 1 s: ask for less, or allow more with --timeout" in json.loads(errors)["error"]


@pytest.mark.parametrize("sql", [SEARCH, COUNT, COMPILED], ids=["search", "count", "compiled"])
def test_ctrl_c_ends_a_query(log: Path, sql: str) -> None:
    query = start(log, sql, "--csv")
    process = psutil.Process(query.pid)
    wait_until(lambda: process.num_threads() > 1, what="the beginning of the query")  # one thread minds the time
    query.send_signal(signal.SIGINT)
    query.communicate(timeout=PATIENCE_S)
    assert query.returncode == STOPPED_EXIT_CODE
