"""Flow control of a link: the settings of its two ends, the bytes that may be in flight, the counts that both ends
share, and when a report rides along."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.protocols.batch import HEADER_BYTES, BatchHeader, Buffer, check
from weft.protocols.errors import Corrupt
from weft.protocols.link import (
    PAIR_REPORT,
    REPORT,
    Ack,
    Data,
    Frame,
    FunctionReport,
    LaneOrigins,
    NodeReport,
    PairReport,
    Welcome,
)
from weft.protocols.ranges import Range, RangeSet
from weft.replication.liveness import SECOND

# The bytes that a sender may have in flight, which follow the rate of acknowledgements.
#
# A window as large as the hub allows would put minutes of data into the buffers of a slow link: newer data could not
# overtake it, and all of it would be sent again after a lost connection.

FLOOR_BYTES = 64 << 10
START_BYTES = 256 << 10
AHEAD = 3 * SECOND
"""Time whose acknowledged bytes may be in flight, beyond the hub's shortest time to acknowledge."""
PERIOD = SECOND // 2
DELAYS = 16
"""Number of acknowledgement times kept; the shortest counts, as the others include the queue that the window makes."""


class SendWindow:
    """The window of one connection. All times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self.bytes = 0
        self.ahead = AHEAD
        self._most = 0
        self._since = 0
        self._acked = 0
        self._limited = False
        self._probe: tuple[int, int, int] | None = None
        """(lane, last number, time) of one batch in flight, whose acknowledgement is timed."""
        self._delays: deque[int] = deque(maxlen=DELAYS)

    def allow(self, most: int, start: int = START_BYTES) -> None:
        """Set the largest window that both ends allow, and the first one."""
        self._most = most
        self.bytes = min(start, most)

    def sent(self, lane: int, last: int, now: int, *, was_empty: bool) -> None:
        """Note that a batch up to the number ``last`` is sent; ``was_empty`` if nothing else was in flight."""
        if was_empty:
            # Without this a hub that commits once a second would end a period with nothing in flight each time, and the
            # window would never grow.
            if self._acked and self._delays:
                # Everything was acknowledged at once, before a period ended, as by a hub that commits everything
                # together.
                self._follow(now)
            self._since, self._acked, self._limited = now, 0, False
        if self._probe is None:
            self._probe = lane, last, now

    def was_full(self) -> None:
        """Note that a batch had to wait for the window."""
        self._limited = True

    def forget(self, lane: int) -> None:
        """Note that a lane was closed."""
        if self._probe is not None and self._probe[0] == lane:
            self._probe = None

    def acknowledged(self, size: int, lane: int, first: int, end: int, now: int) -> None:
        """Note that ``[first, end)`` of a lane was acknowledged, so that ``size`` bytes are no longer in flight."""
        self._acked += size
        if self._probe is not None and self._probe[0] == lane and first <= self._probe[1] < end:
            self._delays.append(now - self._probe[2])
            self._probe = None
        elapsed = now - self._since
        if elapsed < PERIOD or not self._acked or not self._delays:
            return
        self._follow(now)
        self._since, self._acked, self._limited = now, 0, False

    def _follow(self, now: int) -> None:
        """Set the window by the bytes acknowledged since the last time."""
        # The least delay is that of the way and the commit alone. Longer ones contain the queue that the window itself
        # has made.
        wanted = self._acked * (min(self._delays) + self.ahead) // max(1, now - self._since)
        # The rate of a sender that had nothing to send is not the possible rate.
        if self._limited or wanted > self.bytes:
            self.bytes = min(self._most, max(FLOOR_BYTES, wanted))


# Times at which a sender tells the receiver of its disk and functions.
#
# A report goes with a message that is sent anyway, so that an idle link costs no packet more. One of a function whose
# trouble began or ended is a message by itself: an operator waits for that alarm, and the next PING may be 45 s away.

INTERVAL = 30 * SECOND
"""Least time between two reports of a connection."""
TROUBLE_INTERVAL = 5 * SECOND
"""The same before one that says that a function's trouble began or ended. A script that fails now and then costs a
report in this time, however often it does."""
COUNTS_INTERVAL = 300 * SECOND
"""Time after which rows that functions have read and written are reason enough for a report."""
SPACE_PARTS = 50
"""Part of the budget, as one in this many, by which space must have changed."""
OUTAGE_FACTOR = 1.25
OUTAGE_S_MAX = 30 * 86_400
"""Seconds beyond which it makes no difference how long an outage the sender could bear."""


class LatestReport:
    """The report that a node's owner keeps up to date, for all links of the node."""

    def __init__(self) -> None:
        self.report: NodeReport | None = None
        """None while the node tells nothing."""
        self.pair: PairReport | None = None
        """None for a node without a pair."""


