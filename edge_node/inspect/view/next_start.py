"""A forecast of a node's next start: recovery's own analysis of the log, without writes."""

from __future__ import annotations

import errno
from typing import NamedTuple

from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.segment import GapNotice
from weft.storage.filesystem import DirectoryInUse, File, FileSystem, Lock
from weft.storage.segment_log import LogSettings
from weft.storage.segment_log.names import aside_path
from weft.storage.segment_log.recover.account import find_losses, fold
from weft.storage.segment_log.recover.identity import read_identity
from weft.storage.segment_log.recover.loading import load_directory
from weft.storage.segment_log.sealed.disk import disk_of
from weft.storage.segment_log.state.log_state import LogState


class NextStart(NamedTuple):
    """Recovery's actions on the present log."""

    torn_bytes: int
    """Bytes that recovery will cut at the end: a commit of which nothing was acknowledged."""
    unreadable_bytes: int
    """Bytes that the device cannot read where the newest records are."""
    damaged: tuple[str, ...]
    """Files with damage that recovery will move aside."""
    strange: tuple[str, ...]
    """Files that may be another log's; recovery will set each aside with its content."""
    lost: tuple[tuple[str, GapNotice], ...]
    """(stream, notice) for used numbers that are gone and not covered by a notice yet."""

    @property
    def records_lost(self) -> int:
        """Return the number of lost records; an upper bound where something cannot be read."""
        return sum(notice.end - notice.first for _, notice in self.lost)

    @property
    def finds_all_well(self) -> bool:
        """Return whether recovery will find no problem."""
        return not any(self)


def forecast(directory: str, filesystem: FileSystem | None = None) -> NextStart:
    """Run recovery's analysis on a log that no node has open. Sealed segments are read by their indexes, as in
    recovery.

    Raises:
        OSError: a file cannot be read, or a node has started meanwhile and deleted it.
        LogVersionError: a later release wrote the log.
    """
    disk = _Untouched(filesystem or disk_of(directory))
    known = read_identity(disk, directory)
    known_id = known.log_id if known else None
    loaded, strange = load_directory(disk, directory, known_id)
    state = LogState(disk, directory, LogSettings(), known_id or 0, lambda: ClockReading(0, 0, ClockState.UNSYNCED))
    fold(state, loaded)
    losses = find_losses(state, loaded, 0)
    scan = loaded[-1].scan if loaded else None
    damaged = [item for item in loaded if item.damaged or (item.scan is not None and item is not loaded[-1])]
    return NextStart(
        scan.torn_bytes if scan else 0,
        scan.unreadable_bytes if scan else 0,
        tuple(path for item in damaged if not disk.exists(aside_path(path := item.segment.path))),
        tuple(strange),
        tuple((state.lanes[gap.stream].name, gap) for gap in losses),
    )


class _Untouched(FileSystem):
    """A read-only disk: removing, renaming, linking and syncing names do nothing."""

    def __init__(self, disk: FileSystem) -> None:
        self._disk = disk

    def open(self, path: str, *, read_only: bool = False) -> File:
        assert read_only
        return self._disk.open(path, read_only=True)

    def create(self, path: str) -> File:
        raise OSError(errno.EROFS, "nothing is written here", path)

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def size(self, path: str) -> int:
        return self._disk.size(path)

    def modified(self, path: str) -> int:
        return self._disk.modified(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list_names(self, directory: str) -> list[str]:
        return self._disk.list_names(directory)

    def is_directory(self, path: str) -> bool:
        return self._disk.is_directory(path)

    def make_directory(self, path: str) -> None:
        """Do nothing."""

    def link(self, source: str, target: str) -> None:
        """Do nothing."""

    def rename(self, source: str, target: str) -> None:
        """Do nothing."""

    def remove(self, path: str) -> None:
        """Do nothing."""

    def remove_directory(self, path: str) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)

    def lock(self, directory: str) -> Lock:
        raise DirectoryInUse(directory)
