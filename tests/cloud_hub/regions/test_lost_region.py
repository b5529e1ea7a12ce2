"""docs/how-to/lose-a-region.md: one of two regions is lost, its edges go to the other, and it comes back."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.cloud_hub.regions.fabric import LANE, NODE, has, held, log_of, stored, to
from tests.cloud_hub.regions.test_two_regions import OTHER, OTHER_NODE, order
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub.facts.hub import compare_region
from weft.cloud_hub.hub import Hub
from weft.proofs.audit.report import compare_regions
from weft.protocols.chunk_index import GapRange
from weft.protocols.segment import GapReason
from weft.storage.chunk_log import RegionPositions
from weft.storage.object_store.directory import MemoryStore


@dataclass
class TwoRegions:
    """A west and an east, which relay to each other, and an edge at each."""

    stack: AsyncExitStack
    stores: dict[str, MemoryStore] = field(default_factory=lambda: {"west": MemoryStore(), "east": MemoryStore()})
    ports: dict[str, int] = field(default_factory=lambda: {"west": free_port(), "east": free_port()})
    backup: MemoryStore = field(default_factory=MemoryStore)
    """The west's store after three records of its edge."""
    east_log: EdgeLog = field(default_factory=lambda: log_of(0, 3, lane=OTHER))

    async def hub(self, name: str, stack: AsyncExitStack, *, peer: str | None = None, forwards: bool = False) -> Hub:
        """Start the hub of a region, which names the other one ``peer``."""
        (other,) = self.ports.keys() - {name}
        (link,) = to(f"http://127.0.0.1:{self.ports[other]}", forwards=forwards).values()
        return await stack.enter_async_context(
            running_hub(
                self.stores[name],
                port=self.ports[name],
                regions={peer or other: link},
                peers=True,
                cluster_log_interval_s=0.02,
            )
        )

    async def lose_the_west(self) -> Hub:
        """Take records in both regions, lose the west, and have its edge go over. Return the east's hub."""
        async with AsyncExitStack() as lost, AsyncExitStack() as former:
            west, east = await self.hub("west", lost), await self.hub("east", former)
            log = log_of(0, 3)
            async with (
                running_link(west, log, NODE, epochs=MemoryEpochs(1)),
                running_link(east, self.east_log, OTHER_NODE, epochs=MemoryEpochs(1)),
            ):
                await until(lambda: all(has(hub, 3, lane) for hub in (west, east) for lane in (LANE, OTHER)))
                self.backup = copy.deepcopy(self.stores["west"])
                log.append(*log_of(3, 6).batches[0])
                await until(lambda: has(east, 6) and has(west, 6))
                await until(lambda: self._is_written(east))
        east = await self.hub("east", self.stack)
        log = log_of(6, 9)
        log.gaps = [GapRange(0, 6, GapReason.ABSENT)]  # the edge deleted what the west had acknowledged
        await self.stack.enter_async_context(running_link(east, log, NODE, epochs=MemoryEpochs(5)))
        await until(lambda: has(east, 9))
        assert not held(east).gaps, "the east has what the west had relayed"
        return east

    async def _is_written(self, east: Hub) -> bool:
        """Whether the east's store knows by now which cluster has what."""
        positions = RegionPositions(self.stores["east"], east.cluster)
        found = [(await positions.read("west", each.log.shard))[0] for each in east.sequencers]
        return any(each is not None and each.peer for each in found)

    async def agree(self) -> bool:
        stores = self.stores["west"], self.stores["east"]
        return (await compare_regions(stores, LANE.tenant, LANE.stream)).agree


@pytest.fixture
async def regions() -> AsyncIterator[TwoRegions]:
    async with AsyncExitStack() as stack:
        yield TwoRegions(stack)


async def resume(regions: TwoRegions, east: Hub, west: Hub) -> None:
    """Both take records again, and end with the same."""
    regions.east_log.append(*log_of(3, 6, lane=OTHER).batches[0])
    async with running_link(east, regions.east_log, OTHER_NODE, epochs=MemoryEpochs(5)):
        await until(lambda: has(west, 9) and has(west, 6, OTHER))
    await until(regions.agree)
    assert (stored(west), stored(east)) == (15, 15)


async def test_a_region_that_comes_back_from_a_backup_gets_what_it_lost_of_its_own_too(regions: TwoRegions) -> None:
    await regions.lose_the_west()
    await regions.stack.aclose()
    regions.stores["west"] = regions.backup
    east = await regions.hub("east", regions.stack, forwards=True)
    west = await regions.hub("west", regions.stack)
    assert stored(west) == 6
    await order(east, regions.stores["east"], compare_region("west"))
    await resume(regions, east, west)


async def test_a_region_that_comes_back_empty_is_another_cluster_and_gets_everything(regions: TwoRegions) -> None:
    east = await regions.lose_the_west()
    regions.stores["west"] = MemoryStore()
    async with AsyncExitStack() as first:
        west = await regions.hub("west", first)
        await until(lambda: any("and this link is for" in link.report().error for link in east.regions))
        assert stored(west) == 0
    await regions.stack.aclose()
    east = await regions.hub("east", regions.stack, peer="west-2", forwards=True)
    west = await regions.hub("west", regions.stack)
    await resume(regions, east, west)
