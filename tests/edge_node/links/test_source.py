"""A wall clock that was not set: the node learns the time, tells hubs, and corrects its marks as they the records."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.live import get, running_hub
from tests.edge_node.links.test_links import config
from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import commit_all, open_log
from tests.support.waiting import PATIENCE_S, Patience, until
from weft.cloud_hub.hub import Hub
from weft.config.links import Link as LinkConfig
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.links import Links
from weft.edge_node.links.source import BootClocks
from weft.edge_node.node import poster
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.segment import BOOTS_MAX
from weft.storage.object_store.directory import MemoryStore
from weft.storage.segment_log import LogSettings, SegmentLog

SECOND = 1_000_000_000
TRUE = 1_700_000_000 * SECOND
YEARS = 14 * 365 * 86_400 * SECOND


class Machine:
    """Clocks of a machine that may not know the time."""

    def __init__(self) -> None:
        self.boot = 1
        self.monotonic = 5 * SECOND
        self.wall_error = 0
        self.state = ClockState.UNSYNCED

    @property
    def true(self) -> int:
        return TRUE + self.monotonic

    def wall(self) -> int:
        return self.true + self.wall_error

    def reading(self) -> ClockReading:
        return ClockReading(self.boot, self.monotonic, self.state)

    def clocks(self, disk: FakeFileSystem) -> BootClocks:
        """A process that begins when the one before has ended."""
        disk.kill_process()
        self.log = open_log(disk)
        return BootClocks(self.log, self.reading, self.wall, lambda: 77)


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


def reported(clocks: BootClocks) -> list[tuple[int, int]]:
    return [(notice.boot, notice.offset) for notice in clocks.notices()]


def test_two_answers_of_hubs_tell_the_time_once_in_a_boot(disk: FakeFileSystem) -> None:
    machine = Machine()
    machine.wall_error = -TRUE
    clocks = machine.clocks(disk)
    assert (reported(clocks), clocks.correction(), clocks.is_unknown) == ([], 0, True)
    clocks.note_time("a", machine.true + YEARS, error=10)
    clocks.note_time("a", machine.true + 5, error=10)
    assert reported(clocks) == [], "one of them is wrong, and nothing says which"
    clocks.note_time("b", machine.true + 3, error=10)
    assert not clocks.is_unknown
    machine.monotonic += SECOND
    for _ in range(3):
        clocks.note_time("a", machine.true + 60 * SECOND, error=1)  # a hub node that is off would step the clock
    assert reported(clocks) == [(1, TRUE + 3)]
    assert machine.wall() + clocks.correction() == machine.true + 3
    machine.wall_error = 55 * SECOND  # whatever people set it to
    assert machine.wall() + clocks.correction() == machine.true + 3
    commit_all(machine.log)
    assert reported(machine.clocks(disk)) == [(1, TRUE + 3)]


def test_a_time_source_tells_it_too(disk: FakeFileSystem) -> None:
    machine = Machine()
    machine.wall_error = -TRUE
    clocks = machine.clocks(disk)
    clocks.look()
    assert reported(clocks) == []
    machine.wall_error, machine.state = 0, ClockState.SYNCED
    clocks.look()
    assert reported(clocks) == [(1, TRUE)]
    assert clocks.notices()[0].error == 77
    assert clocks.correction() == 0
    machine.monotonic += SECOND
    clocks.look()
    assert reported(clocks) == [(1, TRUE)]


def test_a_clock_that_was_right_all_the_time_needs_no_notice(disk: FakeFileSystem) -> None:
    machine = Machine()
    machine.state = ClockState.SYNCED
    clocks = machine.clocks(disk)
    clocks.look()
    for _ in range(2):
        clocks.note_time("a", machine.true + 5, error=1)
    assert (reported(clocks), clocks.correction(), clocks.is_unknown) == ([], 0, False)
    assert clocks.is_synchronised


def test_a_wrong_time_is_corrected_by_two_later_answers_that_agree(disk: FakeFileSystem) -> None:
    machine = Machine()
    machine.wall_error = -TRUE
    clocks = machine.clocks(disk)
    for _ in range(2):
        clocks.note_time("a", machine.true + YEARS, error=10)
    machine.monotonic += SECOND
    clocks.note_time("b", machine.true, error=10)
    assert reported(clocks) == [(1, TRUE + YEARS)]
    clocks.note_time("b", machine.true, error=10)
    assert reported(clocks) == [(1, TRUE + YEARS)], "the other node said otherwise a second ago"
    machine.monotonic += 601 * SECOND
    clocks.note_time("b", machine.true, error=10)
    assert reported(clocks) == [(1, TRUE)]
    assert machine.wall() + clocks.correction() == machine.true
    commit_all(machine.log)
    assert reported(machine.clocks(disk)) == [(1, TRUE)]


def test_a_node_that_was_set_right_corrects_what_it_told(disk: FakeFileSystem) -> None:
    machine = Machine()
    clocks = machine.clocks(disk)
    for ahead in (YEARS, YEARS, 0, 0):
        clocks.note_time("a", machine.true + ahead, error=10)
    assert reported(clocks) == [(1, TRUE)]


def test_two_hubs_that_differ_do_not_step_the_clock_back_and_forth(disk: FakeFileSystem) -> None:
    machine = Machine()
    clocks = machine.clocks(disk)
    for _ in range(20):
        for hub, ahead in (("a", 0), ("b", YEARS)):
            machine.monotonic += 30 * SECOND
            clocks.note_time(hub, machine.true + ahead, error=10)
    assert reported(clocks) == [(1, TRUE)]


def test_earlier_boots_are_kept_within_bounds(disk: FakeFileSystem) -> None:
    machine = Machine()
    for boot in range(BOOTS_MAX + 3):
        machine.boot = boot
        clocks = machine.clocks(disk)
        for _ in range(2):
            clocks.note_time("a", machine.true, error=0)
        commit_all(machine.log)
    assert [boot for boot, _ in reported(machine.clocks(disk))] == list(range(3, BOOTS_MAX + 3))


@pytest.mark.parametrize("restarted", [False, True])
async def test_records_from_before_the_time_was_known_get_it_at_the_hub(tmp_path: Path, restarted: bool) -> None:
    """A machine boots in 1970, takes records in, and learns the time from its first link."""
    booted = time.monotonic_ns() - 100 * SECOND

    def monotonic() -> int:
        return time.monotonic_ns() - booted

    def reading() -> ClockReading:
        return ClockReading(9, monotonic(), ClockState.UNSYNCED)

    def wall() -> int:
        return monotonic()  # 1970

    loop = asyncio.get_running_loop()

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    async with running_hub(MemoryStore()) as hub:
        link = LinkConfig(to=(hub.url,), retry_min_s=0.01, retry_max_s=0.05)
        config = EdgeConfig(
            node="edge-1", data_dir=str(tmp_path), streams={"telemetry": Stream(from_=("a/+",))}, links={"cloud": link}
        )
        log = SegmentLog.open(
            str(tmp_path),
            LogSettings(segment_bytes=1 << 20),
            wall_clock=wall,
            clock_reading=reading,
            random_bits=random.getrandbits,
            post=post,
        )
        log.append(log.stream("telemetry"), wall(), [b"a/b"], [b"1"])
        await log.durable()
        if restarted:  # the process, not the machine
            await asyncio.to_thread(log.close)
            log = SegmentLog.open(
                str(tmp_path),
                LogSettings(segment_bytes=1 << 20),
                wall_clock=wall,
                clock_reading=reading,
                random_bits=random.getrandbits,
                post=post,
            )
        links = Links(config, log, wall_clock=wall, clock_reading=reading)
        links.start()

        async def read() -> list[dict[str, str]]:
            status, answer = await get(hub, "/v1/streams/telemetry/records")
            found: list[dict[str, str]] = answer["records"] if status == 200 else []
            return found

        async def has(count: int) -> bool:
            return len(await read()) == count

        async def is_complete() -> bool:
            # Until the time of the boot is known, the hub claims no more than the edge's own clock does: 1970.
            moment = (await get(hub, "/v1/streams/telemetry"))[1]["complete_up_to"]
            return moment is not None and not moment.startswith("1970-")

        try:
            await until(lambda: has(1))
            log.append(log.stream("telemetry"), wall(), [b"a/b"], [b"2"])
            await until(lambda: has(2))
            await until(is_complete)
            records = await read()
            moment = (await get(hub, "/v1/streams/telemetry"))[1]["complete_up_to"]
        finally:
            await links.close()
            await asyncio.to_thread(log.close)
    assert [record["clock"] for record in records] == ["corrected", "corrected"]
    assert all(record["edge_time"].startswith("1970-") for record in records)
    for record in records:
        assert abs(_seconds(record["time"]) - _seconds(record["received"])) < 30
    assert abs(_seconds(moment) - _seconds(records[0]["received"])) < 30


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text[:26] + "+00:00").timestamp()


# --- An edge whose clock is hours wrong, over a real log and a real hub: its rows get the right time, or say that
# they did not


HOUR = 3600 * 1_000_000_000


class UnsetClocksMachine:
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
    machine = UnsetClocksMachine(tmp_path, 7, behind)
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
    early, late = UnsetClocksMachine(tmp_path, 7, 5 * HOUR), UnsetClocksMachine(tmp_path, 8, 5 * HOUR)
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
    early, late = UnsetClocksMachine(tmp_path, 7, 5 * HOUR), UnsetClocksMachine(tmp_path, 8, 0)
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
    machine = UnsetClocksMachine(tmp_path, 7, 5 * HOUR)
    async with running_hub(MemoryStore()) as hub:
        async with machine.running() as (log, _):
            true = await machine.take(log, b"before the time source")
        machine.is_synced = True
        async with machine.running(hub):
            found = await rows(hub, 1)
    assert_right(found["before the time source"], true, 1_000_000)


async def test_a_clock_that_was_always_set_costs_nothing(tmp_path: Path) -> None:
    machine = UnsetClocksMachine(tmp_path, 7, 0)
    machine.is_synced = True
    async with running_hub(MemoryStore()) as hub, machine.running(hub) as (log, _):
        await machine.take(log, b"one")
        assert (await rows(hub, 1))["one"]["clock"] == "synced"
        assert log.clocks() == []
