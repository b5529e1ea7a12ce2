"""Hubs' high watermarks: the highest numbers that each hub can hold of this log, kept across restarts.

With them, links detect a log that has forgotten records.

A log that was restored from an old copy, or whose disk lost its last commit, reuses numbers that a hub already holds
with other records. The hub's WELCOME reveals it, as long as the node knows the end of the records ever sent to that
hub: its *high watermark* of each stream. The log's own end is no substitute, because it grows while no link is
connected.

``<data_dir>/links/known-ends`` holds the high watermarks by hub (its cluster id) and stream, or that a high watermark
was passed:

- At each start of the node, before anything is appended, a high watermark that was passed becomes the log's end at its
  opening; and none stays above the log's end, because the numbers there are about to be used again.
- Before the first number at or beyond a high watermark is sent to a hub, the file records durably that it was passed;
  all streams of that connection together, as the hub's WELCOME has just been compared with each of them.

The file also has the name under which the log was never replicated (``unsent``): such a log can be renamed without
asking a hub (``edge_node.inspect.maintenance``). The entry is removed before the first number is sent.

A kill at any point never makes a hub appear to hold too much while the log has forgotten nothing. Beyond a high
watermark that was not passed nothing was sent. A passed one is set again from a log that has everything ever sent,
because only durable records are sent. A write that failed, or whose name did not reach the disk, does no harm: nothing
is sent before the write succeeds.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from weft.edge_node.streams import STREAMS_THAT_STAY
from weft.edge_node.timing import wall_clock
from weft.protocols.batch import BatchHeader, ClockReading, ClockState, HeaderPairs, Record, decode_header, records
from weft.protocols.checksum import crc32c
from weft.protocols.errors import Corrupt
from weft.protocols.lane import NodeName, format_log_id
from weft.protocols.message_headers import FORKED_FROM
from weft.protocols.ranges import RangeSet
from weft.replication.liveness import SECOND
from weft.replication.runner.progress import Acknowledged, HubStream, Lost
from weft.storage.filesystem import FileSystem, write_atomically
from weft.storage.segment_log import LogSettings, SegmentLog

FILE: Final = ("links", "known-ends")
"""Place of the file in a data_dir."""
HUBS_MAX: Final = 16
"""Maximum number of hubs with ends of their own. Further ones share the ends of hubs in general: fewer losses are
detected, and none wrongly."""
HUB_BYTES_MAX: Final = 64
"""Longest cluster id; the ids of hubs have 32 characters."""
FILE_BYTES_MAX: Final = 8 << 20
"""Largest file: 17 hubs with 4,096 streams (``protocols.link.LANES_MAX``) of 64 characters each."""
OTHER_HUBS: Final = ""
"""Name for all hubs that nothing was ever sent to."""
PEER: Final = "peer"
"""Name for the peers of the node's pair, together. What they have by themselves says nothing of hubs."""

logger = logging.getLogger(__name__)


class _File(msgspec.Struct):
    log_id: str
    hubs: dict[str, dict[str, int | None]]
    """Hub -> stream -> its high watermark; None once it was passed."""
    unsent: str = ""
    """Name (tenant/edge) under which nothing was ever sent to a hub; empty when that is unknown."""


