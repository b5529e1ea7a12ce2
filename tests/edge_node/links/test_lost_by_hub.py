"""A hub whose store was put back to an earlier state has lost what it acknowledged: an alarm, also after restarts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cloud_hub.live import running_hub
from tests.edge_node.links.test_links import append, config, open_log, wall_clock
from tests.support.waiting import until
from weft.cli import cli
from weft.config.links import Link as LinkConfig
from weft.edge_node.control.client import ask_acknowledge
from weft.edge_node.control.server import Control
from weft.edge_node.links.high_watermarks import AcknowledgedFile
from weft.edge_node.links.links import Links
from weft.protocols.ranges import RangeSet
from weft.storage.filesystem import OSFileSystem
from weft.storage.object_store.directory import DirectoryStore
from weft.storage.segment_log import SegmentLog


class Life:
    """A node's, as far as its log and links go."""

    def __init__(self, directory: Path, url: str) -> None:
        self.log: SegmentLog = open_log(directory / "log")
        link = LinkConfig(to=(url,), retry_min_s=0.01, retry_max_s=0.05)
        self.links = Links(config(directory, cloud=link), self.log, wall_clock=wall_clock)
        self.status = self.links.statuses[0]

    async def __aenter__(self) -> Life:
        self.links.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.links.close()
        await asyncio.to_thread(self.log.close)

    async def bring(self, count: int) -> None:
        """Take records in, and wait until the hub has acknowledged them."""
        before = self.status.records_acked
        await append(self.log, "telemetry", count)
        await until(lambda: self.status.records_acked >= before + count)


def file_of(directory: Path) -> AcknowledgedFile:
    return AcknowledgedFile(OSFileSystem(), str(directory / "links" / "acknowledged"), 7)


async def test_an_alarm_stands_across_restarts_until_an_operator_acknowledges_it(tmp_path: Path) -> None:
    """The node has let go of the records: it names them absent, and the hub's notice of that is no record."""
    file = file_of(tmp_path)
    assert file.acknowledged.opened("hub", "telemetry", RangeSet([(0, 80)]), RangeSet(), []) == ""
    await file.save()
    file = file_of(tmp_path)
    safe, reported = RangeSet([(0, 50)]), RangeSet()
    lost = file.acknowledged.opened("hub", "telemetry", safe, reported, [(70, 75)])
    assert "hub hub has lost 25 records that it had acknowledged, from seq 50 on, of stream telemetry" in lost
    reported.add(50, 60)
    safe.add(50, 70)  # ten records again, and a notice of ten
    assert "has lost 15 records" in file.acknowledged.alarm("hub")
    assert file.acknowledged.alarm("another") == ""
    await file.save()
    file = file_of(tmp_path)
    assert file.acknowledged.opened("hub", "telemetry", RangeSet([(0, 75)]), RangeSet(), [(70, 75)]) == ""
    assert "has lost 15 records" in file.acknowledged.alarm("")
    assert len(file.acknowledged.acknowledge()) == 1
    await file.save()
    assert file_of(tmp_path).acknowledged.alarm("") == ""
    other = AcknowledgedFile(OSFileSystem(), str(tmp_path / "links" / "acknowledged"), 8)
    assert other.acknowledged.opened("hub", "telemetry", RangeSet(), RangeSet(), []) == ""


async def test_an_operator_acknowledges_through_the_control_socket(tmp_path: Path) -> None:
    log, asked = open_log(tmp_path), []

    def acknowledge() -> list[str]:
        asked.append(True)
        return ["hub x has lost 3 records"]

    control = Control(str(tmp_path), log, acknowledge=acknowledge)
    await control.start()
    assert await asyncio.to_thread(ask_acknowledge, str(tmp_path)) == ["hub x has lost 3 records"]
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["link", "acknowledge", str(tmp_path)])
    assert result.output == "ended: hub x has lost 3 records\n"
    assert len(asked) == 2
    await control.close()
    await asyncio.to_thread(log.close)


async def test_the_alarm_ends_when_the_hub_has_the_records_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, copy, node = tmp_path / "store", tmp_path / "copy", tmp_path / "node"
    async with running_hub(DirectoryStore(str(store))) as hub, Life(node, hub.url) as life:
        await life.bring(50)
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("temporary"))  # a running hub writes there
    async with running_hub(DirectoryStore(str(store))) as hub, Life(node, hub.url) as life:
        await life.bring(30)
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    async with running_hub(DirectoryStore(str(store))) as hub, Life(node, hub.url) as life:
        await until(lambda: "has lost 30 records" in life.status.last_error)
        assert "this hub lacks 30 records of stream telemetry, from seq 50 on, that it had acknowledged" in caplog.text
        await until(lambda: life.status.alarm == "")
        assert life.links.acknowledge_alarms() == []
