"""Progress of a link, kept across its connections."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from weft.config.log_lines import UpAndDown, clock_difference, left_out
from weft.config.units import approximate_duration
from weft.protocols.batch import decode_header
from weft.protocols.errors import CodecError
from weft.protocols.link import ACKNOWLEDGED_MAX, ACKNOWLEDGED_RANGES_MAX, Clock
from weft.protocols.ranges import Range, RangeSet
from weft.protocols.segment import GapReason
from weft.replication.events import CanaryState, LinkState, LinkStatus
from weft.replication.liveness import SECOND, Proof
from weft.replication.runner.settings import ClockSource
from weft.replication.sender import Sender
from weft.replication.source import LogSource, OfferedLane

# The log lines of a link's sending end.

log = logging.getLogger(__name__)

CLOCK_REPEAT_S = 3600.0
"""Interval at which a clock that differs from the hub's is logged again."""
_STATES = {
    LinkState.WAITING: "not connected",
    LinkState.REFUSED: "refused by the hub",
    LinkState.CONFLICT: "identity conflict",
}


class LinkLog:
    """The lines of one link. Every call takes monotonic seconds."""

    def __init__(self, name: str, now: float) -> None:
        self._name = name
        self._state = UpAndDown(now)
        self._clock: str | None = None
        """Clock difference in the last line; None while the clock agrees with the hub's."""
        self._clock_logged_at = now

    def connected(self, url: str, cluster_id: str, now: float) -> None:
        """Log that the hub accepted the link."""
        up = self._state.up(now)
        if up is None:
            return
        after = f", after {approximate_duration(up.away_s)}{' away' if up.again else ''}, {failed(up.failures)}"
        log.info(
            "link %s: connected %sto %s, hub %s%s",
            self._name,
            "again " if up.again else "",
            url,
            cluster_id,
            after if up.again or up.failures else "",
        )

    def clock(self, offset_s: float, now: float) -> None:
        """Log that this machine's clock differs from the hub's: at once, then once an hour, and when it agrees again.

        Args:
            offset_s: seconds to add to this machine's clock to get the hub's.
        """
        difference = clock_difference(offset_s)
        if difference is None:
            if self._clock is not None:
                log.info("link %s: this machine's clock agrees with the hub's again", self._name)
        elif self._clock is None or now - self._clock_logged_at >= CLOCK_REPEAT_S:
            self._clock_logged_at = now
            log.warning(
                "link %s: this machine's clock is %s. The hub corrects the times of records while no time source "
                "vouches for the clock; set it, for example with `timedatectl set-ntp true`",
                self._name,
                difference,
            )
        self._clock = difference

    def failed(self, state: LinkState, reason: str, retry_s: float, now: float) -> None:
        """Log a failed attempt, or the end of a connection.

        Args:
            state: the link's state afterwards.
            reason: for people; peers wrote parts of it.
        """
        change = self._state.down(f"{state} {reason}", now)
        if change is None:
            return
        what = _STATES.get(state, str(state))
        if change.was_up:
            ended = "disconnected" if state is LinkState.WAITING else what
            what = f"{ended} after {approximate_duration(change.since_s)}"
        elif change.failures > 1:
            what += f" for {approximate_duration(change.since_s)}, {failed(change.failures)}"
        log.warning(
            "link %s: %s: %s (next try in %.1f s%s)", self._name, what, reason, retry_s, left_out(change.left_out)
        )


def failed(attempts: int) -> str:
    """Return a count of failed attempts: ``1 failed attempt``, ``2,880 failed attempts``."""
    return f"{attempts:,} failed {'attempt' if attempts == 1 else 'attempts'}"


# Estimates of the work that a link still has before it, by its present rate.

WINDOW_NS = 60 * SECOND
"""Time over which the rate is taken: commits of a hub come in steps."""
SHORTEST_NS = 5 * SECOND
RECORDS_MIN = 20
"""Records after whose way to the hub their mean size is known well enough to say it."""


class _Sample(NamedTuple):
    at: int
    pending: int


