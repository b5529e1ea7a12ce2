"""Edges with several links to one hub, of which some bring what it asks for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cloud_hub.live import running_hub
from tests.cloud_hub.pulls.plants import Plant, ask, held, linked_plant, over, pull_of
from tests.support.waiting import Patience, until
from weft.config.links import Pull
from weft.protocols.ranges import RangeSet
from weft.replication.events import LinkState
from weft.storage.object_store.directory import MemoryStore

pytestmark = pytest.mark.slow


async def adopt(plant: Plant, **links: Any) -> None:
    """Run these links beside the plant's first one, and no others."""
    first = plant.config.links["hub"]
    more = {name: msgspec.structs.replace(first, **fields) for name, fields in links.items()}
    plant.links.adopt(msgspec.structs.replace(plant.config, links={"hub": first} | more))
    await until(lambda: all(status.is_taken for status in plant.links.statuses))


async def test_a_link_that_allows_nothing_does_not_answer_for_one_that_does(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await adopt(plant, alarms={"streams": (), "pull": None})
        await plant.records("vibration", 10)
        found = await over(hub, (await ask(hub, -1, 50))[1]["id"])
        assert (found["state"], held(hub, plant)) == ("done", RangeSet([(0, 10)]))


async def test_links_that_stay_with_two_processes_share_a_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As for an edge that does not reach the other process under its name.
    monkeypatch.setattr("weft.cloud_hub.links.edge_link.redirect", lambda *_: None)
    store = MemoryStore()
    async with running_hub(store) as hub, running_hub(store) as other, linked_plant(tmp_path, hub) as plant:
        slow = Pull(streams=("vib*",), rate=20_000)
        await adopt(plant, alarms={"to": (other.url,), "streams": (), "pull": slow})
        await plant.records("vibration", 10, batches=200)
        found = await over(hub, (await ask(hub, -1, 500))[1]["id"])
        assert (found["state"], found["records_received"]) == ("done", 2000)
        assert [(each.state, each.connections) for each in plant.links.statuses] == [(LinkState.CONNECTED, 1)] * 2
        assert not any(state.conflict for each in hub.sequencers for state in each.state.lanes.values())


async def test_another_link_is_asked_when_the_last_one_leaves(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await adopt(plant, alarms={"streams": (), "pull": Pull(streams=("vib*",), rate=1000)})
        await plant.records("vibration", 10, batches=200)
        id_ = (await ask(hub, -1, 500))[1]["id"]
        await until(lambda: bool(held(hub, plant)))
        await adopt(plant)
        patience = Patience()
        while "continues when this link connects again" not in str((found := await pull_of(hub, id_))["reason"]):
            assert not patience.is_over(), found
            await asyncio.sleep(0.05)
        assert not any(state.conflict for each in hub.sequencers for state in each.state.lanes.values())
        await adopt(plant, hub={"retry_min_s": 0.02})
        found = await over(hub, id_)
        assert (found["state"], held(hub, plant)) == ("done", RangeSet([(0, 2000)]))
