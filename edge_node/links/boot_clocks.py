"""Clocks of the log's boots, as far as the node learned them: hubs correct the stamps of an unset one.

A machine without a battery clock stamps records with a wrong time until the network sets it. As soon as a link has
received the time from a hub, or a time source has set the clock, the node can relate the boot's monotonic clock to it,
and so knows the time of every record of the boot. The log keeps this relation, as the records may wait for their hub
longer than the boot lasts.

One answer of a hub may be wrong, so a relation is learned from two that agree. It then stays, since two answers that
differ by a millisecond would step the clock; but two later ones that agree and are minutes away correct it, for the
records that no hub has yet.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from weft.protocols.batch import ClockReading, ClockState, decode_header
from weft.protocols.errors import CodecError
from weft.protocols.link import Clock
from weft.protocols.segment import ClockNotice
from weft.storage.segment_log import LogError, SegmentLog

logger = logging.getLogger(__name__)

AGREE_NS = 1_000_000_000
"""Difference up to which two answers agree, besides the bounds on their errors."""
DIFFERS_NS = 120_000_000_000
"""Difference from which on later answers correct a relation. Two hub nodes that take links differ by less: each is off
by a minute at most."""
FRESH_NS = 600_000_000_000
"""Age up to which the last answer of another hub node speaks for the learned relation. A linked one answers each
minute."""
SOURCES_MAX = 16
"""Maximum number of hub nodes whose last answer is kept; the one that was silent for longest is forgotten first."""


class _Answer(NamedTuple):
    boot_id: int
    offset: int
    """Time minus the boot's monotonic clock, ns."""
    error: int
    monotonic: int
    """Reading of that clock when the answer came."""

    def agrees(self, offset: int, error: int, within: int = AGREE_NS) -> bool:
        """Return whether an offset with such an error says the same time."""
        return abs(self.offset - offset) <= within + self.error + error


class BootClocks:
    """The clocks of one log's boots. Event loop's thread; making one blocks on the disk.

    Args:
        reading: the machine's clocks now; None when they are unknown; no relation is then learned.
        clock_error: bound of the wall clock's error while a time source keeps it right, ns.
    """

    def __init__(
        self,
        log: SegmentLog,
        reading: Callable[[], ClockReading] | None,
        wall_clock: Callable[[], int],
        clock_error: Callable[[], int],
    ) -> None:
        self._log = log
        self._reading = reading
        self._wall_clock = wall_clock
        self._clock_error = clock_error
        self._boots = {notice.boot_id: notice for notice in log.clocks()}
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        """The last answer of each hub node, the newest at the end."""
        self._was_unset = reading is not None and self._may_have_been_unset(reading())

    def _may_have_been_unset(self, now: ClockReading) -> bool:
        """Return whether records of this boot may have stamps of an unset clock."""
        if now.state is ClockState.UNSYNCED:
            return True
        # An earlier process of this boot may have written before the clock was set: the last records are this boot's.
        return now.boot_id not in self._boots and now.boot_id in self._last_boots()

    def _last_boots(self) -> Iterable[int]:
        for stream in self._log.streams().values():
            try:
                batches = self._log.read(stream, max(0, self._log.durable_end(stream) - 1), 1)
                yield from (decode_header(batch).boot_id for batch in batches)
            except (OSError, LogError, CodecError) as error:
                logger.info("the last records of stream %d do not name their boot: %s", stream, error)

    def look(self) -> None:
        """Record the time once a time source has set the clock of a boot that began without."""
        if self._reading is None:
            return
        now = self._reading()
        if now.state is ClockState.UNSYNCED:
            self._was_unset = True
        elif self._was_unset and now.boot_id not in self._boots:
            self._learn(now, self._wall_clock(), self._clock_error())

    @property
    def is_synchronised(self) -> bool:
        """Return whether a time source keeps the wall clock right."""
        return self._reading is not None and self._reading().state is ClockState.SYNCED

    @property
    def is_unknown(self) -> bool:
        """Return whether the records that arrive now have a time that nothing corrects yet."""
        now = None if self._reading is None else self._reading()
        return now is not None and now.state is ClockState.UNSYNCED and now.boot_id not in self._boots

    def tell(self, hub: str, time: int, error: int) -> None:
        """Note the time that a hub node reports, unless the clock is right. With one more that agrees, it is the time.

        Args:
            hub: the node.
            time: nanoseconds since 1970, now.
            error: bound on its error, ns.
        """
        self.look()
        now = None if self._reading is None else self._reading()
        if now is None or now.state is ClockState.SYNCED:
            return
        answer = _Answer(now.boot_id, time - now.monotonic, error, now.monotonic)
        others = [each for each in self._answers.values() if each.boot_id == now.boot_id]
        last = self._answers.pop(hub, None)
        self._answers[hub] = answer
        if len(self._answers) > SOURCES_MAX:
            self._answers.popitem(last=False)
        if not any(each.agrees(answer.offset, error) for each in others):
            return
        known = self._boots.get(now.boot_id)
        if known is None:
            self._learn(now, time, error)
        elif not any(
            each.agrees(known.offset, known.error, DIFFERS_NS)
            for each in (answer, *others)
            if each is not last and now.monotonic - each.monotonic < FRESH_NS
        ):
            # No other node says now what was learned: of two that differ, the first one learned would stay.
            seconds = (answer.offset - known.offset) / 1e9
            logger.warning(
                "hubs now tell a time that is %+.0f s away from the one that this boot learned. Records that no hub "
                "has yet get the new one", seconds,
            )  # fmt: skip
            self._learn(now, time, error)

    def notices(self) -> list[Clock]:
        """Return the clocks that hubs need, for the beginning of each connection."""
        log_id = self._log.log_id
        return [Clock(log_id, boot.boot_id, boot.monotonic, boot.offset, boot.error) for boot in self._boots.values()]

    def correction(self) -> int:
        """Return the nanoseconds to add to the wall clock now, as hubs correct the records that arrive now."""
        if self._reading is None:
            return 0
        now = self._reading()
        boot = self._boots.get(now.boot_id)
        if boot is None or now.state is ClockState.SYNCED:
            return 0
        return boot.offset + now.monotonic - self._wall_clock()

    def _learn(self, now: ClockReading, time: int, error: int) -> None:
        notice = self._boots[now.boot_id] = ClockNotice(now.boot_id, now.monotonic, time - now.monotonic, error)
        try:
            self._log.note_clock(notice)
        except LogError as problem:
            logger.warning(
                "the log has no room for the record of this boot's clock (%s). Records of this boot keep the "
                "stamps of the unset clock if they reach their hub after a restart of the machine", problem,
            )  # fmt: skip
