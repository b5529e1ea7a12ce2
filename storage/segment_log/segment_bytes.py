"""Bytes of a segment file through a bounded window: its header and footer, its entries, and the search for the next
entry after invalid bytes."""

from __future__ import annotations

import errno
import re
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
    EntryHeader,
    EntryKind,
    Footer,
    SegmentHeader,
    decode_body,
    decode_entry,
    peek_entry,
    sound_entry,
)
from weft.storage.filesystem import File
from weft.storage.segment_log.encryption import KeyUnavailable, ring_of
from weft.storage.segment_log.settings import entry_about

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
