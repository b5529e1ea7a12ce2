"""A start that is refused leaves every byte as it was: of a later release, which is simulated by the numbers that the
code writes, and of a state before the first release."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from tests.releases.fabric import content
from tests.support.live_node import running
from tests.support.processes import weft
from weft.edge_node.check import data_directory as edge_directory
from weft.edge_node.check.data_directory import formats_of
from weft.edge_node.sessions import database as database_file
from weft.protocols import batch, chunk, chunk_index
from weft.protocols import segment as segment_header
from weft.protocols.chunk_index import FIRST_LEVEL, LEVEL_MAX
from weft.protocols.shard import snapshot
from weft.protocols.shard.placement import shard_of
from weft.storage import cluster as clusters
from weft.storage import cluster_log as cluster_entry
from weft.storage import data_directory, fenced_store, hub_keys
from weft.storage.chunk_log import Manifest, ShardLog, changed
from weft.storage.cluster import Cluster, open_cluster
from weft.storage.cluster_log import Author, Change, ClusterLog
from weft.storage.data_directory import FORMATS
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.segment_log import LogFailed

ROOT = Path(__file__).parents[2]
EDGE = """node: pi
data_dir: {folder}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: null
streams: {{telemetry: {{from: "t/#"}}}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "edge.yaml"
    path.write_text(EDGE.format(folder=tmp_path / "data"))
    return path


def run_node(config: Path) -> None:
    """A node that starts, takes one record and ends."""

    async def serve() -> None:
        async with running(config.parent, config.read_text()) as node:
            node.log.append(node.log.stream("telemetry"), 1, [b"t/a"], [b"21.5"])
            await node.log.durable()

    asyncio.run(serve())


def refused_edge(config: Path, *said: str, commands: Sequence[str] = ("check", "run")) -> None:
    """Commands refuse the folder in the same sentence, and change nothing in it."""
    before = content(config.parent)
    for command in commands:
        done = weft("edge", command, config)
        text = f"{done.output}\n{done.exception}"
        assert "edge.yaml:2: data_dir: " in text
        assert all(words in text for words in said), text
        assert "Traceback" not in text
        assert content(config.parent) == before
    assert done.exception.exit_code == 1  # type: ignore[union-attr]


def test_a_data_directory_with_a_later_format_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_node(config)
    stated = config.parent / "data" / data_directory.FILE
    first = stated.read_bytes()
    for part in FORMATS:
        with monkeypatch.context() as later:
            later.setitem(FORMATS, part, FORMATS[part] + 1)
            formats_of(str(config.parent / "data"), "weft 0.9.0").state()
        said = f"later release of Weft (weft 0.9.0: format 2 of {part}, this release knows 1): install that release"
        refused_edge(config, said, commands=("run",))
        stated.write_bytes(first)
    with monkeypatch.context() as later:
        later.setitem(FORMATS, "queues", 2)
        run_node(config)
    refused_edge(config, "format 2 of queues")


def test_a_data_directory_with_a_part_that_is_not_known_is_refused(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setitem(FORMATS, "twins", 1)
        run_node(config)
    refused_edge(config, "format 1 of twins, which this release does not have): install that release again")


@pytest.mark.parametrize("inner", ["segment", "batch"])
def test_a_log_with_later_segments_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch, inner: str) -> None:
    run_node(config)
    with monkeypatch.context() as later:
        later.setattr(segment_header, "VERSION", 3)
        if inner == "segment":
            for kind in segment_header.KIND_VERSIONS:
                later.setitem(segment_header.KIND_VERSIONS, kind, 3)
        else:
            later.setattr(batch, "VERSION", 2)
            later.setattr(batch, "_MAGIC", batch.MAGIC + b"\2")
            later.setitem(segment_header.BATCH_VERSIONS, 2, 3)
        run_node(config)
    refused_edge(config, ".seg was written by a later release of Weft (segment version 3", "install that release again")


def test_a_folder_of_this_release_goes_on_and_states_its_formats_once(config: Path) -> None:
    run_node(config)
    stated = config.parent / "data" / data_directory.FILE
    assert msgspec.json.decode(stated.read_bytes()) == {"release": "weft", "formats": dict(FORMATS)}
    made = stated.stat().st_ino
    run_node(config)
    assert stated.stat().st_ino == made
    stated.unlink()  # a folder of the first states of release 0.1.0 has none
    run_node(config)
    assert stated.exists()


def test_a_damaged_statement_of_formats_says_what_to_do(config: Path) -> None:
    run_node(config)
    (config.parent / "data" / data_directory.FILE).write_text("{")
    refused_edge(config, "formats.json is damaged", "If no release after this one has, remove the file")


def test_a_full_disk_stops_no_node_whose_formats_are_the_first(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data_directory, "write_atomically", full)
    run_node(config)
    monkeypatch.setitem(FORMATS, "queues", 2)
    with pytest.raises(LogFailed, match="No space left"):
        run_node(config)


def test_sessions_of_a_state_before_the_first_release_are_refused_and_the_log_goes_on_without(config: Path) -> None:
    run_node(config)
    folder = config.parent / "data"
    with closing(sqlite3.connect(folder / edge_directory.DATABASE)) as database:
        database.execute("ALTER TABLE retained DROP COLUMN owner")
        database.execute("PRAGMA journal_mode=DELETE")
    refused_edge(
        config,
        "mqtt.sqlite3 was written by a pre-release build and cannot be opened: its table retained has no "
        "column owner. Move the file away",
    )
    (folder / edge_directory.DATABASE).rename(config.parent / "aside")
    run_node(config)


def test_tables_of_sessions_have_the_columns_of_the_first_release(config: Path) -> None:
    run_node(config)
    assert edge_directory.DATABASE == database_file.FILE_NAME
    with closing(sqlite3.connect(config.parent / "data" / edge_directory.DATABASE)) as database:
        for table, columns in edge_directory.COLUMNS.items():
            assert set(columns) <= {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


SHARDS = 2
SHARD = shard_of(LANE.tenant, LANE.edge, SHARDS)


async def chunks_with(store: ObjectStore) -> None:
    logs = await LogWriter.open(store, SHARDS)
    await logs.append(SHARD, Run(LANE, 0, 3))


async def later_format(store: ObjectStore, later: pytest.MonkeyPatch) -> None:
    later.setattr(clusters, "FORMAT", 2)
    await open_cluster(store, SHARDS)


async def later_level(store: ObjectStore, later: pytest.MonkeyPatch) -> None:
    await open_cluster(store, SHARDS, release_level=LEVEL_MAX + 1)


async def later_chunks(store: ObjectStore, later: pytest.MonkeyPatch) -> None:
    later.setattr(chunk, "VERSION", 2)
    await chunks_with(store)


async def later_manifest(store: ObjectStore, later: pytest.MonkeyPatch) -> None:
    await chunks_with(store)
    later.setattr("weft.storage.chunk_log.UNDERSTOOD", 1)
    assert await of_shard(store, await open_cluster(store, None)).swap_manifest(Manifest(must_understand=1), None)


async def later_snapshot(store: ObjectStore, later: pytest.MonkeyPatch) -> None:
    later.setattr(snapshot, "VERSION", 9)
    await chunks_with(store)
    log = of_shard(store, await open_cluster(store, None))
    key = hub_keys.snapshot_key(SHARD, 0, 1)
    await store.create(key, (await log.load()).encode())
    assert await log.swap_manifest(Manifest(0, key, 1), None)


async def later_fact(store: ObjectStore, later: pytest.MonkeyPatch) -> None:
    log = ClusterLog(store, (await open_cluster(store, SHARDS)).cluster_id)
    later.setattr(cluster_entry, "VERSION", 2)
    await log.append(lambda _: Change("token", "a", b"{}"), Author(0, "mara", ""))


def of_shard(store: ObjectStore, cluster: Cluster) -> ShardLog:
    return ShardLog(store, cluster, SHARD)


Later = Callable[[ObjectStore, pytest.MonkeyPatch], Coroutine[None, None, None]]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (later_format, "the store was written by a later release of Weft (format 2; this one knows 1): install that"),
        (later_level, "the store is at level 5, this release knows level 4: use the release that the other nodes run"),
        (later_chunks, "was written by a later release of Weft (chunk version 2; this release reads version 1)"),
        (later_manifest, "was written by a later release of Weft (the manifest needs features 0x1 of a later release)"),
        (later_snapshot, "was written by a later release of Weft (snapshot version 9; this release reads version 2)"),
        (later_fact, "was written by a later release of Weft (an entry of the cluster log of version 2"),
    ],
)
def test_a_store_of_a_later_release_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Later, said: str
) -> None:
    with monkeypatch.context() as later:
        asyncio.run(write(open_store(str(tmp_path / "store")), later))
    refused_hub(tmp_path, said)