class Estimates:
    """Estimates of one link, from a sample about once a second. Times in monotonic or wall ns, all of one clock."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._records = 0
        self._bytes = 0

    def sample(self, now: int, pending: int) -> None:
        """Note how many records wait at ``now``."""
        if self._samples and now < self._samples[-1].at:
            self._samples.clear()  # the clock was set back
        self._samples.append(_Sample(now, pending))
        while now - self._samples[0].at > WINDOW_NS:
            self._samples.popleft()

    def sent(self, records: int, size: int) -> None:
        """Note that ``records`` were acknowledged, and ``size`` bytes were sent for them."""
        self._records += records
        self._bytes += size

    def drain_seconds(self) -> float | None:
        """Return the seconds until nothing waits at the present rate; None where it grows, stands, or is unknown."""
        if not self._samples:
            return None
        first, last = self._samples[0], self._samples[-1]
        if not last.pending:
            return 0.0
        drained = first.pending - last.pending
        if last.at - first.at < SHORTEST_NS or drained <= 0:
            return None
        return last.pending * (last.at - first.at) / drained / SECOND

    def pending_bytes(self) -> int | None:
        """Return about how many bytes the waiting records are on the wire; None before enough were sent to know."""
        if not self._samples:
            return None
        pending = self._samples[-1].pending
        if not pending:
            return 0
        return pending * self._bytes // self._records if self._records >= RECORDS_MIN else None


# Records that hubs have acknowledged, and the alarm when a hub no longer has some of them.
#
# This happens only when the hub's store was restored to an earlier state, or lost objects. The edge may have deleted
# these records after the acknowledgement, so they may never be sent again: an operator must know.

HubStream = tuple[str, str]
"""(cluster id, stream)."""


class Lost(NamedTuple):
    """Records of one stream that a hub acknowledged and no longer has."""

    missing: RangeSet
    named: RangeSet
    """The part that this node lacks too, and reported as gaps: the hub then holds a notice, not a record."""


_NOTHING = Lost(RangeSet(), RangeSet())


class _Connection(NamedTuple):
    """Knowledge of a stream on the newest connection. The sets are the sender's own and grow with it."""

    safe: RangeSet
    reported: RangeSet


class Acknowledged:
    """The acknowledged records of one log by hub and stream, for all its links. Event loop's thread.

    Args:
        ranges: the ranges that hubs acknowledged before, and ``lost`` those that they no longer had.
    """

    def __init__(
        self, ranges: Mapping[HubStream, RangeSet] | None = None, lost: Mapping[HubStream, Lost] | None = None
    ) -> None:
        self._ranges = dict(ranges or {})
        self._lost = dict(lost or {})
        self._newest: dict[HubStream, _Connection] = {}
        self._hubs: dict[str, dict[str, None]] = {}
        """Stream -> the hubs with records of it. A node has many streams, and each is looked up on its own."""
        for hub, stream in self._ranges:
            self._hubs.setdefault(stream, {})[hub] = None

    def opened(self, hub: str, stream: str, safe: RangeSet, reported: RangeSet, noticed: Iterable[Range]) -> str:
        """Note that a hub accepted a lane. Return a message if the hub has lost records of it, else an empty text.

        Args:
            safe: the ranges that the hub holds; the set grows on this connection.
            reported: the numbers that this connection sent as gaps; the set grows likewise.
            noticed: numbers with gap notices in the log: no hub needs to have their records.
        """
        key = hub, stream
        self._settle(key)
        expected = self._ranges.setdefault(key, RangeSet())
        self._hubs.setdefault(stream, {})[hub] = None
        _remove(expected, noticed)
        gone = RangeSet(part for run in expected for part in safe.missing(*run))
        self._newest[key] = _Connection(safe, reported)
        if not gone:
            return ""
        _remove(expected, gone)
        before = self._lost.get(key, Lost(RangeSet(), RangeSet()))
        before.missing.update(gone)
        self._lost[key] = before
        return _sentence(key, gone)

    def _settle(self, key: HubStream) -> None:
        """Apply the changes of the newest connection."""
        newest = self._newest.get(key)
        if newest is None:
            return
        records = newest.safe.copy()
        _remove(records, newest.reported)
        self._ranges[key].update(records)
        lost = self._lost.get(key)
        if lost is not None:
            lost.named.update(part for run in lost.missing for part in _common(newest.reported, run))
            _remove(records, lost.named)
            _remove(lost.missing, records)
            if not lost.missing:
                del self._lost[key]

    def held(self, hub: str, stream: str) -> RangeSet:
        """Return the records of a stream that a hub has by its own word on the newest connection; an independent set.

        Empty before the first connection since the start.
        """
        newest = self._newest.get((hub, stream))
        if newest is None:
            return RangeSet()
        # It acknowledges a notice of lost records as it does records.
        return newest.safe.minus(newest.reported)

    def state(self) -> tuple[dict[HubStream, RangeSet], dict[HubStream, Lost]]:
        """Return the acknowledged and the lost ranges, to store them. The caller must not change them."""
        for key in self._newest:
            self._settle(key)
        return self._ranges, self._lost

    def ranges_of(self, stream: str) -> list[tuple[str, list[Range]]]:
        """Return the ranges of a stream that hubs acknowledged, including lost ones, by cluster id: for LANE_OPEN."""
        found = []
        for hub in filter(None, self._hubs.get(stream, ())):
            key = hub, stream
            self._settle(key)
            expected = self._ranges[key].copy()
            expected.update(self._lost.get(key, _NOTHING).missing)
            found.append((hub, list(expected)[:ACKNOWLEDGED_RANGES_MAX]))
        return [(hub, ranges) for hub, ranges in found if ranges][-ACKNOWLEDGED_MAX:]

    def alarm(self, hub: str) -> str:
        """Return a hub's losses with advice; empty without any. An empty ``hub`` means all hubs."""
        _, lost = self.state()
        return "; ".join(_sentence(key, found.missing) for key, found in lost.items() if hub in ("", key[0]))

    def acknowledge(self) -> list[str]:
        """End all alarms on an operator's command; return their messages."""
        _, lost = self.state()
        ended = [_sentence(key, found.missing) for key, found in lost.items()]
        self._lost.clear()
        return ended


