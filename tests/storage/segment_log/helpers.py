"""What the tests of the segment log share: a log on the fake disk with a clock of its own, and reading it back."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

from tests.storage.fakes import FakeFileSystem
from weft.protocols.batch import ClockReading, ClockState, decode_header, records
from weft.protocols.lane import NodeName
from weft.protocols.segment import GapReason
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log import LogFull, LogSettings, SegmentLog

DIRECTORY = "/node/log"
SMALL = LogSettings(segment_bytes=4096, budget_bytes=1 << 20, tail_bytes=2000, pending_bytes_max=1 << 20)


@dataclass
class Clock:
    """Advances by one microsecond at each look, and as ``ahead`` says."""

    ticks: itertools.count[int] = field(default_factory=lambda: itertools.count(1_000_000, 1000))
    ahead: int = 0
    """Nanoseconds that tests let pass."""
    state: ClockState = ClockState.SYNCED

    def wall(self) -> int:
        return next(self.ticks) + self.ahead

    def reading(self) -> ClockReading:
        return ClockReading(7, next(self.ticks) + self.ahead, self.state)


def open_log(
    filesystem: FileSystem,
    settings: LogSettings = SMALL,
    *,
    directory: str = DIRECTORY,
    log_id: int = 0xABCD,
    clock: Clock | None = None,
    start_writer: bool = False,
    owner: NodeName | None = None,
) -> SegmentLog:
    clock = clock or Clock()
    return SegmentLog.open(
        directory,
        settings,
        filesystem=filesystem,
        wall_clock=clock.wall,
        clock_reading=clock.reading,
        random_bits=lambda bits: log_id,
        post=lambda deliver: deliver(),
        start_writer=start_writer,
        owner=owner,
    )


def commit_all(log: SegmentLog) -> None:
    while log.committer.run_once():
        pass


def append(log: SegmentLog, stream: int, *payloads: bytes) -> int:
    return log.append(stream, 1, [b"k"] * len(payloads), list(payloads))


def put(log: SegmentLog, stream: int, *payloads: bytes, time: int = 5) -> int:
    """Append records and make them durable."""
    base_seq = log.append(stream, time, [b"k"] * len(payloads), list(payloads))
    commit_all(log)
    return base_seq


def read_all(log: SegmentLog, stream: int, seq: int = 0, *, bytes_max: int = 1 << 20) -> dict[int, bytes]:
    """All records from ``seq`` on, by repeated reads."""
    found: dict[int, bytes] = {}
    while batches := log.read(stream, seq, bytes_max):
        for data in batches:
            for record in records(data):
                assert record.seq not in found
                found[record.seq] = record.payload
            seq = decode_header(data).end_seq
    return found


def segment_paths(filesystem: FakeFileSystem) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in filesystem.list_names(DIRECTORY) if name.endswith(".seg")]


def over_budget(disk: FakeFileSystem, settings: LogSettings) -> list[tuple[str, str, int]]:
    """From now on the calls that find the disk over the log's budget, with the bytes it takes then."""
    found: list[tuple[str, str, int]] = []

    def look(call: str, path: str) -> OSError | None:
        used = disk.used_bytes()
        if used > settings.budget_bytes:
            found.append((call, path, used))
        return None

    disk.fail = look
    return found


def add(log: SegmentLog, stream: int, count: int, clock: Clock | None = None) -> int:
    """Append records one commit each until refused; the budget holds after each. Returns how many were taken."""
    for index in range(count):
        try:
            payload = random.Random(log.next_seq(stream)).randbytes(100)
            log.append(stream, clock.wall() if clock else 5, [b"k"], [payload])
        except LogFull:
            return index
        commit_all(log)
        assert log.stats().bytes_on_disk <= log.stats().budget_bytes
    return count


def lost(log: SegmentLog, stream: int) -> dict[str, int]:
    """Records under notices, by reason."""
    found: dict[str, int] = {}
    for gap in log.gaps(stream):
        name = GapReason(gap.reason).name
        found[name] = found.get(name, 0) + gap.end - gap.first
    return found
