"""What each release has written is opened by this one: read whole, written on, and nothing lost or doubled.

The files and what must come out of them are made by ``tests/releases/write.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from examples.demo.fabric import free_port
from tests.cloud_hub.links.test_edge_link import PATIENT, SOON, control, until_proven
from tests.cloud_hub.links.test_open_links import LANE, NODE, log_of
from tests.cloud_hub.live import running_hub, running_link
from tests.releases.api import api_file, broken
from tests.releases.code import variables_of
from tests.releases.fabric import READINGS, STATE, TELEMETRY, Fabric
from tests.releases.write import FOLDER, RELEASES, rows, unpack
from tests.support.epochs import MemoryEpochs
from tests.support.live_node import LiveNode, running
from tests.support.processes import Node, weft
from tests.support.waiting import until, wait_until
from weft.cloud_hub.hub import Hub
from weft.hub_api.operations import document
from weft.protocols.chunk_index import ChunkIndex
from weft.protocols.shard.placement import shard_of
from weft.protocols.shard.shard_state import ShardState
from weft.replication.policy import PolicyRules
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.fenced_store import check_store
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import DirectoryStore

ARCHIVE_BYTES_MAX = 300_000


@pytest.fixture(params=RELEASES)
def earlier_release(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def expected(earlier_release: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{earlier_release}.json").read_text())
    return found


@pytest.fixture
def fabric(earlier_release: str, tmp_path: Path) -> Fabric:
    unpack(FOLDER / f"{earlier_release}.tar.xz", tmp_path)
    return Fabric(tmp_path)


def test_the_files_of_each_release_are_small_and_those_of_the_first_are_there() -> None:
    assert "0.1.0" in RELEASES
    for path in FOLDER.glob("*.tar.xz"):
        assert path.stat().st_size < ARCHIVE_BYTES_MAX
        with tarfile.open(path) as tar:
            names = tar.getnames()
        assert any(name.endswith(".seg") for name in names)
        assert any("/chunk/" in name for name in names)
        assert any("/snapshot/" in name for name in names)
        assert any("/_delta_log/" in name for name in names)


def test_a_node_reads_its_log_goes_on_with_its_numbers_and_its_functions(
    fabric: Fabric, expected: dict[str, Any]
) -> None:
    """The same log as with processes, at a tenth of the cost: for every commit."""

    # Without its link: a start waits for the hub's word on the log.
    config = (fabric.folder / "edge.yaml").read_text().partition("links:")[0]

    async def use() -> None:
        async with running(fabric.folder, config) as edge:
            node = LiveNode(edge, fabric.folder)
            assert edge.log.recovery.gaps == ()
            assert edge.log.recovery.damaged == ()
            for stream in ("telemetry", "readings", "points"):
                found = await node.stored(stream)
                assert [record.payload.decode() for record in found] == expected[stream]
                assert [record.seq for record in found] == list(range(len(found)))
            seq = edge.log.append(edge.log.stream("telemetry"), 1, [TELEMETRY.encode()], [b"{}"])
            assert seq == len(expected["telemetry"])
            await edge.log.durable()

    asyncio.run(use())


def test_a_hub_reads_its_log_from_the_snapshot_and_from_the_first_chunk(
    fabric: Fabric, expected: dict[str, Any]
) -> None:
    async def use() -> int:
        store = open_store(str(fabric.folder / "store"))
        await check_store(store)
        cluster = await open_cluster(store, 2)
        records = 0
        for shard in range(cluster.shards):
            log = ShardLog(store, cluster, shard)
            loaded, folded = await log.load(), ShardState(cluster.cluster_id, shard)
            await log.extend(folded)
            assert loaded.encode() == folded.encode()
            records += folded.next_offset.get(("default", "telemetry"), 0)
        return records

    assert asyncio.run(use()) == expected["in_table"]


@pytest.mark.slow
@pytest.mark.processes
def test_processes_take_up_sessions_queues_links_and_tables(fabric: Fabric, expected: dict[str, Any]) -> None:
    total = len(expected["telemetry"]) + 1
    with fabric.hub(), fabric.edge():
        present, got, kept = fabric.session(len(expected["session"]))
        assert present
        assert got == expected["session"]
        assert kept == []
        fabric.publish(TELEMETRY, ['{"n": "new"}'])
        assert fabric.session(1) == (True, ['{"n": "new"}'], [])
        assert fabric.retained(STATE) == expected["retained"][STATE]
        fabric.enqueue(["job of this release"])
        assert fabric.dequeue(len(expected["queue"]) + 1) == [*expected["queue"], "job of this release"]
        # Within the deadband of the last point, which the function remembers; then beyond it.
        fabric.publish(READINGS, ['{"temp": 26.0}', '{"temp": 28.0}'])
        wait_until(lambda: rows(fabric.folder) == total)
    table = DeltaTable(str(fabric.folder / "store/tables/default/telemetry")).to_pyarrow_table()
    assert sorted(table["payload"].to_pylist()) == sorted([*expected["telemetry"], '{"n": "new"}'])
    report = weft("audit", "telemetry", "--store", fabric.folder / "store")
    assert (report.return_value, report.exception) == (0, None), report.output
    query = "SELECT payload FROM points"
    text = weft("edge", "query", fabric.folder / "edge.yaml", query, "--json").output
    assert [json.loads(line)["payload"] for line in text.splitlines()] == [*expected["points"], '{"temp": 28.0}']


# --- What a release answers, later ones answer: the document of the API against those of the releases


STREAMS = "/v1/streams"


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    now = copy.deepcopy(document())
    change(now)
    return now


@pytest.mark.parametrize("release", RELEASES)
def test_a_client_of_a_release_misses_nothing(release: str) -> None:
    assert broken(json.loads(api_file(release).read_text()), document()) == [], (
        "clients of the release depend on this: add fields and operations, and leave those that are there as they are"
    )


@pytest.mark.parametrize("release", RELEASES)
def test_a_client_of_this_release_reads_a_hub_of_an_earlier_one(release: str) -> None:
    """`weft.client` decodes answers by the types of the document, so it needs what they require."""
    lacking = [each for each in broken(document(), json.loads(api_file(release).read_text())) if "absent" in each]
    assert lacking == [], "the release does not answer with them: give the fields of the types the default UNSET"


def schemas(now: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = now["components"]["schemas"]
    return found


def limit(now: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in now["paths"][STREAMS]["get"]["parameters"] if each["name"] == "limit")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda now: now["paths"].pop("/v1/edges"), "GET /v1/edges is gone"),
        (lambda now: now["paths"][STREAMS]["get"]["parameters"].pop(), "the parameter limit is gone"),
        (lambda now: limit(now).update(required=True), "the parameter limit is required now"),
        (lambda now: limit(now)["schema"].update(maximum=5), "maximum is 5, it was 10000"),
        (lambda now: schemas(now)["StreamOf"]["properties"].pop("records"), "streams[].records is gone"),
        (lambda now: schemas(now)["StreamOf"]["properties"]["records"].update(type="string"), "records: type is 'stri"),
        (lambda now: schemas(now)["StreamOf"]["required"].remove("records"), "streams[].records may be absent now"),
        (lambda now: schemas(now)["StreamOf"]["properties"].update(edges={"anyOf": [{}, {}]}), "edges: there are 2 ch"),
        (lambda now: schemas(now)["MessageRequest"]["required"].append("qos"), "body.qos is required now"),
        (lambda now: now["paths"][STREAMS]["get"]["security"].pop(0), "is not open to reader any more"),
    ],
)
def test_what_would_break_a_client_is_named(change: Callable[[dict[str, Any]], object], named: str) -> None:
    assert any(named in each for each in broken(document(), changed(change)))


@pytest.mark.parametrize(
    "change",
    [
        lambda now: now["paths"].update({"/v1/new": {"get": {}}}),
        lambda now: schemas(now)["StreamOf"]["properties"].update(colour={"type": "string"}),
        lambda now: schemas(now)["MessageRequest"]["properties"].update(colour={"type": "string"}),
        lambda now: limit(now)["schema"].update(maximum=20_000),
        lambda now: schemas(now)["StreamOf"].update(description="Other words."),
    ],
)
def test_what_is_added_breaks_no_client(change: Callable[[dict[str, Any]], object]) -> None:
    assert broken(document(), changed(change)) == []


# --- Canaries beside the release before, whose hubs read the empty chunks that canaries make


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    try:
        return variables_of(RELEASES[-1], tmp_path_factory.mktemp("before"))
    except LookupError as reason:
        pytest.skip(str(reason))


@contextlib.contextmanager
def hub_of(variables: Mapping[str, str], folder: Path) -> Iterator[Hub]:
    """A hub of the release before, as far as links know it."""
    config, port = folder / "hub.yaml", free_port()
    config.write_text(f"listen: 127.0.0.1:{port}\nstore: store\nshards: 2\nprocesses: 1\ntables: null\n")
    python = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, "-m", "weft"]
    node = Node("hub", config, python, popen=subprocess.Popen)
    try:
        yield cast(Hub, SimpleNamespace(url=node.url.rstrip("/")))
    finally:
        node.stop()


def answer(hub: Hub, path: str) -> Any:
    with urllib.request.urlopen(hub.url + path, timeout=30) as found:
        return json.load(found)


@pytest.mark.processes
@pytest.mark.slow
async def test_a_hub_of_the_release_before_goes_on_behind_empty_chunks(
    before: Mapping[str, str], tmp_path: Path
) -> None:
    store, epochs = DirectoryStore(str(tmp_path / "store")), MemoryEpochs()
    paused = control(PolicyRules(), is_paused=True)
    with hub_of(before, tmp_path):
        pass  # a store at the level of that release
    async with running_hub(store, sequencer=PATIENT) as hub:
        async with running_link(hub, log_of(3), NODE, epochs=epochs) as link:
            await until(lambda: link.records_acked == 3)
        log = log_of(9)
        async with running_link(hub, log, NODE, epochs=epochs, sender=SOON, control=paused) as link:
            await until_proven(link, 4)
    cluster = await open_cluster(store, None)
    shard = ShardLog(store, cluster, shard_of(LANE.tenant, LANE.edge, 2))
    footers: list[ChunkIndex] = [chunk.footer async for chunk in shard.indexes(0)]
    assert any(not footer.lanes and not footer.streams for footer in footers), "there is an empty chunk"
    with hub_of(before, tmp_path) as earlier:
        async with running_link(earlier, log, NODE, epochs=epochs) as link:
            await until(lambda: link.pending_records == 0 and link.records_acked > 0)
        records = answer(earlier, f"/v1/streams/{LANE.stream}/records?limit=100")
        assert [record["seq"] for record in records["records"]] == list(range(9))
    async with running_hub(store) as hub, running_link(hub, log, NODE, epochs=epochs, sender=SOON) as link:
        await until_proven(link)
