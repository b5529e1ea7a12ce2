"""Reading of segment files entry by entry: what is an entry, what is damage, and what is a torn end. One rule for
all readers."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.protocols import batch
from weft.protocols import segment as format_
from weft.protocols.batch import BatchHeader, Buffer
from weft.protocols.errors import CodecError, Corrupt, UnsupportedVersion
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import (
    BATCHES,
    ENTRY_HEADER_BYTES,
    HEADER_BYTES,
    SEALED,
    TRAILER_BYTES,
    Body,
    ClockNotice,
    EntryHeader,
    EntryKind,
    Footer,
    GapNotice,
    GapReason,
    Kept,
    Owner,
    SegmentHeader,
    Whole,
    decode_body,
    decode_entry,
    peek_entry,
    sound_entry,
)
from weft.storage.filesystem import File, FileSystem
from weft.storage.segment_log.encryption import KeyUnavailable, disk_of, ring_of
from weft.storage.segment_log.index import Segment, SegmentIndex
from weft.storage.segment_log.settings import BATCH_RECORDS_MAX, DAMAGED, LogVersionError, aside_path, entry_about
from weft.storage.segment_log.state import LogState

# Reading a segment file entry by entry through a bounded window.
#
# At bad bytes the walk looks ahead for a mark or a footer. Entries are not held back until a mark proves them: readers
# of bodies would hold up to a segment in memory.

_BLOCK_BYTES = 4096
"""Unit of bytes that a device can or cannot read as a whole: a page."""
_KIND_AT = 8
"""Offset of the kind byte in an entry's header."""


class Frame(NamedTuple):
    """One checked entry."""

    kind: EntryKind
    offset: int
    body: memoryview
    """Valid until the next read through the same ``SegmentBytes``."""
    end: int
    """Offset of the next entry."""


