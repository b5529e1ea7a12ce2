"""Two nodes with one log: the hub notes the refused one, and completeness stands still until an operator decides."""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec
import pytest

from tests.cloud_hub.fabric import make_batch
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.shard.lane_ends import conflicts, note_conflicts
from weft.protocols.chunk import encode_header
from weft.protocols.chunk_index import Chunk, ChunkHeader, Control, ControlKind, StreamBlock, encode_footer, index_of
from weft.protocols.lane import Lane
from weft.protocols.link import PROTOCOL_VERSION, FrameEncoder, Hello, LaneOpen
from weft.protocols.shard.fold import fold
from weft.protocols.shard.lane_state import ConflictBody
from weft.protocols.shard.placement import shard_of
from weft.replication.events import LinkState
from weft.replication.runner import LINK_PATH, LinkIdentity
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store.directory import MemoryStore

LANE = Lane("default", "press-1", 7, "telemetry")
NODE = LinkIdentity("default", "press-1", 7, "weft")
COMPLETENESS = "/v1/streams/telemetry/completeness"


def log_of(count: int) -> EdgeLog:
    log = EdgeLog()
    log.append(*make_batch(LANE, 0, count))
    return log


async def held_back(hub: Hub) -> list[str]:
    status, answer = await get(hub, COMPLETENESS)
    return [each["reason"] for each in answer["held_back_by"] if each["reason"] != "late"] if status == 200 else []


async def moment(hub: Hub) -> str | None:
    found: str | None = (await get(hub, COMPLETENESS))[1]["complete_up_to"]
    return found


async def decide(store: MemoryStore, hub: Hub) -> None:
    """What `weft hub adopt` writes."""
    log = ShardLog(store, hub.cluster, shard_of(LANE.tenant, LANE.edge, 2))
    state = await log.load()
    header = ChunkHeader(state.cluster_id, state.n + 1, state.created, state.shard, state.footer_crc, 99)
    reported = StreamBlock([], [Control(ControlKind.ADOPT, *LANE, b"")], [])
    footer = index_of(header, state.fold_level, [], reported)
    tail, crc = encode_footer(footer)
    fold(state, Chunk(header, footer, crc))
    await log.create(header.n, encode_header(header) + tail)


async def test_a_refused_copy_holds_back_its_streams_until_an_operator_decides() -> None:
    store, log, epochs = MemoryStore(), log_of(3), MemoryEpochs()
    async with running_hub(store) as hub:
        async with running_link(hub, log, NODE, epochs=epochs) as taken:
            await log.until_released(3)
            await until(lambda: moment_is_known(hub))
            async with running_link(hub, log_of(3), NODE, epochs=MemoryEpochs(epochs.proposed[-1] - 1)) as copy:
                await until(lambda: copy.state is LinkState.CONFLICT)
                await until(lambda: is_held_back(hub, ["conflict"]))
            stands_at = await moment(hub)
            assert stands_at is not None
            await asyncio.sleep(0.3)  # marks of the node that was taken continue
            assert await moment(hub) == stands_at
            status = (await get(hub, "/v1/status"))[1]
            [reported] = status["conflicts"]
            assert (reported["edge"], reported["stream"], reported["refused_epoch"]) == (
                "press-1",
                "telemetry",
                epochs.proposed[-1],
            )
            assert "the hub accepted this log before with epoch 1, and it now connects with 1" in reported["why"]
            assert b"weft_hub_conflicts 1" in (await text(hub, "/metrics"))

            connections = taken.connections
            await decide(store, hub)
            await until(lambda: taken.connections > connections)  # with an epoch of its own
            await until(lambda: is_held_back(hub, []))
            await until(lambda: has_moved_on(hub, stands_at))


