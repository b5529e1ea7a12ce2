"""Every process of a hub tells which edges are linked to which, at a cost that does not grow with how often it is asked
nor, while nothing changes, with the edges."""

from __future__ import annotations

import random

import pytest

from weft.cloud_hub.links.open_links import (
    CLEAN_LOOKS,
    OBJECT_BYTES_MAX,
    READ_AGE_S,
    REPORT_LOOKS,
    REWRITE_LOOKS,
    LinkedEdges,
)
from weft.cloud_hub.reads.edge_reports import EdgeReport
from weft.cloud_hub.reads.summaries import Linked
from weft.hub_api.status import LostOfLane
from weft.protocols.lane import NodeName
from weft.protocols.link import FunctionReport, NodeReport
from weft.storage import hub_keys
from weft.storage.object_store import StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import NodeEntry


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.reads = self.writes = 0

    async def get(self, key: str):  # type: ignore[no-untyped-def]
        self.reads += 1
        return await super().get(key)

    async def create(self, key: str, data):  # type: ignore[no-untyped-def]
        self.writes += 1
        return await super().create(key, data)

    async def swap(self, key: str, data, expected_etag: str):  # type: ignore[no-untyped-def]
        self.writes += 1
        return await super().swap(key, data, expected_etag)


class Process:
    """A process as the others see it."""

    def __init__(self, store: MemoryStore, name: str, others: list[str]) -> None:
        self.linked: dict[NodeName, Linked] = {}
        self.others = [NodeEntry(f"id-{each}", "", "weft", 1, 0, name=each) for each in others]
        self.now = 0.0
        self.lost: list[LostOfLane] = []
        self.reports: dict[NodeName, EdgeReport] = {}
        self.node_id = f"id-{name}"
        self.directory = LinkedEdges(
            store,
            self.node_id,
            lambda: self.linked,
            lambda: self.lost,
            lambda: self.others,
            reports=lambda: self.reports,
            monotonic=lambda: self.now,
        )

    def link(self, edge: str, since: int = 1) -> None:
        self.linked[NodeName("default", edge)] = Linked(since, "weft 9", 5, "")

    async def sees(self) -> dict[str, str]:
        self.now += READ_AGE_S
        return {name.edge: link.at for name, link in (await self.directory.elsewhere()).edges.items()}


async def test_a_process_sees_the_links_of_the_others_and_when_they_end() -> None:
    store = CountingStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    assert (await one.directory.elsewhere()).unknown_at == ["two"]
    two.link("press-1")
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}
    assert (await one.directory.elsewhere()).unknown_at == []
    reads = store.reads
    for _ in range(50):
        await one.directory.elsewhere()
    assert store.reads == reads, "who asks again within seconds reads nothing"
    two.linked.clear()
    await two.directory.look()
    assert await one.sees() == {}


async def test_a_process_knows_the_lost_records_of_shards_of_others_whether_their_edge_is_linked_or_not() -> None:
    store = CountingStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    two.link("press-1")
    two.lost = [LostOfLane("default", edge, "0" * 16, 3, "telemetry", 7, 5) for edge in ("press-1", "press-2")]
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}
    assert (await one.directory.elsewhere()).lost == two.lost
    two.lost = []
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}
    assert (await one.directory.elsewhere()).lost == []


def report(reported: int, functions: int = 0, text: str = "") -> EdgeReport:
    each = FunctionReport("hot", "where", 1, 1, 1, text)
    return EdgeReport(reported, NodeReport(reported, 1 << 30, 0, 1, 3600, [each] * functions, 0))


async def test_what_edges_say_of_themselves_is_known_everywhere_also_of_those_that_are_gone() -> None:
    store = CountingStore()
    one, two, three = (Process(store, name, ["one", "two", "three"]) for name in ("one", "two", "three"))
    press, saw = NodeName("default", "press-1"), NodeName("default", "saw-2")
    two.link("press-1")
    two.reports = {press: report(5, 3), saw: report(9)}
    three.reports = {press: report(4), saw: report(10)}  # the press was linked there before
    for each in (two, three):
        await store.create(hub_keys.node_key(each.node_id), b"x")
        await each.directory.look()
    assert await one.sees() == {"press-1": "two"}
    found = (await one.directory.elsewhere()).reports
    assert found == {press: report(5, 3), saw: report(10)}


