"""Scan of segment files: what is an entry, what is damage, and what is a torn end. One rule for all readers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.protocols import batch
from weft.protocols import segment as format_
from weft.protocols.batch import BatchHeader
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import (
    BATCHES,
    ENTRY_HEADER_BYTES,
    HEADER_BYTES,
    Body,
    ClockNotice,
    EntryKind,
    GapNotice,
    GapReason,
    Kept,
    Owner,
    SegmentHeader,
    Whole,
)
from weft.storage.filesystem import File, FileSystem
from weft.storage.segment_log.encryption import disk_of
from weft.storage.segment_log.index import Segment, SegmentIndex
from weft.storage.segment_log.segment_bytes import (
    Entry,
    SegmentBytes,
    find_entry,
    find_footer,
    hides_entries,
    last_nonzero,
    read_entry,
    why_no_entry,
)
from weft.storage.segment_log.settings import BATCH_RECORDS_MAX, DAMAGED, LogVersionError, aside_path
from weft.storage.segment_log.state import LogState

# The one rule that distinguishes an entry, damage and a torn end, for all readers of segment files. At bad bytes the
# walk looks ahead for a mark or a footer. Entries are not held back until a mark proves them: readers of bodies would
# hold up to a segment in memory.
#
# Every commit is one write that begins with a ``STREAMS`` entry (the *commit mark*), and the writer begins a commit
# only after the fsync of the previous one. So bytes that are not a valid entry may be
#
# - *torn*: part of the last commit, whose fsync never returned. Nothing of that commit was acknowledged, so all bytes
#   after the bad ones may be cut too.
# - *damaged*: a commit mark follows somewhere after them. Then their commit had been synced, and its records
#   acknowledged. Cutting there would lose acknowledged records silently; only the bad bytes are lost, and the following
#   entries count.
# - *unreadable*: the device fails to read a block (EIO) that may hold entries. A crash does not cause that, so it is
#   damage, even without a later mark. The lost entries are unknown; their number is bounded by the block's length.
#
# A commit whose batches must not be separated has a ``WHOLE`` entry before them. If the bytes that it claims are torn
# anywhere, the log ends before it. Damage, which concerns synced bytes, loses only the bad bytes there too.
#
# Only the newest segment can be torn, and only while it is not sealed. Its first entry cannot be torn: a segment gets
# its name when its opening is on the disk.
#
# One case cannot be distinguished: readable damage to the very last commit of an unsealed segment looks like a torn
# one. A mark names the streams that the previous commit wrote, with their next seq, so that a lost entry can never
# cause a sequence number to be assigned twice.

_BATCH_BYTES_MIN = ENTRY_HEADER_BYTES + batch.HEADER_BYTES


class Damage(NamedTuple):
    """Synced bytes without a valid entry. The walk continues after them."""

    offset: int
    end: int
    is_unreadable: bool = False
    """True if the device cannot read some of them."""
    hidden_max: int = 0
    """Maximum number of records of each stream that were there without later evidence of them."""


class Torn(NamedTuple):
    """Rest of a commit whose fsync never returned: the log ends at ``offset``. Always the last of a walk."""

    offset: int
    end: int
    """Offset after the last non-zero byte."""


Item = Entry | Damage | Torn


def walk(
    source: SegmentBytes,
    offset: int = HEADER_BYTES,
    *,
    may_be_torn: bool,
    is_growing: bool = False,
    searches_zeros: bool = True,
) -> Iterator[Item]:
    """Yield the items of a segment from ``offset`` on, in order; a footer is the last entry.

    Args:
        offset: beginning of an entry.
        may_be_torn: it is the log's newest segment and not sealed. Otherwise entries must reach to ``source.end``.
        is_growing: another process may be writing the file. It writes bytes in order, so bytes that seem to be missing
            before existing ones are read a second time.
        searches_zeros: look for entries behind zeros. A reader that has read the whole file and waits at its end does
            not need this: a search reads all reserved space.

    Raises:
        UnsupportedVersion: a sound entry that only a later release understands.
        OSError: the file cannot be read.
    """
    ahead = _Ahead(offset)
    while True:
        entry = read_entry(source, offset)
        if entry is not None:
            # Only in a file that a crash may have ended: in a sealed one everything was synced.
            if may_be_torn and isinstance(entry.value, Whole):
                # The batches behind a fence count together or not at all: a function's results without its position in
                # the input would come twice after a crash.
                bad = _first_missing(source, entry.end, entry.value.length)
                # The writer may have completed the commit between the two reads. A reader of a running node looks again
                # before it calls anything torn.
                if bad is not None and is_growing:
                    source.look_again()
                    bad = _first_missing(source, entry.end, entry.value.length)
                if bad is not None and not searches_zeros and not any(source.piece(bad, ENTRY_HEADER_BYTES)):
                    return
                # With a later mark the commit had been synced and acknowledged, so its sound part is kept; cutting the
                # rest would lose acknowledged records only to keep the group whole.
                if bad is not None and not _look_ahead(source, bad, may_be_torn=True).is_proven:
                    yield Torn(offset, last_nonzero(source, offset))
                    return
            yield entry
            if entry.kind is EntryKind.FOOTER:
                # A crash interrupted the sealing of this segment, or this is the end of a sealed one.
                return
            offset = entry.end
            continue
        if not ahead.has_seen(offset):
            # A reader that follows a running log stands at the reserved zeros most of the time, where a search of the
            # rest of the file would find nothing.
            if not searches_zeros and not any(source.piece(offset, ENTRY_HEADER_BYTES)):
                return
            ahead = _look_ahead(source, offset, may_be_torn=may_be_torn)
            if is_growing and ahead.holes:
                source.look_again()
                if read_entry(source, offset) is not None:
                    ahead = _Ahead(offset)
                    continue
        hole = ahead.holes.get(offset)
        if hole is None:
            yield from _end(source, offset, ahead, may_be_torn=may_be_torn)
            return
        # The first entry of a segment cannot be torn: the file gets its name when its opening is durable.
        if not ahead.is_proven and offset != HEADER_BYTES:
            yield Torn(offset, last_nonzero(source, offset))
            return
        yield hole
        offset = hole.end


def _first_missing(source: SegmentBytes, start: int, length: int) -> int | None:
    """Return the offset of the first invalid bytes among entries that belong together; None if all are valid.

    Nothing is checked if a mark or a footer follows, as for every commit except the last: then all had been synced.
    """
    end = start + length
    if end + ENTRY_HEADER_BYTES <= source.end:
        following = read_entry(source, end)
        # The mark of the next commit was written after the sync of this one, so nothing of it is missing; its entries
        # need not be read.
        if following is not None and following.kind in (EntryKind.STREAMS, EntryKind.FOOTER):
            return None
    while start < end:
        entry = read_entry(source, start)
        if entry is None:
            return start
        start = entry.end
    return None


@dataclass
class _Ahead:
    """Findings of a search from a first hole on."""

    end: int
    """Offset at which the search ended: at a mark, or after the last entry."""
    holes: dict[int, Damage] = field(default_factory=dict)
    is_proven: bool = False
    """True if the holes had been synced."""
    is_last: bool = False
    """True if no entry follows ``end``."""

    def has_seen(self, offset: int) -> bool:
        """Return whether the findings decide about bad bytes at ``offset``."""
        return offset in self.holes or (self.is_last and offset == self.end)


def _look_ahead(source: SegmentBytes, offset: int, *, may_be_torn: bool) -> _Ahead:
    """Search for the evidence about bad bytes at ``offset``: a mark or a footer anywhere after them."""
    start, spans = offset, []
    is_marked = is_last = False
    while True:
        entry = read_entry(source, offset)
        if entry is not None:
            # Any entry proves damage in a sealed file. At the end of the log only a mark or a footer does, since
            # entries of one commit reach the disk in any order.
            if not may_be_torn or entry.kind in (EntryKind.STREAMS, EntryKind.FOOTER):
                is_marked = True
                break
            offset = entry.end
            continue
        following = find_entry(source, offset)
        if following is None:
            is_last = True
            break
        spans.append((offset, following))
        offset = following
    # A crash does not make blocks unreadable, so an unreadable block proves damage even without a mark behind it.
    is_proven = is_marked or (may_be_torn and hides_entries(source, start))
    # If exactly one entry is missing, the mark behind it names its stream and the next number, and nothing has to be
    # skipped.
    is_exact = is_marked and len(spans) == 1 and _is_one_entry(source, *spans[0])
    holes = {}
    for first, end in spans:
        is_unreadable = source.is_unreadable(first, end)
        hidden = _hidden_max(first, end) if may_be_torn and is_unreadable and not is_exact else 0
        holes[first] = Damage(first, end, is_unreadable, hidden)
    return _Ahead(offset, holes, is_proven, is_last)


def _end(source: SegmentBytes, offset: int, ahead: _Ahead, *, may_be_torn: bool) -> Iterator[Damage | Torn]:
    """Yield the item after the last entry, if there is one."""
    if not may_be_torn:
        if offset < source.end:
            yield Damage(offset, source.end, source.is_unreadable(offset, source.end))
        return
    if hides_entries(source, offset):
        end = source.unreadable.end
        yield Damage(offset, end, is_unreadable=True, hidden_max=_hidden_max(offset, end))
        return
    if ahead.is_proven:
        # Unreadable blocks have turned the earlier holes into damage; nothing shows any longer what was synced here.
        return
    end = last_nonzero(source, offset)
    if offset == HEADER_BYTES:
        yield Damage(offset, end)
    elif end > offset:
        yield Torn(offset, end)


def _hidden_max(start: int, end: int) -> int:
    # Compressed, any number of equal records takes almost no bytes: only batches have a minimum size.
    return -(-(end - start) // _BATCH_BYTES_MIN) * BATCH_RECORDS_MAX


def _is_one_entry(source: SegmentBytes, start: int, end: int) -> bool:
    """Return whether a single entry was lost, which cannot hide a number if a mark follows."""
    try:
        head = source.peek(start)
    except CodecError:
        return False
    return head is not None and start + ENTRY_HEADER_BYTES + head.length == end


# Reading a log directory without opening it: for ``weft log dump``. Takes no lock and changes nothing.
#
# A log may be read while it is being written: the result is a momentary view, and its end may look torn.


class Inspected(NamedTuple):
    """One item of a segment file: its header, an entry, or bad bytes."""

    segment: str
    """File name, without the directory."""
    offset: int
    """Offset of the entry in the file."""
    position: int
    """Position of the entry in the log; the offset if it is unknown."""
    kind: EntryKind | None
    """Kind of the entry; None for the segment's own header and for bytes that are not an entry."""
    value: SegmentHeader | BatchHeader | Body | None
    """Decoded content; None if there is nothing to decode."""
    data: bytes
    """The whole batch of a ``BATCH`` or ``MOVED`` entry, for ``protocols.batch.records``; empty for others."""
    problem: str | None
    """Description of the problem at this offset, or None."""
    is_unreadable: bool = False
    """True if the problem is a block that the device cannot read, which a crash never causes."""
    is_torn: bool = False
    """True if the log ends here, with an unacknowledged commit; any other problem is damage."""


