"""One queue, those who read it, and the clients that both belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.queues.definitions import (
    OWN_NAMES,
    PREDECLARED,
    ExchangeDefinition,
    QueueDefinition,
)
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.message import Delivery, QueueMessage
from weft.edge_node.queues.queue.consumers import Consumers
from weft.edge_node.queues.queue.credit import UNLIMITED, Credit
from weft.edge_node.queues.queue.ready import Ready
from weft.edge_node.queues.rights import PUBLISH, READ, Use, refusal
from weft.edge_node.queues.topics import topic_of

LOADED_ENTRY_BYTES = 512
"""Memory that a message takes beside its payload, about."""


class Queue:
    """State of a queue. ``Queues`` and its parts change it; compared by identity."""

    __slots__ = ("attempts", "bytes", "client", "consumptions", "definition", "deleted", "dropped", "expires",
                 "getters", "gone", "has_consumed", "loaded", "loaded_bytes", "loading", "lost", "marked", "marking",
                 "marks", "ready", "reserved", "returning", "suspect", "timer", "unsettled", "unsettled_bytes", "waits",
                 "withheld")  # fmt: skip

    def __init__(self, definition: QueueDefinition, client: QueueClient | None = None) -> None:
        self.definition = definition
        self.client = client
        """Connection that the queue is exclusive to."""
        self.deleted = False
        self.ready = Ready()
        self.bytes = 0
        """Payload bytes of ready messages."""
        self.unsettled: dict[int, Delivery] = {}
        """Messages that were delivered and are not settled."""
        self.unsettled_bytes = 0
        self.attempts: dict[int, int] = {}
        """Message -> failed deliveries, of those that came back."""
        self.withheld: list[tuple[int, int]] = []
        """Number and priority of ready messages that no consumer of now may read."""
        self.marked = 0
        """Messages below this one may be delivered: after a crash the log says that they may have been."""
        self.marking = 0
        """The same once what is being written is durable."""
        self.marks = 0
        """Times that delivery waited for that."""
        self.suspect = 0
        """Messages below this one may have been delivered before the last crash."""
        self.loaded: dict[int, QueueMessage] = {}
        """Ready messages in memory: the next ones, as far as there is room."""
        self.loaded_bytes = 0
        self.loading: asyncio.Task[None] | None = None
        self.waits = False
        """True while the next message is not durable, so that it cannot be read."""
        self.gone: dict[int, None] = {}
        """Ready messages that the log does not have any more."""
        self.consumptions: Consumers[Consumption] = Consumers(single_active=definition.arguments.single_active)
        self.getters: list[Consumption] = []
        """Clients that wait for one message each, or for word that there is none."""
        self.has_consumed = False
        """True once there was a consumer."""
        self.returning = 0
        """Times that many messages are on their way back: nothing is delivered until all are there."""
        self.reserved = 0
        """Messages that were accepted for a queue with a limit, and are not stored yet."""
        self.expires = definition.arguments.message_ttl_ms is not None
        """True if some messages may expire."""
        self.timer: asyncio.TimerHandle | None = None
        """Timer of the next message's time to live."""
        self.lost = self.dropped = 0
        """Messages that the log had no more, and that were not taken because the queue or a share was full."""

    @property
    def name(self) -> str:
        """Return the queue's name."""
        return self.definition.name

    @property
    def number(self) -> int:
        """Return the queue's number in records."""
        return self.definition.number

    @property
    def kept(self) -> bool:
        """Return whether the log keeps what becomes of the queue."""
        return self.definition.kept

    @property
    def count(self) -> int:
        """Return the number of ready messages, those that no reader of now may have included."""
        return self.ready.count + len(self.withheld)

    def is_full(self, more: int = 0, more_bytes: int = 0) -> bool:
        """Return whether the queue's own limits have no room for more messages."""
        arguments = self.definition.arguments
        over_length = arguments.length_max is not None and self.count + more > arguments.length_max
        return over_length or (arguments.bytes_max is not None and self.bytes + more_bytes > arguments.bytes_max)

    def load(self, message: QueueMessage) -> None:
        """Keep a ready message in memory."""
        if message.seq not in self.loaded:
            self.loaded[message.seq] = message
            self.loaded_bytes += len(message.payload) + LOADED_ENTRY_BYTES

    def unload(self, seq: int) -> QueueMessage | None:
        """Return a message in memory, which is not kept any more."""
        message = self.loaded.pop(seq, None)
        if message is not None:
            self.loaded_bytes -= len(message.payload) + LOADED_ENTRY_BYTES
        return message

    def take(self, seq: int) -> int:
        """Take the next message. Return what it is charged with: its payload bytes, about those if it is not in
        memory. The sum is right."""
        message = self.loaded.get(seq)
        count = self.count
        if count == 1:
            size = self.bytes
        elif message is not None:
            size = min(len(message.payload), self.bytes)
        else:
            size = self.bytes // count
        self.ready.pop()
        self.bytes -= size
        return size

    def span(self) -> tuple[int, int]:
        """Return first and end of the numbers of all ready messages, of which there is one."""
        ends = [*self.ready.ends(), *(seq for seq, _ in self.withheld)]
        return min(ends), max(ends) + 1

    def forget_ready(self) -> Iterator[tuple[int, int]]:
        """Forget the ready messages. Return [first, end) of all of them."""
        ready, withheld, self.ready, self.withheld = self.ready, self.withheld, Ready(), []
        self.attempts = {seq: count for seq, count in self.attempts.items() if seq in self.unsettled}
        self.gone.clear()
        self.bytes = 0

        def runs() -> Iterator[tuple[int, int]]:
            for _, fresh, returned in ready.runs():
                yield from fresh.runs()
                for seq in returned:
                    yield seq, seq + 1
            for seq, _ in withheld:
                yield seq, seq + 1

        return runs()

    def put_back(self, delivery: Delivery) -> None:
        """Make a delivered message ready again."""
        self.ready.put_back(delivery.seq, delivery.priority)
        self.bytes += delivery.size

    def was_delivered(self, seq: int) -> bool:
        """Return whether a message may have been delivered before."""
        return seq < self.suspect or seq in self.attempts


