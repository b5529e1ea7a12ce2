"""The queues of the node, as protocols use them: declare, bind, publish, consume, settle.

A message for queues is a record of the stream ``weft-queues`` that names them, in the commit of its turn. The log may
delete it once all of them are done with it. Declarations and settlements are records of ``weft-queues-state``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest
from typing import Any

from weft.bounds import Refusals, Rounds
from weft.config.metrics.exposition import Sample
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.ingest.record import Admitted, QueueTargets, Records, Remembering, Route
from weft.edge_node.queues.contents import Contents, Holders
from weft.edge_node.queues.dead_letters import DeadLetters
from weft.edge_node.queues.declarations import Declarations, ExchangePublishing, Published
from weft.edge_node.queues.definitions import TOPIC_EXCHANGE, QueueError, Reason, consumer_priority, routing_key_of
from weft.edge_node.queues.delivery import Deliveries
from weft.edge_node.queues.exchange import Admission, QueuesByHeaders, QueueSet
from weft.edge_node.queues.leaving import Expelling, Leaving, Settling, UnusedQueues, refused
from weft.edge_node.queues.limits import QueueLimits, QueueShares
from weft.edge_node.queues.queue import Consumer, Consumption, Credit, Getter, Got, Queue, QueueClient
from weft.edge_node.queues.ready import Delivery, Outcome
from weft.edge_node.queues.registry import Registry
from weft.edge_node.queues.state import MESSAGE_BYTES, QueueState, QueueStateWriter, priority_of
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.streams import QUEUES_STATE_STREAM, QUEUES_STREAM
from weft.edge_node.subscriptions.message import LogRecord
from weft.edge_node.timing import TimerWheel
from weft.protocols.batch import HeaderPairs
from weft.protocols.ranges import RangeSet
from weft.storage.segment_log import LogError, SegmentLog

# Figures of queues, for the status and the metrics.

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


logger = logging.getLogger(__name__)


class Queues:
    """All exchanges and queues. Event loop's thread only.

    Changes are applied when a call returns, and durable with the next commit: have ``Turn.answer`` send the answer.
    """

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        ingest: Ingest,
        messages: Backlog,
        limits: QueueLimits,
        refusals: Refusals,
        rounds: Rounds,
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
        self.stream = log.stream(QUEUES_STREAM)
        state_stream = log.stream(QUEUES_STATE_STREAM)
        self._log = log
        self._ingest = ingest
        self.bounds = QueueShares(limits, refusals)
        self._holders = Holders()
        self._admission = Admission(self.bounds.waiting)
        turn = ingest.turn
        registry = Registry(
            self.bounds, self._admission, partial(log.next_seq, self.stream), self._has_deleted, rounds.wait
        )
        self._writer = QueueStateWriter(log, state_stream, self.stream, wall_clock, turn.at_end, registry)
        registry.writer = self._writer
        contents = Contents(
            self._writer, self._holders, self.bounds.unacknowledged, self.bounds.waiting,
            lambda queue: self._deliveries.soon(queue), rounds.wait,  # noqa: PLW0108 - it is made below
        )  # fmt: skip
        self._turn, self._registry, self._contents = turn, registry, contents
        self._unused = UnusedQueues(wheel, self._expire)
        self.declarations = Declarations(registry, contents, turn, self._unused)
        self._deliveries = Deliveries(
            log, self.stream, messages, self._writer, contents, turn.at_end, rounds.wait, wall_clock
        )  # fmt: skip
        self._dead_letters = contents.dead_letters = DeadLetters(
            log, self.stream, messages, registry.topology, partial(registry.targets, reserved=True), self._admission,
            contents, self._deliveries, self._writer, turn.store, self.stored, rounds.wait, wall_clock,
        )  # fmt: skip
        self._settling = Settling(contents.settle, rounds.wait, self._deliveries.soon)
        self._leaving = Leaving(rounds, registry.remove_queue, self._leave)
        self._expelling = Expelling(rounds, registry.queues, self._leave, self._deliveries.reconsider)
        self._facts = QueueFacts(self.bounds, contents, self._deliveries, self._dead_letters, self._admission)
        self._rounds = rounds
        self.publishing = ExchangePublishing(registry, self._admission, ingest.routing)
        self._restore(QueueState(log, state_stream, self.stream))
        self._registry.topology.watch(TOPIC_EXCHANGE, ingest.routing.forget)
        ingest.routing.queue_in(self)
        self._unlisten = log.listen(self._release)

    # --- publishing

    def dead_letters_of(self, published: Published, headers: HeaderPairs) -> list[tuple[Route, bytes, HeaderPairs]]:
        """Return route, topic and headers of a publish's dead letters, for queues that rejected it. Add them to the
        turn beside the message.

        Args:
            headers: of the message, those of its exchange and routing key included.
        """
        return self._dead_letters.letters_of(published.dead_letter_of, published.topic, headers)

    # --- consuming

    def consume(
        self,
        client: QueueClient,
        name: str,
        consumer: Consumer,
        credit: Sequence[Credit] = (),
        *,
        needs_acks: bool = True,
        exclusive: bool = False,
        priority: int = 0,
        arguments: Mapping[str, Any] | None = None,
    ) -> Consumption:
        """Deliver a queue's messages to a consumer, as far as all its credit goes: from the end of this turn of the
        loop on.

        Args:
            credit: may be shared by several consumers.
            needs_acks: False settles messages when they are sent.
            arguments: ``x-priority`` overrides ``priority``; others are ignored.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED; ACCESS_REFUSED by access rules, and where one of the consumers is
                exclusive; PRECONDITION_FAILED where an argument is invalid; TOO_MANY.
        """
        queue = self._registry.queue(client, name)
        if queue.consumptions and (exclusive or queue.consumptions.is_exclusive):
            raise QueueError(
                Reason.ACCESS_REFUSED, f"queue {name!r} is in exclusive use, or has consumers: only one may have it so"
            )
        priority = consumer_priority(arguments or {}) or priority
        if not self.bounds.consumers.take(client.owner):
            self.bounds.consumers.refuse(client.owner)
            raise QueueError(
                Reason.TOO_MANY,
                f"{client.owner} has used up its share of consumers: cancel some, or raise "
                f"{self.bounds.consumers.quota.raised(is_share=True)}",
            )
        consumption = Consumption(
            queue, client, consumer, credit, self._deliveries.soon, needs_acks=needs_acks, exclusive=exclusive,
            priority=priority,
        )  # fmt: skip
        client.consumptions[consumption] = None
        queue.consumptions.add(consumption)
        self._unused.in_use(queue)
        self._deliveries.reconsider(queue)
        return consumption

    def cancel(self, consumption: Consumption) -> None:
        """End delivery to a consumer, or a ``get`` that waits, which then has no answer. Messages already sent may
        still be settled."""
        queue = consumption.queue
        if not consumption.active:
            return
        consumption.end()
        if queue.deleted:
            return
        if consumption in queue.getters:
            queue.answered(consumption)
            self._contents.free_share(consumption.client.owner)
            return
        self.bounds.consumers.free(consumption.client.owner)
        queue.consumptions.remove(consumption)
        if queue.consumptions:
            self._deliveries.soon(queue)
        elif queue.definition.auto_delete and refused(consumption) is None:
            self._turn.store()
            self._registry.remove_queue(queue)
        else:
            self._unused.used(queue)

    def get(self, client: QueueClient, name: str, then: Got, *, needs_acks: bool = True) -> Consumption:
        """Send a client one message of a queue, now or once it is read from the log.

        Returns:
            The client's wait: active until it has its answer. ``cancel`` ends it.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED, ACCESS_REFUSED, TOO_MANY. ``then`` is not called.
        """
        self._turn.store()
        queue = self._registry.queue(client, name)
        # A get without acknowledgement takes a share, too, while it waits: a client may send thousands at once.
        self._contents.take_share(client.owner)
        self._unused.used(queue)
        consumption = Consumption(
            queue, client, Getter(queue, then), (), self._deliveries.soon, needs_acks=needs_acks, exclusive=False,
            priority=0,
        )  # fmt: skip
        client.consumptions[consumption] = None
        queue.ask(consumption)
        if queue.ready.withheld:
            self._deliveries.reconsider(queue)
        self._deliveries.deliver(queue)
        return consumption

    def settle(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Settle deliveries of one client: some now and, if they are many, the rest in later turns of its owner.
        Unknown ones are skipped: their queue was deleted, or their client has gone."""
        self._settling.settle(deliveries, outcome)

    def settle_together(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """Settle deliveries now, all in one commit: within ``log.together``, in that one."""
        self._contents.settle(deliveries, outcome)

    # --- clients

    def gone(self, client: QueueClient) -> None:
        """End a connection's part: delete its exclusive queues, cancel its consumers, and put unsettled messages back
        into their queues."""
        self._turn.store()
        self._leaving.begin(client)

    def _leave(self, consumption: Consumption) -> None:
        unsettled = sorted(consumption.unsettled, key=lambda each: each.seq)
        self.cancel(consumption)
        self.settle(unsettled, Outcome.REQUEUE)

    def permissions_changed(self) -> None:
        """Check again which queues and messages clients may read."""
        self._expelling.begin()

    def close(self) -> None:
        """Write the remaining changes. Clients of queues have gone before."""
        self._turn.store()
        self._leaving.finish()
        self._settling.finish()
        self._unlisten()
        self._dead_letters.close()
        self._deliveries.close()
        try:
            self._writer.stopped()
        except LogError as error:
            logger.warning(
                "the state of queues was not saved and is restored from earlier records at the next start: %s", error
            )

    # --- for the ingest

    def of_topic(self, topic: bytes) -> QueueTargets | None:
        """Return the queues of a topic that clients of other protocols publish to: the ones bound to ``amq.topic``."""
        topology = self._registry.topology
        exchange = topology.exchanges[TOPIC_EXCHANGE]
        if not exchange.bindings and exchange.definition.alternate is None:
            return None
        key = routing_key_of(topic.decode())
        names, by_headers = topology.walk(exchange, key, {})
        if by_headers:
            return QueuesByHeaders(
                lambda headers: self._registry.targets(topology.walk(exchange, key, headers)[0], reserved=False)
            )
        return self._registry.targets(names, reserved=False) if names else None

    def before_store(self, first_seq: int, admitted: Sequence[Admitted]) -> None:
        """Note that messages are about to be stored: some are delivered at once."""
        self._deliveries.before_store(first_seq, [each.queues for each in admitted if isinstance(each, QueueSet)])

    def stored(self, records: Records, admitted: Sequence[Admitted], now: int) -> None:
        """Add messages to their queues, and deliver them."""
        self._admission.stored()
        due: dict[Queue, None] = {}
        first = -1
        latest: Admitted | None = None
        queues: list[Queue] = []
        for index, (seq, for_queues) in enumerate(zip(records.seqs, admitted, strict=True)):
            if seq is None:
                continue
            first = seq if first < 0 else first
            if for_queues is not latest:
                assert isinstance(for_queues, QueueSet), "no one else admits messages"
                latest = for_queues
                # A queue may have been deleted between the publish and its commit.
                queues = [queue for queue in for_queues.queues if not queue.deleted]
            headers = records.headers.get(index, ())
            message = LogRecord(
                seq, records.keys[index], records.payloads[index], records.flags.get(index, 0), headers, now
            )  # fmt: skip
            if queues:
                self._holders.hold(seq, len(queues))
            else:  # it is released at once
                self._holders.free.add(seq, seq + 1)
            priority = priority_of(headers)
            for queue in queues:
                self._contents.add(queue, message, priority)
                due[queue] = None
            self._writer.message_bytes += len(message.payload) + MESSAGE_BYTES
        self._deliveries.deliver_stored(due, first)
        for queue in due:
            self._contents.limit(queue)
            self._contents.trim(queue)
        self.publishing.stored(due)

    # --- for publishers and transactions

    def remember(self, routes: Remembering) -> None:
        """Register a connection, which forgets the constant routes of ``ExchangePublishing.route`` once bindings
        change."""
        self._registry.topology.remembering.add(routes)

    def leave(self, routes: Remembering) -> None:
        """Forget a connection that remembers routes."""
        self._registry.topology.remembering.discard(routes)

    def flush(self) -> None:
        """Write settlements now, not at the end of the turn: within ``log.together``, in that commit.

        Raises:
            LogFailed: the log accepts no more records.
        """
        self._writer.flush()

    # --- facts

    def facts(self) -> dict[str, Any]:
        """Return the section of the status."""
        return self._facts.facts(self._registry.queues.values(), len(self._registry.topology.exchanges))

    # --- inside

    def _has_deleted(self, queue: Queue) -> None:
        consumptions = list(queue.consumptions)
        for consumption in consumptions:
            queue.consumptions.remove(consumption)
            self.bounds.consumers.free(consumption.client.owner)
        getters = queue.take_getters()
        self._unused.in_use(queue)
        self._contents.drop_all(queue)
        for getter in getters:
            self._contents.free_share(getter.client.owner)
        for consumption in (*consumptions, *getters):
            consumption.end()
        error = QueueError(Reason.NOT_FOUND, f"queue {queue.name!r} was deleted")
        for consumption in (*consumptions, *getters):
            try:
                consumption.consumer.cancelled(error)
            except Exception:
                logger.exception("a consumer of deleted queue %r could not be ended", queue.name)

    def _expire(self, queue: Queue) -> None:
        # Thousands may be declared, and expire, at once.
        self._rounds.wait(queue.owner, partial(self._delete_unused, queue))

    def _delete_unused(self, queue: Queue) -> None:
        self._turn.store()
        if not queue.deleted and self._unused.is_over(queue):
            self._registry.remove_queue(queue)

    def _release(self) -> None:
        """Release the room of messages that no queue needs: after a commit, so that the settlements are durable
        first."""
        self._to_release, free = self._holders.take_free(), self._to_release
        if free:
            self._log.release(self.stream, free)

    def _restore(self, state: QueueState) -> None:
        self._to_release = RangeSet()
        self._writer.next_number, self._writer.first = state.next_number, state.first
        self._writer.changed_bytes, self._writer.message_bytes = state.changed_bytes, state.message_bytes
        self._registry.restore(
            state.exchanges.values(), [each.definition for each in state.queues.values()], state.bindings
        )  # fmt: skip
        for remembered in state.queues.values():
            queue = self._registry.queues[remembered.definition.name]
            self._contents.restore(queue, remembered)
            self._unused.used(queue)
            if queue.count:  # its messages may expire without any consumer
                self._rounds.wait(queue.owner, partial(self._deliveries.deliver, queue))
        end = self._log.next_seq(self.stream)
        self._log.release(self.stream, self._holders.unneeded(end))
        if state.read:
            self._writer.started(end)