def inspect_log(directory: str, filesystem: FileSystem | None = None) -> Iterator[Inspected]:
    """Yield everything in the segments of a log, in log order; report damage and skip it.

    Raises:
        OSError: the directory or a file cannot be read.
        UnsupportedVersion: a later release wrote the log.
    """
    filesystem = filesystem or disk_of(directory)
    names = sorted(name for name in filesystem.list_names(directory) if format_.parse_file_name(name) is not None)
    for name in names:
        yield from inspect_segment(os.path.join(directory, name), filesystem, is_newest=name == names[-1])


def inspect_segment(path: str, filesystem: FileSystem | None = None, *, is_newest: bool) -> Iterator[Inspected]:
    """Yield everything in one segment file, also one that was kept aside; report damage and skip it.

    Args:
        is_newest: the log has no later segment, so this one may end with a torn commit.

    Raises:
        OSError: the file cannot be read.
        UnsupportedVersion: a later release wrote it.
    """
    file = (filesystem or disk_of(os.path.dirname(path))).open(path, read_only=True)
    try:
        name = os.path.basename(path)
        head = _inspect_header(file, name)
        yield head
        # An entry can be distinguished from other bytes only with the segment's position, from the file's name or else
        # the header.
        position = _named_position(name)
        if position is None and isinstance(head.value, SegmentHeader):
            position = head.value.first_position
        if position is not None:
            yield from _inspect_entries(file, position, name, is_newest=is_newest, has_header=head.problem is None)
    finally:
        file.close()


