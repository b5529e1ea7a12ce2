"""What each release has written is opened by this one: read whole, written on, and nothing lost or doubled.

The files and what must come out of them are made by ``tests/releases/write.py``.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.releases.fabric import READINGS, STATE, TELEMETRY, Fabric
from tests.releases.write import FOLDER, RELEASES, rows, unpack
from tests.support.live_node import LiveNode, running
from tests.support.processes import weft
from tests.support.waiting import wait_until
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.fenced_store import check_store
from weft.storage.object_store import open_store

ARCHIVE_BYTES_MAX = 300_000


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def expected(release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{release}.json").read_text())
    return found


@pytest.fixture
def fabric(release: str, tmp_path: Path) -> Fabric:
    unpack(FOLDER / f"{release}.tar.xz", tmp_path)
    return Fabric(tmp_path)


def test_the_files_of_each_release_are_small_and_those_of_the_first_are_there() -> None:
    assert "0.1.0" in RELEASES
    for path in FOLDER.glob("*.tar.xz"):
        assert path.stat().st_size < ARCHIVE_BYTES_MAX
        with tarfile.open(path) as tar:
            names = tar.getnames()
        assert any(name.endswith(".seg") for name in names)
        assert any("/chunk/" in name for name in names)
        assert any("/snapshot/" in name for name in names)
        assert any("/_delta_log/" in name for name in names)


def test_a_node_reads_its_log_goes_on_with_its_numbers_and_its_functions(
    fabric: Fabric, expected: dict[str, Any]
) -> None:
    """The same log as with processes, at a tenth of the cost: for every commit."""

    # Without its link: a start waits for the hub's word on the log.
    config = (fabric.folder / "edge.yaml").read_text().partition("links:")[0]

    async def use() -> None:
        async with running(fabric.folder, config) as edge:
            node = LiveNode(edge, fabric.folder)
            assert edge.log.recovery.gaps == ()
            assert edge.log.recovery.damaged == ()
            for stream in ("telemetry", "readings", "points"):
                found = await node.stored(stream)
                assert [record.payload.decode() for record in found] == expected[stream]
                assert [record.seq for record in found] == list(range(len(found)))
            seq = edge.log.append(edge.log.stream("telemetry"), 1, [TELEMETRY.encode()], [b"{}"])
            assert seq == len(expected["telemetry"])
            await edge.log.durable()

    asyncio.run(use())


def test_a_hub_reads_its_log_from_the_snapshot_and_from_the_first_chunk(
    fabric: Fabric, expected: dict[str, Any]
) -> None:
    async def use() -> int:
        store = open_store(str(fabric.folder / "store"))
        await check_store(store)
        cluster = await open_cluster(store, 2)
        records = 0
        for shard in range(cluster.shards):
            log = ShardLog(store, cluster, shard)
            loaded, folded = await log.load(), ShardState(cluster.cluster_id, shard)
            await log.extend(folded)
            assert loaded.encode() == folded.encode()
            records += folded.next_offset.get(("default", "telemetry"), 0)
        return records

    assert asyncio.run(use()) == expected["in_table"]


@pytest.mark.slow
@pytest.mark.processes
def test_processes_take_up_sessions_queues_links_and_tables(fabric: Fabric, expected: dict[str, Any]) -> None:
    total = len(expected["telemetry"]) + 1
    with fabric.hub(), fabric.edge():
        present, got, kept = fabric.session(len(expected["session"]))
        assert present
        assert got == expected["session"]
        assert kept == []
        fabric.publish(TELEMETRY, ['{"n": "new"}'])
        assert fabric.session(1) == (True, ['{"n": "new"}'], [])
        assert fabric.retained(STATE) == expected["retained"][STATE]
        fabric.enqueue(["job of this release"])
        assert fabric.dequeue(len(expected["queue"]) + 1) == [*expected["queue"], "job of this release"]
        # Within the deadband of the last point, which the function remembers; then beyond it.
        fabric.publish(READINGS, ['{"temp": 26.0}', '{"temp": 28.0}'])
        wait_until(lambda: rows(fabric.folder) == total)
    table = DeltaTable(str(fabric.folder / "store/tables/default/telemetry")).to_pyarrow_table()
    assert sorted(table["payload"].to_pylist()) == sorted([*expected["telemetry"], '{"n": "new"}'])
    report = weft("audit", "telemetry", "--store", fabric.folder / "store")
    assert (report.return_value, report.exception) == (0, None), report.output
    query = "SELECT payload FROM points"
    text = weft("edge", "query", fabric.folder / "edge.yaml", query, "--json").output
    assert [json.loads(line)["payload"] for line in text.splitlines()] == [*expected["points"], '{"temp": 28.0}']
