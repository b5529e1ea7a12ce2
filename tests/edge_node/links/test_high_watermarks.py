"""What hubs may hold at the most, over the lives of a node, on a disk that fails and forgets."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cloud_hub.live import running_hub
from tests.edge_node.links.test_links import append, config, open_log, wall_clock
from tests.storage.fakes import MUTATING_CALLS, FakeFileSystem, injected, no_failure
from tests.support.waiting import until
from weft.cli import cli
from weft.config.links import Link as LinkConfig
from weft.edge_node.control.client import ask_acknowledge
from weft.edge_node.control.server import Control
from weft.edge_node.links.high_watermarks import FILE_BYTES_MAX, HUBS_MAX, AcknowledgedFile, HubHighWatermarks
from weft.edge_node.links.links import Links
from weft.protocols.lane import NodeName
from weft.protocols.ranges import RangeSet
from weft.storage.filesystem import OSFileSystem
from weft.storage.object_store.directory import DirectoryStore
from weft.storage.segment_log import SegmentLog

NAME = NodeName("default", "edge-1")
PATH = "/node/links/known-ends"
HUB, OTHER = "00ff", "11ee"


def opened(disk: FakeFileSystem, log_id: int = 7, /, name: NodeName = NAME, **ends: int) -> HubHighWatermarks:
    """A life of the node begins: its log ends so."""
    return HubHighWatermarks(disk, PATH, log_id, ends, name=name)


def give(watermarks: HubHighWatermarks, hub: str, **ends: int) -> None:
    if watermarks.blocks(hub, ends):
        watermarks.record_passed(hub, ends)
    watermarks.raise_to(hub, ends)


@pytest.fixture
def disk() -> FakeFileSystem:
    return FakeFileSystem()


def test_what_was_appended_while_nobody_was_connected_moves_no_high_watermark(disk: FakeFileSystem) -> None:
    give(opened(disk, telemetry=0), HUB, telemetry=50)
    for end in (50, 90, 130):
        assert opened(disk, telemetry=end).get(HUB, "telemetry") == 50


def test_what_a_hub_was_given_is_known_at_once_and_in_the_next_life(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, telemetry=50)
    give(watermarks, HUB, telemetry=70)
    assert watermarks.get(HUB, "telemetry") == 70
    assert opened(disk, telemetry=80).get(HUB, "telemetry") == 80


def test_each_hub_has_high_watermarks_of_its_own(disk: FakeFileSystem) -> None:
    """What a hub that lags is given says nothing of the hub that holds what the log has forgotten."""
    watermarks = opened(disk, telemetry=50)
    give(watermarks, HUB, telemetry=60)
    give(watermarks, OTHER, telemetry=60)
    watermarks = opened(disk, telemetry=60)
    watermarks = opened(disk, telemetry=130)
    give(watermarks, HUB, telemetry=130)
    assert watermarks.get(OTHER, "telemetry") == 60
    watermarks = opened(disk, telemetry=140)
    assert [watermarks.get(hub, "telemetry") for hub in (HUB, OTHER, "never met")] == [140, 60, 50]


def test_a_log_that_lost_its_last_commit_lowers_the_high_watermarks_for_good(disk: FakeFileSystem) -> None:
    opened(disk, telemetry=100)
    opened(disk, telemetry=98)
    assert opened(disk, telemetry=148).get(HUB, "telemetry") == 98
    opened(disk)
    assert opened(disk, telemetry=60).get(HUB, "telemetry") == 0


def test_to_name_what_a_hub_holds_passes_nothing(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, telemetry=50)
    disk.calls.clear()
    give(watermarks, HUB, telemetry=50)
    assert not disk.calls
    assert opened(disk, telemetry=90).get(HUB, "telemetry") == 50


def test_all_streams_of_a_connection_are_passed_with_one_write(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, alarms=3, telemetry=50)
    give(watermarks, HUB, alarms=3, telemetry=51)
    disk.calls.clear()
    give(watermarks, HUB, alarms=9, telemetry=99)
    assert not disk.calls
    again = opened(disk, alarms=9, telemetry=99)
    assert again.get(HUB, "alarms") == 9


def test_a_stream_that_was_declared_later_begins_with_nothing(disk: FakeFileSystem) -> None:
    give(opened(disk, telemetry=0), HUB, telemetry=5)
    opened(disk, telemetry=5)
    watermarks = opened(disk, telemetry=5, alarms=20)
    assert watermarks.get(HUB, "alarms") == 0
    give(watermarks, HUB, telemetry=5, alarms=20)
    assert opened(disk, telemetry=5, alarms=20).get(HUB, "alarms") == 20


def test_the_file_of_another_log_is_replaced(disk: FakeFileSystem) -> None:
    opened(disk, 7, telemetry=50)
    assert opened(disk, 8, telemetry=2).get(HUB, "telemetry") == 2
    assert opened(disk, 8, telemetry=9).get(HUB, "telemetry") == 2


def test_nothing_is_given_past_a_high_watermark_that_blocks(disk: FakeFileSystem) -> None:
    with pytest.raises(ValueError, match="block"):
        opened(disk, telemetry=5).raise_to(HUB, {"telemetry": 6})


def test_nothing_is_passed_after_the_links_were_closed(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, telemetry=5)
    watermarks.close()
    with pytest.raises(OSError, match="closed"):
        give(watermarks, HUB, telemetry=6)
    assert opened(disk, telemetry=9).get(HUB, "telemetry") == 5


def test_what_a_killed_start_left_in_memory_is_durable_after_the_next() -> None:
    for seed in range(40):
        disk = FakeFileSystem()
        give(opened(disk, telemetry=0), HUB, telemetry=50)
        disk.fail = lambda call, path: injected(errno.EIO) if call == "sync_directory" else None
        opened(disk, telemetry=50)
        disk.kill_process()
        opened(disk, telemetry=50)
        assert opened(disk.power_cut(random.Random(seed)), telemetry=90).get(HUB, "telemetry") == 50


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def unusable() -> Iterator[object]:
    disk = FakeFileSystem()
    give(opened(disk, telemetry=5), HUB, telemetry=6)
    whole = bytes(disk.content(PATH))
    yield pytest.param(b"", id="empty")
    for at in range(0, len(whole) - 1, 7):
        yield pytest.param(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], id=f"a bit of byte {at}")
        if at:
            yield pytest.param(whole[:at], id=f"{at} bytes")
    yield pytest.param(bytes(FILE_BYTES_MAX + 1), id="too long")


@pytest.mark.parametrize("content", list(unusable()))
def test_a_damaged_file_is_told_and_begun_anew(
    disk: FakeFileSystem, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk.make_directory("/node/links")
    disk.create(PATH).write_at(0, content)
    assert opened(disk, telemetry=90).get(HUB, "telemetry") == 90
    (reported,) = warnings(caplog)
    assert f"{PATH} cannot be used" in reported
    assert opened(disk, telemetry=99).get(HUB, "telemetry") == 90
    assert len(warnings(caplog)) == 1


def test_a_file_that_cannot_be_read_is_told_and_begun_anew(
    disk: FakeFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    opened(disk, telemetry=5)
    disk.fail = lambda call, path: injected(errno.EIO) if call == "read" else None
    assert opened(disk, telemetry=90).get(HUB, "telemetry") == 90
    (reported,) = warnings(caplog)
    assert "cannot be used" in reported


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("failing", ["create", "write_at", "sync", "rename", "sync_directory"])
def test_a_disk_that_takes_nothing_keeps_no_node_from_starting_but_records_from_being_given(
    disk: FakeFileSystem, failing: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    give(opened(disk, telemetry=0), HUB, telemetry=50)
    disk.fail = lambda call, path: injected(number) if call == failing else None
    watermarks = opened(disk, telemetry=50)
    (reported,) = warnings(caplog)
    assert "cannot be written" in reported
    for _ in range(2):
        with pytest.raises(OSError, match="injected"):
            give(watermarks, HUB, telemetry=51)
        assert watermarks.get(HUB, "telemetry") == 50
    disk.fail = no_failure
    give(watermarks, HUB, telemetry=51)
    assert watermarks.get(HUB, "telemetry") == 51


def test_the_file_is_bounded_however_many_hubs_a_node_meets(disk: FakeFileSystem) -> None:
    watermarks = opened(disk, telemetry=5)
    for hub in [*(f"hub-{n}" for n in range(3 * HUBS_MAX)), "x" * (1 << 20)]:
        give(watermarks, hub, telemetry=8)
        assert watermarks.get(hub, "telemetry") == 8
    assert len(disk.content(PATH)) < 1000
    watermarks = opened(disk, telemetry=8)
    assert watermarks.get("hub-0", "telemetry") == watermarks.get("hub-40", "telemetry") == 8


def test_a_power_cut_at_any_call_leaves_the_old_ends_or_says_that_they_were_passed() -> None:
    for seed in range(60):
        disk = FakeFileSystem()
        give(opened(disk, telemetry=0), HUB, telemetry=50)
        watermarks = opened(disk, telemetry=50)
        copies: list[FakeFileSystem] = []

        def before(call: str, path: str, disk: FakeFileSystem = disk, copies: list[FakeFileSystem] = copies) -> None:
            if call in MUTATING_CALLS:
                copies.append(disk.power_cut(random.Random(len(copies) + 100 * seed)))

        disk.fail = before
        give(watermarks, HUB, telemetry=60)
        assert len(copies) > 3
        for left in copies:
            assert opened(left, telemetry=70).get(HUB, "telemetry") in {50, 70}
        disk.fail = no_failure
        assert opened(disk.power_cut(random.Random(seed)), telemetry=70).get(HUB, "telemetry") == 70


# --- whether a hub was ever given anything


def test_a_new_log_is_unsent_until_the_first_record_goes(disk: FakeFileSystem) -> None:
    assert opened(disk, telemetry=0).is_unsent
    watermarks = opened(disk, telemetry=50)
    assert watermarks.is_unsent
    watermarks.record_first_send()
    assert not watermarks.is_unsent
    assert not opened(disk.power_cut(random.Random(1)), telemetry=50).is_unsent


def test_a_record_never_goes_before_that_is_durable(disk: FakeFileSystem) -> None:
    opened(disk, telemetry=0)
    watermarks = opened(disk, telemetry=50)
    disk.fail = lambda call, path: injected(errno.EIO) if call == "sync" else None
    with pytest.raises(OSError, match="injected"):
        watermarks.record_first_send()
    assert watermarks.is_unsent


@pytest.mark.parametrize("content", [None, b"", b"00000000 {}\n"])
def test_without_a_sound_file_a_log_with_records_is_not_taken_for_unsent(
    disk: FakeFileSystem, content: bytes | None
) -> None:
    opened(disk, telemetry=0)
    disk.remove(PATH)
    if content is not None:
        file = disk.create(PATH)
        file.write_at(0, content)
        file.close()
    assert not opened(disk, telemetry=50).is_unsent
    # Nor in the next life, whose file says nothing else.
    assert not opened(disk, telemetry=50).is_unsent


def test_what_was_unsent_under_one_name_is_not_so_under_another(disk: FakeFileSystem) -> None:
    opened(disk, telemetry=0)
    other = NodeName("default", "press-2")
    assert not opened(disk, name=other, telemetry=50).is_unsent
    assert not opened(disk, telemetry=50).is_unsent
    opened(disk, telemetry=50).record_new_name(other)
    assert opened(disk, name=other, telemetry=50).is_unsent
    assert not opened(disk, 8, name=other, telemetry=50).is_unsent


# --- Lives of a node whose log may be an old copy, against hubs: a link conflicts when its hub holds other records
# than the log, and never unless the hub holds what this log, or the copy that it is, had not given it
#
# A record is a number that is drawn once. Kills, power cuts and failures come at any call to the disk. A walk is one
# seed; of mistakes in the protocol (ends that are not lowered, not kept by hub, passed in memory before the disk has
# it) the first twenty walks find each.


LINKS = {"both": ("a", ("s", "t")), "one": ("b", ("s",)), "same": ("a", ("t",))}
"""Link -> its hub and streams."""
CALLS = 10
"""Of one write of the file, about."""

Streams = dict[str, list[int]]


class Killed(BaseException):
    """The process ends at this call."""


@dataclass
class NodeFiles:
    """What a backup copies."""

    log: Streams = field(default_factory=dict)
    disk: FakeFileSystem = field(default_factory=FakeFileSystem)
    gave: dict[str, Streams] = field(default_factory=lambda: {"a": {}, "b": {}})
    """What its links gave each hub; the node itself cannot know."""

    def copied(self) -> NodeFiles:
        disk = FakeFileSystem()
        disk.make_directory("/node/links")
        for path in self.disk.paths():
            file = disk.create(path)
            file.write_at(0, self.disk.content(path))
            file.sync()
        disk.sync_directory("/node/links")
        return NodeFiles(copy.deepcopy(self.log), disk, copy.deepcopy(self.gave))


class Walk:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.node = NodeFiles()
        self.backups: list[NodeFiles] = []
        self.hubs: dict[str, Streams] = {"a": {}, "b": {}}
        self.watermarks: HubHighWatermarks | None = None
        self.records = 0
        self.conflicts = 0

    def step(self) -> None:
        steps = (self.link_up, self.restart, self.append, self.back_up, self.restore, self.lose_records, self.power_cut)
        self.chance.choices(steps, (12, 8, 8, 2, 2, 1, 1))[0]()

    def run(self) -> HubHighWatermarks:
        """The node, started if it does not run."""
        if self.watermarks is None:
            ends = {stream: len(records) for stream, records in self.node.log.items()}
            self.watermarks = HubHighWatermarks(self.node.disk, PATH, 7, ends, name=NodeName("default", "press-1"))
        return self.watermarks

    def die(self) -> None:
        self.watermarks = None
        self.node.disk.kill_process()

    def interrupt(self, act: Callable[[], object]) -> None:
        """Do it, sometimes killed before one of its calls to the disk, sometimes with the power gone too."""
        left = iter(range(self.chance.randrange(CALLS) if self.chance.random() < 0.15 else 1000))

        def count(call: str, path: str) -> None:
            if next(left, None) is None:
                raise Killed

        self.node.disk.fail = count
        try:
            act()
        except Killed:
            self.die()
            if self.chance.random() < 0.4:
                self.power_cut()
        self.node.disk.fail = no_failure

    def restart(self) -> None:
        if self.watermarks is not None and self.chance.random() < 0.5:
            self.watermarks.close()
        self.die()
        self.interrupt(self.run)
        self.run()

    def append(self) -> None:
        self.run()
        for _ in range(self.chance.randint(1, 3)):
            self.records += 1
            self.node.log.setdefault(self.chance.choice("st"), []).append(self.records)

    def link_up(self) -> None:
        watermarks = self.run()
        hub, streams = LINKS[self.chance.choice(sorted(LINKS))]
        lanes = [(s, self.hubs[hub].setdefault(s, []), self.node.log.get(s, [])) for s in streams]
        same = all(held == log[: len(held)] for _, held, log in lanes)
        if any(len(held) > min(len(log), watermarks.get(hub, s)) for s, held, log in lanes):
            assert not same or any(held != self.node.gave[hub].get(s, []) for s, held, _ in lanes)
            self.conflicts += 1
            return
        assert same, "what the log holds is taken for there, and the hub holds something else"
        sent = {s: log[: len(held) + self.chance.randint(0, 3)] for s, held, log in lanes}
        ends = {s: len(records) for s, records in sent.items()}

        def give() -> None:
            if watermarks.blocks(hub, ends):
                watermarks.record_passed(hub, ends)
            watermarks.raise_to(hub, ends)
            for s, held, _ in lanes:
                held[:] = sent[s]
                self.node.gave[hub][s] = sent[s]

        if self.chance.random() < 0.85:
            self.interrupt(give)
            return
        left = iter(range(self.chance.randrange(CALLS)))
        self.node.disk.fail = lambda call, path: injected(errno.ENOSPC) if next(left, None) is None else None
        with contextlib.suppress(OSError):
            give()
        self.node.disk.fail = no_failure

    def power_cut(self) -> None:
        self.die()
        self.node.disk = self.node.disk.power_cut(self.chance)

    def lose_records(self) -> None:
        self.die()
        for records in self.node.log.values():
            del records[len(records) - self.chance.randint(0, min(3, len(records))) :]

    def back_up(self) -> None:
        self.backups = [*self.backups[-3:], self.node.copied()]

    def restore(self) -> None:
        if not self.backups:
            return
        backup = self.chance.choice(self.backups)
        for hub in self.hubs.values():
            for stream, held in hub.items():
                records = backup.log.get(stream, [])
                if held[: len(records)] != records[: len(held)]:
                    # To put a copy back after a hub took other records from another one is more than ends can tell.
                    return
        self.die()
        self.node = backup.copied()


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_a_link_conflicts_when_its_log_has_forgotten_what_the_hub_holds_and_not_otherwise(first: int) -> None:
    conflicts = 0
    for seed in range(first, first + 100):
        walk = Walk(seed)
        for at in range(60):
            try:
                walk.step()
            except AssertionError as error:
                raise AssertionError(f"walk {seed}, step {at}: {error}") from error
        conflicts += walk.conflicts
    assert conflicts > 50


# --- A hub whose store was put back to an earlier state has lost what it acknowledged: an alarm, also after restarts


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
