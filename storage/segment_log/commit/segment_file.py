"""Writing one segment file: create, commit, seal."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Iterable

from weft.protocols.batch import decode_header
from weft.protocols.segment import (
    ENTRY_HEADER_BYTES,
    HEADER_BYTES,
    SEALED_VERSION,
    TRAILER_BYTES,
    ClockNotice,
    EntryKind,
    Footer,
    GapNotice,
    Kept,
    Owner,
    SegmentHeader,
    StreamEntry,
    decode_body,
    encode_body,
    encode_entry_header,
    encode_header,
    encode_streams,
    encode_trailer,
    file_name,
    version_needed,
)
from weft.storage.filesystem import File, FileSystem
from weft.storage.segment_log.names import UNFINISHED
from weft.storage.segment_log.sealed.disk import ring_of
from weft.storage.segment_log.sealed.layout import SEALED_BYTES, entry_about
from weft.storage.segment_log.state.index import SegmentIndex
from weft.storage.segment_log.state.segment import Segment

PAGE_BYTES = 4096
"""Smallest unit of flash writes: after a commit that ends within a page, the next one writes that page again."""
ZEROED_BYTES = 32 << 10
"""A small commit writes zeros up to the next multiple of this: the first write to a block costs a journal entry of the
file system with its sync (``docs/decisions/0018-zeros-ahead-of-small-commits.md``)."""
SMALL_COMMIT_BYTES = 8 << 10
"""Size of a commit below which its share of the zeros costs less than the journal."""
OPENING_PIECE_BYTES = 1 << 20
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""The disk is full, or the user's share of it."""


