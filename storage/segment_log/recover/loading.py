"""Reading a log directory: footers of sealed segments, and a scan of the newest and of those without a sound footer."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from weft.protocols import segment as format_
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.segment import HEADER_BYTES, SegmentHeader, StreamEntry
from weft.storage.filesystem import File, FileSystem
from weft.storage.segment_log.errors import LogVersionError
from weft.storage.segment_log.names import DAMAGED, STRANGE, UNFINISHED
from weft.storage.segment_log.state.index import SegmentIndex
from weft.storage.segment_log.state.segment import Segment
from weft.storage.segment_log.walk.ends import find_footer, find_header
from weft.storage.segment_log.walk.entry import read_entry
from weft.storage.segment_log.walk.frames import SegmentBytes
from weft.storage.segment_log.walk.scan import Scan, scan_segment

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 16 << 10
"""Bytes read at each end of a sealed segment; the rest is not read."""


@dataclass
class Loaded:
    """A segment as found on disk."""

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

    @property
    def says_nothing(self) -> bool:
        """Return whether neither an entry was found nor a block that may hide one: then the file's log is unknown."""
        scan = self.scan
        return (
            self.header is None and self.streams is None and scan is not None
            and scan.end == HEADER_BYTES and not scan.unreadable_bytes
        )  # fmt: skip


def load_directory(filesystem: FileSystem, directory: str, known_id: int | None) -> tuple[list[Loaded], list[str]]:
    """Load all segments of a directory in log order; then remove leftovers of an interrupted creation.

    If any file is of a later release, nothing is changed.

    Args:
        known_id: the log's id from the file beside the segments.

    Returns:
        The log's segments, and the paths of files that were set aside because they may be from another log.

    Raises:
        LogVersionError: one of them was written by a later release.
        OSError: the directory or a file cannot be opened.
    """
    # A name or a byte that an earlier process wrote may be only in memory: make both durable before relying on them.
    filesystem.sync_directory(directory)
    own, strange = _own_segments(filesystem, directory, known_id)
    loaded: list[Loaded] = []
    for position, path in reversed(own):
        with _opened(filesystem, path) as file:
            item = _load(file, path, position, newest=not loaded)
        if item.says_nothing:
            strange.append(_Strange(path, DAMAGED, "holds nothing that could be read as this log's"))
        else:
            loaded.append(item)
    # Changes begin only here: every file has been read, and none is of a later release.
    _remove_unfinished(filesystem, directory)
    for found in strange:
        logger.error("%s %s: set aside", found.path, found.reason)
        _set_aside(filesystem, found.path, found.suffix)
    return loaded[::-1], [found.path for found in strange]


class _Strange(NamedTuple):
    """A file to set aside."""

    path: str
    suffix: str
    reason: str


def _remove_unfinished(filesystem: FileSystem, directory: str) -> None:
    for name in filesystem.list_names(directory):
        path = os.path.join(directory, name)
        if name.endswith(UNFINISHED) and format_.parse_file_name(name.removesuffix(UNFINISHED)) is not None:
            if filesystem.is_directory(path):
                _set_aside(filesystem, path, STRANGE)
            else:
                filesystem.remove(path)


def _own_segments(
    filesystem: FileSystem, directory: str, known_id: int | None
) -> tuple[list[tuple[int, str]], list[_Strange]]:
    """Return (position, path) of the files that by their headers may be this log's, and the others.

    The id in the file beside the segments identifies the log, unless no segment has it: then the id in most headers
    counts, and in a tie that of the oldest file. A file without a sound header may be any log's, so it counts as this
    one's unless no id is known at all.
    """
    found: list[tuple[int, str, int | None]] = []
    strange: list[_Strange] = []
    for name in filesystem.list_names(directory):
        path, position = os.path.join(directory, name), format_.parse_file_name(name)
        if position is None:
            continue
        if filesystem.is_directory(path) or not filesystem.exists(path):
            strange.append(_Strange(path, STRANGE, "is no file"))
            continue
        with _opened(filesystem, path) as file:
            source = SegmentBytes(file, position, file.size(), window_bytes=_WINDOW_BYTES, unreadable_as_zeros=True)
            header = find_header(source, position)
        found.append((position, path, header.log_id if header else None))
    found.sort()
    ids = Counter(log_id for _, _, log_id in found if log_id is not None)
    own_id = known_id if known_id in ids else max(ids, key=lambda log_id: ids[log_id], default=known_id)
    own: list[tuple[int, str]] = []
    for position, path, log_id in found:
        if own_id is not None and log_id in (None, own_id):
            own.append((position, path))
        else:
            reason = "belongs to another log, or its header is damaged and nothing says which"
            strange.append(_Strange(path, DAMAGED, reason))
    return own, strange


@contextmanager
def _opened(filesystem: FileSystem, path: str) -> Iterator[File]:
    file = filesystem.open(path, read_only=True)
    try:
        yield file
    except UnsupportedVersion as error:
        raise LogVersionError(
            f"{path} was written by a later release of Weft ({error}): install that release again, or move "
            f"{os.path.dirname(path)} away to begin an empty log"
        ) from error
    finally:
        file.close()


def _set_aside(filesystem: FileSystem, path: str, suffix: str) -> None:
    filesystem.rename(path, path + suffix)
    if filesystem.exists(path):
        # If both were names of one file, the rename had no effect, so the old name is removed here.
        filesystem.remove(path)
    filesystem.sync_directory(os.path.dirname(path))


def _load(file: File, path: str, position: int, *, newest: bool) -> Loaded:
    size = file.size()
    source = SegmentBytes(file, position, size, window_bytes=_WINDOW_BYTES, unreadable_as_zeros=True)
    header = find_header(source, position)
    version = header.version if header is not None else 1
    streams = _first_streams(source)
    footer = find_footer(source, size)
    if footer is not None:
        index = SegmentIndex.from_footer(footer[1], footer[0])
        return Loaded(Segment(path, position, footer[0], size, index, version=version), header, streams, None)
    scan = scan_segment(SegmentBytes(file, position, size, unreadable_as_zeros=True), may_be_torn=newest)
    return Loaded(Segment(path, position, scan.end, size, scan.index, version=version), header, streams, scan)


def _first_streams(source: SegmentBytes) -> dict[int, StreamEntry] | None:
    first = read_entry(source, HEADER_BYTES)
    return first.value if first is not None and isinstance(first.value, dict) else None
