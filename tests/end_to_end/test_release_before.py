"""Three hub nodes go from the release before to this one, back, and to this one for good, while edges send."""

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
from tests.end_to_end.storms import Fabric, HubNode, running
from tests.releases.code import level_of, variables_of
from tests.releases.write import RELEASES
from tests.support import forked
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, wait_until
from weft.protocols.chunk_index import LEVEL_MAX
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster, read_level

pytestmark = [pytest.mark.processes, pytest.mark.search(turns=4), pytest.mark.timeout(900)]
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


def finalize(hub: HubNode) -> subprocess.CompletedProcess[str]:
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
                refused = finalize(fabric.hubs[-1])
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
            done = finalize(fabric.hubs[0])
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
