"""What a request for records reads of the store: bounded, and no more for what others have committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from aiohttp import web

from tests.cloud_hub import virtual_time
from tests.cloud_hub.fabric import CLUSTER as FABRIC_CLUSTER
from tests.cloud_hub.fabric import SequencerNode, Session
from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.virtual_time import now_ns
from tests.storage.test_chunk_log import CLUSTER, Writer
from tests.support.waiting import PATIENCE_S
from weft.cloud_hub.reads import records as followers
from weft.cloud_hub.reads import views as searches
from weft.cloud_hub.reads.records import (
    CHUNKS_MAX,
    LOCATE_LOOKS,
    Beginning,
    FollowedShard,
    RecordReader,
    StreamFollowers,
)
from weft.cloud_hub.reads.views import SEARCHED_MAX, Search
from weft.protocols.lane import Lane
from weft.protocols.shard.placement import shard_of
from weft.storage.chunk_log import READ_AHEAD_MAX, ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import StoreError
from weft.storage.object_store.directory import MemoryStore

BUSY, QUIET = ("default", "telemetry"), ("default", "quiet")


class CountingStore(MemoryStore):
    """A store that counts the objects that are asked for."""

    asked = 0

    async def get(self, key: str) -> Any:
        self.asked += 1
        return await super().get(key)


class Log:
    """A log in which a quiet stream stands beside a busy one."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.writer = Writer(ShardLog(self.store, CLUSTER, 2))
        log = ShardLog(self.store, CLUSTER, 2)
        self.reader = RecordReader(log, 1 << 20)

    async def busy(self, chunks: int, *, snapshots: bool = True) -> None:
        for _ in range(chunks):
            await self.writer.write(1)
            if snapshots and self.writer.state.n % 100 == 99:
                await self.writer.snapshot()

    async def first(self, chunk: int, search: Search | None = None) -> tuple[Beginning, int]:
        """Return where the quiet stream begins from a chunk on, and the number of objects that it took to find out."""
        before = self.store.asked
        found = await self.reader.first(self.writer.state, QUIET, search or Search(), chunk=chunk)
        return found, self.store.asked - before


async def test_a_quiet_stream_costs_no_more_for_what_others_have_committed() -> None:
    log = Log()
    await log.writer.write(3, "quiet")
    await log.writer.snapshot()
    costs = []
    for _ in range(3):
        await log.busy(500)
        await log.writer.snapshot()
        for chunk in (1, 130):
            found, cost = await log.first(chunk)
            assert found.offset == 3
            costs.append(cost)
        helping = await log.reader.read(QUIET, 3, 3, 10)
        assert helping == ([], 3, None)
    assert max(costs) <= 4, "the manifest, and the snapshots around the chunk"


async def test_one_who_follows_a_stream_reads_no_chunk_again() -> None:
    log = Log()
    await log.busy(200, snapshots=False)
    following = RecordReader(log.reader.log, 1 << 20)
    offset = 190
    for _ in range(3):
        before, end = log.store.asked, log.writer.state.next_offset[BUSY]
        helping = await following.read(BUSY, offset, end, 1000)
        assert (len(helping.records), helping.next_offset, helping.next_chunk) == (end - offset, end, None)
        costs = log.store.asked - before
        await log.busy(3, snapshots=False)
        offset = end
    assert costs <= 3 + 3 + READ_AHEAD_MAX, "the manifest, new chunks with their sections, and a look for the next ones"
    earlier = await following.read(BUSY, 5, 10, 1000)
    assert [each.record.offset for each in earlier.records] == [5, 6, 7, 8, 9]


