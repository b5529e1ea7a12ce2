"""Hubs' high watermarks: the most that each hub can hold of this log, kept across restarts.

Links notice by them a log that has forgotten records.

A log that was restored from an old copy, or whose disk lost its last commit, gives numbers out again that a hub holds
already with other records. The hub's WELCOME tells, as long as the node knows up to where that hub was ever given
anything: its *high watermark* of each stream. The log's own end does not say it, because it grows while no link is
connected.

``<data_dir>/links/known-ends`` holds the high watermarks by hub (its cluster id) and stream, or that one was passed:

- At each start of the node, before anything is appended, a high watermark that was passed becomes the log's end at its
  opening; and none stays above the log's end, because what lies there is about to be given out again.
- Before the first number at or beyond a high watermark is sent to a hub, the file says durably that it was passed; all
  streams of that connection together, as the hub's WELCOME has just been held against each of them.

The file also says under which name the log was never replicated (``unsent``): a log of which no hub has anything can be
renamed without asking one (``edge_node.inspect.rename``). The file stops saying so before the first number is sent.

No hub is ever taken for one that holds too much while the log has forgotten nothing, at whatever point the node was
killed. Beyond a high watermark that was not passed nothing was sent. One that was passed is taken again from a log that
has everything that was ever sent, because only what is durable is sent. A write that failed, or whose name did not
reach the disk, does no harm: nothing was sent on the strength of it.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from weft.protocols.lane import NodeName, format_log_id
from weft.storage.filesystem import FileSystem, write_atomically

FILE: Final = ("links", "known-ends")
"""Place of the file in a data_dir."""
HUBS_MAX: Final = 16
"""Maximum number of hubs with ends of their own. Further ones share the ends of hubs in general: fewer losses are
detected, and none wrongly."""
HUB_BYTES_MAX: Final = 64
"""Longest cluster id; the ids of hubs have 32 characters."""
FILE_BYTES_MAX: Final = 8 << 20
"""Largest file: 17 hubs with 4,096 streams (``protocols.link.LANES_MAX``) of 64 characters each."""
OTHER_HUBS: Final = ""
"""Name for all hubs that were never sent anything."""

logger = logging.getLogger(__name__)


class _File(msgspec.Struct):
    log_id: str
    hubs: dict[str, dict[str, int | None]]
    """Hub -> stream -> its high watermark; None once it was passed."""
    unsent: str = ""
    """Name (tenant/edge) under which no hub was ever sent anything; empty when that is unknown."""


class HubHighWatermarks:
    """The high watermarks of one opened log, for all its links.

    Belongs to the event loop's thread, except ``record_first_send``, ``record_passed`` and ``close``.

    Args:
        opened: stream -> where the log found it to end when it was opened.
        name: the node's, under which the links replicate the log.
    """

    def __init__(
        self, filesystem: FileSystem, path: str, log_id: int, opened: Mapping[str, int], *, name: NodeName
    ) -> None:
        """Carry the file's content over into this start, and write it.

        Never fails: the program's log tells of a disk that cannot do it, and what will not be noticed for want of it.
        """
        self._filesystem = filesystem
        self._path = path
        self._log_id = format_log_id(log_id)
        self._lock = threading.Lock()
        self._closed = False
        found = self._read()
        # A file that is missing or damaged says nothing; but where nothing was ever numbered, nothing was sent.
        self._unsent = str(name) if found.unsent == str(name) or not any(opened.values()) else ""
        self._ends: dict[str, dict[str, int]] = {OTHER_HUBS: dict(opened)}
        for hub, ends in found.hubs.items():
            begun = {stream: opened.get(stream, 0) for stream in ends}
            self._ends[hub] = {
                stream: begun[stream] if end is None else min(end, begun[stream]) for stream, end in ends.items()
            }
        self._passed: dict[str, frozenset[str]] = {}
        try:
            # Even when nothing changed: a process that was killed may have left it in memory alone.
            self._write(self._passed)
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s). The node runs on. If this log is a restored old copy and the node "
                "restarts before its links connect, they will not notice it",
                path, error,
            )  # fmt: skip

    def get(self, hub: str, stream: str) -> int:
        """Return one past the last number that ``hub`` may hold of the stream, unless this log has forgotten some.

        Args:
            hub: the cluster id that it told.
        """
        return self._ends.get(hub, self._ends[OTHER_HUBS]).get(stream, 0)

    @property
    def is_unsent(self) -> bool:
        """Return whether no hub was ever sent anything under the node's name; False also when that is unknown."""
        return bool(self._unsent)

    def record_first_send(self) -> None:
        """Record durably that hubs are sent something from now on. Blocks on the disk; any thread.

        Raises:
            OSError: as ``record_passed``.
        """
        with self._lock:
            self._check_open()
            self._write(self._passed, unsent="")
            self._unsent = ""

    def record_new_name(self, name: NodeName) -> None:
        """Record that the log was just given a name, under which no hub has anything. Blocks on the disk.

        Raises:
            OSError: the disk did not take it. Then the next rename asks the hubs, which is always right.
        """
        with self._lock:
            self._write(self._passed, unsent=str(name))

    def blocks(self, hub: str, ends: Mapping[str, int]) -> bool:
        """Return whether numbers up to these ends, by stream, must wait until ``record_passed`` returns."""
        beyond = any(end > self.get(hub, stream) for stream, end in ends.items())
        return beyond and not ends.keys() <= self._passed.get(self._key(hub), frozenset())

    def record_passed(self, hub: str, ends: Mapping[str, int]) -> None:
        """Record durably that ``hub`` may be sent more of these streams than ever. Blocks on the disk; any thread.

        Raises:
            OSError: the disk did not take it, or the links are closed. Nothing may be sent.
        """
        with self._lock:
            self._check_open()
            hub = self._key(hub)
            passed = {**self._passed, hub: self._passed.get(hub, frozenset()) | ends.keys()}
            if passed != self._passed:
                self._write(passed)
                self._passed = passed

    def raise_to(self, hub: str, ends: Mapping[str, int]) -> None:
        """Raise the high watermarks of ``hub`` to these ends, by stream. Only where none blocks them.

        Raises:
            ValueError: one does.
        """
        if self.blocks(hub, ends):
            raise ValueError(f"{ends} would pass high watermarks of {hub} that block them")
        beyond = {stream: end for stream, end in ends.items() if end > self.get(hub, stream)}
        if beyond:
            self._ends.setdefault(self._key(hub), dict(self._ends[OTHER_HUBS])).update(beyond)

    def close(self) -> None:
        """Wait for a write that is under way; ``record_passed`` fails from now on. Blocks."""
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.ECANCELED, "the node's links are closed", self._path)

    def _key(self, hub: str) -> str:
        known = self._ends.keys() | self._passed.keys()
        return hub if hub in known or (len(known) <= HUBS_MAX and len(hub.encode()) <= HUB_BYTES_MAX) else OTHER_HUBS

    def _write(self, passed: Mapping[str, frozenset[str]], *, unsent: str | None = None) -> None:
        hubs: dict[str, dict[str, int | None]] = {}
        for hub in {**self._ends, **passed}:
            ends = self._ends.get(hub, self._ends[OTHER_HUBS])
            hubs[hub] = {**ends, **dict.fromkeys(passed.get(hub, ()))}
        line = msgspec.json.encode(_File(self._log_id, hubs, self._unsent if unsent is None else unsent))
        self._filesystem.make_directory(os.path.dirname(self._path))
        write_atomically(self._filesystem, self._path, b"%08x %s\n" % (crc32c(line), line))

    def _read(self) -> _File:
        """Return the file's content for this log: empty if there is no file, or it is another log's or damaged."""
        nothing = _File(self._log_id, {})
        try:
            file = _decoded(self._filesystem, self._path)
        except FileNotFoundError:
            return nothing
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            logger.warning(
                "%s cannot be used (%s) and is replaced, starting at the log's present end. Links will not "
                "notice a restored copy or lost records from before this start",
                self._path, error,
            )  # fmt: skip
            return nothing
        if file.log_id != self._log_id:
            logger.info("%s belonged to log %s and is replaced for log %s", self._path, file.log_id, self._log_id)
            return nothing
        return file


