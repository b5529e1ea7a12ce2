"""Reading a whole segment: to rebuild its index, and to tell a torn tail from damage.

**Torn or damaged?** Every commit is one write that begins with a ``STREAMS`` entry (the *commit mark*), and the writer
begins a commit only after the fsync of the one before. So bytes that are no valid entry may be

- *torn*: part of the last commit, whose fsync never returned. Nothing of that commit was acknowledged, and whatever
  follows the bad bytes may go with them.
- *damaged*: a commit mark stands somewhere after them. Then the commit they belong to had been synced, and its records
  acknowledged. Cutting there would throw away acknowledged records in silence; the bad bytes alone are lost, what
  follows is kept, and the lost sequence numbers get a gap notice.

- *unreadable*: the device fails to read a block (EIO) where entries may stand. No crash leaves that, so it is damage,
  also with no mark after it. What stood there is not known; what may have stood there is bounded by its length.

The one case that cannot be told apart is readable damage to the very last commit of an unsealed segment: it reads as
torn. A mark names the streams that the commit before it wrote, with their next seq, so that no lost entry can make a
sequence number be given out twice.

After bad bytes the next entry is found by the length in the bad entry's header if that leads to a sound entry (so that
a payload which poses as an entry is stepped over), and otherwise by looking for the shape of one; either way it counts
only if its checksum, which is seeded with its place in the log, is right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.protocols import batch
from weft.protocols.batch import BatchHeader
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.segment import (
    ENTRY_HEADER_BYTES,
    HEADER_BYTES,
    EntryKind,
    GapNotice,
    Kept,
    Owner,
    StreamEntry,
    decode_body,
)
from weft.storage.segment_log.settings import BATCH_RECORDS_MAX
from weft.storage.segment_log.state.index import SegmentIndex
from weft.storage.segment_log.walk.frames import Frame, SegmentBytes

_NO_BYTES = memoryview(b"")
_BATCH_BYTES_MIN = ENTRY_HEADER_BYTES + batch.HEADER_BYTES
_SEARCH_BYTES = 1 << 20
_SEARCHED_TIMES_MAX = 8
"""Looking for entries after bad bytes checks at most so many times the bytes of the segment, or ..."""
_SEARCHED_BYTES_MIN = 64 << 20
"""... as many bytes, whatever is more."""
_MARK_BYTES_MAX = 8 << 10
"""Of a commit mark that is still looked for beyond that: it names some hundred streams."""
_KIND_AT = 8
"""Offset of the kind byte in an entry's header."""
_SHAPE = re.compile(
    rb"\x01\0\0\0WFB|\x02\0\0\0\x95|\x03\0\0\0\x94|\x04\0\0\0|\x05\0\0\0[\x80-\x8f\xde\xdf]|\x06\0\0\0WFB|\x07\0\0\0\x91"
    rb"|\x08\0\0\0[\x93-\x9f]|\x0f\0\0\0[\x93-\x97]",
    re.DOTALL,
)
"""Kind, padding and the first bytes of the body of each kind of entry."""
_SHAPE_BYTES = 7


class _Found(NamedTuple):
    frame: Frame
    value: BatchHeader | dict[int, StreamEntry] | GapNotice | Kept | Owner | None
    after_hole: bool