async def test_a_record_of_a_quiet_stream_is_found_by_snapshots() -> None:
    log = Log()
    await log.busy(950)
    await log.writer.write(2, "quiet")
    await log.busy(950)
    end = log.writer.state.next_offset[QUIET]
    for chunk in (850, 910, 950):
        found, cost = await log.first(chunk)
        assert found.offset == 0
        assert cost <= 51 + READ_AHEAD_MAX
        before = log.store.asked
        helping = await log.reader.read(QUIET, 0, end, 10, chunk=found.chunk)
        assert [record.record.offset for record in helping.records] == [0, 1]
        assert log.store.asked - before <= 51 + READ_AHEAD_MAX
    assert (await log.first(951))[0].offset == 2
    helping = await log.reader.read(QUIET, 0, end, 10, chunk=1800)
    assert [each.record.offset for each in helping.records] == [0, 1], "a chunk behind the records hides none of them"


async def test_a_search_has_a_bound_and_says_where_it_goes_on() -> None:
    log = Log()
    await log.writer.write(2, "quiet")
    await log.busy(700, snapshots=False)
    await log.writer.write(2, "quiet")
    seen, chunk = [], 1
    while True:
        (offset, chunk), cost = await log.first(chunk)
        assert cost <= SEARCHED_MAX + READ_AHEAD_MAX + 2
        seen.append(offset)
        if offset is not None:
            break
    assert seen == [None, None, 2]
    helping = await log.reader.read(QUIET, 2, 4, 10, chunk=chunk)
    assert [record.record.offset for record in helping.records] == [2, 3]
    search = Search()
    helping = await log.reader.read(QUIET, 0, 4, 10, search=search)
    assert (helping.next_offset, helping.next_chunk) == (2, CHUNKS_MAX)
    offsets = []
    for _ in range(4):
        helping = await log.reader.read(QUIET, 2, 4, 10, chunk=helping.next_chunk or 0)
        offsets += [record.record.offset for record in helping.records]
    assert offsets == [2, 3]
    assert (await log.first(1, Search(0)))[0] == (None, 1), "all shards of a request share one search"


async def test_a_request_goes_on_where_the_answer_before_says() -> None:
    store = MemoryStore()
    cluster = await open_cluster(store, 1)
    assert shard_of("default", "edge", 1) == 0
    writer = Writer(ShardLog(store, cluster, 0))
    writer.state.cluster_id = cluster.cluster_id
    await writer.write(2, "quiet")
    for _ in range(SEARCHED_MAX + 50):
        await writer.write(1)
    await writer.write(2, "quiet")
    async with running_hub(store, shards=1) as hub:
        path = "/v1/streams/quiet/records"
        _, first = await get(hub, f"{path}?shard=0&chunk=1")
        assert first["records"] == []
        assert first["next_offset"] == {}
        assert first["next_chunk"] == {"0": 1 + SEARCHED_MAX}
        _, second = await get(hub, f"{path}?shard=0&chunk={first['next_chunk']['0']}")
        assert [record["offset"] for record in second["records"]] == [2, 3]
        assert (second["next_offset"], second["next_chunk"]) == ({"0": 4}, {})
        status, answer = await get(hub, f"{path}?chunk=1")
        assert (status, answer["advice"]) == (
            web.HTTPBadRequest.status_code,
            "give shard= too, or since= for all shards",
        )


async def test_a_request_that_would_search_ten_thousand_chunks_ends_with_a_cursor() -> None:
    log = Log()
    await log.writer.write(1, "quiet")
    await log.busy(10_000, snapshots=False)
    await log.writer.write(1, "quiet")
    requests, offset, chunk, found = 0, 1, 0, list[int]()
    while not found:
        before, search = log.store.asked, Search()
        helping = await log.reader.read(QUIET, offset, 2, 10, chunk=chunk, search=search)
        assert log.store.asked - before <= SEARCHED_MAX + READ_AHEAD_MAX + 2
        found += [record.record.offset for record in helping.records]
        chunk, requests = helping.next_chunk or 0, requests + 1
    assert found == [1]
    assert requests == -(-10_001 // SEARCHED_MAX)


async def test_shards_of_a_request_share_its_bytes_and_it_goes_on_where_they_ended() -> None:
    log = Log()
    await log.busy(8, snapshots=False)
    section = (await log.reader.log.index(0)).footer.streams[0].length  # type: ignore[union-attr]
    offset, chunk, seen = 0, 0, list[list[int]]()
    while offset < 8:
        search = Search(bytes_max=3 * section)
        helping = await log.reader.read(BUSY, offset, 8, 100, chunk=chunk, search=search)
        assert search.bytes_left <= 0 or helping.next_offset == 8
        seen.append([record.record.offset for record in helping.records])
        offset, chunk = helping.next_offset, helping.next_chunk or 0
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7]]
    search = Search(records_bytes=1)
    helping = await log.reader.read(BUSY, 0, 8, 100, search=search)
    assert ([record.record.offset for record in helping.records], search.is_spent) == ([0], True)


