"""Reading a log directory: footers of sealed segments, a scan of the newest and of whatever lost its footer."""

from __future__ import annotations

import logging
import os
from collections import Counter
from dataclasses import dataclass

from protocols import segment as format_
from protocols.errors import CodecError, Corrupt, UnsupportedVersion
from protocols.segment import HEADER_BYTES, TRAILER_BYTES, EntryKind, Footer, SegmentHeader, StreamEntry
from storage.filesystem import File, FileSystem
from storage.segment_log.errors import LogVersionError
from storage.segment_log.frames import SegmentBytes
from storage.segment_log.index import SegmentIndex
from storage.segment_log.quarantine import aside_path
from storage.segment_log.scan import Scan, scan_segment
from storage.segment_log.segment_file import UNFINISHED, Segment

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 16 << 10
"""Both ends of a sealed segment are all that is read of it."""


@dataclass
class Loaded:
    """A segment as it was found."""

    segment: Segment
    header: SegmentHeader | None
    """None when it is damaged."""
    streams: dict[int, StreamEntry] | None
    """Its first entry; None when it is damaged."""
    scan: Scan | None
    """None for a sealed segment with a sound footer."""

    @property
    def damaged(self) -> bool:
        return self.header is None or self.streams is None or bool(self.scan and self.scan.damage)


def load_directory(filesystem: FileSystem, directory: str, known_id: int | None) -> tuple[list[Loaded], list[str]]:
    """All segments of a directory in log order; leftovers of an interrupted creation are removed.

    Args:
        known_id: the log's id as it is kept beside the segments.

    Returns:
        The log's segments, and the paths of files that were set aside because they may be another log's.

    Raises:
        LogVersionError: one of them was written by a later release.
        OSError: the directory or a file cannot be opened.
    """
    names = filesystem.list_names(directory)
    for name in names:
        if name.endswith(UNFINISHED) and format_.parse_file_name(name.removesuffix(UNFINISHED)) is not None:
            filesystem.remove(os.path.join(directory, name))
    # A name or a byte that an earlier process wrote may be in memory only: make both durable before relying on them.
    filesystem.sync_directory(directory)
    positions = sorted(position for position in map(format_.parse_file_name, names) if position is not None)
    loaded = []
    for position in positions:
        path = os.path.join(directory, format_.file_name(position))
        file = filesystem.open(path, read_only=True)
        try:
            loaded.append(_load(file, path, position, newest=position == positions[-1]))
        except UnsupportedVersion as error:
            raise LogVersionError(
                f"{path} was written by a later release of Weft ({error}): install that release again, or move "
                f"{directory} away to begin an empty log"
            ) from error
        finally:
            file.close()
    return _one_log(filesystem, loaded, known_id)


def _load(file: File, path: str, position: int, *, newest: bool) -> Loaded:
    size = file.size()
    source = SegmentBytes(file, position, size, window_bytes=_WINDOW_BYTES, unreadable_as_zeros=True)
    header = find_header(source, position)
    streams = _first_streams(source)
    footer = find_footer(source, size)
    if footer is not None:
        index = SegmentIndex.from_footer(footer[1], footer[0])
        return Loaded(Segment(path, position, footer[0], size, index), header, streams, None)
    scan = scan_segment(SegmentBytes(file, position, size, unreadable_as_zeros=True), may_be_torn=newest)
    return Loaded(Segment(path, position, scan.end, size, scan.index), header, streams, scan)


def find_header(source: SegmentBytes, position: int) -> SegmentHeader | None:
    """The header of the segment at a log position; None when it is damaged. ``UnsupportedVersion`` of a later one."""
    try:
        header = format_.decode_header(source.piece(0, HEADER_BYTES))
    except UnsupportedVersion:
        raise
    except CodecError:
        return None
    return header if header.first_position == position else None


def _first_streams(source: SegmentBytes) -> dict[int, StreamEntry] | None:
    try:
        frame = source.entry(HEADER_BYTES)
        value = format_.decode_body(frame.kind, frame.body) if frame else None
    except UnsupportedVersion:
        raise
    except CodecError:
        return None
    return value if isinstance(value, dict) else None


def find_footer(source: SegmentBytes, size: int) -> tuple[int, Footer] | None:
    """Offset and content of a sealed segment's footer; None when it is not sealed, or the footer is damaged.

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


def _one_log(filesystem: FileSystem, loaded: list[Loaded], known_id: int | None) -> tuple[list[Loaded], list[str]]:
    """Set aside the segments of another log, and all if nothing is left to say which log this is.

    A stray file is alone among many; between equals the one that is kept beside the segments, or the older one, is the
    log's.
    """
    ids = Counter(item.header.log_id for item in loaded if item.header)
    log_id = max(ids, key=lambda log_id: (ids[log_id], log_id == known_id), default=known_id)
    kept, strange = [], []
    for item in loaded:
        if log_id is not None and (item.header is None or item.header.log_id == log_id):
            kept.append(item)
            continue
        path = item.segment.path
        logger.error("%s belongs to another log, or its header is damaged and nothing says which: set aside", path)
        filesystem.rename(path, aside_path(path))
        filesystem.sync_directory(os.path.dirname(path))
        strange.append(path)
    return kept, strange