EARLY = "this store was written by a pre-release build and cannot be opened. Use a new store"


@pytest.mark.parametrize(
    "fields", ["", ',"placement":"tenant-edge"', ',"placement":"tenant-edge","level":1', ',"placement":"x","level":3']
)
def test_a_store_of_a_state_before_the_first_release_is_refused(tmp_path: Path, fields: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store/cluster.json").write_text(
        '{"format":1,"cluster_id":"' + "ab" * 16 + f'","shards":{SHARDS}{fields}}}'
    )
    refused_hub(tmp_path, EARLY)


@pytest.mark.parametrize("what", ["chunk", "snapshot"])
def test_a_store_that_was_raised_to_the_first_level_is_refused_by_what_its_log_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def write() -> None:
        store = open_store(str(tmp_path / "store"))
        logs = await LogWriter.open(store, SHARDS)
        with monkeypatch.context() as before:
            if what == "chunk":
                before.setattr(chunk_index, "FIRST_LEVEL", FIRST_LEVEL - 1)
                logs.level = FIRST_LEVEL - 1
            else:
                before.setattr(snapshot, "VERSION", 1)
            await logs.append(SHARD, Run(LANE, 0, 3))
            if what == "snapshot":
                await logs.snapshot(SHARD)
                log = of_shard(store, await open_cluster(store, None))
                manifest, etag = await log.manifest()
                assert await log.swap_manifest(changed(manifest, watermark=1), etag)

    asyncio.run(write())
    refused_hub(tmp_path, EARLY)