async def test_shards_beyond_the_bound_are_named_for_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    cluster = await open_cluster(store, 4)
    for shard in range(4):
        writer = Writer(ShardLog(store, cluster, shard))
        writer.state.cluster_id = cluster.cluster_id
        await writer.write(2)
    monkeypatch.setattr(searches, "LOOKS_MAX", 2 * LOCATE_LOOKS)
    async with running_hub(store, shards=4) as hub:
        path = "/v1/streams/telemetry/records"
        _, first = await get(hub, path)
        assert ([record["shard"] for record in first["records"]], first["next_shard"]) == ([0, 0, 1, 1], 2)
        assert first["next_offset"] == {"0": 2, "1": 2}
        _, second = await get(hub, f"{path}?from_shard={first['next_shard']}")
        assert [record["shard"] for record in second["records"]] == [2, 2, 3, 3]
        assert "next_shard" not in second
        assert (await get(hub, f"{path}?from_shard=4"))[0] == web.HTTPServiceUnavailable.status_code


@pytest.mark.parametrize("damage", [b"damaged", None], ids=["damaged", "gone"])
async def test_snapshots_that_cannot_be_read_only_make_a_search_longer(damage: bytes | None) -> None:
    log = Log()
    await log.writer.write(1, "quiet")
    await log.busy(120, snapshots=False)
    key = await log.writer.snapshot()
    await log.busy(20, snapshots=False)
    await log.store.delete(key)
    if damage is not None:
        await log.store.create(key, damage)
    found, cost = await log.first(100)
    assert found.offset == 1
    assert cost < 60


# --- Streams that a reader asks for, in shards of other processes


WANTED, OTHER = Lane("acme", "press-1", 1, "wanted"), Lane("acme", "press-1", 1, "other")
KEY = ("acme", "wanted")


class CutStore:
    """A store that can be cut off, and counts what is asked."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.is_cut = False
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._inner, name)

        async def request(*args: Any, **options: Any) -> Any:
            self.requests += 1
            if self.is_cut:
                raise StoreError("the network is down")
            return await called(*args, **options)

        return request


class FollowersWriter:
    """Another process with the shard, and the readers of this one."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.read_store = CutStore(self.store)
        self.node = SequencerNode(self.store, random.Random(1))
        self.followers = StreamFollowers(
            lambda shard: ShardLog(cast(Any, self.read_store), FABRIC_CLUSTER, shard, now_ns),
            asyncio.get_running_loop().time,
        )

    async def write(self, lane: Lane, first: int, end: int, epoch: int = 1) -> None:
        assert self.node.sequencer is not None
        session = Session(self.node.sequencer, lane, epoch)
        assert await session.open()
        await session.send(first, end)
        await session.until_acked(first, end)

    async def read(self) -> FollowedShard:
        return await self.followers.read(0, KEY)


def run(test: Callable[[FollowersWriter], Awaitable[None]]) -> None:
    async def main() -> None:
        writer = FollowersWriter()
        await writer.node.start()
        await test(writer)
        await writer.node.kill()

    virtual_time.run(main())


def count(found: FollowedShard) -> int:
    assert found.state is not None
    assert list(found.state.lanes) == [WANTED], "and nothing of the other stream"
    return found.state.next_offset[KEY]


