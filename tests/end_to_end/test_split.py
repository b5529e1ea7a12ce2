"""A shard that splits under load, in a hub of two processes that are killed: every acknowledged message once."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.demo.fabric import Edge
from tests.end_to_end.test_hub_processes import (
    SHARDS,
    check_once,
    kill_process,
    make_edge,
    make_hub,
    under_load,
    wait_until_drained,
)
from tests.support import forked
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.protocols.shard.placement import ShardTree, shard_of
from weft.storage.chunk_log import first_logs, load_every_shard
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

pytestmark = pytest.mark.processes
_TREE = ShardTree(SHARDS, [0])
NAMES = [next(f"edge-{n}" for n in range(64) if _TREE.shard_of("default", f"edge-{n}") == shard) for shard in range(3)]
"""An edge that stays in shard 0, one of another shard, and one that moves from shard 0 to shard 2."""
SILENT_S_MAX = 8.0
"""Longest time from a split to the next acknowledgement of an edge that moves, on a busy machine."""


def last_ack(edge: Edge) -> float:
    return float(edge.status()["links"]["cloud"]["last_ack"])


@pytest.mark.search
@pytest.mark.timeout(900)
def test_a_split_under_load_and_kills_loses_and_doubles_nothing(tmp_path: Path) -> None:
    assert [shard_of("default", name, SHARDS) for name in NAMES] == [0, 1, 0]
    chance = random.Random(SLICE.seed)
    hub = make_hub(tmp_path)
    edges = [make_edge(tmp_path, name, hub) for name in NAMES]
    acked: dict[str, int] = {}
    with under_load(hub, edges) as loads:
        time.sleep(chance.uniform(1.0, 3.0))  # the random moment is the test
        done = forked.run(
            [sys.executable, "-m", "weft", "hub", "split", str(hub.config_path), "0", "--yes"],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        assert done.stdout == "shard 0 is split: 1 edge moved to shard 2, 1 stay\n"
        split_at = time.time()
        # Nothing of the edge is acknowledged by the old shard any more.
        wait_until(lambda: last_ack(edges[2]) > split_at, SILENT_S_MAX, lambda: str(edges[2].status()["links"]))
        print(f"silent for {last_ack(edges[2]) - split_at:.2f} s")
        for victim in chance.sample(range(2), 2):
            time.sleep(chance.uniform(0.3, 1.5))
            kill_process(hub, victim)
        time.sleep(2.0)
        for load in loads:
            acked |= load.finish()
        wait_until_drained(edges, hub)
    check_once(hub, acked)
    store = open_store(hub.store)

    async def places() -> list[set[str]]:
        cluster = await open_cluster(store, None)
        states = await load_every_shard(first_logs(store, cluster))
        return [{lane.edge for lane in state.lanes if lane.tenant == "default"} for _, state in states]

    assert asyncio.run(places()) == [{NAMES[0]}, {NAMES[1]}, {NAMES[2]}]
