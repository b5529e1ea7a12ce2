"""Tests of ``storage/chunk_log.py``."""

from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c

from tests.protocols.strategies import make_batch, make_section
from weft.protocols import chunk
from weft.protocols.chunk_index import FIRST_LEVEL, Chunk, GapRange, LaneUpdate, Mark
from weft.protocols.errors import Corrupt, UnsupportedVersion
from weft.protocols.shard.fold import apply
from weft.protocols.shard.shard_state import ShardState
from weft.storage import hub_keys
from weft.storage.chunk_log import LOOK_VALIDITY_NS, CollectedPast, Manifest, ShardLog
from weft.storage.chunk_log import encode as encode_manifest
from weft.storage.cluster import NEW_SHARDS, Cluster, ClusterUnusable, open_cluster
from weft.storage.object_store import AlreadyExists, NotFound, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore

CLUSTER = Cluster(b"c" * 16, 4)


class Writer:
    """Writes small chunks of one stream as a hub would."""

    def __init__(self, log: ShardLog) -> None:
        self.log = log
        self.state = ShardState(CLUSTER.cluster_id, log.shard)

    async def write(self, records: int, stream: str = "telemetry", padding: int = 0) -> bytes:
        state = self.state
        base = state.next_offset.get(("default", stream), 0)
        section, count = make_section([(0, make_batch(records, base_seq=base))])
        header = chunk.ChunkHeader(state.cluster_id, state.n + 1, 0, state.shard, state.footer_crc, state.n + 1)
        placed = chunk.StreamSection(
            "default", stream, base, count, 0, 0, chunk.HEADER_BYTES, len(section), crc32c(section)
        )
        topics = ["x" * 1000] * padding or None
        lane = LaneUpdate("default", "edge", 1, stream, 1, [(base, base + count)], [], Mark(base, base), topics)
        index = chunk.index_of(header, FIRST_LEVEL, [placed], chunk.StreamBlock([lane], [], []))
        footer, crc = chunk.encode_footer(index)
        data = chunk.encode_header(header) + section + footer
        await self.log.create(state.n + 1, data)
        apply(state, chunk.decode(data))
        assert state.footer_crc == crc
        return data

    async def snapshot(self) -> str:
        manifest, etag = await self.log.manifest()
        key = await self.log.put_snapshot(self.state.n, self.state.n, self.state.encode())
        assert await self.log.swap_manifest(Manifest(self.state.n, key, manifest.watermark), etag)
        return key


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def log(store: MemoryStore) -> ShardLog:
    return ShardLog(store, CLUSTER, 2)


async def test_a_cluster_is_made_once_and_found_again(store: MemoryStore) -> None:
    made = await open_cluster(store, 8)
    assert await open_cluster(store, 8) == await open_cluster(store, None) == made
    assert len(made.cluster_id) == 16


async def test_an_existing_store_keeps_its_number_of_shards_where_none_is_asked_for() -> None:
    earlier, fresh = MemoryStore(), MemoryStore()
    await open_cluster(earlier, 4)
    assert (await open_cluster(earlier, None, new_shards=NEW_SHARDS)).shards == 4
    assert (await open_cluster(fresh, None, new_shards=NEW_SHARDS)).shards == NEW_SHARDS == 16
    with pytest.raises(ClusterUnusable, match="made with 16 shards, the configuration has 4"):
        await open_cluster(fresh, 4, new_shards=NEW_SHARDS)


async def test_two_nodes_that_start_at_once_agree(store: MemoryStore) -> None:
    class Race(MemoryStore):
        async def create(self, key: str, data: bytes | bytearray | memoryview) -> str:
            await self.first(key)
            return await super().create(key, data)

        async def first(self, key: str) -> None:
            if key == hub_keys.CLUSTER:
                await MemoryStore.create(
                    self,
                    key,
                    b'{"format":1,"cluster_id":"' + b"ab" * 16 + b'","shards":4,"placement":"tenant-edge","level":4}',
                )

    assert (await open_cluster(Race(), 4)).cluster_id == b"\xab" * 16


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"format":2,"everything":"else"}', "later release"),
        (b'{"format":1,"cluster_id":"abcd","shards":4,"placement":"tenant-edge","level":4}', "damaged"),
        (b'{"format":1,"cluster_id":"' + b"ab" * 16 + b'","shards":0,"placement":"tenant-edge","level":4}', "damaged"),
        (b'{"format":1,"cluster_id":"zz","shards":4,"placement":"tenant-edge","level":4}', "damaged"),
        (b'{"format":1,"cluster_id":"' + b"ab" * 16 + b'","shards":6,"placement":"tenant-edge","level":4}', "damaged"),
        (
            b'{"format":1,"cluster_id":"' + b"ab" * 16 + b'","shards":4,"placement":"by-stream","level":4}',
            "places edges by",
        ),
        (b"nonsense", "damaged"),
        (
            b'{"format":1,"cluster_id":"' + b"ab" * 16 + b'","shards":8,"placement":"tenant-edge","level":4}',
            "set shards to 8",
        ),
    ],
)
async def test_a_store_that_cannot_be_used_says_why(store: MemoryStore, content: bytes, text: str) -> None:
    await store.create(hub_keys.CLUSTER, content)
    with pytest.raises(ClusterUnusable, match=text):
        await open_cluster(store, 4)


