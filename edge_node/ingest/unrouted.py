"""Messages whose topic no stream matches: their treatment, counts and log lines."""

from __future__ import annotations

import logging
from collections import Counter
from heapq import nlargest
from typing import Any, Literal

from weft.edge_node.counters import Counters
from weft.edge_node.streams import UNROUTED_STREAM
from weft.storage.segment_log import SegmentLog

TOPICS_NAMED_MAX = 1_000
"""Topics that get a line in the node's log; the next line reports that no more will be named."""
TOPICS_SHOWN = 10
"""Busiest topics in the node's status."""
TOPIC_SHOWN_BYTES_MAX = 128

log = logging.getLogger(__name__)

Policy = Literal["keep", "live", "refuse"]


class Unrouted:
    """Policy, counts and log lines for messages that no stream matches. Belongs to the event loop's thread."""

    def __init__(self, policy: Policy, streams: SegmentLog, counters: Counters) -> None:
        """Declare the stream if the policy keeps messages."""
        self.policy = policy
        self.streams = (streams.stream(UNROUTED_STREAM),) if policy == "keep" else ()
        """SegmentLog that keep the messages: one or none."""
        self._counters = counters
        self._busiest = BusiestTopics()
        self._named: set[int] = set()
        self._is_first = True

    @property
    def refuses(self) -> bool:
        """Return whether such messages are refused."""
        return self.policy == "refuse"

    def met(self, topic: bytes) -> None:
        """Log a warning for a topic not named before, unless the policy keeps its messages.

        Called when a client publishes to it for the first time, or for the first time since it was last forgotten.
        """
        key = hash(topic)
        if self.policy == "keep" or key in self._named or len(self._named) > TOPICS_NAMED_MAX:
            return
        self._named.add(key)
        if len(self._named) > TOPICS_NAMED_MAX:
            log.warning(
                "no stream matches more than %d topics: further ones are not named here. `weft edge status` shows the "
                "busiest", TOPICS_NAMED_MAX,
            )  # fmt: skip
        elif self.refuses:
            log.warning("no stream matches topic %r: messages to it are refused (`unrouted: refuse`)", _shown(topic))
        else:
            log.warning(
                "no stream matches topic %r: messages to it go to subscribers and are not kept (`unrouted: live`)",
                _shown(topic),
            )

    def count(self, topics: list[bytes]) -> None:
        """Count such messages, taken or refused; ``topics`` has one topic for each of them."""
        self._counters.publishes_unrouted += len(topics)
        self._busiest.add(topics)
        if self._is_first and self.policy == "keep":
            self._is_first = False
            log.info(
                "no stream matches topic %r: such messages are kept in the stream %s for a while and go to "
                "no hub. Add its topics to a stream's `from` if they are wanted; `weft edge status` shows the busiest",
                _shown(topics[0]), UNROUTED_STREAM,
            )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """Return the section of the status: counts since the start; the counts of topics are lower bounds."""
        return {
            "policy": self.policy,
            "messages": self._counters.publishes_unrouted,
            "busiest": [
                {"topic": topic.decode(errors="replace"), "messages": count}
                for topic, count in self._busiest.top(TOPICS_SHOWN)
            ],
        }


def _shown(topic: bytes) -> str:
    return topic[:TOPIC_SHOWN_BYTES_MAX].decode(errors="replace")


TOPICS_KEPT = 64
"""Number of counters kept when too many have gathered. A topic with more than one in 65 of all messages is among
them."""
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
        # Only when as many again have gathered: so one pass over all counters serves at least TOPICS_KEPT new topics.
        if len(self._counts) > 2 * TOPICS_KEPT:
            self._reduce()

    def top(self, count: int) -> list[tuple[bytes, int]]:
        """Return the topics with most messages, busiest first, each with a lower bound of its count."""
        return self._counts.most_common(count)

    def _reduce(self) -> None:
        # Subtracting the highest dropped count from all others keeps the bound, as one-by-one removal would (Agarwal
        # and others, "Mergeable summaries", 2012).
        floor = nlargest(TOPICS_KEPT + 1, self._counts.values())[-1]
        self._counts = Counter({topic: count - floor for topic, count in self._counts.items() if count > floor})
