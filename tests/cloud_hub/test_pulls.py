"""Windows of records that a hub asks of an edge: both in one process, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import msgspec
import pytest

from tests.cloud_hub.fabric import make_batch
from tests.cloud_hub.live import (
    BEGIN,
    SECOND,
    EdgeLog,
    Plant,
    ask,
    call,
    held,
    linked_plant,
    over,
    pull_of,
    running_hub,
    running_link,
)
from tests.support.epochs import MemoryEpochs
from tests.support.tokens import create_token
from tests.support.waiting import Patience, until
from weft.cloud_hub import pulls as service_module
from weft.cloud_hub.facts import pulls
from weft.cloud_hub.facts import pulls as facts
from weft.cloud_hub.facts.fact import PULL_KIND, decode
from weft.cloud_hub.facts.pulls import HOUR_NS, OTHER_LOGS, PullCache, PullDocument, PullsFull, end, plan
from weft.cloud_hub.facts.pulls import ask as declare_ask
from weft.cloud_hub.http import pulls as pull_requests
from weft.cloud_hub.http.pulls import PullRequests
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.pulls import REPORTS_MAX, HubPulls, LinkPulls
from weft.config.links import Pull
from weft.edge_node.links.high_watermarks import HubHighWatermarks
from weft.hub_api.rights import Scope
from weft.protocols.batch import decode_header
from weft.protocols.chunk_index import GapRange, LaneFlag
from weft.protocols.lane import Lane, NodeName
from weft.protocols.link import PullRequest, PullStage, PullState
from weft.protocols.ranges import SEQ_END, RangeSet
from weft.protocols.shard.lane_state import LaneState
from weft.protocols.shard.shard_state import ShardState
from weft.replication.events import LinkState, LinkStatus
from weft.replication.runner import LinkIdentity, LinkSettings, run_link
from weft.replication.runner.settings import Tell
from weft.replication.source import LaneSnapshot, LogSource, OfferedLane
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store.directory import MemoryStore


@pytest.mark.slow
async def test_a_window_comes_and_nothing_else(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await plant.records("vibration", 10, batches=100)
        status, asked = await ask(hub, 20, 50)
        assert (status, asked["state"]) == (202, "asked")
        found = await over(hub, asked["id"])
        assert (found["state"], found["records"], found["records_received"]) == ("done", 300, 300), found
        assert held(hub, plant) == RangeSet([(200, 500)])


@pytest.mark.slow
async def test_overlapping_pulls_bring_each_record_once(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await plant.records("vibration", 10, batches=100)
        asked = [(await ask(hub, *window))[1]["id"] for window in ((20, 50), (40, 70), (0, 30), (20, 50))]
        found = [await over(hub, each) for each in asked]
        assert [(each["state"], each["records_received"]) for each in found] == [("done", 300)] * 4
        assert held(hub, plant) == RangeSet([(0, 700)])
        # A chunk with a record that the state has already would be refused: each was committed once.
        assert offsets(hub) == {700}


def offsets(hub: Any) -> set[int]:
    """Return the numbers of records of the stream in the shards that have some."""
    found = {each.state.next_offset.get(("default", "vibration"), 0) for each in hub.sequencers}
    return found - {0}


def vibrations(hub: Any) -> list[LaneState]:
    """Return the lanes of the stream."""
    return [held for each in hub.sequencers for lane, held in each.state.lanes.items() if lane.stream == "vibration"]


async def completeness(hub: Any) -> Any:
    _, body = await call(hub, "GET", "/v1/streams/vibration/completeness")
    held_back_by = [each["edge"] for each in body["held_back_by"] if each["reason"] != "late"]
    del body["lanes"]  # with the times of their last chunks
    return body | {"held_back_by": held_back_by}


@pytest.mark.slow
async def test_a_pull_claims_nothing(tmp_path: Path) -> None:
    both = ("telemetry", "vibration")
    async with (
        running_hub(MemoryStore()) as hub,
        linked_plant(tmp_path / "7", hub) as plant,
        linked_plant(tmp_path / "8", hub, None, node="press-8", streams=both) as other,
    ):
        await plant.records("vibration", 10, batches=20)
        await other.records("vibration", 10, batches=20)
        await until(lambda: len(offsets(hub)) == 1 and max(offsets(hub)) == 200)
        await until(lambda: any(lane.mark is not None for lane in vibrations(hub)))
        before = await completeness(hub)
        assert before["complete_up_to"] is not None
        found = [await over(hub, (await ask(hub, *window))[1]["id"]) for window in ((2, 4), (10, 12))]
        assert [each["state"] for each in found] == ["done", "done"]
        assert await completeness(hub) == before
        lane = next(lane for lane in vibrations(hub) if lane.partial)
        assert (lane.partial, lane.counts, lane.mark, list(lane.gaps)) == (True, False, None, [])
        assert list(lane.ranges) == [(20, 40), (100, 120)]


@pytest.mark.slow
async def test_the_plant_decides(tmp_path: Path) -> None:
    allowed = Pull(streams=("vib*",), size_bytes=2000)
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, allowed) as plant:
        await plant.records("vibration", 10, batches=100)
        await plant.records("telemetry", 1)
        refused = {
            "does not allow this stream": await ask(hub, 0, 50, "telemetry"),
            "has no stream": await ask(hub, 0, 50, "vibrations"),
            "has no records of that time": await ask(hub, -50, 0),
            "more than 2000 bytes": await ask(hub, 0, 50),
            "more than 1000 bytes": await ask(hub, 0, 50, bytes_max=1000),
        }
        for reason, (status, asked) in refused.items():
            assert status == 202
            found = await over(hub, asked["id"])
            assert found["state"] == "refused"
            assert reason in found["reason"]
        assert not held(hub, plant)


@pytest.mark.slow
async def test_a_plant_that_allows_nothing_sends_nothing(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, None) as plant:
        await plant.records("vibration", 10)
        found = await over(hub, (await ask(hub, 0, 50))[1]["id"])
        assert (found["state"], held(hub, plant)) == ("refused", RangeSet())
        assert "allows no pulls" in found["reason"]


@pytest.mark.slow
async def test_a_stream_that_the_link_carries_is_not_pulled(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, Pull(streams=("*",))) as plant:
        await plant.records("telemetry", 10)
        found = await over(hub, (await ask(hub, 0, 50, "telemetry"))[1]["id"])
        assert (found["state"], "carries this stream" in found["reason"]) == ("refused", True)


@pytest.mark.slow
async def test_a_lane_that_counts_takes_no_pull(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub:
        async with linked_plant(tmp_path, hub, streams=("telemetry", "vibration")) as plant:
            await plant.records("vibration", 10)
            await until(lambda: held(hub, plant) == RangeSet([(0, 10)]))
        async with linked_plant(tmp_path, hub) as plant:
            plant.wall = BEGIN + 100 * SECOND
            await plant.records("vibration", 10)
            before = await completeness(hub)
            found = await over(hub, (await ask(hub, 50, 150))[1]["id"])
            assert (found["state"], held(hub, plant)) == ("failed", RangeSet([(0, 10)]))
            assert "counts for completeness" in found["reason"]
            assert await completeness(hub) == before


@pytest.mark.slow
async def test_a_stream_that_a_link_carries_later_is_whole(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub:
        async with linked_plant(tmp_path, hub) as plant:
            await plant.records("vibration", 10, batches=20)
            await over(hub, (await ask(hub, 5, 10))[1]["id"])
            assert held(hub, plant) == RangeSet([(50, 100)])
        async with linked_plant(tmp_path, hub, streams=("telemetry", "vibration")) as plant:
            await until(lambda: held(hub, plant) == RangeSet([(0, 200)]))
            assert offsets(hub) == {200}
            assert all(lane.counts for lane in vibrations(hub))


@pytest.mark.slow
async def test_a_pull_is_cancelled_and_goes_on_in_another(tmp_path: Path) -> None:
    slow = Pull(streams=("vib*",), rate=20_000)
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, slow) as plant:
        await plant.records("vibration", 10, batches=200)
        _, asked = await ask(hub, 0, 200)
        await until(lambda: bool(held(hub, plant)))
        running = await pull_of(hub, asked["id"])
        assert running["state"] == "sending"
        assert 0 < running["records_received"] < running["records"] == 2000
        assert running["rest_seconds"] > 0
        assert "of 2000 records" in plant.status.pull
        assert plant.status.pending_records == 0, "the plant's own records do not wait"
        status, cancelled = await call(hub, "DELETE", f"/v1/pulls/{asked['id']}")
        assert (status, cancelled["state"]) == (200, "cancelled")
        before = held(hub, plant).count()
        await until(lambda: not plant.status.pull)
        await asyncio.sleep(0.5)
        assert held(hub, plant).count() <= before + 200, "what was under way, and no more"
        assert (await call(hub, "DELETE", f"/v1/pulls/{asked['id']}"))[1]["state"] == "cancelled"
        assert (await call(hub, "DELETE", "/v1/pulls/nothing"))[0] == 404
        plant.links.adopt(plant.with_pull(Pull(streams=("vib*",), rate=64 << 20)))
        found = await over(hub, (await ask(hub, 0, 200))[1]["id"])
        assert (found["state"], found["records_received"]) == ("done", 2000)


@pytest.mark.slow
async def test_an_edge_that_is_away_is_asked_when_it_links(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub:
        async with linked_plant(tmp_path, hub) as plant:
            await plant.records("vibration", 10, batches=20)
            await plant.records("telemetry", 10)
            await until(lambda: bool(held(hub, plant, "telemetry")))
        _, asked = await ask(hub, 5, 10)
        assert (asked["state"], asked["linked_here"]) == ("asked", False)
        async with linked_plant(tmp_path, hub) as plant:
            assert (await over(hub, asked["id"]))["records_received"] == 50
            assert held(hub, plant) == RangeSet([(50, 100)])


@pytest.mark.slow
async def test_what_the_edge_deletes_meanwhile_is_named(tmp_path: Path) -> None:
    slow = Pull(streams=("vib*",), rate=30_000)
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, slow) as plant:
        await plant.records("vibration", 10, batches=200)
        _, asked = await ask(hub, 0, 200)
        await until(lambda: bool(held(hub, plant)))
        await plant.delete("vibration", 1000, 1500)
        found = await over(hub, asked["id"])
        have = held(hub, plant)
        assert found["state"] == "done"
        assert found["records_received"] == have.count() < 2000
        assert [(each["first"], each["end"]) for each in found["lost"]] == have.missing(0, 2000)


@pytest.mark.slow
async def test_bounds_of_pulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Pull(streams=("vib*",), rate=1)
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub, slow) as plant:
        await plant.records("vibration", 10, batches=200)
        answers = [(await ask(hub, 0, 100))[0] for _ in range(9)]
        assert answers == [202] * 8 + [429]
        monkeypatch.setattr(pulls, "RUNNING_PER_TENANT_MAX", 8)
        status, reported = await ask(hub, 0, 100)
        assert (status, "wait for one" in reported["detail"]) == (429, True)
        monkeypatch.setattr(pulls, "PULLS_PER_HOUR_MAX", 8)
        _, listed = await call(hub, "GET", "/v1/pulls")
        await call(hub, "DELETE", f"/v1/pulls/{listed['pulls'][0]['id']}")
        assert "in an hour" in (await ask(hub, 0, 100))[1]["detail"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "status", "error"),
    [
        ({"from": "5", "to": "5"}, 400, "empty"),
        ({"from": "yesterday"}, 400, "from"),
        ({"to": "2222-01-01"}, 400, "31 days"),
        ({"stream": "../x"}, 400, "is not a name"),
        ({"edge": "nobody"}, 404, "no edge nobody"),
        ({"bytes_max": 0}, 400, "not a pull request"),
        ({"expires_s": 1e9}, 400, "not a pull request"),
        ({"more": 1}, 400, "not a pull request"),
    ],
)
async def test_requests_that_cannot_be(tmp_path: Path, fields: dict[str, Any], status: int, error: str) -> None:
    async with running_hub(MemoryStore()) as hub:
        body = {"edge": "press-7", "stream": "vibration", "from": "2023-11-14T00:00Z", "to": "2023-11-15"} | fields
        answer, reported = await call(hub, "POST", "/v1/pulls", body)
        assert (answer, error in reported["detail"]) == (status, True), reported


@pytest.mark.slow
async def test_a_list_of_the_pulls_of_no_name_is_refused() -> None:
    async with running_hub(MemoryStore()) as hub:
        answer, reported = await call(hub, "GET", "/v1/pulls?edge=", None)
        assert (answer, reported["detail"]) == (400, "edge=''")


@pytest.mark.slow
async def test_an_edge_of_a_release_without_pulls_is_asked_for_nothing(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub:
        log, identity = EdgeLog(), LinkIdentity("default", "press-7", 7, "older")
        async with running_link(hub, log, identity) as status:
            await until(lambda: status.is_taken)
            await until(lambda: any(each.state.lane_count("default", "press-7") for each in hub.sequencers))
            _, asked = await ask(hub, 0, 10)
            await asyncio.sleep(0.3)
            found = await pull_of(hub, asked["id"])
            assert (found["state"], found["linked_here"], status.connections) == ("asked", False, 1)


@pytest.mark.slow
async def test_a_hub_of_a_release_without_pulls_gets_records_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.replication.receiver.FEATURES", ("last-words", "config", "down"))
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await plant.records("telemetry", 10)
        await until(lambda: held(hub, plant, "telemetry") == RangeSet([(0, 10)]))
        assert plant.status.connections == 1
        assert not plant.status.last_error


@pytest.mark.slow
async def test_a_hub_that_restarts_asks_again(tmp_path: Path) -> None:
    store, slow = MemoryStore(), Pull(streams=("vib*",), rate=30_000)
    async with running_hub(store) as hub, linked_plant(tmp_path, hub, slow) as plant:
        await plant.records("vibration", 10, batches=200)
        _, asked = await ask(hub, 0, 200)
        await until(lambda: bool(held(hub, plant)))
        first = held(hub, plant).count()
        assert first < 2000
        url = hub.url
        await hub.close()
        async with running_hub(store, port=int(url.rpartition(":")[2])) as again:
            found = await over(again, asked["id"])
            assert (found["state"], found["records_received"]) == ("done", 2000)
            assert offsets(again) == {2000}


@pytest.mark.slow
async def test_a_log_that_was_put_back_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub has other records under numbers that the log uses again."""
    async with running_hub(MemoryStore()) as hub:
        async with linked_plant(tmp_path, hub) as plant:
            await plant.records("vibration", 10, batches=20)
            assert (await over(hub, (await ask(hub, 0, 10))[1]["id"]))["state"] == "done"
        monkeypatch.setattr(HubHighWatermarks, "get", lambda *_: 50)
        async with linked_plant(tmp_path, hub) as plant:
            for window in ((5, 15), (2, 8)):
                found = await over(hub, (await ask(hub, *window))[1]["id"])
                assert (found["state"], "restored from an older copy" in found["reason"]) == ("refused", True)
            assert held(hub, plant) == RangeSet([(0, 100)])
            assert plant.status.is_taken