def _named_position(name: str) -> int | None:
    return format_.parse_file_name(name.removesuffix(DAMAGED))


def _inspect_header(file: File, name: str) -> Inspected:
    try:
        source = SegmentBytes(file, 0, HEADER_BYTES, unreadable_as_zeros=True)
        header = format_.decode_header(source.piece(0, HEADER_BYTES))
    except UnsupportedVersion:
        raise
    except CodecError as error:
        return Inspected(name, 0, 0, None, None, b"", str(error))
    named = _named_position(name)
    problem = None
    if named not in (None, header.first_position):
        problem = f"the header is that of the segment at position {header.first_position}, the name has {named}"
    return Inspected(name, 0, header.first_position, None, header, b"", problem)


def _inspect_entries(file: File, position: int, name: str, *, is_newest: bool, has_header: bool) -> Iterator[Inspected]:
    size = file.size()
    footer = find_footer(SegmentBytes(file, position, size, unreadable_as_zeros=True), size)
    end = size if footer is None else footer[0]
    may_be_torn = is_newest and footer is None
    source = SegmentBytes(file, position, end, unreadable_as_zeros=True)
    for item in walk(source, may_be_torn=may_be_torn, is_growing=may_be_torn):
        if isinstance(item, Entry):
            yield _inspect_entry(name, position, item)
        elif has_header or item.offset < item.end:
            # A file without a header and without further bytes is empty, which is reported in one line.
            yield _inspect_problem(name, position, item, source)
    if footer is not None:
        yield Inspected(name, footer[0], position + footer[0], EntryKind.FOOTER, footer[1], b"", None)
    elif not is_newest and has_header:
        yield Inspected(name, end, position + end, None, None, b"", "no footer ends the file, but the log continues")