class HubHighWatermarks:
    """The high watermarks of one opened log, for all its links.

    Belongs to the event loop's thread, except ``record_first_send``, ``record_passed`` and ``close``.

    Args:
        opened: stream -> its end when the log was opened.
        name: the node's, under which the links replicate the log.
    """

    def __init__(
        self, filesystem: FileSystem, path: str, log_id: int, opened: Mapping[str, int], *, name: NodeName
    ) -> None:
        """Carry the file's content over into this start, and write it.

        Never fails: a log line reports a disk error and the detection that is lost with it.
        """
        self._filesystem = filesystem
        self._path = path
        self._log_id = format_log_id(log_id)
        self._lock = threading.Lock()
        self._closed = False
        found = self._read()
        # A missing or damaged file counts as empty; but where no number was ever used, nothing was sent.
        self._unsent = str(name) if found.unsent == str(name) or not any(opened.values()) else ""
        self._ends: dict[str, dict[str, int]] = {OTHER_HUBS: dict(opened)}
        for hub, ends in found.hubs.items():
            begun = {stream: opened.get(stream, 0) for stream in ends}
            self._ends[hub] = {
                stream: begun[stream] if end is None else min(end, begun[stream]) for stream, end in ends.items()
            }
        self._passed: dict[str, frozenset[str]] = {}
        try:
            # Even when nothing changed: a killed process may have left it only in the page cache.
            self._write(self._passed)
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s). The node runs on. If this log is a restored old copy and the node "
                "restarts before its links connect, they will not notice it",
                path,
                error,
            )

    def get(self, hub: str, stream: str) -> int:
        """Return one past the last number that ``hub`` may hold of the stream, unless this log has forgotten some.

        Args:
            hub: the cluster id that it reported.
        """
        return self._ends.get(hub, self._ends[OTHER_HUBS]).get(stream, 0)

    def of_any(self, stream: str) -> int:
        """Return one past the last number that any hub may hold of the stream, likewise."""
        return max(ends.get(stream, 0) for hub, ends in self._ends.items() if hub != PEER)

    @property
    def is_unsent(self) -> bool:
        """Return whether nothing was ever sent to a hub under the node's name; False also when that is unknown."""
        return bool(self._unsent)

    def record_first_send(self) -> None:
        """Record durably that records are sent to hubs from now on. Blocks on the disk; any thread.

        Raises:
            OSError: as ``record_passed``.
        """
        with self._lock:
            self._check_open()
            self._write(self._passed, unsent="")
            self._unsent = ""

    def record_new_name(self, name: NodeName) -> None:
        """Record that the log just got a name under which no hub has records. Blocks on the disk.

        Raises:
            OSError: the write failed. The next rename then asks the hubs, which is always right.
        """
        with self._lock:
            self._write(self._passed, unsent=str(name))

    def blocks(self, hub: str, ends: Mapping[str, int]) -> bool:
        """Return whether numbers up to these ends, by stream, must wait until ``record_passed`` returns."""
        beyond = any(end > self.get(hub, stream) for stream, end in ends.items())
        return beyond and not ends.keys() <= self._passed.get(self._key(hub), frozenset())

    def record_passed(self, hub: str, ends: Mapping[str, int]) -> None:
        """Record durably that ``hub`` may be sent more of these streams than ever. Blocks on the disk; any thread.

        Raises:
            OSError: the write failed, or the links are closed. Nothing may be sent.
        """
        with self._lock:
            self._check_open()
            hub = self._key(hub)
            passed = {**self._passed, hub: self._passed.get(hub, frozenset()) | ends.keys()}
            if passed != self._passed:
                self._write(passed)
                self._passed = passed

    def raise_to(self, hub: str, ends: Mapping[str, int]) -> None:
        """Raise the high watermarks of ``hub`` to these ends, by stream. Only where none blocks them.

        Raises:
            ValueError: one does.
        """
        if self.blocks(hub, ends):
            raise ValueError(f"{ends} would pass high watermarks of {hub} that block them")
        beyond = {stream: end for stream, end in ends.items() if end > self.get(hub, stream)}
        if beyond:
            self._ends.setdefault(self._key(hub), dict(self._ends[OTHER_HUBS])).update(beyond)

    def close(self) -> None:
        """Wait for a write that is under way; ``record_passed`` fails from now on. Blocks."""
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.ECANCELED, "the node's links are closed", self._path)

    def _key(self, hub: str) -> str:
        known = self._ends.keys() | self._passed.keys()
        return hub if hub in known or (len(known) <= HUBS_MAX and len(hub.encode()) <= HUB_BYTES_MAX) else OTHER_HUBS

    def _write(self, passed: Mapping[str, frozenset[str]], *, unsent: str | None = None) -> None:
        hubs: dict[str, dict[str, int | None]] = {}
        for hub in {**self._ends, **passed}:
            ends = self._ends.get(hub, self._ends[OTHER_HUBS])
            hubs[hub] = {**ends, **dict.fromkeys(passed.get(hub, ()))}
        line = msgspec.json.encode(_File(self._log_id, hubs, self._unsent if unsent is None else unsent))
        self._filesystem.make_directory(os.path.dirname(self._path))
        write_atomically(self._filesystem, self._path, b"%08x %s\n" % (crc32c(line), line))

    def _read(self) -> _File:
        """Return the file's content for this log: empty if there is no file, or it is another log's or damaged."""
        nothing = _File(self._log_id, {})
        try:
            file = _decoded(self._filesystem, self._path)
        except FileNotFoundError:
            return nothing
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            logger.warning(
                "%s cannot be used (%s) and is replaced, starting at the log's present end. Links will not "
                "notice a restored copy or lost records from before this start",
                self._path,
                error,
            )
            return nothing
        if file.log_id != self._log_id:
            logger.info("%s belonged to log %s and is replaced for log %s", self._path, file.log_id, self._log_id)
            return nothing
        return file


def hub_ends(filesystem: FileSystem, data_dir: str, log_id: int) -> Callable[[str], int | None]:
    """Return a function from a stream to the number after the last one that any hub may have of a stopped node's log.

    It returns None where more was sent to hubs since the node last opened the log.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError, msgspec.MsgspecError: it is damaged, or another log's.
    """
    file = _decoded(filesystem, os.path.join(data_dir, *FILE))
    if file.log_id != format_log_id(log_id):
        raise ValueError(f"it belongs to log {file.log_id}")
    hubs = {hub: ends for hub, ends in file.hubs.items() if hub not in (OTHER_HUBS, PEER)}
    hubs = hubs or {OTHER_HUBS: file.hubs[OTHER_HUBS]}

    def end(stream: str) -> int | None:
        known = [ends.get(stream, 0) for ends in hubs.values()]
        return None if None in known else max(each for each in known if each is not None)

    return end


