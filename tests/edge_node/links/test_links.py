"""Links over a real segment log and a real hub socket: epochs, what the log may forget, memory and disk."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

import msgspec
import pytest

from tests.cloud_hub.live import running_hub
from tests.replication.loopback import Hub
from tests.support.waiting import PATIENCE_S, until
from weft.cloud_hub.settings import SequencerSettings
from weft.config.functions.settings import Payload
from weft.config.links import Link as LinkConfig
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.high_watermarks import HubHighWatermarks
from weft.edge_node.links.links import Links, epoch_file, link_settings
from weft.edge_node.links.source import OfferedStream, SegmentLogSource
from weft.protocols.batch import Buffer, ClockReading, ClockState, decode_header
from weft.protocols.chunk_index import GapRange
from weft.protocols.lane import NodeName
from weft.protocols.link import RefuseCode
from weft.protocols.payloads import PayloadKind
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.replication.events import LinkState
from weft.replication.runner import LinkRefused
from weft.replication.source import Epochs, intersection
from weft.storage.filesystem import OSFileSystem
from weft.storage.object_store import StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.segment_log import LogSettings, SegmentLog

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
