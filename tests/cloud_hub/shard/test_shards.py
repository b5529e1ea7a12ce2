"""Shards of other processes, loaded while they are needed."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import machine, make_sequencer
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.shard.placement import ShardTree
from weft.storage.object_store.directory import MemoryStore


def test_a_shard_that_is_needed_again_while_another_is_closed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        owners = machine(3, processes=3)
        tree = ShardTree(2, [0])
        shards = Shards(lambda: tree, owners, lambda _: make_sequencer(MemoryStore(), random.Random(1)), idle_s=100)
        await shards.start()
        others = [shard for shard in range(3) if not owners.is_own(shard)]
        first, second = [await shards.get(shard) for shard in others]
        closing, resume, close = asyncio.Event(), asyncio.Event(), Sequencer.close

        async def slowly(sequencer: Sequencer) -> None:
            closing.set()
            await resume.wait()
            await close(sequencer)

        monkeypatch.setattr(Sequencer, "close", slowly)
        await closing.wait()
        assert await shards.get(others[1]) is second
        resume.set()
        await asyncio.sleep(50)
        assert not first.is_running
        assert second.is_running
        await asyncio.sleep(100)
        assert not second.is_running, "and later it is idle, too"
        await shards.close()

    virtual_time.run(main())
