"""Figures of queues, for the status and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import Any

from weft.config.metrics.exposition import Sample
from weft.edge_node.queues.contents.contents import Contents
from weft.edge_node.queues.contents.dead_letters import DeadLetters
from weft.edge_node.queues.contents.delivering import Deliveries
from weft.edge_node.queues.limits import QueueShares
from weft.edge_node.queues.queue.queue import Queue
from weft.edge_node.queues.routing.targets import Admission

SHOWN_MAX = 10
"""Number of queues in the node's status, the longest: there may be 65,536, and each would be a series of its own."""


class QueueFacts:
    """Figures of all queues together, and of the longest ones."""

    def __init__(
        self,
        bounds: QueueShares,
        contents: Contents,
        deliveries: Deliveries,
        dead_letters: DeadLetters,
        admission: Admission,
    ) -> None:
        self._bounds = bounds
        self._contents = contents
        self._deliveries = deliveries
        self._dead_letters = dead_letters
        self._admission = admission

    def totals(self) -> dict[str, int]:
        """Return messages since the start of the node, by their outcome."""
        return {
            "published": self._contents.added,
            "delivered": self._deliveries.delivered,
            "redelivered": self._deliveries.redelivered,
            "acknowledged": self._contents.accepted,
            "dead_lettered": self._dead_letters.count,
            "expired": self._contents.expired,
            "dropped": self._contents.dropped,
            "not_taken": self._admission.not_taken,
            "lost": self._contents.lost,
        }

    def facts(self, queues: Iterable[Queue], exchanges: int) -> dict[str, Any]:
        """Return the section of the status."""
        found = list(queues)
        longest = nlargest(SHOWN_MAX, found, key=lambda queue: queue.ready.bytes + queue.count)
        return {
            "queues": len(found),
            "exchanges": exchanges,
            "bindings": self._bounds.bindings.used,
            "consumers": self._bounds.consumers.used,
            "messages": sum(queue.count for queue in found),
            "unacknowledged": self._bounds.unacknowledged.used,
            "bytes": self._bounds.waiting.used,
            "bytes_max": self._bounds.waiting.total,
            **self.totals(),
            "longest": [_of_queue(queue) for queue in longest],
        }


def _of_queue(queue: Queue) -> dict[str, Any]:
    return {
        "queue": queue.name,
        "messages": queue.count,
        "bytes": queue.ready.bytes,
        "unacknowledged": len(queue.unsettled),
        "consumers": len(queue.consumptions),
        "not_taken": queue.dropped,
        "lost": queue.lost,
    }


def queue_samples(facts: dict[str, Any]) -> Iterator[Sample]:
    """Yield the values of every metric of queues."""
    prefix = "weft_edge_queue_"
    yield Sample("weft_edge_queues", facts["queues"])
    for name in ("exchanges", "bindings", "consumers", "bytes", "bytes_max"):
        yield Sample(prefix + name, facts[name])
    yield Sample(f"{prefix}ready_messages", facts["messages"])
    yield Sample(f"{prefix}unacknowledged_messages", facts["unacknowledged"])
    for name in (
        "published", "delivered", "redelivered", "acknowledged", "dead_lettered", "expired", "dropped", "not_taken",
        "lost",
    ):  # fmt: skip
        yield Sample(f"{prefix}{name}_total", facts[name])
