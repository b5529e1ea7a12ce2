"""Code that raises, loops or takes all memory harms no other stream, delays no acknowledgement, and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.edge_node.derived.test_before_log import connect, json, running
from tests.support.live_node import LiveNode
from tests.support.waiting import until
from weft.edge_node.derived.part import FunctionsPart

CONFIG = """
node: press-hall
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: null
disk: {budget: 64MiB, segment: 4MiB}
streams:
  telemetry: {from: "plant/{line}/telemetry", payload: json}
  calm: {from_stream: telemetry, functions: [where: n >= 0]}
  raises: {from_stream: telemetry, functions: [python: raises.py]}
  greedy: {from_stream: telemetry, functions: [python: greedy.py]}
  loops: {from_stream: telemetry, functions: [python: {file: loops.py, timeout: TIMEOUT}]}
"""
CODE = "def process(record, ctx):\n    if record['n'] == 3:\n        {bad}\n    return record\n"
BAD = {"raises": "raise ValueError('no')", "greedy": "found = bytearray(1 << 32)", "loops": "while True: pass"}
COUNT = 50


def rows(node: LiveNode, stream: str) -> tuple[int, int]:
    found = node.node.part(FunctionsPart).figures()[stream]
    return found.rows_out, found.rows_rejected


@pytest.mark.slow
async def test_others_go_on_and_nothing_is_lost(tmp_path: Path) -> None:
    for name, bad in BAD.items():
        (tmp_path / f"{name}.py").write_text(CODE.format(bad=bad))
    # The loop is not ended while this runs: what is acknowledged and made meanwhile did not wait for it.
    async with running(tmp_path, CONFIG.replace("TIMEOUT", "10m")) as node, connect(node, "device") as device:
        for n in range(COUNT):
            await device.publish("plant/a/telemetry", json(n=n), 1)
        await until(lambda: rows(node, "calm") == (COUNT, 0))
        for name in ("raises", "greedy"):
            await until(lambda name=name: rows(node, name) == (COUNT - 1, 1))  # type: ignore[misc]
        made, rejected = rows(node, "loops")
        assert made <= 3
        assert not rejected
        assert len(await node.stored("telemetry")) == COUNT
    # With a limit, the record that loops goes to the errors, and all others come out.
    async with running(tmp_path, CONFIG.replace("TIMEOUT", "100ms")) as node:
        await until(lambda: rows(node, "loops")[1] == 1)
        await until(lambda: node.node.part(FunctionsPart).figures()["loops"].lag == 0)
        assert [each["n"] for each in await node.payloads("loops")] == [n for n in range(COUNT) if n != 3]
        assert await node.payloads("loops-errors") == [{"n": 3}]
