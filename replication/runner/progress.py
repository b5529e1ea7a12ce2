"""Progress of a link, kept across its connections."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from weft.protocols.batch import decode_header
from weft.protocols.errors import CodecError
from weft.protocols.ranges import RangeSet
from weft.replication.liveness import SECOND
from weft.replication.sender import Sender
from weft.replication.source import LogSource
from weft.replication.status import LinkStatus

log = logging.getLogger(__name__)


class _Known(NamedTuple):
    """Knowledge of a lane at a hub. The sets are the sender's own and grow with it."""

    cluster_id: str
    safe: RangeSet
    told: RangeSet


class Progress:
    """The figures of a ``LinkStatus``. It remembers the hub's ranges while there is no connection."""

    def __init__(self, source: LogSource, status: LinkStatus, wall_clock: Callable[[], int]) -> None:
        self.status = status
        self._source = source
        self._wall_clock = wall_clock
        self._known: dict[int, _Known] = {}
        self._oldest: dict[int, tuple[int, int]] = {}
        """Oldest pending record of each lane as (seq, time), so that waiting reads each only once."""

    def taken(self, sender: Sender, lane: int) -> None:
        """Use the hub's ranges of a lane as ``sender`` knows them from now on, also after its connection has ended."""
        known, now = self._known.get(lane), _Known(sender.cluster_id, *sender.known(lane))
        if known is not None and known.cluster_id == now.cluster_id:
            self._compare(known, now.safe)
        self._known[lane] = now

    def _compare(self, known: _Known, holds: RangeSet) -> None:
        """Raise the alarm when a hub holds less than it has acknowledged: only a store that went back does."""
        acknowledged = known.safe.copy()
        for first, end in known.told:
            acknowledged.remove(first, end)
        lost = [part for run in acknowledged for part in holds.missing(*run)]
        if lost:
            count = sum(end - first for first, end in lost)
            reason = (
                f"hub {known.cluster_id} has lost {count} records that it had acknowledged, from seq {lost[0][0]} on. "
                "Its store was restored to an earlier state. This node sends again what it still has; look for the "
                "rest at other hubs, and in the tables"
            )
            log.error("link %s: %s", self.status.name, reason)
            self.failed(reason)

    def failed(self, reason: str) -> None:
        """Note an error; ``reason`` is for people."""
        self.status.last_error = reason
        self.status.last_error_time = self._wall_clock()

    async def refresh(self, sender: Sender | None) -> None:
        """Count the pending records. ``sender`` is the connected one, if any."""
        pending = {}
        total = 0
        for lane, state in self._source.states([lane.lane for lane in self._source.lanes()]).items():
            safe = self._known[lane].safe if lane in self._known else RangeSet()
            parts = [part for run in state.held for part in safe.missing(*run)]
            if parts:
                pending[lane] = parts[0][0]
                total += sum(end - first for first, end in parts)
        oldest = sender.oldest_pending_time() if sender is not None else None
        if pending and oldest is None:
            oldest = await self._oldest_time(pending)
        wall = self._wall_clock()
        self.status.pending_records = total
        self.status.pending_seconds = max(0.0, (wall - oldest) / SECOND) if pending and oldest is not None else 0.0
        self.status.unacked_bytes = sender.unacked_bytes if sender is not None else 0

    async def _oldest_time(self, pending: dict[int, int]) -> int | None:
        times = []
        for lane, seq in pending.items():
            if self._oldest.get(lane, (None,))[0] != seq:
                try:
                    batches = await self._source.read(lane, seq, 1)
                except (OSError, CodecError) as error:
                    self.failed(f"the log cannot be read: {error}")
                    continue
                if not batches:
                    continue
                self._oldest[lane] = seq, decode_header(batches[0]).first_time
            times.append(self._oldest[lane][1])
        return min(times, default=None)
