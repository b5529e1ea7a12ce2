"""Two regions: what one hub takes from an edge is in the other's log under the same lane, once, with nothing missing."""

from __future__ import annotations

from tests.cloud_hub.live import running_hub, running_link
from tests.cloud_hub.regions.fabric import LANE, NODE, has, held, log_of, stored, to
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.protocols.chunk import GapRange
from weft.protocols.segment import GapReason
from weft.storage.object_store.memory import MemoryStore


async def test_records_of_one_region_are_in_the_other_once_and_complete_up_to_the_same_moment() -> None:
    async with running_hub(MemoryStore()) as east, running_hub(MemoryStore(), regions=to(east.url)) as west:
        log = log_of(0, 10)
        async with running_link(west, log, NODE, epochs=MemoryEpochs(1)):
            await until(lambda: has(east, 10))
            log.append(*log_of(10, 20, batch=10).batches[0])
            await until(lambda: has(east, 20))
        there, here = held(east), held(west)
        assert (stored(east), stored(west)) == (20, 20)
        assert (there.topics, there.payload, there.partial) == (here.topics, here.payload, False)
        await until(lambda: held(west).whole_mark is not None and held(east).whole_mark == held(west).whole_mark)


async def test_an_edge_that_deleted_what_one_region_took_and_goes_to_the_other_leaves_both_whole() -> None:
    east_store, west_store = MemoryStore(), MemoryStore()
    async with running_hub(west_store) as west, running_link(west, log_of(0, 9), NODE, epochs=MemoryEpochs(1)) as link:
        await until(lambda: link.records_acked >= 9)
    async with running_hub(east_store, peers=True) as east:
        log = log_of(9, 15)
        log.gaps = [GapRange(0, 9, GapReason.ABSENT)]
        async with running_link(east, log, NODE, epochs=MemoryEpochs(5)):
            await log.until_released(15)
        assert held(east).whole_end() == 0, "completeness waits for the other region"
        async with running_hub(west_store, regions=to(east.url)) as west:
            await until(lambda: has(east, 15) and not held(east).gaps)
        async with running_hub(west_store) as west:
            east_url = west.url
            await east.close()
            async with running_hub(east_store, regions=to(east_url)):
                await until(lambda: has(west, 15) and not held(west).gaps)
    assert LANE.edge == "press-1"