@pytest.mark.slow
async def test_a_token_for_pulls_opens_nothing_else(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    secrets = {scope: create_token(str(tokens), scope, Scope(scope)) for scope in ("pull", "reader", "publish")}
    async with running_hub(MemoryStore(), tokens=str(tokens)) as hub:
        found = {
            (scope, path): (await call(hub, "GET", path, token=secret))[0]
            for scope, secret in secrets.items()
            for path in ("/v1/pulls", "/v1/streams", "/v1/messages?edge=press-7")
        }
        assert {asked for asked, status in found.items() if status != 403} == {
            ("pull", "/v1/pulls"),
            ("reader", "/v1/streams"),
            ("publish", "/v1/messages?edge=press-7"),
        }
        assert (await call(hub, "GET", "/v1/pulls?tenant=other", token=secrets["pull"]))[0] == 403
        assert (await call(hub, "GET", "/v1/pulls"))[0] == 401


# --- Words of edges about their pulls: what they cost the cluster log, and whom they keep waiting


NAME = "default/5f0c"
REQUEST = PullRequest("5f0c", "vibration", 0, 10, 1 << 20)
CLUSTER = bytes(16)
AUTHOR = Author(1, "test", "")


def said(log_id: int, ranges: list[tuple[int, int]], stage: PullStage = PullStage.SENDING, id_: str = "5f0c") -> Any:
    return PullState(id_, stage, log_id, ranges, 10, 100, 0, "the disk is ill")


async def asked(store: MemoryStore, *names: str) -> ClusterLog:
    log = ClusterLog(store, CLUSTER)
    for name in names or (NAME,):
        await log.append(declare_ask(name, PullDocument("press-7", "vibration", 0, 10, 1 << 20, 1, 1 << 60)), AUTHOR)
    return log


async def test_an_edge_with_one_log_after_the_other_does_not_fill_the_cluster_log() -> None:
    log = await asked(MemoryStore())
    for log_id in range(1, 50):
        state = await log.append(plan(NAME, said(1 + log_id % 2, [(0, 10)]), 2), AUTHOR)
    found = decode(state.facts(PULL_KIND)[NAME].document, PullDocument)
    assert (found.state, found.reason) == ("failed", OTHER_LOGS)
    assert state.n <= 4


async def test_ranges_that_an_edge_made_up_are_joined() -> None:
    log = await asked(MemoryStore())
    state = await log.append(plan(NAME, said(1, [(9, 3), (0, 8), (2, 10), (0, 10)]), 2), AUTHOR)
    assert decode(state.facts(PULL_KIND)[NAME].document, PullDocument).ranges == ((0, 10),)


def test_an_edge_that_waits_may_say_so_without_end() -> None:
    pulls = LinkPulls()
    pulls.ask([REQUEST])
    assert all(pulls.accepts(said(1, [], PullStage.WAITING)) for _ in range(3 * REPORTS_MAX))
    assert not pulls.accepts(said(1, [], PullStage.WAITING, id_="another"))


class Declared:
    def __init__(self) -> None:
        self.pulls = PullCache()

    def watch(self, what: object, changed: object) -> None:
        pass


class Link:
    node = NodeName("default", "press-7")
    is_over = False

    def ask(self, requests: list[PullRequest]) -> None:
        self.requests = requests


class NoShard:
    """The only shard, which is not loaded, or has nothing."""

    loaded = False
    state = ShardState(CLUSTER, 0)

    def place(self, _edge: NodeName) -> int:
        return 0

    async def get(self, _shard: int) -> NoShard:
        return self

    async def catch_up(self, _age_s: float) -> None:
        pass


class Clock:
    """One that may be wrong, which is an hour ahead then."""

    is_wrong = False

    def now(self) -> int:
        return 5 + HOUR_NS * self.is_wrong

    def wrong(self) -> str | None:
        return "the clock is wrong" if self.is_wrong else None


def service(store: MemoryStore, shard: NoShard | None = None) -> HubPulls:
    shards = cast(Any, shard or NoShard())
    return HubPulls(store, CLUSTER, cast(Any, Declared()), shards, is_own=lambda _: True, clock=cast(Any, Clock()))


async def test_an_edge_that_goes_on_talking_keeps_no_other_waiting() -> None:
    store, other = MemoryStore(), "default/0abc"
    log = await asked(store, NAME, other)
    pulls, link = service(store), cast(Any, Link())
    pulls._declared.pulls.refresh(await log.load())
    pulls.greeted(link)
    written: list[str] = []
    declare = pulls.declare

    async def talks(name: str, *rest: Any) -> Any:
        made = await declare(name, *rest)
        written.append(name)
        if name == NAME:
            pulls.take(link, said(1, [(0, 10)], PullStage.REFUSED))
        await asyncio.sleep(0)
        return made

    pulls.declare = talks  # type: ignore[method-assign,assignment]
    pulls.start()
    try:
        pulls.take(link, said(1, [(0, 10)], PullStage.REFUSED))
        pulls.take(link, said(1, [(0, 10)], id_="0abc"))
        await until(lambda: pulls._declared.pulls.documents[other].state == "sending")
        assert written.index(other) == 1
    finally:
        await pulls.close()


async def test_a_word_that_is_noted_costs_nothing_again() -> None:
    store = MemoryStore()
    log = await asked(store)
    pulls, link = service(store), cast(Any, Link())
    pulls._declared.pulls.refresh(await log.append(plan(NAME, said(1, [(0, 10)]), 2), AUTHOR))
    pulls.take(link, said(1, [(0, 10)]))
    assert not pulls._due
    pulls.take(link, said(2, [(0, 10)]))
    assert list(pulls._due) == [(NAME, "sending")]


async def test_what_an_edge_waited_for_is_forgotten_with_its_link() -> None:
    store = MemoryStore()
    log = await asked(store)
    pulls, link = service(store), cast(Any, Link())
    pulls._declared.pulls.refresh(await log.load())
    pulls.greeted(link)
    pulls.take(link, said(1, [], PullStage.WAITING))
    assert pulls.waits == {NAME: "the disk is ill"}
    pulls.left(link)
    assert pulls.waits == {}


async def test_a_pull_is_done_when_it_is_known_what_the_hub_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "RETRY_S", 0.02)
    store, shard = MemoryStore(), NoShard()
    log = await asked(store)
    pulls, link = service(store, shard), cast(Any, Link())
    pulls._declared.pulls.refresh(await log.append(plan(NAME, said(1, [(0, 10)]), 2), AUTHOR))
    pulls.start()
    try:
        pulls.take(link, said(1, [(0, 10)], PullStage.DONE))
        await asyncio.sleep(0.2)
        assert pulls._declared.pulls.is_running(NAME)
        shard.loaded = True
        await until(lambda: not pulls._declared.pulls.is_running(NAME))
        found = pulls._declared.pulls.documents[NAME]
        assert (found.state, found.received, found.lost) == ("done", 0, ((0, 10),))
    finally:
        await pulls.close()


