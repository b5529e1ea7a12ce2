"""When a hub says that it is not well, or not ready, to who has no token."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cloud_hub.faulty_store import CALM, FaultyStore
from tests.cloud_hub.live import get, running_hub
from tests.support.tokens import create_token
from weft.hub_api.rights import Scope
from weft.storage.object_store.directory import MemoryStore


async def test_a_hub_with_tokens_tells_probes_and_nothing_else(tmp_path: Path) -> None:
    tokens = str(tmp_path / "tokens")
    create_token(tokens, "operator", Scope.ADMIN)
    async with running_hub(MemoryStore(), tokens=tokens) as hub:
        assert await get(hub, "/healthz") == (200, "healthy\n")
        assert await get(hub, "/readyz") == (200, "ready\n")
        assert (await get(hub, "/metrics"))[0] == 401


async def test_a_store_that_does_not_answer_makes_it_not_ready_and_a_restart_would_not_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft.cloud_hub.http.process.STORE_SILENCE_S", 0.5)
    monkeypatch.setattr("weft.cloud_hub.http.process.LOOK_AGE_S", 0.0)
    store = FaultyStore(MemoryStore(), random.Random(1), replace(CALM, latency_s=0.0))
    async with running_hub(store, shards=1) as hub:
        assert await get(hub, "/readyz") == (200, "ready\n")
        store.faults = replace(CALM, read=1.0, latency_s=0.0)
        while (answer := await get(hub, "/readyz"))[0] == 200:
            pass
        assert answer[0] == 503
        assert answer[1].startswith("not ready: the store has not answered for ")
        assert (await get(hub, "/healthz"))[0] == 200
        store.faults = replace(CALM, latency_s=0.0)
        while (await get(hub, "/readyz"))[0] == 503:
            pass


async def test_work_that_has_ended_is_a_reason_to_start_again() -> None:
    async with running_hub(MemoryStore(), shards=2) as hub:
        await hub.sequencers[1].close()
        assert await get(hub, "/healthz") == (503, "not healthy: the work on shard 1 has ended\n")
        assert (await get(hub, "/readyz"))[0] == 503
