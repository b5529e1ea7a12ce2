"""Clocks of the node's boots, as far as it learned them: hubs correct the stamps of an unset one.

A machine without a battery clock stamps records with a wrong time until the network sets it. As soon as a link has told
the time, or a time source has set the clock, the node knows what the boot's monotonic clock read then, and with it the
time of every record of the boot. It keeps that across restarts, as the records may wait for their hub longer than the
boot lasts. What was learned of a boot first holds: two answers that differ by a millisecond would step the clock.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.link import Clock
from weft.storage.filesystem import FileSystem, write_atomically

logger = logging.getLogger(__name__)

FILE: Final = "clocks"
BOOTS_MAX: Final = 64
"""Maximum number of boots that are kept, as many as a hub keeps of a log."""


class _Boot(msgspec.Struct, frozen=True):
    boot: int
    monotonic: int
    offset: int
    """Time minus the boot's monotonic clock; ns."""
    error: Annotated[int, msgspec.Meta(ge=0)]


_DECODER = msgspec.json.Decoder(list[_Boot])


class BootClocks:
    """The clocks of one log's boots. Event loop's thread; blocks on the disk once in a boot.

    Args:
        path: the file that keeps them.
        reading: the machine's clocks now; None when they are unknown, and then nothing is learned.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        log_id: int,
        reading: Callable[[], ClockReading] | None,
        wall_clock: Callable[[], int],
    ) -> None:
        self._filesystem = filesystem
        self._path = path
        self._log_id = log_id
        self._reading = reading
        self._wall_clock = wall_clock
        self._boots = {boot.boot: boot for boot in self._read()}
        now = reading() if reading is not None else None
        self._was_unset = now is not None and now.state is ClockState.UNSYNCED

    def look(self) -> None:
        """Note what the time is once a time source has set the clock of a boot that began without."""
        if self._reading is None:
            return
        now = self._reading()
        if now.state is ClockState.UNSYNCED:
            self._was_unset = True
        elif self._was_unset and now.boot_id not in self._boots:
            self._learn(now, self._wall_clock(), 0)

    def tell(self, time: int, error: int) -> None:
        """Note what the time is, as a hub tells it, unless the clock is right or the boot's is known.

        Args:
            time: nanoseconds since 1970, now.
            error: bound on its error, ns.
        """
        self.look()
        if self._reading is None:
            return
        now = self._reading()
        if now.state is ClockState.UNSYNCED and now.boot_id not in self._boots:
            self._learn(now, time, error)

    def notices(self) -> list[Clock]:
        """Return what hubs need to know, for the beginning of each connection."""
        return [
            Clock(self._log_id, boot.boot, boot.monotonic, boot.offset, boot.error) for boot in self._boots.values()
        ]

    def correction(self) -> int:
        """Return the nanoseconds to add to the wall clock now, as hubs correct the records that are taken in now."""
        if self._reading is None:
            return 0
        now = self._reading()
        boot = self._boots.get(now.boot_id)
        if boot is None or now.state is ClockState.SYNCED:
            return 0
        return boot.offset + now.monotonic - self._wall_clock()

    def _learn(self, now: ClockReading, time: int, error: int) -> None:
        self._boots[now.boot_id] = _Boot(now.boot_id, now.monotonic, time - now.monotonic, error)
        while len(self._boots) > BOOTS_MAX:
            del self._boots[next(iter(self._boots))]
        try:
            self._filesystem.make_directory(os.path.dirname(self._path))
            write_atomically(self._filesystem, self._path, msgspec.json.encode(list(self._boots.values())))
        except OSError as error_:
            logger.warning(
                "%s cannot be written (%s). Records of this boot keep the stamps of the unset clock if they reach "
                "their hub after a restart of the machine", self._path, error_,
            )  # fmt: skip

    def _read(self) -> list[_Boot]:
        try:
            return _DECODER.decode(self._filesystem.read(self._path))
        except (OSError, msgspec.MsgspecError):
            # Missing, as a rule. What a damaged one said, hubs have heard before.
            return []
