"""History for a region: what the log deleted comes from tables, and both regions have the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.live import running_hub, running_link
from tests.cloud_hub.reads.test_history import collect, tabled
from tests.cloud_hub.regions.fabric import has, held, log_of, stored, to
from tests.cloud_hub.tables.logs import LANE, OTHER, START, rows, table
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.regions import history
from weft.cloud_hub.regions.history import History, HistoryError, HistoryTransfer
from weft.cloud_hub.tables.erasure import Author, Choice, Eraser
from weft.proofs.audit.audit import audit
from weft.proofs.audit.report import compare_regions
from weft.protocols.chunk_index import GapRange
from weft.protocols.lane import Lane, Origin, OriginKind
from weft.protocols.segment import GapReason
from weft.protocols.shard.placement import shard_of
from weft.replication.runner import LinkIdentity
from weft.storage.chunk_log import RegionPosition, RegionPositions
from weft.storage.cluster import open_cluster
from weft.storage.object_store import ObjectStore, open_store

EDGES = [next(f"new-{n}" for n in range(99) if shard_of("default", f"new-{n}", 2) == shard) for shard in range(2)]
NEW = [Lane("default", edge, log_id, "telemetry") for log_id, edge in enumerate(EDGES, 9)]
"""A lane of each shard."""
STREAMS = ("telemetry", "alarms")
TABLES = {"table_interval_s": 0.05}


class Fabric:
    """A west whose log lacks its first half, and an east that had the first five chunks of each shard at most."""

    def __init__(self, west: ObjectStore, east: ObjectStore, hub: Hub) -> None:
        self.west, self.east, self.hub = west, east, hub

    def transfer(self) -> HistoryTransfer:
        settings = to(self.hub.url)["east"]
        return HistoryTransfer(
            self.west, "east", settings, wall_clock=lambda: START, monotonic=lambda: 0.0, marks_s=0.0
        )

    async def bring(self) -> History:
        return await self.transfer().run()

    def has_stored(self, records: int) -> bool:
        return stored(self.hub) >= records

    def has_rows(self, stream: str) -> bool:
        return len(rows(self.east, stream)) == len(rows(self.west, stream))

    async def agree(self) -> bool:
        return all([(await compare_regions((self.west, self.east), "default", each)).agree for each in STREAMS])


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[Fabric]:
    west, east = (open_store(str(tmp_path / name)) for name in ("west", "east"))
    kinds: dict[str, Any] = {
        "origin": lambda n: (
            Origin(1 + n // 10, OriginKind.FUNCTION, "mean", f"v{n // 10}", b"\1\2\3\4\5") if n % 3 == 0 else None
        ),
        "boot_offset": lambda n: START - 7 * 86_400 * 10**9 if n < 4 else None,
    }
    log = await tabled(west, 4, **kinds)
    await collect(log)
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(running_hub(east, **TABLES))
        positions = RegionPositions(west, log.cluster)
        for shard in range(2):
            position = RegionPosition(next=5, peer=hub.cluster.cluster_id.hex())
            assert await positions.write("east", shard, position, None)
        yield Fabric(west, east, hub)


def shown(store: ObjectStore, stream: str) -> list[dict[str, Any]]:
    """The rows of a table without what each hub says for itself."""
    found = rows(store, stream).drop_columns(["_offset", "_shard", "_received"]).to_pylist()
    return sorted(found, key=lambda row: (row["_edge"], row["_seq"]))


async def test_history_from_tables_makes_both_regions_the_same_and_the_link_goes_on(fabric: Fabric) -> None:
    async with running_hub(fabric.west, regions=to(fabric.hub.url), **TABLES) as west:
        await until(lambda: [link.lost for link in west.regions] == [((5, 20),), ((5, 20),)])
        assert not await fabric.agree()
        done = await fabric.bring()
        assert (done.left_out, done.given_up, done.chunks) == ([], 0, 30)
        await until(fabric.agree)
        for lane in NEW:
            node = LinkIdentity(lane.tenant, lane.edge, lane.log_id, "weft")
            async with running_link(west, log_of(0, 6, lane=lane), node, epochs=MemoryEpochs(1)):
                await until(partial(has, fabric.hub, 6, lane))
        await until(lambda: [link.lost for link in west.regions] == [(), ()])
    assert stored(fabric.hub, LANE) == 812
    for stream in STREAMS:
        await until(partial(fabric.has_rows, stream))
        assert shown(fabric.east, stream) == shown(fabric.west, stream)
        assert (await audit(fabric.east, "default", stream)).agrees


async def test_a_transfer_that_was_interrupted_anywhere_is_run_again(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "WINDOW_ROWS", 64)
    for offered in (100, 230):
        transfer = asyncio.create_task(fabric.bring())
        await until(partial(fabric.has_stored, offered))
        assert not transfer.done()
        transfer.cancel()
        await asyncio.wait([transfer])
    await fabric.bring()
    await fabric.bring()
    assert await fabric.agree()
    assert stored(fabric.hub) == 800
    await until(lambda: len(rows(fabric.east)) == 800)
    assert shown(fabric.east, "telemetry") == shown(fabric.west, "telemetry")


async def test_records_that_left_the_table_are_gaps_where_they_are_not_known(fabric: Fabric) -> None:
    cluster = await open_cluster(fabric.west, 2)
    choice, author = Choice([("_key", "plant/a/m1/telemetry")]), Author("mara", "case 12", START)
    eraser = Eraser(
        fabric.west, cluster, ("default", "telemetry"), clock=lambda: START, monotonic=lambda: 0.0, nonce=lambda: "1"
    )
    assert (await eraser.erase(choice, author)).rows == 800
    done = await fabric.bring()
    assert (done.left_out, done.given_up) == ([], 800)
    assert [list(held(fabric.hub, lane).gaps) for lane in (LANE, OTHER)] == [[GapRange(0, 400, GapReason.OPERATOR)]] * 2
    assert stored(fabric.hub) == 0
    async with running_hub(fabric.west, regions=to(fabric.hub.url)):
        await until(lambda: stored(fabric.hub) == 400)
    assert [held(fabric.hub, lane).whole_end() for lane in (LANE, OTHER)] == [400, 400]


async def test_rows_that_are_missing_without_a_reason_are_named_and_the_chunks_stay_lost(fabric: Fabric) -> None:
    async with running_hub(fabric.west, regions=to(fabric.hub.url)) as west:
        await until(lambda: [link.lost for link in west.regions] == [((5, 20),), ((5, 20),)])
        table(fabric.west).delete("_seq = 100")
        done = await fabric.bring()
        assert (len(done.left_out), done.given_up, done.chunks) == (2, 0, 0)
        assert "the table lacks 1 records of press-1 without a reason" in done.left_out[0]
        assert [link.lost for link in west.regions] == [((5, 20),), ((5, 20),)]
    assert [held(fabric.hub, lane).whole_end() for lane in (LANE, OTHER)] == [100, 100]


async def test_a_region_that_refuses_is_named_with_its_reason(fabric: Fabric) -> None:
    position = RegionPosition(next=5, peer="ab" * 16)
    cluster = await open_cluster(fabric.west, 2)
    positions = RegionPositions(fabric.west, cluster)
    _, etag = await positions.read("east", 0)
    assert await positions.write("east", 0, position, etag)
    with pytest.raises(HistoryError, match="run the command again"):
        await fabric.bring()
    assert stored(fabric.hub) == 0
