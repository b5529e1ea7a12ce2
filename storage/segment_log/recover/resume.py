"""The segment that an opened log continues: the newest one without its torn end, or a new one after it."""

from __future__ import annotations

import errno

from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.commit.new_segment import open_segment
from weft.storage.segment_log.commit.segment_file import SegmentWriter
from weft.storage.segment_log.recover.loading import Loaded
from weft.storage.segment_log.room.budget import Room
from weft.storage.segment_log.state.log_state import LogState, Plan
from weft.storage.segment_log.state.segment import Segment


def continue_or_create(state: LogState, loaded: list[Loaded], now: int) -> SegmentWriter:
    """Return the segment to write: the newest one with its torn tail cut, or a new one after it."""
    position = 0
    if loaded:
        newest = loaded[-1]
        position = newest.segment.first_position + newest.segment.size
        if newest.scan is None:
            _seal_again(state.filesystem, newest.segment)
        elif newest.scan.unreadable_bytes or not _reads_again(state.filesystem, newest):
            # A file with unreadable blocks is never written: it remains unsealed.
            _sync(state.filesystem, newest.segment.path)
        else:
            writer = _resume(state, newest)
            if not newest.damaged:
                return writer
            # Evidence of damage must not be overwritten: the sound part is sealed, and the log continues in a new file.
            newest.segment.size = writer.seal(newest.segment.index.to_footer())
            position = newest.segment.first_position + newest.segment.size
    length = _reservable(state, state.bytes_on_disk())
    return open_segment(state, position, now, Room(Plan(), length, length, length, length))


def _seal_again(filesystem: FileSystem, segment: Segment) -> None:
    """Write the newest sealed segment's footer again, for the same reason as ``_resume`` writes the last commit
    again."""
    file = filesystem.open(segment.path)
    try:
        file.write_at(segment.end, file.read_at(segment.end, segment.size - segment.end))
        file.truncate(segment.size)
        file.sync()
    finally:
        file.close()


def _reads_again(filesystem: FileSystem, newest: Loaded) -> bool:
    """Return whether the device reads the last commit a second time."""
    assert newest.scan is not None
    file = filesystem.open(newest.segment.path, read_only=True)
    try:
        file.read_at(newest.scan.last_mark, newest.segment.end - newest.scan.last_mark)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    finally:
        file.close()
    return True


def _sync(filesystem: FileSystem, path: str) -> None:
    file = filesystem.open(path)
    try:
        file.sync()
    finally:
        file.close()


def _reservable(state: LogState, used: int, written: int = 0) -> int:
    """Return the maximum bytes to reserve for a segment at start-up, when nothing is released yet.

    The budget applies from the start. On a disk that other programs have filled, the log still opens, and refuses
    records until there is space. Half of the free space is left for other files, such as the links' epochs, without
    which no records are ever released.

    Args:
        used: bytes of the other segments.
        written: bytes that the segment has already.
    """
    free = state.filesystem.free_bytes(state.directory)
    settings = state.settings
    room = state.budget_bytes - settings.spare_bytes - used
    return max(0, min(settings.segment_bytes, room, written + free // 2))


def _resume(state: LogState, newest: Loaded) -> SegmentWriter:
    """Cut the bytes after the last sound entry, and make certain that the last commit is on the disk.

    After a failed fsync, the bytes that a new process reads may be only in memory, although the system treats them as
    written. This is possible only for the last commit, so it is written again before anything relies on it.
    """
    segment, scan = newest.segment, newest.scan
    assert scan is not None
    others = state.bytes_on_disk() - segment.size
    file = state.filesystem.open(segment.path)
    try:
        if not newest.damaged:
            file.write_at(scan.last_mark, file.read_at(scan.last_mark, segment.end - scan.last_mark))
        file.truncate(segment.end)
        file.sync()
        if not newest.damaged:
            # Zeros beyond the end, durably, before anything is appended: stale bytes must never count as entries.
            file.allocate(max(_reservable(state, others, segment.end), segment.end))
            file.sync()
        segment.size = file.size()
        state.unmarked |= scan.unmarked
        return SegmentWriter(file, segment)
    except BaseException:
        file.close()
        raise
