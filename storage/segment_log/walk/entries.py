"""Looking into a log directory without opening it: for ``weft log dump``. Takes no lock and changes nothing.

A log that is being written may be looked at: what is read is a moment's view, and its end may look torn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from weft.protocols import batch
from weft.protocols import segment as format_
from weft.protocols.batch import BatchHeader
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.segment import (
    HEADER_BYTES,
    ClockNotice,
    EntryKind,
    Footer,
    GapNotice,
    Kept,
    Owner,
    SegmentHeader,
    StreamEntry,
)
from weft.storage.filesystem import File, FileSystem, OSFileSystem
from weft.storage.segment_log.names import DAMAGED
from weft.storage.segment_log.walk.frames import Frame, SegmentBytes
from weft.storage.segment_log.walk.scan import find_entry, hides_entries

EntryValue = BatchHeader | dict[int, StreamEntry] | GapNotice | ClockNotice | Kept | Owner | Footer | None


class Inspected(NamedTuple):
    """One thing found in a segment file."""

    segment: str
    """File name, without the directory."""
    offset: int
    """Where it stands in the file."""
    position: int
    """Where it stands in the log; the offset where nothing says more."""
    kind: EntryKind | None
    """None for the segment's own header and for bytes that are no entry."""
    value: SegmentHeader | EntryValue
    """Decoded; None where there is nothing to decode."""
    data: bytes
    """The whole batch of a ``BATCH`` or ``MOVED`` entry, for ``protocols.batch.records``; empty for others."""
    problem: str | None
    """What is wrong at this offset, or None."""
    is_unreadable: bool = False
    """Whether that is a block which the device cannot read: no crash leaves one."""


def inspect_log(directory: str, filesystem: FileSystem | None = None) -> Iterator[Inspected]:
    """Everything in the segments of a log, in log order; damaged bytes are told and stepped over.

    Raises:
        OSError: the directory or a file cannot be read.
    """
    filesystem = filesystem or OSFileSystem()
    for name in filesystem.list_names(directory):
        if format_.parse_file_name(name) is not None:
            yield from inspect_segment(os.path.join(directory, name), filesystem)


def inspect_segment(path: str, filesystem: FileSystem | None = None) -> Iterator[Inspected]:
    """Everything in one segment file, also one that was kept aside; damaged bytes are told and stepped over.

    Raises:
        OSError: the file cannot be read.
    """
    file = (filesystem or OSFileSystem()).open(path, read_only=True)
    try:
        name = os.path.basename(path)
        head = _inspect_header(file, name)
        yield head
        # Entries can be told from other bytes only with their position, by the header or else by the file's name.
        header = head.value if isinstance(head.value, SegmentHeader) else None
        position = header.first_position if header else format_.parse_file_name(name.removesuffix(DAMAGED))
        if position is not None:
            yield from _inspect_entries(file, position, name)
    finally:
        file.close()


def _inspect_header(file: File, name: str) -> Inspected:
    try:
        source = SegmentBytes(file, 0, HEADER_BYTES, unreadable_as_zeros=True)
        header = format_.decode_header(source.piece(0, HEADER_BYTES))
        return Inspected(name, 0, header.first_position, None, header, b"", None)
    except CodecError as error:
        return Inspected(name, 0, 0, None, None, b"", str(error))


def _inspect_entries(file: File, position: int, name: str) -> Iterator[Inspected]:
    source = _source(file, position)
    offset = HEADER_BYTES
    while offset < source.end:
        frame, problem = _frame(source, offset)
        if frame is not None:
            yield _inspect_frame(name, position + offset, frame)
            if frame.kind is EntryKind.FOOTER:
                return
            offset = frame.end
            continue
        following = _next_entry(source, offset)
        unreadable = hides_entries(source, offset) if following is None else source.is_unreadable(offset, following)
        if following is not None and not unreadable:
            # Bytes are written in their order: what was being written here at the first look is there now.
            source = _source(file, position)
            frame, problem = _frame(source, offset)
            if frame is not None:
                continue
        if problem or following is not None or unreadable:
            problem = problem or "zeros where entries should be"
            problem = "the disk cannot read what stands here" if unreadable else problem
            yield Inspected(name, offset, position + offset, None, None, b"", problem, unreadable)
        if following is None:
            return
        offset = following


def _source(file: File, position: int) -> SegmentBytes:
    return SegmentBytes(file, position, file.size(), unreadable_as_zeros=True)


def _frame(source: SegmentBytes, offset: int) -> tuple[Frame | None, str | None]:
    """The entry at ``offset``, or what is wrong there; neither where entries end."""
    try:
        return source.entry(offset), None
    except CodecError as error:
        return None, str(error)


def _next_entry(source: SegmentBytes, offset: int) -> int | None:
    try:
        return find_entry(source, offset)
    except UnsupportedVersion:
        return None


def _inspect_frame(name: str, position: int, frame: Frame) -> Inspected:
    value: EntryValue = None
    data, problem = b"", None
    try:
        if frame.kind in (EntryKind.BATCH, EntryKind.MOVED):
            value, data = batch.decode_header(frame.body), bytes(frame.body)
        elif frame.kind is not EntryKind.FUNCTION_COMMIT:
            value = format_.decode_body(frame.kind, frame.body)
    except CodecError as error:
        problem = str(error)
    return Inspected(name, frame.offset, position, frame.kind, value, data, problem)
