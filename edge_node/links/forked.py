"""Records of a forked log: a restored old copy that accepted messages under numbers that hubs have for others.

They are copied from the log into a new one, with a log id derived from the fork's, and numbers from 0: the same fork
always becomes the same log, and a hub stores nothing of it twice however often it is brought. The header
``weft.forked-from`` of each record names its original log and number.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from weft.edge_node.links.hub_high_watermarks import hub_ends
from weft.edge_node.streams import STREAMS_THAT_STAY
from weft.edge_node.timing.clock import wall_clock
from weft.protocols.batch import BatchHeader, ClockReading, ClockState, HeaderPairs, Record, decode_header, records
from weft.protocols.lane import NodeName, format_log_id
from weft.protocols.message_headers import FORKED_FROM
from weft.replication.liveness import SECOND
from weft.storage.filesystem import FileSystem, write_atomically
from weft.storage.segment_log import LogSettings, SegmentLog

READ_BYTES = 1 << 20


class Fork(NamedTuple):
    """The records of a log that no hub can have under their numbers."""

    log_id: int
    """Id of the log that they are written to."""
    begins: dict[str, int]
    """Stream -> number of its first such record."""
    sent: list[str]
    """Streams whose records went to a hub after the restore: they are left out, as the hub may have them."""


def find_fork(log: SegmentLog, filesystem: FileSystem, data_dir: str) -> Fork | None:
    """Return the fork in the log of ``data_dir``; None when there is none.

    At its first start with the copy the node recorded the end of the log, and nothing beyond was sent to a hub since.

    Raises:
        OSError, ValueError, msgspec.MsgspecError: that record is missing or unusable.
    """
    ends = hub_ends(filesystem, data_dir, log.log_id)
    begins: dict[str, int] = {}
    sent = []
    first: tuple[int, str, int] | None = None
    for name, number in sorted(log.streams().items()):
        if name in STREAMS_THAT_STAY:
            continue
        begin = ends(name)
        if begin is None:
            sent.append(name)
            continue
        own = next(_records(log, number, begin), None)
        if own is not None:
            begins[name] = own[1].seq
            first = min(first or (own[1].time, name, own[1].seq), (own[1].time, name, own[1].seq))
    if first is None:
        return Fork(0, {}, sent) if sent else None
    digest = hashlib.sha256(f"fork of {format_log_id(log.log_id)}: {first[1]} {first[2]} {first[0]}".encode()).digest()
    return Fork(int.from_bytes(digest[:8], "big"), begins, sent)


def write_fork(
    log: SegmentLog, fork: Fork, directory: str, settings: LogSettings, *, filesystem: FileSystem, owner: NodeName
) -> dict[str, int]:
    """Write the fork's records into a new log in ``directory``, which must not exist. Return their numbers by
    stream."""
    now = _Clock()
    filesystem.make_directory(directory)
    new = SegmentLog.open(
        directory, settings, wall_clock=now.wall, clock_reading=now.reading, random_bits=lambda _: fork.log_id,
        post=lambda deliver: deliver(), filesystem=filesystem, start_writer=False, owner=owner,
    )  # fmt: skip
    counts = {}
    try:
        for notice in log.clocks():
            new.note_clock(notice)
        for name, begin in fork.begins.items():
            counts[name] = _copy(log, new, name, begin, now)
    finally:
        new.close()
    # A repeated import must use a later epoch than the hub has from the first.
    links = os.path.join(directory, "links")
    filesystem.make_directory(links)
    write_atomically(filesystem, os.path.join(links, "epoch"), b"%d\n" % (wall_clock() // SECOND))
    return counts


class _Clock:
    """The clocks of a copied batch: those of the original."""

    def __init__(self) -> None:
        self.header: BatchHeader | None = None

    def wall(self) -> int:
        return self.header.first_time if self.header is not None else wall_clock()

    def reading(self) -> ClockReading:
        if self.header is None:
            return ClockReading(0, 0, ClockState.UNSYNCED)
        return ClockReading(self.header.boot_id, self.header.monotonic, self.header.clock)


def _copy(log: SegmentLog, new: SegmentLog, name: str, begin: int, now: _Clock) -> int:
    number, target = log.streams()[name], new.stream(name)
    of, known, count = format_log_id(log.log_id), log.origins(), 0
    for header, batch in _batches(log, number, begin):
        found = [record for record in records(batch) if record.seq >= begin]
        origin = known.get(header.origin)
        new.append(
            target, found[0].time, [record.key for record in found], [record.payload for record in found],
            {index: _flagged(record, of) for index, record in enumerate(found)},
            {index: int(record.flags) for index, record in enumerate(found) if record.flags},
            origin=0 if origin is None else new.origin(origin.kind, origin.name, origin.version, origin.hash),
            times=[record.time for record in found],
        )  # fmt: skip
        count += len(found)
        now.header = header._replace(first_time=found[0].time)
        while new.committer.run_once():
            pass
    return count


def _flagged(record: Record, log_id: str) -> HeaderPairs:
    return (*record.headers, (FORKED_FROM, f"{log_id}:{record.seq}"))


def _records(log: SegmentLog, number: int, begin: int) -> Iterator[tuple[BatchHeader, Record]]:
    for header, batch in _batches(log, number, begin):
        yield from ((header, record) for record in records(batch) if record.seq >= begin)


def _batches(log: SegmentLog, number: int, begin: int) -> Iterator[tuple[BatchHeader, bytes]]:
    while found := log.read(number, begin, READ_BYTES):
        for batch in found:
            header = decode_header(batch)
            if header.end_seq > begin:
                yield header, batch
                begin = header.end_seq
