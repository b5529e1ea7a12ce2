"""Progress of a link, kept across its connections."""

from __future__ import annotations

import logging
from collections.abc import Callable

from weft.protocols.batch import decode_header
from weft.protocols.errors import CodecError
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.replication.liveness import SECOND
from weft.replication.runner.acknowledged import Acknowledged
from weft.replication.sender import Sender
from weft.replication.source import LogSource
from weft.replication.status import LinkStatus

log = logging.getLogger(__name__)


class Progress:
    """The figures of a ``LinkStatus``. It keeps the hub's ranges while there is no connection."""

    def __init__(
        self, source: LogSource, status: LinkStatus, wall_clock: Callable[[], int], acknowledged: Acknowledged
    ) -> None:
        self.status = status
        self._source = source
        self._wall_clock = wall_clock
        self._acknowledged = acknowledged
        status.alarm = acknowledged.alarm(status.cluster_id)
        self._known: dict[int, tuple[RangeSet, RangeSet]] = {}
        self._oldest: dict[int, tuple[int, int]] = {}
        """Oldest pending record of each lane as (seq, time), so that each is read only once while it waits."""

    def taken(self, sender: Sender, lane: int) -> None:
        """Use ``sender``'s knowledge of the hub's ranges of a lane from now on, also after its connection has ended."""
        self._known[lane] = safe, told = sender.known(lane)
        stream = next(offered.stream for offered in self._source.lanes() if offered.lane == lane)
        gaps = self._source.states([lane])[lane].gaps
        noticed = [(gap.first, gap.end) for gap in gaps if gap.reason != GapReason.ABSENT]
        reason = self._acknowledged.opened(sender.cluster_id, stream, safe, told, noticed)
        if reason:
            log.error("link %s: %s", self.status.name, reason)
            self.failed(reason)
            self.status.alarm = self._acknowledged.alarm(sender.cluster_id)

    def failed(self, reason: str) -> None:
        """Note an error; ``reason`` is for people."""
        self.status.last_error = reason
        self.status.last_error_time = self._wall_clock()

    async def refresh(self, sender: Sender | None) -> None:
        """Count the pending records. ``sender`` is the connected one, if any."""
        pending = {}
        total = 0
        for lane, state in self._source.states([lane.lane for lane in self._source.lanes()]).items():
            safe = self._known[lane][0] if lane in self._known else RangeSet()
            parts = [part for run in state.held for part in safe.missing(*run)]
            if parts:
                pending[lane] = parts[0][0]
                total += sum(end - first for first, end in parts)
        oldest = sender.oldest_pending_time() if sender is not None else None
        if pending and oldest is None:
            oldest = await self._oldest_time(pending)
        wall = self._wall_clock()
        self.status.alarm = self._acknowledged.alarm(self.status.cluster_id)
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
