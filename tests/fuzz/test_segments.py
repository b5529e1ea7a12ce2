"""Segment files with bytes flipped, wiped, cut off, added or not to be read: everything that reads them agrees with
recovery about what is an entry, what is damage and where the log ends.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.slices import SLICE
from weft.edge_node.inspect.summary import forecast, summarise
from weft.edge_node.inspect.tail import Start, TailRecord, newest_records
from weft.edge_node.inspect.view import Cursor, Durability, LogDirectory
from weft.edge_node.timing import clock_reader
from weft.protocols import batch
from weft.protocols.batch import BatchHeader
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.ranges import RangeSet
from weft.storage.filesystem import File, OSFileSystem
from weft.storage.segment_log import LogSettings, LogVersionError, SegmentLog
from weft.storage.segment_log.recovery import load_directory, read_identity
from weft.storage.segment_log.scan import inspect_log, scan_segment
from weft.storage.segment_log.segment_bytes import SegmentBytes, find_footer
from weft.storage.segment_log.settings import DAMAGED, STRANGE

SETTINGS = LogSettings(segment_bytes=1 << 13, budget_bytes=1 << 20, tail_bytes=0)
T0 = 1_700_000_000_000_000_000
Records = set[tuple[int, int, bytes]]
"""(stream, seq, payload)"""


class Disk(OSFileSystem):
    """The machine's disk, some blocks of which cannot be read."""

    def __init__(self) -> None:
        self.lost: dict[str, RangeSet] = {}

    def open(self, path: str, *, read_only: bool = False) -> File:
        file = super().open(path, read_only=read_only)
        lost, read_at = self.lost.get(Path(path).name), file.read_at

        def read(offset: int, length: int) -> bytes:
            if lost is not None and lost.missing(offset, offset + length) != [(offset, offset + length)]:
                raise OSError(errno.EIO, "unreadable", path)
            return read_at(offset, length)

        if lost is not None:
            file.read_at = read  # type: ignore[method-assign]
        return file


def open_log(folder: Path, disk: OSFileSystem) -> SegmentLog:
    return SegmentLog.open(
        str(folder),
        SETTINGS,
        wall_clock=lambda: T0,
        clock_reading=clock_reader(),
        random_bits=lambda _: 7,
        post=lambda deliver: deliver(),
        start_writer=False,
        filesystem=disk,
    )


