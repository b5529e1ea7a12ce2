"""The start of a hub process on a bucket: what it tries before it serves anyone, and what it leaves for later."""

from __future__ import annotations

import asyncio
import errno
import importlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cloud_hub.http.test_application import EDGE, records
from tests.cloud_hub.live import EdgeLog, get, running_hub, running_link
from tests.storage.object_store.racy_server import RacyBucket, racy_server
from tests.support.epochs import MemoryEpochs
from tests.support.processes import weft
from tests.support.s3_servers import VERSITYGW, S3Server, built
from tests.support.waiting import until
from weft.cloud_hub.clock import HubClock
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.store import DAY_S, LOOK_S, HubStore, StoreDisk
from weft.protocols.chunk_index import LEVEL_MAX
from weft.replication.runner import LinkIdentity
from weft.storage.cluster import ClusterUnusable, open_cluster, restored
from weft.storage.filesystem import OSFileSystem
from weft.storage.object_store import ObjectStore, StoreError, StoreUnfit, open_store
from weft.storage.object_store.directory import DirectoryStore, MemoryStore
from weft.storage.presence import running
from weft.text.hub_status import disk_text


async def opened(uri: str, options: dict[str, str]) -> HubStore:
    settings = HubSettings(store=uri, store_options=options, shards=2)
    return await HubStore.open(settings, None, HubClock(time.time_ns, time.monotonic_ns), LEVEL_MAX)


