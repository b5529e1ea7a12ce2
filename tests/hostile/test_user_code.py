"""Code of users loops, allocates, ends and raises: acknowledgements wait no longer, other streams continue, and nothing
is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import at_most
from tests.support.slices import SLICE

pytestmark = pytest.mark.processes
UNDISTURBED_S, BAD_S = 1.0, 3.0
FACTOR = 10
"""The well-behaved client's p99 may be so many times the undisturbed one."""
LEAST_S = 0.04
"""Undisturbed p99 below which the comparison would measure the machine."""
PATIENCE_S = 90.0

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
STREAMS = """, scored: {{from_stream: telemetry, payload: json, functions: [{{python: {{file: {file}, timeout: 200ms,
  memory: 64MiB}}}}]}}, beside: {{from_stream: telemetry, payload: json, functions: [{{where: value > 0}}]}}"""


class Fixture:
    """A node with a function whose code turns bad while a file says how."""

    def __init__(self, folder: Path) -> None:
        self.bad = folder / "bad"
        file = folder / "score.py"
        file.write_text(f"BAD = {str(self.bad)!r}\n{CODE}")
        self.edge = GuardedEdge(folder, streams=STREAMS.format(file=file))

    def wait(self, stream: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for figures of a stream, and return them."""
        return self.edge.wait_for_functions(lambda figures: done(figures[stream]), PATIENCE_S)[stream]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Fixture]:
    found = Fixture(tmp_path)
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
def test_bad_code_harms_its_own_records_only(node: Fixture, how: str) -> None:
    sent = 0
    with GoodClient(node.edge, "device") as good:
        time.sleep(UNDISTURBED_S)  # what is measured
        undisturbed = good.take()
        node.bad.write_text(how)
        time.sleep(BAD_S)  # what is measured
        node.wait("scored", lambda figures: figures["rows_rejected"] > 0)
        attacked = good.take()
        sent = undisturbed.acknowledged + attacked.acknowledged
        # The streams beside it are not behind.
        node.wait("beside", lambda figures: figures["rows_in"] >= sent)
        node.bad.unlink()
        time.sleep(UNDISTURBED_S)  # what is measured
        sent += good.take().acknowledged
    at_most(FACTOR * max(undisturbed.p99, LEAST_S), attacked.p99, undisturbed, attacked)
    scored = node.wait("scored", lambda figures: figures["rows_out"] + figures["rows_rejected"] >= sent)
    assert scored["rows_out"] + scored["rows_rejected"] <= scored["rows_in"]
