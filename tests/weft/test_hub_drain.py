"""`weft hub drain` on a store whose entries of running processes are made by hand."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import msgspec
import pytest

from tests.support.processes import weft
from weft.output import Failed, Refused
from weft.storage import hub_keys
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store
from weft.storage.presence.nodes import NodeEntry


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
    assert "no other process that runs takes the shards of hub-2:8090" in str(refused)
    assert "Drained are: hub-1" in str(refused)
    assert "takes shards again" in weft("hub", "drain", config, "hub-1", "--undo").output
    assert "1 link is still there" in weft("hub", "drain", config, "hub-2:8090", "--wait", "0s").output
    assert sorted(drained(config)) == [("declared", "hub-1"), ("declared", "hub-2:8090"), ("withdrew", "hub-1")]


def test_a_machine_stays_when_all_others_leave(config: Path) -> None:
    store = open_store(str(config.parent / "store"))
    leaving = NodeEntry("hub-2", "", "weft", 2, time.time_ns(), name="hub-2:8090", host="hub-2", state="leaving")
    etag = asyncio.run(store.get(hub_keys.node_key("hub-2"))).etag
    asyncio.run(store.swap(hub_keys.node_key("hub-2"), msgspec.json.encode(leaving), etag))
    refused = weft("hub", "drain", config, "hub-1").exception
    assert "no other process that runs takes the shards of hub-1" in str(refused)
    assert drained(config) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("hub-3",), "no hub process hub-3 runs on this store; there are: hub-1, hub-1:8090, hub-2"),
        (("hub-3", "--undo"), "hub-3 is not drained; drained are: none"),
        (("hub-1", "--wait", "soon"), "--wait"),
    ],
)
def test_what_cannot_be_drained_says_why(config: Path, arguments: tuple[str, ...], told: str) -> None:
    refused = weft("hub", "drain", config, *arguments).exception
    assert isinstance(refused, Failed | Refused)
    assert told in str(refused)
    assert drained(config) == []
