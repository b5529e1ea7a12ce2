"""An hour with a node whose clock is wrong, beside a sound one and alone: it does nothing that it should not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from spark_sinks.completeness.window_state import Limits
from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, TRUE_START, SequencerNode, Session
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.support.silence import silent_logs
from weft.cloud_hub.clock import ClockWrong, HubClock
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.shard.collector import GRACE_S, ShardCollector
from weft.cloud_hub.shard.lane_ends import LaneKeeper
from weft.config.functions.windows import Grid
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane
from weft.protocols.shard.completeness import completeness
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store.directory import MemoryStore

MINUTE, DAY_S = 60 * NS, 86_400.0
OFF_S = {"14 years ahead": 14 * 365.25 * DAY_S, "91 days ahead": 91 * DAY_S, "in 1970": -TRUE_START / NS}
ALIVE = [Lane("default", f"edge-{number}", number, "telemetry") for number in (1, 2)]
AWAY = Lane("default", "edge-3", 3, "telemetry")
"""An edge that goes offline after three minutes. Few edges, so that no share of a fleet is too large to be retired."""
WRONG_MINUTES = 75
"""An hour and what the keepers' rounds need to see a lane twice in it."""
SOUND_NS = 60 * NS
"""Error of a clock that is believed."""


class World:
    """A store with a right clock, nodes with all that acts by a clock, and edges that send a record a minute."""

    def __init__(self, *, alone: bool) -> None:
        self.store = MemoryStore(lambda: TRUE_START + now_ns())
        self.nodes = [SequencerNode(self.store, random.Random(number)) for number in range(1 if alone else 2)]
        for node in self.nodes:
            node.is_synchronised = False
        self.log = ShardLog(self.store, CLUSTER, 0, now_ns)
        self.sent = dict.fromkeys([*ALIVE, AWAY], 0)
        self.marked = dict.fromkeys(self.sent, 0)
        """The latest mark that the hub may have, of each edge."""
        self.epoch = 0
        self.acknowledged = 0
        self.broken: set[str] = set()
        self.keepers: list[LaneKeeper] = []
        self.collectors: list[ShardCollector] = []

    @property
    def wrong(self) -> SequencerNode:
        return self.nodes[-1]

    async def start(self) -> None:
        async def tabled(_: int) -> int:
            return (await self.log.load()).n + 1

        for node in self.nodes:
            await node.start()
            log = ShardLog(self.store, CLUSTER, 0, now_ns)
            bits = node.rng.getrandbits
            assert node.sequencer is not None
            held = node.sequencer
            self.keepers.append(
                LaneKeeper(
                    [log],
                    lambda _, held=held: held.state,  # type: ignore[misc]
                    lambda *_: 1 << 60,
                    HubSettings("memory"),
                    clock=node.clock,
                    random_bits=bits,
                )
            )
            self.collectors.append(ShardCollector(log, tabled, DAY_S, clock=node.clock))

    async def send(self, lane: Lane, node: SequencerNode) -> None:
        """An edge links, sends one record more and its mark, if it is taken. It never gives up what is not
        acknowledged."""
        assert node.sequencer is not None
        self.epoch += 1
        session = Session(node.sequencer, lane, self.epoch, ["plant/{line}"])
        if not await session.open():
            return
        seq, self.sent[lane] = self.sent[lane], self.sent[lane] + 1
        held = session.acked.contiguous_end()
        self.marked[lane] = TRUE_START + now_ns()
        await session.send(held, seq + 1)
        while not session.acked.covers(held, seq + 1) and session.refusal is None:
            session.news.clear()
            await session.news.wait()
        if session.refusal is None:
            self.acknowledged += 1
            # As a link does: no moment beyond the hub's own clock.
            time = min(self.marked[lane], node.wall())
            node.sequencer.put_mark(session.lane_session, Mark(time, seq + 1))
        node.sequencer.leave(session.lane_session)

    async def minute(self, number: int) -> None:
        """Every present edge sends through every node; every tenth minute the rounds of all nodes are due."""
        for lane in self.sent if number < 3 else ALIVE:
            for node in self.nodes:
                await self.send(lane, node)
        if number % 10 == 0:
            for keeper, collector in zip(self.keepers, self.collectors, strict=True):
                await keeper.look()
                try:
                    await collector.look()
                except ClockWrong:
                    pass
            await self.check()
        await asyncio.sleep(MINUTE / NS - now_ns() % MINUTE / NS)

    async def check(self) -> None:
        state, now = await self.log.load(), TRUE_START + now_ns()
        manifest, _ = await self.log.manifest()
        if any(held.retired is not None for held in state.lanes.values()) or len(state.lanes) < len(self.sent):
            self.broken.add("a lane was retired")
        if manifest.watermark > 0 or await self.log.index(0) is None:
            self.broken.add("a young chunk was collected")
        every, grace = 60_000_000, 600_000_000
        given = Limits.at(None, state.created // 1000, Grid(every), grace).given_end * every
        if given > (now + SOUND_NS) // 1000 - grace:
            self.broken.add("a window was given out early")
        found = completeness(state.lanes, (), now)
        missing = min(self.marked.values())
        if set(found.covers) != set(self.sent) or (found.complete_up_to or 0) > missing:
            self.broken.add("a false claim of completeness")


async def _hour(off_s: float, *, alone: bool) -> World:
    world = World(alone=alone)
    if not alone:
        world.wrong.off_s = off_s  # it starts so
    await world.start()
    for number in range(WRONG_MINUTES + 6):
        if alone and number == 4:
            world.wrong.off_s = off_s  # it is set while the node runs
        if number == WRONG_MINUTES:
            before = world.acknowledged
            world.wrong.off_s = 0.0
        await world.minute(number)
    await asyncio.sleep(GRACE_S)
    await world.check()
    assert world.acknowledged - before >= 6 * len(ALIVE), "the node continues once its clock is right"
    for node in world.nodes:
        await node.kill()
    return world


def hour(off_s: float, *, alone: bool) -> World:
    return virtual_time.run(_hour(off_s, alone=alone))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with silent_logs():
        yield


@pytest.mark.parametrize("alone", [False, True], ids=["beside a sound node", "alone"])
@pytest.mark.parametrize("off", OFF_S)
def test_a_wrong_clock_does_nothing_for_an_hour(off: str, alone: bool) -> None:
    world = hour(OFF_S[off], alone=alone)
    assert world.broken == set()
    sound = WRONG_MINUTES * len(ALIVE) if not alone else 4 * len(ALIVE)
    assert world.acknowledged >= sound, "edges of the sound node continued"


@pytest.mark.parametrize(
    "alone", [pytest.param(False, marks=pytest.mark.slow), True], ids=["beside a sound node", "alone"]
)
@pytest.mark.parametrize("off", ["14 years ahead", "91 days ahead"])
def test_a_node_that_believes_its_clock_is_found(off: str, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HubClock, "wrong", lambda *_: None)
    monkeypatch.setattr(HubClock, "sound", lambda clock: clock.now())
    breaks = {"a window was given out early", "a young chunk was collected"}
    # Beside a sound node the edge that goes away was last seen "in three months", too.
    assert hour(OFF_S[off], alone=alone).broken >= (breaks | {"a lane was retired"} if alone else breaks)