async def test_a_process_that_owns_no_shard_tells_of_the_conflicts_of_all() -> None:
    store, log, epochs = MemoryStore(), log_of(3), MemoryEpochs()
    async with running_hub(store) as hub, running_link(hub, log, NODE, epochs=epochs):
        await log.until_released(3)
        async with running_link(hub, log_of(3), NODE, epochs=MemoryEpochs(epochs.proposed[-1] - 1)) as copy:
            await until(lambda: copy.state is LinkState.CONFLICT)
            await until(lambda: is_held_back(hub, ["conflict"]))
        async with running_hub(store) as other:  # it has just come, and owns nothing for half a minute
            assert (await get(other, "/v1/status"))[1]["conflicts"] == []
            reported = (await get(other, "/v1/troubles"))[1]
            assert reported["conflicts"] == (await get(hub, "/v1/status"))[1]["conflicts"] != []
            nodes = (await get(other, "/v1/nodes"))[1]["nodes"]
            assert sorted((each["state"], bool(each["owns"])) for each in nodes) == [
                ("joining", False),
                ("ready", True),
            ]


@pytest.mark.slow
async def test_after_the_decision_the_refused_node_may_be_the_one() -> None:
    store, log = MemoryStore(), log_of(3)
    async with running_hub(store) as hub:
        async with running_link(hub, log, NODE, epochs=MemoryEpochs(4)):
            await log.until_released(3)
        right = log_of(3)
        async with running_link(hub, right, NODE, epochs=MemoryEpochs(1)) as refused:
            await until(lambda: refused.state is LinkState.CONFLICT)
            await until(lambda: is_held_back(hub, ["conflict"]))
        await decide(store, hub)
        await until(lambda: is_held_back(hub, []))
        async with running_link(hub, right, NODE, epochs=MemoryEpochs(1)) as now_taken:
            await right.until_released(3)
            assert now_taken.state is LinkState.CONNECTED


async def test_a_connection_that_its_edge_gave_up_is_no_second_node() -> None:
    store, log = MemoryStore(), log_of(3)
    async with running_hub(store) as hub:
        async with running_link(hub, log, NODE, epochs=MemoryEpochs(4)):
            await log.until_released(3)
        hello = Hello(PROTOCOL_VERSION, LANE.tenant, LANE.edge, LANE.log_id, 1, 0, "weft")
        opening = LaneOpen(0, *LANE, 2, [])
        async with aiohttp.ClientSession() as session, session.ws_connect(hub.url + LINK_PATH) as socket:
            await socket.send_bytes(FrameEncoder().encode([hello, opening]))
            await socket.receive()
            assert socket._response.connection is not None
            transport = socket._response.connection.transport
            assert transport is not None
            transport.abort()  # the network drops what the edge gave up: no close frame comes
        await until(lambda: status_has_no_links(hub))
        assert await held_back(hub) == []


async def test_each_lane_is_noted_once_and_only_for_a_claim_that_is_not_higher() -> None:
    store, log = MemoryStore(), log_of(3)
    async with running_hub(store) as hub:
        async with running_link(hub, log, NODE, epochs=MemoryEpochs(4)):
            await log.until_released(3)
        shard = ShardLog(store, hub.cluster, shard_of(LANE.tenant, LANE.edge, 2))
        state = await shard.load()
        assert conflicts(state, {LANE: 6}, "why") == []
        assert conflicts(state, {LANE._replace(stream="other"): 5}, "why") == []
        await asyncio.gather(
            *(
                note_conflicts(shard, {LANE: 5}, f"why {each}", wall_clock=lambda: 0, random_bits=lambda _: each)
                for each in range(5)
            )
        )
        noted = await shard.load()
        assert noted.n == state.n + 1
        assert list(noted.conflicts) == [LANE]


async def moment_is_known(hub: Hub) -> bool:
    return await moment(hub) is not None


async def is_held_back(hub: Hub, by: list[str]) -> bool:
    return await held_back(hub) == by


async def has_moved_on(hub: Hub, stands_at: str) -> bool:
    now = await moment(hub)
    return now is not None and now > stands_at


async def status_has_no_links(hub: Hub) -> bool:
    links: list[object] = (await get(hub, "/v1/status"))[1]["links"]
    return not links


async def text(hub: Hub, path: str) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(hub.url + path) as answer:
        return await answer.read()


def test_the_body_of_a_conflict_is_two_values() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ConflictBody(3, "why"))) == [3, "why"]
