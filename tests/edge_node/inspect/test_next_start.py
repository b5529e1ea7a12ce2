"""The forecast for a stopped node's log is what its next start does; the forecast changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import DIRECTORY, commit_all, open_log, put, segment_paths
from weft.edge_node.inspect.summary import forecast
from weft.storage.segment_log import LogSettings

SETTINGS = LogSettings(segment_bytes=1 << 14, budget_bytes=1 << 20, tail_bytes=0)
Harm = Callable[[FakeFileSystem, list[str]], None]


@pytest.fixture
def disk() -> FakeFileSystem:
    """Sixty acknowledged records in several segments, then SIGKILL."""
    disk = FakeFileSystem()
    log = open_log(disk, SETTINGS)
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
    log = open_log(other, SETTINGS, log_id=5)
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

    log = open_log(disk, SETTINGS)
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
