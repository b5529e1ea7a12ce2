"""A link whose URLs a hub has set: when they lead nowhere for long, the edge goes back to those of its own file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import pytest

from tests.replication.loopback import Hub
from tests.replication.model import ModelLog
from tests.replication.test_runner import IDENTITY, drained
from tests.support.epochs import MemoryEpochs
from tests.support.waiting import until
from weft.protocols.link import ConfigDesired, ConfigState
from weft.replication.events import LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.runner import LinkSettings, run_link
from weft.replication.runner.connect import OWN_URLS_S


class Door:
    """A node with a confirmed configuration (``ConfigReceiver``)."""

    def __init__(self, *own: str) -> None:
        self.own = own

    def opened(self, cluster_id: str, tell: Callable[[ConfigState], None]) -> ConfigState:
        del cluster_id, tell
        return ConfigState(1, "d", 2, "", 1, "d")

    def closed(self) -> None:
        pass

    def desire(self, desired: ConfigDesired, cluster_id: str) -> None:
        pass

    def own_urls(self) -> tuple[str, ...]:
        return self.own


@pytest.mark.parametrize("has_own", [True, False])
async def test_the_files_urls_are_tried_after_two_minutes_without_a_link(has_own: bool) -> None:
    hub, log, seconds = Hub(), ModelLog({1: "telemetry"}), 0.0
    await hub.start()
    log.append(1, 10)
    settings = LinkSettings(
        ("http://127.0.0.1:1",), retry_min_s=0.01, retry_max_s=0.02, sender=SenderSettings(mark_interval=SECOND // 20)
    )
    status = LinkStatus("cloud")
    task = asyncio.create_task(
        run_link(
            log,
            IDENTITY,
            settings,
            MemoryEpochs(),
            status,
            clock=lambda: time.monotonic_ns() + int(seconds * SECOND),
            config=Door(hub.url) if has_own else Door(),
        )
    )
    try:
        await until(lambda: status.attempts_failed >= 3)
        assert status.url == "http://127.0.0.1:1"
        seconds += OWN_URLS_S
        if has_own:
            await until(lambda: drained(log))
            assert status.url == hub.url
        else:
            before = status.attempts_failed
            await until(lambda: status.attempts_failed >= before + 3)
            assert status.url == "http://127.0.0.1:1"
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await hub.stop()
