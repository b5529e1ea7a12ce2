"""A hub closes connections that ask nothing, and leaves links alone."""

from __future__ import annotations

import asyncio

from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.network.test_http_server import closed, half_open
from tests.support.waiting import until
from weft.network.http_server import IDLE_S_MAX
from weft.storage.object_store.directory import MemoryStore


async def test_a_request_whose_head_never_ends_is_cut_off_and_a_link_is_not() -> None:
    async with running_hub(MemoryStore()) as hub:
        now = [0.0]
        server = hub._listener.server
        server._monotonic = lambda: now[0]
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE) as link:
            await log.until_released(1)
            peer = await half_open(server)
            await until(lambda: server.connections == 2)
            now[0] = IDLE_S_MAX
            server.look()
            assert await closed(peer)
            log.append(*records(1, [b"b"]))
            await log.until_released(2)
            assert link.connections == 1


async def test_links_do_not_count_among_the_connections_of_their_address() -> None:
    """A proxy has those of a fleet."""
    async with running_hub(MemoryStore(), connections_per_address_max=1) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE) as link:
            await log.until_released(1)
            for _ in range(3):
                assert (await get(hub, "/v1/streams"))[0] == 200
            log.append(*records(1, [b"b"]))
            await log.until_released(2)
            assert link.connections == 1


async def test_idle_connections_beyond_the_setting_are_cut_off() -> None:
    async with running_hub(MemoryStore(), idle_connections_max=3) as hub:
        peers = await asyncio.gather(*(half_open(hub._listener.server) for _ in range(40)))
        await until(lambda: hub._listener.server.connections <= 3)
        assert (await get(hub, "/v1/streams"))[0] == 200
        for _, writer in peers:
            writer.close()
