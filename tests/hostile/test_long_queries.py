"""A query ends when its time is over, or the person who asked wants it to, also inside one function of SQLite."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.edge_node.inspect.view.logs import append, open_log
from tests.support import forked
from tests.support.waiting import PATIENCE_S, Patience, wait_until
from weft.output import FAILURE_EXIT_CODE, STOPPED_EXIT_CODE

pytestmark = pytest.mark.processes
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
