"""Progress of a link, kept across its connections."""

from __future__ import annotations

from collections.abc import Callable

from weft.protocols.batch import decode_header
from weft.protocols.errors import CodecError
from weft.protocols.ranges import RangeSet
from weft.replication.liveness import SECOND
from weft.replication.sender import Sender
from weft.replication.source import LogSource
from weft.replication.status import LinkStatus


class Progress:
    """The figures of a ``LinkStatus``. It remembers the hub's ranges while there is no connection."""

    def __init__(self, source: LogSource, status: LinkStatus, wall_clock: Callable[[], int]) -> None:
        self.status = status
        self._source = source
        self._wall_clock = wall_clock
        self._safe: dict[int, RangeSet] = {}
        self._oldest: dict[int, tuple[int, int]] = {}
        """Oldest pending record of each lane as (seq, time), so that waiting reads each only once."""

    def taken(self, sender: Sender, lane: int) -> None:
        """Use the hub's ranges of a lane as ``sender`` knows them from now on, also after its connection has ended."""
        self._safe[lane] = sender.safe(lane)

    def failed(self, reason: str) -> None:
        """Note an error; ``reason`` is for people."""
        self.status.last_error = reason
        self.status.last_error_time = self._wall_clock()

    async def refresh(self, sender: Sender | None) -> None:
        """Count the pending records. ``sender`` is the connected one, if any."""
        pending = {}
        total = 0
        for lane, state in self._source.states([lane.lane for lane in self._source.lanes()]).items():
            safe = self._safe.get(lane, RangeSet())
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
