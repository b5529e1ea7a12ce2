"""Lanes end, by age or by an operator, and come back as they were: nothing doubled, and completeness continues."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import SETTINGS, SequencerNode, Session
from tests.cloud_hub.shard.ending import Hub, play, sequencer_records
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.protocols.test_shard_state import complete_up_to
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.lane_ends import EndedLanes, Ending
from weft.protocols.chunk_index import GapRange, LaneFlag, Mark
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.shard_state import ShardState
from weft.storage.hub_keys import ended_key
from weft.storage.object_store.directory import MemoryStore

LANE = Lane("default", "edge-1", 7, "telemetry")
OTHER = Lane("default", "edge-2", 8, "telemetry")
DAY_S = 86_400.0


def test_an_edge_that_comes_back_after_its_lane_left_sends_only_what_the_hub_never_had() -> None:
    async def story(hub: Hub) -> None:
        session = await hub.session()
        await session.send(0, 10)
        await hub.sequencer.put_gap(session.lane_session, GapRange(10, 12, 3))
        await session.until_acked(0, 12)
        hub.sequencer.leave(session.lane_session)
        await hub.drop(LANE)
        assert LANE not in hub.sequencer.state.lanes
        back = await hub.session(epoch=2)
        assert list(back.acked) == [(0, 10)]
        await back.send(5, 15)
        await back.until_acked(0, 15)
        held = (await hub.state()).lanes[LANE]
        assert held.ranges.covers(0, 15)
        assert held.records == RangeSet([(0, 15)])
        assert sequencer_records(hub) == 15, "ten and five, none of them twice"

    play(story, healed=RangeSet([(10, 12)]))


def test_a_link_that_is_open_while_its_lane_leaves_goes_on() -> None:
    async def story(hub: Hub) -> None:
        session = await hub.session()
        await session.send(0, 5)
        await session.until_acked(0, 5)
        await hub.drop(LANE)
        await session.send(3, 8)
        await session.until_acked(0, 8)
        assert session.refusal is None
        assert sequencer_records(hub) == 8
        await hub.drop(LANE)
        relay = await hub.session(flags=int(LaneFlag.RELAY))
        await relay.send(0, 9)
        await relay.until_acked(0, 9)
        assert sequencer_records(hub) == 9

    play(story)


def test_a_clone_with_an_old_epoch_does_not_get_a_lane_that_left() -> None:
    async def story(hub: Hub) -> None:
        session = await hub.session(epoch=5)
        hub.sequencer.leave(session.lane_session)
        await hub.drop(LANE)
        for epoch in (4, 5):
            clone = Session(hub.sequencer, LANE, epoch)
            assert not await clone.open()
            assert clone.refusal is RefuseCode.IDENTITY_CONFLICT
        await hub.session(epoch=6)

    play(story)


def test_the_newest_state_that_was_kept_is_the_one_that_counts() -> None:
    """Attempts to drop that lost their chunk number leave older states behind."""

    async def story(hub: Hub) -> None:
        session = await hub.session()
        await session.send(0, 5)
        await session.until_acked(0, 5)
        await hub.log.put_ended(LANE, 0, b"a state of an attempt that lost")
        await session.send(5, 9)
        await session.until_acked(5, 9)
        hub.sequencer.leave(session.lane_session)
        await hub.drop(LANE)
        back = await hub.session(epoch=2)
        assert list(back.acked) == [(0, 9)]
        other = await hub.session(OTHER)
        assert not other.acked, "a lane that never was here is asked for and found new"

    play(story)


def test_a_last_word_is_committed_though_its_link_is_gone_and_taken_back_by_the_next_one() -> None:
    async def story(hub: Hub) -> None:
        session = await hub.session()
        await session.send(0, 5)
        await session.until_acked(0, 5)
        session.lane_session.sends_last_word = True
        hub.sequencer.put_mark(session.lane_session, Mark(now_ns(), 5))
        hub.sequencer.leave(session.lane_session)
        await asyncio.sleep(2)
        state = await hub.state()
        assert state.lanes[LANE].ended_in_order()
        assert state.stopped_lanes("default", "telemetry") == [LANE]
        back = await hub.session(epoch=2)
        state = await hub.state()
        assert state.lanes[LANE].last_word is None
        assert state.stopped_lanes("default", "telemetry") == []
        hub.sequencer.leave(back.lane_session)

    play(story)


def test_a_lane_whose_state_has_no_room_in_a_record_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_ends, "CONTROL_BYTES_MAX", 100)

    async def story(hub: Hub) -> None:
        small = await hub.session(Lane("default", "e", 1, "t"))
        large = await hub.session()
        for seq in range(0, 40, 2):
            await large.send(seq, seq + 1)
            await large.until_acked(seq, seq + 1)
        for session in (small, large):
            hub.sequencer.leave(session.lane_session)
        for days in (91, 31):
            hub.ahead_s += days * DAY_S
            await hub.look()
        assert list((await hub.state()).lanes) == [LANE]

    play(story)


def test_a_lane_of_which_nothing_was_said_leaves_soon_and_comes_back_with_its_epoch() -> None:
    async def story(hub: Hub) -> None:
        said = await hub.session()
        await said.send(0, 3)
        await said.until_acked(0, 3)
        empty = Lane("default", "e", 1, "t")
        hub.sequencer.leave((await hub.session(empty, epoch=5)).lane_session)
        hub.ahead_s += lane_ends.EMPTY_NS / NS - 60
        await hub.keeper().look()
        assert empty in (await hub.state()).lanes
        hub.ahead_s += 120
        await hub.keeper().look()
        assert list((await hub.state()).lanes) == [LANE]
        late = await hub.session(empty, epoch=6)
        await late.send(0, 2)
        await late.until_acked(0, 2)
        assert (await hub.state()).lanes[empty].epoch == 6

    play(story)


def test_a_flood_of_new_lanes_is_looked_up_in_parts_and_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_ends, "LOOK_UPS_MAX", 3)

    async def story(hub: Hub) -> None:
        session = await hub.session()
        hub.sequencer.leave(session.lane_session)
        await hub.drop(LANE)
        asked: list[Lane] = []
        ended = EndedLanes(hub.sequencer.log)
        look = hub.sequencer.log.ended

        async def count(lane: Lane, n: int) -> bytes | None:
            asked.append(lane)
            return await look(lane, n)

        monkeypatch.setattr(hub.sequencer.log, "ended", count)
        state = await hub.state()
        flood = [Lane("default", "e", number, "t") for number in range(8)]
        for held in (3, 6, 8):
            await ended.look_up(state, flood)
            assert [ended.is_open(state, lane) for lane in flood].count(False) == held
        assert len(asked) == 8
        await ended.look_up(state, [LANE])
        assert ended.get(state, LANE) is not None
        assert all(ended.is_open(state, lane) for lane in flood)
        many = [await hub.session(lane) for lane in flood]
        assert len(many) == 8

    play(story)


def test_a_lane_does_not_leave_over_a_state_of_another_history() -> None:
    async def story(hub: Hub) -> None:
        session = await hub.session()
        hub.sequencer.leave(session.lane_session)
        await hub.store.create(ended_key(0, LANE, (await hub.state()).n), b"of a log that was rolled back")
        with pytest.raises(Corrupt, match="of another history of this log: move it away"):
            await hub.drop(LANE)
        assert LANE in (await hub.state()).lanes

    play(story)


def test_an_operator_retires_an_edge_and_takes_it_back() -> None:
    async def story(hub: Hub) -> None:
        session, other = await hub.session(), await hub.session(OTHER)
        await session.send(0, 5)
        await session.until_acked(0, 5)
        hub.sequencer.put_mark(session.lane_session, Mark(50, 9))
        hub.sequencer.put_mark(other.lane_session, Mark(70, 0))
        await asyncio.sleep(5)

        async def retire(state: ShardState) -> Ending:
            return await lane_ends.retire(state, [LANE], "fell into the press")

        assert len((await hub.write(retire)).controls) == 1
        assert (await hub.write(retire)).controls == [], "once is enough"
        state = await hub.state()
        assert list(state.lanes[LANE].gaps) == [GapRange(5, 9, int(GapReason.OPERATOR))]
        assert complete_up_to(state) == 70
        # The disk was found: the records come, and the operator's word stands until it is taken back.
        await session.send(5, 9)
        await session.until_acked(0, 9)
        held = (await hub.state()).lanes[LANE]
        assert (list(held.gaps), held.counts) == ([], False)

        async def adopt(state: ShardState) -> Ending:
            return await lane_ends.adopt(state, hub.log, [LANE])

        await hub.drop(LANE)
        back = await hub.session(epoch=2)
        assert not (await hub.state()).lanes[LANE].counts, "nor does the lane's leave end it"
        hub.sequencer.leave(back.lane_session)
        await hub.drop(LANE)
        await hub.write(adopt)
        assert (await hub.state()).lanes[LANE].counts
        assert (await hub.write(adopt)).controls == []

    play(story, healed=RangeSet([(5, 9)]))


def test_an_ending_takes_the_next_number_beside_busy_nodes() -> None:
    async def story(hub: Hub) -> None:
        session, other = await hub.session(), await hub.session(OTHER)
        await session.send(0, 1)
        await session.until_acked(0, 1)

        async def busy() -> None:
            for seq in range(100):
                await other.send(seq, seq + 1)
                await other.until_acked(seq, seq + 1)

        work = asyncio.create_task(busy())
        for _ in range(20):
            await hub.drop(LANE)
            await session.send(0, 2)
            await asyncio.sleep(0.3)
        await work
        assert sequencer_records(hub) == 102

    play(story)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"lanes_per_edge_max": 1}, "edge edge-1 of tenant default has 1 lanes, its limit"),
        ({"streams_per_tenant_max": 1}, "tenant default has 1 streams in shard 0, its limit"),
        ({"lanes_per_tenant_max": 1}, "tenant default has 1 lanes in shard 0, its limit"),
        (
            {"topic_bytes_per_edge_max": 15},
            "edge edge-1 of tenant default would have 19 bytes of topic patterns, the limit is 15",
        ),
    ],
)
def test_lanes_and_topics_are_bounded_and_the_sentence_names_the_owner(limits: dict[str, int], text: str) -> None:
    async def main() -> None:
        node = SequencerNode(MemoryStore(), random.Random(1), replace(SETTINGS, **limits))
        await node.start()
        assert node.sequencer is not None
        assert await Session(node.sequencer, LANE, 1, ["plant/{line}"]).open()
        full = node.sequencer.no_room(LANE._replace(stream="alarms"), ["alarms"])
        assert full is not None
        assert full.reason == text.replace("19", "18")
        assert node.sequencer.no_room(LANE, ["plant/{line}"]) is None
        assert now_ns() < NS * 100
        await node.kill()

    virtual_time.run(main())
