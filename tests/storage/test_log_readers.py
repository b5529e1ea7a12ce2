"""Readers of a shard's log that slept while the collector worked, and logs that lost an object in the middle."""

from __future__ import annotations

import pytest

from tests.storage.test_chunk_log import CLUSTER, Writer
from weft.protocols.chunk_index import Chunk
from weft.protocols.errors import Corrupt
from weft.storage import hub_keys
from weft.storage.chunk_log import LOOK_VALIDITY_NS, CollectedPast, Manifest, ShardLog
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import MemoryStore

SHARD = 2


class CountingStore(MemoryStore):
    """A store that notes which manifests and listings were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.manifests = self.lists = 0

    async def get(self, key: str):  # type: ignore[no-untyped-def]
        self.manifests += key.endswith("/manifest")
        return await super().get(key)

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None):  # type: ignore[no-untyped-def]
        self.lists += 1
        return await super().list(prefix, after, limit)


class Clock:
    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now

    def sleep(self) -> None:
        self.now += LOOK_VALIDITY_NS + 1


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(store: CountingStore, clock: Clock) -> ShardLog:
    return ShardLog(store, CLUSTER, SHARD, clock)


@pytest.fixture
def writer(store: CountingStore) -> Writer:
    return Writer(ShardLog(store, CLUSTER, SHARD))


async def collect(writer: Writer, store: MemoryStore, watermark: int) -> None:
    await writer.snapshot()
    manifest, etag = await writer.log.manifest()
    assert await writer.log.swap_manifest(Manifest(manifest.snapshot_n, manifest.snapshot, watermark), etag)
    for n in range(watermark):
        await store.delete(hub_keys.chunk_key(SHARD, n))


async def test_a_reader_that_slept_through_a_collection_is_told_and_finds_everything_after_loading_again(
    store: CountingStore, log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader = await log.load()
    for _ in range(20):
        await writer.write(1)
    await collect(writer, store, 15)
    clock.sleep()
    with pytest.raises(CollectedPast, match="watermark 15"):
        await log.extend(reader)
    assert (await log.load()).encode() == writer.state.encode()


async def test_a_reader_that_slept_does_not_take_a_paused_writers_chunk_for_the_logs(
    store: CountingStore, log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader, paused = await log.load(), Writer(ShardLog(store, CLUSTER, SHARD))
    paused.state = await ShardLog(store, CLUSTER, SHARD).load()
    for _ in range(20):
        await writer.write(1)
    await collect(writer, store, 15)
    await paused.write(7)  # number 1 again, and it continues what the reader holds
    clock.sleep()
    with pytest.raises(CollectedPast):
        await log.extend(reader)
    assert reader.n == 0


async def test_a_reader_whose_sleep_begins_between_answer_and_look_is_told_as_well(
    store: CountingStore, log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader = await log.load()

    class Slow(ShardLog):
        async def index(self, n: int, only: frozenset[tuple[str, str]] | None = None) -> Chunk | None:
            found = await super().index(n, only)
            if n == reader.n + 1 and found is None:
                for _ in range(20):
                    await writer.write(1)
                await collect(writer, store, 15)
                clock.sleep()
            return found

    with pytest.raises(CollectedPast):
        await Slow(store, CLUSTER, SHARD, clock).extend(reader)


async def test_a_reader_that_keeps_up_asks_for_the_manifest_once_a_minute_and_lists_only_when_it_loads(
    store: CountingStore, log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader = await log.load()
    store.manifests = store.lists = 0
    for _ in range(60):
        clock.now += LOOK_VALIDITY_NS // 20
        await writer.write(1)
        await log.extend(reader)
    assert reader.encode() == writer.state.encode()
    assert store.manifests <= 3
    assert store.lists == 0


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("snapshot_after", [None, 4, 8])
async def test_a_chunk_that_is_missing_in_the_middle_is_damage_with_its_name_and_not_the_head(
    store: CountingStore, tmp_path: object, kind: str, snapshot_after: int | None
) -> None:
    place = store if kind == "memory" else open_store(str(tmp_path))
    writer = Writer(ShardLog(place, CLUSTER, SHARD))
    for n in range(12):
        await writer.write(1)
        if n == snapshot_after:
            await writer.snapshot()
    key = hub_keys.chunk_key(SHARD, 9)
    lost = (await place.get(key)).data
    await place.delete(key)
    with pytest.raises(Corrupt, match=f"{key} is missing, though .* restore it from a backup"):
        await ShardLog(place, CLUSTER, SHARD).load()
    await place.create(key, lost)
    assert (await ShardLog(place, CLUSTER, SHARD).load()).encode() == writer.state.encode()


async def test_a_follower_whose_next_chunk_was_lost_says_so_as_soon_as_a_snapshot_shows_it(
    store: CountingStore, log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader = await log.load()
    for _ in range(5):
        await writer.write(1)
    await writer.snapshot()
    await store.delete(hub_keys.chunk_key(SHARD, 1))
    clock.sleep()
    with pytest.raises(Corrupt, match="is missing"):
        await log.extend(reader)
