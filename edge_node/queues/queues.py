"""The queues of the node, as protocols use them: declare, bind, publish, consume, settle.

A message for queues is a record of the stream ``weft-queues`` that names them, in the commit of its turn. The log may
delete it once all of them are done with it. Declarations and settlements are records of ``weft-queues-state``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from heapq import nlargest
from typing import Any

from weft.bounds import Refusals, RoundRobin
from weft.config.metrics.exposition import Sample
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.queues.consuming import Consumptions, Disconnects, Revocation, Settling
from weft.edge_node.queues.contents import Contents, DeadMessages, DueQueues
from weft.edge_node.queues.dead_letters import DeadLetters
from weft.edge_node.queues.declarations import Declarations, ExchangePublishing
from weft.edge_node.queues.definitions import TOPIC_EXCHANGE
from weft.edge_node.queues.delivery import Arrivals, Deliveries
from weft.edge_node.queues.exchange import Admission, Topology
from weft.edge_node.queues.limits import QueueContext, QueueLimits, QueueShares
from weft.edge_node.queues.queue import Queue
from weft.edge_node.queues.registry import Registry
from weft.edge_node.queues.state import QueueState, QueueStateWriter
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.timing import TimerWheel
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogError, SegmentLog

# Figures of queues, for the status and the metrics.

SHOWN_MAX = 10
"""Number of queues in the node's status, the longest: there may be 65,536, and each would be a series of its own."""


class QueueFacts:
    """Figures of all queues together, and of the longest ones."""

    def __init__(
        self,
        topology: Topology,
        bounds: QueueShares,
        contents: Contents,
        deliveries: Deliveries,
        dead_letters: DeadLetters,
    ) -> None:
        self._topology = topology
        self._bounds = bounds
        self._contents = contents
        self._deliveries = deliveries
        self._dead_letters = dead_letters

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
            "not_taken": self._topology.admission.not_taken,
            "lost": self._contents.lost,
        }

    def facts(self) -> dict[str, Any]:
        """Return the section of the status."""
        found = list(self._topology.queues.values())
        longest = nlargest(SHOWN_MAX, found, key=lambda queue: queue.ready.bytes + queue.count)
        return {
            "queues": len(found),
            "exchanges": len(self._topology.exchanges),
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
        "published",
        "delivered",
        "redelivered",
        "acknowledged",
        "dead_lettered",
        "expired",
        "dropped",
        "not_taken",
        "lost",
    ):
        yield Sample(f"{prefix}{name}_total", facts[name])


logger = logging.getLogger(__name__)


# The parts are made here alone, in the order in which they know each other. One context with all parts would let any
# part call any other.
class Queues:
    """All exchanges and queues, by their parts. Event loop's thread only.

    Changes are applied when a call returns, and durable with the next commit: have ``TickBatch.answer`` send the
    answer.

    The parts are made in the order in which they know each other. What moves messages and what delivers them or sends
    them on would know each other both ways: between them are ``DueQueues`` and ``DeadMessages``, which both know.
    """

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        ingest: Ingest,
        messages: Backlog,
        limits: QueueLimits,
        refusals: Refusals,
        round_robin: RoundRobin,
        wheel: TimerWheel,
        wall_clock: Callable[[], int],
    ) -> None:
        """Restore the state of the last run. Reads the log, and blocks until that is done.

        Args:
            wall_clock: ns since 1970.

        Raises:
            OSError, LogError: the log cannot be read.
            UnsupportedVersion: a later release wrote it.
        """
        self.bounds = QueueShares(limits, refusals)
        context = QueueContext(log, messages, ingest.batch, round_robin, wheel, wall_clock, self.bounds)
        self._context = context
        self.topology = Topology(Admission(self.bounds.waiting))
        self.writer = QueueStateWriter(context, self.topology)
        due = DueQueues(context.batch)
        dead = DeadMessages(due)
        self.contents = Contents(context, self.writer, due, dead)
        self.registry = Registry(context, self.topology, self.writer, self.contents)
        self.declarations = Declarations(context.batch, self.registry, self.contents)
        self.publishing = ExchangePublishing(self.topology, ingest.routing)
        self.deliveries = Deliveries(context, self.writer, self.contents, due)
        self.arrivals = Arrivals(context, self.topology, self.writer, self.contents, self.deliveries, self.publishing)
        self.dead_letters = DeadLetters(context, dead, self.arrivals)
        self.settling = Settling(context, self.contents, due)
        self.consumptions = Consumptions(context, self.registry, self.contents, due, self.deliveries, self.settling)
        self.disconnects = Disconnects(context, self.registry, self.consumptions)
        self.revocation = Revocation(context, self.registry, self.consumptions, due)
        self.figures = QueueFacts(self.topology, self.bounds, self.contents, self.deliveries, self.dead_letters)
        self._to_release = RangeSet()
        """Messages that no queue needs, by settlements that are durable with the next commit."""
        self._restore(QueueState(log, context.state_stream, context.stream))
        self.topology.watch(TOPIC_EXCHANGE, ingest.routing.forget)
        ingest.routing.queue_in(self.arrivals)
        self._unlisten = log.listen(self._release)

    def close(self) -> None:
        """Write the remaining changes. Clients of queues have gone before."""
        self._context.batch.store()
        self.disconnects.finish()
        self.settling.finish()
        self._unlisten()
        self.dead_letters.close()
        self.deliveries.close()
        try:
            self.writer.stopped()
        except LogError as error:
            logger.warning(
                "the state of queues was not saved and is restored from earlier records at the next start: %s", error
            )

    def _release(self) -> None:
        """Release the room of messages that no queue needs: after a commit, so that the settlements are durable
        first."""
        self._to_release, free = self.contents.ref_counts.take_free(), self._to_release
        if free:
            self._context.log.release(self._context.stream, free)

    def _restore(self, state: QueueState) -> None:
        log, stream = self._context.log, self._context.stream
        self.writer.restore(state)
        self.registry.restore(
            state.exchanges.values(), [each.definition for each in state.queues.values()], state.bindings
        )
        for remembered in state.queues.values():
            queue = self.topology.queues[remembered.definition.name]
            self.contents.restore(queue, remembered)
            self.registry.expiry.used(queue)
            if queue.count:  # its messages may expire without any consumer
                self._context.round_robin.wait(queue.owner, partial(self.deliveries.deliver, queue))
        end = log.next_seq(stream)
        log.release(stream, self.contents.ref_counts.unneeded(end))
        if state.read:
            self.writer.started(end)