class Consumer(Protocol):
    """One who reads a queue: a consumer tag of AMQP 0-9-1, a receiving link of AMQP 1.0. Compared by identity."""

    def deliver(self, batch: list[tuple[Delivery, QueueMessage]]) -> None:
        """Send messages. Raise nothing, and call nothing of ``Queues`` before this returns."""

    def cancelled(self, error: QueueError) -> None:
        """Take note that nothing more comes: the queue was deleted (NOT_FOUND), or access rules do not let the client
        read it any more (ACCESS_REFUSED). Deliveries that are not settled are forgotten."""


class Consumption:
    """A consumer at a queue, or a client that gets one message of it. ``Queues`` makes it."""

    __slots__ = ("_resume", "active", "client", "consumer", "credits", "exclusive", "needs_acks", "parked", "priority",
                 "queue", "unsettled")  # fmt: skip

    def __init__(
        self,
        queue: Queue,
        client: QueueClient,
        consumer: Consumer,
        credits_: Sequence[Credit],
        resume: Callable[[Queue], None],
        *,
        needs_acks: bool,
        exclusive: bool,
        priority: int,
    ) -> None:
        self.queue = queue
        self.client = client
        self.consumer = consumer
        self.credits = tuple(credits_)
        self.needs_acks = needs_acks
        self.exclusive = exclusive
        self.priority = priority
        self.active = True
        """False once it was cancelled: its deliveries may still be settled."""
        self.parked = False
        """True while it has no credit, so that its queue does not look at it."""
        self.unsettled: set[Delivery] = set()
        self._resume = resume

    @property
    def room(self) -> int:
        """Return the number of messages that the consumer takes now."""
        return min([credit.left for credit in self.credits], default=UNLIMITED)

    def take(self, count: int) -> None:
        """Charge messages to the consumer's credit."""
        for credit in self.credits:
            credit.take(count)

    def wait(self) -> None:
        """Go on once there is credit again."""
        for credit in self.credits:
            if credit.left <= 0:
                credit.wait(self)

    def end(self) -> None:
        """Take no more messages."""
        self.active = False
        for credit in self.credits:
            credit.forget(self)
        if not self.unsettled:
            self.client.consumptions.pop(self, None)

    def resume(self) -> None:
        """Go on delivering: there is credit again."""
        if self.active:
            self.queue.consumptions.wake(self)
            self._resume(self.queue)

    def settled(self, delivery: Delivery) -> None:
        """Forget a delivery, whose credit comes back."""
        self.unsettled.discard(delivery)
        if not self.active and not self.unsettled:
            self.client.consumptions.pop(self, None)
        for credit in self.credits:
            if credit.comes_back:
                credit.give(1)


