"""A SELECT without bounds and a lookup file that is none: the node stays small, other streams and acknowledgements go
on, and what was left out is named.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient, at_most
from tests.support.slices import SLICE
from tests.support.waiting import Patience

pytestmark = pytest.mark.processes

UNDISTURBED_S, BAD_S = 1.0, 3.0
FACTOR = 10
LEAST_S = 0.04
"""As in ``test_user_code``."""
PATIENCE_S = 90.0
MEMORY_BYTES = 150 << 20
"""Growth of the node's memory that is allowed: a SELECT of these takes gigabytes."""

GREEDY = "SELECT p FROM (SELECT printf('%100000d', a.value + b.value) AS p FROM input a, input b, input c ORDER BY p)"
STREAMS = """,
  greedy: {{from_stream: telemetry, payload: json, functions: [{{sql: {{every: 1s, by: none, select: "{greedy}"}}}}]}},
  endless: {{from_stream: telemetry, payload: json,
    functions: [{{sql: {{every: 1s, by: none, steps_max: 1000000000000,
      select: "SELECT count(*) AS n FROM input a, input b, input c, input d, input e, input f"}}}}]}},
  owned: {{from_stream: telemetry, payload: json, functions: [{{enrich: {{file: {file}, on: machine}}}}]}},
  beside: {{from_stream: telemetry, payload: json, functions: [{{where: value > 0}}]}}"""


class Fixture:
    """A node with functions that take what they can get."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "machines.csv"
        self.file.write_text("machine,owner\nb,Eva\n")
        self.edge = GuardedEdge(folder, streams=STREAMS.format(greedy=GREEDY, file=self.file))

    def wait(self, done: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
        """Wait for figures."""
        self.edge.wait_for_functions(done, PATIENCE_S)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Fixture]:
    found = Fixture(tmp_path)
    found.edge.start()
    try:
        yield found
    finally:
        found.edge.stop()


@pytest.mark.slow
def test_functions_without_bounds_harm_their_own_streams_only(node: Fixture) -> None:
    with GoodClient(node.edge, "device") as good:
        time.sleep(UNDISTURBED_S)  # what is measured
        good.take()
        node.wait(lambda figures: figures["owned"]["rows_out"] > 0)
        before = node.edge.memory_bytes()
        os.truncate(node.file, 1 << 30)
        most, until = 0, time.monotonic() + BAD_S
        while time.monotonic() < until:  # what is measured
            most = max(most, node.edge.memory_bytes())
            time.sleep(0.05)
        node.wait(lambda figures: figures["greedy"]["rows_rejected"] > 0)
        node.wait(lambda figures: bool(figures["owned"]["refused"]))
        attacked = good.take()
        node.wait(lambda figures: figures["beside"]["rows_in"] >= attacked.acknowledged)
        node.wait(lambda figures: figures["beside"]["lag_records"] < 100)
        figures = node.edge.function_figures()
    at_most(FACTOR * LEAST_S, attacked.p99, attacked)
    assert most - before < MEMORY_BYTES
    assert figures["owned"]["rows_out"] > 0
    assert figures["owned"]["trouble"] == "", "the rows that were read before are in force"
    assert "machines.csv" in figures["owned"]["refused"]
    patience = Patience(PATIENCE_S)
    node.edge.stop()
    assert not patience.is_over(), "the end of the node waits for no SELECT"


# --- Code of users loops, allocates, ends and raises: acknowledgements wait no longer, other streams continue, and
# nothing is lost


CODE = """
import os, subprocess
kept = []

def loop():
    while True: pass

def stubborn_loop():
    while True:
        try:
            while True: pass
        except BaseException:
            pass

def allocate():
    while True: kept.append(bytearray(1 << 20))

def end():
    os._exit(3)

def fail():
    raise ValueError("bad")

def flood():
    while True: print("x" * 1000)

def fork():
    subprocess.run(["sh", "-c", "while :; do :; done"])

def process(record, ctx):
    if os.path.exists(BAD):
        globals()[open(BAD).read()]()
    return record
"""
SCORED = """, scored: {{from_stream: telemetry, payload: json, functions: [{{python: {{file: {file}, timeout: 200ms,
  memory: 64MiB}}}}]}}, beside: {{from_stream: telemetry, payload: json, functions: [{{where: value > 0}}]}}"""


class UserCodeFixture:
    """A node with a function whose code turns bad while a file says how."""

    def __init__(self, folder: Path) -> None:
        self.bad = folder / "bad"
        file = folder / "score.py"
        file.write_text(f"BAD = {str(self.bad)!r}\n{CODE}")
        self.edge = GuardedEdge(folder, streams=SCORED.format(file=file))

    def wait(self, stream: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for figures of a stream, and return them."""
        return self.edge.wait_for_functions(lambda figures: done(figures[stream]), PATIENCE_S)[stream]


@pytest.fixture
def user_code_node(tmp_path: Path) -> Iterator[UserCodeFixture]:
    found = UserCodeFixture(tmp_path)
    found.edge.start()
    try:
        yield found
    finally:
        found.edge.stop()


@pytest.mark.parametrize(
    "how",
    [
        "allocate",
        *(
            pytest.param(how, marks=pytest.mark.search)
            for how in SLICE.some(["loop", "stubborn_loop", "end", "fail", "flood", "fork"], ci=2)
        ),
    ],
)
def test_bad_code_harms_its_own_records_only(user_code_node: UserCodeFixture, how: str) -> None:
    sent = 0
    with GoodClient(user_code_node.edge, "device") as good:
        time.sleep(UNDISTURBED_S)  # what is measured
        undisturbed = good.take()
        user_code_node.bad.write_text(how)
        time.sleep(BAD_S)  # what is measured
        user_code_node.wait("scored", lambda figures: figures["rows_rejected"] > 0)
        attacked = good.take()
        sent = undisturbed.acknowledged + attacked.acknowledged
        # The streams beside it are not behind.
        user_code_node.wait("beside", lambda figures: figures["rows_in"] >= sent)
        user_code_node.bad.unlink()
        time.sleep(UNDISTURBED_S)  # what is measured
        sent += good.take().acknowledged
    at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.p99, undisturbed, attacked)
    scored = user_code_node.wait("scored", lambda figures: figures["rows_out"] + figures["rows_rejected"] >= sent)
    assert scored["rows_out"] + scored["rows_rejected"] <= scored["rows_in"]