class ReportRide:
    """The reports of one connection. All times are monotonic nanoseconds.

    Args:
        latest: what the sender tells of itself.
        now: beginning of the connection.
    """

    def __init__(self, latest: LatestReport, now: int) -> None:
        self._latest = latest
        self._is_known = self._is_pair_known = False
        self._sent: NodeReport | None = None
        self._pair_sent: PairReport | None = None
        self._due = self._counts_due = self._trouble_due = self._pair_due = now

    @property
    def deadline(self) -> int | None:
        """Return the time at which a report goes without another message; None while there is no such one."""
        newest, sent = self._latest.report, self._sent
        if not self._is_known or newest is None or sent is None or in_trouble(newest) == in_trouble(sent):
            return None
        return self._trouble_due

    def welcome(self, welcome: Welcome) -> None:
        """Note what the receiver's release knows."""
        self._is_known = REPORT in welcome.features
        self._is_pair_known = PAIR_REPORT in welcome.features

    def rides(self, frames: Sequence[Frame], now: int) -> list[Frame]:
        """Look at the frames of a message that is sent now, if there are any. Return the reports that go with them, or
        alone, of those due."""
        of_node = self._node(frames, now)
        return [*of_node, *self._pair([*frames, *of_node], now)]

    def _pair(self, frames: Sequence[Frame], now: int) -> list[Frame]:
        newest = self._latest.pair
        if not frames or newest is None or newest == self._pair_sent or not self._is_pair_known or now < self._pair_due:
            return []
        self._pair_sent, self._pair_due = newest, now + INTERVAL
        return [newest]

    def _node(self, frames: Sequence[Frame], now: int) -> list[Frame]:
        newest, sent, deadline = self._latest.report, self._sent, self.deadline
        if newest is None or not self._is_known:
            return []
        if deadline is None or now < deadline:
            if not frames or now < self._due:
                return []
            if sent is not None and not differs(newest, sent, counts=now >= self._counts_due):
                return []
        self._sent, self._trouble_due = newest, now + TROUBLE_INTERVAL
        self._due, self._counts_due = now + INTERVAL, now + COUNTS_INTERVAL
        return [newest]


def in_trouble(report: NodeReport) -> frozenset[str]:
    """Return the derived streams whose functions have an error."""
    return frozenset(each.stream for each in report.functions if each.last_error)


def differs(newest: NodeReport, sent: NodeReport, *, counts: bool) -> bool:
    """Return whether a report says something that people who know another one would want to know.

    Args:
        counts: whether rows that were read and written are that.
    """
    if newest is sent:
        return False
    part = newest.budget_bytes // SPACE_PARTS
    return (
        newest.budget_bytes != sent.budget_bytes
        # By parts of the budget: bytes change with every commit, and a report each time would cost more than the link's
        # own traffic.
        or abs(newest.used_bytes - sent.used_bytes) > part
        or abs(newest.free_bytes - sent.free_bytes) > part
        or (newest.bytes_per_second is None) != (sent.bytes_per_second is None)
        or _outage_differs(newest.outage_seconds, sent.outage_seconds)
        or newest.functions_more != sent.functions_more
        or (counts and newest.functions != sent.functions)
        or list(map(_without_counts, newest.functions)) != list(map(_without_counts, sent.functions))
    )


def _outage_differs(one: int | None, two: int | None) -> bool:
    if one is None or two is None:
        return one is not two
    low, high = sorted((min(one, OUTAGE_S_MAX), min(two, OUTAGE_S_MAX)))
    return high > low * OUTAGE_FACTOR


def _without_counts(function: FunctionReport) -> tuple[str, str, int, str]:
    return function.stream, function.kinds, function.errors, function.last_error