@pytest.fixture(scope="module", params=["killed", "closed", "opened again"])
def pristine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of a few segments whose node was killed, or closed it, or was killed soon after it had started again."""
    folder = tmp_path_factory.mktemp("log") / "data"
    log, chance = open_log(folder, OSFileSystem()), random.Random(1)

    def fill(commits: int) -> None:
        for number in range(commits):
            for name in chance.sample(["a", "b", f"late-{number // 20}"], chance.randint(1, 3)):
                payloads = [chance.randbytes(chance.choice([0, 3, 40, 600])) for _ in range(chance.randint(1, 4))]
                log.append(log.stream(name), T0 + number, [b"topic"] * len(payloads), payloads)
            assert log.committer.run_once()

    fill(40)
    if request.param == "opened again":
        log.close()
        log = open_log(folder, OSFileSystem())
        fill(3)
    if request.param == "closed":
        log.close()
    else:
        log.committer.close(seal=False)
        log._lock.close()
    assert len(list(folder.glob("*.seg"))) > 3
    return folder


def harm(folder: Path, disk: Disk, chance: random.Random) -> None:
    """Do something to one of the files, more often to the newest."""
    files = sorted(folder.glob("*.seg"))
    path = chance.choice([files[-1], *files])
    data = bytearray(path.read_bytes())
    written = max(len(bytes(data).rstrip(b"\0")), 1)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = min(chance.choice([chance.randrange(written + 100), chance.randrange(200)]), len(data) - 1) if data else 0
        length = chance.choice([1, 12, 100, 512, 4096])
        match chance.randrange(8) if data else 7:
            case 0 | 1 | 2:
                data[at] ^= 1 << chance.randrange(8)
            case 3:
                data[at : at + length] = bytes(len(data[at : at + length]))
            case 4:
                data[at : at + length] = chance.randbytes(len(data[at : at + length]))
            case 5:
                del data[chance.choice([at, written, at - at % 512]) :]
            case 6:
                disk.lost.setdefault(path.name, RangeSet()).add(at - at % 4096, at - at % 4096 + 4096)
            case _:
                data += chance.choice([bytes(length), chance.randbytes(length), bytes(data[at : at + length])])
    path.write_bytes(data)


@dataclass
class Seen:
    """What readers say of a log, in the terms of recovery."""

    records: Records
    torn: tuple[str, int] | None
    """File and offset."""
    is_damaged: bool


def by_dump(folder: Path, disk: Disk) -> Seen:
    records: Records = set()
    torn, is_damaged = None, False
    for item in inspect_log(str(folder), disk):
        if item.is_torn:
            torn = (item.segment, item.offset)
        is_damaged = is_damaged or (item.problem is not None and not item.is_torn)
        if isinstance(item.value, BatchHeader):
            records |= {(item.value.stream, each.seq, each.payload) for each in batch.records(item.data)}
    return Seen(records, torn, is_damaged)


def by_cursor(folder: Path, disk: Disk) -> Records:
    records: Records = set()
    cursor = Cursor(LogDirectory(str(folder), disk), None, lambda _: True)
    for commit in cursor.read():
        for item in commit.items:
            if isinstance(item, tuple) and isinstance(item[1].value, BatchHeader):
                stream = item[1].value.stream
                records |= {(stream, each.seq, each.payload) for each in batch.records(bytes(item[1].body))}
    cursor.close()
    return records


def by_tail(folder: Path, disk: Disk) -> list[tuple[int, bytes]]:
    durability = Durability(str(folder), locked=lambda _: False)
    items = newest_records(LogDirectory(str(folder), disk), lambda _: True, Start(), durability)
    return sorted((item.record.seq, item.record.payload) for item in items if isinstance(item, TailRecord))


def by_recovery(log: SegmentLog) -> Records:
    """All that can be read, once reads have met all the damage there is."""
    records: Records = set()
    for stream in log.streams().values():
        seq = 0
        while batches := log.read(stream, seq, 1 << 20):
            for data in batches:
                records |= {(stream, each.seq, each.payload) for each in batch.records(data)}
            seq = batch.decode_header(batches[-1]).end_seq
    return records


def is_damaged(folder: Path, disk: Disk) -> bool:
    """Whether recovery finds damage; of files that it takes by their index, whether it would if it looked."""
    known = read_identity(disk, str(folder))
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    try:
        loaded, strange = load_directory(disk, str(copy), known.log_id if known else None)
        return bool(strange) or any(
            item.damaged or (item.scan is not None and item is not loaded[-1]) or _is_rotten(item.segment.path, disk)
            for item in loaded
        )
    finally:
        shutil.rmtree(copy)


def _is_rotten(path: str, disk: Disk) -> bool:
    file = disk.open(path, read_only=True)
    try:
        position, size = int(Path(path).name.removesuffix(".seg")), file.size()
        footer = find_footer(SegmentBytes(file, position, size, unreadable_as_zeros=True), size)
        if footer is None:
            return False
        source = SegmentBytes(file, position, footer[0], unreadable_as_zeros=True)
        return bool(scan_segment(source, may_be_torn=False).damage)
    finally:
        file.close()


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(SLICE.seeds(ci=60, night=1000), marks=pytest.mark.search)], ids=["few", "many"]
)
def test_all_readers_agree_with_recovery(pristine: Path, tmp_path: Path, seeds: range) -> None:
    for number in seeds:
        disk, folder = Disk(), tmp_path / "data"
        shutil.copytree(pristine, folder)
        harm(folder, disk, random.Random(number))
        try:
            check(folder, disk)
        except AssertionError as error:
            raise AssertionError(f"with seed {number}") from error
        shutil.rmtree(folder)


def check(folder: Path, disk: Disk) -> None:
    asked: list[Callable[[], object]] = [
        lambda: by_dump(folder, disk),
        lambda: by_cursor(folder, disk),
        lambda: by_tail(folder, disk),
        lambda: summarise(LogDirectory(str(folder), disk)),
    ]
    try:
        damaged, foretold = is_damaged(folder, disk), forecast(str(folder), disk)
    except LogVersionError:
        for ask in asked:
            with pytest.raises(UnsupportedVersion):
                ask()
        return
    dump, cursor, tail = by_dump(folder, disk), by_cursor(folder, disk), by_tail(folder, disk)
    summary = summarise(LogDirectory(str(folder), disk))
    log = open_log(folder, disk)
    report = log.recovery
    held = {stream: log.ranges(stream) for stream in log.streams().values()}
    records = by_recovery(log)
    log.committer.close(seal=False)
    log._lock.close()

    assert dump.records == records
    assert cursor == records
    assert tail == sorted((seq, payload) for _, seq, payload in records)
    torn = (Path(str(report.torn_file)).name, report.torn_offset) if report.torn_bytes else None
    assert dump.torn == torn
    assert summary.torn_bytes == foretold.torn_bytes == report.torn_bytes
    assert dump.is_damaged == damaged
    # Streams may lose their names; their numbers and records stay.
    in_files: dict[int, RangeSet] = {}
    for stream in summary.streams.values():
        in_files.setdefault(stream.number, RangeSet()).update(stream.held)
    for number, ranges in held.items():
        assert in_files.get(number, RangeSet()) == ranges
    set_aside = [path.name for path in folder.iterdir() if path.name.endswith((DAMAGED, STRANGE))]
    assert damaged or not set_aside