async def test_a_store_without_a_hub_is_refused_to_readers(store: MemoryStore) -> None:
    with pytest.raises(ClusterUnusable, match="holds no hub"):
        await open_cluster(store, None)


async def test_chunks_are_found_by_number_and_sections_by_the_index(log: ShardLog) -> None:
    writer = Writer(log)
    data = await writer.write(3)
    index = await log.index(0)
    assert index == chunk.decode(data)
    section = index.footer.streams[0]
    assert await log.section(0, section) == data[section.position : section.position + section.length]
    assert await log.index(1) is None
    with pytest.raises(AlreadyExists):
        await log.create(0, data)


@pytest.mark.parametrize("padding", [30, 100])
async def test_a_footer_longer_than_the_first_guess_is_read_whole(log: ShardLog, padding: int) -> None:
    data = await Writer(log).write(2000, padding=padding)
    assert len(data) > chunk.TAIL_READ_BYTES
    assert await log.index(0) == chunk.decode(data)


async def test_a_damaged_or_foreign_chunk_is_refused(store: MemoryStore, log: ShardLog) -> None:
    data = bytearray(await Writer(log).write(3))
    index = await log.index(0)
    assert index is not None
    elsewhere = ShardLog(store, CLUSTER, 3)
    await elsewhere.create(0, data)
    with pytest.raises(Corrupt, match="shard 2"):
        await elsewhere.index(0)
    data[chunk.HEADER_BYTES + 30] ^= 1
    await store.delete(hub_keys.chunk_key(2, 0))
    await log.create(0, data)
    with pytest.raises(Corrupt):
        await log.section(0, index.footer.streams[0])
    data[-1] ^= 1
    await log.create(1, data)
    with pytest.raises(Corrupt):
        await log.index(1)


async def test_a_state_is_loaded_from_the_newest_snapshot_and_the_chunks_after_it(
    store: MemoryStore, log: ShardLog
) -> None:
    writer = Writer(log)
    assert (await log.load()).n == -1
    for records in range(1, 40):
        await writer.write(records)
        if records in (10, 25):
            await writer.snapshot()
    assert (await log.load()).encode() == writer.state.encode()
    for n in range(25):
        await store.delete(hub_keys.chunk_key(2, n))  # what the snapshot stands for is not read again
    assert (await log.load()).encode() == writer.state.encode()


async def test_a_damaged_snapshot_costs_a_longer_fold_and_no_more(store: MemoryStore, log: ShardLog) -> None:
    writer = Writer(log)
    await writer.write(1)
    await writer.snapshot()
    await writer.write(2)
    newest = await writer.snapshot()
    await store.delete(newest)
    await store.create(newest, b"nonsense")
    assert (await log.load()).encode() == writer.state.encode()
    await store.delete(newest)
    assert (await log.load()).encode() == writer.state.encode()


async def test_without_a_snapshot_up_to_the_watermark_the_state_cannot_be_known(
    store: MemoryStore, log: ShardLog
) -> None:
    writer = Writer(log)
    await writer.write(1)
    key = await writer.snapshot()
    _, etag = await log.manifest()
    assert await log.swap_manifest(Manifest(0, key, 1), etag)
    assert (await log.load()).n == 0
    await store.delete(key)
    with pytest.raises(Corrupt, match="no readable snapshot"):
        await log.load()


async def test_a_snapshot_of_a_later_release_is_not_called_damage(store: MemoryStore, log: ShardLog) -> None:
    writer = Writer(log)
    await writer.write(1)
    key = await writer.snapshot()
    _, etag = await log.manifest()
    assert await log.swap_manifest(Manifest(0, key, 1), etag)
    data = bytearray((await store.get(key)).data)
    data[3] = 9
    await store.delete(key)
    await store.create(key, bytes(data))
    with pytest.raises(UnsupportedVersion, match=r"later release of Weft .snapshot version 9; this release reads"):
        await log.load()


