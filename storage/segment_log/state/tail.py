"""The newest batches in memory, for readers that keep up with the log."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

_BATCH_OVERHEAD_BYTES = 160
"""Memory of a batch beyond its bytes: the object and its places in the queues."""


class MemoryTail:
    """Durable batches up to a number of bytes, the oldest dropped first. Guarded by the log's lock."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._order: deque[int] = deque()
        self._lanes: dict[int, tuple[deque[int], deque[bytes]]] = {}

    def add(self, stream: int, base_seq: int, data: bytes) -> None:
        """Keep a batch that has become durable; batches of a stream come in seq order."""
        seqs, batches = self._lanes.setdefault(stream, (deque(), deque()))
        seqs.append(base_seq)
        batches.append(data)
        self._order.append(stream)
        self._bytes += len(data) + _BATCH_OVERHEAD_BYTES
        while self._bytes > self._bytes_max:
            oldest_seqs, oldest = self._lanes[self._order.popleft()]
            oldest_seqs.popleft()
            self._bytes -= len(oldest.popleft()) + _BATCH_OVERHEAD_BYTES

    def drop(self, stream: int) -> None:
        """Forget a stream's batches: some of its records were declared lost, and readers must no longer see these."""
        _, batches = self._lanes.pop(stream, (deque(), deque()))
        self._bytes -= sum(len(data) + _BATCH_OVERHEAD_BYTES for data in batches)
        self._order = deque(other for other in self._order if other != stream)

    def drop_below(self, stream: int, end: int) -> None:
        """Forget a stream's batches up to ``end``, which were dropped."""
        seqs, batches = self._lanes.get(stream, (deque(), deque()))
        count = 0
        while seqs and seqs[0] < end:
            seqs.popleft()
            self._bytes -= len(batches.popleft()) + _BATCH_OVERHEAD_BYTES
            count += 1
        if count:
            order: deque[int] = deque()
            for other in self._order:
                if other == stream and count:
                    count -= 1
                else:
                    order.append(other)
            self._order = order

    def read(self, stream: int, seq: int, bytes_max: int) -> list[bytes] | None:
        """Return batches from the one that holds ``seq`` on, at least one; None when memory does not reach back to it.

        ``seq`` must be below the stream's durable end. Appends leave no holes, so the batches are contiguous.
        """
        lane = self._lanes.get(stream)
        if lane is None:
            return None
        seqs, batches = lane
        first = bisect_right(seqs, seq) - 1
        if first < 0:
            return None
        found = [batches[first]]
        size = len(found[0])
        for index in range(first + 1, len(batches)):
            size += len(batches[index])
            if size > bytes_max:
                break
            found.append(batches[index])
        return found
