"""One queue, its readers, and the clients that both belong to."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from weft.bounds import Bound, Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.queues.definitions import (
    OWN_NAMES,
    PREDECLARED,
    PUBLISH,
    READ,
    ExchangeDefinition,
    QueueDefinition,
    QueueError,
    Reason,
    Use,
    refusal,
    topic_of,
)
from weft.edge_node.queues.ready import Delivery, DeliveryMarks, LoadedMessages, Ready, SeqRuns, Unsettled
from weft.edge_node.subscriptions.message import LogRecord
from weft.protocols.batch import HeaderPairs
from weft.protocols.message_headers import EXPIRES

# Credit: the number of messages that a reader of queues may be sent before it acknowledges some or grants more.

UNLIMITED: Final = 1 << 60


class Credit:
    """Messages that may be sent. One credit may be shared by several consumers, such as those of a channel.

    For a prefetch, ``comes_back`` is true: each settled message frees its credit. For credit of AMQP 1.0 it is false:
    the peer grants more. A credit without limit that is held and freed represents a socket.
    """

    __slots__ = ("_held", "_left", "_limit", "_waiting", "comes_back")

    def __init__(self, limit: int = UNLIMITED, *, comes_back: bool = False) -> None:
        self._limit = self._left = limit
        self.comes_back = comes_back
        self._held = False
        self._waiting: dict[Consumption, None] = {}

    @property
    def left(self) -> int:
        """Return the number of messages that may be sent now."""
        return 0 if self._held else self._left

    def take(self, count: int) -> None:
        """Note that messages are sent."""
        self._left -= count

    def give(self, count: int) -> None:
        """Allow so many more messages. Consumers that waited for credit resume."""
        self._left += count
        self._resume()

    def set_limit(self, limit: int) -> None:
        """Change the limit of a prefetch; unsettled messages count against the new one. 0 means no limit, as in
        basic.qos. For credit of AMQP 1.0: the peer allows so many messages from now on."""
        limit = limit or (UNLIMITED if self.comes_back else 0)
        self._left = self._left + limit - self._limit if self.comes_back else limit
        self._limit = limit
        self._resume()

    def hold(self) -> None:
        """Allow no messages until ``free``."""
        self._held = True

    def free(self) -> None:
        """End what ``hold`` began."""
        self._held = False
        self._resume()

    def wait(self, consumer: Consumption) -> None:
        """Resume a consumer when there is credit."""
        self._waiting[consumer] = None

    def forget(self, consumer: Consumption) -> None:
        """Forget a reader that no longer waits."""
        self._waiting.pop(consumer, None)

    def _resume(self) -> None:
        if self._waiting and self.left > 0:
            waiting, self._waiting = self._waiting, {}
            for consumer in waiting:
                consumer.resume()


# The consumers of one queue, and their turns.


class Consumers:
    """Consumers by turns: highest priority first; within a priority, the one that waited longest.

    Consumers without credit are set aside until they have some again, so that a message costs the same whether ten
    consumers or ten thousand have used up theirs.

    Args:
        single_active: one of them gets all messages; the next one follows when it leaves.
    """

    __slots__ = ("_all", "_order", "_single_active")

    def __init__(self, *, single_active: bool) -> None:
        self._single_active = single_active
        self._all: dict[Consumption, None] = {}
        self._order: list[Consumption] = []
        """Consumers that may have credit, and some that have left."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Consumption]:
        return iter(self._all)

    def __contains__(self, consumption: object) -> bool:
        return consumption in self._all

    @property
    def is_exclusive(self) -> bool:
        """Return whether one of them is exclusive."""
        return len(self._all) == 1 and next(iter(self._all)).exclusive

    def add(self, consumption: Consumption) -> None:
        """Add a consumer, behind all others of its priority."""
        self._all[consumption] = None
        self._insert(consumption)

    def remove(self, consumption: Consumption) -> None:
        """Remove a consumer that has ended."""
        self._all.pop(consumption, None)
        if not self._all:
            self._order.clear()

    def wake(self, consumption: Consumption) -> None:
        """Consider a consumer again: it may have credit."""
        if consumption.parked:
            consumption.parked = False
            self._insert(consumption)

    def may_anybody_read(self, topic: bytes) -> bool:
        """Return whether access rules let one of them read messages of a topic."""
        return any(each.client.may_read(topic) for each in self._all)

    def room(self, most: int) -> int:
        """Return the number of messages that they can take now; beyond ``most`` it is approximate."""
        room = 0
        for each in self._order:
            if each.active:
                room += max(each.room, 0)
                if room >= most:
                    break
        return room

    def choose(self, topic: bytes | None, has_share: Callable[[Owner], bool]) -> Consumption | None:
        """Return the consumer that gets the next message; None when none can take it now.

        Args:
            topic: of the message; None when it is not known yet.
            has_share: returns whether an owner may have one more unacknowledged message; called once for each.
        """
        order, at = self._order, 0
        full: set[Owner] = set()
        while at < len(order):
            found = order[at]
            if not found.active:
                del order[at]
                continue
            if found.needs_acks and found.client.owner in full:
                at += 1
                continue
            if found.room <= 0:
                found.wait()
                if self._single_active:
                    return None
                found.parked = True
                del order[at]
                continue
            if topic is None or found.client.may_read(topic):
                if not found.needs_acks or has_share(found.client.owner):
                    return found
                full.add(found.client.owner)
            if self._single_active:
                return None
            at += 1
        return None

    def by_turns(self, first: Consumption, topic: bytes, shares: Bound, most: int) -> tuple[Sequence[Consumption], int]:
        """Return the consumers that get the next messages by turns, one message each, and how many messages: as many as
        they all have room for, so that ``choose`` for each message would return the same.

        Args:
            first: the consumer that ``choose`` has returned.
            topic: of the messages.
            shares: unacknowledged deliveries of owners.
            most: maximum number of messages.
        """
        order, group = self._order, [first]
        if order[0] is not first:
            return group, 1  # others are before it, which may not have this message
        is_whole = True
        if not self._single_active:
            for each in islice(order, 1, most + 1):
                if each.priority != first.priority:
                    break
                if len(group) == most or not each.active or each.room <= 0 or not each.client.may_read(topic):
                    is_whole = False
                    break
                group.append(each)
        # Consumers may share a credit, and owners have shares: each of them has to last for a turn of all.
        turns, drawn, owners = most, dict[Credit, int](), dict[Owner, int]()
        for each in group:
            for credit in each.credits:
                if credit.left < most:
                    drawn[credit] = drawn.get(credit, 0) + 1
            if each.needs_acks:
                owner = each.client.owner
                owners[owner] = owners.get(owner, 0) + 1
        for credit, times in drawn.items():
            turns = min(turns, credit.left // times)
        for owner, times in owners.items():
            turns = min(turns, shares.room(owner) // times)
        count = min(most, len(group) * turns if is_whole else len(group) * min(turns, 1))
        if owners:
            count = min(count, shares.total - shares.used)
        return (group, count) if count > 1 else (group[:1], 1)

    def took(self, group: Sequence[Consumption], count: int) -> None:
        """Move consumers that got messages by turns behind the others of their priority."""
        order = self._order
        if len(order) <= 1 or self._single_active:
            return
        if count == 1:
            order.remove(group[0])  # it is one of the first
            self._insert(group[0])
            return
        # They are the first of the order: all of their priority, or each had one message at most.
        moved = order[: count % len(group) or (len(group) if count == len(group) else 0)]
        del order[: len(moved)]
        at = len(order)
        if order and moved and order[-1].priority < moved[0].priority:
            at = bisect_right(order, -moved[0].priority, key=lambda each: -each.priority)
        order[at:at] = moved

    def _insert(self, consumption: Consumption) -> None:
        order, priority = self._order, consumption.priority
        # The active consumer stays active, even if others have a higher priority.
        least = 0
        if self._single_active:
            while order and not order[0].active:
                del order[0]
            least = min(1, len(order))
        if len(order) <= least or order[-1].priority >= priority:
            order.append(consumption)
        else:
            order.insert(bisect_right(order, -priority, least, key=lambda each: -each.priority), consumption)


class Queue:
    """A queue and its messages. Compared by identity. Only the methods here and of its parts change it.

    | a message is | where | until it |
    | --- | --- | --- |
    | ready | ``ready``; perhaps in memory too, ``loaded`` | is the next and a reader takes it, expires, or is purged |
    | withheld | ``ready.withheld`` | is offered again, after a new reader or new access rules |
    | delivered | ``unsettled``; below ``marks.durable`` | is settled: it leaves, is dead-lettered, or is ready again |
    | dead-lettered | ``unsettled``, with no reader as holder | is stored at its destination |
    """

    __slots__ = (
        "client",
        "consumptions",
        "definition",
        "deleted",
        "dropped",
        "expires",
        "getters",
        "kept",
        "loaded",
        "lost",
        "marks",
        "number",
        "owner",
        "ready",
        "reserved",
        "returning",
        "timer",
        "unsettled",
    )

    def __init__(self, definition: QueueDefinition, client: QueueClient | None = None) -> None:
        self.definition = definition
        # The definition works these out at each call, and they are asked for with each message.
        self.number = definition.number
        """Number of the queue in records."""
        self.kept = definition.kept
        """True if the log records changes of the queue."""
        self.owner = definition.owner
        """Owner that the queue and its messages are charged to."""
        self.client = client
        """Connection that the queue is exclusive to."""
        self.deleted = False
        self.ready = Ready()
        self.loaded = LoadedMessages()
        self.unsettled = Unsettled()
        self.marks = DeliveryMarks()
        self.consumptions: Consumers = Consumers(single_active=definition.arguments.single_active)
        self.getters: list[Consumption] = []
        """Clients that wait for one message each, or for the answer that there is none."""
        self.returning = 0
        """Number of batches of messages that are going back: nothing is delivered until all are back."""
        self.reserved = 0
        """Messages accepted for a queue with a limit, and not stored yet."""
        self.expires = definition.arguments.message_ttl_ms is not None
        """True if some messages may expire."""
        self.timer: asyncio.TimerHandle | None = None
        """Timer of the next message's time to live."""
        self.lost = self.dropped = 0
        """Messages that the log had deleted, and messages rejected because the queue or a share was full."""

    @property
    def name(self) -> str:
        """Return the queue's name."""
        return self.definition.name

    @property
    def count(self) -> int:
        """Return the number of ready messages, withheld ones included."""
        return self.ready.total

    def delete(self) -> None:
        """Note that the queue is deleted."""
        self.deleted = True
        if self.client is not None:
            self.client.exclusive.pop(self, None)

    # --- in

    def is_full(self, more: int = 0, more_bytes: int = 0) -> bool:
        """Return whether the queue's own limits have no room for more messages."""
        arguments = self.definition.arguments
        over_length = arguments.length_max is not None and self.count + more > arguments.length_max
        return over_length or (arguments.bytes_max is not None and self.ready.bytes + more_bytes > arguments.bytes_max)

    def reserve(self) -> None:
        """Note that a message was accepted and will be stored."""
        self.reserved += 1

    def withdraw(self) -> None:
        """Note that an accepted message will not be stored after all."""
        self.reserved = max(0, self.reserved - 1)

    def forget_reserved(self) -> None:
        """Note that the accepted messages are stored now, or were refused."""
        self.reserved = 0

    def refused(self) -> None:
        """Count a rejected message."""
        self.dropped += 1

    def add(self, messages: Sequence[LogRecord], priority: int, size: int) -> None:
        """Add new messages whose numbers follow each other.

        Args:
            size: payload bytes of all.
        """
        end = messages[-1].seq + 1
        self.ready.add(messages[0].seq, end, min(priority, self.definition.arguments.priority_max), size)
        if not self.expires:
            headers: HeaderPairs = ()
            for message in messages:
                if message.headers is not headers:  # mostly all of them have the same
                    headers = message.headers
                    self.expires = self.expires or any(name == EXPIRES for name, _ in headers)

    def put_back(self, delivery: Delivery) -> None:
        """Make a delivered message ready again."""
        self.ready.put_back(delivery.seq, delivery.priority, delivery.size)

    def hold_back(self) -> None:
        """Deliver nothing until the matching ``resume``: messages are going back."""
        self.returning += 1

    def resume(self) -> None:
        """Deliver again, if no other ``hold_back`` is open."""
        self.returning -= 1

    def restore(self, levels: Mapping[int, SeqRuns], others: Mapping[int, int], size: int) -> None:
        """Restore the messages that a start read; see ``Ready.restore``."""
        self.ready.restore(levels, others, size)
        self.expires = self.expires or bool(self.count)  # unknown for messages that were not read

    # --- out

    def take(self, seq: int) -> int:
        """Take the next message. Return its charge: its payload bytes, or an estimate if it is not in memory. The sum
        over the queue is exact."""
        ready = self.ready
        message = self.loaded.messages.get(seq)
        count = ready.total
        if count == 1:
            size = ready.bytes
        elif message is not None:
            size = min(len(message.payload), ready.bytes)
        else:
            size = ready.bytes // count
        ready.pop(size)
        return size

    def take_run(self, messages: Sequence[LogRecord]) -> list[int]:
        """Take the next messages, which are in memory and have one priority. Return the charge of each, as ``take``
        does."""
        ready, sizes = self.ready, [len(message.payload) for message in messages]
        size = sum(sizes)
        if size > ready.bytes or len(sizes) == ready.total:
            left = ready.bytes
            for at, each in enumerate(sizes):
                sizes[at] = min(each, left)
                left -= sizes[at]
            if len(sizes) == ready.total:
                sizes[-1] += left
            size = sum(sizes)
        ready.pop_run(len(sizes), size)
        return sizes

    def lose(self, seq: int) -> int:
        """Take the next message, which the log has deleted; like ``take``."""
        self.loaded.passed(seq)
        self.lost += 1
        return self.take(seq)

    def forget_ready(self) -> Iterator[tuple[int, int]]:
        """Forget the ready messages. Return [first, end) of all of them."""
        ready, self.ready = self.ready, Ready()
        self.marks.only(self.unsettled)
        self.loaded.forget_gone()
        return ready.runs()

    def set_timer(self, timer: asyncio.TimerHandle | None = None) -> None:
        """Replace the timer of the next message's time to live; None stops it."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    # --- readers

    def ask(self, getter: Consumption) -> None:
        """Add a client that waits for a message."""
        self.getters.append(getter)

    def answered(self, getter: Consumption) -> None:
        """Note that a client no longer waits."""
        self.getters.remove(getter)

    def take_getters(self) -> list[Consumption]:
        """Remove the clients that wait, and return them."""
        getters, self.getters = self.getters, []
        return getters


class Consumer(Protocol):
    """A reader of a queue: a consumer tag of AMQP 0-9-1, a receiving link of AMQP 1.0. Compared by identity."""

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        """Send messages. Raise nothing, and call nothing of ``Queues`` before this returns."""

    def cancelled(self, error: QueueError) -> None:
        """End: the queue was deleted (NOT_FOUND), or access rules no longer let the client read it (ACCESS_REFUSED).
        Unsettled deliveries are forgotten."""


class Consumption:
    """A consumer at a queue, or a client that gets one message of it. Created by ``Queues``."""

    __slots__ = (
        "_resume",
        "active",
        "client",
        "consumer",
        "credits",
        "exclusive",
        "needs_acks",
        "parked",
        "priority",
        "queue",
        "unsettled",
    )

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
        """True while it has no credit and its queue has set it aside."""
        self.unsettled: set[Delivery] = set()
        self._resume = resume

    @property
    def room(self) -> int:
        """Return the number of messages that the consumer can take now."""
        room = UNLIMITED
        for credit in self.credits:  # a loop without calls: made for each message
            if (left := credit.left) < room:
                room = left
        return room

    def take(self, count: int) -> None:
        """Charge messages to the consumer's credit."""
        for credit in self.credits:
            credit.take(count)

    def wait(self) -> None:
        """Resume once there is credit again."""
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
        """Resume delivery: there is credit again."""
        if self.active:
            self.queue.consumptions.wake(self)
            self._resume(self.queue)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """Forget deliveries, and free their credit."""
        self.unsettled.difference_update(deliveries)
        if not self.active and not self.unsettled:
            self.client.consumptions.pop(self, None)
        for credit in self.credits:
            if credit.comes_back:
                credit.give(len(deliveries))


class QueueClient:
    """One connection: exclusive queues, consumers and deliveries are its own. Compared by identity.

    Args:
        owner: owner that its queues and deliveries are charged to.
        identity: None for a client with all rights.
    """

    __slots__ = ("consumptions", "exclusive", "identity", "owner")

    def __init__(self, owner: Owner, identity: Identity | None = None) -> None:
        self.owner = owner
        self.identity = None if identity is None or identity.unrestricted else identity
        self.exclusive: dict[Queue, None] = {}
        """Queues that end with the connection."""
        self.consumptions: dict[Consumption, None] = {}
        """Consumers, also cancelled ones with unsettled deliveries."""

    def may_read(self, topic: bytes) -> bool:
        """Return whether access rules let the client read messages of a topic."""
        return self.identity is None or self.identity.may_read(topic)

    def check_publish(self, topic: str) -> None:
        """Check that the client may publish to a topic.

        Raises:
            QueueError: access rules forbid it.
        """
        if topic.startswith("$SYS/") or not (self.identity is None or self.identity.may_publish(topic.encode())):
            raise QueueError(Reason.ACCESS_REFUSED, f"access rules do not let the user publish to topic {topic!r:.200}")

    def check_subscribe(self, topic_filter: str) -> None:
        """Check that the client may read messages of a filter.

        Raises:
            QueueError: access rules forbid it.
        """
        if not (self.identity is None or self.identity.may_subscribe(topic_filter)):
            raise QueueError(
                Reason.ACCESS_REFUSED, f"access rules do not let the user subscribe to {topic_filter!r:.200}"
            )

    def check(self, use: Use, name: str, owner: Owner | None, what: str) -> None:
        """Check that the client may use a queue or an exchange in a certain way.

        Args:
            owner: that declared it, and has all rights; None where there is none of that name.
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
        """Check that the client may learn that there is no queue of a name. Names that the node gives cannot be
        guessed.

        Raises:
            QueueError: access rules forbid it.
        """
        if name and not name.startswith(OWN_NAMES):
            self.check(use.by_any, name, None, "queue")

    def check_source(self, exchange: ExchangeDefinition) -> None:
        """Check that the client may bind to an exchange. Where bindings name topics, the rules for topics apply
        instead, as for the predeclared exchanges.

        A client that may bind to an auto-delete exchange may also end it, by removing the last binding.

        Raises:
            QueueError: access rules forbid it.
        """
        if exchange.name not in PREDECLARED and (not exchange.names_topics or exchange.auto_delete):
            self.check(READ, exchange.name, exchange.owner, "exchange")

    def check_target(self, exchange: ExchangeDefinition | None) -> None:
        """Check that the client may publish to an exchange with any topic. Where routing keys decide who gets a
        message, only the rules for the key's topic apply; elsewhere one permitted topic would reach all queues of the
        exchange.

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


# A client that requested one message of a queue.

Got = Callable[[tuple[Delivery, LogRecord, int] | None], None]
"""Answer to ``Queues.get``: delivery, message, and number of messages left; None from an empty queue."""


class Getter:
    """The ``Consumer`` of such a client."""

    __slots__ = ("_queue", "_then")

    def __init__(self, queue: Queue, then: Got) -> None:
        self._queue = queue
        self._then = then

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        """Pass the message on, with the number of messages left."""
        self._then((*batch[0], self._queue.count) if batch else None)

    def cancelled(self, _error: QueueError) -> None:
        """Answer that there is none: the queue was deleted, or the client may no longer read it."""
        self._then(None)
