"""Formats of an edge node's data directory, and the file that states them: ``formats.json``.

A release reads the file before it changes anything in the folder. If it finds a number above its own, it refuses the
folder as a whole, because the parts are opened one after the other: the first would be written before the last is
refused. Segments of the log state a version of their own, in each header, only as high as their content needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from weft.protocols.errors import CodecError, UnsupportedVersion
from weft.protocols.segment import HEADER_BYTES, decode_header, parse_file_name
from weft.storage.filesystem import FileSystem, write_atomically
from weft.storage.segment_log.settings import LogVersionError

# A number for each part: one for the whole folder would close the way back for nodes that do not use the part. Not
# SQLite's `user_version`: it may be in the write-ahead log, which SQLite does not read without writing.
FILE = "formats.json"
FIRST = 1
"""Format of every part that the file does not name, and of a folder without the file."""
FORMATS: Mapping[str, int] = {
    "log": 1,
    "sessions": 1,
    "queues": 1,
    "amqp1": 1,
    "functions": 1,
    "http": 1,
    "links": 1,
    "sources": 1,
    "imported": 1,
}
"""Part of a data directory -> the format that this release writes, the highest that it reads. The table of
docs/reference/formats/data-directory.md lists the files of each part. Raise a number if an earlier release would lose
or misread data of this one, and keep the reader of the earlier format (docs/upgrades.md)."""


class Stated(msgspec.Struct, frozen=True):
    """Content of the file. A later release may add fields."""

    release: str
    """Release that raised a format last, or made the folder."""
    formats: dict[str, int]


class DataDirectory:
    """The formats of one data directory, checked before it is written. Blocks.

    Args:
        release: name of this release, such as ``weft 0.1.0``.
        also: further checks of the folder, which raise ``LogVersionError`` and write nothing.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        directory: str,
        release: str,
        also: Callable[[str], None] | None = None,
        formats: Mapping[str, int] = FORMATS,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._release = release
        self._also = also
        self._formats = formats

    def check(self) -> None:
        """Compare the folder's formats with those of this release. Writes nothing.

        Raises:
            LogVersionError: another release has to open it; the message says which.
            OSError: an existing file cannot be read.
        """
        stated = self._read()
        unknown = {part: n for part, n in stated.formats.items() if n > self._formats.get(part, 0)}
        if unknown:
            newer = ", ".join(f"format {n} of {part}, {self._known(part)}" for part, n in sorted(unknown.items()))
            raise LogVersionError(
                f"{self._directory} was written by a later release of Weft ({stated.release}: {newer}): install that "
                "release again"
            )
        self._check_segments()
        if self._also is not None:
            self._also(self._directory)

    def state(self) -> None:
        """State the formats of this release, before anything is written in them. A file with the same statement is not
        changed.

        Raises:
            OSError: a higher format than before cannot be stated, so nothing may be written in it.
        """
        stated = self._read()
        formats = {part: max(n, stated.formats.get(part, FIRST)) for part, n in self._formats.items()}
        path = os.path.join(self._directory, FILE)
        if formats == stated.formats:
            return
        data = msgspec.json.encode(Stated(self._release, formats))
        try:
            write_atomically(self._filesystem, path, data + b"\n", is_open=True)
        except OSError:
            # A full disk must not stop a node if its folder means the same without the file.
            if stated.formats or any(n > FIRST for n in formats.values()):
                raise

    def _known(self, part: str) -> str:
        known = self._formats.get(part)
        return "which this release does not have" if known is None else f"this release knows {known}"

    def _read(self) -> Stated:
        path = os.path.join(self._directory, FILE)
        try:
            return msgspec.json.decode(self._filesystem.read(path), type=Stated)
        except FileNotFoundError:
            return Stated("", {})
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise LogVersionError(
                f"{path} is damaged ({error}), so it is not known which release may open the folder. If no release "
                "after this one has, remove the file and start again"
            ) from None

    def _check_segments(self) -> None:
        """Check the header of each segment. The entries are checked when the log is loaded."""
        if not self._filesystem.exists(self._directory):
            return
        for name in self._filesystem.list_names(self._directory):
            path = os.path.join(self._directory, name)
            if parse_file_name(name) is None or self._filesystem.is_directory(path):
                continue
            try:
                file = self._filesystem.open(path, read_only=True)
            except FileNotFoundError:
                continue  # a running node, whose folder a check may read, has deleted it meanwhile
            try:
                decode_header(file.read_at(0, HEADER_BYTES))
            except UnsupportedVersion as error:
                raise LogVersionError(
                    f"{path} was written by a later release of Weft ({error}): install that release again, or move "
                    f"{self._directory} away to begin an empty log"
                ) from None
            except (CodecError, OSError):
                continue  # damage, which is handled when the log is opened
            finally:
                file.close()
