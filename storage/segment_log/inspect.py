"""Looking into a log directory without opening it: for ``weft log dump``. Takes no lock and changes nothing.

A log that is being written may be looked at: what is read is a moment's view, and its end may look torn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from protocols import batch
from protocols import segment as format_
from protocols.batch import BatchHeader
from protocols.errors import CodecError, UnsupportedVersion
from protocols.segment import (
    HEADER_BYTES,
    ClockNotice,
    EntryKind,
    Footer,
    GapNotice,
    SegmentHeader,
    StreamEntry,
)
from storage.filesystem import FileSystem, OSFileSystem
from storage.segment_log.frames import Frame, SegmentBytes
from storage.segment_log.scan import find_entry

EntryValue = BatchHeader | dict[int, StreamEntry] | GapNotice | ClockNotice | Footer | None


class Inspected(NamedTuple):
    """One thing found in a segment file."""

    segment: str
    """File name, without the directory."""
    offset: int
    """Where it stands in the file."""
    kind: EntryKind | None
    """None for the segment's own header and for bytes that are no entry."""
    value: SegmentHeader | EntryValue
    """Decoded; None where there is nothing to decode."""
    data: bytes
    """The whole batch of a ``BATCH`` entry, for ``protocols.batch.records``; empty for others."""
    problem: str | None
    """What is wrong at this offset, or None."""


def inspect_log(directory: str, filesystem: FileSystem | None = None) -> Iterator[Inspected]:
    """Everything in the segments of a log, in log order; damaged bytes are told and stepped over.

    Raises:
        OSError: the directory or a file cannot be read.
    """
    filesystem = filesystem or OSFileSystem()
    for name in filesystem.list_names(directory):
        position = format_.parse_file_name(name)
        if position is None:
            continue
        file = filesystem.open(os.path.join(directory, name))
        try:
            source = SegmentBytes(file, position, file.size(), unreadable_as_zeros=True)
            yield _inspect_header(source, name)
            yield from _inspect_entries(source, name)
        finally:
            file.close()


def _inspect_header(source: SegmentBytes, name: str) -> Inspected:
    try:
        header = format_.decode_header(source.piece(0, HEADER_BYTES))
        return Inspected(name, 0, None, header, b"", None)
    except CodecError as error:
        return Inspected(name, 0, None, None, b"", str(error))


def _inspect_entries(source: SegmentBytes, name: str) -> Iterator[Inspected]:
    offset = HEADER_BYTES
    while offset < source.end:
        problem = None
        try:
            frame = source.entry(offset)
        except CodecError as error:
            frame, problem = None, str(error)
        if frame is not None:
            yield _inspect_frame(name, frame)
            if frame.kind is EntryKind.FOOTER:
                return
            offset = frame.end
            continue
        following = _next_entry(source, offset)
        if problem or following is not None:
            yield Inspected(name, offset, None, None, b"", problem or "zeros where entries should be")
        if following is None:
            return
        offset = following


def _next_entry(source: SegmentBytes, offset: int) -> int | None:
    try:
        return find_entry(source, offset)
    except UnsupportedVersion:
        return None


def _inspect_frame(name: str, frame: Frame) -> Inspected:
    try:
        if frame.kind is EntryKind.BATCH:
            value: EntryValue = batch.decode_header(frame.body)
            return Inspected(name, frame.offset, frame.kind, value, bytes(frame.body), None)
        if frame.kind is EntryKind.FUNCTION_COMMIT:
            return Inspected(name, frame.offset, frame.kind, None, b"", None)
        return Inspected(name, frame.offset, frame.kind, format_.decode_body(frame.kind, frame.body), b"", None)
    except CodecError as error:
        return Inspected(name, frame.offset, frame.kind, None, b"", str(error))