def _sentence(key: HubStream, missing: RangeSet) -> str:
    hub, stream = key
    first = next(iter(missing))[0]
    return (
        f"hub {hub} has lost {missing.count()} records that it had acknowledged, from seq {first} on, of stream "
        f"{stream}. Its store was restored to an earlier state, or lost objects. This node sends again what it still "
        "has; look for the rest at other hubs, and in the tables. `weft link acknowledge` ends this alarm"
    )


def _remove(ranges: RangeSet, others: Iterable[Range]) -> None:
    for first, end in list(others):
        ranges.remove(first, end)


def _common(ranges: RangeSet, run: Range) -> Iterable[Range]:
    at = run[0]
    for first, end in [*ranges.missing(*run), (run[1], run[1])]:
        if at < first:
            yield at, first
        at = end


OVERDUE = (
    "the hub answers, and its store has accepted nothing that was sent {}. The records are kept here; look at the "
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
        self._known[lane] = safe, reported = sender.known(lane)
        if offered.identity is not None:
            return  # many logs have a lane of this stream, and their owners keep these accounts
        stream = offered.stream
        gaps = self._source.states([lane])[lane].gaps
        noticed = [(gap.first, gap.end) for gap in gaps if gap.reason != GapReason.ABSENT]
        reason = self._acknowledged.opened(sender.cluster_id, stream, safe, reported, noticed)
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


# The time that a hub tells over one connection, for the clocks of the log's boots.

ASKS_MAX = 8
"""Maximum number of times that the hub is asked for its time at once, after its WELCOME gave it."""
WAIT_NS = 10_000_000_000
"""Longest wait of records for the time of their boot, from the WELCOME on. Usually it is one round trip."""


class HubTime:
    """Passes the hub's answers to a clock source, and what that learned to the hub.

    Args:
        clocks: None for a sender whose clock is right.
        node: name of the hub node.
        clock: monotonic nanoseconds.
    """

    def __init__(self, clocks: ClockSource | None, node: str, clock: Callable[[], int]) -> None:
        self._clocks = clocks
        self._node = node
        self._clock = clock
        self._answers = 0
        """Number of answers that were passed on."""
        self._reported: set[Clock] = set()
        self._awaited_until: int | None = None

    def follow(self, sender: Sender) -> bool:
        """Pass on a new answer, and send the notices that the hub lacks before any later batch. Ask again while the
        time of this boot is unknown: one answer is not enough.

        Returns:
            True if a notice is sent, which makes all marks due: offer the present state of all lanes first.
        """
        live, clocks = sender.liveness, self._clocks
        answer = live.last_answer
        if clocks is None or answer is None or live.answers == self._answers:
            return False
        now = self._clock()
        if not self._answers:
            self._awaited_until = now + WAIT_NS
        self._answers = live.answers
        clocks.note_time(self._node, answer.base + now, answer.error)
        new = [notice for notice in clocks.notices() if notice not in self._reported]
        if new:
            sender.send_clocks(new)
            self._reported.update(new)
        if not clocks.is_unknown:
            self._awaited_until = None
        elif self._answers <= ASKS_MAX:
            live.ask(now)
        return bool(new)

    def is_awaited(self, now: int) -> bool:
        """Return whether records wait for the time of their boot: those sent before keep the stamps of its clock."""
        return self._awaited_until is not None and now < self._awaited_until