def _inspect_entry(name: str, position: int, entry: Entry) -> Inspected:
    data = bytes(entry.body) if entry.kind in BATCHES else b""
    return Inspected(name, entry.offset, position + entry.offset, entry.kind, entry.value, data, None)


def _inspect_problem(name: str, position: int, item: Damage | Torn, source: SegmentBytes) -> Inspected:
    is_unreadable = isinstance(item, Damage) and item.is_unreadable
    problem = "the disk cannot read what is here" if is_unreadable else why_no_entry(source, item.offset)
    return Inspected(
        name, item.offset, position + item.offset, None, None, b"", problem, is_unreadable, isinstance(item, Torn)
    )


# Scan of a whole segment, as in recovery: its rebuilt index, and its damaged or torn parts.


@dataclass
class Scan:
    """Findings of a walk over a segment."""

    end: int = HEADER_BYTES
    """End of the entries that count. A segment that may be torn is cut here."""
    index: SegmentIndex = field(default_factory=SegmentIndex)
    next_seqs: dict[int, int] = field(default_factory=dict)
    """Stream -> the highest next seq that a mark, batch or notice implies."""
    begins: dict[int, int] = field(default_factory=dict)
    """Stream -> the first number in the segment."""
    damage: list[tuple[int, int]] = field(default_factory=list)
    """Byte ranges without valid entries although they had been synced."""
    last_mark: int = HEADER_BYTES
    """Offset of the last commit mark."""
    unmarked: set[int] = field(default_factory=set)
    """Streams with entries after the last mark: the next mark must name them."""
    torn_bytes: int = 0
    """Bytes after ``end`` up to the last non-zero one."""
    unreadable_bytes: int = 0
    """Bytes of the damage with blocks that the device cannot read, in a segment that was not sealed."""
    hidden_max: int = 0
    """Maximum number of records of each stream that were there without later evidence of them; see ``exact``."""
    exact: set[int] = field(default_factory=set)
    """Streams named by new records, marks or ``KEPT`` entries after the last damage: their ``next_seqs`` are right
    nevertheless. Notices and moved records have old numbers and are no evidence."""
    last_origin: int = 0
    """Highest origin number in a batch."""
    _resumed: set[tuple[int, bool]] = field(default_factory=set)

    def accept(self, entry: Entry) -> None:
        """Add an entry."""
        value = entry.value
        self.end = entry.end
        if isinstance(value, BatchHeader):
            moved = entry.kind is EntryKind.MOVED
            lane = (value.stream, moved)
            # Readers follow entries from an index point onwards. Behind damage they need a new one, or they would walk
            # into the hole.
            point = bool(self.damage) and lane not in self._resumed
            self._resumed.add(lane)
            self.index.add_batch(value, entry.offset, entry.end - entry.offset, point=point, moved=moved)
            self._saw(value.stream, value.base_seq, value.end_seq)
            self.last_origin = max(self.last_origin, value.origin)
            if not moved:
                self.unmarked.add(value.stream)
                self.exact.add(value.stream)
        elif isinstance(value, Kept):
            self.index.kept = value.lanes
            for kept in value.lanes:
                self._saw(kept.stream, kept.next_seq, kept.next_seq)
                self.exact.add(kept.stream)
        elif isinstance(value, Owner):
            self.index.owner = value
        elif isinstance(value, GapNotice):
            self.index.add_gap(value)
            self._saw(value.stream, value.first, value.end)
            self.unmarked.add(value.stream)
        elif isinstance(value, ClockNotice):
            self.index.add_clocks([value])
        elif isinstance(value, list):
            self.index.add_origins(value)
        elif isinstance(value, dict):
            self.last_mark = entry.offset
            self.unmarked.clear()
            for stream, named in value.items():
                self.index.streams[stream] = named.name
                self._saw(stream, named.next_seq, named.next_seq)
                self.exact.add(stream)

    def _saw(self, stream: int, first: int, end: int) -> None:
        self.begins.setdefault(stream, first)
        self.next_seqs[stream] = max(self.next_seqs.get(stream, 0), end)

    def hurt(self, damage: Damage, *, may_be_torn: bool) -> None:
        """Add damage."""
        self.damage.append((damage.offset, damage.end))
        if may_be_torn and damage.is_unreadable:
            self.unreadable_bytes += damage.end - damage.offset
        self.hidden_max += damage.hidden_max
        # Entries behind it need index points of their own, and numbers named before it may be out of date.
        self._resumed.clear()
        self.exact.clear()


