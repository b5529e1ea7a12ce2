"""Streams that a reader asks for, in shards of other processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.cloud_hub import virtual_time
from tests.cloud_hub.api.test_application import EDGE, records
from tests.cloud_hub.fabric import CLUSTER, SequencerNode, Session
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.cloud_hub.virtual_time import now_ns
from tests.support.waiting import PATIENCE_S
from weft.cloud_hub.reads import records as followers
from weft.cloud_hub.reads.records import FollowedShard, StreamFollowers
from weft.protocols.lane import Lane
from weft.storage.chunk_log import ShardLog
from weft.storage.object_store import StoreError
from weft.storage.object_store.directory import MemoryStore

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


class Writer:
    """Another process with the shard, and the readers of this one."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.read_store = CutStore(self.store)
        self.node = SequencerNode(self.store, random.Random(1))
        self.followers = StreamFollowers(
            lambda shard: ShardLog(cast(Any, self.read_store), CLUSTER, shard, now_ns), asyncio.get_running_loop().time
        )

    async def write(self, lane: Lane, first: int, end: int, epoch: int = 1) -> None:
        assert self.node.sequencer is not None
        session = Session(self.node.sequencer, lane, epoch)
        assert await session.open()
        await session.send(first, end)
        await session.until_acked(first, end)

    async def read(self) -> FollowedShard:
        return await self.followers.read(0, KEY)


def run(test: Callable[[Writer], Awaitable[None]]) -> None:
    async def main() -> None:
        writer = Writer()
        await writer.node.start()
        await test(writer)
        await writer.node.kill()

    virtual_time.run(main())


def count(found: FollowedShard) -> int:
    assert found.state is not None
    assert list(found.state.lanes) == [WANTED], "and nothing of the other stream"
    return found.state.next_offset[KEY]


def test_a_reader_gets_its_stream_up_to_the_head() -> None:
    async def test(writer: Writer) -> None:
        await writer.write(WANTED, 0, 3)
        await writer.write(OTHER, 0, 50)
        assert count(await writer.read()) == 3
        for epoch in range(2, 30):  # over snapshots
            await writer.write(WANTED, epoch, epoch + 2, epoch)
            await asyncio.sleep(0.3)
            assert count(await writer.read()) == epoch + 2

    run(test)


def test_readers_at_one_moment_share_a_look() -> None:
    async def test(writer: Writer) -> None:
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

    async def test(writer: Writer) -> None:
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

    async def test(writer: Writer) -> None:
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

    async def test(writer: Writer) -> None:
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
