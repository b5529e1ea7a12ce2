"""A tenant that floods a hub at its quota leaves another's acknowledgements as they were."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from examples.demo.fabric import free_port
from tests.cloud_hub.api.test_application import records
from tests.cloud_hub.live import EdgeLog, running_link
from tests.hostile.waits import MEASURED_AGAIN, at_most
from tests.support.processes import Node, weft
from tests.support.stopwatch import Stopwatch
from weft.cloud_hub.hub import Hub
from weft.replication.runner import LinkIdentity

pytestmark = [pytest.mark.processes, pytest.mark.slow, MEASURED_AGAIN]
SAMPLES, PAUSE_S = 150, 0.03
FLOOR_S = 0.15
"""Noise of a busy machine, and of one commit more or less: a commit is due every 250 ms."""
FLOODING, BACKLOG, SIZE = 6, 400, 20_000


async def p99(hub: Hub, stopwatch: Stopwatch) -> float:
    """The 99th percentile of the time from a record's append to its acknowledgement, for one link of a tenant."""
    log, took = EdgeLog(), []
    identity = LinkIdentity("quiet", "press-1", time.monotonic_ns(), "test")
    async with running_link(hub, log, identity):
        for at in range(SAMPLES):
            stopwatch.start()
            log.append(*records(at, [b"x" * 100]))
            await log.until_released(at + 1)
            took.append(stopwatch.seconds())
            await asyncio.sleep(PAUSE_S)
    return sorted(took)[-max(1, SAMPLES // 100)]


async def measure(hub: Hub, stopwatch: Stopwatch) -> tuple[float, float, float]:
    """The quiet tenant's p99 alone and beside the flood, and the share of the flood that the hub took, bytes."""
    alone = await p99(hub, stopwatch)
    async with contextlib.AsyncExitStack() as links:
        logs = []
        for number in range(FLOODING):
            log = EdgeLog()
            for at in range(BACKLOG):
                log.append(*records(at, [os.urandom(SIZE)]))
            logs.append(log)
            await links.enter_async_context(running_link(hub, log, LinkIdentity("loud", f"e-{number}", 1, "test")))
        await asyncio.sleep(1)  # the burst of a second that a quota allows
        began, before = time.monotonic(), sum(log.released_ranges.count() for log in logs)
        beside = await p99(hub, stopwatch)
        taken = sum(log.released_ranges.count() for log in logs) - before
        return alone, beside, taken * SIZE / (time.monotonic() - began)


def test_a_tenant_at_its_quota_does_not_delay_another(tmp_path: Path) -> None:
    config, port, quota = tmp_path / "hub.yaml", free_port(), 1_024_000
    config.write_text(f"listen: 127.0.0.1:{port}\nstore: store\nshards: 2\nprocesses: 1\ntables: null\n")
    node = Node("hub", config)
    try:
        done = weft("hub", "tenant", "add", str(config), "loud", "--bytes-per-second", "1000KiB")
        assert done.exit_code == 0, done.output
        time.sleep(3)  # a change counts two seconds later
        hub = cast(Hub, SimpleNamespace(url=node.url.rstrip("/")))
        alone, beside, rate = asyncio.run(measure(hub, Stopwatch(node.process.pid)))
    finally:
        node.stop()
    print(f"p99 alone {alone * 1000:.0f} ms, beside a flood at its quota {beside * 1000:.0f} ms; {rate:,.0f} B/s")
    at_most(1.5 * alone + FLOOR_S, beside)
    assert rate <= 1.2 * quota
