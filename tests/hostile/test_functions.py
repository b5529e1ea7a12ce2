"""A SELECT without bounds and a lookup file that is none: the node stays small, other streams and acknowledgements go
on, and what was left out is named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.edge import GuardedEdge
from tests.hostile.good_client import GoodClient
from tests.hostile.waits import at_most
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