@dataclass
class Scan:
    """What a walk over a segment found."""

    end: int = HEADER_BYTES
    """Offset at which the entries that count end. In a segment that may be torn, cut here."""
    index: SegmentIndex = field(default_factory=SegmentIndex)
    next_seqs: dict[int, int] = field(default_factory=dict)
    """Stream -> the highest next seq that a mark, batch or notice implies."""
    begins: dict[int, int] = field(default_factory=dict)
    """Stream -> the first number the segment speaks of."""
    damage: list[tuple[int, int]] = field(default_factory=list)
    """Byte ranges that are no entries although they had been synced."""
    last_mark: int = HEADER_BYTES
    """Offset of the last commit mark."""
    unmarked: set[int] = field(default_factory=set)
    """Streams of which entries follow the last mark: the next mark must name them."""
    torn_bytes: int = 0
    """Bytes after ``end`` up to the last that is not zero."""
    unreadable_bytes: int = 0
    """Of the damage, what holds blocks that the device cannot read in a segment that was not sealed."""
    hidden_max: int = 0
    """So many records of each stream, at most, stood there and nothing after it tells of them; see ``exact``."""
    exact: set[int] = field(default_factory=set)
    """Streams that new records, marks or ``KEPT`` entries after the last damage name: their ``next_seqs`` are right all
    the same. Notices and moved records are of old numbers and tell nothing."""
    _resumed: set[tuple[int, bool]] = field(default_factory=set)

    def accept(self, found: _Found) -> None:
        """Take an entry into the account."""
        frame, value, after_hole = found
        if after_hole:
            self._resumed.clear()
            self.exact.clear()
        self.end = frame.end
        if isinstance(value, BatchHeader):
            moved = frame.kind is EntryKind.MOVED
            lane = (value.stream, moved)
            point = bool(self.damage) and lane not in self._resumed
            self._resumed.add(lane)
            self.index.add_batch(value, frame.offset, frame.end - frame.offset, point=point, moved=moved)
            self._saw(value.stream, value.base_seq, value.end_seq)
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
        elif isinstance(value, dict):
            self.last_mark = frame.offset
            self.unmarked.clear()
            for stream, entry in value.items():
                self.index.streams[stream] = entry.name
                self._saw(stream, entry.next_seq, entry.next_seq)
                self.exact.add(stream)

    def _saw(self, stream: int, first: int, end: int) -> None:
        self.begins.setdefault(stream, first)
        self.next_seqs[stream] = max(self.next_seqs.get(stream, 0), end)

    def hide(self, source: SegmentBytes, holes: list[tuple[int, int]], *, marked: bool) -> None:
        """Take note of what cannot be read.

        Args:
            marked: a commit mark follows, so that a single lost entry cannot hide a number.
        """
        unreadable = [hole for hole in holes if source.is_unreadable(*hole)]
        self.unreadable_bytes += sum(end - start for start, end in unreadable)
        if unreadable and not (marked and len(holes) == 1 and _is_one_entry(source, *holes[0])):
            # Compressed, any number of equal records takes next to nothing: only batches have a least size.
            batches = sum(-(-(end - start) // _BATCH_BYTES_MIN) for start, end in unreadable)
            self.hidden_max += batches * BATCH_RECORDS_MAX


def scan_segment(source: SegmentBytes, *, may_be_torn: bool) -> Scan:
    """Walk all entries of a segment after its header.

    Args:
        may_be_torn: it is the newest segment and was not sealed; see the module's text.

    Raises:
        UnsupportedVersion: a sound entry that only a later release understands.
        OSError: the file cannot be read.
    """
    scan = Scan()
    doubtful: list[_Found] = []
    holes: list[tuple[int, int]] = []
    offset = HEADER_BYTES
    after_hole = False
    while True:
        found = _entry_at(source, offset, after_hole)
        if found is None:
            following = find_entry(source, offset)
            if following is None:
                break
            holes.append((offset, following))
            offset, after_hole = following, True
            continue
        if not holes and not doubtful and found.frame.kind is not EntryKind.FOOTER:
            scan.accept(found)
            offset, after_hole = found.frame.end, False
            continue
        sealing = found.frame.kind is EntryKind.FOOTER
        if not sealing:
            doubtful.append(found)
        if not may_be_torn or not holes or sealing or found.frame.kind is EntryKind.STREAMS:
            if may_be_torn:
                scan.hide(source, holes, marked=True)
            _settle(scan, holes, doubtful)
        if sealing:
            # The crash came while the segment was sealed; the footer says nothing that the entries do not.
            return scan
        offset, after_hole = found.frame.end, False
    if may_be_torn and hides_entries(source, scan.end):
        scan.hide(source, holes, marked=False)
        _settle(scan, holes, doubtful)
        if hides_entries(source, scan.end):
            tail = scan.end, source.unreadable.end
            scan.damage.append(tail)
            scan.hide(source, [tail], marked=False)
            scan.exact.clear()
        return scan
    scan.torn_bytes = _last_nonzero(source, scan.end) - scan.end
    return scan


def _settle(scan: Scan, holes: list[tuple[int, int]], doubtful: list[_Found]) -> None:
    """The holes are damage, and what follows them counts."""
    scan.damage += holes
    for known in doubtful:
        scan.accept(known)
    holes.clear()
    doubtful.clear()


def hides_entries(source: SegmentBytes, end: int) -> bool:
    """Whether the device cannot read a block at which entries may stand, behind those that were found up to ``end``.

    Where the next entry's header can be read and is zeros, no commit was ever synced.
    """
    if source.unreadable.end <= end:
        return False
    return source.is_unreadable(end, end + ENTRY_HEADER_BYTES) or any(source.piece(end, ENTRY_HEADER_BYTES))


def _is_one_entry(source: SegmentBytes, start: int, end: int) -> bool:
    try:
        head = source.peek(start)
    except CodecError:
        return False
    return head is not None and start + ENTRY_HEADER_BYTES + head.length == end


def _entry_at(source: SegmentBytes, offset: int, after_hole: bool) -> _Found | None:
    try:
        frame = source.entry(offset)
        if frame is None:
            return None
        return _Found(Frame(frame.kind, frame.offset, _NO_BYTES, frame.end), _value(frame), after_hole)
    except UnsupportedVersion:
        raise
    except CodecError:
        return None


def _value(frame: Frame) -> BatchHeader | dict[int, StreamEntry] | GapNotice | Kept | Owner | None:
    if frame.kind in (EntryKind.BATCH, EntryKind.MOVED):
        return batch.decode_header(frame.body)
    if frame.kind is EntryKind.CLOCK:
        return None
    value = decode_body(frame.kind, frame.body)
    return value if isinstance(value, dict | GapNotice | Kept | Owner) else None


def find_entry(source: SegmentBytes, bad: int) -> int | None:
    """Offset of the next sound entry after the bad bytes at ``bad``."""
    try:
        head = source.peek(bad)
    except CodecError:
        head = None
    if head is not None:
        chained = bad + ENTRY_HEADER_BYTES + head.length
        if _entry_at(source, chained, True):
            return chained
    at = bad + 1
    while at + ENTRY_HEADER_BYTES < source.end:
        block = bytes(source.piece(at, _SEARCH_BYTES))
        for match in _SHAPE.finditer(block):
            candidate = at + match.start() - _KIND_AT
            if candidate > bad and _is_worth_a_look(source, candidate) and _entry_at(source, candidate, True):
                return candidate
        if len(block) < _SEARCH_BYTES:
            return None
        at += len(block) - _SHAPE_BYTES
    return None


def _is_worth_a_look(source: SegmentBytes, offset: int) -> bool:
    """Whether an entry may be looked for here. Its checksum takes as long as the length that it claims, and a payload
    can claim much in every few bytes: past the bound only commit marks count, of a length that marks have."""
    try:
        head = source.peek(offset)
    except CodecError:
        return False
    if head is None:
        return False
    source.searched_bytes += head.length
    if source.searched_bytes <= max(_SEARCHED_BYTES_MIN, _SEARCHED_TIMES_MAX * source.end):
        return True
    return head.kind == EntryKind.STREAMS and head.length <= _MARK_BYTES_MAX


def _last_nonzero(source: SegmentBytes, start: int) -> int:
    end = start
    for at in range(start, source.end, _SEARCH_BYTES):
        block = bytes(source.piece(at, min(_SEARCH_BYTES, source.end - at))).rstrip(b"\0")
        if block:
            end = at + len(block)
    return end