def _decoded(filesystem: FileSystem, path: str) -> _File:
    """Read the file.

    Raises:
        OSError, ValueError, msgspec.MsgspecError: it cannot be used.
    """
    if filesystem.size(path) > FILE_BYTES_MAX:
        raise ValueError(f"it is longer than {FILE_BYTES_MAX} bytes")
    checksum, _, line = filesystem.read(path).removesuffix(b"\n").partition(b" ")
    if checksum != b"%08x" % crc32c(line):
        raise ValueError("its checksum does not match")
    file = msgspec.json.decode(line, type=_File)
    if OTHER_HUBS not in file.hubs:
        raise ValueError("it does not speak of hubs in general")
    return file


# Acknowledged records by hub and stream, kept across restarts: a hub that has fewer raises an alarm.
#
# ``<data_dir>/links/acknowledged`` is written every 10 s while something changes, and when the node stops.
# Acknowledgements since the last write are unknown after a crash: fewer losses are detected then, and none wrongly.

ACKNOWLEDGED_FILE = "acknowledged"
INTERVAL_S = 10.0
RANGES_MAX = 256
"""Maximum number of ranges kept for one stream at one hub; the lowest are kept."""
HUB_STREAMS_MAX = 16_384
ACKNOWLEDGED_BYTES_MAX = 64 << 20
_Pairs = list[tuple[int, int]]


class _AcknowledgedContent(msgspec.Struct):
    log_id: str
    acknowledged: list[tuple[str, str, _Pairs]]
    """Hub, stream, ranges."""
    lost: list[tuple[str, str, _Pairs, _Pairs]] = []
    """Hub, stream, ``Lost.missing``, ``Lost.named``."""


class AcknowledgedFile:
    """The file of one log. Made before the links start, it blocks on the disk; a disk error fails nothing else."""

    def __init__(self, filesystem: FileSystem, path: str, log_id: int) -> None:
        self._filesystem = filesystem
        self._path = path
        self._log_id = format_log_id(log_id)
        self._written = b""
        self.acknowledged = self._read()

    async def keep(self) -> None:
        """Write the file now and then, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.save()

    async def save(self) -> None:
        """Write the file if something has changed."""
        data = msgspec.json.encode(self._content())
        if data != self._written:
            await asyncio.to_thread(self._write, data)

    def _content(self) -> _AcknowledgedContent:
        ranges, lost = self.acknowledged.state()
        acknowledged = [(*key, _pairs(held)) for key, held in ranges.items()]
        gone = [(*key, _pairs(found.missing), _pairs(found.named)) for key, found in lost.items()]
        return _AcknowledgedContent(self._log_id, acknowledged[-HUB_STREAMS_MAX:], gone[-HUB_STREAMS_MAX:])

    def _write(self, data: bytes) -> None:
        try:
            self._filesystem.make_directory(os.path.dirname(self._path))
            write_atomically(self._filesystem, self._path, data)
            self._written = data
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s): after a restart a hub that lost records is not noticed", self._path, error
            )

    def _read(self) -> Acknowledged:
        try:
            if self._filesystem.size(self._path) > ACKNOWLEDGED_BYTES_MAX:
                return Acknowledged()
            file = msgspec.json.decode(self._filesystem.read(self._path), type=_AcknowledgedContent)
            if file.log_id != self._log_id:
                return Acknowledged()
            ranges: dict[HubStream, RangeSet] = {
                (hub, stream): RangeSet.from_wire(pairs) for hub, stream, pairs in file.acknowledged
            }
            lost = {
                (hub, stream): Lost(RangeSet.from_wire(missing), RangeSet.from_wire(named))
                for hub, stream, missing, named in file.lost
            }
        except (OSError, msgspec.MsgspecError, Corrupt):
            # Usually the file is missing. A damaged one counts as empty.
            return Acknowledged()
        return Acknowledged(ranges, lost)


def _pairs(ranges: RangeSet) -> _Pairs:
    return list(ranges)[:RANGES_MAX]


# Records of a forked log: a restored old copy that accepted messages under numbers that hubs have for others.
#
# They are copied from the log into a new one, with a log id derived from the fork's, and numbers from 0: the same
# fork always becomes the same log, and a hub stores nothing of it twice however often it is brought. The header
# ``weft.forked-from`` of each record names its original log and number.

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
        directory,
        settings,
        wall_clock=now.wall,
        clock_reading=now.reading,
        random_bits=lambda _: fork.log_id,
        post=lambda deliver: deliver(),
        filesystem=filesystem,
        start_writer=False,
        owner=owner,
    )
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
            target,
            found[0].time,
            [record.key for record in found],
            [record.payload for record in found],
            {index: _flagged(record, of) for index, record in enumerate(found)},
            {index: int(record.flags) for index, record in enumerate(found) if record.flags},
            origin=0 if origin is None else new.origin(origin.kind, origin.name, origin.version, origin.hash),
            times=[record.time for record in found],
        )
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
