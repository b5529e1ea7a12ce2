"""`weft hub region` on a store whose positions of regions are made by hand."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from tests.support.processes import weft
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store
from weft.storage.region_positions import RegionPosition, RegionPositions, Report

HUB = "listen: 127.0.0.1:8090\nstore: store\nregions: {east: {to: [https://east.example.com]}}\n"


def test_the_status_says_for_each_shard_how_far_behind_a_region_is_and_why(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text(HUB)
    store = open_store(str(tmp_path / "store"))
    positions, now = RegionPositions(store, asyncio.run(open_cluster(store, 2))), time.time_ns()
    report = Report(at=now, state="waiting", error="connection refused", lag_records=7, lag_bytes=900, lag_seconds=75.0)
    position = RegionPosition(next=12, peer="ab" * 16, lost=((3, 5),), report=report)
    asyncio.run(positions.write("east", 1, position, None))
    [first, second] = json.loads(weft("hub", "region", "status", tmp_path / "hub.yaml", "--json").output)["regions"]
    assert first == {"region": "east", "shard": 0, "state": "not begun"}
    assert (second["state"], second["next"], second["lag_records"], second["lag_bytes"]) == ("waiting", 12, 7, 900)
    assert (second["lost_chunks"], second["error"]) == ([{"first": 3, "end": 5}], "connection refused")
    table = weft("hub", "region", "status", tmp_path / "hub.yaml").output
    assert "3 to 4" in table
    assert "connection refused" in table


def test_a_report_that_is_old_says_nothing_of_the_present(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text(HUB)
    store = open_store(str(tmp_path / "store"))
    positions = RegionPositions(store, asyncio.run(open_cluster(store, 1)))
    report = Report(at=time.time_ns() - 3600 * 10**9, state="connected", lag_records=0)
    asyncio.run(positions.write("east", 0, RegionPosition(next=1, report=report), None))
    [found] = json.loads(weft("hub", "region", "status", tmp_path / "hub.yaml", "--json").output)["regions"]
    assert (found["state"], found["lag_seconds"]) == ("no news", 0.0)


def test_orders_to_a_region_are_declared_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text(HUB)
    config = tmp_path / "hub.yaml"
    asyncio.run(open_cluster(open_store(str(tmp_path / "store")), 2))
    assert "weft hub region resume" in weft("hub", "region", "pause", config, "east", "--by", "mara").output
    assert "go on" in weft("hub", "region", "resume", config, "east").output
    assert "start of the log" in weft("hub", "region", "compare", config, "east").output
    lines = json.loads(weft("hub", "declarations", config, "--json").output)
    assert [each["name"] for each in lines if each.get("kind") == "region"] == ["east"] * 3
    for command, region, told in (("pause", "west", "there are: east"), ("resume", "east", "is not paused")):
        refused = weft("hub", "region", command, config, region).exception
        assert told in str(refused)
