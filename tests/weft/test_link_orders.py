"""Orders to the links of a running node: its policy, its pause, and what the commands say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Node, Start, publish, weft
from tests.support.waiting import wait_until
from tests.weft.test_reload import Pair

pytestmark = pytest.mark.processes

RATE = "retry_max: 200ms"


@pytest.fixture
def pair(start: Start, tmp_path: Path) -> Pair:
    return Pair(start, tmp_path)


def said(pair: Pair, *command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(weft("link", *command, pair.config, "--json").output)
    return found


def test_another_policy_counts_without_a_new_connection_and_a_pause_survives_a_kill(pair: Pair, start: Start) -> None:
    publish(pair.edge.mqtt_port, "plant/a/telemetry", ["one"])
    wait_until(lambda: pair.payloads("telemetry") == ["one"])
    since = said(pair, "status")["cloud"]["connected_since"]
    pair.change(RATE, f"{RATE}, order: fresh_first, rate: 1MB/s, priorities: {{telemetry: 20}}, budget: 1GB")
    assert "links.cloud.budget" in pair.reload()
    publish(pair.edge.mqtt_port, "plant/a/telemetry", ["two"])
    wait_until(lambda: len(pair.payloads("telemetry")) == 2)
    wait_until(lambda: (said(pair, "status")["cloud"]["budget_used_bytes"] or 0) > 100)
    cloud = said(pair, "pause", "--link", "cloud")["cloud"]
    assert (cloud["paused"], cloud["connected_since"], cloud["budget_bytes"]) == (True, since, 10**9)
    used = cloud["budget_used_bytes"]
    edge: Node = pair.edge
    edge.kill()
    pair.edge = start("edge", pair.config)
    publish(pair.edge.mqtt_port, "plant/a/telemetry", ["three"])
    wait_until(lambda: said(pair, "status")["cloud"]["pending_records"] == 1)
    shown = weft("link", "status", pair.config).output
    assert "paused by an operator; `weft link resume` lets it continue" in shown
    assert "1 record (size unknown)" in shown
    wait_until(lambda: said(pair, "status")["cloud"]["canary"] == "proven")
    assert "to the hub's store and back, sent" in weft("link", "status", pair.config).output
    metrics = pair.edge.text("metrics")
    for name in ("seconds", "timestamp_seconds", "overdue"):
        assert f'weft_edge_link_canary_{name}{{link="cloud"}} ' in metrics
    assert len(pair.payloads("telemetry")) == 2
    assert not said(pair, "resume")["cloud"]["paused"]
    wait_until(lambda: pair.payloads("telemetry") == ["one", "two", "three"])
    # The count of a budget of 1 GB is saved with each 200 kB, and with the pause.
    assert said(pair, "status")["cloud"]["budget_used_bytes"] > used
    wrong = weft("link", "pause", pair.config, "--link", "clod")
    assert wrong.exit_code == 1
    assert "there is no link 'clod'; links: cloud" in str(wrong.exception)
