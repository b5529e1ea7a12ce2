"""Reading a log directory without opening it: for ``weft log dump``. Takes no lock and changes nothing.

A log may be read while it is being written: the result is a momentary view, and its end may look torn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from weft.protocols import segment as format_
from weft.protocols.batch import BatchHeader
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.segment import HEADER_BYTES, Body, EntryKind, SegmentHeader
from weft.protocols.segment.header import BATCHES
from weft.storage.filesystem import File, FileSystem
from weft.storage.segment_log.names import DAMAGED
from weft.storage.segment_log.sealed.disk import disk_of
from weft.storage.segment_log.walk.ends import find_footer
from weft.storage.segment_log.walk.entry import Entry, why_no_entry
from weft.storage.segment_log.walk.frames import SegmentBytes
from weft.storage.segment_log.walk.walker import Damage, Torn, walk


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
        problem = f"the header is that of the segment at position {header.first_position}, the name says {named}"
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
        yield Inspected(name, end, position + end, None, None, b"", "no footer ends the file, but the log goes on")


def _inspect_entry(name: str, position: int, entry: Entry) -> Inspected:
    data = bytes(entry.body) if entry.kind in BATCHES else b""
    return Inspected(name, entry.offset, position + entry.offset, entry.kind, entry.value, data, None)


def _inspect_problem(name: str, position: int, item: Damage | Torn, source: SegmentBytes) -> Inspected:
    is_unreadable = isinstance(item, Damage) and item.is_unreadable
    problem = "the disk cannot read what stands here" if is_unreadable else why_no_entry(source, item.offset)
    return Inspected(
        name, item.offset, position + item.offset, None, None, b"", problem, is_unreadable, isinstance(item, Torn)
    )
