"""`weft hub nodes` on a store whose entries of processes are made by hand."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import msgspec

from tests.support.processes import weft
from weft.storage import hub_keys
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store
from weft.storage.presence import Intake, NodeEntry

SECOND = 1_000_000_000


def test_what_is_gone_or_of_another_cluster_does_not_count_as_ready(tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text("listen: 127.0.0.1:8090\nstore: store\n")
    store = open_store(str(tmp_path / "store"))
    cluster, now = asyncio.run(open_cluster(store, 2)), time.time_ns()
    own = cluster.cluster_id.hex()
    beside = NodeEntry("", "", "weft", 2, now, host="hub", interval_s=5.0, cluster=own)
    entries = {
        "there": msgspec.structs.replace(beside, name="a:1", intake=Intake(812.44, 26_214.4, 60.0)),
        "of an earlier release": msgspec.structs.replace(beside, name="b:1", cluster=""),
        "killed": msgspec.structs.replace(beside, name="c:1", seen=now - 20 * SECOND),
        "alone, so that it writes each minute": msgspec.structs.replace(
            beside, name="d:1", seen=now - 60 * SECOND, interval_s=60.0
        ),
        "its life before": msgspec.structs.replace(beside, name="e:1", seen=now - 5 * SECOND, since=1),
        "its life now": msgspec.structs.replace(beside, name="e:1", since=2),
        "of the store before": msgspec.structs.replace(beside, name="f:1", restored=1),
        "of another hub": msgspec.structs.replace(beside, name="g:1", cluster="0" * 32),
    }
    for number, entry in enumerate(entries.values()):
        data = msgspec.json.encode(msgspec.structs.replace(entry, id=str(number)))
        asyncio.run(store.create(hub_keys.node_key(str(number)), data))
    said = weft("hub", "nodes", tmp_path / "hub.yaml").output.splitlines()
    assert {line.split("\t")[0]: line.split("\t")[7:9] for line in said[:3]} == {
        "node": ["records/s", "bytes/s"],
        "a:1": ["812.4", "25.6 KiB"],
        "b:1": ["", ""],
    }
    found = json.loads(weft("hub", "nodes", tmp_path / "hub.yaml", "--json").output)["nodes"]
    states = {name: next(each["state"] for each in found if each["id"] == str(at)) for at, name in enumerate(entries)}
    assert states == {
        "there": "ready",
        "of an earlier release": "ready",
        "killed": "gone",
        "alone, so that it writes each minute": "ready",
        "its life before": "gone",
        "its life now": "ready",
        "of the store before": "of another cluster",
        "of another hub": "of another cluster",
    }
