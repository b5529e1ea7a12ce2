"""One segment file, read while its node may be writing or deleting it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator

from weft.edge_node.inspect.view.entries import Entry, Hole, Wants, read_entry, wants_none
from weft.protocols import segment as format_
from weft.protocols.lane import NodeName
from weft.protocols.segment import HEADER_BYTES, EntryKind, Footer, Owner, StreamEntry
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.recover.loading import find_footer, find_header
from weft.storage.segment_log.walk.frames import SegmentBytes
from weft.storage.segment_log.walk.scan import find_entry

_BLOCK_BYTES = 1 << 20
_WINDOW_BYTES = 256 << 10
_EARLY_BYTES = 256 << 10
_CHUNK_BYTES = 256 << 10
_CHUNK_GROWTH = 4


class SegmentView:
    """One open segment file; stays readable when its name is gone. ``close`` it. For one thread."""

    def __init__(self, filesystem: FileSystem, path: str, position: int) -> None:
        """Open it.

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
        """The index, once the segment is sealed."""
        self.end = 0
        """Where entries end at the latest."""
        self.look_again()
        self.header = find_header(self.source(), position)
        """None when it is damaged."""
        self._names: dict[int, str] = {}
        self._named = False
        self._marks_end = HEADER_BYTES

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def look_again(self) -> None:
        """See whether the node has sealed the segment, or given it another length, since the last look."""
        size = self._file.size()
        if self.footer is None and (found := find_footer(self.source(size), size)) is not None:
            self.end, self.footer = found
        elif self.footer is None:
            self.end = size

    def is_written_at(self, offset: int) -> bool:
        """Whether anything but the zeros of reserved space stands at ``offset``: one short read."""
        return any(self._file.read_at(offset, format_.ENTRY_HEADER_BYTES))

    @property
    def is_same_file(self) -> bool:
        """Whether the name still leads to the file that is open here."""
        try:
            return _identity(self.path) == self._opened
        except FileNotFoundError:
            return False

    def source(self, end: int | None = None) -> SegmentBytes:
        """The file as it is now up to ``end``, through a window of its own."""
        end = self.end if end is None else end
        return SegmentBytes(self._file, self.position, end, window_bytes=_WINDOW_BYTES, unreadable_as_zeros=True)

    def walk(self, offset: int, wants: Wants, *, end: int | None = None, beyond: bool = True) -> Iterator[Entry | Hole]:
        """Sound entries from ``offset`` on, each checked, and the holes between them.

        Args:
            end: entries that begin here or later are left out.
            beyond: look for entries behind zeros too; a reader that waits at the end of a log need not.

        Raises:
            UnsupportedVersion: an entry that only a later release understands.
        """
        source = self.source()
        limit = self.end if end is None else min(end, self.end)
        offset = max(offset, HEADER_BYTES)
        while offset < limit:
            entry = read_entry(source, offset, wants)
            if entry is None:
                following = self._resync(offset, beyond=beyond)
                if following is None:
                    return
                # Bytes are written in their order: what follows is there, so what the node was writing is there too.
                source = self.source()
                entry = read_entry(source, offset, wants)
                if entry is None:
                    yield Hole(offset, min(following, limit))
                    offset = following
                    continue
            if entry.kind is EntryKind.FOOTER:
                # The crash came while the segment was sealed; the footer says nothing that the entries do not.
                return
            yield entry
            offset = entry.end

    def first_entry_from(self, offset: int) -> int | None:
        """Offset of the first sound entry at or after any ``offset``; None when none follows."""
        if offset <= HEADER_BYTES:
            return HEADER_BYTES
        return find_entry(self.source(), offset - 1)

    def chunks_backward(self) -> Iterator[tuple[int, int]]:
        """(start, end) of ever larger pieces of what is written, from the end to the beginning.

        Each starts at a sound entry. Together they are everything after the header.
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
        """One past the last byte that is not zero: the space behind it is reserved, not written."""
        low, high = 0, -(-self.end // _BLOCK_BYTES)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._block(middle) else (low, middle)
        # Zeros may stand in the midst of what is written, where the disk lost a block.
        for at in range(low, -(-self.end // _BLOCK_BYTES)):
            low = at + 1 if self._block(at) else low
        return (low - 1) * _BLOCK_BYTES + len(self._block(low - 1)) if low else 0

    def _block(self, number: int) -> bytes:
        """A block without the zeros at its end."""
        return bytes(self.source().piece(number * _BLOCK_BYTES, _BLOCK_BYTES)).rstrip(b"\0")

    def names(self) -> dict[int, str]:
        """The streams that the index and the segment's first entry name. Later marks may name more."""
        if not self._named:
            self._named = True
            first = read_entry(self.source(), HEADER_BYTES, wants_none)
            if first is not None and isinstance(first.value, dict):
                self.learn(first.value)
            if self.footer is not None:
                self._names |= self.footer.streams
        return self._names

    def owner(self) -> NodeName | None:
        """Return the name that the segment says its log belongs to; None when it does not."""
        if self.footer is not None:
            return self.footer.owner.name if self.footer.owner is not None else None
        # It stands in the opening, so that this is over after a few entries in any log but one of an earlier release.
        for entry in self.walk(0, wants_none, beyond=False):
            if isinstance(entry, Entry) and isinstance(entry.value, Owner):
                return entry.value.name
        return None

    def next_seqs(self) -> dict[int, int]:
        """The next sequence number of each stream when the segment was begun, as its first entry says."""
        first = read_entry(self.source(), HEADER_BYTES, wants_none)
        value = first.value if first is not None else None
        return {number: entry.next_seq for number, entry in value.items()} if isinstance(value, dict) else {}

    def size(self) -> int:
        """Bytes of the file."""
        return self._file.size()

    def name_of(self, number: int) -> str:
        """A stream's name, looked for from mark to mark if need be: streams are named before they are used."""
        names = self.names()
        if number not in names:
            self._read_marks(lambda: number in names)
        # As recovery calls a stream whose every naming entry was lost.
        return names.get(number, f"unnamed-{number}")

    def early_names(self) -> dict[int, str]:
        """The streams that the index or the first marks name: all, but for those declared late in the segment."""
        if self.footer is None:
            self._read_marks(lambda: self._marks_end >= _EARLY_BYTES)
        return self.names()

    def all_names(self) -> dict[int, str]:
        """The streams that any mark of the segment names."""
        if self.footer is None:
            self._read_marks(lambda: False)
        return self.names()

    def _read_marks(self, is_enough: Callable[[], bool]) -> None:
        for entry in self.walk(self._marks_end, wants_none, beyond=False):
            self._marks_end = entry.end
            if isinstance(entry, Entry) and isinstance(entry.value, dict):
                self.learn(entry.value)
            if is_enough():
                return

    def learn(self, streams: dict[int, StreamEntry]) -> None:
        """Note what a mark names."""
        self.names().update({number: entry.name for number, entry in streams.items()})

    def age_s(self) -> float:
        """Seconds since the file was last written to, by the machine's clock; a file that is gone is old."""
        try:
            return max(0.0, time.time() - os.stat(self.path).st_mtime)
        except FileNotFoundError:
            return math.inf

    def _resync(self, offset: int, *, beyond: bool) -> int | None:
        """Offset of the next sound entry behind bytes that are none; the end of a sealed segment counts as one."""
        if self.footer is not None:
            return find_entry(self.source(), offset) or self.end
        if not beyond and not self.is_written_at(offset):
            return None
        # An entry may end with zeros; the space reserved behind the last one need not be searched.
        return find_entry(self.source(min(self.end, max(self.written_end(), offset) + _BLOCK_BYTES)), offset)


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
