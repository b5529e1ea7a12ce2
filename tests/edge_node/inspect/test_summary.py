"""What a log's files say of it when its node does not run."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge_node.inspect.logs import T0, append, corrupt, crash, newest_segment, open_log
from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY, commit_all, put, read_all, segment_paths
from tests.storage.segment_log.helpers import open_log as helpers_open_log
from weft.edge_node.inspect.maintenance import NotTheOwner, UnknownStream, stopped_log
from weft.edge_node.inspect.summary import LogSummary, forecast, summarise
from weft.edge_node.inspect.view import LogDirectory, NoLog
from weft.protocols.segment import GapReason
from weft.storage.filesystem import DirectoryInUse, OSFileSystem
from weft.storage.segment_log import LogFull, LogSettings

HOUR_NS = 3600 * 10**9


def test_sealed_and_open_segments_count_together(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(300):
        append(log, bytes(range(256)) * 4, time=T0 + number, stream="telemetry" if number % 2 else "alarms")
    summary = summarise(LogDirectory(str(tmp_path)))
    assert summary.segments > 1
    assert summary.log_id == log.log_id
    assert summary.bytes == sum(path.stat().st_size for path in tmp_path.glob("*.seg"))
    for name, first in (("telemetry", 1), ("alarms", 0)):
        stream = summary.streams[name]
        assert (list(stream.held), stream.next_seq) == ([(0, 150)], 150)
        assert (stream.first_time, stream.last_time) == (T0 + first, T0 + 298 + first)
    assert (summary.damage, summary.torn_bytes) == ([], 0)
    log.close()


def test_a_torn_tail_and_lost_records_are_told(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for payload in (b"one", b"two", b"three"):
        append(log, payload)
    crash(log)
    path = newest_segment(tmp_path)
    corrupt(path, b"two")
    with path.open("r+b") as file:
        file.seek(len(path.read_bytes().rstrip(b"\0")) + 8)
        file.write(b"\x33" * 100)
    before = summarise(LogDirectory(str(tmp_path)))
    assert before.torn_bytes >= 100
    assert len(before.damage) == 1
    assert list(before.streams["telemetry"].held) == [(0, 1), (2, 3)]
    again = open_log(tmp_path)
    after = summarise(LogDirectory(str(tmp_path)))
    (gap,) = after.streams["telemetry"].gaps
    assert (gap.first, gap.end, gap.reason) == (1, 2, GapReason.CORRUPTION)
    assert after.torn_bytes == 0
    assert after.streams["telemetry"].next_seq == 3
    again.close()


def test_the_last_known_rate_is_that_of_the_last_hour_with_records() -> None:
    summary = LogSummary(growth=[(T0, T0 + HOUR_NS, 10**9), (T0 + HOUR_NS, T0 + 3 * HOUR_NS, 7_200_000)])
    assert summary.bytes_per_second() == 1000
    assert LogSummary(growth=[(T0, T0 + 10**9, 1000)]).bytes_per_second() is None
    assert LogSummary().bytes_per_second() is None


# --- The forecast for a stopped node's log is what its next start does; the forecast changes nothing


SETTINGS = LogSettings(segment_bytes=1 << 14, budget_bytes=1 << 20, tail_bytes=0)
Harm = Callable[[FakeFileSystem, list[str]], None]


@pytest.fixture
def disk() -> FakeFileSystem:
    """Sixty acknowledged records in several segments, then SIGKILL."""
    disk = FakeFileSystem()
    log = helpers_open_log(disk, SETTINGS)
    log.stream("quiet")
    stream = log.stream("one")
    for index in range(60):
        put(log, stream, random.Random(index).randbytes(900))
    disk.kill_process()
    assert len(segment_paths(disk)) > 3
    return disk


def _write(disk: FakeFileSystem, path: str, offset: int, data: bytes) -> None:
    disk.content(path)[offset : offset + len(data)] = data


def _tear(disk: FakeFileSystem, paths: list[str]) -> None:
    end = len(bytes(disk.content(paths[-1])).rstrip(b"\0"))
    _write(disk, paths[-1], end + 8, b"\x33" * 100)


def _zero_a_block(disk: FakeFileSystem, paths: list[str]) -> None:
    _write(disk, paths[-1], 1024, bytes(1024))


def _cut_a_sealed_segment(disk: FakeFileSystem, paths: list[str]) -> None:
    del disk.content(paths[1])[6000:]


def _delete_a_segment(disk: FakeFileSystem, paths: list[str]) -> None:
    disk.remove(paths[1])


def _lose_the_tail(disk: FakeFileSystem, paths: list[str]) -> None:
    disk.lose_blocks(paths[-1], 4096, 1 << 14)


def _lose_a_header(disk: FakeFileSystem, paths: list[str]) -> None:
    _write(disk, paths[1], 0, bytes(32))


def _bring_another_log(disk: FakeFileSystem, paths: list[str]) -> None:
    other = FakeFileSystem()
    log = helpers_open_log(other, SETTINGS, log_id=5)
    put(log, log.stream("one"), b"of another log")
    commit_all(log)
    disk.content(paths[0])[:] = other.content(segment_paths(other)[0])


def _leave_an_unfinished_file(disk: FakeFileSystem, paths: list[str]) -> None:
    disk.link(paths[0], f"{DIRECTORY}/00000000000000900000.seg.new")


def _nothing(_disk: FakeFileSystem, _paths: list[str]) -> None:
    pass


@pytest.mark.parametrize(
    ("harm", "field"),
    [
        (_nothing, None),
        (_leave_an_unfinished_file, None),
        (_tear, "torn_bytes"),
        (_zero_a_block, "damaged"),
        (_cut_a_sealed_segment, "lost"),
        (_delete_a_segment, "lost"),
        (_lose_the_tail, "unreadable_bytes"),
        (_lose_a_header, "damaged"),
        (_bring_another_log, "strange"),
    ],
)
def test_the_next_start_finds_what_was_foretold(disk: FakeFileSystem, harm: Harm, field: str | None) -> None:
    harm(disk, segment_paths(disk))
    before = {path: bytes(disk.content(path)) for path in disk.paths()}
    reported = forecast(DIRECTORY, disk)
    assert {path: bytes(disk.content(path)) for path in disk.paths()} == before
    assert reported.finds_all_well is (field is None)
    assert field is None or getattr(reported, field)

    log = helpers_open_log(disk, SETTINGS)
    found = log.recovery
    names = {number: name for name, number in log.streams().items()}
    assert [(name, gap.first, gap.end) for name, gap in reported.lost] == [
        (names[gap.stream], gap.first, gap.end) for gap in found.gaps
    ]
    assert reported.records_lost == sum(gap.end - gap.first for gap in found.gaps)
    assert (reported.torn_bytes, reported.unreadable_bytes) == (found.torn_bytes, found.unreadable_bytes)
    assert (*reported.strange, *reported.damaged) == found.damaged
    log.close()
    assert forecast(DIRECTORY, disk).finds_all_well, "it was dealt with"


# --- An operator gives up what waits for a hub that will never come back


BUDGET_BYTES = 1 << 20
DROP_SETTINGS = LogSettings(segment_bytes=1 << 17, budget_bytes=BUDGET_BYTES, tail_bytes=0)


def test_a_backlog_is_given_up_for_good(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    with pytest.raises(NoLog), stopped_log(directory):
        raise AssertionError
    assert not (tmp_path / "data").exists(), "nothing is made where there is no log"
    log = helpers_open_log(OSFileSystem(), directory=directory)
    telemetry, alarms = log.stream("telemetry"), log.stream("alarms")
    for index in range(10):
        put(log, telemetry, b"%d" % index, time=index)
    put(log, alarms, b"fire")
    with pytest.raises(DirectoryInUse), stopped_log(directory):
        raise AssertionError
    log.close()
    with stopped_log(directory) as stopped:
        with pytest.raises(UnknownStream, match="has no stream vibration; it has alarms, telemetry"):
            stopped.drop_backlog("vibration")
        backlog = stopped.backlog("telemetry", 8)
        assert (list(backlog.numbers), backlog.first_time, backlog.last_time) == ([(0, 8)], 0, 7)
        assert list(stopped.backlog("telemetry", 1000).numbers) == [(0, 10)]
        assert list(stopped.drop_backlog("telemetry", 8)) == [(0, 8)]
        assert list(stopped.backlog("telemetry", 8).numbers) == []
    log = helpers_open_log(OSFileSystem(), directory=directory)
    assert [(gap.first, gap.end, gap.reason) for gap in log.gaps(telemetry)] == [(0, 8, GapReason.OPERATOR)]
    assert read_all(log, telemetry) == {8: b"8", 9: b"9"}
    assert read_all(log, alarms) == {0: b"fire"}
    log.close()


def test_another_user_makes_no_files_in_a_nodes_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = str(tmp_path / "data")
    helpers_open_log(OSFileSystem(), directory=directory).close()
    owner = (tmp_path / "data").stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(NotTheOwner, match="before the command"), stopped_log(directory):
        raise AssertionError


def test_a_full_log_stays_within_its_budget_while_a_backlog_is_given_up(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    log = helpers_open_log(OSFileSystem(), DROP_SETTINGS, directory=directory)
    stream = log.stream("telemetry")
    with contextlib.suppress(LogFull):
        while True:
            put(log, stream, log.next_seq(stream).to_bytes(4, "big") * 500)
    log.close()
    with stopped_log(directory) as stopped:
        stopped.drop_backlog("telemetry")
        used = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
        assert used <= BUDGET_BYTES
    log = helpers_open_log(OSFileSystem(), DROP_SETTINGS, directory=directory)
    assert log.shortage() is None
    assert put(log, stream, b"continues") == log.gaps(stream)[-1].end
    log.close()
