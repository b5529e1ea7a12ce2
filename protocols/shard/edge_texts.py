"""Bytes of each edge's texts in a shard's state: updated with each lane, so that a look-up is quick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from weft.protocols.lane import Lane, NodeName
from weft.protocols.origin import Origin
from weft.protocols.shard.lane_state import LaneState

ORIGIN_BYTES = 64
"""Bytes charged for an origin, beside its texts and hash."""


def topic_bytes(topics: Iterable[str]) -> int:
    """Return the bytes charged for topic patterns."""
    return sum(len(topic.encode()) for topic in topics)


def origin_bytes(origins: Iterable[Origin]) -> int:
    """Return the bytes charged for origins."""
    return sum(ORIGIN_BYTES + len(each.name.encode()) + len(each.version.encode()) + len(each.hash) for each in origins)


class EdgeTexts:
    """Bytes of the topic patterns and of the origins of all lanes of each edge."""

    __slots__ = ("_origins", "_topics")

    def __init__(self) -> None:
        self._topics: Counter[NodeName] = Counter()
        self._origins: Counter[NodeName] = Counter()

    def topics(self, node: NodeName) -> int:
        """Return the bytes of an edge's topic patterns."""
        return self._topics[node]

    def origins(self, node: NodeName) -> int:
        """Return the bytes of an edge's origins."""
        return self._origins[node]

    def changed(self, lane: Lane, before: LaneState | None, after: LaneState | None) -> None:
        """Note a lane's new state; None if it has none. The cost is that of the texts of both states."""
        node = NodeName(lane.tenant, lane.edge)
        for counted, size in ((self._topics, _topics_of), (self._origins, _origins_of)):
            more = size(after) - size(before)
            if more:
                counted[node] += more
                if not counted[node]:
                    del counted[node]


def _topics_of(held: LaneState | None) -> int:
    return topic_bytes(held.topics) if held is not None and held.topics else 0


def _origins_of(held: LaneState | None) -> int:
    return origin_bytes(held.origins) if held is not None and held.origins else 0