async def test_a_list_of_pulls_waits_once_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, most = 0, 0

    class Hanging:
        waits: ClassVar[dict[str, str]] = {}

        async def held(self, _name: str) -> None:
            nonlocal waiting, most
            waiting += 1
            most = max(most, waiting)
            await asyncio.sleep(0.01)
            waiting -= 1

        def is_linked(self, _edge: NodeName) -> bool:
            return False

    log = await asked(MemoryStore(), *(f"default/{each}" for each in range(8)))
    known, anyone = PullCache(), SimpleNamespace(puller=lambda _: ("default", None))
    clock = SimpleNamespace(wrong=lambda: None, now=lambda: 5)
    known.refresh(await log.load())
    requests = PullRequests(*cast(Any, (Hanging(), known, None, anyone, clock)))
    monkeypatch.setattr(pull_requests, "asked", lambda _, of: of(None, None))
    answer = await requests.get(cast(Any, SimpleNamespace()))
    assert (answer.status, most) == (200, 8)


async def test_a_word_that_found_no_room_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "DUE_MAX", 1)
    store, other = MemoryStore(), "default/0abc"
    log = await asked(store, NAME, other)
    pulls, link = service(store), AskedLink()
    pulls._declared.pulls.refresh(await log.load())
    pulls.greeted(cast(Any, link))
    for id_ in ("5f0c", "0abc"):
        pulls.take(cast(Any, link), said(1, [(0, 10)], PullStage.REFUSED, id_))
    link.asked.clear()
    pulls.start()
    try:
        await until(lambda: len(link.asked) >= 3)
        assert link.asked[-2:] == [[], ["0abc"]]
    finally:
        await pulls.close()


