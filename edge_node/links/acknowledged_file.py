"""Acknowledged records by hub and stream, kept across restarts: a hub that has fewer raises an alarm.

``<data_dir>/links/acknowledged`` is written every 10 s while something changes, and when the node stops.
Acknowledgements since the last write are unknown after a crash: fewer losses are detected then, and none wrongly.
"""

from __future__ import annotations

import asyncio
import logging
import os

import msgspec

from weft.protocols.errors import Corrupt
from weft.protocols.lane import format_log_id
from weft.protocols.ranges import RangeSet
from weft.replication.runner.acknowledged import Acknowledged, HubStream, Lost
from weft.storage.filesystem import FileSystem, write_atomically

FILE = "acknowledged"
INTERVAL_S = 10.0
RANGES_MAX = 256
"""Maximum number of ranges kept for one stream at one hub; the lowest are kept."""
HUB_STREAMS_MAX = 16_384
FILE_BYTES_MAX = 64 << 20
_Pairs = list[tuple[int, int]]

logger = logging.getLogger(__name__)


class _File(msgspec.Struct):
    log_id: str
    acknowledged: list[tuple[str, str, _Pairs]]
    """Hub, stream, ranges."""
    lost: list[tuple[str, str, _Pairs, _Pairs]] = []
    """Hub, stream, ``Lost.missing``, ``Lost.named``."""


class AcknowledgedFile:
    """The file of one log. Made before the links start, it blocks on the disk; a disk error fails nothing else."""

    def __init__(self, filesystem: FileSystem, path: str, log_id: int) -> None:
        self._filesystem = filesystem
        self._path = path
        self._log_id = format_log_id(log_id)
        self._written = b""
        self.acknowledged = self._read()

    async def keep(self) -> None:
        """Write the file now and then, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.save()

    async def save(self) -> None:
        """Write the file if something has changed."""
        data = msgspec.json.encode(self._content())
        if data != self._written:
            await asyncio.to_thread(self._write, data)

    def _content(self) -> _File:
        ranges, lost = self.acknowledged.state()
        acknowledged = [(*key, _pairs(held)) for key, held in ranges.items()]
        gone = [(*key, _pairs(found.missing), _pairs(found.named)) for key, found in lost.items()]
        return _File(self._log_id, acknowledged[-HUB_STREAMS_MAX:], gone[-HUB_STREAMS_MAX:])

    def _write(self, data: bytes) -> None:
        try:
            self._filesystem.make_directory(os.path.dirname(self._path))
            write_atomically(self._filesystem, self._path, data)
            self._written = data
        except OSError as error:
            logger.warning(
                "%s cannot be written (%s): after a restart a hub that lost records is not noticed", self._path, error
            )

    def _read(self) -> Acknowledged:
        try:
            if self._filesystem.size(self._path) > FILE_BYTES_MAX:
                return Acknowledged()
            file = msgspec.json.decode(self._filesystem.read(self._path), type=_File)
            if file.log_id != self._log_id:
                return Acknowledged()
            ranges: dict[HubStream, RangeSet] = {
                (hub, stream): RangeSet.from_wire(pairs) for hub, stream, pairs in file.acknowledged
            }
            lost = {
                (hub, stream): Lost(RangeSet.from_wire(missing), RangeSet.from_wire(named))
                for hub, stream, missing, named in file.lost
            }
        except (OSError, msgspec.MsgspecError, Corrupt):
            # Usually the file is missing. A damaged one counts as empty.
            return Acknowledged()
        return Acknowledged(ranges, lost)


def _pairs(ranges: RangeSet) -> _Pairs:
    return list(ranges)[:RANGES_MAX]
