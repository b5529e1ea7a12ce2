"""The hub's side of one link, over a shard."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import cast

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import SETTINGS, machine, make_batch, make_sequencer
from weft.bounds import Refusals
from weft.cloud_hub.links.edge_link import EdgeLink, HubLinkLog
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.protocols.lane import Lane
from weft.protocols.link import PROTOCOL_VERSION, Clock, Frame, Hello, LaneOpen, RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.placement import ShardTree
from weft.replication.runner import LinkSession
from weft.storage.object_store.directory import MemoryStore


class Answers:
    """What the hub says on the link."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.closed: list[int] = []
        self.refused: list[RefuseCode] = []
        self.news = asyncio.Event()
        self.acked = RangeSet()
        self.window_is_half_used = False

    def acknowledge(self, lane: int, ranges: RangeSet) -> None:
        self.acked.update(ranges)
        self.news.set()

    def lane_opened(self, lane: int, held: RangeSet) -> None:
        self.opened.append(lane)
        self.news.set()

    def close_lane(self, lane: int, code: RefuseCode, message: str, advice: str) -> None:
        self.closed.append(lane)
        self.news.set()

    def refuse(self, code: RefuseCode, message: str, advice: str, url: str = "") -> None:
        self.refused.append(code)
        self.news.set()

    def send_frame(self, frame: Frame) -> None:
        raise AssertionError(f"nothing is to be said to this edge: {frame}")


def opening(lane: int, stream: str) -> LaneOpen:
    return LaneOpen(lane, "default", "edge-1", 7, stream, 5, [])


def test_a_lane_whose_epoch_may_be_durable_unnoticed_ends_its_link() -> None:
    """Offered again on the same link it would be refused as a copy of the log, though it is the log itself."""

    async def main() -> None:
        store = MemoryStore()
        sequencers: list[Sequencer] = []

        def make(_shard: int) -> Sequencer:
            sequencers.append(make_sequencer(store, random.Random(1)))
            return sequencers[-1]

        shards = Shards(lambda: ShardTree(1), machine(1), make)
        await shards.start()
        answers = Answers()
        link = EdgeLink(shards, None, lambda: 0, HubLinkLog(lambda: 0.0), "peer", refusals=Refusals(lambda: 0.0))
        hello = Hello(PROTOCOL_VERSION, "default", "edge-1", 7, 1, 0, "test")
        await link.open(hello, cast(LinkSession, answers))
        await link.open_lane(opening(1, "telemetry"))
        await answers.news.wait()
        assert answers.opened == [1]
        await link.open_lane(opening(2, "alarms"))
        # As a shard does that was paused, and loads its state again.
        sequencers[0].sessions.refuse_all(RefuseCode.OVERLOADED, "paused", "connect again", opening_only=True)
        await asyncio.sleep(0)
        assert answers.refused == [RefuseCode.OVERLOADED]
        assert answers.closed == []
        link.closed("over")
        await shards.close()

    virtual_time.run(main())


def test_an_edge_whose_window_fills_up_does_not_wait_for_a_long_commit_interval() -> None:
    async def main() -> None:
        store = MemoryStore()
        settings = replace(SETTINGS, commit_interval_s=30.0)
        shards = Shards(
            lambda: ShardTree(1), machine(1), lambda _shard: make_sequencer(store, random.Random(1), settings)
        )
        await shards.start()
        answers = Answers()
        link = EdgeLink(shards, None, lambda: 0, HubLinkLog(lambda: 0.0), "peer", refusals=Refusals(lambda: 0.0))
        await link.open(Hello(PROTOCOL_VERSION, "default", "edge-1", 7, 1, 0, "test"), cast(LinkSession, answers))
        await link.open_lane(opening(1, "telemetry"))
        await answers.news.wait()
        lane = Lane("default", "edge-1", 7, "telemetry")
        now = asyncio.get_running_loop().time
        for first, is_full, longest in ((0, True, 0.5), (5, False, 31.0)):
            answers.window_is_half_used = is_full
            answers.news.clear()
            sent = now()
            link.data(1, [make_batch(lane, first, first + 5)])
            await link.room()
            await answers.news.wait()
            assert answers.acked.covers(0, first + 5)
            assert longest / 3 < now() - sent < longest
        link.closed("over")
        await shards.close()

    virtual_time.run(main())


def test_news_of_a_clock_reach_all_lanes_of_its_log_once() -> None:
    async def main() -> None:
        sequencers: list[Sequencer] = []

        def make(_shard: int) -> Sequencer:
            sequencers.append(make_sequencer(MemoryStore(), random.Random(1)))
            return sequencers[-1]

        shards = Shards(lambda: ShardTree(1), machine(1), make)
        await shards.start()
        answers = Answers()
        link = EdgeLink(shards, None, lambda: 0, HubLinkLog(lambda: 0.0), "peer", refusals=Refusals(lambda: 0.0))
        await link.open(Hello(PROTOCOL_VERSION, "default", "edge-1", 7, 1, 0, "test"), cast(LinkSession, answers))
        await link.clock(Clock(7, 1, 100, 5000, 3))
        for number in (1, 2, 3):
            await link.open_lane(opening(number, f"s{number}"))
        link.close_lane(1)
        await link.clock(Clock(7, 2, 200, 6000, 3))
        await link.clock(Clock(8, 9, 200, 6000, 3))  # of a log without lanes
        while len(answers.opened) < 2:
            answers.news.clear()
            await answers.news.wait()
        link.data(3, [make_batch(Lane("default", "edge-1", 7, "s3"), 0, 3)])
        while not answers.acked:
            answers.news.clear()
            await answers.news.wait()
        state = sequencers[0].state
        assert {log: [boot.boot_id for boot in boots] for log, boots in state.clocks.items()} == {
            ("default", "edge-1", 7): [1, 2]
        }
        await shards.close()

    virtual_time.run(main())