# Settings of the two ends of a link. Durations in nanoseconds.

LINK_PATH = "/v1/link"
"""Path of a hub's WebSocket for links."""
CHECKED_AT_ONCE_BYTES = 1 << 20
"""Uncompressed bytes of a DATA frame that are checked at once, in 10 ms at most; the owner has more of them checked
elsewhere."""
TURN_COST = 128 << 10
"""Cost after which the owner gives others their turn: some 5 ms of work. The cost of DATA is its size in the window."""
CONTROL_COST, CONTROL_BYTE_COST = 1 << 10, 8
"""Cost of a frame other than DATA, and of each of its bytes, which become objects."""
BYTES_DROPPED = 16
"""Bytes of DATA of a closed lane, dropped unread, that cost 1."""
ORIGINS_COST = 16 << 10
"""Cost of a LANE_ORIGINS frame: each one is compared with all other origins of its lane."""
DATA_FRAME_BYTES = 1 << 20
"""Length of a DATA frame of small batches that a receiver always accepts, even with a lower limit for a single
batch."""


def control_cost(frame: Frame, frame_bytes: int) -> int:
    """Return the cost of a frame that the window does not count: one other than DATA, or DATA of a closed lane.

    Args:
        frame_bytes: its length, if it is not DATA.
    """
    if isinstance(frame, Data):
        return CONTROL_COST + len(frame.batches) // BYTES_DROPPED
    return (ORIGINS_COST if isinstance(frame, LaneOrigins) else CONTROL_COST) + CONTROL_BYTE_COST * frame_bytes


@dataclass(frozen=True)
class SenderSettings:
    """Settings of a sender."""

    window_bytes: int = 8 << 20
    """Maximum number of uncompressed bytes of batches in flight without an ACK; the receiver may allow less."""
    window_start_bytes: int = START_BYTES
    """The same before the first ACK. A sender beside its hub, which lives for seconds, begins with all of it."""
    read_bytes: int = 1 << 20
    """Bytes of one read of the log; at most this much waits in memory, besides one batch."""
    merge_bytes_max: int = 256 << 10
    """Uncompressed size up to which waiting neighbours are sent as one batch. 0: never."""
    mark_interval: int = 60 * SECOND
    """Time between two marks of an idle lane. The marks of lanes with data are sent with the data."""
    ping_interval: int = 45 * SECOND
    """Time between two PINGs. A load balancer that closes connections after 60 s without data keeps the link open."""
    # Only a PING says that the other program lives: keepalives of TCP and WebSocket do not.
    silence: int = 120 * SECOND
    """Silence after which a peer counts as lost. With data in flight, ``ack_timeout`` detects it earlier."""
    ack_timeout: int = 30 * SECOND
    """Time without any acknowledgement, while data is in flight, after which the link leaves the hub node."""
    beat_timeout: int = 0
    """Silence, while anything is awaited, after which the link leaves a hub that sends beats; 0: never."""
    welcome_timeout: int = 20 * SECOND
    lane_retry: int = 10 * SECOND
    """Time after which a lane that was closed is offered again on the same connection."""
    # A canary rides with a PING and is answered by a commit that is made anyway. A commit for each canary would write
    # a chunk in every ``commit_interval``, some 200 US dollars a month for 16 shards.
    canary_interval: int = 300 * SECOND
    """Time after the last proof that something became durable, after which the next PING takes a question along."""
    canary_patience: int = 30 * SECOND
    """Time that the hub has for a chunk, beyond the one for which it lets marks wait."""
    cluster_id: str = ""
    """Cluster to which the sender gives its records; empty: any."""
    demands: frozenset[str] = frozenset()
    """Features without which the sender gives its records to no receiver. Without ``PAIR``: to hubs alone."""
    compression_level: int = 3
    """Compression level of the connection's zstd stream."""
    report: LatestReport | None = None
    """Report of the sender about itself, for the receiver; None for nothing."""


RAISE_RECORD = "raise the hub's limits.record"
"""Advice where a record is longer than its receiver takes."""


