"""Writing one segment file: create, commit, seal."""

from __future__ import annotations

import os
from dataclasses import dataclass

from protocols.segment import (
    ENTRY_HEADER_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    EntryKind,
    Footer,
    SegmentHeader,
    StreamEntry,
    encode_body,
    encode_entry_header,
    encode_header,
    encode_streams,
    encode_trailer,
    file_name,
)
from storage.filesystem import File, FileSystem
from storage.segment_log.index import SegmentIndex

UNFINISHED = ".new"
"""Suffix of a segment that is being created: a crash leaves a file that no start-up reads."""


@dataclass
class Segment:
    """A segment as readers and the budget see it. Guarded by the log's lock."""

    path: str
    first_position: int
    end: int
    """Durable bytes that hold entries; readers look no further."""
    size: int
    """Bytes of the file on disk."""
    index: SegmentIndex


class SegmentWriter:
    """The segment that is being written. For the writer thread; ``segment.end`` moves only in ``publish``."""

    def __init__(self, file: File, segment: Segment) -> None:
        self._file = file
        self.segment = segment
        self._end = segment.end

    @classmethod
    def create(
        cls,
        filesystem: FileSystem,
        directory: str,
        header: SegmentHeader,
        streams: dict[int, StreamEntry],
        length: int,
    ) -> SegmentWriter:
        """Make a segment whose first entry names all streams; durable, name included, when this returns.

        Space is reserved and not written: writing zeros first would make later commits up to twice as fast, and wear
        flash twice as fast.

        Raises:
            OSError: nothing under the segment's name was made.
        """
        path = os.path.join(directory, file_name(header.first_position))
        body = encode_streams(streams)
        start = encode_header(header)
        start += encode_entry_header(header.first_position + HEADER_BYTES, EntryKind.STREAMS, body) + body
        file = filesystem.create(path + UNFINISHED)
        try:
            file.allocate(max(length, len(start)))
            file.write_at(0, start)
            file.sync()
            filesystem.rename(path + UNFINISHED, path)
            filesystem.sync_directory(directory)
            index = SegmentIndex()
            index.streams = {stream: entry.name for stream, entry in streams.items()}
            return cls(file, Segment(path, header.first_position, len(start), file.size(), index))
        except BaseException:
            file.close()
            raise

    @property
    def next_position(self) -> int:
        """Log position of the next entry."""
        return self.segment.first_position + self._end

    def fits(self, length: int) -> bool:
        """Whether ``length`` more bytes of entries leave room for a footer in the reserved space."""
        return self._end + length + self.segment.index.footer_bytes + TRAILER_BYTES <= self.segment.size

    def write(self, entries: list[tuple[EntryKind, bytes]]) -> list[int]:
        """Append entries with one write and one sync. Returns the offset of each.

        Raises:
            OSError: it is not known what reached the disk; the segment must not be written any more.
        """
        parts: list[bytes] = []
        offsets = []
        at = self._end
        for kind, body in entries:
            offsets.append(at)
            parts += (encode_entry_header(self.segment.first_position + at, kind, body), body)
            at += ENTRY_HEADER_BYTES + len(body)
        self._file.write_at(self._end, b"".join(parts))
        self._file.sync()
        self._end = at
        return offsets

    def publish(self) -> None:
        """Let readers see what ``write`` made durable."""
        self.segment.end = self._end
        self.segment.size = max(self.segment.size, self._end)

    def seal(self, footer: Footer) -> int:
        """Write footer and trailer, cut the file to its end and sync. Returns the size of the file.

        A crash in between leaves an unsealed segment with all its entries.

        Raises:
            OSError: as ``write``.
        """
        body = encode_body(footer)
        last = encode_entry_header(self.next_position, EntryKind.FOOTER, body) + body + encode_trailer(self._end)
        self._file.write_at(self._end, last)
        size = self._end + len(last)
        self._file.truncate(size)
        self._file.sync()
        self._file.close()
        return size

    def close(self) -> None:
        """Release the file."""
        self._file.close()
