"""Counts that both ends of a link share: ranges from the wire, and bytes in flight."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from weft.protocols.batch import HEADER_BYTES, BatchHeader, Buffer
from weft.protocols.errors import Corrupt
from weft.protocols.link import Ack, Frame
from weft.protocols.link.data import check_batch
from weft.protocols.ranges import Range, RangeSet
from weft.replication.settings import ReceiverSettings

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


class SentBatches:
    """Batches in flight, sent and not acknowledged: the sender fills its window by them, and the receiver checks it.

    The window's rule is the same on both ends: the sum of the sizes stays within ``window_bytes``. But one batch may
    always be in flight, since a batch longer than the window could otherwise never be sent.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._lanes: dict[int, tuple[list[int], list[SentBatch]]] = {}

    def __len__(self) -> int:
        return sum(len(entries) for _, entries in self._lanes.values())

    def room(self, size: int, window_bytes: int) -> bool:
        """Return whether a batch of ``size`` bytes may be sent now."""
        return self.bytes == 0 or self.bytes + size <= window_bytes

    def admit(  # the hot path: positional arguments cost least
        self, lane: int, batches: Batches, cost: int, settings: ReceiverSettings, check: bool
    ) -> None:
        """Count batches that arrived together. Check their bodies, if at all, only after they are found to be within
        the bounds.

        Args:
            cost: their ``window_cost``.

        Raises:
            Corrupt: one is too long, past the window, damaged or malformed.
        """
        if self.bytes + cost > settings.window_bytes and (self.bytes or len(batches) > 1):
            raise Corrupt(f"more than the window of {settings.window_bytes} bytes without an ACK")
        longest = settings.batch_bytes_max
        for header, batch in batches:
            if len(batch) > longest:
                raise Corrupt(f"a batch of {len(batch)} bytes; WELCOME allows {longest}")
            if check:
                check_batch(batch, header)
            first = header.base_seq
            self.add(lane, first, first + header.count, HEADER_BYTES + header.raw_length, header.first_time)

    def add(self, lane: int, first: int, end: int, size: int, time: int) -> None:
        """Count a batch that is being sent; the arguments are those of ``SentBatch``."""
        known = self._lanes.get(lane)
        if known is None:
            known = self._lanes[lane] = ([], [])
        firsts, entries = known
        sent = tuple.__new__(SentBatch, (first, end, size, time))
        if not firsts or first >= firsts[-1]:
            firsts.append(first)
            entries.append(sent)
        else:
            at = bisect_right(firsts, first)
            firsts.insert(at, first)
            entries.insert(at, sent)
        self.bytes += size

    def forget(self, lane: int) -> None:
        """Count a closed lane's batches as no longer in flight."""
        _, entries = self._lanes.pop(lane, ([], []))
        self.bytes -= sum(sent.size for sent in entries)

    def settle(self, lane: int, first: int, end: int, covered: RangeSet) -> None:
        """Forget the batches that an acknowledgement of ``[first, end)`` touches and ``covered`` now holds entirely."""
        firsts, entries = self._lanes.get(lane) or ([], [])
        if len(entries) == 1:  # often: a receiver's commit has all of the lane's batches since the last one
            if covered.covers(entries[0].first, entries[0].end):
                self.bytes -= entries[0].size
                firsts.clear()
                entries.clear()
            return
        low = max(0, bisect_right(firsts, first) - 1)
        high = bisect_left(firsts, end)
        kept = []
        for sent in entries[low:high]:
            if covered.covers(sent.first, sent.end):
                self.bytes -= sent.size
            else:
                kept.append(sent)
        firsts[low:high] = [sent.first for sent in kept]
        entries[low:high] = kept

    def oldest_time(self) -> int | None:
        """Return the wall clock time of the oldest record in flight, ns; None when there is none."""
        return min((entries[0].time for _, entries in self._lanes.values() if entries), default=None)


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
            frames.append(Ack(lane, pairs[:RANGES_PER_ACK]))
            if len(pairs) > RANGES_PER_ACK:
                self._lanes[lane] = RangeSet(pairs[RANGES_PER_ACK:])
        return frames
