"""Lanes end, by age or by an operator, and come back as they were: nothing doubled, and completeness continues."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER, SETTINGS, SequencerNode, Session
from tests.cloud_hub.shard.ending import DAY_S as ENDING_DAY_S
from tests.cloud_hub.shard.ending import LANE as ENDING_LANE
from tests.cloud_hub.shard.ending import Hub, play, sequencer_records
from tests.cloud_hub.shard.test_chunk_builder import STEP_S_MAX
from tests.cloud_hub.tables.logs import LANE as WRITTEN
from tests.cloud_hub.tables.logs import SECOND, START, LogWriter, Run
from tests.cloud_hub.virtual_time import NS, now_ns
from tests.protocols.shard.test_shard_state import complete_up_to
from tests.support.speed import slowness, uncollected
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.facts.acts import UNUSABLE, lines
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.collector import GRACE_S, ShardCollector
from weft.cloud_hub.shard.lane_ends import EndedLanes, Ending
from weft.protocols.chunk_index import (
    FIRST_LEVEL,
    Chunk,
    ChunkHeader,
    GapRange,
    LaneFlag,
    Mark,
    StreamBlock,
    encode_footer,
    index_of,
)
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane
from weft.protocols.link import RefuseCode
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.protocols.shard.fold import STEP_LANES, folding
from weft.protocols.shard.lane_state import LaneState, RetiredBy
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog, apply_in_steps
from weft.storage.cluster_log import ClusterLog
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


# --- Rounds of the lane keeper: lanes of edges that stay silent end, and nothing else does


def test_lanes_not_seen_for_long_retire_leave_and_count_again_when_they_come_back() -> None:
    async def story(hub: Hub) -> None:
        keeper, session = hub.keeper(), await hub.session()
        await session.send(0, 5)
        hub.sequencer.put_mark(session.lane_session, Mark(50, 5))
        await session.until_acked(0, 5)
        hub.sequencer.leave(session.lane_session)
        hub.ahead_s += 89 * DAY_S
        await hub.look(keeper)
        assert (await hub.state()).lanes[LANE].retired is None
        hub.ahead_s += 2 * DAY_S
        hub.position = 4
        await hub.look(keeper)
        assert (await hub.state()).lanes[LANE].retired is None, "one record is not in its table yet"
        hub.position = 5
        await hub.look(keeper)
        retired = (await hub.state()).lanes[LANE].retired
        assert retired is not None
        assert (retired.by, retired.reason) == (RetiredBy.AGE, "not seen for 90 days")
        reported = await lines(ClusterLog(hub.store, CLUSTER.cluster_id), 1, 4)
        assert [(each.act, each.by, each.target, each.reason) for each in reported] == [
            ("began", "the hub", "shard 0: lanes of default/edge-1", "not seen for 90.0 days"),
            ("ended", "the hub", "", "done"),
            ("unusable", "", "", UNUSABLE),
        ]
        back = await hub.session(epoch=2)
        assert (await hub.state()).lanes[LANE].counts
        hub.sequencer.leave(back.lane_session)
        hub.ahead_s += 91 * DAY_S
        await hub.look(keeper)
        hub.ahead_s += 31 * DAY_S
        await hub.look(keeper)
        state = await hub.state()
        assert (state.lanes, state.drops) == ({}, 1)
        await hub.session(epoch=3)
        assert (await hub.state()).lanes[LANE].counts

    play(story)


def test_an_edge_that_was_not_seen_for_long_leaves_an_open_gap_that_its_return_closes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def story(hub: Hub) -> None:
        keeper = hub.keeper()
        stopped, lost = await hub.session(OTHER), await hub.session()
        for session in (stopped, lost):
            await session.send(0, 5)
            await session.until_acked(0, 5)
            hub.sequencer.put_mark(session.lane_session, Mark(now_ns(), 5))
        stopped.lane_session.sends_last_word = True
        hub.sequencer.put_mark(stopped.lane_session, Mark(now_ns() + 1, 5))
        await asyncio.sleep(5)
        for session in (stopped, lost):
            hub.sequencer.leave(session.lane_session)
        hub.ahead_s += 91 * DAY_S
        await hub.look(keeper)
        state = await hub.state()
        [(lane, gap)] = lane_ends.open_gaps(state, [LANE, OTHER])
        retired = state.lanes[LANE].retired
        assert retired is not None
        assert (lane, gap.first, gap.until) == (LANE, 5, retired.time)
        await asyncio.sleep(3)
        assert f"lane {LANE} is retired. Open gap: edge-1/" in caplog.text
        assert f"lane {OTHER} is retired" not in caplog.text
        hub.ahead_s += 31 * DAY_S
        await hub.look(keeper)
        state = await hub.state()
        assert state.lanes == {}
        assert state.open_gaps["default", "telemetry"] == [gap]
        assert lane_ends.open_gaps(state, [LANE, OTHER, LANE]) == [(LANE, gap)]
        assert lane_ends.open_gaps(state, [OTHER]) == []
        back = await hub.session(epoch=2)
        state = await hub.state()
        assert (state.lanes[LANE].counts, state.open_gaps["default", "telemetry"]) == (True, [])
        hub.sequencer.leave(back.lane_session)
        hub.sequencer.leave((await hub.session(OTHER, epoch=2)).lane_session)

    play(story)


def test_records_that_came_after_a_first_absence_must_be_in_the_table_too() -> None:
    async def story(hub: Hub) -> None:
        hub.position, keeper = 5, hub.keeper()
        for epoch, retires in ((1, True), (2, False)):
            session = await hub.session(epoch=epoch)
            await session.send(5 * epoch - 5, 5 * epoch)
            await session.until_acked(0, 5 * epoch)
            hub.sequencer.leave(session.lane_session)
            hub.ahead_s += 91 * DAY_S
            await hub.look(keeper)
            assert ((await hub.state()).lanes[LANE].retired is not None) is retires

    play(story)


def test_a_keeper_looks_twice_an_hour_apart_before_a_lane_ends() -> None:
    """Proof q5: a clock that is 91 days ahead for one round ended the whole fleet."""

    async def story(hub: Hub) -> None:
        keeper, session = hub.keeper(), await hub.session()
        await session.send(0, 5)
        await session.until_acked(0, 5)
        hub.ahead_s += 91 * DAY_S
        await keeper.look()
        hub.ahead_s -= 91 * DAY_S
        for _ in range(3):
            hub.ahead_s += lane_ends.INTERVAL_S
            await keeper.look()
        assert (await hub.state()).lanes[LANE].retired is None
        hub.ahead_s += 91 * DAY_S
        await keeper.look()
        hub.ahead_s += lane_ends.INTERVAL_S / 2
        await keeper.look()
        await hub.keeper().look()  # one that was just started has seen nothing yet
        assert (await hub.state()).lanes[LANE].retired is None
        hub.ahead_s += lane_ends.INTERVAL_S / 2
        await keeper.look()
        assert (await hub.state()).lanes[LANE].retired is not None
        hub.sequencer.leave(session.lane_session)

    play(story)


def test_a_fleet_that_falls_silent_at_once_is_not_retired(caplog: pytest.LogCaptureFixture) -> None:
    async def story(hub: Hub) -> None:
        lanes = [Lane("default", f"edge-{number}", number + 1, "t") for number in range(21)]
        for lane in lanes:
            session = await hub.session(lane)
            await session.send(0, 1)
            await session.until_acked(0, 1)
            hub.sequencer.leave(session.lane_session)
        hub.ahead_s += 91 * DAY_S
        await hub.look()
        assert all(held.retired is None for held in (await hub.state()).lanes.values())
        assert "21 of 21 lanes were not seen for long, such as" in caplog.text
        for node in hub.nodes:
            node.off_s = hub.ahead_s
        for lane in lanes[2:]:
            back = await hub.session(lane, epoch=2)
            await back.send(1, 2)
            await back.until_acked(1, 2)
            hub.sequencer.leave(back.lane_session)
        await hub.look()
        retired = [lane for lane, held in (await hub.state()).lanes.items() if held.retired is not None]
        assert retired == lanes[:2], "a tenth of the shard is no fleet"

    play(story)


def test_a_mistake_in_one_round_does_not_end_the_rounds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> Ending:
        raise ValueError("not written: too long")

    async def story(hub: Hub) -> None:
        hub.sequencer.leave((await hub.session()).lane_session)
        monkeypatch.setattr(lane_ends, "by_age", fail)
        await hub.look()
        assert "not written: too long" in caplog.text
        monkeypatch.undo()

    play(story)


def test_a_round_without_ends_reads_nothing_from_the_store(caplog: pytest.LogCaptureFixture) -> None:
    class Untouched:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} is called")

    async def story(hub: Hub) -> None:
        session = await hub.session()
        await session.send(0, 3)
        await session.until_acked(0, 3)
        log, hub.log = hub.log, ShardLog(Untouched(), CLUSTER, 0, now_ns)  # type: ignore[arg-type]
        keeper, hub.log = hub.keeper(), log
        for _ in range(3):
            await hub.look(keeper)
        assert "lanes were not looked through" not in caplog.text

    play(story)


# --- A shard whose time a wrong clock put into the future, before and after an operator lowers it


MINUTE = 60 * SECOND
YEARS = 14 * 365 * 86_400 * SECOND
RETAIN_S = 600.0


async def set_back(log: ShardLog, now: int) -> Ending:
    async def plan(state: ShardState) -> Ending:
        return lane_ends.set_back(state, now, "a node was of 2040")

    return await lane_ends.write_ending(log, plan, wall_clock=lambda: now, random_bits=lambda _: 3)


def test_a_lane_of_2040_is_not_kept_for_ever_and_not_ended_early(caplog: pytest.LogCaptureFixture) -> None:
    async def story(hub: Hub) -> None:
        keeper, session = hub.keeper(), await hub.session()
        await session.send(0, 5)
        await session.until_acked(0, 5)
        hub.sequencer.leave(session.lane_session)

        async def lane() -> LaneState:
            return (await hub.state()).lanes[ENDING_LANE]

        async def marked(state: ShardState) -> Ending:
            known = state.lanes[ENDING_LANE]
            again = lane_ends.given_up(ENDING_LANE, replaced(known))
            assert again is not None
            return Ending([], [again])

        wrong = hub.time() + YEARS
        await lane_ends.write_ending(hub.log, marked, wall_clock=lambda: wrong, random_bits=hub.random.getrandbits)
        assert (await hub.state()).created == wrong
        hub.ahead_s += 91 * ENDING_DAY_S
        await hub.look(keeper)
        assert (await lane()).retired is None, "it seems to have been seen in 2040"
        assert "shard 0: its time is 13.8 years in the future, from a wrong clock" in caplog.text
        caplog.clear()
        assert (await set_back(hub.log, hub.time())).controls
        assert not (await set_back(hub.log, hub.time())).controls, "once is enough"
        assert (await lane()).last_seen <= hub.time()
        hub.ahead_s += 89 * ENDING_DAY_S
        await hub.look(keeper)
        assert (await lane()).retired is None, "89 days since then"
        hub.ahead_s += 2 * ENDING_DAY_S
        await hub.look(keeper)
        assert (await lane()).retired is not None
        assert "in the future" not in caplog.text

    play(story, healed=None)


def replaced(held: LaneState) -> LaneState:
    """The lane as if its edge had announced one record more."""
    new = held.copy()
    new.add_mark(Mark(1 << 60, held.ranges.end + 1))
    return new


async def test_chunks_of_2040_are_collected_once_the_time_is_lowered() -> None:
    """Ten minutes of right chunks, ten of wrong ones, and right ones again: a chunk a minute."""
    log = await LogWriter.open(MemoryStore(), 1)
    shard, since = ShardLog(log.store, log.cluster, 0), 0

    def clock() -> int:
        return START + since

    async def first_untabled(_: int) -> int:
        return log.states[0].n + 1

    collector = ShardCollector(shard, first_untabled, RETAIN_S, clock=HubClock(clock, clock))

    async def watermark() -> int:
        await collector.look()
        return (await shard.manifest())[0].watermark

    async def minutes(count: int, ahead: int = 0) -> None:
        nonlocal since
        for _ in range(count):
            since += MINUTE
            log.created = max(clock() + ahead, log.states[0].created)
            await log.append(0, Run(WRITTEN, 10 * (log.states[0].n + 1), 10))
            await log.snapshot(0)

    await minutes(10)
    await minutes(10, YEARS)
    await minutes(30)
    assert await watermark() == 10, "the others seem to be of 2040"
    await set_back(shard, clock())
    await log.follow(0)
    await minutes(9)
    assert await watermark() == 10
    await minutes(20)
    found = await watermark()
    created = {n: chunk.header.created for n in range(79) if (chunk := await shard.index(n)) is not None}
    assert [n for one, n in pairwise(created) if created[one] > created[n]] == [50], "the record's own chunk"
    assert created[found - 1] == clock() - 10 * MINUTE
    since += int(GRACE_S * SECOND) + SECOND
    await collector.look()
    assert collector.deleted == found
    assert (await shard.load()).encode() == log.states[0].encode()


def of_2040(lanes: int) -> ShardState:
    state = ShardState(b"0123456789abcdef", 0)
    state.created = START + YEARS
    for number in range(lanes):
        held = LaneState(mark=Mark(START, 1), ranges=RangeSet([(0, 1)]))
        held.last_seen = state.created
        state.set_lane(Lane("default", f"edge-{number // 20}", 7, f"s{number % 20}"), held)
    return state


def lowering(state: ShardState) -> Chunk:
    ending = lane_ends.set_back(state, START, "a node was of 2040")
    header = ChunkHeader(state.cluster_id, state.n + 1, START, state.shard, state.footer_crc, 1)
    index = index_of(header, FIRST_LEVEL, [], StreamBlock([], ending.controls, []))
    return Chunk(header, index, encode_footer(index)[1])


def test_no_step_over_the_lanes_of_a_large_shard_is_long() -> None:
    quickest = []
    for _ in range(3):  # others use the machine as well
        state = of_2040(50_000)
        steps, longest = folding(state, lowering(state)), 0.0
        with uncollected():
            while True:
                began = time.thread_time()
                try:
                    next(steps)
                except StopIteration as end:
                    state.accept(end.value)
                    break
                finally:
                    longest = max(longest, time.thread_time() - began)
        assert {held.last_seen for held in state.lanes.values()} == {START}
        quickest.append(longest / slowness())
        if quickest[-1] <= STEP_S_MAX:
            return
    raise AssertionError(f"steps of {quickest} s")


async def test_others_work_while_the_lanes_of_a_large_shard_are_visited() -> None:
    state, turns, done = of_2040(5 * STEP_LANES), 0, asyncio.Event()

    async def other() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(other())
    await apply_in_steps(state, lowering(state))
    done.set()
    await working
    assert turns >= 5
    assert state.created == START
