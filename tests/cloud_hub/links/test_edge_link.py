"""The hub's side of one link, over a shard."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import time
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import aiohttp
import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import SETTINGS, machine, make_batch, make_sequencer
from tests.cloud_hub.faulty_store import CALM, FULL, Faults, FaultyStore
from tests.cloud_hub.http.test_application import deliver, records
from tests.cloud_hub.links.test_open_links import LANE, log_of
from tests.cloud_hub.links.test_open_links import NODE as CONFLICTS_NODE
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.support.clocks import Clock as ClocksClock
from tests.support.epochs import MemoryEpochs
from tests.support.live_node import running
from tests.support.waiting import PATIENCE_S, until
from weft.bounds import Owner, OwnerKind, Refusals
from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.links.edge_link import (
    COST_AT_ONCE,
    COST_PER_S,
    EDGES_MAX,
    TENANT,
    EdgeLink,
    FrameBudget,
    HubLinkLog,
)
from weft.cloud_hub.settings import SequencerSettings
from weft.cloud_hub.shard.sequencer import Sequencer
from weft.cloud_hub.shard.shards import Shards
from weft.hub_api.rights import Scope
from weft.protocols.lane import Lane
from weft.protocols.link import (
    ERROR_CHARACTERS_MAX,
    FUNCTIONS_MAX,
    PROTOCOL_VERSION,
    Clock,
    CopyReport,
    Frame,
    FrameEncoder,
    FunctionReport,
    Hello,
    LaneOpen,
    NodeReport,
    PairReport,
    RefuseCode,
)
from weft.protocols.link import Clock as ClockNotice
from weft.protocols.ranges import RangeSet
from weft.replication.events import CanaryState, LinkState, LinkStatus
from weft.replication.flow_control import LatestReport, SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.policy import BudgetRule, PolicyRules, StreamWindows
from weft.replication.runner import LINK_PATH, LinkIdentity, LinkRefused, LinkSession, LinkSettings, run_link
from weft.replication.runner.control import LinkControl
from weft.storage.cluster import Cluster, ClusterCache
from weft.storage.object_store.directory import DirectoryStore, MemoryStore
from weft.text.edge_status import clock_trouble


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

        shards = Shards(ClusterCache(Cluster(bytes(16), 1)), machine(1), make)
        await shards.start()
        answers = Answers()
        link = EdgeLink(shards, None, lambda: 0, HubLinkLog(lambda: 0.0), "peer", refusals=Refusals(lambda: 0.0))
        hello = Hello(PROTOCOL_VERSION, "default", "edge-1", 7, 1, 0, "test")
        link.connected(cast(LinkSession, answers))
        await link.open(hello)
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
            ClusterCache(Cluster(bytes(16), 1)),
            machine(1),
            lambda _shard: make_sequencer(store, random.Random(1), settings),
        )
        await shards.start()
        answers = Answers()
        link = EdgeLink(shards, None, lambda: 0, HubLinkLog(lambda: 0.0), "peer", refusals=Refusals(lambda: 0.0))
        link.connected(cast(LinkSession, answers))
        await link.open(Hello(PROTOCOL_VERSION, "default", "edge-1", 7, 1, 0, "test"))
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

        shards = Shards(ClusterCache(Cluster(bytes(16), 1)), machine(1), make)
        await shards.start()
        answers = Answers()
        link = EdgeLink(shards, None, lambda: 0, HubLinkLog(lambda: 0.0), "peer", refusals=Refusals(lambda: 0.0))
        link.connected(cast(LinkSession, answers))
        await link.open(Hello(PROTOCOL_VERSION, "default", "edge-1", 7, 1, 0, "test"))
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


# --- What the frames of one token or tenant cost makes its own links wait, and no others


class Link:
    """A link of a token, whose frames had a cost."""

    def __init__(self, token: str, tenant: str) -> None:
        self.token, self.edge = token, Owner(OwnerKind.EDGE, f"{tenant}/{token}")
        self.cost = 0
        self.edge_has_left = False

    def control_cost(self) -> int:
        cost, self.cost = self.cost, 0
        return cost

    async def pay(self, budget: FrameBudget, cost: int) -> float:
        """Pay for frames. Return the seconds of waiting."""
        now = asyncio.get_running_loop().time
        began, self.cost = now(), cost
        await budget.pay(cast(LinkSession, self), self.token, self.edge)
        return now() - began


def budget() -> tuple[FrameBudget, Refusals]:
    clock = asyncio.get_running_loop().time
    refusals = Refusals(clock)
    return FrameBudget(refusals, clock), refusals


def test_the_links_of_a_token_share_its_budget_and_others_have_their_own() -> None:
    async def main() -> None:
        frames, refusals = budget()
        first, second = Link("press-1", "evil"), Link("press-1", "evil")
        assert await first.pay(frames, COST_AT_ONCE) == 0
        assert await second.pay(frames, 3 * COST_PER_S) == pytest.approx(3)
        assert await Link("press-2", "evil").pay(frames, COST_PER_S) == 0
        assert await Link("press-1", "good").pay(frames, 0) == 0
        assert [(found.bound, str(found.owner)) for found in refusals] == [("frames of links", "edge evil/press-1")]

    virtual_time.run(main())


def test_many_tokens_of_a_tenant_have_no_more_than_its_share() -> None:
    async def main() -> None:
        frames, _ = budget()
        links = [Link(f"press-{number}", "evil") for number in range(64)]
        waits = await asyncio.gather(*(link.pay(frames, COST_AT_ONCE) for link in links))
        assert max(waits) >= (64 - TENANT) * COST_AT_ONCE / (TENANT * COST_PER_S) - 1
        assert await Link("press-1", "good").pay(frames, COST_AT_ONCE) == 0

    virtual_time.run(main())


def test_what_an_edge_beyond_its_share_sent_goes_with_its_link() -> None:
    async def main() -> None:
        frames, _ = budget()
        link = Link("press-1", "evil")
        link.cost = 100 * COST_AT_ONCE
        waiting = asyncio.create_task(frames.pay(cast(LinkSession, link), link.token, link.edge))
        await asyncio.sleep(5)
        assert not waiting.done()
        link.edge_has_left = True
        with pytest.raises(LinkRefused):
            await waiting

    virtual_time.run(main())


def test_an_honest_edge_that_says_its_last_words_and_leaves_is_heard() -> None:
    async def main() -> None:
        frames, _ = budget()
        link = Link("press-1", "good")
        link.edge_has_left = True
        assert await link.pay(frames, COST_PER_S) == 0

    virtual_time.run(main())


# --- What a hub's log says of its edges, however often they connect


CONFLICT = "refused: a connection with epoch 4 has taken over; this one has 3"


@pytest.fixture
def clock() -> ClocksClock:
    return ClocksClock(1000.0)


@pytest.fixture
def log(clock: ClocksClock, caplog: pytest.LogCaptureFixture) -> HubLinkLog:
    caplog.set_level(logging.INFO)
    return HubLinkLog(clock)


def test_an_edge_that_comes_goes_and_comes_is_three_lines(
    log: HubLinkLog, clock: ClocksClock, caplog: pytest.LogCaptureFixture
) -> None:
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    clock.now += 7200
    log.disconnected("default/press-7", "10.0.0.7", "nothing came for 20 s")
    clock.now += 600
    log.connected("default/press-7", "10.0.0.9", "abc", "weft 0.1.0")
    assert caplog.messages == [
        "edge default/press-7 at 10.0.0.7: connected, log abc, weft 0.1.0",
        "edge default/press-7 at 10.0.0.7: disconnected after 2.0 hours: nothing came for 20 s",
        "edge default/press-7 at 10.0.0.9: connected again, log abc, weft 0.1.0, after 10.0 minutes away",
    ]


def test_a_refused_edge_is_told_rarely_and_once_when_it_is_taken(
    log: HubLinkLog, clock: ClocksClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(120):
        log.refused("default/press-7", "10.0.0.7", "refused: the hub holds as many lanes as it may")
        clock.now += 30
    assert len(caplog.messages) <= 8
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    assert caplog.messages[-1].endswith("after 60.0 minutes away, refused 120 times")


def test_an_edge_back_before_its_old_link_is_given_up_stays_connected(
    log: HubLinkLog, clock: ClocksClock, caplog: pytest.LogCaptureFixture
) -> None:
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    log.disconnected("default/press-7", "10.0.0.7", CONFLICT)
    assert caplog.messages[1:] == [f"edge default/press-7 at 10.0.0.7: {CONFLICT} (another link of this edge is open)"]
    clock.now += 10
    log.disconnected("default/press-7", "10.0.0.7", "closed")
    assert "disconnected after 10 seconds: closed" in caplog.messages[-1]


def test_two_nodes_of_one_identity_are_told_of_with_both_addresses_and_fill_no_disk(
    log: HubLinkLog, clock: ClocksClock, caplog: pytest.LogCaptureFixture
) -> None:
    log.connected("default/press-7", "10.0.0.7", "abc", "weft 0.1.0")
    for _ in range(288):
        clock.now += 300
        log.refused("default/press-7", "10.0.0.8", CONFLICT)
    assert "edge default/press-7 at 10.0.0.8: refused: a connection with epoch" in caplog.messages[1]
    assert len(caplog.messages) < 40


def test_strangers_are_told_of_by_address_and_reason(
    log: HubLinkLog, clock: ClocksClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        log.turned_away("10.0.0.8", "refused (401): no valid token; send a token")
    log.turned_away("10.0.0.8", "timed out waiting for HELLO")
    log.turned_away("10.0.0.9", "refused (401): no valid token; send a token")
    assert len(caplog.messages) == 3


def test_memory_is_bounded_when_ever_new_names_come(log: HubLinkLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    tracemalloc.start()
    try:
        for number in range(EDGES_MAX + 2000):
            log.refused(f"default/edge-{number}", "10.0.0.8", CONFLICT)
        assert tracemalloc.get_traced_memory()[0] < EDGES_MAX * 2048
    finally:
        tracemalloc.stop()


async def test_an_edge_whose_clock_is_off_by_years_is_told_so_by_its_log_and_its_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, status, years = EdgeLog(), LinkStatus("cloud"), 20 * 365 * 86_400 * 10**9
    log.append(*records(0, [b"x"]))
    async with running_hub(MemoryStore()) as hub:
        link = asyncio.create_task(
            run_link(
                log,
                LinkIdentity("default", "press-1", 1, "test"),
                LinkSettings((hub.url,), token=lambda: None),
                MemoryEpochs(),
                status,
                wall_clock=lambda: time.time_ns() - years,
            )
        )
        await log.until_released(1)
        await until(lambda: any("clock is 20.0 years behind the hub's" in each.getMessage() for each in caplog.records))
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)
    assert status.clock_offset_ns is not None
    facts = {"links": {"cloud": {"clock_offset_seconds": status.clock_offset_ns / 1e9}, "other": {}}}
    assert clock_trouble(facts) == "20.0 years behind the hub's"


class _SynchronisedClocks:
    """Those of a machine whose time source is wrong."""

    is_synchronised, is_unknown = True, False

    def note_time(self, hub: str, time: int, error: int) -> None:
        """Its clock counts as right."""

    def notices(self) -> list[ClockNotice]:
        return []


@pytest.mark.parametrize("vouched", [False, True])
async def test_a_hub_counts_edges_whose_synchronised_clocks_are_not_its_own(
    caplog: pytest.LogCaptureFixture, vouched: bool
) -> None:
    """It continues by its own: what an edge says of the time decides nothing."""
    log, status, ahead = EdgeLog(), LinkStatus("cloud"), 120 * 10**9
    log.append(*records(0, [b"x"]))
    async with running_hub(MemoryStore()) as hub:
        link = asyncio.create_task(
            run_link(
                log,
                LinkIdentity("default", "press-1", 1, "test"),
                LinkSettings((hub.url,), token=lambda: None),
                MemoryEpochs(),
                status,
                wall_clock=lambda: time.time_ns() + ahead,
                clocks=_SynchronisedClocks() if vouched else None,
            )
        )
        await log.until_released(1)
        _, metrics = await get(hub, "/metrics")
        _, answer = await get(hub, "/v1/status")
        _, edges = await get(hub, "/v1/edges")
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)
    assert edges["edges"][0]["clock_off_seconds"] == answer["links"][0]["clock_off_seconds"]
    assert f"weft_hub_links_clock_differs {int(vouched)}.0" in metrics
    [seen] = answer["links"]
    assert (seen["clock_off_seconds"] == pytest.approx(120, abs=20)) is vouched
    assert answer["clock"]["trouble"] is None
    said = [each for each in caplog.messages if "its clock, which a time source keeps right, is" in each]
    assert len(said) == vouched


# --- A hub knows of the disk and the functions of its edges, as these say; from edges that mean it ill, too


PRESS = LinkIdentity("default", "press-1", 0xABC, "weft 9.1")
NODE = """
node: press-7
data_dir: {folder}/data
disk: {{budget: 64MiB}}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
streams:
  telemetry: {{from: "plant/#", payload: json}}
  hot: {{from_stream: telemetry, functions: [where: t > 70, set: {{f: t * 2}}]}}