def hub_ends(filesystem: FileSystem, data_dir: str, log_id: int) -> Callable[[str], int | None]:
    """Return a function that tells of a stream one past the last number that any hub may have of a stopped node's log.

    It returns None where hubs were sent more since the log was last opened by its node.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError, msgspec.MsgspecError: it is damaged, or another log's.
    """
    file = _decoded(filesystem, os.path.join(data_dir, *FILE))
    if file.log_id != format_log_id(log_id):
        raise ValueError(f"it belongs to log {file.log_id}")
    hubs = {hub: ends for hub, ends in file.hubs.items() if hub != OTHER_HUBS} or file.hubs

    def end(stream: str) -> int | None:
        known = [ends.get(stream, 0) for ends in hubs.values()]
        return None if None in known else max(each for each in known if each is not None)

    return end


def _decoded(filesystem: FileSystem, path: str) -> _File:
    """Read the file.

    Raises:
        OSError, ValueError, msgspec.MsgspecError: it cannot be used.
    """
    if filesystem.size(path) > FILE_BYTES_MAX:
        raise ValueError(f"it is longer than {FILE_BYTES_MAX} bytes")
    checksum, _, line = filesystem.read(path).removesuffix(b"\n").partition(b" ")
    if checksum != b"%08x" % crc32c(line):
        raise ValueError("its checksum does not match")
    file = msgspec.json.decode(line, type=_File)
    if OTHER_HUBS not in file.hubs:
        raise ValueError("it does not speak of hubs in general")
    return file