@dataclass(frozen=True)
class ReceiverSettings:
    """Settings of a receiver."""

    window_bytes: int = 8 << 20
    """Maximum number of uncompressed bytes of batches that a sender may have in flight without an ACK (one batch is
    always allowed)."""
    batch_bytes_max: int = 20 << 20
    record_bytes_max: int = 8 << 20
    """Longest record: a lane with a longer one is closed."""
    ping_interval: int = 75 * SECOND
    """Silence after which the receiver sends a PING; a sender that pings gets none."""
    silence: int = 150 * SECOND
    """Silence after which a peer counts as lost."""
    hello_timeout: int = 20 * SECOND
    """Longest time until HELLO."""
    features: tuple[str, ...] = ()
    """Features of this receiver beyond those of its release: ``PEERS`` if other clusters may relay the sender's records
    to this one, and those of a pair."""
    mark_interval: int = 60 * SECOND
    """Longest time for which the owner lets marks and canaries wait for a chunk; announced to the sender."""
    ack_interval: int = SECOND // 4
    """Least time between acknowledgements while less than half of the window is in flight: a hub may commit more often,
    and on a metered line each acknowledgement costs as much as some messages."""


# Counts that both ends of a link share: ranges from the wire, and bytes in flight.

RANGES_PER_ACK = 4096
ACKS_PER_MESSAGE = 64
RANGES_MAX = 1 << 16
"""Maximum number of ranges that one lane's set may have, and that one frame may carry."""


def offered_end(ranges: Sequence[Range]) -> int | None:
    """Return the end of the log of a sender that offers these ranges; None if it has deleted all its records, or has
    very many holes."""
    return max(end for _, end in ranges) if 0 < len(ranges) < RANGES_MAX else None


def checked_ranges(pairs: Sequence[Range], limit: int = RANGES_MAX) -> RangeSet:
    """Return the set of a peer's ``[[first, end], ...]``.

    Raises:
        Corrupt: more than ``limit`` ranges, or they are not ascending.
    """
    if len(pairs) > limit:
        raise Corrupt(f"{len(pairs)} ranges in one frame; at most {limit} are left to it")
    return RangeSet.from_wire(pairs)


Batches = Sequence[tuple[BatchHeader, memoryview]]


def window_cost(batches: Sequence[tuple[BatchHeader, Buffer]]) -> int:
    """Return the bytes of the window that batches use: their uncompressed size, which is what they cost when
    decoded."""
    if len(batches) == 1:  # as most often
        # Before compression: 912 bytes on the wire have held up a hub for seven seconds.
        return HEADER_BYTES + batches[0][0].raw_length
    return HEADER_BYTES * len(batches) + sum([header.raw_length for header, _ in batches])


class SentBatch(NamedTuple):
    """One batch on the way."""

    first: int
    end: int
    size: int
    """``window_cost`` of the batch."""
    time: int
    """Wall clock time of its first record, ns."""


