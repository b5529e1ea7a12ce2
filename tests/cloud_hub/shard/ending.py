"""A hub of one node in virtual time, whose lanes end: what its tests share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, TRUE_START, SequencerNode, Session, check_log, read_chunks
from tests.cloud_hub.virtual_time import NS, now_ns
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.acts import OwnActs
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.lane_ends import Ending, LaneKeeper
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.protocols.chunk_index import Control, ControlKind
from weft.protocols.lane import Lane
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store.directory import MemoryStore

LANE = Lane("default", "edge-1", 7, "telemetry")
OTHER = Lane("default", "edge-2", 8, "telemetry")
DAY_S = 86_400.0


class Hub:
    """Two nodes on one store, and a process beside them that ends lanes."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.random = random.Random(3)
        self.nodes = [SequencerNode(self.store, random.Random(i)) for i in range(2)]
        self.log = ShardLog(self.store, CLUSTER, 0, now_ns)
        self.position = 1 << 60
        self.ahead_s = 0.0
        """Time that the keeper's clock is past the nodes', since ninety days of a loop take long."""

    @property
    def sequencer(self) -> Sequencer:
        assert self.nodes[0].sequencer is not None
        return self.nodes[0].sequencer

    async def write(self, plan: Callable[[ShardState], Awaitable[Ending]]) -> Ending:
        bits = self.random.getrandbits
        return await lane_ends.write_ending(self.log, plan, wall_clock=now_ns, random_bits=bits)

    async def drop(self, *lanes: Lane) -> None:
        async def plan(state: ShardState) -> Ending:
            return Ending([Control(ControlKind.DROP, *lane, b"") for lane in lanes if lane in state.lanes], [])

        await self.write(plan)
        await asyncio.sleep(3)  # longer than followers take

    def keeper(self) -> LaneKeeper:
        return LaneKeeper(
            [self.log],
            lambda _: self.sequencer.state,
            lambda *_: self.position,
            HubSettings("memory"),
            clock=HubClock(self.time, self.time),
            random_bits=self.random.getrandbits,
            noted=OwnActs(self.store, CLUSTER.cluster_id, self.time),
        )

    def time(self) -> int:
        return TRUE_START + now_ns() + int(self.ahead_s * NS)

    async def look(self, keeper: LaneKeeper | None = None) -> None:
        """Two rounds of a keeper: what is silent in both of them ends."""
        keeper = keeper or self.keeper()
        await keeper.look()
        self.ahead_s += lane_ends.INTERVAL_S
        await keeper.look()

    async def session(self, lane: Lane = LANE, epoch: int = 1, flags: int = 0) -> Session:
        session = Session(self.sequencer, lane, epoch, ["plant/{line}"], flags=flags)
        assert await session.open()
        return session

    async def state(self) -> ShardState:
        return await self.log.load()


def play(story: Callable[[Hub], Awaitable[None]], healed: RangeSet | None = None) -> None:
    async def main() -> None:
        hub = Hub()
        for node in hub.nodes:
            await node.start()
        await story(hub)
        state, _ = check_log(await read_chunks(hub.store), healed)
        assert (await hub.state()).encode() == state.encode()
        for node in hub.nodes:
            await node.kill()

    virtual_time.run(main())


def sequencer_records(hub: Hub) -> int:
    return hub.sequencer.state.next_offset["default", "telemetry"]