class QueueClient:
    """One connection: exclusive queues, consumers and deliveries are its own. Compared by identity.

    Args:
        owner: whom its queues and deliveries are charged to.
        identity: None for a client that may do everything.
    """

    __slots__ = ("consumptions", "exclusive", "identity", "owner")

    def __init__(self, owner: Owner, identity: Identity | None = None) -> None:
        self.owner = owner
        self.identity = None if identity is None or identity.unrestricted else identity
        self.exclusive: dict[Queue, None] = {}
        """Queues that end with the connection."""
        self.consumptions: dict[Consumption, None] = {}
        """Consumers, also cancelled ones of which deliveries are not settled."""

    def may_read(self, topic: bytes) -> bool:
        """Return whether access rules let the client have messages of a topic."""
        return self.identity is None or self.identity.may_read(topic)

    def check_publish(self, topic: str) -> None:
        """Check that the client may publish to a topic.

        Raises:
            QueueError: access rules forbid it.
        """
        if topic.startswith("$SYS/") or not (self.identity is None or self.identity.may_publish(topic.encode())):
            raise QueueError(Reason.ACCESS_REFUSED, f"access rules do not let the user publish to topic {topic!r:.200}")

    def check_subscribe(self, topic_filter: str) -> None:
        """Check that the client may have messages of a filter.

        Raises:
            QueueError: access rules forbid it.
        """
        if not (self.identity is None or self.identity.may_subscribe(topic_filter)):
            raise QueueError(
                Reason.ACCESS_REFUSED, f"access rules do not let the user subscribe to {topic_filter!r:.200}"
            )

    def check(self, use: Use, name: str, owner: Owner | None, what: str) -> None:
        """Check that the client may use a queue or an exchange so.

        Args:
            owner: that declared it, and may do all; None where there is none of that name.
            what: ``queue`` or ``exchange``.

        Raises:
            QueueError: access rules forbid it.
        """
        if self.identity is None:
            return
        rights = self.identity.queue_rights(topic_of("", name))
        if rights is None or not (rights & use.wanted or owner == self.owner):
            raise refusal(use, name, what, is_denied=rights is None)

    def check_missing(self, name: str, use: Use) -> None:
        """Check that the client may learn that there is no queue of a name. Those that the node gives cannot be
        guessed.

        Raises:
            QueueError: access rules forbid it.
        """
        if name and not name.startswith(OWN_NAMES):
            self.check(use.by_any, name, None, "queue")

    def check_source(self, exchange: ExchangeDefinition) -> None:
        """Check that the client may bind to an exchange. Where bindings name topics, those are asked for instead, as
        they are of the exchanges that are always there.

        Who may bind to an exchange that ends with its last binding may end it, whatever the binding says.

        Raises:
            QueueError: access rules forbid it.
        """
        if exchange.name not in PREDECLARED and (not exchange.names_topics or exchange.auto_delete):
            self.check(READ, exchange.name, exchange.owner, "exchange")

    def check_target(self, exchange: ExchangeDefinition | None) -> None:
        """Check that the client may publish to an exchange, whatever the topic. Where routing keys say who gets a
        message, the key's topic is asked for alone; elsewhere any topic that the publisher may use would do for all
        queues of the exchange.

        Raises:
            QueueError: access rules forbid it.
        """
        if self.identity is None or exchange is None or exchange.names_topics or exchange.name in PREDECLARED:
            return
        topic = topic_of("", exchange.name)
        rights = self.identity.queue_rights(topic)
        if rights is None or not (
            rights & PUBLISH.wanted or exchange.owner == self.owner or self.identity.may_publish(topic.encode())
        ):
            raise refusal(PUBLISH, exchange.name, "exchange", is_denied=rights is None)