def refused_hub(folder: Path, said: str) -> None:
    config = folder / "hub.yaml"
    config.write_text(f"store: {folder / 'store'}\nlisten: 127.0.0.1:0\nshards: {SHARDS}\nprocesses: 1\n")
    before = content(folder)
    for command in ("check", "run"):
        done = weft("hub", command, config)
        text = f"{done.output}\n{done.exception}"
        assert said in text
        assert "damaged" not in text
        assert content(folder) == before
    assert done.exception.exit_code == 1  # type: ignore[union-attr]


async def test_the_last_chunk_is_found_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path / "store"))
    logs = await LogWriter.open(store, SHARDS)
    for first in range(4):
        await logs.append(SHARD, Run(LANE, first, 1))
    monkeypatch.setattr(fenced_store, "_LISTED_MAX", 2)
    await fenced_store.check_store(store)
    monkeypatch.setattr(chunk, "VERSION", 2)
    await logs.append(SHARD, Run(LANE, 4, 1))
    monkeypatch.setattr(chunk, "VERSION", 1)
    with pytest.raises(clusters.ClusterUnusable, match="chunk/00000000000000000004 was written by a later release"):
        await fenced_store.check_store(store)


def test_the_page_of_the_data_directory_has_each_part_with_its_format() -> None:
    page = (ROOT / "docs/reference/formats/data-directory.md").read_text()
    table = page.partition("<!-- formats -->")[2].partition("## Example")[0]
    assert {
        part: int(number) for part, number in re.findall(r"^\| `(\w+)` \| (\d+) \|$", table, re.MULTILINE)
    } == FORMATS
    example = msgspec.json.decode(page.partition("```json\n")[2].partition("```")[0], type=data_directory.Stated)
    assert example.formats == FORMATS
