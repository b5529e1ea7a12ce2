"""Two releases on one store as real processes: a rolling upgrade under load, with kills, and `weft hub finalize`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.demo.fabric import FabricError
from tests.end_to_end.storms import SHARDS, Fabric, HubNode, running
from tests.support import forked
from tests.support.later_fold import COUNTED, LATER, Tally
from tests.support.waiting import PATIENCE_S
from weft.protocols.chunk_index import LEVEL_MAX
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import ObjectStore

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
RELEASE_2 = [sys.executable, "-m", "tests.end_to_end.later_release"]


def finalize(hub: HubNode) -> subprocess.CompletedProcess[str]:
    command = [*RELEASE_2, "hub", "finalize", str(hub.config_path), "--yes"]
    return forked.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


async def fold_twice(store: ObjectStore) -> list[int]:
    """Fold each shard's whole log, and start from its snapshots as a node does; the counts of the later release."""
    cluster = await open_cluster(store, None, release_level=LATER.level)
    counts = []
    for shard in range(SHARDS):
        whole = ShardState(cluster.cluster_id, shard, LATER)
        await ShardLog(store, cluster, shard, rules=LATER).extend(whole)
        started = await ShardLog(store, cluster, shard, rules=LATER).load()
        assert started.encode() == whole.encode(), f"shard {shard} has two folds"
        tally = whole.extensions.get(COUNTED)
        counts.append(tally.count if isinstance(tally, Tally) else 0)
    return counts


def test_a_rolling_upgrade_with_kills_makes_one_fold_and_loses_nothing(tmp_path: Path) -> None:
    fabric = Fabric(tmp_path)
    first, second = fabric.hubs
    with running(fabric):
        fabric.until_all_linked()
        first.stop()
        first.command = RELEASE_2
        first.start()
        refused = finalize(first)
        assert refused.returncode != 0
        assert second.url.removeprefix("http://") in refused.stderr, "the node that still runs the earlier release"
        for _ in range(3):  # two releases write by turns
            time.sleep(1.0)
            first.kill()
            first.start()
        second.pause()
        time.sleep(1.0)
        second.resume()
        second.stop()
        second.command = RELEASE_2
        second.start()
        done = [finalize(second), finalize(first)]
        assert f"level {LATER.level} now" in done[0].stdout, done
        assert "already" in done[1].stdout
        for hub in (first, second, first, second):  # each reads the level when it starts
            time.sleep(1.0)
            hub.kill()
            hub.start()
        time.sleep(3.0)
        counted = fabric.finish(audited=False)
        second.stop()
        second.command = [sys.executable, "-m", "weft"]
        with pytest.raises(FabricError, match="ended at once"):
            second.start()
        assert (
            f"the store is at level {LATER.level}, this release knows level {LEVEL_MAX}" in second.log_path.read_text()
        )
    counts = asyncio.run(fold_twice(fabric.store))
    assert counted["messages"] > 1000
    assert sum(counts) > 0, "the later release wrote what it adds"
    print(dict(counted), counts)