async def test_extend_applies_what_came_since(log: ShardLog) -> None:
    writer = Writer(log)
    reader = await log.load()
    for records in range(1, 50):
        await writer.write(records)
    applied = await log.extend(reader)
    assert [index.header.n for index in applied] == list(range(49))
    assert reader.encode() == writer.state.encode()
    assert await log.extend(reader) == []
    assert [index.header.n async for index in log.indexes(45)] == [45, 46, 47, 48]


async def test_the_manifest_is_swapped_by_one_node_at_a_time(log: ShardLog) -> None:
    manifest, none = await log.manifest()
    assert (manifest, none) == (Manifest(), None)
    assert await log.swap_manifest(Manifest(3, "a", 0), None)
    assert not await log.swap_manifest(Manifest(4, "b", 0), None)
    _, etag = await log.manifest()
    assert await log.swap_manifest(Manifest(5, "c", 2), etag)
    assert not await log.swap_manifest(Manifest(6, "d", 0), etag)
    assert (await log.manifest())[0] == Manifest(5, "c", 2)


@pytest.mark.parametrize("data", [b"[]", b'{"x":' + b"[" * 40_000], ids=["a list", "nested without end"])
async def test_a_damaged_manifest_is_refused(store: MemoryStore, log: ShardLog, data: bytes) -> None:
    await store.create(hub_keys.manifest_key(2), data)
    with pytest.raises(Corrupt, match="manifest"):
        await log.manifest()


async def test_locate_never_points_behind_an_offset_and_uses_the_snapshots(log: ShardLog) -> None:
    writer = Writer(log)
    holders = []
    for n in range(60):
        stream = "rare" if n % 10 == 9 else "telemetry"
        base = writer.state.next_offset.get(("default", stream), 0)
        await writer.write(2, stream)
        holders += [(stream, offset, n) for offset in (base, base + 1)]
        if n % 7 == 6:
            await writer.snapshot()
    for stream, offset, n in holders:
        found = await log.locate("default", stream, offset)
        assert found <= n
        if stream == "telemetry":
            assert n - found < 7 + 1
    assert await log.locate("default", "unknown", 0) <= 60


async def test_damaged_snapshots_only_make_locating_coarser(store: MemoryStore, log: ShardLog) -> None:
    writer = Writer(log)
    snapshots = []
    for n in range(40):
        await writer.write(2)
        if n % 5 == 4:
            snapshots.append(await writer.snapshot())
    for key in snapshots[2:5]:
        await store.delete(key)
        await store.create(key, b"damaged")
    await store.delete(snapshots[6])
    for offset in range(80):
        found = await log.locate("default", "telemetry", offset)
        assert found <= offset // 2
        assert offset // 2 - found < 5 * 4


async def test_a_snapshot_of_another_shard_is_refused(store: MemoryStore, log: ShardLog) -> None:
    key = await log.put_snapshot(-1 + 1, 1, ShardState(CLUSTER.cluster_id, 3).encode())
    with pytest.raises(Corrupt, match="shard 3"):
        await log.snapshot(key)
    with pytest.raises(NotFound):
        await log.snapshot(hub_keys.snapshot_key(2, 5, 5))
    assert await log.snapshots() == [(0, key)]


async def test_an_unanswering_store_is_no_empty_log(log: ShardLog) -> None:
    class Down(MemoryStore):
        async def get_range(self, key: str, start: int, length: int) -> bytes:
            raise StoreError("down")

    with pytest.raises(StoreError):
        await ShardLog(Down(), CLUSTER, 0).load()


def test_keys_sort_in_log_order_and_parse_back() -> None:
    keys = [hub_keys.chunk_key(1, n) for n in (0, 9, 10, 12345678901)]
    assert keys == sorted(keys)
    assert keys[1] == "shard-1/chunk/00000000000000000009"
    assert hub_keys.snapshot_key(1, 10, 255) == "shard-1/snapshot/00000000000000000010-00000000000000ff"
    assert hub_keys.parse_snapshot_key(hub_keys.snapshot_key(1, 10, 255)) == 10
    assert hub_keys.parse_snapshot_key(keys[0]) is None
    assert hub_keys.manifest_key(0) == "shard-0/manifest"
    assert hub_keys.table_key("default", "telemetry") == "tables/default/telemetry"


