"""A hub whose objects were copied elsewhere is the same hub there, as docs/how-to/move-a-bucket.md says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.processes import weft
from tests.support.s3_servers import VERSITYGW, S3Server, built
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.storage.object_store import ObjectStore, open_store

pytestmark = pytest.mark.slow


async def copy_all(source: ObjectStore, target: ObjectStore) -> int:
    listed = await source.list("")
    for key, _ in listed:
        await target.create(key, (await source.get(key)).data)
    return len(listed)


async def tabled(hub: Hub, rows: int) -> None:
    await until(lambda: hub._tables.rows("default", "telemetry") == rows)


@pytest.mark.parametrize("target", ["folder", "bucket"])
async def test_the_copy_goes_on_where_the_hub_was(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store(str(tmp_path / "first"))
    log, epochs = EdgeLog(), MemoryEpochs()
    log.append(*records(0, [b'{"a": 1}', b'{"a": 2}']))
    async with running_hub(first, table_interval_s=0.1) as hub, running_link(hub, log, EDGE, epochs=epochs):
        await log.until_released(2)
        await tabled(hub, 2)
        cluster = hub.status().cluster_id
    if target == "folder":
        await _moved(first, str(tmp_path / "second"), log, epochs, cluster)
        return
    try:
        binary = await asyncio.to_thread(built, VERSITYGW)
    except LookupError as error:
        pytest.skip(str(error))
    with S3Server(VERSITYGW, binary, tmp_path / "server") as server:
        for name, value in server.options().items():
            monkeypatch.setenv(name, value)
        await _moved(first, server.uri, log, epochs, cluster)


async def _moved(first: ObjectStore, uri: str, log: EdgeLog, epochs: MemoryEpochs, cluster: object) -> None:
    second = open_store(uri)
    assert await copy_all(first, second) > 5
    log.append(*records(2, [b'{"a": 3}']))
    async with running_hub(second, table_interval_s=0.1) as hub, running_link(hub, log, EDGE, epochs=epochs) as link:
        assert hub.status().cluster_id == cluster
        await log.until_released(3)
        await tabled(hub, 3)
        assert (link.alarm, hub.status().lost) == ("", [])
        _, streams = await get(hub, "/v1/streams")
        assert [each["records"] for each in streams["streams"]] == [3]
    report = json.loads((await asyncio.to_thread(weft, "audit", "telemetry", "--store", uri, "--json")).stdout)
    assert report["problems"] == []
