"""Connections that ask nothing are closed; those with a request under way are not."""

from __future__ import annotations

import asyncio

from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.waiting import until
from weft.cloud_hub.api.idle import IDLE_MAX, IDLE_S_MAX, IdleConnections
from weft.cloud_hub.hub import Hub
from weft.storage.object_store.memory import MemoryStore

HALF_A_REQUEST = b"GET /v1/streams HTTP/1.1\r\nHost: hub\r\nX-Slowly: "


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""Both are kept: a writer that is collected closes its connection."""


async def half_open(hub: Hub) -> Peer:
    port = int(hub.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HALF_A_REQUEST)
    await writer.drain()
    return reader, writer


async def closed(peer: Peer) -> bool:
    try:
        return await asyncio.wait_for(peer[0].read(1), 5) == b""
    except ConnectionError:
        return True


async def test_a_request_whose_head_never_ends_is_cut_off_and_a_link_is_not() -> None:
    async with running_hub(MemoryStore()) as hub:
        now = [0.0]
        idle = hub._idle
        assert isinstance(idle, IdleConnections)
        idle._monotonic = lambda: now[0]
        log = EdgeLog()
        log.append(*records(0, [b"a"]))
        async with running_link(hub, log, EDGE) as link:
            await log.until_released(1)
            peer = await half_open(hub)
            await until(lambda: len(list(hub._connections())) == 2)
            idle.look()
            now[0] = IDLE_S_MAX - 1
            idle.look()
            assert (await get(hub, "/v1/streams"))[0] == 200
            assert not peer[0].at_eof()
            now[0] = IDLE_S_MAX
            idle.look()
            assert await closed(peer)
            log.append(*records(1, [b"b"]))
            await log.until_released(2)
            assert link.connections == 1


async def test_too_many_idle_connections_are_cut_off_oldest_first() -> None:
    async with running_hub(MemoryStore()) as hub:
        idle = hub._idle
        assert isinstance(idle, IdleConnections)
        await idle.close()
        now = [0.0]
        idle._monotonic = lambda: now[0]
        old = [await half_open(hub) for _ in range(3)]
        await until(lambda: len(list(hub._connections())) == 3)
        idle.look()
        now[0] = 1.0
        young = [await half_open(hub) for _ in range(IDLE_MAX)]
        await until(lambda: len(list(hub._connections())) == IDLE_MAX + 3)
        idle.look()
        assert [await closed(peer) for peer in old] == [True] * 3
        assert not any(reader.at_eof() for reader, _ in young)
        assert (await get(hub, "/v1/streams"))[0] == 200
