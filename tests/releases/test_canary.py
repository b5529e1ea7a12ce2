"""Canaries beside the release before, whose hubs read the empty chunks that canaries make."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.links.test_canary import PATIENT, SOON, control, until_proven
from tests.cloud_hub.links.test_conflicts import LANE, NODE, log_of
from tests.cloud_hub.live import running_hub, running_link
from tests.releases.code import variables_of
from tests.releases.write import RELEASES
from tests.support.epochs import MemoryEpochs
from tests.support.processes import Node
from tests.support.waiting import until
from weft.cloud_hub.hub import Hub
from weft.protocols.chunk_index import ChunkIndex
from weft.protocols.shard.placement import shard_of
from weft.replication.policy import PolicyRules
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store.directory import DirectoryStore

pytestmark = [pytest.mark.processes, pytest.mark.slow]


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