async def test_reports_alone_are_written_once_a_minute() -> None:
    store = CountingStore()
    one = Process(store, "one", ["two"])
    one.link("press-1")
    for now in range(5 * REPORT_LOOKS):
        one.reports = {NodeName("default", "press-1"): report(now)}
        await one.directory.look()
    assert store.writes == 5
    one.link("press-2")
    await one.directory.look()
    assert store.writes == 6, "who comes is told at once"


async def test_the_functions_of_a_fleet_have_a_bound_and_no_edge_takes_the_room_of_another() -> None:
    store = CountingStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    rng = random.Random(1)
    for n in range(2000):
        text = "".join(map(chr, rng.choices(range(0x10000, 0x10FFFF), k=160)))
        two.reports[NodeName("default", f"long-{n}")] = report(1, 32, text)
    modest = NodeName("default", "modest")
    two.reports[modest] = report(1, 2)
    await two.directory.look()
    (written,) = await store.list(hub_keys.LINKED)
    assert written.size <= OBJECT_BYTES_MAX
    found = (await one.directory.elsewhere()).reports
    assert len(found) == 2001
    assert found[modest] == report(1, 2)
    long = found[NodeName("default", "long-0")].report
    assert (len(long.functions) + long.functions_more, long.functions_more > 0) == (32, True)


async def test_an_edge_that_moved_is_where_it_came_to_last() -> None:
    store = CountingStore()
    one, two, three = (Process(store, name, ["one", "two", "three"]) for name in ("one", "two", "three"))
    two.link("press-1", since=10)
    three.link("press-1", since=20)
    for each in (two, three):
        await each.directory.look()
    assert await one.sees() == {"press-1": "three"}


async def test_nothing_is_written_while_no_edge_comes_or_goes_and_none_is_asked() -> None:
    store = CountingStore()
    alone, one = Process(store, "alone", []), Process(store, "one", ["two"])
    for n in range(10_000):
        alone.link(f"press-{n}")
        one.link(f"press-{n}")
    for _ in range(REWRITE_LOOKS):
        await alone.directory.look()
        await one.directory.look()
    assert store.writes == 1
    (written,) = await store.list(hub_keys.LINKED)
    assert written.size < 200_000, "ten thousand edges are an object of some hundred kilobytes"


async def test_what_killed_processes_left_is_removed() -> None:
    store = MemoryStore()
    one = Process(store, "one", ["two"])
    await store.create(hub_keys.linked_key("dead"), b"x")
    await store.create(hub_keys.linked_key("id-two"), b"x")
    await store.create(hub_keys.node_key("id-two"), b"x")
    for _ in range(CLEAN_LOOKS + 1):
        await one.directory.look()
    assert [each.key for each in await store.list(hub_keys.LINKED)] == ["linked/id-one", "linked/id-two"]


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x78\x01" + b"\0" * 40])
async def test_an_object_that_cannot_be_read_is_a_process_whose_links_are_unknown(data: bytes) -> None:
    store = MemoryStore()
    one = Process(store, "one", ["two"])
    await store.create(hub_keys.linked_key("id-two"), data)
    found = await one.directory.elsewhere()
    assert (dict(found.edges), found.unknown_at) == ({}, ["two"])


async def test_a_removed_object_comes_again() -> None:
    store = MemoryStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    two.link("press-1")
    await two.directory.look()
    await store.delete(hub_keys.linked_key("id-two"))
    for _ in range(REWRITE_LOOKS):
        await two.directory.look()
    assert await one.sees() == {"press-1": "two"}


async def test_a_store_that_does_not_answer_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    one, two = Process(store, "one", ["two"]), Process(store, "two", ["one"])
    two.link("press-1")
    with monkeypatch.context() as broken:

        async def fails(*_: object) -> str:
            raise StoreError("the network is cut")

        broken.setattr(store, "create", fails)
        with pytest.raises(StoreError):
            await two.directory.look()
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}
