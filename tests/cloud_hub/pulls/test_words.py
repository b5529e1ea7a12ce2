"""Words of edges about their pulls: what they cost the cluster log, and whom they keep waiting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from tests.support.waiting import until
from weft.cloud_hub import pulls as service_module
from weft.cloud_hub.facts import pulls as facts
from weft.cloud_hub.facts.fact import PULL_KIND, decode
from weft.cloud_hub.facts.pulls import HOUR_NS, OTHER_LOGS, PullCache, PullDocument, PullsFull, end, plan
from weft.cloud_hub.facts.pulls import ask as declare_ask
from weft.cloud_hub.http.pulls import PullRequests
from weft.cloud_hub.pulls import REPORTS_MAX, HubPulls, LinkPulls
from weft.protocols.lane import NodeName
from weft.protocols.link import PullRequest, PullStage, PullState
from weft.protocols.shard.shard_state import ShardState
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store.directory import MemoryStore

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


async def test_a_list_of_pulls_waits_once_for_a_store_that_hangs() -> None:
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
    answer = await requests.get(cast(Any, SimpleNamespace(query={})))
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