def scan_segment(source: SegmentBytes, *, may_be_torn: bool) -> Scan:
    """Read all entries of a segment after its header.

    Args:
        may_be_torn: as for ``walk``.

    Raises:
        UnsupportedVersion: a sound entry that only a later release understands.
        OSError: the file cannot be read.
    """
    scan = Scan()
    for item in walk(source, may_be_torn=may_be_torn):
        if isinstance(item, Damage):
            scan.hurt(item, may_be_torn=may_be_torn)
        elif isinstance(item, Torn):
            scan.torn_bytes = item.end - item.offset
        elif item.kind is not EntryKind.FOOTER:
            # A footer only repeats the entries; one found here is from a sealing that a crash interrupted.
            scan.accept(item)
    return scan


# Damage in a segment: the file is kept aside, lost records get a gap notice, the rest remains readable.
#
# The segment itself remains in place, because most of it is sound; ``<name>.damaged`` is a second name (hard link) of
# the same file, so that the evidence outlives the segment until the budget needs its space.

logger = logging.getLogger(__name__)


def keep_aside(filesystem: FileSystem, path: str) -> bool:
    """Add the second name of a damaged segment, durably. False if it existed already: then the damage was reported."""
    try:
        # A second name costs no space and no copy on a disk that may be failing, and the evidence outlives the segment.
        filesystem.link(path, aside_path(path))
        filesystem.sync_directory(os.path.dirname(path))
    except FileExistsError:
        return False
    except OSError as error:
        logger.warning("the damaged segment %s cannot be moved aside: %s", path, error)
    return True


