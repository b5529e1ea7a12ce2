"""One segment file, read while its node may be writing or deleting it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator

from weft.protocols import segment as format_
from weft.protocols.batch import BatchHeader
from weft.protocols.lane import NodeName
from weft.protocols.origin import Origin, by_number, origin_text
from weft.protocols.segment import HEADER_BYTES, EntryKind, Footer, Owner, StreamEntry
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.walk.ends import find_footer, find_header
from weft.storage.segment_log.walk.entry import Entry, read_entry
from weft.storage.segment_log.walk.frames import SegmentBytes
from weft.storage.segment_log.walk.search import find_entry, last_nonzero
from weft.storage.segment_log.walk.walker import Item, Torn, walk

_WINDOW_BYTES = 256 << 10
_EARLY_BYTES = 256 << 10
_CHUNK_BYTES = 256 << 10
_CHUNK_GROWTH = 4

Wants = Callable[[int], bool]
"""Function from a stream number to whether its batches are wanted with their bodies."""


def wants_none(_number: int) -> bool:
    """Refuse all bodies: for readers that need only headers and notices."""
    return False


class SegmentView:
    """One open segment file; it stays readable after its name is deleted. ``close`` it. For one thread."""

    def __init__(self, filesystem: FileSystem, path: str, position: int) -> None:
        """Open the file.

        Raises:
            FileNotFoundError: it was deleted since it was listed.
            OSError: it cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        self.path = path
        self.position = position
        """Log position of its first byte."""
        self._file = filesystem.open(path, read_only=True)
        self._opened = _identity(path)
        self.footer: Footer | None = None
        """Index, once the segment is sealed."""
        self.end = 0
        """Offset at which entries end at the latest."""
        self.look_again()
        self.header = find_header(self.source(), position)
        """Header; None when it is damaged."""
        self._names: dict[int, str] = {}
        self._origins: dict[int, Origin] = {}
        self._named = False
        self._marks_end = HEADER_BYTES

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def look_again(self) -> None:
        """Check whether the node has sealed the segment, or given it another length, since the last check."""
        size = self._file.size()
        if self.footer is None and (found := find_footer(self.source(size), size)) is not None:
            self.end, self.footer = found
        elif self.footer is None:
            self.end = size

    def is_written_at(self, offset: int) -> bool:
        """Return whether ``offset`` has other bytes than the zeros of reserved space: one short read."""
        return any(self._file.read_at(offset, format_.ENTRY_HEADER_BYTES))

    @property
    def is_same_file(self) -> bool:
        """Return whether the name still refers to the open file."""
        try:
            return _identity(self.path) == self._opened
        except FileNotFoundError:
            return False

    def source(self, end: int | None = None) -> SegmentBytes:
        """Return the present file up to ``end``, through a window of its own."""
        end = self.end if end is None else end
        return SegmentBytes(self._file, self.position, end, window_bytes=_WINDOW_BYTES, unreadable_as_zeros=True)

    def walk(
        self,
        offset: int,
        wants: Wants = wants_none,
        *,
        is_newest: bool = True,
        end: int | None = None,
        searches_zeros: bool = True,
    ) -> Iterator[Item]:
        """Yield the entries from ``offset`` on, by the rule of recovery (``walk``), without the footer.

        Bodies are copies, of wanted batches only.

        Args:
            is_newest: whether the log has no later segment.
            end: entries that begin here or later are left out.
            searches_zeros: as for the rule.

        Raises:
            OSError: the file cannot be read.
            UnsupportedVersion: an entry of a later release.
        """
        is_open = self.footer is None
        items = walk(
            self.source(), max(offset, HEADER_BYTES), may_be_torn=is_open and is_newest, is_growing=is_open,
            searches_zeros=searches_zeros,
        )  # fmt: skip
        for item in items:
            if end is not None and item.offset >= end:
                return
            if not isinstance(item, Entry):
                yield item
            elif item.kind is not EntryKind.FOOTER:
                is_wanted = isinstance(item.value, BatchHeader) and wants(item.value.stream)
                body = bytes(item.body) if is_wanted else b""
                yield Entry(item.kind, item.offset, item.end, item.value, body)

    def first_entry_from(self, offset: int) -> int | None:
        """Return the offset of the first sound entry at or after ``offset``; None without one."""
        if offset <= HEADER_BYTES:
            return HEADER_BYTES
        return find_entry(self.source(), offset - 1)

    def chunks_backward(self) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of ever larger pieces of the written part, from the end to the beginning.

        Each starts at a sound entry. Together they cover everything after the header.
        """
        end = self.end if self.footer is not None else self.written_end()
        length = _CHUNK_BYTES
        while end > HEADER_BYTES:
            start = self.first_entry_from(max(HEADER_BYTES, end - length))
            length *= _CHUNK_GROWTH
            if start is not None and start < end:
                yield start, end
                end = start

    def written_end(self) -> int:
        """Return the offset after the last byte that is not zero: the space from there on is reserved, not written."""
        return last_nonzero(self.source(), 0)

    def names(self) -> dict[int, str]:
        """Return the streams that the index and the segment's first entry name. Later marks may name more."""
        if not self._named:
            self._named = True
            first = read_entry(self.source(), HEADER_BYTES)
            if first is not None and isinstance(first.value, dict):
                self.learn(first.value)
            if self.footer is not None:
                self._names |= self.footer.streams
                self._origins |= by_number(self.footer.origins)
        return self._names

    def owner(self) -> NodeName | None:
        """Return the segment's name of the log's owner; None without one."""
        if self.footer is not None:
            return self.footer.owner.name if self.footer.owner is not None else None
        # The opening has it, so this reads only a few entries, except in a log of an earlier release.
        for item in self.walk(0, searches_zeros=False):
            if isinstance(item, Entry) and isinstance(item.value, Owner):
                return item.value.name
        return None

    def next_seqs(self) -> dict[int, int]:
        """Return the next sequence number of each stream at the start of the segment, from its first entry."""
        first = read_entry(self.source(), HEADER_BYTES)
        value = first.value if first is not None else None
        return {number: entry.next_seq for number, entry in value.items()} if isinstance(value, dict) else {}

    def size(self) -> int:
        """Return the bytes of the file."""
        return self._file.size()

    def name_of(self, number: int) -> str:
        """Return a stream's name, searched from mark to mark if need be: streams are named before they are used."""
        names = self.names()
        if number not in names:
            self._read_marks(lambda: number in names)
        # Recovery's name of a stream whose naming entries were all lost.
        return names.get(number, f"unnamed-{number}")

    def origin_text(self, number: int) -> str | None:
        """Return the text of an origin, searched as the streams' names are: the segment's opening has all origins known
        then, and commits add new ones."""
        self.names()
        if number and number not in self._origins:
            self._read_marks(lambda: number in self._origins)
        return origin_text(number, self._origins)

    def early_names(self) -> dict[int, str]:
        """Return the streams that the index or the first marks name: all except those declared late in the segment."""
        if self.footer is None:
            self._read_marks(lambda: self._marks_end >= _EARLY_BYTES)
        return self.names()

    def all_names(self) -> dict[int, str]:
        """Return the streams that any mark of the segment names."""
        if self.footer is None:
            self._read_marks(lambda: False)
        return self.names()

    def _read_marks(self, is_enough: Callable[[], bool]) -> None:
        for item in self.walk(self._marks_end, searches_zeros=False):
            if isinstance(item, Torn):
                return
            self._marks_end = item.end
            if isinstance(item, Entry):
                self._learn(item)
            if is_enough():
                return

    def learn(self, streams: dict[int, StreamEntry]) -> None:
        """Add the streams that a mark names."""
        self.names().update({number: entry.name for number, entry in streams.items()})

    def _learn(self, entry: Entry) -> None:
        if isinstance(entry.value, dict):
            self.learn(entry.value)
        elif isinstance(entry.value, list):
            self._origins |= by_number(entry.value)

    def age_s(self, clock: Callable[[], float] = time.time) -> float:
        """Return the seconds since the file was last written to, by the machine's clock; a deleted file counts as
        old."""
        try:
            return max(0.0, clock() - os.stat(self.path).st_mtime)
        except FileNotFoundError:
            return math.inf


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
