"""The start of a hub process on a bucket: what it tries before it serves anyone, and what it leaves for later."""

from __future__ import annotations

import importlib
import time

import pytest

from tests.storage.object_store.racy_server import RacyBucket, racy_server
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.store import HubStore
from weft.protocols.chunk_index import LEVEL_MAX
from weft.storage.object_store import StoreUnfit


async def opened(uri: str, options: dict[str, str]) -> HubStore:
    settings = HubSettings(store=uri, store_options=options, shards=2)
    return await HubStore.open(settings, None, HubClock(time.time_ns, time.monotonic_ns), LEVEL_MAX)


@pytest.fixture(autouse=True)
def few_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of ten: the others take a second each on a busy machine."""
    monkeypatch.setattr(importlib.import_module("weft.storage.object_store.probe"), "RACES", 2)


async def test_a_server_that_was_raced_before_is_raced_while_edges_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cloud_hub.store.RACE_AFTER_S", 0.0)
    bucket = RacyBucket(checks_late=True)
    async with racy_server(bucket=bucket) as (uri, options):
        cluster = (await opened(uri, options)).cluster
        first, bucket.puts = bucket.puts, 0
        again = await opened(uri, options)
        assert again.cluster == cluster
        assert bucket.puts < first / 5
        # Another server takes over at the same address, and does not keep what the first one kept.
        bucket.checks_late = False
        again.start()
        assert "under a race" in await again.failed()
        await again.close()
        with pytest.raises(StoreUnfit, match="under a race"):
            await opened(uri, options)


async def test_a_store_that_does_not_answer_for_a_moment_does_not_end_a_start() -> None:
    bucket = RacyBucket(checks_late=True)
    bucket.unavailable = 2
    async with racy_server(bucket=bucket) as (uri, options):
        cluster = (await opened(uri, options)).cluster
        bucket.unavailable = 2
        assert (await opened(uri, options)).cluster == cluster