@pytest.fixture
def few_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of ten: the others take a second each on a busy machine."""
    monkeypatch.setattr(importlib.import_module("weft.storage.object_store.probe"), "RACES", 2)


@pytest.mark.usefixtures("few_races")
async def test_a_server_that_was_raced_before_is_raced_while_edges_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.cloud_hub.store.RACE_AFTER_S", 0.0)
    bucket = RacyBucket(checks_late=True)
    async with racy_server(bucket=bucket) as (uri, options):
        cluster = (await opened(uri, options)).cluster
        first, bucket.puts = bucket.puts, 0
        again = await opened(uri, options)
        assert again.cluster == cluster
        assert bucket.puts < first / 5
        # Another server takes over at the same address, and does not keep what the first one kept.
        bucket.checks_late = False
        again.start()
        assert "under a race" in await again.failed()
        await again.close()
        with pytest.raises(StoreUnfit, match="under a race"):
            await opened(uri, options)


@pytest.mark.usefixtures("few_races")
async def test_a_store_that_does_not_answer_for_a_moment_does_not_end_a_start() -> None:
    bucket = RacyBucket(checks_late=True)
    bucket.unavailable = 2
    async with racy_server(bucket=bucket) as (uri, options):
        cluster = (await opened(uri, options)).cluster
        bucket.unavailable = 2
        assert (await opened(uri, options)).cluster == cluster


# --- Until when the disk of a store lasts: a process sees its free space, and tells operators


GI = 1 << 30
NOW = 1_767_225_600.0  # 2026-01-01


class SmallDisk(OSFileSystem):
    """A file system whose free space a test sets; None: it does not answer."""

    free: int | None = 100 * GI

    def free_bytes(self, path: str) -> int:
        if self.free is None:
            raise OSError(errno.EIO, "Input/output error", path)
        return self.free


class Watch:
    """A disk that is looked at each minute of a clock that a test moves."""

    def __init__(self, root: Path) -> None:
        self.files, self.now = SmallDisk(), 1000.0
        self.store = DirectoryStore(str(root), self.files)
        self.disk = StoreDisk(self.store, lambda: self.now)

    async def look(self, hours: float, bytes_a_look: int = 0) -> None:
        for _ in range(int(hours * 3600 / LOOK_S)):
            self.now += LOOK_S
            if self.files.free is not None:
                self.files.free -= bytes_a_look
            await self.disk.look(self.store)

    def says(self) -> str:
        return disk_text(self.disk.view(), NOW)


async def test_it_says_until_when_the_disk_lasts_once_the_growth_is_known(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    assert watch.says() == "unknown"
    await watch.look(0.5, GI // 60)
    assert watch.says() == "99.5 GiB free; until when it lasts is unknown for an hour after the start"
    await watch.look(3.5, GI // 60)
    assert (
        watch.says() == "96 GiB free; it lasts until 2026-01-05 00:00Z at the rate of the last 4.0 hours: 24 GiB a day"
    )
    await watch.look(30)
    view = watch.disk.view()
    assert view is not None
    assert view.seen_seconds == DAY_S, "what was before the last day no longer counts"
    assert watch.says() == "96 GiB free; it did not shrink in the last 24.0 hours"
    watch.files.free = 0
    await watch.look(0.1)
    assert watch.says() == "none free: the hub accepts nothing until space is freed"
    full = watch.disk.view()
    assert full is not None
    assert full.seconds_left == 0


async def test_a_disk_that_does_not_answer_has_no_figure(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    await watch.look(2, GI // 60)
    watch.files.free = None
    await watch.look(0.1)
    assert watch.says() == "unknown"
    assert not list(watch.disk.samples())


async def test_a_closed_hub_looks_at_the_disk_no_more(tmp_path: Path) -> None:
    async with running_hub(open_store(str(tmp_path))):
        assert "store-disk" in {task.get_name() for task in asyncio.all_tasks()}
    assert "store-disk" not in {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.parametrize("is_folder", [True, False])
async def test_status_and_metrics_of_a_hub_say_what_is_free(tmp_path: Path, *, is_folder: bool) -> None:
    async with running_hub(open_store(str(tmp_path)) if is_folder else MemoryStore()) as hub:

        async def reported() -> bool:
            return "\nweft_hub_store_free_bytes " in (await get(hub, "/metrics"))[1]

        if is_folder:
            await until(reported)
        disk = (await get(hub, "/v1/status"))[1]["store"]["disk"]
        assert await reported() is is_folder
    if is_folder:
        assert disk["free_bytes"] > 0
        assert disk["seconds_left"] is None, "no growth was seen yet"
    else:
        assert disk_text(disk, NOW) == "a bucket: it has no such bound"


# --- A hub whose store is away for a while, as an unmounted disk is, or whose place another store has taken


OTHER = LinkIdentity("default", "press-2", 0xDEF, "test")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def hub(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    monkeypatch.setattr("weft.cloud_hub.http.process.LOOK_AGE_S", 0.0)
    async with running_hub(open_store(str(root)), table_interval_s=0.1, beat_interval_s=0.1) as hub:
        yield hub


async def test_away_it_makes_nothing_says_so_and_goes_on_by_itself(hub: Hub, root: Path) -> None:
    log, newcomer = EdgeLog(), EdgeLog()
    async with running_link(hub, log, EDGE):
        log.append(*records(0, [b"1"]))
        await log.until_released(1)
        aside = root.rename(root.with_name("aside"))
        status, text = await get(hub, "/readyz")
        assert status == 503
        assert "cluster.json is missing. Mount its disk" in text
        log.append(*records(1, [b"2"]))
        newcomer.append(*records(0, [b"1"]))
        async with running_link(hub, newcomer, OTHER) as refused:
            await until(lambda: "cluster.json is missing" in refused.last_error)
            await until(lambda: all(each.trouble is not None for each in hub.sequencers))
            # Each of the hub's tasks has come to the store by now: the tables' round and the beat, too.
            await asyncio.sleep(0.5)
            assert (await get(hub, "/readyz"))[0] == 503
            assert "missing" in str(hub.status().store)
            assert not root.exists()
            assert not log.released_ranges.covers(1, 2)
            aside.rename(root)
            await log.until_released(2)
            await newcomer.until_released(1)
        assert await get(hub, "/readyz") == (200, "ready\n")
        await until(lambda: hub._tables.rows("default", "telemetry") == 3)
        assert not any("restore" in (each.trouble or "") for each in hub.sequencers)


@pytest.mark.parametrize("what", ["another cluster", "restored"])
async def test_another_store_in_its_place_ends_it_and_gets_nothing_of_it(what: str, hub: Hub, root: Path) -> None:
    log = EdgeLog()
    async with running_link(hub, log, EDGE):
        log.append(*records(0, [b"1"]))
        await log.until_released(1)
        own = (root / "cluster.json").read_bytes()
        root.rename(root.with_name("aside"))
        other = open_store(str(root.with_name("other")))
        if what == "restored":
            await other.create("cluster.json", restored(own, 1, 2))
        else:
            await open_cluster(other, 2)
        root.with_name("other").rename(root)
        log.append(*records(1, [b"2"]))
        why = await asyncio.wait_for(hub.failed(), 60)
        assert "another store is in the place of this one" in why
        assert (await get(hub, "/readyz"))[0] == 503
        await until(lambda: all(each.trouble is not None for each in hub.sequencers))
        assert not log.released_ranges.covers(1, 2)
    await hub.close()
    assert [item.key for item in await open_store(str(root)).list("")] == ["cluster.json"]


async def test_one_that_is_started_again_begins_no_cluster_in_an_empty_place(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.cloud_hub.store.AWAY_S", 0.0)
    root.mkdir()
    with pytest.raises((ClusterUnusable, StoreError), match="holds no hub"):
        await Hub.open(HubSettings(str(root), port=0, begins=False))
    assert list(root.iterdir()) == []


async def test_nodes_of_another_cluster_get_no_shards() -> None:
    """As where a second hub was begun at the place of one that runs on."""
    store = MemoryStore()
    async with running_hub(store, beat_interval_s=0.1, advertise=("http://a:1",)) as first:
        [entry] = await running(store, first._clock.now())
        assert entry.cluster == first.cluster.cluster_id.hex()
        own = (await store.get(f"nodes/{entry.id}")).data
        foreign = own.replace(entry.id.encode(), b"other").replace(b"//a:1", b"//b:1")
        await store.create("nodes/other", foreign.replace(entry.cluster.encode(), b"0" * 32))
        await first._membership._presence.look()
        assert first._owners.others() == []
        before = foreign.replace(entry.cluster.encode(), b"").replace(b'"other"', b'"older"')
        await store.create("nodes/older", before)
        await first._membership._presence.look()
        assert [each.id for each in first._owners.others()] == ["older"], "a release before says nothing of its cluster"


# --- A hub whose objects were copied elsewhere is the same hub there, as docs/how-to/move-a-bucket.md says


async def copy_all(source: ObjectStore, target: ObjectStore) -> int:
    listed = await source.list("")
    for key, _ in listed:
        await target.create(key, (await source.get(key)).data)
    return len(listed)


async def tabled(hub: Hub, rows: int) -> None:
    await until(lambda: hub._tables.rows("default", "telemetry") == rows)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["folder", "bucket"])
async def test_the_copy_goes_on_where_the_hub_was(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store(str(tmp_path / "first"))
    log, epochs = EdgeLog(), MemoryEpochs()
    log.append(*records(0, [b'{"a": 1}', b'{"a": 2}']))
    async with running_hub(first, table_interval_s=0.1) as hub, running_link(hub, log, EDGE, epochs=epochs):
        await log.until_released(2)
        await tabled(hub, 2)
        cluster = hub.status().cluster_id
    if target == "folder":
        await _moved(first, str(tmp_path / "second"), log, epochs, cluster)
        return
    try:
        binary = await asyncio.to_thread(built, VERSITYGW)
    except LookupError as error:
        pytest.skip(str(error))
    with S3Server(VERSITYGW, binary, tmp_path / "server") as server:
        for name, value in server.options().items():
            monkeypatch.setenv(name, value)
        await _moved(first, server.uri, log, epochs, cluster)


async def _moved(first: ObjectStore, uri: str, log: EdgeLog, epochs: MemoryEpochs, cluster: object) -> None:
    second = open_store(uri)
    assert await copy_all(first, second) > 5
    log.append(*records(2, [b'{"a": 3}']))
    async with running_hub(second, table_interval_s=0.1) as hub, running_link(hub, log, EDGE, epochs=epochs) as link:
        assert hub.status().cluster_id == cluster
        await log.until_released(3)
        await tabled(hub, 3)
        assert (link.alarm, hub.status().lost) == ("", [])
        _, streams = await get(hub, "/v1/streams")
        assert [each["records"] for each in streams["streams"]] == [3]
    report = json.loads((await asyncio.to_thread(weft, "audit", "telemetry", "--store", uri, "--json")).stdout)
    assert report["problems"] == []