class SegmentBytes:
    """The bytes of one segment, of which a window is in memory. For one thread at a time.

    Args:
        end: bytes from here on are never read (they are not durable, or not entries).
        unreadable_as_zeros: a block that the device cannot read (EIO) counts as zeros, which invalidates every entry in
            it.
    """

    def __init__(
        self,
        file: File,
        first_position: int,
        end: int,
        *,
        window_bytes: int = 1 << 20,
        unreadable_as_zeros: bool = False,
    ) -> None:
        self._file = file
        self._ring = ring_of(file)
        self._opened: Frame | None = None
        """The sealed entry that was opened last: its batch header and its body are asked for one after the other."""
        self.first_position = first_position
        self.end = end
        self._window_bytes = window_bytes
        self._unreadable_as_zeros = unreadable_as_zeros
        self.unreadable = RangeSet()
        """Offsets that were read as zeros only because the device cannot read them."""
        self.searched_bytes = 0
        """Bytes claimed by candidates for entries in searches."""
        self._start = 0
        self._window = memoryview(b"")

    def piece(self, offset: int, length: int) -> memoryview:
        """Return ``length`` bytes from ``offset``; fewer only at the end.

        Raises:
            OSError: the device cannot read them.
        """
        length = max(0, min(length, self.end - offset))
        at = offset - self._start
        # One window, moved forward: a segment is never in memory as a whole, however large it is.
        if at < 0 or at + length > len(self._window):
            self._start, at = offset, 0
            self._window = memoryview(self._read(offset, length))
        return self._window[at : at + length]

    def is_unreadable(self, start: int, end: int) -> bool:
        """Return whether the device could not read some of these bytes."""
        return start < end and self.unreadable.missing(start, end) != [(start, end)]

    def look_again(self) -> None:
        """Forget the bytes in memory: another process may have written to the file, and extended it."""
        self._window = memoryview(b"")
        self._opened = None
        self.end = max(self.end, self._file.size())

    def _read(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes from ``offset``, and the rest of the window if the device can read it."""
        wished = min(max(length, self._window_bytes), self.end - offset)
        # The verdict about a block is kept for the life of this reader: a second answer could contradict what has been
        # concluded from the first.
        if self.is_unreadable(offset, offset + wished):
            return self._read_blocks(offset, wished)
        # One bad sector must not make its whole window unreadable.
        try:
            data = self._file.read_at(offset, wished)
            if len(data) == wished or not self._unreadable_as_zeros:
                return data
        except OSError as error:
            if error.errno != errno.EIO or (length == wished and not self._unreadable_as_zeros):
                raise
        return self._read_blocks(offset, wished) if self._unreadable_as_zeros else self._file.read_at(offset, length)

    def _read_blocks(self, offset: int, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            at = offset + len(data)
            size = min(_BLOCK_BYTES - at % _BLOCK_BYTES, length - len(data))
            if self.is_unreadable(at, at + size):
                # Not repeated: on a failing card each try takes seconds, and decisions based on the zeros must remain
                # valid.
                data += bytes(size)
                continue
            try:
                part = self._file.read_at(at, size)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                part = bytes(size)
                self.unreadable.add(at, at + size)
            if not part:
                break  # the file was truncated meanwhile
            data += part
        return bytes(data)

    @property
    def may_be_sealed(self) -> bool:
        """Return whether sealed entries can be opened."""
        return self._ring is not None

    def peek(self, offset: int) -> EntryHeader | None:
        """Return the unchecked header of the entry at ``offset``; None at the end of the entries.

        Raises:
            Corrupt: no entry can be that long, or it would run past the end.
            OSError: as ``piece``.
        """
        data = self.piece(offset, ENTRY_HEADER_BYTES)
        header = peek_entry(data, 0) if len(data) == ENTRY_HEADER_BYTES else None
        # A flipped bit in a length must not make the reader ask for gigabytes.
        if header is not None and offset + ENTRY_HEADER_BYTES + header.length > self.end:
            raise Corrupt(f"the entry at offset {offset} claims {header.length} bytes")
        return header

    def batch_header(self, offset: int) -> batch.BatchHeader:
        """Return the header of the batch in the entry at ``offset``: unchecked, unless the entry is sealed.

        Raises:
            CodecError: there is no batch header.
            OSError: as ``piece``.
        """
        # The header of a sealed batch is inside the ciphertext, so the whole entry is opened to read it.
        if self.piece(offset + _KIND_AT, 1)[0] & SEALED:
            frame = self.entry(offset)
            if frame is None:
                raise Corrupt(f"zeros at offset {offset} where a batch should be")
            return batch.decode_header(frame.body)
        return batch.decode_header(self.piece(offset + ENTRY_HEADER_BYTES, batch.HEADER_BYTES))

    def readable_batch_header(self, offset: int) -> batch.BatchHeader | None:
        """Return ``batch_header``; None for a damaged sealed entry. A plain one's header shows what to skip even if the
        body is damaged; of a sealed one nothing can be read, and a caller that needs its records misses them.

        Raises as ``batch_header``.
        """
        try:
            return self.batch_header(offset)
        except CodecError:
            if self.piece(offset + _KIND_AT, 1)[0] & SEALED:
                return None
            raise

    def entry(self, offset: int) -> Frame | None:
        """Return the entry at ``offset``, checked against its checksum; None at the end of the entries.

        Raises:
            UnsupportedVersion: a sound entry of a kind that this release does not know.
            CodecError: the bytes are not an entry of this log at this place.
            OSError: as ``piece``.
            KeyUnavailable: the entry is sealed, and its key is not to be had.
        """
        # An entry is looked at several times, by its header and by its body. It is decrypted once.
        if self._opened is not None and self._opened.offset == offset:
            return self._opened
        at = offset - self._start
        # The usual case in one call: the entry lies whole in the window and checks.
        sound = sound_entry(self._window, at, self.first_position + offset) if at >= 0 else None
        if sound is not None:
            body = self._window[at + ENTRY_HEADER_BYTES : sound[1]]
            frame = Frame(sound[0], offset, body, self._start + sound[1])
            return self._open(frame) if self._window[at + _KIND_AT] & SEALED else frame
        head = self.peek(offset)
        if head is None:
            # Fewer bytes than a header, or zeros: decode_entry distinguishes the end from a torn header.
            decode_entry(self.piece(offset, ENTRY_HEADER_BYTES), 0, self.first_position + offset)
            return None
        data = self.piece(offset, ENTRY_HEADER_BYTES + head.length)
        entry = decode_entry(data, 0, self.first_position + offset)
        if entry is None:
            return None
        frame = Frame(entry.kind, offset, data[entry.body_start : entry.body_end], offset + entry.end)
        return self._open(frame) if entry.is_sealed else frame

    def _open(self, frame: Frame) -> Frame:
        if self._ring is None:
            raise KeyUnavailable(
                "the log is encrypted. Name its key under `encryption` in the node's configuration, or the file that "
                "holds it in the variable WEFT_KEY_FILE"
            )
        body = self._ring.cipher.open(frame.body, entry_about(frame.kind))
        self._opened = frame._replace(body=memoryview(body))
        return self._opened


# Both ends of a segment file: its header, and the footer of a sealed one.


def find_header(source: SegmentBytes, position: int) -> SegmentHeader | None:
    """Return the header of the segment at a log position; None if it is damaged, or of another position.

    Raises:
        UnsupportedVersion: a later release wrote it.
        OSError: the file cannot be read.
    """
    try:
        header = format_.decode_header(source.piece(0, HEADER_BYTES))
    except UnsupportedVersion:
        raise
    except CodecError:
        return None
    # A header of another position belongs to a copied or renamed file. Its entries would fail their checksums, which
    # are seeded with the position.
    return header if header.first_position == position else None


def find_footer(source: SegmentBytes, size: int) -> tuple[int, Footer] | None:
    """Return offset and content of a sealed segment's footer; None when it is not sealed, or the footer is damaged.

    Raises:
        UnsupportedVersion: only a later release understands it.
        OSError: the file cannot be read.
    """
    try:
        offset = format_.decode_trailer(source.piece(max(0, size - TRAILER_BYTES), TRAILER_BYTES))
        frame = source.entry(offset)
        # Payload bytes may look like a trailer. Only a footer that checks at the place it names is one.
        if frame is None or frame.kind is not EntryKind.FOOTER:
            raise Corrupt("a segment's trailer does not lead to a footer")
        footer = format_.decode_body(frame.kind, frame.body)
    # What a later release wrote is not damage. Taking it for damage would cut sound records, so every reader ends with
    # the same sentence.
    except UnsupportedVersion:
        raise
    except CodecError:
        return None
    return (offset, footer) if isinstance(footer, Footer) else None


# One entry of a segment, checked and decoded.


class Entry(NamedTuple):
    """One sound entry."""

    kind: EntryKind
    offset: int
    end: int
    """Offset of the next entry."""
    value: BatchHeader | Body
    """The header of a batch; for other kinds the whole content."""
    body: Buffer
    """The bytes; for a batch the whole batch. From ``read_entry``, they are valid until the next read through the same
    ``SegmentBytes``."""


def read_entry(source: SegmentBytes, offset: int) -> Entry | None:
    """Return the entry at ``offset``; None if the bytes are not an entry.

    Raises:
        UnsupportedVersion: a sound entry that only a later release understands.
        OSError: the file cannot be read.
    """
    try:
        frame = source.entry(offset)
        return None if frame is None else _decoded(frame)
    except UnsupportedVersion:
        raise
    except CodecError:
        return None


def why_no_entry(source: SegmentBytes, offset: int) -> str:
    """Return the problem with the bytes at ``offset``, for which ``read_entry`` returned None."""
    try:
        frame = source.entry(offset)
        if frame is not None:
            _decoded(frame)
    except CodecError as error:
        return str(error)
    return "zeros where entries should be"


def _decoded(frame: Frame) -> Entry:
    value = batch.decode_header(frame.body) if frame.kind in BATCHES else decode_body(frame.kind, frame.body)
    return Entry(frame.kind, frame.offset, frame.end, value, frame.body)


# Finding the next entry after invalid bytes.
#
# The length in the bad entry's header is used if it leads to a sound entry, so that a payload which looks like an
# entry is skipped. Otherwise the search looks for the shape of an entry. Either way, an entry counts only if its
# checksum, which is seeded with its position in the log, is right.

_SEARCH_BYTES = 1 << 20
_SEARCHED_TIMES_MAX = 8
"""Maximum checked bytes of a search for entries after bad bytes, in lengths of the segment."""
_SEARCHED_BYTES_MIN = 64 << 20
"""Maximum checked bytes of a search in a short segment: the larger of the two limits counts."""
_MARK_BYTES_MAX = 8 << 10
"""Longest commit mark that the search finds beyond these limits, with some hundred streams."""
_SHAPE = re.compile(
    rb"\x01\0\0\0WFB|\x02\0\0\0\x95|\x03\0\0\0\x94|\x04\0\0\0[\x91-\x9f]|\x05\0\0\0[\x80-\x8f\xde\xdf]|\x06\0\0\0WFB|\x07\0\0\0\x91"
    rb"|\x08\0\0\0[\x93-\x9f]|\x09\0\0\0[\x91-\x9f\xdc]|\x0f\0\0\0[\x93-\x9f]",
    re.DOTALL,
)
"""Kind, padding and the first bytes of the body of each kind of entry."""
_SEALED_SHAPE = re.compile(_SHAPE.pattern + rb"|[\x41-\x49\x4f]\0\0\0", re.DOTALL)
"""The same, or kind and padding of a sealed entry, whose body has no shape."""
_SHAPE_BYTES = 7
_ZEROS = bytes(_SEARCH_BYTES)


def find_entry(source: SegmentBytes, bad: int) -> int | None:
    """Return the offset of the next sound entry after the bad bytes at ``bad``; None when none follows.

    Raises:
        UnsupportedVersion: a sound entry that only a later release understands.
        OSError: the file cannot be read.
    """
    try:
        head = source.peek(bad)
    except CodecError:
        head = None
    if head is not None:
        # A bad entry keeps its length more often than not. Following it skips payloads that contain whole entries, such
        # as a stored copy of a log.
        chained = bad + ENTRY_HEADER_BYTES + head.length
        if read_entry(source, chained) is not None:
            return chained
    shape = _SEALED_SHAPE if source.may_be_sealed else _SHAPE
    at = bad + 1
    while at + ENTRY_HEADER_BYTES < source.end:
        block = bytes(source.piece(at, _SEARCH_BYTES))
        for match in shape.finditer(block) if not _is_zeros(block) else ():
            candidate = at + match.start() - _KIND_AT
            if candidate > bad and _is_worth_a_look(source, candidate) and read_entry(source, candidate) is not None:
                return candidate
        if len(block) < _SEARCH_BYTES:
            return None
        # The blocks overlap by a shape, so that one across their border is found.
        at += len(block) - _SHAPE_BYTES
    return None


def hides_entries(source: SegmentBytes, end: int) -> bool:
    """Return whether a block that the device cannot read may hold entries behind the found ones, which end at ``end``.

    If the next entry's header can be read and is zeros, no commit was ever synced there.
    """
    # Unreadable blocks before the end have been counted as damage already.
    if source.unreadable.end <= end:
        return False
    return source.is_unreadable(end, end + ENTRY_HEADER_BYTES) or any(source.piece(end, ENTRY_HEADER_BYTES))


def last_nonzero(source: SegmentBytes, start: int) -> int:
    """Return the offset after the last non-zero byte from ``start`` on; ``start`` if all are zero."""
    end = source.end
    while end > start:
        at = max(start, end - _SEARCH_BYTES)
        block = bytes(source.piece(at, end - at))
        if not _is_zeros(block):
            return at + len(block.rstrip(b"\0"))
        end = at
    return start


def _is_zeros(block: bytes) -> bool:
    # Most of the searched bytes are reserved space that was never written. Comparing takes 0.05 ms a block, stripping 2
    # ms and the expression for shapes 20 ms.
    return block == (_ZEROS if len(block) == _SEARCH_BYTES else _ZEROS[: len(block)])


def _is_worth_a_look(source: SegmentBytes, offset: int) -> bool:
    """Return whether to check a candidate here. The time of its checksum depends on the length that it claims, and a
    payload can claim great lengths in every few bytes: past the bound, only commit marks of a plausible length are
    checked."""
    try:
        head = source.peek(offset)
    except CodecError:
        return False
    if head is None:
        return False
    # Each candidate costs reading as many bytes as it claims. A file made of look-alikes would take hours without a
    # bound; behind it only commit marks, which are short, are still looked for.
    source.searched_bytes += head.length
    if source.searched_bytes <= max(_SEARCHED_BYTES_MIN, _SEARCHED_TIMES_MAX * source.end):
        return True
    return head.kind == EntryKind.STREAMS and head.length <= _MARK_BYTES_MAX


# The one rule that distinguishes an entry, damage and a torn end, for all readers of segment files.
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
        logger.warning("the damaged segment %s cannot be kept aside: %s", path, error)
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