def pages(start: int, end: int) -> int:
    """Return the bytes of the device's pages that a write of ``[start, end)`` touches."""
    return (-(-end // PAGE_BYTES) - start // PAGE_BYTES) * PAGE_BYTES


def newest_version(entries: Iterable[tuple[EntryKind, bytes]]) -> int:
    """Return the lowest version of a segment that may contain all these entries."""
    return max(version_needed(kind, body) for kind, body in entries)


class SegmentWriter:
    """The segment that is being written. For the writer thread; ``segment.end`` moves only in ``publish``."""

    def __init__(self, file: File, segment: Segment) -> None:
        self._file = file
        ring = ring_of(file)
        self._cipher = None if ring is None or segment.version < SEALED_VERSION else ring.cipher
        self.frame_bytes = ENTRY_HEADER_BYTES + (0 if self._cipher is None else SEALED_BYTES)
        """Bytes of an entry in the file beside its plain body."""
        segment.index.seal_bytes = self.frame_bytes - ENTRY_HEADER_BYTES
        self.segment = segment
        self.device_bytes = 0
        """Bytes of pages written since the caller last reset it."""
        self._end = segment.end
        self._written = segment.end
        """Offset from which on nothing was written yet, not even zeros."""

    @classmethod
    def create(  # noqa: PLR0917 - what a segment begins with
        cls,
        filesystem: FileSystem,
        directory: str,
        header: SegmentHeader,
        streams: dict[int, StreamEntry],
        opening: Iterable[tuple[EntryKind, bytes]],
        length: int,
    ) -> SegmentWriter:
        """Make a segment whose first entry names all streams; file and name are durable when this returns.

        Space is reserved but not written: ``write`` writes zeros, a part at a time, when that saves the disk more than
        it costs.

        Args:
            opening: the entries after the first; they are written as the iterable yields them.
            length: length of the file; more if the entries need it.

        Raises:
            OSError: the segment was not made, unless the sync of its name failed.
        """
        path = os.path.join(directory, file_name(header.first_position))
        # A crash may have left an unfinished segment of this name.
        with contextlib.suppress(FileNotFoundError):
            filesystem.remove(path + UNFINISHED)
        file = filesystem.create(path + UNFINISHED)
        try:
            file.allocate(length)
            file.write_at(0, encode_header(header))
            segment = Segment(path, header.first_position, HEADER_BYTES, 0, SegmentIndex(), version=header.version)
            segment.index.streams = {stream: entry.name for stream, entry in streams.items()}
            writer = cls(file, segment)
            writer.write_opening(itertools.chain([(EntryKind.STREAMS, encode_streams(streams))], opening))
            file.sync()
            # Content before name: a segment that has its name is complete, also after a power cut.
            filesystem.rename(path + UNFINISHED, path)
            filesystem.sync_directory(directory)
            writer.publish()
            segment.size = file.size()
            return writer
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                filesystem.remove(path + UNFINISHED)
            raise

    def write_opening(self, entries: Iterable[tuple[EntryKind, bytes]]) -> None:
        """Write entries of a segment without a name, in pieces, unsynced, and index them."""
        parts: list[bytes] = []
        length, start, index = 0, self._end, self.segment.index
        for kind, body in entries:
            parts += self._stored(self.segment.first_position + self._end, kind, body)
            if kind is EntryKind.MOVED:
                index.add_batch(decode_header(body), self._end, self.frame_bytes + len(body), moved=True)
            elif kind is not EntryKind.STREAMS:
                value = decode_body(kind, body)
                if isinstance(value, GapNotice):
                    index.add_gap(value)
                elif isinstance(value, Kept):
                    index.kept = value.lanes
                elif isinstance(value, Owner):
                    index.owner = value
                elif isinstance(value, ClockNotice):
                    index.add_clocks([value])
                elif isinstance(value, list):
                    index.add_origins(value)
            length += self.frame_bytes + len(body)
            self._end += self.frame_bytes + len(body)
            # In pieces, because moved records may be many megabytes.
            if length >= OPENING_PIECE_BYTES:
                self._file.write_at(start, b"".join(parts))
                start, length = self._end, 0
                parts.clear()
        self._file.write_at(start, b"".join(parts))
        self.device_bytes += pages(0, self._end)

    def grow(self, length: int) -> None:
        """Reserve space up to ``length`` bytes, or as much as the disk has.

        Raises:
            OSError: for any error other than a full disk.
        """
        if length > self._file.size():
            try:
                self._file.allocate(length)
            except OSError as error:
                # On a full disk the segment keeps its length, and the log refuses records when that is used up.
                if error.errno not in NO_SPACE:
                    raise

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self._file.size()

    @property
    def next_position(self) -> int:
        """Log position of the next entry."""
        return self.segment.first_position + self._end

    def fits(self, length: int, version: int = 1) -> bool:
        """Return whether ``length`` more bytes of entries, which need a segment of ``version``, leave room for a footer
        in the reserved space."""
        return (
            version <= self.segment.version
            and self._end + length + self.segment.index.footer_bytes + TRAILER_BYTES <= self.segment.size
        )

    def write(self, entries: list[tuple[EntryKind, bytes]], version: int) -> list[int]:
        """Append entries with one write and one sync. Returns the offset of each.

        Args:
            version: their ``newest_version``. A commit looks it up once, since it costs as much as the checksums.

        Raises:
            ValueError: a segment of this version must not contain one of them. Nothing was written.
            OSError: it is not known what reached the disk; the segment must not be written again.
        """
        parts: list[bytes] = []
        offsets = []
        at = self._end
        if version > self.segment.version:
            raise ValueError(f"{self.segment.path} has version {self.segment.version}, which is too low for a commit")
        for kind, body in entries:
            offsets.append(at)
            parts += self._stored(self.segment.first_position + at, kind, body)
            at += self.frame_bytes + len(body)
        stop = at
        # Zeros only into blocks that were never written, and only for a small commit: see ``ZEROED_BYTES``.
        if at > self._written and at - self._end < SMALL_COMMIT_BYTES:
            stop = min(-(-at // ZEROED_BYTES) * ZEROED_BYTES, self.segment.size)
            parts.append(bytes(stop - at))
        self._file.write_at(self._end, b"".join(parts))
        self._file.sync()
        self.device_bytes += pages(self._end, stop)
        self._end, self._written = at, max(stop, self._written)
        return offsets

    def _stored(self, position: int, kind: EntryKind, body: bytes) -> tuple[bytes, bytes]:
        """Return an entry's header and its body as they stand in the file."""
        if self._cipher is None:
            return encode_entry_header(position, kind, body), body
        sealed = self._cipher.seal(body, entry_about(kind))
        return encode_entry_header(position, kind, sealed, is_sealed=True), sealed

    def publish(self) -> None:
        """Make the entries of ``write`` visible to readers."""
        self.segment.end = self._end
        self.segment.size = max(self.segment.size, self._end)

    def seal(self, footer: Footer) -> int:
        """Write footer and trailer, cut the file to its end and sync. Returns the size of the file.

        A crash in between leaves an unsealed segment with all its entries.

        Raises:
            OSError: as ``write``.
        """
        body = encode_body(footer)
        last = b"".join((*self._stored(self.next_position, EntryKind.FOOTER, body), encode_trailer(self._end)))
        self._file.write_at(self._end, last)
        size = self._end + len(last)
        # Before the sync: readers find the trailer at the end of the file, not before preallocated zeros.
        self._file.truncate(size)
        self._file.sync()
        self._file.close()
        self.device_bytes += pages(self._end, size)
        return size

    def close(self) -> None:
        """Release the file."""
        self._file.close()
