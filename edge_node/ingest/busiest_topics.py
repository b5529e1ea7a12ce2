"""Topics with most messages, found in bounded memory whatever clients publish."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest

TOPICS_KEPT = 64
"""Counters that stay when too many have gathered. A topic with more than one in 65 of all messages is among them."""
TOPIC_BYTES_MAX = 256
"""Longer topics are counted by their beginning, so that the counters take less than 100 KB."""


class BusiestTopics:
    """Counts by the method of Misra and Gries, many messages at a time.

    A count is never too high. It is too low by at most one in ``TOPICS_KEPT`` + 1 of all messages counted.
    """

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def add(self, topics: list[bytes]) -> None:
        """Count one message for each of these topics; there must be one."""
        first = topics[0]
        if topics.count(first) == len(topics):  # most runs are of one device
            self._counts[first[:TOPIC_BYTES_MAX]] += len(topics)
        else:
            for topic, count in Counter(topics).items():
                self._counts[topic[:TOPIC_BYTES_MAX]] += count
        # Only when as many again have gathered: one look at all of them for TOPICS_KEPT new topics at least.
        if len(self._counts) > 2 * TOPICS_KEPT:
            self._reduce()

    def top(self, count: int) -> list[tuple[bytes, int]]:
        """Return the topics with most messages, busiest first, each with a lower bound of its count."""
        return self._counts.most_common(count)

    def _reduce(self) -> None:
        # Taking the value of the first that goes off all the others keeps the bound, as when each were taken one by
        # one (Agarwal and others, "Mergeable summaries", 2012).
        floor = nlargest(TOPICS_KEPT + 1, self._counts.values())[-1]
        self._counts = Counter({topic: count - floor for topic, count in self._counts.items() if count > floor})
