"""Links over a real segment log and a real hub socket: epochs, what the log may forget, memory and disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cloud_hub.live import get, running_hub
from tests.replication.loopback import Hub
from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY, commit_all
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.settings import SequencerSettings
from weft.config.functions.settings import Payload
from weft.config.links import Link as LinkConfig
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.high_watermarks import HubHighWatermarks
from weft.edge_node.links.links import Links, epoch_file, link_settings
from weft.edge_node.links.source import OfferedStream, SegmentLogSource
from weft.edge_node.pair.second_disk import PairSource, SecondDisk
from weft.protocols.batch import Buffer, ClockReading, ClockState, decode_header
from weft.protocols.chunk_index import GapRange, LaneFlag
from weft.protocols.lane import NodeName
from weft.protocols.link import RefuseCode
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import EntryKind, GapReason
from weft.replication.events import LinkState
from weft.replication.runner import LinkRefused
from weft.replication.source import Epochs, intersection
from weft.storage.filesystem import File, OSFileSystem
from weft.storage.object_store import StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.segment_log import LogSettings, SegmentLog, StreamPolicy
from weft.storage.segment_log.scan import inspect_log

NAME = NodeName("default", "edge-1")
ticks = itertools.count(1_700_000_000_000_000_000, 1000)


def wall_clock() -> int:
    return next(ticks)


def open_log(directory: Path, *, tail_bytes: int = 1 << 20, start_writer: bool = True) -> SegmentLog:
    loop = asyncio.get_running_loop()

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    return SegmentLog.open(
        str(directory),
        LogSettings(segment_bytes=1 << 20, tail_bytes=tail_bytes),
        wall_clock=wall_clock,
        clock_reading=lambda: ClockReading(1, next(ticks), ClockState.SYNCED),
        random_bits=random.getrandbits,
        post=post,
        start_writer=start_writer,
    )


async def append(log: SegmentLog, stream: str, count: int) -> None:
    durable = asyncio.get_running_loop().create_future()
    log.append(log.stream(stream), wall_clock(), [b"plant/1"] * count, [b"%d" % i for i in range(count)])
    log.on_durable(durable.set_result)
    assert await durable is None


def config(directory: Path, **links: LinkConfig) -> EdgeConfig:
    streams = {name: Stream(from_=(f"{name}/+",)) for name in ("telemetry", "alarms")}
    return EdgeConfig(node="edge-1", data_dir=str(directory), streams=streams, links=links)


def link_to(hub: Hub, streams: tuple[str, ...] | None = None) -> LinkConfig:
    return LinkConfig(to=(hub.url,), streams=streams, retry_min_s=0.01, retry_max_s=0.05)


def source_of(log: SegmentLog, directory: Path, clock: Callable[[], int] = wall_clock) -> SegmentLogSource:
    watermarks = HubHighWatermarks(
        OSFileSystem(), str(directory / "links" / "known-ends"), log.log_id, log.recovery.lanes, name=NAME
    )
    return SegmentLogSource(log, {"telemetry": OfferedStream(("a/+",))}, lambda _lane, _ranges: None, clock, watermarks)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    hub = Hub()
    await hub.start()
    yield hub
    await hub.stop()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SegmentLog]:
    log = open_log(tmp_path)
    yield log
    await asyncio.to_thread(log.close)


@pytest.fixture
def released(log: SegmentLog, monkeypatch: pytest.MonkeyPatch) -> dict[int, RangeSet]:
    """What the log may forget, by its links."""
    reported: dict[int, RangeSet] = {}
    release = log.release

    def spy(stream: int, ranges: RangeSet) -> None:
        reported.setdefault(stream, RangeSet()).update(ranges)
        release(stream, ranges)

    monkeypatch.setattr(log, "release", spy)
    return reported


async def one_run(directory: Path, hub: Hub) -> None:
    """A node's life: start, take records in, drain, stop."""
    log = open_log(directory)
    links = Links(config(directory, cloud=link_to(hub)), log, wall_clock=wall_clock)
    links.start()
    await append(log, "telemetry", 50)
    await append(log, "alarms", 3)
    ends = {log.stream(name): log.next_seq(log.stream(name)) for name in ("telemetry", "alarms")}
    await until(lambda: all(hub.held.get(stream, RangeSet()).covers(0, end) for stream, end in ends.items()))
    await until(lambda: links.statuses[0].pending_records == 0)
    await links.close()
    assert links.statuses[0].state is LinkState.STOPPED
    await asyncio.to_thread(log.close)


