"""`weft hub region` on a store whose positions of regions are made by hand."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from click.testing import Result

from tests.cloud_hub.regions.fabric import LANE
from tests.cloud_hub.regions.test_regions import OTHER
from tests.cloud_hub.tables.logs import TOPICS, LogWriter, Run
from tests.support.processes import weft
from weft.protocols.chunk_index import GapRange
from weft.protocols.segment import GapReason
from weft.protocols.shard.placement import shard_of
from weft.storage.chunk_log import RegionPosition, RegionPositions, Report, StreamLag
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

HUB = "listen: 127.0.0.1:8090\nstore: store\nretain_log: 1h\nregions: {east: {to: [https://east.example.com]}}\n"


def test_the_status_says_for_each_shard_how_far_behind_a_region_is_and_why(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text(HUB)
    store = open_store(str(tmp_path / "store"))
    positions, now = RegionPositions(store, asyncio.run(open_cluster(store, 2))), time.time_ns()
    report = Report(at=now, state="waiting", error="connection refused", lag_records=7, lag_bytes=900, lag_seconds=75.0)
    position = RegionPosition(next=12, peer="ab" * 16, lost=((3, 5),), report=report)
    asyncio.run(positions.write("east", 1, position, None))
    [first, second] = json.loads(weft("hub", "region", "status", tmp_path / "hub.yaml", "--json").output)["regions"]
    assert (first["region"], first["shard"], first["state"], first["next"]) == ("east", 0, "not begun", None)
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


def test_the_status_says_how_long_the_log_yet_waits_and_which_streams_are_behind(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text(HUB.replace("}}", ", pin: 2h}}"))
    store = open_store(str(tmp_path / "store"))
    positions = RegionPositions(store, asyncio.run(open_cluster(store, 4)))
    streams = (StreamLag(tenant="default", stream="telemetry", records=7, bytes=4096, seconds=3600.0),)
    for shard, seconds in enumerate((3600.0, 3 * 3600.0, 0.0)):
        behind = streams if seconds else ()
        report = Report(
            at=time.time_ns(),
            state="connected",
            lag_seconds=seconds,
            hold="the budget",
            streams=behind,
            streams_behind=18 * len(behind),
        )
        asyncio.run(positions.write("east", shard, RegionPosition(next=1, report=report), None))
    found = json.loads(weft("hub", "region", "status", tmp_path / "hub.yaml", "--json").output)["regions"]
    assert 3500 < found[0]["left_seconds"] <= 3600, "`pin` is longer than `retain_log`"
    assert [each["left_seconds"] for each in found[1:]] == [0, None, None]
    assert found[0]["streams"] == [
        {"tenant": "default", "stream": "telemetry", "lag_records": 7, "lag_bytes": 4096, "lag_seconds": 3600.0}
    ]
    table = weft("hub", "region", "status", tmp_path / "hub.yaml").output
    assert "no longer" in table
    assert "the budget" in table
    assert "east, shard 0: default/telemetry is behind by 7 records, about 4KiB, 60.0 minutes" in table
    assert "east, shard 0: and 17 further streams" in table


def test_orders_to_a_region_are_declared_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text(HUB)
    config = tmp_path / "hub.yaml"
    asyncio.run(open_cluster(open_store(str(tmp_path / "store")), 2))
    assert "weft hub region resume" in weft("hub", "region", "pause", config, "east", "--by", "mara").output
    assert "continue" in weft("hub", "region", "resume", config, "east").output
    assert "beginning of the log" in weft("hub", "region", "compare", config, "east").output
    lines = json.loads(weft("hub", "declarations", config, "--json").output)
    assert [each["name"] for each in lines if each.get("kind") == "region"] == ["east"] * 3
    for command, region, reported in (("pause", "west", "there are: east"), ("resume", "east", "is not paused")):
        refused = weft("hub", "region", command, config, region).exception
        assert reported in str(refused)


async def _region(uri: str, *runs: Run) -> str:
    writer = await LogWriter.open(open_store(uri), 2)
    for run in runs:
        await writer.append(shard_of(run.lane.tenant, run.lane.edge, 2), run)
    return uri


async def test_two_regions_are_compared_number_by_number(tmp_path: Path) -> None:
    other = Run(OTHER, 0, 3, topics=TOPICS)
    stores = [
        await _region(str(tmp_path / name), Run(LANE, 0, end, topics=TOPICS), other)
        for name, end in (("west", 9), ("east", 6))
    ]

    def audit(*options: str) -> Result:
        return weft("audit", "telemetry", *options)

    found = await asyncio.to_thread(audit, "--regions", *stores, "--json")
    assert found.return_value == 1
    first, second = json.loads(found.output)["lanes"]
    assert (first["edge"], first["both"], first["only_first"], first["only_second"]) == ("press-1", 6, 3, 0)
    assert first["ranges"] == [[[6, 9]], []]
    assert (second["edge"], second["both"], second["only_first"], second["only_second"]) == ("press-2", 3, 0, 0)
    shown = await asyncio.to_thread(audit, "--regions", stores[1], stores[0])
    assert "ONLY IN 2: press-1/0000000000000007: 6 to 8" in shown.output
    same = await asyncio.to_thread(audit, "--regions", stores[0], stores[0])
    assert (same.return_value, same.output.splitlines()[-1]) == (0, "good: both regions have the same 12 records")
    for options in ((), ("--store", stores[0], "--regions", *stores)):
        refused = await asyncio.to_thread(audit, *options)
        assert "give --store URI, or --regions URI URI" in str(refused.exception)


@pytest.mark.parametrize(("reason", "status"), [(GapReason.OPERATOR, 0), (GapReason.EXPIRED, 1)])
async def test_what_a_region_was_told_to_erase_is_no_difference(tmp_path: Path, reason: GapReason, status: int) -> None:
    """Records behind any other gap may still come over the link, and are one."""
    west = await _region(str(tmp_path / "west"), Run(LANE, 0, 9, topics=TOPICS))
    east = await _region(str(tmp_path / "east"), Run(LANE, 0, 6, topics=TOPICS, gaps=[GapRange(6, 8, reason)]))
    erased = await _region(str(tmp_path / "erased"), Run(LANE, 0, 6, gaps=[GapRange(6, 9, reason)]))
    found = await asyncio.to_thread(weft, "audit", "telemetry", "--regions", erased, west)
    assert found.return_value == status
    lines = found.output.splitlines()
    if status == 0:
        assert lines[-3].startswith("GIVEN UP IN 1: press-1/0000000000000007: 3 records that the other region has")
        assert lines[-1] == "good: both regions have the same 6 records"
    found = await asyncio.to_thread(weft, "audit", "telemetry", "--regions", west, east, "--json")
    (lane,) = json.loads(found.output)["lanes"]
    assert found.return_value == 1, "no one gave up the last one"
    given_up = 2 * (status == 0)
    assert (lane["both"], lane["only_first"], lane["given_up"]) == (6, 3 - given_up, [0, given_up])
