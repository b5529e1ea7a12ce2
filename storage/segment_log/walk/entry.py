"""One entry of a segment, checked and decoded."""

from __future__ import annotations

from typing import NamedTuple

from weft.protocols import batch
from weft.protocols.batch import BatchHeader, Buffer
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.segment import Body, EntryKind, decode_body
from weft.protocols.segment.header import BATCHES
from weft.storage.segment_log.walk.frames import Frame, SegmentBytes


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
