"""Copying needed records out of segments that will be deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from weft.protocols.errors import CodecError, Corrupt
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import ENTRY_HEADER_BYTES, EntryKind
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.state.segment import Segment
from weft.storage.segment_log.walk.frames import SegmentBytes


class UnmovableSegment(Exception):
    """A segment whose records cannot be copied: it is damaged, or the device cannot read it."""

    def __init__(self, segment: Segment, cause: Exception) -> None:
        super().__init__(f"{segment.path} cannot be cleaned: {cause}")
        self.segment = segment


Needed = dict[tuple[int, bool], RangeSet]
"""(stream, moved before) -> numbers."""


class _Found(NamedTuple):
    stream: int
    base_seq: int
    offset: int
    source: int


def moved_batches(filesystem: FileSystem, victims: list[tuple[Segment, Needed]]) -> Iterator[bytes]:
    """Yield the batches with needed records of the victims, unchanged, each stream's in the order of its numbers.

    Raises:
        UnmovableSegment: one of them cannot be read. Batches yielded before are sound.
    """
    with contextlib.ExitStack() as stack:
        sources = []
        found: list[_Found] = []
        for segment, needed in victims:
            if not needed:
                continue
            with _blamed(segment):
                file = filesystem.open(segment.path, read_only=True)
                stack.callback(file.close)
                sources.append((segment, SegmentBytes(file, segment.first_position, segment.end)))
                found += _find(sources[-1][1], segment, needed, len(sources) - 1)
        for item in sorted(found):
            segment, source = sources[item.source]
            with _blamed(segment):
                frame = source.entry(item.offset)
                if frame is None:
                    raise Corrupt(f"the entry at offset {item.offset} is gone")
                body = bytes(frame.body)
            yield body


@contextlib.contextmanager
def _blamed(segment: Segment) -> Iterator[None]:
    try:
        yield
    except (CodecError, OSError) as error:
        raise UnmovableSegment(segment, error) from error


def _find(source: SegmentBytes, segment: Segment, needed: Needed, number: int) -> list[_Found]:
    """Find the places of the batches. The walk begins at the first needed one and skips bodies unread."""
    left = sum(numbers.count() for numbers in needed.values())
    spans = {True: segment.index.moved, False: segment.index.lanes}
    offset = min(spans[moved][stream].start_for(next(iter(ranges))[0]) for (stream, moved), ranges in needed.items())
    found = []
    while left > 0:
        head = source.peek(offset) if offset < source.end else None
        if head is None:
            raise Corrupt(f"{left} records are not where the index says")
        if head.kind in (EntryKind.BATCH, EntryKind.MOVED):
            header = source.readable_batch_header(offset)
            is_moved = head.kind == EntryKind.MOVED
            numbers = RangeSet() if header is None else needed.get((header.stream, is_moved), RangeSet())
            if header is not None and numbers:
                missing = sum(end - first for first, end in numbers.missing(header.base_seq, header.end_seq))
                if missing < header.count:
                    found.append(_Found(header.stream, header.base_seq, offset, number))
                    left -= header.count - missing
        offset += ENTRY_HEADER_BYTES + head.length
    return found