def test_the_gap_and_manifest_formats_are_what_was_first_written() -> None:
    assert msgspec.msgpack.encode(GapRange(1, 2, 3)) == b"\x93\x01\x02\x03"
    written = b'{"snapshot_n":7,"snapshot":"key","watermark":3,"must_understand":0}'
    assert encode_manifest(Manifest(7, "key", 3)) == written


# --- Readers of a shard's log that slept while the collector worked, and logs that lost an object in the middle


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
def log_readers_store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log_readers_log(log_readers_store: CountingStore, clock: Clock) -> ShardLog:
    return ShardLog(log_readers_store, CLUSTER, SHARD, clock)


@pytest.fixture
def writer(log_readers_store: CountingStore) -> Writer:
    return Writer(ShardLog(log_readers_store, CLUSTER, SHARD))


async def collect(writer: Writer, store: MemoryStore, watermark: int) -> None:
    await writer.snapshot()
    manifest, etag = await writer.log.manifest()
    assert await writer.log.swap_manifest(Manifest(manifest.snapshot_n, manifest.snapshot, watermark), etag)
    for n in range(watermark):
        await store.delete(hub_keys.chunk_key(SHARD, n))


async def test_a_reader_that_slept_through_a_collection_is_told_and_finds_everything_after_loading_again(
    log_readers_store: CountingStore, log_readers_log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader = await log_readers_log.load()
    for _ in range(20):
        await writer.write(1)
    await collect(writer, log_readers_store, 15)
    clock.sleep()
    with pytest.raises(CollectedPast, match="watermark 15"):
        await log_readers_log.extend(reader)
    assert (await log_readers_log.load()).encode() == writer.state.encode()


async def test_a_reader_that_slept_does_not_take_a_paused_writers_chunk_for_the_logs(
    log_readers_store: CountingStore, log_readers_log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader, paused = await log_readers_log.load(), Writer(ShardLog(log_readers_store, CLUSTER, SHARD))
    paused.state = await ShardLog(log_readers_store, CLUSTER, SHARD).load()
    for _ in range(20):
        await writer.write(1)
    await collect(writer, log_readers_store, 15)
    await paused.write(7)  # number 1 again, and it continues what the reader holds
    clock.sleep()
    with pytest.raises(CollectedPast):
        await log_readers_log.extend(reader)
    assert reader.n == 0


async def test_a_reader_whose_sleep_begins_between_answer_and_look_is_told_as_well(
    log_readers_store: CountingStore, log_readers_log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader = await log_readers_log.load()

    class Slow(ShardLog):
        async def index(self, n: int, only: frozenset[tuple[str, str]] | None = None) -> Chunk | None:
            found = await super().index(n, only)
            if n == reader.n + 1 and found is None:
                for _ in range(20):
                    await writer.write(1)
                await collect(writer, log_readers_store, 15)
                clock.sleep()
            return found

    with pytest.raises(CollectedPast):
        await Slow(log_readers_store, CLUSTER, SHARD, clock).extend(reader)


async def test_a_reader_that_keeps_up_asks_for_the_manifest_once_a_minute_and_lists_only_when_it_loads(
    log_readers_store: CountingStore, log_readers_log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader = await log_readers_log.load()
    log_readers_store.manifests = log_readers_store.lists = 0
    for _ in range(60):
        clock.now += LOOK_VALIDITY_NS // 20
        await writer.write(1)
        await log_readers_log.extend(reader)
    assert reader.encode() == writer.state.encode()
    assert log_readers_store.manifests <= 3
    assert log_readers_store.lists == 0


@pytest.mark.parametrize("kind", ["memory", "directory"])
@pytest.mark.parametrize("snapshot_after", [None, 4, 8])
async def test_a_chunk_that_is_missing_in_the_middle_is_damage_with_its_name_and_not_the_head(
    log_readers_store: CountingStore, tmp_path: object, kind: str, snapshot_after: int | None
) -> None:
    place = log_readers_store if kind == "memory" else open_store(str(tmp_path))
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
    log_readers_store: CountingStore, log_readers_log: ShardLog, writer: Writer, clock: Clock
) -> None:
    await writer.write(3)
    reader = await log_readers_log.load()
    for _ in range(5):
        await writer.write(1)
    await writer.snapshot()
    await log_readers_store.delete(hub_keys.chunk_key(SHARD, 1))
    clock.sleep()
    with pytest.raises(Corrupt, match="is missing"):
        await log_readers_log.extend(reader)
