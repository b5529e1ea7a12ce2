"""Progress of a link, kept across its connections."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from weft.config.units import approximate_duration
from weft.protocols.batch import decode_header
from weft.protocols.errors import CodecError
from weft.protocols.ranges import RangeSet
from weft.protocols.segment import GapReason
from weft.replication.liveness import SECOND
from weft.replication.proof import Proof
from weft.replication.runner.acknowledged import Acknowledged
from weft.replication.runner.estimates import Estimates
from weft.replication.sender import Sender
from weft.replication.source import LogSource, OfferedLane
from weft.replication.status import CanaryState, LinkStatus

log = logging.getLogger(__name__)

OVERDUE = (
    "the hub answers, and its store has taken nothing of what was sent {}. The records are kept here; look at the "
    "hub's store: its log, its disk or bucket, its credentials"
)
LANES_READ_MAX = 64
"""Lanes whose oldest pending record is read for the status of an open link that sends new records first."""


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
        self.is_in_order = True
        """False while a lane's oldest pending record need not be the one that was read last."""
        self._estimates = Estimates()
        self._acked = 0
        """Acknowledged records that the estimates know."""
        self._proof: Proof | None = None
        self._data_bytes = 0
        """Bytes of messages with data since then."""

    def taken(self, sender: Sender, offered: OfferedLane) -> None:
        """Use ``sender``'s knowledge of the hub's ranges of a lane from now on, also after its connection has ended."""
        lane = offered.lane
        self._known[lane] = safe, told = sender.known(lane)
        if offered.identity is not None:
            return  # many logs have a lane of this stream, and their owners keep these accounts
        stream = offered.stream
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

    def sent(self, size: int, sender: Sender) -> None:
        """Note that a message was handed to the socket."""
        self.status.bytes_sent += size
        self.status.messages_sent += 1
        if sender.unacked_bytes:
            self._data_bytes += size

    async def refresh(self, sender: Sender | None, now: int = 0) -> None:
        """Count the pending records, and look at the canary.

        Args:
            sender: the connected one, if any.
            now: monotonic ns, with a sender.
        """
        self._look_at_canary(sender, now)
        pending = {}
        total = 0
        lanes = [lane.lane for lane in self._source.lanes()]
        self._known = {lane: self._known[lane] for lane in lanes if lane in self._known}
        self._oldest = {lane: self._oldest[lane] for lane in lanes if lane in self._oldest}
        for lane, state in self._source.states(lanes).items():
            safe = self._known[lane][0] if lane in self._known else RangeSet()
            parts = [part for run in state.held for part in safe.missing(*run)]
            if parts:
                pending[lane] = parts[0][0]
                total += sum(end - first for first, end in parts)
        oldest = sender.oldest_pending_time() if sender is not None else None
        if pending and (oldest is None or not self.is_in_order):
            read = await self._oldest_time(
                dict(islice(pending.items(), LANES_READ_MAX)) if oldest is not None else pending
            )
            oldest = min((time for time in (oldest, read) if time is not None), default=None)
        wall = self._wall_clock()
        self._estimate(wall, total, sender)
        self.status.alarm = self._acknowledged.alarm(self.status.cluster_id)
        self.status.pending_records = total
        self.status.pending_seconds = max(0.0, (wall - oldest) / SECOND) if pending and oldest is not None else 0.0
        self.status.unacked_bytes = sender.unacked_bytes if sender is not None else 0

    def _estimate(self, wall: int, pending: int, sender: Sender | None) -> None:
        status, estimates = self.status, self._estimates
        estimates.sample(wall, pending)
        if status.records_acked > self._acked:
            estimates.sent(status.records_acked - self._acked, self._data_bytes)
            self._acked, self._data_bytes = status.records_acked, 0
        status.pending_bytes = estimates.pending_bytes()
        status.drain_seconds = estimates.drain_seconds() if sender is not None or not pending else None
        if sender is not None and (round_trip := sender.liveness.round_trip) is not None:
            status.ping_seconds = round_trip / SECOND

    def _look_at_canary(self, sender: Sender | None, now: int) -> None:
        status = self.status
        overdue = None if sender is None else sender.canary.overdue(sender.liveness.answered)
        if sender is None or overdue is None:
            if status.canary_alarm and sender is not None:
                log.info("link %s: what is sent becomes durable at the hub again", status.name)
            is_fresh = sender is not None and sender.canary.is_fresh(now)
            status.canary, status.canary_alarm = CanaryState.PROVEN if is_fresh else CanaryState.UNKNOWN, ""
        else:
            if not status.canary_alarm:
                log.warning("link %s: %s", status.name, OVERDUE.format("lately"))
            ago = f"{approximate_duration((now - overdue) / SECOND)} ago"
            status.canary, status.canary_alarm = CanaryState.OVERDUE, OVERDUE.format(ago)
        # Once for each, so that the time does not follow steps of the wall clock.
        if sender is not None and (proof := sender.canary.proof) is not None and proof is not self._proof:
            self._proof = proof
            status.canary_seconds = proof.took / SECOND
            status.canary_time = self._wall_clock() - (now - proof.sent)

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
