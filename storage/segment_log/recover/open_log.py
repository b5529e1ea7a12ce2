"""Opening a log's directory: lock it, load its files, recover, and record losses."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

from weft.protocols.batch import ClockReading
from weft.protocols.lane import NodeName
from weft.storage.filesystem import FileSystem, Lock
from weft.storage.segment_log.commit.committer import Committer, Post
from weft.storage.segment_log.errors import LogFailed
from weft.storage.segment_log.recover.identity import read_identity
from weft.storage.segment_log.recover.loading import load_directory
from weft.storage.segment_log.recover.recovery import RecoveryReport, recover
from weft.storage.segment_log.settings import LogSettings
from weft.storage.segment_log.state.log_state import LogState


class Guard(Protocol):
    """Check of the other files in the log's directory, and of the releases that may write it."""

    def check(self) -> None:
        """Raise ``LogVersionError`` if this release must not write there."""

    def state(self) -> None:
        """Record that this release writes from now on."""


class OpenedLog(NamedTuple):
    """The parts of an open log."""

    state: LogState
    committer: Committer
    lock: Lock
    recovery: RecoveryReport


def open_log(
    directory: str,
    settings: LogSettings,
    *,
    wall_clock: Callable[[], int],
    clock_reading: Callable[[], ClockReading],
    random_bits: Callable[[int], int],
    post: Post,
    filesystem: FileSystem,
    owner: NodeName | None,
    guard: Guard | None = None,
) -> OpenedLog:
    """Open or create the log in ``directory``; arguments and errors as for ``SegmentLog.open``."""
    began = clock_reading().monotonic
    try:
        filesystem.make_directory(directory)
        lock = filesystem.lock(directory)
    except OSError as error:
        raise LogFailed(f"the log in {directory} cannot be opened: {error}") from error
    try:
        if guard is not None:
            guard.check()
        known = read_identity(filesystem, directory)
        loaded, strange = load_directory(filesystem, directory, known.log_id if known else None)
        state, writer, report = recover(
            lambda log_id: LogState(filesystem, directory, settings, log_id, clock_reading),
            loaded, known, owner, random_bits(64), wall_clock(),
        )  # fmt: skip
        state.is_in_place = lock.is_in_place
        for segment in state.segments:
            segment.known_since = began
        committer = Committer(state, writer, wall_clock, clock_reading, post)
        # Gap notices for losses are durable before the first read of the log.
        committer.run_once()
        if committer.waits_for_space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), directory)
        committer.state_owner()
        if state.failed:
            committer.close(seal=False)
            raise state.failed
        if guard is not None:
            # Not before: a refused log, such as another node's, must remain unchanged. Everything written so far is in
            # segments, whose headers state their version.
            guard.state()
    except OSError as error:
        lock.close()
        raise LogFailed(f"the log in {directory} cannot be opened: {error}") from error
    except BaseException:
        lock.close()
        raise
    seconds = (clock_reading().monotonic - began) / 1e9
    report = dataclasses.replace(report, damaged=(*strange, *report.damaged), seconds=seconds)
    return OpenedLog(state, committer, lock, report)
