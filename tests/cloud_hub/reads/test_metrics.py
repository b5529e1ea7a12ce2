"""Figures by stream: right, bounded, and no burden on the loop however many lanes there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from examples.demo.fabric import free_port
from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.clocks import Clock
from tests.support.waiting import until
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.reads import metrics as module
from weft.cloud_hub.reads.edge_reports import EdgeReport
from weft.cloud_hub.reads.metrics import (
    EDGES_REFRESH_S,
    NOTE_INTERVAL_S,
    NOTES_MAX,
    OTHERS,
    STREAMS_SLICE_LANES,
    EdgeFigures,
    ShardPositions,
    StreamFigures,
    StreamRates,
    TableLag,
)
from weft.cloud_hub.reads.summaries import Linked, LinksElsewhere
from weft.cloud_hub.reads.views import LaneFacts, StreamPart, StreamTally
from weft.protocols.chunk_index import Mark
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import NodeReport
from weft.protocols.ranges import RangeSet
from weft.protocols.shard.lane_state import LaneState, Retirement
from weft.protocols.shard.placement import shard_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.runner import LinkIdentity
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import MemoryStore

NS = 1_000_000_000


@dataclass
class Shard:
    """What the figures read of a sequencer."""

    state: ShardState
    loaded: bool = True


class Known(list[Shard]):
    async def read(self) -> None:
        """The shards are there already."""


@dataclass
class Tables:
    """What the figures read of the tables."""

    known: dict[tuple[str, str], int]

    def rows(self, *key: str) -> int | None:
        return self.known.get((key[0], key[1]))


@dataclass
class World:
    shards: list[Shard] = field(default_factory=lambda: [Shard(ShardState(b"c" * 16, n)) for n in range(2)])
    rows: dict[tuple[str, str], int] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)

    def figures(self, keeps_tables: bool = True, *, peers: bool = False) -> StreamFigures:
        shards, tables = Known(self.shards), Tables(self.rows) if keeps_tables else None
        clock = HubClock(lambda: 0, lambda: 0)
        return StreamFigures(shards, tables, clock, self.clock, peers=peers)  # type: ignore[arg-type]

    def lane(self, shard: int, edge: str, stream: str, complete_s: float | None, records: int = 0) -> None:
        state = self.shards[shard].state
        mark = None if complete_s is None else Mark(int(complete_s * NS), 1)
        held = LaneState(mark=mark, ranges=RangeSet([(0, 1)]))
        state.lanes[Lane("default", edge, 1, stream)] = held
        key = ("default", stream)
        state.next_offset[key] = state.next_offset.get(key, 0) + records


async def test_a_stream_is_complete_as_far_as_its_slowest_edge_over_all_shards() -> None:
    world = World()
    world.lane(0, "a", "t", 100.0, 5)
    world.lane(1, "b", "t", 90.0, 7)
    world.lane(1, "c", "silent", 100.0)
    world.lane(1, "d", "silent", None)
    world.rows = {("default", "t"): 10}
    figures = world.figures()
    await figures.refresh()
    silent, reported = figures.figures
    assert (reported.records, reported.lag_records, reported.complete_up_to) == (12, 2, 90 * NS)
    assert (silent.stream, silent.records, silent.complete_up_to) == ("silent", 0, None)


async def test_records_that_another_cluster_may_have_hold_the_figure_back() -> None:
    world = World()
    world.shards[0].state.set_lane(
        Lane("default", "a", 1, "t"), LaneState(mark=Mark(9 * NS, 8), whole_mark=Mark(NS, 5))
    )
    for peers, moment in ((False, 9 * NS), (True, NS)):
        figures = world.figures(peers=peers)
        await figures.refresh()
        assert [figure.complete_up_to for figure in figures.figures] == [moment]


async def test_nothing_is_complete_while_a_shard_is_not_loaded() -> None:
    world = World()
    world.lane(0, "a", "t", 100.0, 5)
    world.shards[1].loaded = False
    figures = world.figures()
    await figures.refresh()
    assert [figure.complete_up_to for figure in figures.figures] == [None]


async def test_a_node_without_tables_says_nothing_of_their_lag() -> None:
    world = World()
    world.lane(0, "a", "t", 100.0, 5)
    figures = world.figures(keeps_tables=False)
    await figures.refresh()
    (reported,) = figures.figures
    assert (reported.lag_records, reported.lag_seconds) == (None, None)


async def test_figures_are_gathered_again_only_when_they_are_old() -> None:
    world = World()
    world.lane(0, "a", "t", 100.0, 5)
    figures = world.figures()
    await figures.refresh()
    world.lane(0, "a", "t", 200.0, 5)
    world.clock.now += module.STREAMS_REFRESH_S / 2
    await asyncio.gather(figures.refresh(), figures.refresh())
    assert figures.figures[0].records == 5
    world.clock.now += module.STREAMS_REFRESH_S
    await figures.refresh()
    assert (figures.figures[0].records, figures.figures[0].complete_up_to) == (10, 200 * NS)


async def test_streams_beyond_the_bound_are_added_up_and_the_first_keep_their_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 3)
    world = World()
    for number in range(3):
        world.lane(0, "a", f"z{number}", 100.0, 1)
    figures = world.figures()
    await figures.refresh()
    for number in range(5):
        world.lane(1, "a", f"a{number}", 50.0 + number, 10)
        world.rows["default", f"a{number}"] = 9
    world.clock.now += 60
    await figures.refresh()
    names = [(figure.tenant, figure.stream) for figure in figures.figures]
    assert names == [OTHERS, ("default", "z0"), ("default", "z1"), ("default", "z2")]
    others = figures.figures[0]
    assert (others.records, others.lag_records, others.complete_up_to) == (50, 5, 50 * NS)


async def test_one_tenant_does_not_take_the_series_of_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 5)
    monkeypatch.setattr(module, "STREAMS_OF_TENANT_MAX", 3)
    world = World()
    for number in range(9):
        world.lane(0, "a", f"z{number}", 100.0, 1)
    key = Lane("quiet", "a", 1, "telemetry")
    world.shards[0].state.set_lane(key, next(iter(world.shards[0].state.lanes.values())))
    world.shards[0].state.next_offset["quiet", "telemetry"] = 4
    figures = world.figures()
    await figures.refresh()
    assert [figure.tenant for figure in figures.figures] == ["(other)", "default", "default", "default", "quiet"]


async def test_a_walk_over_many_lanes_lets_the_loop_work_in_between() -> None:
    world = World()
    for number in range(20 * STREAMS_SLICE_LANES):
        world.lane(number % 2, f"edge-{number // 20}", f"stream-{number % 20}", 100.0)
    figures = world.figures()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await figures.refresh()
    task.cancel()
    assert turns >= 20
    assert len(figures.figures) == 20


def test_the_lag_in_seconds_is_the_wait_of_the_oldest_record_without_a_row() -> None:
    lag = TableLag()
    lag.note(0, 100, 100)
    assert lag.seconds(5) == 0
    lag.note(10, 150, 100)
    lag.note(20, 180, 100)
    assert lag.seconds(30) == 20
    lag.note(30, 180, 149)
    assert lag.seconds(30) == 20, "record 150 still waits"
    lag.note(30, 180, 150)
    assert lag.seconds(30) == 10
    lag.note(40, 180, 180)
    assert lag.seconds(40) == 0


def test_the_lag_of_a_table_that_stands_still_grows_in_bounded_memory() -> None:
    lag = TableLag()
    for now in range(10_000):
        lag.note(now, now + 1, 0)
    assert lag.seconds(10_000) == 10_000
    assert len(lag._notes) <= NOTES_MAX


async def test_a_hub_exports_what_its_streams_hold_and_how_long_edges_and_the_store_take(tmp_path: object) -> None:
    log = EdgeLog()
    log.append(*records(0, [b"x"] * 30))
    async with running_hub(open_store(str(tmp_path)), shards=2, table_interval_s=0.05) as hub:
        async with running_link(hub, log, LinkIdentity("default", "press-1", 0xABC, "test")):
            await log.until_released(30)

            async def is_in_the_table() -> bool:
                stream = (await get(hub, "/v1/streams/telemetry"))[1]
                is_whole = stream.get("table_rows") == 30 and stream["complete_up_to"] is not None
                return is_whole and (stream["table"]["files"] or 0) > 0

            await until(is_in_the_table)
            text = (await get(hub, "/metrics"))[1]
            (used,) = (await get(hub, "/v1/usage"))[1]["streams"]
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels = [sample.labels for sample in samples if sample.name.startswith("weft_hub_stream")]
    assert labels == [{"tenant": "default", "stream": "telemetry"}] * 7
    values = {sample.name: sample.value for sample in samples}
    assert values["weft_hub_stream_records"] == 30
    assert values["weft_hub_stream_table_lag_records"] == 0
    assert 1 <= values["weft_hub_stream_table_files"] <= 30
    assert 1000 < values["weft_hub_stream_table_bytes"] < 1 << 20
    assert 1000 < used["table_bytes"] < 1 << 20
    assert values["weft_hub_stream_table_lag_seconds"] == 0
    assert abs(values["weft_hub_stream_complete_up_to_timestamp_seconds"] - time.time()) < 60
    assert values["weft_hub_store_put_latency_seconds_count"] >= 1
    assert 0 < values["weft_hub_commit_latency_seconds_sum"] < 60
    assert values["weft_hub_build_info"] == 1
    assert values["process_open_fds"] > 3


@pytest.mark.slow
async def test_a_scrape_loads_no_shard_of_another_process(tmp_path: object) -> None:
    log, store, port = EdgeLog(), open_store(str(tmp_path)), free_port()
    log.append(*records(0, [b"x"] * 30))
    async with (
        running_hub(store, port=port, shards=2, processes=2, process=0, table_interval_s=0.05) as first,
        running_hub(store, port=port + 1, shards=2, processes=2, process=1) as second,
    ):
        own, of_second = ([each.log.shard for each in hub.sequencers] for hub in (first, second))
        name = next(name for name in map("press-{}".format, range(9)) if shard_of("default", name, 2) in of_second)
        async with running_link(second, log, LinkIdentity("default", name, 0xABC, "test")):
            await log.until_released(30)

        async def is_counted() -> bool:
            found = (await get(first, "/metrics"))[1]
            samples = [each for family in text_string_to_metric_families(found) for each in family.samples]
            values = {each.name: each.value for each in samples}
            moment = values.get("weft_hub_stream_complete_up_to_timestamp_seconds", 0)
            return values.get("weft_hub_stream_records") == 30 and moment > 0

        await until(is_counted)
        assert [each.log.shard for each in first.sequencers] == own
        assert len(own) == 1


async def test_a_process_without_tables_reads_the_shards_of_others_for_a_scrape() -> None:
    async with running_hub(MemoryStore(), shards=2, processes=2, process=0) as hub:
        await get(hub, "/metrics")
        assert [each.log.shard for each in hub.sequencers] == [0, 1]


# --- Rates of streams: from two notes of positions, unknown where a shard was not followed


KEY = ("default", "telemetry")


def states(*ends: int) -> list[ShardState]:
    made = []
    for shard, end in enumerate(ends):
        state = ShardState(b"0" * 16, shard)
        state.next_offset[KEY] = end
        made.append(state)
    return made


def parts(held: list[ShardState], key: tuple[str, str] = KEY) -> list[StreamPart]:
    return [StreamTally(LaneFacts(0, peers=False)).part(state, key, ()) for state in held]


async def test_a_rate_is_that_of_the_last_minutes_over_all_shards() -> None:
    now, followed = 100.0, states(1000, 0)
    rates = StreamRates(lambda: [ShardPositions(each.shard, now, each.next_offset) for each in followed], lambda: now)
    await rates.note()
    assert rates.rate(parts(followed), KEY, {}) is None, "of no time there is no rate"
    now += 20
    assert rates.rate(parts(states(1100, 100)), KEY, {}) == 10
    assert rates.rate(parts(states(1100, 100)), KEY, {0: 4.0, 1: 4.0}) == 12.5, (
        "by the time at which the ends were read"
    )
    for _ in range(5):  # a burst of long ago is not in it
        followed = states(5000, 100)
        now += NOTE_INTERVAL_S
        await rates.note()
    assert rates.rate(parts(states(5060, 160)), KEY, {}) == 120 / NOTE_INTERVAL_S
    assert rates.rate(parts(followed, ("default", "other")), ("default", "other"), {}) == 0


async def test_a_rate_is_unknown_while_a_shard_with_records_of_the_stream_is_not_followed() -> None:
    now, all_shards = 100.0, states(10, 10)
    rates = StreamRates(lambda: [ShardPositions(0, now, all_shards[0].next_offset)], lambda: now)
    await rates.note()
    now += 30
    assert rates.rate(parts(all_shards), KEY, {}) is None
    assert rates.rate(parts(all_shards[:1]), KEY, {}) == 0


# --- Figures of edges: a fixed number of series says how many are known, silent, and held back


NOW = 1_800_000_000_000_000_000
SECOND = 10**9


def shard(lanes: dict[str, LaneState], number: int = 0) -> Any:
    state = ShardState(b"0" * 16, number)
    for edge, held in lanes.items():
        for stream in ("a", "b"):
            state.set_lane(Lane("default", edge, 1, stream), held)
    sessions = SimpleNamespace(behind={}, lost_of=lambda *_: None)
    return SimpleNamespace(state=state, loaded=True, sessions=sessions)


def heard(age_s: int, **more: Any) -> LaneState:
    at = NOW - age_s * SECOND
    return LaneState(ranges=RangeSet([(0, 5)]), whole_mark=Mark(at, 5), last_seen=at, **more)


def linked(linked: tuple[str, ...] = (), **reports: EdgeReport) -> Callable[[], Awaitable[LinksElsewhere]]:
    """What the processes of a hub know of edges: which are linked, and their last reports."""

    async def reported() -> LinksElsewhere:
        return LinksElsewhere(
            {NodeName("default", name): Linked(NOW, "weft", None, "hub-1") for name in linked},
            [],
            {NodeName("default", name): report for name, report in reports.items()},
        )

    return reported


def lasting(hours: float | None, *, age_h: float = 0, rate: int | None = 2000) -> EdgeReport:
    seconds = None if hours is None else int(hours * 3600)
    return EdgeReport(NOW - int(age_h * 3600) * SECOND, NodeReport(1, 2, 1, rate, seconds, [], 0))


async def counted(figures: EdgeFigures) -> dict[str, float]:
    await figures.refresh()
    found = {
        "".join((each.name.removeprefix("weft_hub_edges"), *each.labels)): each.value for each in figures.samples()
    }
    return {name: value for name, value in found.items() if value}


async def test_edges_are_counted_once_by_how_long_they_are_silent() -> None:
    first = shard({"a": heard(2), "b": heard(239), "c": heard(240), "d": heard(7200)})
    second = shard(
        {"e": heard(90_000), "f": heard(8 * 86_400), "gone": heard(9_999, retired=Retirement(NOW, 2, ""))}, 1
    )
    clock = [0.0]
    figures = EdgeFigures(lambda: [first, second], lambda: NOW, lambda: clock[0], peers=False, links=linked())
    assert await counted(figures) == {
        "": 6,
        "_silent4m": 4,
        "_silent1h": 3,
        "_silent1d": 2,
        "_silent7d": 1,
        "_in_alarmsilent": 4,
        "_outage_left_unknown": 6,
    }
    first.state.set_lane(Lane("default", "a", 1, "a"), LaneState(ranges=RangeSet([(0, 5)]), last_seen=NOW))
    assert "_in_alarmno_mark" not in await counted(figures), "counted at most once in some seconds"
    clock[0] += EDGES_REFRESH_S
    assert (await counted(figures))["_in_alarmno_mark"] == 1


async def test_edges_whose_disk_lasts_for_few_hours_are_counted_by_whether_they_are_linked() -> None:
    edges = shard(
        {name: heard(1) for name in ("a", "b", "c", "d", "e", "f", "g")}
        | {"gone": heard(1, retired=Retirement(NOW, 2, ""))}
    )
    reported = linked(
        ("a", "b"),
        a=lasting(3, age_h=20),  # linked: its outage has not begun
        b=lasting(30),
        c=lasting(30, age_h=20),  # since then, 20 hours of the 30 are over
        d=lasting(5, age_h=20),
        e=lasting(None),  # nothing comes in: no end
        f=lasting(None, rate=None),  # it does not know its rate yet
        gone=lasting(0),
        elsewhere=lasting(0),  # of a shard of another process
    )
    figures = EdgeFigures(lambda: [edges], lambda: NOW, lambda: 0.0, peers=False, links=reported)
    found = await counted(figures)
    assert {name: value for name, value in found.items() if name.startswith("_outage")} == {
        "_outage_left_short4h1": 1,
        "_outage_left_short1d1": 1,
        "_outage_left_short4h0": 1,
        "_outage_left_short1d0": 2,
        "_outage_left_unknown": 2,
    }


async def test_ten_thousand_edges_have_as_many_series_as_one() -> None:
    few = EdgeFigures(lambda: [shard({"a": heard(1)})], lambda: NOW, lambda: 0.0, peers=False, links=linked())
    many = EdgeFigures(
        lambda: [shard({f"e{n}": heard(n) for n in range(10_000)})],
        lambda: NOW,
        lambda: 0.0,
        peers=False,
        links=linked(),
    )
    await few.refresh()
    await many.refresh()
    assert len(list(few.samples())) == len(list(many.samples())) == 18