class AskedLink(Link):
    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def ask(self, requests: list[PullRequest]) -> None:
        self.asked.append([each.id for each in requests])


async def test_a_wrong_clock_ends_no_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "RETRY_S", 0.02)
    monkeypatch.setattr(service_module, "LOOK_S", 0.02)
    store, clock = MemoryStore(), Clock()
    log = ClusterLog(store, CLUSTER)
    document = PullDocument("press-7", "vibration", 0, 10, 1 << 20, 1, HOUR_NS)
    await log.append(declare_ask(NAME, document), AUTHOR)
    pulls = service(store)
    pulls._clock = cast(Any, clock)
    pulls._declared.pulls.refresh(await log.load())
    clock.is_wrong = True
    pulls.start()
    try:
        pulls.take(cast(Any, Link()), said(1, [(0, 10)]))
        await asyncio.sleep(0.2)
        assert pulls._declared.pulls.documents[NAME] == document
        clock.is_wrong = False
        await until(lambda: pulls._declared.pulls.documents[NAME].started == 5)
    finally:
        await pulls.close()


async def test_a_tenant_that_asks_for_pulls_for_days_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "KEPT_PER_TENANT_MAX", 5)
    store = MemoryStore()
    pulls = service(store)
    for n in range(8):
        name, now = f"default/{n:04x}", n * HOUR_NS
        document = PullDocument("press-7", "vibration", 0, 10, 1 << 20, now, now + 1)
        await pulls.ask(name, document, AUTHOR)
        if n != 1:  # which continues
            await pulls.declare(name, end(name, "cancelled", now), AUTHOR)
    state = await ClusterLog(store, CLUSTER).load()
    assert [name[-1] for name in sorted(state.facts(PULL_KIND))] == ["1", "4", "5", "6", "7"]


