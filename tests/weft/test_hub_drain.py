"""`weft hub drain` on a store whose entries of running processes are made by hand, and at a running hub by its URL."""

from __future__ import annotations

import asyncio
import json
import platform
import time
from pathlib import Path

import msgspec
import pytest

from tests.cloud_hub.facts.test_administration import ADMIN
from tests.cloud_hub.facts.test_hub import SOON, declare, token
from tests.cloud_hub.live import running_hub
from tests.support.processes import weft
from weft.cloud_hub.facts.fact import NODE
from weft.hub_api.rights import Scope, role_grants
from weft.output import Failed, Refused
from weft.storage import hub_keys
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import ClusterLog
from weft.storage.object_store import open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.presence import NodeEntry


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a store on which two machines run."""
    (tmp_path / "hub.yaml").write_text("listen: 127.0.0.1:8090\nstore: store\n")
    store = open_store(str(tmp_path / "store"))
    asyncio.run(open_cluster(store, 2))
    for at, host in enumerate(("hub-1", "hub-2")):
        entry = NodeEntry(host, "", "weft", 2, time.time_ns(), name=f"{host}:8090", host=host, links=at)
        asyncio.run(store.create(hub_keys.node_key(host), msgspec.json.encode(entry)))
    return tmp_path / "hub.yaml"


def drained(config: Path) -> list[tuple[str, str]]:
    found = json.loads(weft("hub", "declarations", config, "--json").output)
    return [(each["act"], each["name"]) for each in found]


def test_a_machine_is_drained_and_takes_shards_again(config: Path) -> None:
    assert "has no links; stop it now" in weft("hub", "drain", config, "hub-1", "--by", "mara").output
    refused = weft("hub", "drain", config, "hub-2:8090").exception
    assert "no other running process can own the shards of hub-2:8090" in str(refused)
    assert "Drained are: hub-1" in str(refused)
    assert "takes shards again" in weft("hub", "drain", config, "hub-1", "--undo").output
    assert "1 link is still open" in weft("hub", "drain", config, "hub-2:8090", "--wait", "0s").output
    assert sorted(drained(config)) == [("declared", "hub-1"), ("declared", "hub-2:8090"), ("withdrew", "hub-1")]


def test_a_machine_stays_when_all_others_leave(config: Path) -> None:
    store = open_store(str(config.parent / "store"))
    leaving = NodeEntry("hub-2", "", "weft", 2, time.time_ns(), name="hub-2:8090", host="hub-2", state="leaving")
    etag = asyncio.run(store.get(hub_keys.node_key("hub-2"))).etag
    asyncio.run(store.swap(hub_keys.node_key("hub-2"), msgspec.json.encode(leaving), etag))
    refused = weft("hub", "drain", config, "hub-1").exception
    assert "no other running process can own the shards of hub-1" in str(refused)
    assert drained(config) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("hub-3",), "no hub process hub-3 runs on this store; there are: hub-1, hub-1:8090, hub-2"),
        (("hub-3", "--undo"), "hub-3 is not drained; drained are: none"),
        (("hub-1", "--wait", "soon"), "--wait"),
    ],
)
def test_what_cannot_be_drained_says_why(config: Path, arguments: tuple[str, ...], text: str) -> None:
    refused = weft("hub", "drain", config, *arguments).exception
    assert isinstance(refused, Failed | Refused)
    assert text in str(refused)
    assert drained(config) == []


async def test_a_url_names_a_running_hub_whose_record_has_the_token(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "root.token").write_text(ADMIN)

    def ask(*words: str) -> str:
        result = weft("hub", words[0], hub.url, *words[1:], "--token-file", tmp_path / "root.token")
        return result.output if result.exception is None else str(result.exception)

    async with running_hub(store, shards=1, **SOON) as hub:
        await declare(hub, store, token("ada", ADMIN, Scope.GRANTED, grants=role_grants(["administrator"])))
        refused = await asyncio.to_thread(ask, "drain", platform.node())
        assert "no other running process can own the shards" in refused
        assert "no hub process hub-9 runs on this store" in await asyncio.to_thread(ask, "drain", "hub-9")
        assert "hub-9 is not drained" in await asyncio.to_thread(ask, "drain", "hub-9", "--undo")
        assert "--by is for a configuration" in await asyncio.to_thread(ask, "drain", "hub-9", "--by", "mara")
        split = await asyncio.to_thread(ask, "split", "0", "--force", "--yes", "--reason", "a busy line")
        assert split.startswith("shard 0 is split: ")
        own = json.loads(await asyncio.to_thread(ask, "nodes", "--json"))["nodes"][0]["name"]
        async with running_hub(store, shards=1, **SOON):
            assert "has no links; stop it now" in await asyncio.to_thread(ask, "drain", own)
            assert "takes shards again" in await asyncio.to_thread(ask, "drain", own, "--undo")
    state = await ClusterLog(store, hub.cluster.cluster_id).load()
    assert state.facts(NODE) == {}
