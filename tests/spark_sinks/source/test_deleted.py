"""Readers of a stream that an operator deleted: a clear error, and no gap when it begins again."""

from __future__ import annotations

import asyncio
import random

import pytest

from spark_sinks.errors import ReadError
from tests.spark_sinks.conftest import Hub
from tests.spark_sinks.source.following import Follower
from weft.cloud_hub.stream_deletion import Deletion, delete
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

pytestmark = pytest.mark.spark


def delete_stream(hub: Hub) -> None:
    wanted = Deletion(("default", "telemetry"), "mara", "trial is over", keeps_tables=True, is_forced=True)

    async def work() -> None:
        store = open_store(hub.root)
        bits = random.Random(1).getrandbits
        cluster = await open_cluster(store, None)
        assert (await delete(store, cluster, wanted, wall_clock=lambda: 1 << 61, random_bits=bits)).shards
        for shard in range(cluster.shards):
            await ShardLog(store, cluster, shard).extend(hub._writer._states[shard])

    asyncio.run(work())


def test_a_running_query_and_a_new_one_are_told_and_a_later_one_goes_on(hub: Hub) -> None:
    hub.write(2)
    query = Follower(hub)
    at, first = query.batch(query.reader.initialOffset())
    hub.write(2)
    hub.tier()
    delete_stream(hub)
    said = r"stream 'telemetry' of tenant 'default' was deleted at .*: trial is over\. Its table stays, at .*telemetry"
    with pytest.raises(ReadError, match=said):
        query.batch(at)
    with pytest.raises(ReadError, match=said):
        Follower(hub).batch(at)
    hub.write(2)
    assert sorted(first + Follower(hub).batch(at)[1]) == hub.expected()