def missing_gaps(expected: dict[int, RangeSet], found: dict[int, RangeSet], now: int) -> list[GapNotice]:
    """Return notices for the expected numbers that were not found."""
    return [
        GapNotice(stream, first, end, GapReason.CORRUPTION, now)
        for stream, ranges in expected.items()
        for start, stop in ranges
        for first, end in found.get(stream, RangeSet()).missing(start, stop)
    ]


def quarantine(state: LogState, segment: Segment, now: int) -> list[GapNotice]:
    """Scan a segment in which a read found damage. Returns the queued notices, often none.

    The whole file is scanned, so that all its damage is known at once. Any thread; blocking.

    Raises:
        LogVersionError: the segment has an entry that only a later release understands.
        OSError: the file cannot be opened.
    """
    with state.changed:
        end = segment.end
        expected: dict[int, RangeSet] = {}
        for stream, span in segment.index.spans():
            expected.setdefault(stream, RangeSet()).update(_held(state, stream, span.ranges))
    # Without the lock: reading a segment from a failing card takes minutes, and appends must continue.
    scan = _scan(state.filesystem, segment, end)
    found: dict[int, RangeSet] = {}
    for stream, span in scan.index.spans():
        found.setdefault(stream, RangeSet()).update(span.ranges)
    with state.changed:
        gaps = missing_gaps(expected, found, now)
        # Another reader may have found the same damage meanwhile.
        # A second notice for the same numbers would go to every hub, too.
        gaps = [gap for gap in gaps if state.lanes[gap.stream].held.covers(gap.first, gap.end)]
        for known, seen in ((segment.index.lanes, scan.index.lanes), (segment.index.moved, scan.index.moved)):
            for stream in known.keys() & seen.keys():
                known[stream].add_points(seen[stream])
        for gap in gaps:
            state.lanes[gap.stream].held.remove(gap.first, gap.end)
            for span in segment.index.spans_of(gap.stream):
                span.ranges.remove(gap.first, gap.end)
            state.tail.drop(gap.stream)
        if scan.damage or gaps:
            segment.is_movable = False
            state.changes += 1
        if gaps and state.failed is None:
            state.queue.add_gaps(gaps)
            state.changed.notify_all()
    if gaps:
        keep_aside(state.filesystem, segment.path)
        report_damage(segment.path, scan, gaps)
    return gaps


def _held(state: LogState, stream: int, ranges: RangeSet) -> RangeSet:
    held = state.lanes[stream].held
    result = ranges.copy()
    for first, end in ranges:
        for start, stop in held.missing(first, end):
            result.remove(start, stop)
    return result


def _scan(filesystem: FileSystem, segment: Segment, end: int) -> Scan:
    file = filesystem.open(segment.path, read_only=True)
    try:
        return scan_segment(
            SegmentBytes(file, segment.first_position, end, unreadable_as_zeros=True), may_be_torn=False
        )
    except UnsupportedVersion as error:
        raise LogVersionError(f"{segment.path} was written by a later release of Weft: {error}") from error
    finally:
        file.close()


def report_damage(path: str, scan: Scan, gaps: list[GapNotice]) -> None:
    """Log the lost records."""
    lost = ", ".join(f"stream {gap.stream} seq {gap.first} to {gap.end - 1}" for gap in gaps)
    logger.error(
        "damage in %s at bytes %s: lost %s; recorded as gap notices, and the file is kept as %s",
        path,
        scan.damage,
        lost or "nothing",
        aside_path(path),
    )
