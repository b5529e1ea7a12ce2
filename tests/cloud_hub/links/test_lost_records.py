"""A hub whose store was put back says itself what it lacks, by what every edge tells it when it comes."""

from __future__ import annotations

import shutil
from pathlib import Path

import aiohttp
import pytest

from tests.cloud_hub.links.test_conflicts import LANE, NODE, log_of
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.protocols.link import PROTOCOL_VERSION, FrameEncoder, Hello, LaneOpen
from weft.replication.runner import LINK_PATH
from weft.storage.object_store.directory import DirectoryStore, MemoryStore


async def held_back(hub: Hub) -> list[dict[str, str]]:
    answer = (await get(hub, f"/v1/streams/{LANE.stream}/completeness"))[1]
    return [each for each in answer["held_back_by"] if each["reason"] != "late"]


async def test_what_edges_say_was_acknowledged_is_named_until_it_is_there_again() -> None:
    store = MemoryStore()
    async with running_hub(store) as hub:
        async with running_link(hub, log_of(3), NODE, epochs=MemoryEpochs(1)) as link:
            await until(lambda: link.records_acked >= 3)
        assert (await get(hub, "/v1/status"))[1]["lost"] == []
        hello = Hello(PROTOCOL_VERSION, LANE.tenant, LANE.edge, LANE.log_id, 1, 0, "weft")
        reports = [("another hub", [(0, 99)]), (hub.cluster.cluster_id.hex(), [(0, 2), (2, 8), (9, 7)])]
        opening = LaneOpen(1, *LANE, 7, [], acknowledged=reports)
        async with aiohttp.ClientSession() as session, session.ws_connect(hub.url + LINK_PATH) as socket:
            await socket.send_bytes(FrameEncoder().encode([hello, opening]))
            for _ in range(2):
                await socket.receive()
            [lost] = (await get(hub, "/v1/status"))[1]["lost"]
            assert (lost["edge"], lost["stream"], lost["records"], lost["first_seq"]) == ("press-1", LANE.stream, 5, 3)
            [reason] = await held_back(hub)
            assert reason["reason"] == "lost_records"
            assert "lacks 5 records, from seq 3 on, that it had acknowledged to the edge" in reason["why"]
        log: EdgeLog = log_of(8)  # the edge has them still
        async with running_link(hub, log, NODE, epochs=MemoryEpochs(8)):
            await log.until_released(8)
            assert (await get(hub, "/v1/status"))[1]["lost"] == []
            assert await held_back(hub) == []


async def tabled(hub: Hub, records: int) -> None:
    async def is_there() -> bool:
        tables = (await get(hub, "/v1/status"))[1]["tables"]
        return bool(tables) and sum(shard["table"] for shard in tables[0]["shards"]) == records

    await until(is_there)


@pytest.mark.slow
async def test_completeness_names_a_table_that_is_ahead_of_the_restored_log(tmp_path: Path) -> None:
    place, copy = tmp_path / "store", tmp_path / "copy"
    store = DirectoryStore(str(place))
    async with running_hub(store, table_interval_s=0.05) as hub:
        async with running_link(hub, log_of(3), NODE, epochs=MemoryEpochs(1)):
            await tabled(hub, 3)
        shutil.copytree(place, copy)
        async with running_link(hub, log_of(8), NODE, epochs=MemoryEpochs(8)):
            await tabled(hub, 8)
            assert await held_back(hub) == []
    for shard in place.glob("shard-*"):
        shutil.rmtree(shard)
        shutil.copytree(copy / shard.name, shard)
    async with running_hub(store, table_interval_s=0.05) as hub:
        await until(lambda: has_reason(hub))
        [reason] = await held_back(hub)
        assert reason["reason"] == "table_stands_still"
        assert "the moment speaks of the log, and the table of default/telemetry is not being updated" in reason["why"]
        assert "The store was restored to an earlier state. Move the table away" in reason["why"]


async def has_reason(hub: Hub) -> bool:
    return bool(await held_back(hub))
