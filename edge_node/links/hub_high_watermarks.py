"""Hubs' high watermarks: the highest numbers that each hub can hold of this log, kept across restarts.

With them, links detect a log that has forgotten records.

A log that was restored from an old copy, or whose disk lost its last commit, reuses numbers that a hub already holds
with other records. The hub's WELCOME reveals it, as long as the node knows the end of the records ever sent to that
hub: its *high watermark* of each stream. The log's own end is no substitute, because it grows while no link is
connected.

``<data_dir>/links/known-ends`` holds the high watermarks by hub (its cluster id) and stream, or that a high watermark
was passed:

- At each start of the node, before anything is appended, a high watermark that was passed becomes the log's end at its
  opening; and none stays above the log's end, because the numbers there are about to be used again.
- Before the first number at or beyond a high watermark is sent to a hub, the file records durably that it was passed;
  all streams of that connection together, as the hub's WELCOME has just been compared with each of them.

The file also has the name under which the log was never replicated (``unsent``): such a log can be renamed without
asking a hub (``edge_node.inspect.rename``). The entry is removed before the first number is sent.

A kill at any point never makes a hub appear to hold too much while the log has forgotten nothing. Beyond a high
watermark that was not passed nothing was sent. A passed one is set again from a log that has everything ever sent,
because only durable records are sent. A write that failed, or whose name did not reach the disk, does no harm: nothing
is sent before the write succeeds.
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
"""Name for all hubs that nothing was ever sent to."""

logger = logging.getLogger(__name__)


class _File(msgspec.Struct):
    log_id: str
    hubs: dict[str, dict[str, int | None]]
    """Hub -> stream -> its high watermark; None once it was passed."""
    unsent: str = ""
    """Name (tenant/edge) under which nothing was ever sent to a hub; empty when that is unknown."""


class HubHighWatermarks:
    """The high watermarks of one opened log, for all its links.

    Belongs to the event loop's thread, except ``record_first_send``, ``record_passed`` and ``close``.

    Args:
        opened: stream -> its end when the log was opened.
        name: the node's, under which the links replicate the log.
    """

    def __init__(
        self, filesystem: FileSystem, path: str, log_id: int, opened: Mapping[str, int], *, name: NodeName
    ) -> None:
        """Carry the file's content over into this start, and write it.

        Never fails: a log line reports a disk error and the detection that is lost with it.
        """
        self._filesystem = filesystem
        self._path = path
        self._log_id = format_log_id(log_id)
        self._lock = threading.Lock()
        self._closed = False
        found = self._read()
        # A missing or damaged file counts as empty; but where no number was ever used, nothing was sent.
        self._unsent = str(name) if found.unsent == str(name) or not any(opened.values()) else ""
        self._ends: dict[str, dict[str, int]] = {OTHER_HUBS: dict(opened)}
        for hub, ends in found.hubs.items():
            begun = {stream: opened.get(stream, 0) for stream in ends}
            self._ends[hub] = {
                stream: begun[stream] if end is None else min(end, begun[stream]) for stream, end in ends.items()
            }
        self._passed: dict[str, frozenset[str]] = {}
        try:
            # Even when nothing changed: a killed process may have left it only in the page cache.
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
            hub: the cluster id that it reported.
        """
        return self._ends.get(hub, self._ends[OTHER_HUBS]).get(stream, 0)

    def of_any(self, stream: str) -> int:
        """Return one past the last number that any hub may hold of the stream, likewise."""
        return max(ends.get(stream, 0) for ends in self._ends.values())

    @property
    def is_unsent(self) -> bool:
        """Return whether nothing was ever sent to a hub under the node's name; False also when that is unknown."""
        return bool(self._unsent)

    def record_first_send(self) -> None:
        """Record durably that records are sent to hubs from now on. Blocks on the disk; any thread.

        Raises:
            OSError: as ``record_passed``.
        """
        with self._lock:
            self._check_open()
            self._write(self._passed, unsent="")
            self._unsent = ""

    def record_new_name(self, name: NodeName) -> None:
        """Record that the log just got a name under which no hub has records. Blocks on the disk.

        Raises:
            OSError: the write failed. The next rename then asks the hubs, which is always right.
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
            OSError: the write failed, or the links are closed. Nothing may be sent.
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
    """Return a function from a stream to the number after the last one that any hub may have of a stopped node's log.

    It returns None where more was sent to hubs since the node last opened the log.

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
