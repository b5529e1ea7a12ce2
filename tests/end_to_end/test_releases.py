"""Two releases on one store, as real processes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from examples.demo.fabric import FabricError
from tests.end_to_end.storms import SHARDS, Fabric, HubNode, running
from tests.releases.code import level_of, variables_of
from tests.releases.write import RELEASES
from tests.support import forked
from tests.support.later_fold import COUNTED, LATER, Tally
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.chunk_index import LEVEL_MAX
from weft.protocols.shard.shard_state import ShardState
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster, read_level
from weft.storage.object_store import ObjectStore

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


# --- Two releases on one store as real processes: a rolling upgrade under load, with kills, and `weft hub finalize`


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


@pytest.mark.slow
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


# --- Three hub nodes go from the release before to this one, back, and to this one for good, while edges send


SILENCE_S_MAX = 25.0
"""Longest time that an edge may have no acknowledgement while a node of three is replaced. A release without a division
of shards leaves its edges to a time-out; the rest is for a busy machine."""
SNAPSHOT_WAIT_S = 150.0
Release = Mapping[str, str]
"""Variables by which a node's interpreter runs a release."""
THIS: Release = {}


def become(hub: HubNode, release: Release) -> None:
    """Have a node run a release at its next start."""
    hub.environment = dict(release)


def release_before_finalize(hub: HubNode) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "hub", "finalize", str(hub.config_path), "--yes"]
    return forked.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


class Silences:
    """The longest time without an acknowledgement of each edge, looked at all the time."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._ends = threading.Event()
        self.longest_s = [0.0 for _ in fabric.edges]

    def _look(self, number: int) -> None:
        with contextlib.suppress(FabricError):
            last = self._fabric.link(self._fabric.edges[number])["last_ack"]
            if last is not None:
                self.longest_s[number] = max(self.longest_s[number], time.time() - last)

    def _run(self) -> None:
        while not self._ends.wait(0.25):
            for number in range(len(self.longest_s)):
                self._look(number)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join()


def replace(fabric: Fabric, hub: HubNode, release: Release) -> None:
    """Stop a node in order and start it under a release; each edge is acknowledged to while it is away, and after."""
    hub.stop()
    stopped = time.time()
    for edge in fabric.edges:
        fabric.seconds_to_acks(edge, stopped, SILENCE_S_MAX)
    become(hub, release)
    hub.start()
    started = time.time()
    for edge in fabric.edges:
        fabric.seconds_to_acks(edge, started, SILENCE_S_MAX)


def snapshots(fabric: Fabric) -> list[int]:
    """Return the number of each shard's newest snapshot."""

    async def look() -> list[int]:
        cluster = await open_cluster(fabric.store, None)
        logs = [ShardLog(fabric.store, cluster, shard) for shard in range(cluster.shards)]
        return [(await log.manifest())[0].snapshot_n for log in logs]

    return asyncio.run(look())


def until_new_snapshots(fabric: Fabric) -> None:
    """Wait until each shard with edges has a snapshot of those who write now."""
    before = snapshots(fabric)
    wait_until(
        lambda: sum(now > then for now, then in zip(snapshots(fabric), before, strict=True)) >= len(fabric.edges) - 1,
        SNAPSHOT_WAIT_S,
        "new snapshots",
        interval_s=0.5,
    )


@pytest.mark.search(turns=4)
def test_three_nodes_are_upgraded_under_load_go_back_and_are_upgraded_for_good(tmp_path: Path) -> None:
    chance = random.Random(SLICE.seed)
    try:
        before = variables_of(RELEASES[-1], tmp_path / "before")
    except LookupError as reason:
        pytest.skip(str(reason))
    level_before = level_of(before)
    if level_before == LEVEL_MAX:
        pytest.skip(f"release {RELEASES[-1]} has the level of this state, so there is nothing to finalize")
    fabric = Fabric(tmp_path, nodes=3, edges=3)
    for hub in fabric.hubs:
        become(hub, before)
    with running(fabric):
        fabric.until_all_linked()
        assert asyncio.run(read_level(fabric.store)) == level_before
        watch = Silences(fabric)
        with watch.watched():
            for hub in fabric.hubs:
                refused = release_before_finalize(fabric.hubs[-1])
                assert refused.returncode != 0
                assert "is unknown to node" in refused.stderr
                replace(fabric, hub, THIS)
                time.sleep(chance.uniform(1.0, 4.0))  # both releases write
            until_new_snapshots(fabric)
            for hub in reversed(fabric.hubs):
                replace(fabric, hub, before)
                time.sleep(chance.uniform(1.0, 4.0))
            assert asyncio.run(read_level(fabric.store)) == level_before
            until_new_snapshots(fabric)
            for hub in fabric.hubs:
                replace(fabric, hub, THIS)
                hub.kill()
                hub.start()
            done = release_before_finalize(fabric.hubs[0])
            assert f"level {LEVEL_MAX} now" in done.stdout, done
            until_new_snapshots(fabric)
            for hub in fabric.hubs:
                hub.kill()
                hub.start()
        counted = fabric.finish()
        last = fabric.hubs[-1]
        last.stop()
        become(last, before)
        with pytest.raises(FabricError, match="ended at once"):
            last.start()
        said = last.log_path.read_text()
        assert f"the store is at level {LEVEL_MAX}, this release knows level {level_before}" in said
    print(dict(counted), watch.longest_s)
    assert counted["messages"] > 5000
    assert max(watch.longest_s) < SILENCE_S_MAX
