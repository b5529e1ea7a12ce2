"""Queues as a part of the node. Their code is loaded where a listener serves them, or one did before: messages that
wait in them must not be lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from weft.config.metrics.exposition import Sample
from weft.edge_node.part import Part

if TYPE_CHECKING:
    from weft.edge_node.queues.queues import Queues


class QueuesPart(Part):
    """The queues of a node that may have none."""

    name = "queues"

    def __init__(self, queues: Queues | None) -> None:
        self._queues = queues

    def permissions_changed(self) -> None:
        """Check the clients' rights again."""
        if self._queues is not None:
            self._queues.revocation.begin()

    async def close(self) -> None:
        """Close the queues."""
        if self._queues is not None:
            self._queues.close()

    def facts(self) -> Mapping[str, Any]:
        """Return the section of the status; empty without queues."""
        return {"queues": {} if self._queues is None else self._queues.figures.facts()}

    def samples(self) -> Iterator[Sample]:
        """Yield the values of the metrics."""
        if self._queues is None:
            return
        from weft.edge_node.queues.queues import queue_samples

        yield from queue_samples(self._queues.figures.facts())
