"""Every process of a hub tells which edges are linked to which, at a cost that does not grow with how often it is asked
nor, while nothing changes, with the edges."""

from __future__ import annotations

import pytest

from weft.cloud_hub.api.edges import Linked
from weft.cloud_hub.api.views import View
from weft.cloud_hub.links.linked_edges import CLEAN_LOOKS, READ_AGE_S, REWRITE_LOOKS, LinkedEdges
from weft.protocols.lane import NodeName
from weft.storage import hub_keys
from weft.storage.object_store import StoreError
from weft.storage.object_store.memory import MemoryStore
from weft.storage.presence.nodes import NodeEntry


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
        self.lost: list[View] = []
        self.directory = LinkedEdges(
            store,
            f"id-{name}",
            lambda: self.linked,
            lambda: self.lost,
            lambda: self.others,
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
    lane = {"tenant": "default", "log": "0" * 16, "shard": 3, "stream": "telemetry", "records": 7, "first_seq": 5}
    two.link("press-1")
    two.lost = [{"edge": "press-1", **lane}, {"edge": "press-2", **lane}]
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}
    assert (await one.directory.elsewhere()).lost == two.lost
    two.lost = []
    await two.directory.look()
    assert await one.sees() == {"press-1": "two"}
    assert (await one.directory.elsewhere()).lost == []


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