class _Flight:
    """The batches of one lane on the way."""

    __slots__ = ("bytes", "entries", "firsts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        """First numbers of the entries, ascending."""
        self.entries: list[SentBatch] = []
        self.bytes = 0


class SentBatches:
    """Batches in flight, sent and not acknowledged: the sender fills its window by them, and the receiver checks it.

    The window's rule is the same on both ends: the sum of the sizes stays within ``window_bytes``. But one batch may
    always be in flight, since a batch longer than the window could otherwise never be sent.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._lanes: dict[int, _Flight] = {}

    def __len__(self) -> int:
        return sum(len(flight.entries) for flight in self._lanes.values())

    def room(self, size: int, window_bytes: int) -> bool:
        """Return whether a batch of ``size`` bytes may be sent now."""
        return self.bytes == 0 or self.bytes + size <= window_bytes

    def admit(  # the hot path: positional arguments cost least
        self, lane: int, batches: Batches, cost: int, settings: ReceiverSettings, is_checked: bool
    ) -> None:
        """Count batches that arrived together. Check their bodies, if at all, only after they are found to be within
        the bounds.

        Args:
            cost: their ``window_cost``.

        Raises:
            Corrupt: one is too long, past the window, damaged or malformed.
            RecordTooLong: one is sound, and has a record that is too long.
        """
        # One batch longer than the window is possible when nothing else is in flight; otherwise it could never be sent.
        if self.bytes + cost > settings.window_bytes and (self.bytes or len(batches) > 1):
            raise Corrupt(f"more than the window of {settings.window_bytes} bytes without an ACK")
        longest, add = settings.batch_bytes_max, self.add
        for header, batch in batches:
            if len(batch) > longest:
                raise Corrupt(f"a batch of {len(batch)} bytes; WELCOME allows {longest}")
            if is_checked:
                # The checksum alone is not enough: a receiver can never revert a commit, and the table step would fail
                # at every attempt on a body that does not decode.
                check(batch, header, settings.record_bytes_max)
            first = header.base_seq
            add(lane, first, first + header.count, HEADER_BYTES + header.raw_length, header.first_time)

    def add(self, lane: int, first: int, end: int, size: int, time: int) -> None:
        """Count a batch that is being sent; the arguments are those of ``SentBatch``."""
        flight = self._lanes.get(lane)
        if flight is None:
            flight = self._lanes[lane] = _Flight()
        firsts, sent = flight.firsts, tuple.__new__(SentBatch, (first, end, size, time))
        # Numbers rise in nearly every lane, so the search is only for relays that fill gaps.
        if not firsts or first >= firsts[-1]:
            firsts.append(first)
            flight.entries.append(sent)
        else:
            at = bisect_right(firsts, first)
            firsts.insert(at, first)
            flight.entries.insert(at, sent)
        flight.bytes += size
        self.bytes += size

    def forget(self, lane: int) -> None:
        """Count a closed lane's batches as no longer in flight."""
        if (flight := self._lanes.pop(lane, None)) is not None:
            self.bytes -= flight.bytes

    def settle(self, lane: int, first: int, end: int, covered: RangeSet) -> None:
        """Forget the batches that an acknowledgement of ``[first, end)`` touches and ``covered`` now holds entirely.

        Args:
            covered: all that was acknowledged, with ``[first, end)``.
        """
        flight = self._lanes.get(lane)
        if flight is None or not flight.firsts:
            return
        firsts, entries = flight.firsts, flight.entries
        # Nearly always a commit has all of a lane since the last one.
        if first <= firsts[0] and firsts[-1] < end and max([sent.end for sent in entries]) <= end:
            self.bytes -= flight.bytes
            flight.bytes = 0
            firsts.clear()
            entries.clear()
            return
        low = max(0, bisect_right(firsts, first) - 1)
        high = bisect_left(firsts, end)
        kept = [sent for sent in entries[low:high] if not covered.covers(sent.first, sent.end)]
        settled = sum([sent.size for sent in entries[low:high]]) - sum([sent.size for sent in kept])
        self.bytes -= settled
        flight.bytes -= settled
        firsts[low:high] = [sent.first for sent in kept]
        entries[low:high] = kept

    def oldest_time(self) -> int | None:
        """Return the wall clock time of the oldest record in flight, ns; None when there is none."""
        return min((flight.entries[0].time for flight in self._lanes.values() if flight.entries), default=None)


class Acks:
    """Acknowledgements that wait to be sent, joined per lane."""

    def __init__(self) -> None:
        self._lanes: dict[int, RangeSet] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, lane: int, ranges: RangeSet) -> None:
        """Add ranges; the set is kept and not changed."""
        waiting = self._lanes.get(lane)
        if waiting is not None:
            ranges = ranges.copy()
            ranges.update(waiting)
        self._lanes[lane] = ranges

    def forget(self, lane: int) -> None:
        """Drop the waiting acknowledgements of a closed lane."""
        self._lanes.pop(lane, None)

    def clear(self) -> None:
        """Drop everything."""
        self._lanes.clear()

    def take(self) -> list[Frame]:
        """Take up to ``ACKS_PER_MESSAGE`` frames; the next message has the rest."""
        frames: list[Frame] = []
        while self._lanes and len(frames) < ACKS_PER_MESSAGE:
            lane = next(iter(self._lanes))
            pairs = list(self._lanes.pop(lane))
            # A lane with many holes must not make one frame longer than what the other end accepts.
            frames.append(Ack(lane, pairs[:RANGES_PER_ACK]))
            if len(pairs) > RANGES_PER_ACK:
                self._lanes[lane] = RangeSet(pairs[RANGES_PER_ACK:])
        return frames