async def test_everything_reaches_the_hub_once_across_a_restart_of_the_node(tmp_path: Path, hub: Hub) -> None:
    await one_run(tmp_path, hub)
    await one_run(tmp_path, hub)
    assert set(hub.stored.values()) == {1}
    assert len(hub.stored) == 106
    assert {opening.epoch for opening in hub.openings} == {1, 2}
    assert hub.openings[0].topics == ["telemetry/+"]


async def test_a_hub_is_told_what_the_payloads_are(tmp_path: Path, hub: Hub, log: SegmentLog) -> None:
    given = config(tmp_path, cloud=link_to(hub))
    streams = {**given.streams, "telemetry": Stream(from_=("telemetry/+",), payload=Payload(format="json"))}
    links = Links(msgspec.structs.replace(given, streams=streams), log, wall_clock=wall_clock)
    links.start()
    await until(lambda: len(hub.openings) == 2)
    await links.close()
    reported = {lane.stream: lane.payload for lane in hub.openings}
    assert reported == {"telemetry": PayloadKind.JSON, "alarms": PayloadKind.BYTES}


async def test_a_record_may_go_when_every_link_that_carries_it_has_it(
    tmp_path: Path, log: SegmentLog, hub: Hub, released: dict[int, RangeSet]
) -> None:
    second = Hub()
    await second.start()
    second.may_take.clear()
    links = Links(
        config(tmp_path, cloud=link_to(hub), plant=link_to(second, ("telemetry",))), log, wall_clock=wall_clock
    )
    telemetry, alarms = log.stream("telemetry"), log.stream("alarms")
    links.start()
    await append(log, "telemetry", 5)
    await append(log, "alarms", 2)
    await until(lambda: released.get(alarms) == RangeSet([(0, 2)]))
    await until(lambda: links.statuses[0].records_acked >= 7)
    assert telemetry not in released
    second.may_take.set()
    await until(lambda: released.get(telemetry) == RangeSet([(0, 5)]))
    await links.close()
    await second.stop()


async def test_a_refused_copy_of_a_log_never_counts_its_way_to_a_higher_epoch(
    tmp_path: Path, log: SegmentLog, hub: Hub
) -> None:
    hub.refusal = LinkRefused(RefuseCode.IDENTITY_CONFLICT, "linked from elsewhere", "use a new data_dir")
    for _ in range(3):
        links = Links(config(tmp_path, cloud=link_to(hub)), log, wall_clock=wall_clock)
        status = links.statuses[0]
        links.start()
        async with asyncio.timeout(PATIENCE_S):
            while status.state is not LinkState.CONFLICT:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await links.close()
    assert epoch_file(OSFileSystem(), str(tmp_path / "links" / "epoch")).propose() == 1


