"""Rounds of the lane keeper: lanes of edges that stay silent end, and nothing else does."""

from __future__ import annotations

import asyncio

import pytest

from tests.cloud_hub.fabric import CLUSTER
from tests.cloud_hub.shard.ending import Hub, play
from tests.cloud_hub.virtual_time import now_ns
from weft.cloud_hub.facts.acts import UNUSABLE, lines
from weft.cloud_hub.shard import lane_ends
from weft.cloud_hub.shard.lane_ends import Ending
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane
from weft.protocols.shard.lane_state import RetiredBy
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster_log import ClusterLog

LANE = Lane("default", "edge-1", 7, "telemetry")
OTHER = Lane("default", "edge-2", 8, "telemetry")
DAY_S = 86_400.0


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