async def test_a_request_beyond_a_share_makes_nothing_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "KEPT_PER_TENANT_MAX", 2)
    monkeypatch.setattr(facts, "PULLS_PER_HOUR_MAX", 2)
    store = MemoryStore()
    log, pulls = await asked(store), service(store)
    await log.append(end(NAME, "cancelled", 2), AUTHOR)
    document = PullDocument("press-7", "vibration", 0, 10, 1 << 20, 1, 1 << 60)
    await pulls.ask("default/1", document, AUTHOR)
    before = (await log.load()).n
    with pytest.raises(PullsFull, match="in an hour"):
        await pulls.ask("default/2", document, AUTHOR)
    assert (await log.load()).n == before


# --- Edges with several links to one hub, of which some bring what it asks for


async def adopt(plant: Plant, **links: Any) -> None:
    """Run these links beside the plant's first one, and no others."""
    first = plant.config.links["hub"]
    more = {name: msgspec.structs.replace(first, **fields) for name, fields in links.items()}
    plant.links.adopt(msgspec.structs.replace(plant.config, links={"hub": first} | more))
    await until(lambda: all(status.is_taken for status in plant.links.statuses))


@pytest.mark.slow
async def test_a_link_that_allows_nothing_does_not_answer_for_one_that_does(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await adopt(plant, alarms={"streams": (), "pull": None})
        await plant.records("vibration", 10)
        found = await over(hub, (await ask(hub, -1, 50))[1]["id"])
        assert (found["state"], held(hub, plant)) == ("done", RangeSet([(0, 10)]))


@pytest.mark.slow
async def test_links_that_stay_with_two_processes_share_a_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As for an edge that does not reach the other process under its name.
    monkeypatch.setattr("weft.cloud_hub.links.edge_link.redirect", lambda *_: None)
    store = MemoryStore()
    async with running_hub(store) as hub, running_hub(store) as other, linked_plant(tmp_path, hub) as plant:
        slow = Pull(streams=("vib*",), rate=20_000)
        await adopt(plant, alarms={"to": (other.url,), "streams": (), "pull": slow})
        await plant.records("vibration", 10, batches=200)
        found = await over(hub, (await ask(hub, -1, 500))[1]["id"])
        assert (found["state"], found["records_received"]) == ("done", 2000)
        assert [(each.state, each.connections) for each in plant.links.statuses] == [(LinkState.CONNECTED, 1)] * 2
        assert not any(state.conflict for each in hub.sequencers for state in each.state.lanes.values())


@pytest.mark.slow
async def test_another_link_is_asked_when_the_last_one_leaves(tmp_path: Path) -> None:
    async with running_hub(MemoryStore()) as hub, linked_plant(tmp_path, hub) as plant:
        await adopt(plant, alarms={"streams": (), "pull": Pull(streams=("vib*",), rate=1000)})
        await plant.records("vibration", 10, batches=200)
        id_ = (await ask(hub, -1, 500))[1]["id"]
        await until(lambda: bool(held(hub, plant)))
        await adopt(plant)
        patience = Patience()
        while "continues when this link connects again" not in str((found := await pull_of(hub, id_))["reason"]):
            assert not patience.is_over(), found
            await asyncio.sleep(0.05)
        assert not any(state.conflict for each in hub.sequencers for state in each.state.lanes.values())
        await adopt(plant, hub={"retry_min_s": 0.02})
        found = await over(hub, id_)
        assert (found["state"], held(hub, plant)) == ("done", RangeSet([(0, 2000)]))


# --- Edges that send what they were not asked for, over real links to a real hub


LOG = 7
IDENTITY = LinkIdentity("default", "press-7", LOG, "test")


class Liar:
    """An edge that says and sends what a test wants (``LogSource`` and ``Puller``)."""

    def __init__(self) -> None:
        self.asked: list[PullRequest] = []
        self.tell: Tell = lambda _: None
        self.lane: OfferedLane | None = None
        self.batches: list[bytes] = []
        self.gaps: list[GapRange] = []
        self.closed_lanes: list[str] = []
        self._listeners: list[Callable[[Collection[int] | None], None]] = []

    # -- what tests call

    def says(self, ranges: list[tuple[int, int]], **fields: Any) -> None:
        """Announce records for the first pull."""
        count = sum(end - first for first, end in ranges)
        said = PullState(self.asked[0].id, PullStage.SENDING, LOG, ranges, count, 10_000, 0)
        self.tell(msgspec.structs.replace(said, **fields))

    def sends(self, first: int, end: int, at_s: float = 10.0, stream: str = "vibration") -> None:
        """Open a lane of a pull, and send a batch on it."""
        lane = Lane("default", "press-7", LOG, stream)
        self.batches = [bytes(make_batch(lane, first, end, BEGIN + int(at_s * SECOND))[1])]
        self.opens(stream)

    def opens(self, stream: str = "vibration") -> None:
        self.lane = OfferedLane(2, stream, (), flags=LaneFlag.PARTIAL, is_background=True, continues_hub=True)
        for listener in self._listeners:
            listener(None)

    # -- Puller

    is_offered = True

    def over(self, _source: LogSource) -> LogSource:
        return self

    def opened(self, _hub: str, tell: Tell) -> None:
        self.tell = tell

    def take(self, pulls: list[PullRequest]) -> None:
        self.asked = pulls

    def lane_ended(self, reason: str) -> None:
        self.closed_lanes.append(reason)

    def closed(self) -> None:
        self.asked, self.lane = [], None

    # -- LogSource

    def lanes(self) -> list[OfferedLane]:
        own = OfferedLane(1, "telemetry", ())
        return [own] if self.lane is None else [own, self.lane]

    def states(self, lanes: Iterable[int]) -> dict[int, LaneSnapshot]:
        headers = [decode_header(batch) for batch in self.batches]
        held = RangeSet((header.base_seq, header.end_seq) for header in headers)
        gaps = self.gaps
        nothing = LaneSnapshot(RangeSet(), 0, [], None)
        return {lane: LaneSnapshot(held, SEQ_END - 1, gaps, None) if lane == 2 else nothing for lane in lanes}

    async def read(self, lane: int, seq: int, bytes_max: int) -> list[bytes]:
        return [batch for batch in self.batches if decode_header(batch).end_seq > seq]

    def high_watermark(self, hub: str, lane: int) -> int:
        return SEQ_END

    async def prepare_to_send(self, hub: str, ends: Mapping[int, int]) -> None:
        pass

    def released(self, lane: int, ranges: RangeSet) -> None:
        pass

    def listen(self, callback: Callable[[Collection[int] | None], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)


@contextlib.asynccontextmanager
async def lied_to() -> AsyncIterator[tuple[Hub, Liar, LinkStatus]]:
    liar, status = Liar(), LinkStatus("hub")
    async with running_hub(MemoryStore()) as hub:
        settings = LinkSettings((hub.url,), retry_min_s=0.02, retry_max_s=0.05)
        task = asyncio.create_task(run_link(liar, IDENTITY, settings, MemoryEpochs(), status, puller=liar))
        try:
            await until(lambda: status.is_taken)
            yield hub, liar, status
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def hostile_edges_held(hub: Hub, stream: str = "vibration") -> list[tuple[int, int]]:
    found = [
        state.ranges for each in hub.sequencers for lane, state in each.state.lanes.items() if lane.stream == stream
    ]
    return [run for ranges in found for run in ranges]


async def hostile_edges_asked(hub: Hub, liar: Liar, since_s: float = 0, until_s: float = 50, **fields: Any) -> str:
    _, answer = await ask(hub, since_s, until_s, **fields)
    await until(lambda: any(each.id == answer["id"] for each in liar.asked))
    return str(answer["id"])


@pytest.mark.slow
async def test_records_that_were_not_announced_are_not_taken() -> None:
    async with lied_to() as (hub, liar, _):
        id_ = await hostile_edges_asked(hub, liar)
        liar.says([(0, 10)])
        liar.sends(10, 20)
        found = await over(hub, id_)
        assert (found["state"], hostile_edges_held(hub)) == ("failed", [])
        assert "records 10 to 19 of stream vibration are in none of the windows" in found["reason"]


@pytest.mark.slow
async def test_records_of_another_time_are_not_taken() -> None:
    async with lied_to() as (hub, liar, _):
        id_ = await hostile_edges_asked(hub, liar)
        liar.says([(0, 10)])
        liar.sends(0, 10, at_s=60)
        assert ((await over(hub, id_))["state"], hostile_edges_held(hub)) == ("failed", [])


@pytest.mark.slow
async def test_a_lane_that_was_not_asked_for_is_not_opened() -> None:
    async with lied_to() as (hub, liar, status):
        await hostile_edges_asked(hub, liar)
        liar.says([(0, 10)])
        liar.sends(0, 10, stream="alarms")
        await until(lambda: bool(liar.closed_lanes))
        assert "did not ask for records of stream alarms" in liar.closed_lanes[0]
        assert (hostile_edges_held(hub, "alarms"), status.is_taken) == ([], True)


@pytest.mark.slow
async def test_a_lane_without_a_pull_is_not_opened() -> None:
    async with lied_to() as (hub, liar, _):
        liar.sends(0, 10)
        await until(lambda: bool(liar.closed_lanes))
        assert hostile_edges_held(hub) == []


@pytest.mark.slow
async def test_gap_notices_claim_nothing_in_place_of_records() -> None:
    async with lied_to() as (hub, liar, _):
        id_ = await hostile_edges_asked(hub, liar)
        liar.says([(0, 10)])
        liar.gaps = [GapRange(0, 10, 1)]
        liar.opens()
        assert ((await over(hub, id_))["state"], hostile_edges_held(hub)) == ("failed", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{"bytes": 1 << 50}, {"records": 3}, {"ranges": [(0, 20), (5, 30)]}], ids=lambda each: next(iter(each))
)
async def test_announcements_that_cannot_be_end_the_link(fields: dict[str, Any]) -> None:
    async with lied_to() as (hub, liar, status):
        await hostile_edges_asked(hub, liar)
        connections = status.connections
        liar.says(**{"ranges": [(0, 10)]} | fields)
        await until(lambda: "announced" in status.last_error)
        await until(lambda: status.connections > connections)
        assert hostile_edges_held(hub) == []


@pytest.mark.slow
async def test_words_without_end_end_the_link() -> None:
    async with lied_to() as (hub, liar, status):
        await hostile_edges_asked(hub, liar)
        for _ in range(REPORTS_MAX + 1):
            liar.says([(0, 10)])
        await until(lambda: "more than 256 pull reports" in status.last_error)


@pytest.mark.slow
async def test_words_about_pulls_of_others_change_nothing() -> None:
    async with lied_to() as (hub, liar, _):
        id_ = await hostile_edges_asked(hub, liar)
        for stage in (PullStage.DONE, PullStage.REFUSED, 99):
            liar.says([], id="another", stage=stage)
        liar.says([], stage=99)
        liar.says([(0, 10)])
        liar.sends(0, 10)
        await until(lambda: hostile_edges_held(hub) == [(0, 10)])
        assert (await pull_of(hub, id_))["state"] == "sending"
