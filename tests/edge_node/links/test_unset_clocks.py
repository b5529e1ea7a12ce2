"""An edge whose clock is hours wrong, over a real log and a real hub: its rows get the right time, or say that they did
not."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.live import get, running_hub
from tests.edge_node.links.test_links import config
from tests.support.waiting import PATIENCE_S, Patience
from weft.cloud_hub.hub import Hub
from weft.config.links import Link as LinkConfig
from weft.edge_node.links.links import Links
from weft.edge_node.node import poster
from weft.protocols.batch import ClockReading, ClockState
from weft.storage.object_store.directory import MemoryStore
from weft.storage.segment_log import LogSettings, SegmentLog

HOUR = 3600 * 1_000_000_000


class Machine:
    """A machine without a battery clock.

    Args:
        behind: nanoseconds by which the wall clock is behind until a time source sets it.
    """

    def __init__(self, directory: Path, boot: int, behind: int) -> None:
        self.directory, self.boot, self.behind = directory, boot, behind
        self.started = time.monotonic_ns()
        self.is_synced = False

    def wall(self) -> int:
        return time.time_ns() - (0 if self.is_synced else self.behind)

    def reading(self) -> ClockReading:
        state = ClockState.SYNCED if self.is_synced else ClockState.UNSYNCED
        return ClockReading(self.boot, time.monotonic_ns() - self.started + 1, state)

    @contextlib.asynccontextmanager
    async def running(self, hub: Hub | None = None) -> AsyncIterator[tuple[SegmentLog, Links]]:
        """A process on this boot; its link goes to the hub, or to no address."""
        loop = asyncio.get_running_loop()
        log = SegmentLog.open(
            str(self.directory / "log"),
            LogSettings(segment_bytes=1 << 20),
            wall_clock=self.wall,
            clock_reading=self.reading,
            random_bits=random.getrandbits,
            post=poster(loop),
        )
        url = hub.url if hub is not None else "http://127.0.0.1:9"
        given = config(self.directory, cloud=LinkConfig(to=(url,), retry_min_s=0.01, retry_max_s=0.05))
        links = Links(given, log, wall_clock=self.wall, clock_reading=self.reading, clock_error=lambda: 1_000_000)
        links.start()
        yield log, links
        await links.close()
        await asyncio.to_thread(log.close)

    async def take(self, log: SegmentLog, *payloads: bytes) -> int:
        """Take records in; return the true time at which that was done."""
        now = time.time_ns()
        log.append(log.stream("telemetry"), self.wall(), [b"plant/1"] * len(payloads), list(payloads))
        await log.durable()
        return now


async def rows(hub: Hub, count: int) -> dict[str, dict[str, Any]]:
    """Return the records of the stream by their payloads, once there are so many."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            _, answer = await get(hub, "/v1/streams/telemetry/records?since=0&limit=100")
            found = answer["records"] if isinstance(answer, dict) and "records" in answer else []
            await asyncio.sleep(0.02)
    return {row["payload"]: row for row in found}


def nanoseconds(text: str) -> int:
    """Return an API time as nanoseconds since 1970."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 10**9 + int(fraction.ljust(9, "0"))


def assert_right(row: dict[str, Any], true: int, error: int) -> None:
    assert row["clock"] == "corrected"
    # Between the two readings of the test's own clocks, and the machine's, some milliseconds may pass.
    assert abs(nanoseconds(row["time"]) - true) <= error + 50_000_000


async def complete_from(hub: Hub, moment: int) -> int:
    """Return the moment up to which the stream is complete, once that is not before ``moment``: long before the marks
    of an idle stream are due."""
    patience = Patience()
    while not patience.is_over():
        _, answer = await get(hub, "/v1/streams/telemetry/completeness")
        complete = nanoseconds(answer["complete_up_to"]) if answer["complete_up_to"] else 0
        if complete >= moment:
            return complete
        await asyncio.sleep(0.02)
    raise TimeoutError


@pytest.mark.parametrize("behind", [5 * HOUR, -5 * HOUR])
async def test_rows_of_a_clock_that_is_hours_wrong_get_the_right_time(tmp_path: Path, behind: int) -> None:
    machine = Machine(tmp_path, 7, behind)
    async with running_hub(MemoryStore()) as hub:
        async with machine.running() as (log, _):
            before = await machine.take(log, b"before the link")
        async with machine.running(hub) as (log, _):
            linked = await machine.take(log, b"linked")
            found = await rows(hub, 2)
            [notice] = log.clocks()
            # Marks speak of corrected times, too: the stream is complete up to about now, not up to hours ago.
            assert linked <= await complete_from(hub, linked) <= time.time_ns()
        assert_right(found["before the link"], before, notice.error)
        assert_right(found["linked"], linked, notice.error)
        stamp = nanoseconds(found["linked"]["edge_time"])
        assert abs(stamp + behind - linked) < 50_000_000


async def test_a_boot_that_ended_before_any_link_keeps_its_stamps_and_says_so(tmp_path: Path) -> None:
    early, late = Machine(tmp_path, 7, 5 * HOUR), Machine(tmp_path, 8, 5 * HOUR)
    async with running_hub(MemoryStore()) as hub:
        async with early.running() as (log, _):
            lost = await early.take(log, b"unknown")
        async with late.running(hub) as (log, _):
            known = await late.take(log, b"known")
            found = await rows(hub, 2)
            [notice] = log.clocks()
    assert found["unknown"]["clock"] == "unsynced"
    assert abs(nanoseconds(found["unknown"]["time"]) + 5 * HOUR - lost) < 50_000_000
    assert_right(found["known"], known, notice.error)


async def test_a_boot_whose_clock_a_time_source_set_needs_no_link(tmp_path: Path) -> None:
    early, late = Machine(tmp_path, 7, 5 * HOUR), Machine(tmp_path, 8, 0)
    late.is_synced = True
    async with running_hub(MemoryStore()) as hub:
        async with early.running() as (log, links):
            true = await early.take(log, b"before the time source")
            early.is_synced = True
            links.clocks.look()
            await early.take(log, b"behind it")
        async with late.running(hub) as (log, _):
            found = await rows(hub, 2)
            assert [clock.boot_id for clock in log.clocks()] == [7]
    assert_right(found["before the time source"], true, 1_000_000)
    assert found["behind it"]["clock"] == "synced"


async def test_a_process_that_starts_when_the_clock_is_set_knows_of_an_earlier_one_of_the_boot(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 7, 5 * HOUR)
    async with running_hub(MemoryStore()) as hub:
        async with machine.running() as (log, _):
            true = await machine.take(log, b"before the time source")
        machine.is_synced = True
        async with machine.running(hub):
            found = await rows(hub, 1)
    assert_right(found["before the time source"], true, 1_000_000)


async def test_a_clock_that_was_always_set_costs_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 7, 0)
    machine.is_synced = True
    async with running_hub(MemoryStore()) as hub, machine.running(hub) as (log, _):
        await machine.take(log, b"one")
        assert (await rows(hub, 1))["one"]["clock"] == "synced"
        assert log.clocks() == []
