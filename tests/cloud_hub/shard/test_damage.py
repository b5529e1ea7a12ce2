"""What a damaged object in the store costs: its own shard, with a word about which object it is, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_hub.api.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.protocols.shard.placement import shard_of
from weft.replication.events import LinkState
from weft.replication.runner import LinkIdentity
from weft.storage.object_store import ObjectStore, open_store

EDGES = [f"press-{n}" for n in range(8)]
NAMES = {shard_of("default", edge, 2): LinkIdentity("default", edge, 1, "test") for edge in EDGES}
"""An edge in each of two shards."""


async def deliver(hub: Hub, shard: int, first: int, end: int) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"x"] * end))
    async with running_link(hub, log, NAMES[shard], epochs=MemoryEpochs(first)):
        await log.until_released(end)


async def swap_bytes(store: ObjectStore, key: str, data: bytes) -> bytes:
    before = (await store.get(key)).data
    await store.delete(key)
    await store.create(key, data)
    return before


def assert_neutral(text: str, folder: Path) -> None:
    """Check that edges and readers, who may be of other tenants, learn why and no name in the store."""
    assert "damaged or missing; the hub's operator sees which one" in text
    assert str(folder) not in text
    assert "shard-1/" not in text


@pytest.mark.parametrize("name", ["chunk", "manifest"])
async def test_a_hub_starts_without_a_damaged_shard_and_takes_it_up_when_it_is_mended(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(tmp_path))
    async with running_hub(store) as hub:
        for shard in (0, 1):
            await deliver(hub, shard, 0, 3)
    key = f"shard-1/chunk/{1:020d}" if name == "chunk" else "shard-1/manifest"
    if name == "manifest":
        await store.create(key, b"{}")
    whole = await swap_bytes(store, key, b"garbage" * 20)
    async with running_hub(store) as hub:
        await deliver(hub, 0, 1, 6)

        log = EdgeLog()
        log.append(*records(0, [b"x"] * 6))
        async with running_link(hub, log, NAMES[1], epochs=MemoryEpochs(1)) as status:
            await until(lambda: status.state is LinkState.WAITING)
            assert_neutral(status.last_error, tmp_path)
            assert "nothing is lost" in status.last_error
            assert f"{key} is damaged" in caplog.text

            _, node = await get(hub, "/v1/status")
            assert node["shards"][0]["trouble"] is None
            assert f"{key} is damaged" in node["shards"][1]["trouble"]
            assert (await get(hub, "/readyz"))[0] == 200, "edges of shard 0 are served"
            assert (await get(hub, "/healthz"))[0] == 200
            assert "restore this object" in node["shards"][1]["trouble"]
            # Shard 0 is answered for. What shard 1 holds of the stream is not known: no completeness is claimed.
            for path in ("", "/lanes", "/completeness", "/records"):
                code, answer = await get(hub, "/v1/streams/telemetry" + path)
                assert code == 200
                assert [missing["shard"] for missing in answer["missing_shards"]] == [1]
                assert_neutral(answer["missing_shards"][0]["trouble"], tmp_path)
                assert answer.get("complete_up_to") is None
            assert len(answer["records"]) == 6
            code, answer = await get(hub, "/v1/streams/telemetry/records?shard=1")
            assert code == 503
            assert_neutral(answer["detail"], tmp_path)
            code, answer = await get(hub, "/v1/streams/alarms")
            assert_neutral(answer["detail"], tmp_path)
            assert code == 503, "it may be in the shard that cannot be read"

            await swap_bytes(store, key, whole)
            await log.until_released(6)
        assert (await get(hub, "/v1/streams/telemetry"))[1]["records"] == 12


async def test_a_damaged_section_is_named_to_the_operator_and_other_records_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(tmp_path))
    async with running_hub(store) as hub:
        for shard in (0, 1):
            await deliver(hub, shard, 0, 3)
        chunks = await store.list("shard-1/chunk")
        key = max(chunks, key=lambda item: item.size).key
        damaged = bytearray((await store.get(key)).data)
        damaged[100] ^= 1
        await swap_bytes(store, key, bytes(damaged))
        code, answer = await get(hub, "/v1/streams/telemetry/records?shard=1")
        assert code == 500
        assert_neutral(answer["detail"], tmp_path)
        assert f"{key} is damaged" in caplog.text
        code, answer = await get(hub, "/v1/streams/telemetry/records?shard=0")
        assert (code, len(answer["records"]), "missing_shards" in answer) == (200, 3, False)
        code, answer = await get(hub, "/v1/streams/telemetry/records")
        assert (code, len(answer["records"]), list(answer["next_offset"])) == (200, 3, ["0"])
        assert_neutral(answer["missing_shards"][0]["trouble"], tmp_path)
        await deliver(hub, 1, 1, 6)
