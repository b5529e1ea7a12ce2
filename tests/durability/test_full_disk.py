"""A node without room while devices continue: memory stays flat, nothing acknowledged is lost, and it recovers alone.

``./run nightly --jobs full_disk`` keeps it full for a minute, again and again.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest

from examples.demo.fabric import DemoHub
from tests.durability.devices import (
    STREAM,
    Device,
    LoadedNode,
    check_all_there,
    check_rest_is_noticed,
    of_stream,
    open_after,
    read_stream,
)
from tests.support.slices import SLICE
from tests.support.waiting import wait_until
from weft.proofs.audit.audit import audit
from weft.storage.filesystem import OSFileSystem
from weft.storage.object_store import open_store

pytestmark = pytest.mark.processes
FULL_SECONDS = SLICE.amount(ci=4.0, night=60.0)
DISK_BYTES = 24 << 20
GROWTH_BYTES_MAX = 16 << 20
"""What a node's memory may grow by from the first half of the time without room to the second."""
RATE, RANDOM_BYTES = 3000, 500
"""3.3 MB/s that does not compress by more than half."""
PATIENCE_S = 60.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "weft-test", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def device_of(node: LoadedNode) -> Device:
    return Device("press", node.mqtt, rate=RATE, random_bytes=RANDOM_BYTES, again_s=0.1)


def watch(node: LoadedNode, seconds: float = FULL_SECONDS) -> list[int]:
    """Resident bytes of the node, ten times a second, while there is no room."""
    samples = []
    interval_s = max(0.1, seconds / 600)
    for _ in range(int(seconds / interval_s)):
        samples.append(psutil.Process(node.pid).memory_info().rss)
        time.sleep(interval_s)
    return samples


def check_flat(samples: list[int]) -> None:
    half = len(samples) // 2
    growth = statistics.median(samples[half:]) - statistics.median(samples[:half])
    print(
        f"{len(samples)} times without room: {max(samples) >> 20} MiB at most, median grew by {growth / 2**20:.2f} MiB"
    )
    assert growth < GROWTH_BYTES_MAX


def finish(device: Device) -> None:
    """The device ends once everything that it sent was acknowledged."""
    device.quit.set()
    device.join(PATIENCE_S)
    assert not device.is_alive()
    assert device.acked > 0


@pytest.mark.parametrize("seconds", [1.5, pytest.param(FULL_SECONDS, marks=pytest.mark.search)])
@pytest.mark.timeout(4 * PATIENCE_S + 2 * FULL_SECONDS)
def test_a_node_on_a_full_disk_refuses_and_goes_on_when_there_is_space(
    tmp_path: Path, small_disk: Path, seconds: float
) -> None:
    tree, filler = small_disk / "data", small_disk / "of-another-program"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, DISK_BYTES - (10 << 20))
    with LoadedNode(tmp_path, tree) as node:
        node.start(popen=subprocess.Popen)  # its memory is measured
        device = device_of(node)
        device.start()
        wait_until(lambda: bool(node.status()["log_full"]), PATIENCE_S, "a full disk")
        before = device.acked
        samples = watch(node, seconds)
        assert node.status()["log_full"]
        assert device.acked - before < RATE, "acknowledged although there was no room"
        assert device.lost_connections, "the device was not told"
        filler.unlink()
        wait_until(lambda: device.acked > before + RATE, PATIENCE_S, "an acknowledgement once there was room")
        finish(device)
        node.stop()
    check_flat(samples)
    held = read_stream(open_after(OSFileSystem(), tree))
    check_all_there(held, [device], {device.name: device.acked}, copies_max=1 + device.lost_connections)
    print(f"{before} acknowledged before, {device.acked} in all, {device.lost_connections} connections refused")


@pytest.mark.search
@pytest.mark.timeout(4 * PATIENCE_S + 2 * FULL_SECONDS)
def test_a_node_whose_budget_is_used_up_goes_on_when_its_hub_is_back(tmp_path: Path) -> None:
    tree, hub = tmp_path / "data", DemoHub(tmp_path)
    links = f"links:\n  cloud: {{to: {hub.url}, retry_min: 50ms, retry_max: 200ms}}\n"
    try:
        with LoadedNode(tmp_path, tree, budget="16MiB", links=links) as node:
            node.start(popen=subprocess.Popen)  # its memory is measured
            device = device_of(node)
            device.start()
            wait_until(lambda: bool(node.status()["log_full"]), PATIENCE_S, "a full log")
            before = device.acked
            samples = watch(node)
            assert device.acked - before < RATE, "acknowledged although there was no room"
            hub.start()
            wait_until(lambda: device.acked > before + RATE, PATIENCE_S, "an acknowledgement once the hub was back")
            finish(device)
            end = node.status()["streams"][STREAM]["durable_end"]
            wait_until(lambda: hub.records() == end, PATIENCE_S, "the last record to be at the hub")
            node.stop()
    finally:
        hub.stop()
    check_flat(samples)
    assert sum(path.stat().st_size for path in tree.glob("*.seg")) <= 16 << 20
    report = asyncio.run(audit(open_store(hub.store), "default", STREAM))
    assert report.agrees, report.problems
    assert not any(lane.gaps for lane in report.lanes)
    assert end >= sum(1 for _ in of_stream(islice(device.sent, device.acked)))


@pytest.mark.search
@pytest.mark.timeout(4 * PATIENCE_S + 2 * FULL_SECONDS)
def test_a_node_that_may_drop_the_oldest_never_refuses_and_says_what_is_gone(tmp_path: Path) -> None:
    tree = tmp_path / "data"
    with LoadedNode(tmp_path, tree, budget="16MiB", more="when_full: drop_oldest") as node:
        node.start(popen=subprocess.Popen)  # its memory is measured
        device = device_of(node)
        device.start()
        wait_until(
            lambda: node.status()["streams"][STREAM]["records_lost"] > 0, PATIENCE_S, "the first record to be dropped"
        )
        before = device.acked
        samples = watch(node)
        assert device.acked > before + RATE * FULL_SECONDS / 4, "it refuses"
        assert not device.lost_connections
        finish(device)
        node.stop()
    check_flat(samples)
    assert sum(path.stat().st_size for path in tree.glob("*.seg")) <= 16 << 20
    check_rest_is_noticed(read_stream(open_after(OSFileSystem(), tree)), device)
