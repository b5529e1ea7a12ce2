"""Orders to the links of a running node: its policy, its pause, and what the commands say."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Log, Node, Start, publish, weft
from tests.support.waiting import wait_until
from tests.weft.test_reload import Pair
from weft.commands.link import _facts

RATE = "retry_max: 200ms"


@pytest.fixture
def pair(start: Start, tmp_path: Path) -> Pair:
    return Pair(start, tmp_path)


def said(pair: Pair, *command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(weft("link", *command, pair.config, "--json").output)
    return found


@pytest.mark.processes
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


# --- What edges and hubs say in their logs of the links between them, as a person reads it afterwards


EDGE = """\
node: press-shop-7
data_dir: {data_dir}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", token_file: token, retry_min: 20ms, retry_max: 100ms}}}}
"""
HUB = "listen: 127.0.0.1:{port}\nstore: store\nshards: 1\ncommit_interval: 20ms\ntables: null\n"
AT_EDGE = "replication.runner.progress: link cloud: "
AT_HUB = "cloud_hub.links.edge_link: "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    port = free_port()
    (tmp_path / "edge.yaml").write_text(EDGE.format(port=port, data_dir="data"))
    (tmp_path / "clone.yaml").write_text(EDGE.format(port=port, data_dir="copy"))
    (tmp_path / "hub.yaml").write_text(HUB.format(port=port))
    for name in ("press-shop-7", "press-shop-8"):
        made = weft("hub", "token", "add", tmp_path / "hub.yaml", name, "--scope", "edge", "--edge", name)
        (tmp_path / f"token of {name}").write_text(made.stdout)
    shutil.copy(tmp_path / "token of press-shop-7", tmp_path / "token")
    return tmp_path


def lines(log: Log, part: str) -> list[str]:
    return [line.partition(part)[2] for line in log.text.splitlines() if part in line]


@pytest.mark.processes
def test_connected_disconnected_and_recovered_stand_in_both_logs_once(start: Start, folder: Path, log: Log) -> None:
    hub = start("hub", folder / "hub.yaml")
    edge = start("edge", folder / "edge.yaml")
    wait_until(lambda: log.has("edge default/press-shop-7 at 127.0.0.1: connected, log "))
    wait_until(lambda: log.has(f"{AT_EDGE}connected to http://127.0.0.1:"))
    hub.kill()
    wait_until(lambda: edge.json("status")["links"]["cloud"]["attempts_failed"] >= 20)
    start("hub", folder / "hub.yaml")
    wait_until(lambda: log.has(f"{AT_EDGE}connected again to http://127.0.0.1:"))
    assert edge.stop() == 0
    wait_until(lambda: log.has(f"{AT_HUB}edge default/press-shop-7 at 127.0.0.1: disconnected after "))

    connected, disconnected, tried, again = lines(log, AT_EDGE)
    assert connected.startswith("connected to ")
    assert disconnected.startswith("disconnected after ")
    assert "cannot connect" in tried
    assert re.search(r"after [\d.]+ \w+ away, (\d+) failed attempts", again)
    assert len(lines(log, AT_HUB)) == 3, "connected, connected after the hub's restart, disconnected"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("token", "told_at"),
    [
        ("nonsense-that-is-secret", ("does not accept the token (401)", "refused (401): no valid token")),
        pytest.param(
            None,
            ("'press-shop-8' is not for edge press-shop-7", "refused: the token 'press-shop-8' is not for edge"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_refusal_is_said_once_however_often_it_comes_and_never_with_the_token(
    start: Start, folder: Path, log: Log, token: str | None, told_at: tuple[str, str]
) -> None:
    at_edge, at_hub = told_at
    text = token or (folder / "token of press-shop-8").read_text().strip()
    (folder / "token").write_text(text)
    start("hub", folder / "hub.yaml")
    edge = start("edge", folder / "edge.yaml")
    wait_until(lambda: edge.json("status")["links"]["cloud"]["attempts_failed"] >= 10)
    (refused,) = lines(log, AT_EDGE)
    assert refused.startswith("refused by the hub: ")
    assert at_edge in refused
    (reported,) = lines(log, AT_HUB)
    assert reported.startswith("a link from 127.0.0.1: ")
    assert at_hub in reported
    assert text not in log.text

    shutil.copy(folder / "token of press-shop-7", folder / "token")
    wait_until(lambda: log.has(f"{AT_EDGE}connected to "))
    assert re.search(r"after [\d.]+ \w+, \d+ failed attempts", lines(log, AT_EDGE)[-1])
    wait_until(lambda: log.has(f"{AT_HUB}edge default/press-shop-7 at 127.0.0.1: connected"))


@pytest.mark.processes
@pytest.mark.slow
def test_a_copy_of_a_node_is_told_of_at_both_ends(start: Start, folder: Path, log: Log) -> None:
    start("hub", folder / "hub.yaml")
    edge = start("edge", folder / "edge.yaml")
    wait_until(lambda: log.has(f"{AT_EDGE}connected to "))
    assert edge.stop() == 0
    shutil.copytree(folder / "data", folder / "copy")
    start("edge", folder / "edge.yaml")
    wait_until(lambda: log.text.count(f"{AT_EDGE}connected to ") == 2)
    clone = start("edge", folder / "clone.yaml")
    wait_until(lambda: log.has(f"{AT_EDGE}identity conflict: "))
    assert "if a second node runs with a copy of this log, give that one an empty data_dir" in log.text
    wait_until(lambda: log.has("(another link of this edge is open)"))
    assert clone.json("status")["links"]["cloud"]["state"] == "conflict"


# --- The words of ``weft link status`` about the canary


NOW = 1_800_000_000.0
IDLE: dict[str, Any] = {
    "state": "connected",
    "url": "http://hub",
    "connected_since": NOW - 9000,
    "hold": "",
    "pending_records": 0,
    "delivery_seconds": None,
    "ping_seconds": 0.02,
    "budget_bytes": None,
    "next_try": None,
    "last_error": "",
    "alarm": "",
    "pull": None,
    "canary": "unknown",
    "canary_seconds": None,
    "canary_time": None,
    "canary_alarm": "",
}
PROVEN = {"canary": "proven", "canary_seconds": 0.084, "canary_time": NOW - 180, "canary_alarm": ""}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "84 ms to the hub's store and back, sent 3.0 minutes ago"),
        (
            {"canary_seconds": None, "canary_time": None, "canary": "unknown"},
            "unknown: the hub has not confirmed a write to its store yet",
        ),
        (
            {"canary": "unknown"},
            "unknown now, this hub's release reports nothing without data; the last one took 84 ms to the hub's "
            "store and back, sent 3.0 minutes ago",
        ),
        (
            {"canary": "unknown", "connected_since": None},
            "unknown now, not connected; the last one took 84 ms to the hub's store and back, sent 3.0 minutes ago",
        ),
        ({"canary": "overdue", "canary_alarm": "the hub answers"}, "OVERDUE: the hub answers"),
    ],
)
def test_the_canary_says_what_is_known(change: dict[str, Any], text: str) -> None:
    assert _facts({**IDLE, **PROVEN, **change}, NOW)["canary"] == text
