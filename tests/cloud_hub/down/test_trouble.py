"""Messages to edges when something else goes wrong: a shard that is not loaded, a writer that lost its lane."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.cloud_hub.down.test_down import EDGE, EPOCHS, Taker, linked, messages, post
from tests.cloud_hub.live import EdgeLog, running_hub
from tests.support.waiting import until
from weft.cloud_hub.down import hub_down
from weft.cloud_hub.down.edge_queue import lane_of
from weft.cloud_hub.down.hub_down import HubDown
from weft.cloud_hub.hub import Hub
from weft.protocols.batch import Buffer
from weft.protocols.link import MessageOutcome, OutcomeKind
from weft.protocols.shard.placement import shard_of
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkSettings, run_link
from weft.replication.source import OfferedLane
from weft.storage.object_store import Object, StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.protocol import Listing


async def test_a_bug_that_shows_with_one_shard_does_not_end_the_looks_for_old_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_down, "SWEEP_S", 0.01)
    swept: list[str] = []

    class Part(NamedTuple):
        name: str

        async def sweep(self) -> None:
            swept.append(self.name)
            if self.name == "broken":
                raise ValueError("a message that nobody thought of")

    def sequencer(shard: int) -> SimpleNamespace:
        return SimpleNamespace(loaded=True, log=SimpleNamespace(shard=shard))

    shards: Any = SimpleNamespace(own=[sequencer(0), sequencer(1)])
    down = HubDown(shards, lambda: 0)
    monkeypatch.setattr(down, "_part", lambda sequencer: Part(("broken", "sound")[sequencer.log.shard]))
    down.start()
    await until(lambda: len(swept) >= 4)
    await down.close()
    assert swept[:4] == ["broken", "sound"] * 2


class NoLanes(EdgeLog):
    """A log of an edge that sends nothing."""

    def lanes(self) -> list[OfferedLane]:
        return []


class ShardGone(MemoryStore):
    """A store that does not read what is gone, from its next write on: a hub looks at all shards before that."""

    def __init__(self) -> None:
        super().__init__()
        self.goes: tuple[str, ...] = ()
        self.gone: tuple[str, ...] = ()

    async def create(self, key: str, data: Buffer) -> str:
        self.gone = self.goes
        return await super().create(key, data)

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        if prefix.startswith(self.gone):
            raise StoreError(f"{prefix} is gone")
        return await super().list(prefix, after, limit)

    async def get(self, key: str) -> Object:
        if key.startswith(self.gone):
            raise StoreError(f"{key} is gone")
        return await super().get(key)


async def test_a_link_stays_while_the_shard_with_its_messages_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a relay's: lanes of other edges are in other shards."""
    monkeypatch.setattr(hub_down, "LINK_RETRY_S", 0.02)
    store, taker = ShardGone(), Taker()
    async with running_hub(store) as hub:
        async with linked(hub, None):
            pass
        assert (await post(hub, "one"))[0] == 200
    store.goes = (f"shard-{shard_of('default', 'press-1', 2)}/chunk/",)
    async with running_hub(store) as hub:
        status, settings = LinkStatus("hub"), LinkSettings((hub.url,), retry_min_s=0.02)
        task = asyncio.create_task(run_link(NoLanes(), EDGE, settings, EPOCHS, status, taker=taker))
        try:
            await until(lambda: status.connections == 1)
            await asyncio.sleep(0.2)
            assert (status.connections, taker.stored) == (1, [])
            store.goes = store.gone = ()
            await until(lambda: taker.stored == ["one"])
            assert status.connections == 1
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_outcome_passes_over_no_message_that_another_process_wrote_meanwhile() -> None:
    """The lane's mark would be behind that message, and the next process would not look for it."""
    store, taker = MemoryStore(), Taker()
    async with running_hub(store, shards=1) as first, running_hub(store, shards=1) as second:
        taker.answers = False
        async with linked(first, taker):
            await post(second, "one")
            await until(lambda: taker.stored == ["one"])
            (shard,), lane = first._down._of.values(), lane_of("default", "press-1")
            (message,) = [message for _, message in shard._queues[lane].waiting.values()]
            async with shard._lock:  # it is busy with another edge's messages
                await post(second, "two")
                await until(lambda: shard._noted)
                shard.settle(lane, [MessageOutcome(message.number, message.accepted, OutcomeKind.PUBLISHED)])
                await until(lambda: lane in shard._writers and shard._writers[lane].is_open)
            await until(lambda: outcomes(second))
    assert taker.stored == ["one", "two"]
    async with running_hub(store, shards=1) as again:
        assert [each["number"] for each in (await messages(again))["waiting"]] == [1]


async def test_messages_go_over_the_earlier_link_of_an_edge_when_the_last_one_leaves() -> None:
    taker, other = Taker(), Taker()
    other.known = taker.known
    async with running_hub(MemoryStore()) as hub, linked(hub, taker):
        status, settings = LinkStatus("other"), LinkSettings((hub.url,), retry_min_s=0.02)
        task = asyncio.create_task(run_link(NoLanes(), EDGE, settings, EPOCHS, status, taker=other))
        await until(lambda: status.connections == 1)
        await post(hub, "one")
        await until(lambda: other.stored == ["one"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await post(hub, "two")
        await until(lambda: taker.stored == ["two"])


async def outcomes(hub: Hub) -> list[str]:
    return [each["outcome"] for each in (await messages(hub))["outcomes"]]