links:
  hub: {{to: "{url}"}}
"""


async def facts_of(hub: Hub, edge: str) -> dict[str, Any]:
    status, answer = await get(hub, f"/v1/edges/{edge}")
    assert status == 200, answer
    return answer  # type: ignore[no-any-return]


async def knows_disk(hub: Hub, edge: str) -> bool:
    _, answer = await get(hub, "/v1/edges")
    return any(each["edge"] == edge and each["disk"] is not None for each in answer["edges"])


async def test_a_hub_knows_the_disk_and_the_functions_of_a_node_and_the_disk_when_its_link_is_cut(
    tmp_path: Path,
) -> None:
    async with running_hub(MemoryStore()) as hub:
        async with running(tmp_path, NODE.format(folder=tmp_path, url=hub.url)):
            await until(lambda: knows_disk(hub, "press-7"))
            here = await facts_of(hub, "press-7")
            disk = here["disk"]
            assert disk["budget_bytes"] == 64 << 20
            assert 0 < disk["free_bytes"] <= 64 << 20
            assert (disk["bytes_per_second"], disk["outage_seconds_left"]) == (None, None), "not known yet"
            (function,) = here["functions"]
            assert (function["stream"], function["kinds"], function["last_error"]) == ("hot", "where, set", None)
            assert here["functions_more"] == 0
            _, listed = await get(hub, "/v1/edges")
            assert "functions" not in listed["edges"][0], "a list of a fleet stays short"
        await until(lambda: not hub._links)
        gone = await facts_of(hub, "press-7")
        assert (gone["connected_since"], gone["disk"], gone["functions"]) == (None, disk, None)


NOON = 1_748_779_200 * SECOND


async def test_a_hub_tells_times_alone_of_an_edge_and_what_its_peer_has_of_a_lost_one() -> None:
    reported, lost = LatestReport(), LinkIdentity("default", "saw-2", 0xDEF, "weft")
    reported.report = NodeReport(1, 2, 1, 1, 0, [], 0)
    reported.pair = PairReport([(NOON, NOON + SECOND), (NOON + 10 * SECOND, None)], [])
    async with running_hub(MemoryStore()) as hub:
        for identity in (lost, PRESS):
            log = EdgeLog()
            log.append(*records(0, [b"x"]))
            await deliver(hub, log, 1, identity)
        epochs = MemoryEpochs(7)
        async with running_link(hub, log, PRESS, epochs=epochs, sender=SenderSettings(report=reported)):
            await until(lambda: has_pair(hub, "press-1"))
            pair = (await facts_of(hub, "press-1"))["pair"]
            assert pair["times_alone"] == [
                {"since": "2025-06-01T12:00:00.000000000Z", "until": "2025-06-01T12:00:01.000000000Z"},
                {"since": "2025-06-01T12:00:10.000000000Z", "until": None},
            ]
            assert "pair" not in await facts_of(hub, "saw-2")
        copies = [
            CopyReport("default", "saw-2", 0xDEF, NOON, is_vouched=True, records=3),
            CopyReport("other", "saw-2", 0xDEF, NOON, is_vouched=True, records=3),
        ]
        reported.pair = PairReport([], copies)
        async with running_link(hub, log, PRESS, epochs=epochs, sender=SenderSettings(report=reported)):
            await until(lambda: has_pair(hub, "saw-2"))
            (copy,) = (await facts_of(hub, "saw-2"))["pair"]["copies"]
            assert (copy.pop("at"), bool(copy.pop("reported"))) == ("press-1", True)
            assert copy == {
                "log": "0000000000000def",
                "complete_to": "2025-06-01T12:00:00.000000000Z",
                "vouched": True,
                "records": 3,
            }


async def has_pair(hub: Hub, edge: str) -> bool:
    return "pair" in await facts_of(hub, edge)


@pytest.mark.parametrize(("grants", "is_shown"), [(("write:*",), False), (("write:*", "relay:*"), True)])
def test_a_token_that_may_not_relay_speaks_of_no_others_records(grants: tuple[str, ...], *, is_shown: bool) -> None:
    identity = TokenIdentity("press-1", "0" * 64, Scope.GRANTED, edge="press-1", grants=grants)
    log, refusals = HubLinkLog(lambda: 0.0), Refusals(lambda: 0.0)
    link = EdgeLink(cast(Any, None), identity, lambda: 9, log, "peer", refusals=refusals)
    link.hello = Hello(PROTOCOL_VERSION, "default", "press-1", 7, 1, 0, "test")
    link.report(NodeReport(1, 2, 1, 1, 0, [], 0))
    link.report(PairReport([(5, None)], [CopyReport("default", "saw-2", 1, 5, is_vouched=True, records=0)]))
    assert link.last_report is not None
    assert link.last_report.pair is not None
    assert bool(link.last_report.pair.copies) == is_shown
    assert link.last_report.pair.alone == [(5, None)]


async def test_the_disk_of_an_edge_that_tells_nothing_is_unknown() -> None:
    async with running_hub(MemoryStore()) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"x"]))
        await deliver(hub, log, 1, PRESS)
        facts = await facts_of(hub, "press-1")
        assert (facts["disk"], facts["functions"], facts["functions_more"]) == (None, None, 0)
        status, answer = await get(hub, "/v1/edges/press-2")
        assert (status, "default/press-2" in answer["detail"]) == (404, True)


async def test_texts_of_an_edge_are_text_and_one_beyond_a_bound_ends_its_link_alone() -> None:
    name, words = "<img src=x onerror=alert(1)>", "\u202e" * ERROR_CHARACTERS_MAX
    reported, epochs = LatestReport(), MemoryEpochs()
    function = FunctionReport(name, "\n\x1b[2J", 1, 1, 1, words)
    reported.report = NodeReport(1, 2, 1, 1, 0, [function] * FUNCTIONS_MAX, 1 << 31)
    async with running_hub(MemoryStore()) as hub:
        log = EdgeLog()
        log.append(*records(0, [b"x"]))
        async with running_link(hub, log, PRESS, epochs=epochs, sender=SenderSettings(report=reported)) as status:
            await until(lambda: knows_disk(hub, "press-1"))
            functions = (await facts_of(hub, "press-1"))["functions"]
            assert len(functions) == FUNCTIONS_MAX
            assert (functions[0]["stream"], functions[0]["last_error"]) == (name, words)
            assert not status.last_error
        reported.report = NodeReport(1, 2, 1, 1, 0, [FunctionReport(name, "", 1, 1, 1, words + "x")], 0)
        other = EdgeLog()
        other.append(*records(0, [b"x"]))
        async with running_link(hub, log, PRESS, epochs=epochs, sender=SenderSettings(report=reported)) as status:
            await until(lambda: "length" in status.last_error)
            await deliver(hub, other, 1, LinkIdentity("default", "saw-2", 0xDEF, "weft"))


# --- The canary of a real link: a round trip to a real hub's store, and an alarm where only the hub's process answers


SOON = SenderSettings(
    ping_interval=SECOND // 20, mark_interval=SECOND // 20, canary_interval=SECOND // 10, canary_patience=SECOND // 2
)
"""Canaries of a link that is idle for a tenth of a second."""
PATIENT = SequencerSettings(
    commit_interval_s=0.01, mark_interval_s=0.05, follow_interval_s=0.05, retry_max_s=0.1, unavailable_after_s=1e9
)
"""A hub that keeps links although its store fails."""
UTC = ZoneInfo("UTC")


def store_with(faults: Faults = CALM) -> FaultyStore:
    return FaultyStore(MemoryStore(), random.Random(1), faults)


def control(rules: PolicyRules, *, is_paused: bool = False) -> LinkControl:
    return LinkControl(rules, wall_clock=time.time_ns, is_paused=is_paused)


async def until_proven(link: LinkStatus, times: int = 2) -> None:
    """Wait for so many proofs, one after the other: the last one began after this call."""
    for _ in range(times):
        await until(partial(_is_proven_since, link, link.canary_time or 0))


def _is_proven_since(link: LinkStatus, time: int) -> bool:
    return link.canary is CanaryState.PROVEN and (link.canary_time or 0) > time


def written(hub: Hub) -> int:
    return sum(sum(sequencer.state.next_offset.values()) for sequencer in hub.sequencers)


@pytest.mark.slow
async def test_an_idle_link_proves_again_and_again_that_the_hubs_store_takes_what_it_says() -> None:
    async with running_hub(store_with()) as hub, running_link(hub, EdgeLog(), CONFLICTS_NODE, sender=SOON) as link:
        await until_proven(link, 3)
        assert link.canary_alarm == ""
        assert link.canary_seconds is not None
        assert 0 < link.canary_seconds < PATIENCE_S
        assert time.time_ns() - (link.canary_time or 0) < PATIENCE_S * SECOND
        assert written(hub) == 0, "readers see nothing of it"


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_store_that_takes_nothing_alarms_although_the_hub_answers_pings(hangs: bool) -> None:
    store = store_with()
    async with (
        running_hub(store, sequencer=PATIENT) as hub,
        running_link(hub, EdgeLog(), CONFLICTS_NODE, sender=SOON) as link,
    ):
        await until_proven(link)
        store.faults = FULL if not hangs else CALM
        if hangs:
            store.running.clear()
        try:
            await until(lambda: link.canary is CanaryState.OVERDUE)
            last, pinged = link.canary_time, link.ping_seconds
            await until(lambda: link.ping_seconds != pinged)
            assert (link.state, link.canary_time) == (LinkState.CONNECTED, last)
            assert "the hub answers, and its store has accepted nothing that was sent" in link.canary_alarm
            assert "look at the hub's store" in link.canary_alarm
        finally:
            store.faults = CALM
            store.running.set()
        await until(lambda: not link.canary_alarm)
        await until_proven(link)
        assert link.connections == 1


@pytest.mark.slow
async def test_a_hub_that_sends_links_away_leaves_no_alarm_and_an_unknown_canary() -> None:
    store, hasty = store_with(), replace(PATIENT, unavailable_after_s=0.3)
    async with (
        running_hub(store, sequencer=hasty) as hub,
        running_link(hub, EdgeLog(), CONFLICTS_NODE, sender=SOON) as link,
    ):
        await until_proven(link)
        store.faults = FULL
        await until(lambda: link.state is LinkState.WAITING)
        await until(lambda: link.canary is CanaryState.UNKNOWN and not link.canary_alarm)
        assert "trouble with its store" in link.last_error
        assert link.canary_seconds is not None, "the last one stays, with its time"
        store.faults = CALM
        await until_proven(link)


SHUT = PolicyRules(schedule=(StreamWindows(("*",), (), UTC),))
NOTHING_LEFT = PolicyRules(budget=BudgetRule(1, 1, UTC))


@pytest.mark.slow
@pytest.mark.parametrize(("rules", "is_paused"), [(PolicyRules(), True), (SHUT, False), (NOTHING_LEFT, False)])
async def test_a_link_whose_data_waits_has_a_canary_that_takes_no_data_along(
    rules: PolicyRules, is_paused: bool
) -> None:
    orders = control(rules, is_paused=is_paused)
    async with (
        running_hub(store_with()) as hub,
        running_link(hub, log_of(9), CONFLICTS_NODE, sender=SOON, control=orders) as link,
    ):
        await until(lambda: link.pending_records == 9)
        await until_proven(link, 3)
        assert link.hold
        assert (link.records_acked, written(hub)) == (0, 0)
        await orders.pause(False)
        orders.adopt(PolicyRules())
        await until(lambda: link.pending_records == 0)
        assert written(hub) == 9


@pytest.mark.slow
async def test_data_proves_the_store_without_a_canary() -> None:
    never = SenderSettings(ping_interval=SECOND // 20, canary_interval=3600 * SECOND)
    async with (
        running_hub(store_with()) as hub,
        running_link(hub, log := EdgeLog(), CONFLICTS_NODE, sender=never) as link,
    ):
        await until(lambda: link.canary is CanaryState.PROVEN)
        opened = link.canary_time or 0
        for header, data in log_of(3).batches:
            log.append(header, data)
        await until(lambda: (link.canary_time or 0) > opened)
        assert link.records_acked == 3


# --- A hub whose store was put back says itself what it lacks, by what every edge tells it when it comes


async def held_back(hub: Hub) -> list[dict[str, str]]:
    answer = (await get(hub, f"/v1/streams/{LANE.stream}/completeness"))[1]
    return [each for each in answer["held_back_by"] if each["reason"] != "late"]


async def test_what_edges_say_was_acknowledged_is_named_until_it_is_there_again() -> None:
    store = MemoryStore()
    async with running_hub(store) as hub:
        async with running_link(hub, log_of(3), CONFLICTS_NODE, epochs=MemoryEpochs(1)) as link:
            await until(lambda: link.records_acked >= 3)
        assert (await get(hub, "/v1/status"))[1]["lost"] == []
        hello = Hello(PROTOCOL_VERSION, LANE.tenant, LANE.edge, LANE.log_id, 1, 0, "weft")
        reports = [("another hub", [(0, 99)]), (hub.cluster.cluster_id.hex(), [(0, 2), (2, 8), (9, 7)])]
        opening = LaneOpen(1, *LANE, 7, [], acknowledged=reports)
        async with aiohttp.ClientSession() as session, session.ws_connect(hub.url + LINK_PATH) as socket:
            await socket.send_bytes(FrameEncoder().encode([hello, opening]))
            for _ in range(2):
                await socket.receive()
            [lost] = (await get(hub, "/v1/status"))[1]["lost"]
            assert (lost["edge"], lost["stream"], lost["records"], lost["first_seq"]) == ("press-1", LANE.stream, 5, 3)
            [reason] = await held_back(hub)
            assert reason["reason"] == "lost_records"
            assert "lacks 5 records, from seq 3 on, that it had acknowledged to the edge" in reason["why"]
        log: EdgeLog = log_of(8)  # the edge has them still
        async with running_link(hub, log, CONFLICTS_NODE, epochs=MemoryEpochs(8)):
            await log.until_released(8)
            assert (await get(hub, "/v1/status"))[1]["lost"] == []
            assert await held_back(hub) == []


async def tabled(hub: Hub, records: int) -> None:
    async def is_there() -> bool:
        tables = (await get(hub, "/v1/status"))[1]["tables"]
        return bool(tables) and sum(shard["table"] for shard in tables[0]["shards"]) == records

    await until(is_there)


@pytest.mark.slow
async def test_completeness_names_a_table_that_is_ahead_of_the_restored_log(tmp_path: Path) -> None:
    place, copy = tmp_path / "store", tmp_path / "copy"
    store = DirectoryStore(str(place))
    async with running_hub(store, table_interval_s=0.05) as hub:
        async with running_link(hub, log_of(3), CONFLICTS_NODE, epochs=MemoryEpochs(1)):
            await tabled(hub, 3)
        shutil.copytree(place, copy)
        async with running_link(hub, log_of(8), CONFLICTS_NODE, epochs=MemoryEpochs(8)):
            await tabled(hub, 8)
            assert await held_back(hub) == []
    for shard in place.glob("shard-*"):
        shutil.rmtree(shard)
        shutil.copytree(copy / shard.name, shard)
    async with running_hub(store, table_interval_s=0.05) as hub:
        await until(lambda: has_reason(hub))
        [reason] = await held_back(hub)
        assert reason["reason"] == "table_stands_still"
        assert "the moment speaks of the log, and the table of default/telemetry is not being updated" in reason["why"]
        assert "The store was restored to an earlier state. Move the table away" in reason["why"]


async def has_reason(hub: Hub) -> bool:
    return bool(await held_back(hub))