def test_a_reader_gets_its_stream_up_to_the_head() -> None:
    async def test(writer: FollowersWriter) -> None:
        await writer.write(WANTED, 0, 3)
        await writer.write(OTHER, 0, 50)
        assert count(await writer.read()) == 3
        for epoch in range(2, 30):  # over snapshots
            await writer.write(WANTED, epoch, epoch + 2, epoch)
            await asyncio.sleep(0.3)
            assert count(await writer.read()) == epoch + 2

    run(test)


def test_readers_at_one_moment_share_a_look() -> None:
    async def test(writer: FollowersWriter) -> None:
        await writer.write(WANTED, 0, 3)
        await writer.read()
        await asyncio.sleep(1)
        writer.read_store.requests = 0
        await writer.read()
        alone, writer.read_store.requests = writer.read_store.requests, 0
        await asyncio.sleep(1)
        found = await asyncio.gather(*(writer.read() for _ in range(100)))
        assert {count(each) for each in found} == {3}
        assert alone <= writer.read_store.requests <= 2 * alone

    run(test)


def test_a_store_that_fails_is_told_and_what_was_read_stays(caplog: pytest.LogCaptureFixture) -> None:
    text = "the hub cannot use its store at the moment; the hub's operator sees why"

    async def test(writer: FollowersWriter) -> None:
        await writer.write(WANTED, 0, 3)
        writer.read_store.is_cut = True
        found = await writer.read()
        assert (found.state, found.trouble) == (None, text)
        assert "shard 0 cannot be read for a reader: the network is down" in caplog.text
        writer.read_store.is_cut = False
        assert count(await writer.read()) == 3
        writer.read_store.is_cut = True
        await asyncio.sleep(1)
        found = await writer.read()
        assert (count(found), found.trouble) == (3, text)
        writer.read_store.is_cut = False
        await writer.write(WANTED, 3, 4, 2)
        assert count(await writer.read()) == 4

    run(test)


def test_streams_that_no_one_asks_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "FOLLOWED_MAX", 3)

    async def test(writer: FollowersWriter) -> None:
        await writer.write(WANTED, 0, 3)
        for number in range(10):
            await writer.followers.read(0, ("acme", str(number)))
        assert len(writer.followers) == 3
        await asyncio.sleep(followers.IDLE_S)
        assert count(await writer.read()) == 3
        assert len(writer.followers) == 1

    run(test)


def test_names_that_no_shard_knows_push_out_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "UNKNOWN_MAX", 3)

    async def test(writer: FollowersWriter) -> None:
        await writer.write(WANTED, 0, 3)
        await writer.read()
        writer.followers.note(KEY, is_known=True)
        for number in range(20):
            key = ("acme", str(number))
            await writer.followers.read(0, key)
            writer.followers.note(key, is_known=False)
        assert len(writer.followers) == 4
        writer.read_store.requests = 0
        assert count(await writer.read()) == 3
        assert writer.read_store.requests <= 2, "it continues, and is not loaded again"

    run(test)


async def test_a_process_answers_about_a_stream_and_loads_no_shard_of_another() -> None:
    store, log = MemoryStore(), EdgeLog()
    async with (
        running_hub(store, process=1, processes=2, shards=4) as other,
        running_hub(store, processes=2, shards=4) as hub,
        running_link(other, log, EDGE),
    ):
        for first in range(3):
            log.append(*records(first, [b"a"]))
            await log.until_released(first + 1)
            wanted, found = list(range(first + 1)), list[int]()
            async with asyncio.timeout(PATIENCE_S):
                while found != wanted:  # what is read may be a moment old
                    _, answer = await get(hub, "/v1/streams/telemetry/records")
                    found = [each["seq"] for each in answer.get("records", ())]
            for below in ("", "/completeness", "/lanes"):
                status, reported = await get(hub, f"/v1/streams/telemetry{below}")
                assert status == 200, reported
        shards = hub._shards
        assert shards is not None
        assert set(shards.loaded) == {each.log.shard for each in shards.own}
