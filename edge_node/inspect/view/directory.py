"""The segment files of a log directory, which may appear and disappear."""

from __future__ import annotations

import os

from weft.edge_node.inspect.view.segment_view import SegmentView
from weft.protocols.lane import NodeName
from weft.protocols.segment import file_name, parse_file_name
from weft.storage.filesystem import FileSystem
from weft.storage.segment_log.sealed.disk import disk_of


class NoLog(Exception):
    """An error: the directory holds no segment, because no node has run on it yet or it is another directory."""


class LogDirectory:
    """A log directory, inspected from outside. Nothing is kept open, locked or changed."""

    def __init__(self, path: str, filesystem: FileSystem | None = None) -> None:
        self.path = path
        self._filesystem = filesystem or disk_of(path)

    def positions(self) -> list[int]:
        """Return the first positions of the present segments, in log order.

        Raises:
            OSError: the directory cannot be read.
        """
        names = self._filesystem.list_names(self.path)
        return sorted(position for position in map(parse_file_name, names) if position is not None)

    def open(self, position: int) -> SegmentView | None:
        """Return a segment; None when it was deleted since it was listed.

        Raises:
            OSError: the file cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        try:
            return SegmentView(self._filesystem, os.path.join(self.path, file_name(position)), position)
        except FileNotFoundError:
            return None

    def require(self) -> list[int]:
        """Return ``positions``, at least one.

        Raises:
            NoLog: there is none.
            OSError: as ``positions``.
        """
        try:
            positions = self.positions()
        except (FileNotFoundError, NotADirectoryError):
            positions = []
        if not positions:
            raise NoLog(f"{self.path} holds no log: expected the data_dir of a node that has run")
        return positions

    def log_id(self) -> int | None:
        """Return the log's random number; None without a segment whose header is sound.

        Raises:
            OSError: as ``positions``.
        """
        for position in reversed(self.positions()):
            view = self.open(position)
            if view is not None:
                view.close()
                if view.header is not None:
                    return view.header.log_id
        return None

    def owner(self) -> NodeName | None:
        """Return the name that the log belongs to; None when no segment has it.

        Raises:
            OSError: as ``positions``, or a file cannot be read.
            UnsupportedVersion: a later release wrote the log.
        """
        for position in reversed(self.positions()):
            view = self.open(position)
            if view is not None:
                try:
                    owner = view.owner()
                finally:
                    view.close()
                if owner is not None:
                    return owner
        return None

    def names(self, *, thorough: bool = False) -> dict[int, str]:
        """Return number and name of each stream in the log.

        Args:
            thorough: also find streams that were declared late in the newest segment. Reads it all.

        Raises:
            NoLog, OSError: as ``require``.
        """
        for position in reversed(self.require()):
            view = self.open(position)
            if view is None:
                continue
            try:
                # A segment begins with the names of all streams; later ones are named at their beginning.
                return view.all_names() if thorough else view.early_names()
            finally:
                view.close()
        return {}
