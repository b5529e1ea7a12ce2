"""A node's log opened by a command: as its owner, while the node does not run and cannot start."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weft.config.machine import run_as, user
from weft.edge_node.timing.clock import clock_reader, wall_clock
from weft.storage.data_directory import DataDirectory
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogSettings, SegmentLog


class NotTheOwner(Exception):
    """An error: the node could not read the files that this user would create."""


@contextmanager
def exclusive_log(directory: str, settings: LogSettings) -> Iterator[SegmentLog]:
    """Open the log in a node's data_dir, for as long as the context lasts.

    Without the streams' policies: nothing expires and nothing is dropped meanwhile.

    Raises:
        NotTheOwner: the folder is another user's.
        DirectoryInUse: the node runs.
        LogError: the log cannot be opened; the text has the reason.
    """
    check_user(directory)
    log = SegmentLog.open(
        directory,
        settings,
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.SystemRandom().getrandbits,
        post=_at_once,
        start_writer=False,
        guard=_Formats(directory),
    )
    try:
        yield log
    finally:
        log.close()


class _Formats:
    """The formats of the folder, which a command only checks. Stating them is left to the node, which writes more than
    the log."""

    def __init__(self, directory: str) -> None:
        self._directory = DataDirectory(OSFileSystem(), directory, "")

    def check(self) -> None:
        self._directory.check()

    def state(self) -> None:
        pass


def check_user(directory: str) -> None:
    """Check that the folder belongs to this user.

    Raises:
        NotTheOwner: it belongs to another user.
    """
    owner = os.stat(directory).st_uid
    if owner != os.geteuid():
        # Root too: the node could not write to files that root creates in its folder.
        raise NotTheOwner(f"{directory} belongs to user {user(owner)}. {run_as(owner)}")


def _at_once(deliver: Callable[[], None]) -> None:
    deliver()