async def test_numbers_of_an_earlier_name_are_told_as_renamed_and_never_sent(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    await append(log, "telemetry", 7)
    await asyncio.to_thread(log.close)
    log = open_log(tmp_path, start_writer=False)
    log.rename(NodeName("default", "edge-1"), from_now_on=True)
    log.close()
    log = open_log(tmp_path)
    released: dict[int, RangeSet] = {}
    monkeypatch.setattr(log, "release", lambda stream, ranges: released.setdefault(stream, RangeSet()).update(ranges))
    links = Links(config(tmp_path, cloud=link_to(hub)), log, wall_clock=wall_clock)
    telemetry = log.stream("telemetry")
    assert links.waiting() == {("cloud", "telemetry"): (0, 7)}
    links.start()
    await append(log, "telemetry", 3)
    # The log may forget the old ones too: their own hub has them under the earlier name.
    await until(lambda: released.get(telemetry) == RangeSet([(0, 10)]))
    assert sorted(hub.stored) == [(telemetry, 7), (telemetry, 8), (telemetry, 9)]
    assert [gap for lane, gap in hub.gaps if lane == telemetry] == [GapRange(0, 7, GapReason.RENAMED)]
    offered = [first for lane in hub.openings for first, _ in lane.ranges]
    assert not offered or min(offered) >= 7
    assert links.waiting() == {}
    assert not links.is_unsent
    await links.close()
    await asyncio.to_thread(log.close)


async def test_records_that_memory_no_longer_holds_are_read_from_the_disk(tmp_path: Path, hub: Hub) -> None:
    log = open_log(tmp_path, tail_bytes=0)
    for _ in range(5):
        await append(log, "telemetry", 20)
    source = source_of(log, tmp_path)
    (lane,) = source.lanes()
    batches = await source.read(lane.lane, 30, 1 << 20)
    header = decode_header(batches[0])
    assert header.base_seq <= 30 < header.end_seq
    assert decode_header(batches[-1]).end_seq == 100
    await asyncio.to_thread(log.close)


async def test_a_link_looks_only_at_the_streams_that_a_commit_touched(tmp_path: Path, log: SegmentLog) -> None:
    source = source_of(log, tmp_path)
    reports: list[Collection[int] | None] = []
    end = source.listen(reports.append)
    await append(log, "alarms", 3)
    await append(log, "telemetry", 1)
    await until(lambda: len(reports) == 2)
    assert reports == [{log.stream("alarms")}, {log.stream("telemetry")}]
    end()
    await append(log, "alarms", 1)
    assert len(reports) == 2


async def test_a_mark_covers_no_record_that_comes_in_the_same_instant(tmp_path: Path, log: SegmentLog) -> None:
    log.stream("telemetry")
    source = source_of(log, tmp_path, lambda: 5000)
    lane = source.lanes()[0].lane
    mark = source.states([lane])[lane].mark
    assert mark is not None
    assert mark.time < 5000


def test_epochs_rise_across_restarts(tmp_path: Path) -> None:
    path = str(tmp_path / "links" / "cloud.epoch")
    assert [epoch_file(OSFileSystem(), path).propose() for _ in range(3)] == [1, 2, 3]
    epochs = epoch_file(OSFileSystem(), path)
    epochs.withdraw(3)
    assert epochs.propose() == 3
    epochs.withdraw(2)
    assert epochs.propose() == 4


def test_refused_links_that_take_turns_never_count_up() -> None:
    stored = [b"7\n"]

    def write(data: bytes) -> None:
        stored[0] = data

    epochs = Epochs("here", lambda: stored[0], write)
    for _ in range(5):
        first, second = epochs.propose(), epochs.propose()
        assert (first, second) == (8, 9)
        epochs.withdraw(first)
        epochs.withdraw(second)
    assert stored[0] == b"7\n"
    standing, refused = epochs.propose(), epochs.propose()
    epochs.withdraw(refused)
    assert epochs.propose() == standing + 1


async def test_a_link_under_another_name_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    async with running_hub(MemoryStore()) as hub:
        for name in ("cloud", "cloud", "cloud", "renamed"):
            links = Links(config(tmp_path, **{name: LinkConfig(to=(hub.url,))}), log, wall_clock=wall_clock)
            links.start()
            await append(log, "telemetry", 10)
            await until(lambda: links.statuses[0].records_acked == 10)
            assert links.statuses[0].state is LinkState.CONNECTED
            await links.close()
    await asyncio.to_thread(log.close)


async def test_an_edge_leaves_a_hub_node_that_cannot_write(tmp_path: Path, log: SegmentLog) -> None:
    """Two nodes over one store; the credentials of the first are withdrawn, for writing only."""

    class Sick(MemoryStore):
        def __init__(self, inner: MemoryStore) -> None:
            self.__dict__ = inner.__dict__
            self.is_sick = False

        async def create(self, key: str, data: Buffer) -> str:
            if self.is_sick:
                raise StoreError("403 ExpiredToken")
            return await super().create(key, data)

    store = MemoryStore()
    sick = Sick(store)
    settings = SequencerSettings(unavailable_after_s=0.3)
    async with running_hub(sick, sequencer=settings) as first, running_hub(store) as second:
        both = LinkConfig(to=(first.url, second.url), retry_min_s=0.05, retry_max_s=0.1)
        links = Links(config(tmp_path, cloud=both), log, wall_clock=wall_clock)
        links.start()
        status = links.statuses[0]
        await append(log, "telemetry", 10)
        await until(lambda: status.records_acked == 10)
        assert status.url == first.url
        sick.is_sick = True
        await append(log, "telemetry", 10)
        await until(lambda: status.records_acked == 20, 10)
        assert status.url == second.url
        assert "cannot use its store" in status.last_error
        assert "other nodes" in status.last_error
        await links.close()
        sick.is_sick = False


def test_an_epoch_file_that_holds_no_number_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cloud.epoch"
    path.write_text("seven\n")
    with pytest.raises(ValueError, match=r"cloud\.epoch holds no epoch"):
        epoch_file(OSFileSystem(), str(path)).propose()


def test_intersection() -> None:
    assert intersection([(0, 4), (6, 9)], RangeSet([(2, 7)])) == RangeSet([(2, 4), (6, 7)])


def test_settings_come_from_the_configuration(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    link = LinkConfig(to=("https://hub",), token_file=str(token), retry_max_s=7, window_bytes=1 << 20)
    settings = link_settings(link)
    assert settings.urls == ("https://hub",)
    assert settings.token() == "secret"
    assert settings.retry_max_s == 7
    assert settings.sender.window_bytes == 1 << 20
    assert link_settings(msgspec.structs.replace(link, token_file=None)).token() is None
    token.write_text("two tokens\n")
    with pytest.raises(ValueError, match="one token on one line"):
        settings.token()
    os.remove(token)
    with pytest.raises(OSError, match="token"):
        settings.token()


async def test_the_nodes_own_streams_never_leave_it(tmp_path: Path, log: SegmentLog, hub: Hub) -> None:
    own = ("weft-sessions", "weft-sessions-topics", "unrouted")
    for stream in (*own, "telemetry"):
        await append(log, stream, 3)
    every = config(tmp_path, main=link_to(hub, (*own, "telemetry")))
    links = Links(every, log, wall_clock=wall_clock)
    links.start()
    await until(lambda: links.statuses[0].state is LinkState.CONNECTED)
    await links.close()
    assert {lane.stream for lane in hub.openings} == {"telemetry"}


# --- Losses travel: a real hub names whatever an edge's log gave up or lost, with its reason, and then the log
# forgets


SETTINGS = LogSettings(segment_bytes=4096, budget_bytes=8 * 4096, tail_bytes=0)
SECOND = 10**9
ahead = [0]


def links_gaps_wall_clock() -> int:
    return next(ticks) + ahead[0]


def links_gaps_open_log(disk: FakeFileSystem) -> SegmentLog:
    return SegmentLog.open(
        DIRECTORY,
        SETTINGS,
        filesystem=disk,
        wall_clock=links_gaps_wall_clock,
        clock_reading=lambda: ClockReading(1, next(ticks), ClockState.SYNCED),
        random_bits=lambda bits: 0xABC,
        post=lambda deliver: deliver(),
        start_writer=False,
    )


def put(log: SegmentLog, stream: str, count: int) -> None:
    for _ in range(count):
        log.append(log.stream(stream), links_gaps_wall_clock(), [b"plant/1"], [bytes(100)])
        commit_all(log)


def links_of(directory: Path, log: SegmentLog, *urls: str, streams: tuple[str, ...]) -> Links:
    links = {f"link-{at}": LinkConfig(to=(url,), retry_min_s=0.01, retry_max_s=0.05) for at, url in enumerate(urls)}
    config = EdgeConfig(
        node="edge-1",
        data_dir=str(directory),
        streams={name: Stream(from_=(f"{name}/+",)) for name in streams},
        links=links,
    )
    return Links(config, log, wall_clock=links_gaps_wall_clock)


async def completeness(hub: Any, stream: str) -> dict[str, Any]:
    status, answer = await get(hub, f"/v1/streams/{stream}/completeness")
    return answer["lanes"][0] if status == 200 and answer["lanes"] else {}


async def test_a_hub_names_every_loss_with_its_reason_and_then_the_log_forgets_it(tmp_path: Path) -> None:
    disk = FakeFileSystem()
    log = links_gaps_open_log(disk)
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
    log = links_gaps_open_log(disk)
    put(log, "telemetry", 3)
    disk.kill_process()
    disk.lose_blocks(f"{DIRECTORY}/{next(inspect_log(DIRECTORY, disk)).segment}", 0, 4096)
    log = links_gaps_open_log(disk)
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
    log = links_gaps_open_log(disk)
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
    log = links_gaps_open_log(disk)
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
        log = links_gaps_open_log(disk)
        assert log.next_seq(log.stream("telemetry")) == 2
        for _ in range(offline_starts):
            links_of(tmp_path, log, hub.url, streams=("telemetry",))
            put(log, "telemetry", new)
            disk.kill_process()
            log = links_gaps_open_log(disk)
        links = links_of(tmp_path, log, hub.url, streams=("telemetry",))
        put(log, "telemetry", new)
        links.start()
        await until(lambda: links.statuses[0].state is LinkState.CONFLICT)
        assert "gave it none beyond 2" in (links.statuses[0].last_error or "")
        await asyncio.sleep(0)
        assert (await completeness(hub, "telemetry"))["complete_below_seq"] == 3
        await links.close()
    log.close()


# --- Links notice a log that has forgotten what hubs hold, and stop for no other


NOBODY = LinkConfig(to=("http://127.0.0.1:9",), retry_min_s=0.01, retry_max_s=0.05)


@pytest.fixture
async def links_restored_hub() -> AsyncIterator[Hub]:
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
    tmp_path: Path, links_restored_hub: Hub, offline_lives: int
) -> None:
    directory, copy = tmp_path / "node", tmp_path / "copy"
    async with Life(directory, cloud=link_to(links_restored_hub)) as life:
        await life.append(50)
        await life.until_at(links_restored_hub, 50)
        shutil.copytree(directory, copy)
        await life.append(50)
        await life.until_at(links_restored_hub, 100)
    put_back(copy, directory)
    for _ in range(offline_lives):
        await offline(directory, 80)
    async with Life(directory, cloud=link_to(links_restored_hub)) as life:
        await life.append(80)
        await until(lambda: life.state() is LinkState.CONFLICT)
        reported = life.links.statuses[0].last_error
        assert "stream telemetry up to seq 100, but this log gave it none beyond 50" in reported
        assert "restored from an old copy" in reported
        assert "start with an empty one, which gets a new log id" in reported
        # Counted at the next look: the conflict may be noticed before the log's news of the 80 is.
        await until(lambda: life.links.statuses[0].pending_records == 50 + 80 * (offline_lives + 1))
    assert links_restored_hub.held[life.telemetry] == RangeSet([(0, 100)])


# --- What a peer has of the log, and may bring to the hub


async def give_to_peer(life: Life) -> PairSource:
    second = SecondDisk(life.log, 2.0, None, wall_clock=wall_clock, answered=lambda: None)
    second.follow([life.telemetry])
    source = PairSource(second, {"telemetry": OfferedStream(("t/#",))}, life.links)
    await source.follow_hubs()
    await source.prepare_to_send("a peer", {life.telemetry: life.log.next_seq(life.telemetry)})
    return source


async def test_a_peer_hides_no_restored_old_copy_from_its_hub(tmp_path: Path, links_restored_hub: Hub) -> None:
    directory, copy = tmp_path / "node", tmp_path / "copy"
    async with Life(directory, cloud=link_to(links_restored_hub)) as life:
        await life.append(50)
        await life.until_at(links_restored_hub, 50)
        await until(lambda: life.links.compared_hubs is not None)
        await give_to_peer(life)
        shutil.copytree(directory, copy)
        await life.append(50)
        await life.until_at(links_restored_hub, 100)
    put_back(copy, directory)
    for _ in range(2):
        async with Life(directory, cloud=NOBODY) as life:
            await life.append(80)
            source = await give_to_peer(life)
            assert source.lanes()[0].flags == LaneFlag.UNCOMPARED, "the peer brings it to no hub by itself"
            assert source.high_watermark("a peer", life.telemetry) == life.log.next_seq(life.telemetry)
    async with Life(directory, cloud=link_to(links_restored_hub)) as life:
        await until(lambda: life.state() is LinkState.CONFLICT)
        assert "up to seq 100, but this log gave it none beyond 50" in life.links.statuses[0].last_error


async def test_a_hub_may_have_from_the_peer_what_the_node_gave_it(tmp_path: Path, links_restored_hub: Hub) -> None:
    directory = tmp_path / "node"
    async with Life(directory, cloud=link_to(links_restored_hub)) as life:
        await life.append(50)
        await life.until_at(links_restored_hub, 50)
        await links_restored_hub.stop()
        await life.append(50)
        source = await give_to_peer(life)
        assert source.lanes()[0].flags == 0
        links_restored_hub.held[life.telemetry] = RangeSet([(0, 100)])
        await links_restored_hub.start()
        await until(lambda: life.state() is LinkState.CONNECTED)
    async with Life(directory, cloud=link_to(links_restored_hub)) as life:
        await until(lambda: life.state() is LinkState.CONNECTED)
        await until(lambda: not life.links.statuses[0].pending_records)


async def test_a_peer_keeps_what_the_node_lost_and_forgets_what_it_dropped_or_hubs_have(tmp_path: Path) -> None:
    async with Life(tmp_path / "node", cloud=NOBODY) as life:
        for _ in range(40):
            await life.append(1)
        source = await give_to_peer(life)
        life.log.drop_backlog(life.telemetry, 10, 12)
        life.log.release(life.telemetry, RangeSet([(0, 5)]))
        await life.log.durable()
        state = source.states([life.telemetry])[life.telemetry]
        assert sorted(state.gaps, key=lambda gap: gap.first) == [
            GapRange(0, 5, GapReason.ABSENT),
            GapRange(10, 12, GapReason.ABSENT),
        ]
        assert list(state.held) == [(5, 10), (12, 40)]


async def test_a_peer_forgets_what_hubs_had_before_the_start_and_the_log_has_no_more(
    tmp_path: Path, links_restored_hub: Hub
) -> None:
    disk = FakeFileSystem()
    log = links_gaps_open_log(disk)
    for _ in range(30):
        put(log, "telemetry", 10)
        log.release(1, RangeSet([(0, log.durable_end(1))]))
    ((_, gone),) = log.snapshot(1).gone
    disk.kill_process()
    log = links_gaps_open_log(disk)
    links_restored_hub.held[1] = RangeSet([(0, 5), (7, 300)])
    links = links_of(tmp_path, log, links_restored_hub.url, streams=("telemetry",))
    links.start()
    await until(lambda: links.compared_hubs is not None)
    second = SecondDisk(log, 2.0, None, wall_clock=wall_clock, answered=lambda: None)
    second.follow([1])
    told = PairSource(second, {"telemetry": OfferedStream(("t/#",))}, links).states([1])[1].gaps
    assert [gap for gap in told if gap.end <= gone] == [GapRange(0, 5, GapReason.ABSENT)]
    assert [(gap.first, gap.end) for gap in told if gap.end > gone] == [(7, 300)]
    await links.close()
    log.close()


async def test_a_hub_that_lags_does_not_hide_what_another_hub_holds(tmp_path: Path, links_restored_hub: Hub) -> None:
    directory, copy = tmp_path / "node", tmp_path / "copy"
    async with running("laggard") as laggard:
        async with Life(directory, a=link_to(laggard), b=link_to(links_restored_hub)) as life:
            await life.append(50)
            await life.until_at(links_restored_hub, 50)
            await life.until_at(laggard, 50)
            shutil.copytree(directory, copy)
            await laggard.stop()
            await life.append(50)
            await life.until_at(links_restored_hub, 100)
        put_back(copy, directory)
        await laggard.start()
        await offline(directory, 80)
        async with Life(directory, a=link_to(laggard)) as life:
            await life.until_at(laggard, 130)
        async with Life(directory, a=link_to(laggard), b=link_to(links_restored_hub)) as life:
            await until(lambda: life.state(1) is LinkState.CONFLICT)
            await until(lambda: life.state(0) is LinkState.CONNECTED)


async def test_two_links_to_one_hub_know_of_each_other(tmp_path: Path, links_restored_hub: Hub) -> None:
    async with Life(tmp_path, a=link_to(links_restored_hub, ("telemetry",)), b=NOBODY) as life:
        await life.append(50)
        await life.until_at(links_restored_hub, 50)
    async with Life(tmp_path, a=NOBODY, b=link_to(links_restored_hub)) as life:
        await until(lambda: life.links.statuses[1].pending_records == 0 and life.state(1) is LinkState.CONNECTED)
        await life.append(5)
        await life.until_at(links_restored_hub, 55)


async def test_a_hub_that_was_given_only_gaps_is_no_conflict_when_the_link_comes_back(
    tmp_path: Path, links_restored_hub: Hub
) -> None:
    async with Life(tmp_path, cloud=NOBODY) as life:
        await life.append(50)
        life.log.set_policy(life.telemetry, StreamPolicy())
        life.log.drop_backlog(life.telemetry)
        await append(life.log, "alarms", 1)
        assert not life.log.ranges(life.telemetry)
    for _ in range(2):
        async with Life(tmp_path, cloud=link_to(links_restored_hub)) as life:
            for _ in range(2):
                await life.until_at(links_restored_hub, 50)
                await links_restored_hub.stop()
                await until(lambda: life.state() is not LinkState.CONNECTED)
                await links_restored_hub.start()
                await until(lambda: life.state() is LinkState.CONNECTED)
    assert {lane for lane, _ in links_restored_hub.stored} == {life.log.stream("alarms")}


class FullDisk(OSFileSystem):
    """No new file can be made for the high watermarks; the epochs find room."""

    full = True

    def create(self, path: str) -> File:
        if self.full and "known-ends" in path:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return super().create(path)


async def test_a_full_disk_keeps_records_from_being_given_and_nothing_else(
    tmp_path: Path, links_restored_hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "weft.edge_node.links.high_watermarks")
    disk = FullDisk()
    async with Life(tmp_path, disk, cloud=link_to(links_restored_hub)) as life:
        (record,) = [record for record in caplog.records if record.name == "weft.edge_node.links.high_watermarks"]
        assert "known-ends cannot be written" in record.getMessage()
        await life.append(50)
        await until(lambda: "no space left" in life.links.statuses[0].last_error)
        assert not links_restored_hub.stored
        disk.full = False
        await life.until_at(links_restored_hub, 50)
    assert set(links_restored_hub.stored.values()) == {1}
