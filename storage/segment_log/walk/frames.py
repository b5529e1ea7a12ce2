"""Reading a segment file entry by entry through a bounded window."""

from __future__ import annotations

import errno
from typing import NamedTuple

from weft.protocols import batch
from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import (
    ENTRY_HEADER_BYTES,
    SEALED,
    EntryHeader,
    EntryKind,
    decode_entry,
    peek_entry,
    sound_entry,
)
from weft.storage.filesystem import File
from weft.storage.segment_log.sealed.disk import ring_of
from weft.storage.segment_log.sealed.errors import KeyUnavailable
from weft.storage.segment_log.sealed.layout import entry_about

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
        if header is not None and offset + ENTRY_HEADER_BYTES + header.length > self.end:
            raise Corrupt(f"the entry at offset {offset} claims {header.length} bytes")
        return header

    def batch_header(self, offset: int) -> batch.BatchHeader:
        """Return the header of the batch in the entry at ``offset``: unchecked, unless the entry is sealed.

        Raises:
            CodecError: there is no batch header.
            OSError: as ``piece``.
        """
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
        if self._opened is not None and self._opened.offset == offset:
            return self._opened
        at = offset - self._start
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
