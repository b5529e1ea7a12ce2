"""Both ends of a segment file: its header, and the footer of a sealed one."""

from __future__ import annotations

from weft.protocols import segment as format_
from weft.protocols.errors import CodecError, Corrupt, UnsupportedVersion
from weft.protocols.segment import HEADER_BYTES, TRAILER_BYTES, EntryKind, Footer, SegmentHeader
from weft.storage.segment_log.walk.frames import SegmentBytes


def find_header(source: SegmentBytes, position: int) -> SegmentHeader | None:
    """Return the header of the segment at a log position; None if it is damaged, or of another position.

    Raises:
        UnsupportedVersion: a later release wrote it.
        OSError: the file cannot be read.
    """
    try:
        header = format_.decode_header(source.piece(0, HEADER_BYTES))
    except UnsupportedVersion:
        raise
    except CodecError:
        return None
    return header if header.first_position == position else None


def find_footer(source: SegmentBytes, size: int) -> tuple[int, Footer] | None:
    """Return offset and content of a sealed segment's footer; None when it is not sealed, or the footer is damaged.

    Raises:
        UnsupportedVersion: only a later release understands it.
        OSError: the file cannot be read.
    """
    try:
        offset = format_.decode_trailer(source.piece(max(0, size - TRAILER_BYTES), TRAILER_BYTES))
        frame = source.entry(offset)
        if frame is None or frame.kind is not EntryKind.FOOTER:
            raise Corrupt("a segment's trailer does not lead to a footer")
        footer = format_.decode_body(frame.kind, frame.body)
    except UnsupportedVersion:
        raise
    except CodecError:
        return None
    return (offset, footer) if isinstance(footer, Footer) else None
