"""Logs as a node writes them, for tests of what reads them from outside."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

from weft.edge_node.timing import clock_reader
from weft.protocols import batch, segment
from weft.protocols.batch import ClockReading, ClockState, HeaderPairs, columns_from_lists
from weft.protocols.segment import EntryKind, SegmentHeader, StreamEntry
from weft.storage.segment_log import LogSettings, SegmentLog

T0 = 1_700_000_000_000_000_000
"""2023-11-14 22:13:20 UTC."""
SEGMENT_BYTES = 1 << 16


def open_log(directory: Path, segment_bytes: int = SEGMENT_BYTES) -> SegmentLog:
    """Commits happen when tests say so: ``log.committer.run_once()``."""
    return SegmentLog.open(
        str(directory),
        LogSettings(segment_bytes=segment_bytes, budget_bytes=1 << 30),
        wall_clock=lambda: T0,
        clock_reading=clock_reader(),
        random_bits=random.Random(str(directory)).getrandbits,
        post=lambda callback: callback(),
        start_writer=False,
    )


def append(
    log: SegmentLog,
    *payloads: bytes,
    stream: str = "telemetry",
    key: bytes = b"plant/a/m1",
    time: int = T0,
    headers: dict[int, HeaderPairs] | None = None,
    flags: dict[int, int] | None = None,
    origin: int = 0,
) -> None:
    """One commit."""
    log.append(log.stream(stream), time, [key] * len(payloads), list(payloads), headers, flags, origin=origin)
    assert log.committer.run_once()


def crash(log: SegmentLog) -> None:
    """End as a killed process does: nothing more is written, the lock is free."""
    log.committer.close(seal=False)
    log._lock.close()


def newest_segment(directory: Path) -> Path:
    return max(directory.glob("*.seg"))


def corrupt(path: Path, content: bytes) -> None:
    """Flip a bit in the first place where ``content`` stands."""
    data = bytearray(path.read_bytes())
    data[data.index(content)] ^= 1
    path.write_bytes(data)


def write_segment(directory: Path, position: int, entries: list[tuple[EntryKind, bytes]]) -> None:
    """A segment that is not sealed, entry by entry; a first ``STREAMS`` entry names stream 1 ``telemetry``."""
    data = bytearray(segment.encode_header(SegmentHeader(7, position, T0)))
    for kind, body in [(EntryKind.STREAMS, mark()), *entries]:
        data += segment.encode_entry_header(position + len(data), kind, body) + body
    directory.mkdir(parents=True, exist_ok=True)
    (directory / segment.file_name(position)).write_bytes(data + bytes(1 << 16))


def mark() -> bytes:
    return segment.encode_streams({1: StreamEntry("telemetry", 0)})


def one_batch(first: int, *payloads: bytes, time: int = T0) -> bytes:
    times = array("q", [time] * len(payloads)).tobytes()
    columns = columns_from_lists(times, [b"plant/a/m1"] * len(payloads), payloads)
    return batch.encode(1, first, columns, ClockReading(1, 1, ClockState.SYNCED))
