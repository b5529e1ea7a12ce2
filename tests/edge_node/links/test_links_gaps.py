"""Losses travel: a real hub names whatever an edge's log gave up or lost, with its reason, and then the log forgets."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.live import get, running_hub
from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY, commit_all
from tests.support.waiting import until
from weft.config.links import Link as LinkConfig
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.links import Links
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import EntryKind
from weft.replication.events import LinkState
from weft.storage.object_store.directory import MemoryStore
from weft.storage.segment_log import LogSettings, SegmentLog, StreamPolicy
from weft.storage.segment_log.scan import inspect_log

SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=8 * 4096, tail_bytes=0)
SECOND = 10**9
ticks = itertools.count(1_700_000_000_000_000_000, 1000)
ahead = [0]


def wall_clock() -> int:
    return next(ticks) + ahead[0]


def open_log(disk: FakeFileSystem) -> SegmentLog:
    return SegmentLog.open(
        DIRECTORY,
        SETTINGS,
        filesystem=disk,
        wall_clock=wall_clock,
        clock_reading=lambda: ClockReading(1, next(ticks), ClockState.SYNCED),
        random_bits=lambda bits: 0xABC,
        post=lambda deliver: deliver(),
        start_writer=False,
    )


def put(log: SegmentLog, stream: str, count: int) -> None:
    for _ in range(count):
        log.append(log.stream(stream), wall_clock(), [b"plant/1"], [bytes(100)])
        commit_all(log)


def links_of(directory: Path, log: SegmentLog, *urls: str, streams: tuple[str, ...]) -> Links:
    links = {f"link-{at}": LinkConfig(to=(url,), retry_min_s=0.01, retry_max_s=0.05) for at, url in enumerate(urls)}
    config = EdgeConfig(
        node="edge-1",
        data_dir=str(directory),
        streams={name: Stream(from_=(f"{name}/+",)) for name in streams},
        links=links,
    )
    return Links(config, log, wall_clock=wall_clock)


async def completeness(hub: Any, stream: str) -> dict[str, Any]:
    status, answer = await get(hub, f"/v1/streams/{stream}/completeness")
    return answer["lanes"][0] if status == 200 and answer["lanes"] else {}


async def test_a_hub_names_every_loss_with_its_reason_and_then_the_log_forgets_it(tmp_path: Path) -> None:
    disk = FakeFileSystem()
    log = open_log(disk)
    numbers = {name: log.stream(name) for name in ("budget", "expired", "operator", "corruption")}
    put(log, "corruption", 3)
    batch = next(item for item in inspect_log(DIRECTORY, disk) if item.kind is EntryKind.BATCH)
    disk.flip(f"{DIRECTORY}/{batch.segment}", batch.offset + 60)
    log.read(numbers["corruption"], 0, 1)
    put(log, "operator", 5)
    log.drop_backlog(numbers["operator"], 0, 4)
    put(log, "expired", 2)
    log.set_policy(numbers["expired"], StreamPolicy(retain_s=100))
    log.set_policy(numbers["budget"], StreamPolicy(when_full="drop_oldest"))
    ahead[0] += 60 * SECOND
    log.committer.housekeep()  # seals
    ahead[0] += 60 * SECOND
    log.committer.housekeep()  # expires
    put(log, "expired", 2)
    put(log, "budget", 400)
    ends = {"corruption": 1, "operator": 4, "expired": 2}
    ends["budget"] = log.gaps(numbers["budget"])[0].end
    assert ends["budget"] > 100
    async with running_hub(MemoryStore()) as hub:
        links = links_of(tmp_path, log, hub.url, streams=tuple(numbers))
        links.start()

        async def all_named() -> bool:
            lanes = {name: await completeness(hub, name) for name in numbers}
            return all(
                lane and lane["complete_below_seq"] == log.next_seq(numbers[name]) for name, lane in lanes.items()
            )

        await until(all_named)
        for name, end in ends.items():
            lane = await completeness(hub, name)
            assert lane["gaps"] == [{"first": 0, "end": end, "reason": name}]
            assert lane["holes"] == []
        await until(lambda: not log._state.lanes[numbers["budget"]].released.missing(0, 400))
        # Hubs have the notices: with their segments they go.
        for end in range(430, 700, 30):
            put(log, "budget", 30)
            newest = (end - 30, end)
            await until(lambda: not log._state.lanes[numbers["budget"]].released.missing(*newest))
        assert not log.gaps(numbers["budget"])
        await links.close()
    log.close()


async def test_a_hub_takes_a_notice_that_says_up_to_how_many(tmp_path: Path) -> None:
    """Where the newest records stood the disk cannot be read: the stream continues far behind them."""
    disk = FakeFileSystem()
    log = open_log(disk)
    put(log, "telemetry", 3)
    disk.kill_process()
    disk.lose_blocks(f"{DIRECTORY}/{next(inspect_log(DIRECTORY, disk)).segment}", 0, 4096)
    log = open_log(disk)
    put(log, "telemetry", 2)
    stream = log.stream("telemetry")
    end = log.next_seq(stream)
    assert end > 65_536
    async with running_hub(MemoryStore()) as hub:
        links = links_of(tmp_path, log, hub.url, streams=("telemetry",))
        links.start()

        async def complete() -> bool:
            return (await completeness(hub, "telemetry")).get("complete_below_seq") == end

        await until(complete)
        assert (await completeness(hub, "telemetry"))["gaps"] == [{"first": 0, "end": end - 2, "reason": "corruption"}]
        await links.close()
    log.close()


async def test_a_hub_that_comes_later_is_told_what_is_gone(tmp_path: Path) -> None:
    disk = FakeFileSystem()
    log = open_log(disk)
    stream = log.stream("telemetry")
    for _ in range(30):
        put(log, "telemetry", 10)
        log.release(stream, RangeSet([(0, log.durable_end(stream))]))
    ((_, gone),) = log.snapshot(stream).gone
    async with running_hub(MemoryStore()) as hub:
        links = links_of(tmp_path, log, hub.url, streams=("telemetry",))
        links.start()

        async def complete() -> bool:
            return (await completeness(hub, "telemetry")).get("complete_below_seq") == 300

        await until(complete)
        assert (await completeness(hub, "telemetry"))["gaps"] == [{"first": 0, "end": gone, "reason": "absent"}]
        await links.close()
    log.close()


@pytest.mark.parametrize("offline_starts", [0, 2])
@pytest.mark.parametrize("new", [0, 1, 30])
async def test_numbers_that_a_damaged_log_gives_out_again_never_reach_the_hub(
    tmp_path: Path, new: int, offline_starts: int
) -> None:
    disk = FakeFileSystem()
    log = open_log(disk)
    put(log, "telemetry", 3)
    async with running_hub(MemoryStore()) as hub:
        links = links_of(tmp_path, log, hub.url, streams=("telemetry",))
        links.start()
        await until(lambda: links.statuses[0].records_acked == 3)
        await links.close()
        # A crash, and rot that takes the last commit with its mark.
        last = [item for item in inspect_log(DIRECTORY, disk) if item.kind is EntryKind.STREAMS][-1]
        disk.flip(f"{DIRECTORY}/{last.segment}", last.offset + 2)
        disk.kill_process()
        log = open_log(disk)
        assert log.next_seq(log.stream("telemetry")) == 2
        for _ in range(offline_starts):
            links_of(tmp_path, log, hub.url, streams=("telemetry",))
            put(log, "telemetry", new)
            disk.kill_process()
            log = open_log(disk)
        links = links_of(tmp_path, log, hub.url, streams=("telemetry",))
        put(log, "telemetry", new)
        links.start()
        await until(lambda: links.statuses[0].state is LinkState.CONFLICT)
        assert "gave it none beyond 2" in (links.statuses[0].last_error or "")
        await asyncio.sleep(0)
        assert (await completeness(hub, "telemetry"))["complete_below_seq"] == 3
        await links.close()
    log.close()
