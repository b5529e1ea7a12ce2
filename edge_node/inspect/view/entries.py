"""The entries of a segment as readers from outside see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from weft.protocols import batch
from weft.protocols import segment as format_
from weft.protocols.batch import BatchHeader
from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.segment import EntryKind, GapNotice, Owner, StreamEntry
from weft.storage.segment_log.walk.frames import Frame, SegmentBytes

BATCHES = frozenset({EntryKind.BATCH, EntryKind.MOVED})
"""Kinds of entries whose body is a batch."""
Value = BatchHeader | dict[int, StreamEntry] | GapNotice | Owner | None
Wants = Callable[[int], bool]
"""Whether the batches of a stream number are wanted with their bodies."""


class Entry(NamedTuple):
    """One sound entry."""

    offset: int
    end: int
    """Offset of what follows."""
    kind: EntryKind
    value: Value
    """The header of a batch, a gap notice, the names of streams, the log's owner; None for other kinds."""
    body: bytes
    """The whole batch of a wanted stream; empty for everything else."""


class Hole(NamedTuple):
    """Bytes that are no entry, although a sound one follows them."""

    offset: int
    end: int


def wants_none(_number: int) -> bool:
    """For who looks at headers and notices only."""
    return False


def read_entry(source: SegmentBytes, offset: int, wants: Wants) -> Entry | None:
    """The entry at ``offset``; None where the bytes are none (any more, or yet).

    Raises:
        UnsupportedVersion: a sound entry that only a later release understands.
    """
    try:
        frame = source.entry(offset)
        return None if frame is None else _entry(frame, wants)
    except UnsupportedVersion:
        raise
    except CodecError:
        return None


def _entry(frame: Frame, wants: Wants) -> Entry:
    value: Value = None
    body = b""
    if frame.kind in BATCHES:
        value = batch.decode_header(frame.body)
        body = bytes(frame.body) if wants(value.stream) else b""
    elif frame.kind in (EntryKind.GAP, EntryKind.STREAMS, EntryKind.OWNER):
        decoded = format_.decode_body(frame.kind, frame.body)
        value = decoded if isinstance(decoded, dict | GapNotice | Owner) else None
    return Entry(frame.offset, frame.end, frame.kind, value, body)
