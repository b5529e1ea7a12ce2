"""Outgoing batches: merged when they are many and small, held back by the window."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import zstandard

from weft.protocols.batch import BatchHeader, ClockState, decode_header, merge, mergeable
from weft.protocols.link.throttle import Throttled
from weft.protocols.ranges import Range, RangeSet
from weft.replication.accounting import SentBatches, window_cost
from weft.replication.policy.send_policy import SendPolicy
from weft.replication.policy.throttle import Throttle
from weft.replication.send_window import SendWindow
from weft.replication.sender_lane import SenderLane

MESSAGE_BYTES = 256 << 10
"""Bytes of DATA in one message, or one batch if that is longer: a message costs the event loop a few ms."""

_NO_AGE = (1 << 63) - 1
Read = tuple[BatchHeader, bytes]


class _Waiting(NamedTuple):
    lane: int
    header: BatchHeader
    data: bytes


class BatchTooLong(Exception):
    """A batch is longer than the receiver accepts."""


class Outbox:
    """The batches of one read of the log, and those in flight. It holds no others."""

    def __init__(self, compression_level: int, policy: SendPolicy | None = None) -> None:
        self._policy = policy
        if policy is not None:
            policy.throttle = None  # a hub's word is for its connection
        self.window = SendWindow()
        self.batch_bytes_max = 0
        self._compressor = zstandard.ZstdCompressor(level=compression_level)
        self._in_flight = SentBatches()
        self._waiting: deque[_Waiting] = deque()
        self._background: set[int] = set()
        """Lanes whose records are old because they were asked for, and not because the link is slow."""
        self._timed: tuple[int, int, int, int] | None = None
        """(lane, last number, time of the first record, time of sending) of a batch in flight, whose way is timed."""
        self._arrived: int | None = None
        self._proved: int | None = None

    @property
    def unacked_bytes(self) -> int:
        """Return the bytes in flight, as ``window_cost`` counts them."""
        return self._in_flight.bytes

    @property
    def room(self) -> int:
        """Return the bytes worth reading now: the rest of the window, or 0 while batches wait for it."""
        return 0 if self._waiting else max(0, self.window.bytes - self._in_flight.bytes)

    def throttle(self, told: Throttled, now: int) -> None:
        """Follow the hub's request for a slower pace. Without a policy, the hub slows the link by reading later."""
        if self._policy is not None:
            self._policy.throttle = Throttle(told, now) if told.reason or told.wait else None

    def read_bytes(self, usual: int) -> int:
        """Return the bytes of the next read: what is read is sent before everything that comes later."""
        most = min(usual, self.room)
        if self._policy is None or not self._policy.keeps_queue_short:
            return most
        return self._policy.message_bytes(most)

    def oldest_time(self) -> int | None:
        """Return the wall clock time of the oldest record that waits or is in flight, ns."""
        waiting = min((self._time(item.lane, item.header) for item in self._waiting), default=None)
        oldest = min((time for time in (waiting, self._in_flight.oldest_time()) if time is not None), default=None)
        return None if oldest == _NO_AGE else oldest

    def _time(self, lane: int, header: BatchHeader) -> int:
        return _NO_AGE if lane in self._background else header.first_time

    def first_waiting(self, lane: int) -> int | None:
        """Return the oldest record of ``lane`` that waits for the window."""
        return min((item.header.base_seq for item in self._waiting if item.lane == lane), default=None)

    def merged(self, found: Sequence[Read], bytes_max: int) -> list[Read]:
        """Merge runs of small neighbours into one batch each, up to ``bytes_max`` uncompressed; keep all others as
        stored."""
        # A merged batch must still be accepted by the hub and fit the window.
        limit = min(bytes_max, self.batch_bytes_max, self.window.bytes)
        if self._policy is not None:
            limit = self._policy.message_bytes(limit)
        runs: list[list[Read]] = []
        size = 0
        for header, batch in found:
            size += header.raw_length
            if runs and size <= limit and mergeable(runs[-1][-1][0], header):
                runs[-1].append((header, batch))
            else:
                runs.append([(header, batch)])
                size = header.raw_length
        return [run[0] if len(run) == 1 else self._merge(run) for run in runs]

    def take(self, lane: SenderLane, seq: int, batches: Sequence[bytes], merge_bytes_max: int) -> Range | None:
        """Queue the result of a read of a lane from ``seq`` on.

        Returns:
            The range that the log holds but did not return; it is skipped.

        Raises:
            BatchTooLong: the receiver does not accept one of them.
            CodecError: one is damaged.
        """
        found = [(decode_header(batch), batch) for batch in batches]
        start = next((header.base_seq for header, _ in found if header.end_seq > seq), None)
        skipped = lane.skip(seq, start)
        # A read begins with the batch that holds ``seq``, which may have been sent already.
        new = [(header, batch) for header, batch in found if not lane.sent.covers(header.base_seq, header.end_seq)]
        for header, batch in self.merged(new, merge_bytes_max):
            if len(batch) > self.batch_bytes_max:
                raise BatchTooLong(
                    f"the batch at seq {header.base_seq} has {len(batch)} bytes, the hub takes {self.batch_bytes_max}"
                )
            lane.claim(header.base_seq, header.end_seq)
            lane.read_bytes += len(batch)
            if header.origin:
                lane.name_origin(header.origin)
            if header.clock is not ClockState.SYNCED:
                lane.name_boot(header.boot_id)
            if lane.offered.is_background:
                self._background.add(lane.key)
            self.put(lane.key, header, batch)
        return skipped

    def _merge(self, run: list[Read]) -> Read:
        batch = merge([batch for _, batch in run], self._compressor)
        return decode_header(batch), batch

    def put(self, lane: int, header: BatchHeader, data: bytes) -> None:
        """Queue a batch, which is sent as soon as the window allows, after the waiting ones."""
        self._waiting.append(_Waiting(lane, header, data))

    def next_message(self, now: int) -> list[tuple[int, bytes]]:
        """Return the (lane, batches) of the next message's DATA frames; the batches count as in flight."""
        found: list[tuple[int, bytes]] = []
        batches: list[bytes] = []
        current = total = 0
        # On a slow link a long message would keep a PING waiting for minutes.
        message_bytes = min(MESSAGE_BYTES, self.window.bytes // 4)
        if self._policy is not None:
            if self._policy.is_held:
                return found
            self.window.ahead = self._policy.ahead
            message_bytes = self._policy.message_bytes(message_bytes)
            if self._waiting:
                self._policy.begins()
        while self._waiting:
            lane, header, data = self._waiting[0]
            cost = window_cost([(header, data)])
            if not self._in_flight.room(cost, self.window.bytes):
                self.window.was_full()
                break
            if total and total + len(data) > message_bytes:
                break
            self._waiting.popleft()
            self.window.sent(lane, header.end_seq - 1, now, was_empty=not self._in_flight.bytes)
            self._in_flight.add(lane, header.base_seq, header.end_seq, cost, self._time(lane, header))
            if self._timed is None and lane not in self._background:
                self._timed = lane, header.end_seq - 1, header.first_time, now
            total += len(data)
            if batches and lane != current:
                found.append((current, b"".join(batches)))
                batches = []
            current = lane
            batches.append(data)
        if batches:
            found.append((current, b"".join(batches)))
        return found

    def settle(self, lane: int, first: int, end: int, covered: RangeSet, now: int) -> None:
        """Note that ``[first, end)`` of ``lane`` was acknowledged; ``covered`` holds all acknowledged ranges."""
        before = self._in_flight.bytes
        self._in_flight.settle(lane, first, end, covered)
        self.window.acknowledged(before - self._in_flight.bytes, lane, first, end, now)
        if self._timed is not None and self._timed[0] == lane and first <= self._timed[1] < end:
            (_, _, self._arrived, self._proved), self._timed = self._timed, None

    def take_arrived(self) -> int | None:
        """Return the wall clock time of a record acknowledged since the last call, if its way was timed; ns."""
        arrived, self._arrived = self._arrived, None
        return arrived

    def take_proved(self) -> int | None:
        """Return the monotonic time at which records acknowledged since the last call were sent, if they were timed."""
        proved, self._proved = self._proved, None
        return proved

    def forget(self, lane: int) -> None:
        """Drop the waiting batches of a closed lane, and count its sent ones as no longer in flight."""
        self._waiting = deque(item for item in self._waiting if item.lane != lane)
        self._in_flight.forget(lane)
        self._background.discard(lane)
        self.window.forget(lane)
        if self._timed is not None and self._timed[0] == lane:
            self._timed = None

    def clear(self) -> None:
        """Drop everything: the connection is over."""
        self._waiting.clear()
