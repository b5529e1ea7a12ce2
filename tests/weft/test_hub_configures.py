"""`weft hub config` and real edge processes: wrong configurations are tried, taken back, and told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Node, Start, weft
from tests.support.waiting import wait_until
from weft.output import Failed, Refused
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 2
processes: 1
commit_interval: 20ms
tables: null
"""
EDGE = """\
node: press-{n}
data_dir: data
listeners: {{mqtt: null}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links:
  cloud:
    to: "http://127.0.0.1:{port}"
    config_from_hub: allowed_with_restart
    retry_min: 50ms
    retry_max: 1s
"""
EDGES = 20
WRONG = {
    "url": "links: {cloud: {to: 'http://127.0.0.1:9'}}",
    "authority": "links: {cloud: {to: 'https://127.0.0.1:%d'}}",
    "restart": "limits: {message: 2MiB}\nlinks: {cloud: {to: 'http://127.0.0.1:9'}}",
    "refused": "links: {cloud: {streams: [no-such-stream]}}",
    "good": "streams: {alarms: {from: 'alarms/#'}}",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A hub's configuration with a store that a hub has used."""
    path = tmp_path / "hub.yaml"
    path.write_text(HUB.format(port=free_port()))
    asyncio.run(open_cluster(open_store(str(tmp_path / "store")), 2))
    return path


def test_settings_are_declared_shown_rolled_out_and_withdrawn(config: Path) -> None:
    folder = config.parent
    (folder / "good.yaml").write_text(WRONG["good"])
    (folder / "better.yaml").write_text(WRONG["good"].replace("alarms/#", "alarms/+"))
    (folder / "secret.yaml").write_text("links: {cloud: {token_file: /etc/passwd}}\ndata_dir: /tmp")
    weft("hub", "group", "set", config, "presses", "press-*")
    refused = weft("hub", "config", "set", config, "presses", folder / "secret.yaml", "--group").exception
    assert isinstance(refused, Refused)
    assert "links.cloud.token_file: cannot be set by a hub" in str(refused)
    assert "data_dir: cannot be set by a hub" in str(refused)
    unknown = weft("hub", "config", "set", config, "ovens", folder / "good.yaml", "--group").exception
    assert "there are: default/presses" in str(unknown)
    done = weft("hub", "config", "set", config, "presses", folder / "good.yaml", "--group")
    assert done.output == "declared version 2 for group presses of tenant default\n"
    assert weft("hub", "config", "get", config, "press-7").output == f"# group presses, version 2\n{WRONG['good']}\n"
    assert isinstance(weft("hub", "config", "get", config, "oven").exception, Failed)
    assert json.loads(weft("hub", "config", "status", config, "--json").output) == []
    more = ("--group", "--share", "10%", "--steps", "50%,100%", "--failures", "2")
    weft("hub", "config", "set", config, "presses", folder / "better.yaml", *more)
    continues = weft("hub", "config", "set", config, "presses", folder / "good.yaml", "--group").exception
    assert "a rollout of default/group/presses continues" in str(continues)
    (shown,) = json.loads(weft("hub", "config", "rollout", "list", config, "--json").output)
    assert (shown["share"], shown["state"], shown["version"]) == (0.1, "running", 3)
    weft("hub", "config", "rollout", "next", config, "presses", "--share", "50%")
    less = weft("hub", "config", "rollout", "next", config, "presses", "--share", "20%").exception
    assert "more than 50%" in str(less)
    weft("hub", "config", "rollout", "abort", config, "presses", "--reason", "not now")
    assert "alarms/#" in weft("hub", "config", "get", config, "press-7").output
    (shown,) = json.loads(weft("hub", "config", "rollout", "list", config, "--json").output)
    assert (shown["state"], shown["why"]) == ("aborted", "not now")
    kept = weft("hub", "group", "remove", config, "presses").exception
    assert "settings are declared for group default/presses" in str(kept)
    weft("hub", "config", "remove", config, "presses", "--group")
    assert isinstance(weft("hub", "config", "get", config, "press-7").exception, Failed)


@pytest.mark.search(turns=3)
@pytest.mark.processes
def test_wrong_configurations_of_twenty_edges_are_back_within_three_minutes(
    start: Start, config: Path, tmp_path: Path
) -> None:
    port = int(config.read_text().partition("127.0.0.1:")[2].partition("\n")[0])
    hub = start("hub", config)
    edges: list[tuple[Path, Node]] = []
    kinds = [list(WRONG)[n % len(WRONG)] for n in range(EDGES)]
    for n in range(EDGES):
        folder = tmp_path / f"edge-{n}"
        folder.mkdir()
        (folder / "edge.yaml").write_text(EDGE.format(n=n, port=port))
        edges.append((folder / "edge.yaml", start("edge", folder / "edge.yaml")))
    wait_until(lambda: len(hub.json("v1/status")["links"]) == EDGES, what="the links")
    for n, kind in enumerate(kinds):
        text = WRONG[kind] % port if "%d" in WRONG[kind] else WRONG[kind]
        (tmp_path / "layer.yaml").write_text(text)
        done = weft("hub", "config", "set", config, f"press-{n}", tmp_path / "layer.yaml")
        assert done.exit_code == 0, done.exception

    def outcomes() -> dict[str, str]:
        shown: list[dict[str, Any]] = json.loads(weft("hub", "config", "status", config, "--json").output)
        return {row["edge"]: row["outcome"] for row in shown}

    wait_until(lambda: len(hub.json("v1/status")["links"]) <= EDGES * 2 // 5, what="the wrong ones to be tried")
    # One of each kind is killed while its configuration is on trial, and started again.
    for n in range(len(WRONG)):
        path, node = edges[n]
        node.kill()
        edges[n] = path, start("edge", path)
    ends = {
        "url": "rolled back",
        "authority": "rolled back",
        "restart": "rolled back",
        "refused": "refused",
        "good": "confirmed",
    }
    wanted = {f"press-{n}": ends[kind] for n, kind in enumerate(kinds)}
    wait_until(lambda: outcomes() == wanted, what="every edge to be back", seconds=180)
    assert len(hub.json("v1/status")["links"]) == EDGES
