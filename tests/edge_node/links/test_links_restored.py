"""Links notice a log that has forgotten what hubs hold, and stop for no other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.edge_node.links.test_links import append, config, link_to, open_log, wall_clock
from tests.replication.loopback import Hub
from tests.support.waiting import until
from weft.config.links import Link as LinkConfig
from weft.edge_node.links.links import Links
from weft.protocols.ranges import RangeSet
from weft.replication.events import LinkState
from weft.storage.filesystem import File, OSFileSystem
from weft.storage.segment_log import SegmentLog, StreamPolicy

NOBODY = LinkConfig(to=("http://127.0.0.1:9",), retry_min_s=0.01, retry_max_s=0.05)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with running("hub") as hub:
        yield hub


@contextlib.asynccontextmanager
async def running(cluster_id: str) -> AsyncIterator[Hub]:
    hub = Hub(cluster_id)
    await hub.start()
    yield hub
    await hub.stop()


class Life:
    """A node's, as far as its log and links go."""

    def __init__(self, directory: Path, filesystem: OSFileSystem | None = None, **links: LinkConfig) -> None:
        self.log: SegmentLog = open_log(directory / "log")
        self.links = Links(config(directory, **links), self.log, wall_clock=wall_clock, filesystem=filesystem)
        self.telemetry = self.log.stream("telemetry")

    async def __aenter__(self) -> Life:
        self.links.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.links.close()
        await asyncio.to_thread(self.log.close)

    async def append(self, count: int) -> None:
        await append(self.log, "telemetry", count)

    def state(self, at: int = 0) -> LinkState:
        return self.links.statuses[at].state

    async def until_at(self, hub: Hub, end: int) -> None:
        await until(lambda: hub.held.get(self.telemetry, RangeSet()).covers(0, end))


async def offline(directory: Path, count: int) -> None:
    """A life in which no hub can be reached, though the link tries and looks at what is pending."""
    async with Life(directory, cloud=NOBODY) as life:
        await life.append(count)
        await until(lambda: life.links.statuses[0].pending_seconds > 0)


def put_back(copy: Path, directory: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)


@pytest.mark.parametrize("offline_lives", [0, 1, 2])
async def test_a_restored_old_copy_is_noticed_however_often_it_ran_since(
    tmp_path: Path, hub: Hub, offline_lives: int
) -> None:
    directory, copy = tmp_path / "node", tmp_path / "copy"
    async with Life(directory, cloud=link_to(hub)) as life:
        await life.append(50)
        await life.until_at(hub, 50)
        shutil.copytree(directory, copy)
        await life.append(50)
        await life.until_at(hub, 100)
    put_back(copy, directory)
    for _ in range(offline_lives):
        await offline(directory, 80)
    async with Life(directory, cloud=link_to(hub)) as life:
        await life.append(80)
        await until(lambda: life.state() is LinkState.CONFLICT)
        reported = life.links.statuses[0].last_error
        assert "stream telemetry up to seq 100, but this log gave it none beyond 50" in reported
        assert "restored from an old copy" in reported
        assert "start with an empty one, which gets a new log id" in reported
        # Counted at the next look: the conflict may be noticed before the log's news of the 80 is.
        await until(lambda: life.links.statuses[0].pending_records == 50 + 80 * (offline_lives + 1))
    assert hub.held[life.telemetry] == RangeSet([(0, 100)])


async def test_a_hub_that_lags_does_not_hide_what_another_hub_holds(tmp_path: Path, hub: Hub) -> None:
    directory, copy = tmp_path / "node", tmp_path / "copy"
    async with running("laggard") as laggard:
        async with Life(directory, a=link_to(laggard), b=link_to(hub)) as life:
            await life.append(50)
            await life.until_at(hub, 50)
            await life.until_at(laggard, 50)
            shutil.copytree(directory, copy)
            await laggard.stop()
            await life.append(50)
            await life.until_at(hub, 100)
        put_back(copy, directory)
        await laggard.start()
        await offline(directory, 80)
        async with Life(directory, a=link_to(laggard)) as life:
            await life.until_at(laggard, 130)
        async with Life(directory, a=link_to(laggard), b=link_to(hub)) as life:
            await until(lambda: life.state(1) is LinkState.CONFLICT)
            await until(lambda: life.state(0) is LinkState.CONNECTED)


async def test_two_links_to_one_hub_know_of_each_other(tmp_path: Path, hub: Hub) -> None:
    async with Life(tmp_path, a=link_to(hub, ("telemetry",)), b=NOBODY) as life:
        await life.append(50)
        await life.until_at(hub, 50)
    async with Life(tmp_path, a=NOBODY, b=link_to(hub)) as life:
        await until(lambda: life.links.statuses[1].pending_records == 0 and life.state(1) is LinkState.CONNECTED)
        await life.append(5)
        await life.until_at(hub, 55)


async def test_a_hub_that_was_given_only_gaps_is_no_conflict_when_the_link_comes_back(tmp_path: Path, hub: Hub) -> None:
    async with Life(tmp_path, cloud=NOBODY) as life:
        await life.append(50)
        life.log.set_policy(life.telemetry, StreamPolicy())
        life.log.drop_backlog(life.telemetry)
        await append(life.log, "alarms", 1)
        assert not life.log.ranges(life.telemetry)
    for _ in range(2):
        async with Life(tmp_path, cloud=link_to(hub)) as life:
            for _ in range(2):
                await life.until_at(hub, 50)
                await hub.stop()
                await until(lambda: life.state() is not LinkState.CONNECTED)
                await hub.start()
                await until(lambda: life.state() is LinkState.CONNECTED)
    assert {lane for lane, _ in hub.stored} == {life.log.stream("alarms")}


class FullDisk(OSFileSystem):
    """No new file can be made for the high watermarks; the epochs find room."""

    full = True

    def create(self, path: str) -> File:
        if self.full and "known-ends" in path:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return super().create(path)


async def test_a_full_disk_keeps_records_from_being_given_and_nothing_else(
    tmp_path: Path, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "weft.edge_node.links.high_watermarks")
    disk = FullDisk()
    async with Life(tmp_path, disk, cloud=link_to(hub)) as life:
        (record,) = [record for record in caplog.records if record.name == "weft.edge_node.links.high_watermarks"]
        assert "known-ends cannot be written" in record.getMessage()
        await life.append(50)
        await until(lambda: "no space left" in life.links.statuses[0].last_error)
        assert not hub.stored
        disk.full = False
        await life.until_at(hub, 50)
    assert set(hub.stored.values()) == {1}
