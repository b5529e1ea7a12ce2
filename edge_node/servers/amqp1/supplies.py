"""Messages for links: of a queue, of a stream, and of a topic address, and queues as targets of clients."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.record import Route
from weft.edge_node.queues import ready as queues_message
from weft.edge_node.queues.definitions import QueueError, Reason
from weft.edge_node.queues.queue import Consumption, Credit, QueueClient
from weft.edge_node.queues.queues import Queues
from weft.edge_node.queues.ready import Delivery
from weft.edge_node.servers.amqp1.mapping import Refused
from weft.edge_node.servers.clients.reading import Reading
from weft.edge_node.sessions.log_readers import LogReaders
from weft.edge_node.subscriptions.catch_up import CatchUp
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES, QueueAccount
from weft.edge_node.subscriptions.message import NOWHERE, LogRecord, Message, Outbox, Positions, lowered
from weft.edge_node.subscriptions.subscriptions import ClientSubscription, DeliveryOptions, Subscriptions
from weft.protocols.batch import Flag, HeaderPairs, decode_header, records
from weft.protocols.message_headers import EXPIRES
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import matches
from weft.storage.segment_log import LogFailed, SegmentLog
from weft.storage.segment_log.reader import PageReader

# Messages on their way to a receiver, and the interfaces of their origin and their link.


class Outcome(NamedTuple):
    """An outcome of AMQP, one of four."""

    name: str
    failed: bool = False
    """True if the attempt counts as failed (``modified``)."""
    undeliverable: bool = False
    """True if the same link must not get the message again (``modified``)."""

    @property
    def is_final(self) -> bool:
        """Return whether the message is not delivered again."""
        return self.name in ("accepted", "rejected")


class Outcomes:
    """Outcomes without details."""

    ACCEPTED = Outcome("accepted")
    REJECTED = Outcome("rejected")
    RELEASED = Outcome("released")


class Item(NamedTuple):
    """A message on its way to a link."""

    message: Message
    attempts: int = 0
    """Number of earlier deliveries without success."""
    place: tuple[str, int] | None = None
    """Name of its stream and its seq there, for receivers of streams."""
    is_kept: bool = True
    """False for a message at QoS 0: it is never delivered again."""
    delivery: Any = None
    """Delivery of the message's queue."""
    is_redelivered: bool = False
    """True if it was, or may have been, delivered before, even where no attempt has failed."""

    @property
    def size(self) -> int:
        """Return the bytes charged until the message is settled."""
        return len(self.message.payload) + self.message.header_bytes + MESSAGE_OVERHEAD_BYTES


class OpenConnection(Protocol):
    """A client's connection (``Amqp1Connection``), for its links and the node. It is here, below both, since the
    connection imports its links."""

    reading: Reading

    @property
    def takes_more(self) -> bool:
        """Return whether its socket has room."""
        ...

    def flush(self) -> None:
        """Send the engine's output."""

    def flush_in_turn(self) -> None:
        """Send the engine's output at the client's turn."""

    def room_in_turn(self) -> None:
        """Let links resume at the client's turn."""

    def owes(self, link: Any) -> None:
        """Call the link's ``left`` once the engine has made frames."""

    def look_at_times(self) -> None:
        """Compute the next deadline."""

    def permissions_changed(self) -> None:
        """Check again whether the client is admitted, and its rights."""

    def end(self, condition: str, description: str) -> None:
        """Close the connection with an error."""


class Supply(Protocol):
    """Origin of a link's messages. Two answers end a delivery: ``again`` and ``done``."""

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to send now."""
        ...

    def start(self) -> None:
        """Begin to send."""

    def room(self) -> None:
        """Resume sending: there may be room again."""

    def again(self, item: Item) -> None:
        """Send a message once more."""

    def done(self, item: Item, outcome: Outcome) -> None:
        """Note that a message is finished."""

    def stop(self, unsettled: list[Item], *, for_good: bool) -> None:
        """Stop sending: the link is gone.

        Args:
            unsettled: unsettled messages, in the order of sending.
            for_good: the client has closed the link, and will not resume it.
        """

    def may_continue(self) -> bool:
        """Return whether the client may still read this, after access rules have changed."""
        ...


class Outlet(Protocol):
    """The link of a supply (``OutgoingLink``)."""

    supply: Supply

    @property
    def has_room(self) -> bool:
        """Return whether one more message can be sent at once."""
        ...

    @property
    def unsettled(self) -> list[Item]:
        """Return the unsettled messages, in the order of sending."""
        ...

    @property
    def free(self) -> int:
        """Return the number of messages that can be sent at once."""
        ...

    def send(self, item: Item) -> bool:
        """Send a message; there is room. Return False where it has expired or is too long for the client."""
        ...

    def flush(self) -> None:
        """Write the sent messages."""

    def room_in_turn(self) -> None:
        """Call the supply's ``room`` at the client's turn."""

    def idle(self) -> None:
        """Note that there is nothing to send."""


# Messages of a queue for one link.

_Settled = queues_message.Outcome


class QueueSupply:
    """The ``Supply`` of such a link, and the ``Consumer`` of its queue. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        link: Outlet,
        queues: Queues,
        client: QueueClient,
        name: str,
        gone: Callable[[str, str], None],
        call_soon: Callable[[Callable[[], None]], object],
        *,
        settled: bool,
    ) -> None:
        """Prepare to consume from ``start`` on.

        Args:
            gone: closes the link, because its queue was deleted, or the client may no longer read it; takes the reason,
                and AMQP's name of it.
            call_soon: the loop's.
            settled: True if the client wants messages settled.
        """
        self._link = link
        self._queues = queues
        self._client = client
        self._name = name
        self._gone = gone
        self._call_soon = call_soon
        self._is_settled = settled
        self._credit = Credit(0)
        self._consumption: Consumption | None = None

    def begin(self) -> None:
        """Join the queue's consumers.

        Raises:
            QueueError: there is no such queue, the client may not read it, or another consumer has it exclusively.
        """
        self._consumption = self._queues.consumptions.consume(
            self._client, self._name, self, [self._credit], needs_acks=not self._is_settled
        )

    # --- Supply

    @property
    def is_idle(self) -> bool:
        """Return whether the queue has nothing for the link now."""
        return self._consumption is None or not self._consumption.queue.ready.count

    def start(self) -> None:
        """Begin to send."""
        self.room()

    def room(self) -> None:
        """Let the queue send as far as there is room."""
        self._credit.set_limit(self._link.free)

    def again(self, item: Item) -> None:
        """Put a message back into the queue."""
        failed = item.attempts > item.delivery.attempts
        self._queues.settling.settle([item.delivery], _Settled.REQUEUE if failed else _Settled.RELEASE)

    def done(self, item: Item, outcome: Outcome) -> None:
        """Remove a message from the queue; a rejected one is dead-lettered."""
        self._queues.settling.settle(
            [item.delivery], _Settled.ACCEPT if outcome.name == "accepted" else _Settled.REJECT
        )

    def stop(self, unsettled: list[Item], *, for_good: bool) -> None:
        """Leave the queue, and put unsettled messages back: after a broken connection each counts as a failure."""
        consumption, self._consumption = self._consumption, None
        if consumption is not None:
            self._queues.consumptions.cancel(consumption)
        self._queues.settling.settle(
            [item.delivery for item in unsettled], _Settled.RELEASE if for_good else _Settled.REQUEUE
        )

    def may_continue(self) -> bool:
        """Return True: the queue checks each message, and reports when the client may no longer read it."""
        return True

    # --- Consumer

    def deliver(self, batch: list[tuple[Delivery, LogRecord]]) -> None:
        """Send messages."""
        refused = []
        for delivery, found in batch:
            expires = next((value for name, value in found.headers if name == EXPIRES and isinstance(value, int)), 0)
            qos = 0 if found.flags & Flag.PUBLISHED_QOS0 else 1
            message = Message(found.topic, found.payload, qos, expires_ns=expires, headers=found.headers)
            item = Item(message, delivery.attempts, delivery=delivery, is_redelivered=delivery.redelivered)
            if not self._link.send(item):
                refused.append(delivery)
        if refused and not self._is_settled:  # later: the queue must not be called within this method
            self._call_soon(lambda: self._queues.settling.settle(refused, _Settled.REJECT))
        if self.is_idle:
            self._link.idle()
        self._link.flush()

    def cancelled(self, error: QueueError) -> None:
        """Close the link: its queue was deleted, or the client may no longer read it."""
        self._consumption = None
        is_forbidden = error.reason is Reason.ACCESS_REFUSED
        self._gone(str(error), "amqp:unauthorized-access" if is_forbidden else "amqp:resource-deleted")


# Queues as targets of AMQP 1.0 clients: by the default exchange, whose routing key is the name of a queue.

_CONDITIONS = {
    Reason.NOT_FOUND: "amqp:not-found",
    Reason.ACCESS_REFUSED: "amqp:unauthorized-access",
    Reason.RESOURCE_LOCKED: "amqp:resource-locked",
    Reason.TOO_MANY: "amqp:resource-limit-exceeded",
    Reason.NO_ROOM: "amqp:resource-limit-exceeded",
    Reason.PRECONDITION_FAILED: "amqp:precondition-failed",
}


def refused_by_queue(error: QueueError) -> Refused:
    """Return a refusal of queues in the form of AMQP 1.0."""
    return Refused(_CONDITIONS.get(error.reason, "amqp:not-allowed"), str(error))


def check_queue(queues: Queues | None, client: QueueClient, name: str) -> None:
    """Check that there is a queue that the client may send to.

    Raises:
        Refused: there is none, or access rules give the client no right to it.
    """
    if queues is None:
        raise Refused("amqp:not-found", f"there is no queue {name[:80]!r}")
    try:
        queues.declarations.find_queue(client, name)
    except QueueError as error:
        raise refused_by_queue(error) from None


def route_to_queue(
    queues: Queues | None, client: QueueClient, name: str, headers: HeaderPairs, size: int
) -> tuple[Route, bytes, HeaderPairs]:
    """Return route, topic and headers of a message for a queue.

    Raises:
        Refused: there is no such queue, it is full, or the client may not publish there.
    """
    if queues is None:
        raise Refused("amqp:not-found", f"there is no queue {name[:80]!r}")
    try:
        found = queues.publishing.route(client, "", name, headers, size)
    except QueueError as error:
        raise refused_by_queue(error) from None
    if found.is_rejected:
        raise Refused("amqp:resource-limit-exceeded", f"queue {name[:80]!r} is full")
    if found.route is None or found.route.queues is None:
        raise Refused("amqp:not-found", f"there is no queue {name[:80]!r}")
    return found.route, found.topic, (*found.headers, *headers)


# Messages of a stream for one link, read from the log: from now on, or from an offset or a time.

FETCHED_MAX = 64
"""Number of messages read at a time that a former link did not settle."""
RETRY_S = 1.0
"""Wait after a failed read of the disk."""

log = logging.getLogger(__name__)


class StreamReading(NamedTuple):
    """Access of one client to the log."""

    log: SegmentLog
    readers: LogReaders
    pages: PageReader
    identity: Identity
    owner: Owner
    """Owner in whose turns the log is read."""
    client: str
    """The client's name, for log lines."""


class Beginning(NamedTuple):
    """Point from which a stream is sent."""

    position: int
    """First unsent seq."""
    find: Callable[[], int] | None = None
    """Function that finds the position, in a thread, before the first message is sent."""
    owed: Sequence[int] = ()
    """Numbers of earlier messages that are sent first: a former connection did not settle them."""
    doubtful: int = 0
    """Number below which messages may have been sent before a crash: they are marked as redelivered."""


class StreamSupply:
    """The ``Supply`` of a stream's link. Belongs to the event loop's thread."""

    def __init__(  # noqa: PLR0917
        self,
        link: Outlet,
        reading: StreamReading,
        name: str,
        stream: int,
        beginning: Beginning,
        on_done: Callable[[], None] = lambda: None,
        on_stop: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Wait for ``start``.

        Args:
            name: the clients' name of the stream.
            stream: its number in the log.
            on_done: called each time that messages were settled.
            on_stop: called at the end, with whether the client will not resume the link.
        """
        readers = reading.readers
        self._link = link
        self._name = name
        self._stream = stream
        self._identity = reading.identity
        self._log = reading.log
        self._read_page, self._fetch, self._turn = (
            readers.read_page,
            readers.backlog.fetch,
            readers.turn_of(reading.owner),
        )
        self._pages = reading.pages
        self._client = reading.client
        self._again: deque[Item] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_reported_loss = False
        self.position = beginning.position
        """First unsent seq."""
        self._owed = list(beginning.owed)
        self._doubtful = beginning.doubtful
        self._find = beginning.find
        self._on_done = on_done
        self._on_stop = on_stop
        self.is_idle = False

    # --- Supply

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def room(self) -> None:
        """Resume sending: there may be room again."""
        self._wake.set()

    def again(self, item: Item) -> None:
        """Send a message once more, before any newer one."""
        self._again.append(item)
        self._wake.set()

    def done(self, item: Item, outcome: Outcome) -> None:  # noqa: ARG002 - a stream keeps no dead letters
        """Note that a message was settled."""
        self._on_done()

    def stop(self, unsettled: list[Item], *, for_good: bool) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()
        self._owed = sorted({*self._owed, *(item.message.seq for item in (*unsettled, *self._again))})
        self._again.clear()
        self._on_stop(for_good)

    def may_continue(self) -> bool:
        """Return True: each topic is checked when it is read."""
        return True

    def not_settled(self) -> list[int]:
        """Return the numbers of messages before the position that the client has not settled."""
        return sorted({*self._owed, *(item.message.seq for item in (*self._link.unsettled, *self._again))})

    # --- reading

    async def _run(self) -> None:
        while True:
            try:
                if self._find is not None:
                    self.position = await asyncio.to_thread(self._find)
                    self._find = None
                await self._send_owed()
                while True:
                    await self._pass()
            except (OSError, LogFailed) as error:
                log.warning("could not read stream %s for %s: %s; trying again", self._name, self._client, error)
                await asyncio.sleep(RETRY_S)

    async def _send_owed(self) -> None:
        while self._owed:
            seqs = self._owed[:FETCHED_MAX]
            found = await self._fetch(self._stream, seqs)
            for seq in seqs:
                await self._room()
                self._owed.remove(seq)
                record = found.get(seq)
                if record is not None and self._may_read(record.topic):
                    self._send(self._item(record, attempts=1))
            self._link.flush()

    async def _pass(self) -> None:
        while self._again:
            await self._room()
            self._send(self._again.popleft())
        await self._turn()
        page = await self._read_page(self._stream, self.position, self._may_read, self._turn)
        if page.lost:
            self._lost(page.lost)
        if page.next_seq == self.position:
            await self._more()
            return
        for record in page.records:
            await self._room()
            self.position = record.seq + 1
            self._send(self._item(record, attempts=int(record.seq < self._doubtful)))
        self.position = max(self.position, page.next_seq)
        self._link.flush()

    async def _room(self) -> None:
        """Return once one more message can be sent."""
        while not self._link.has_room:
            self._link.flush()
            self._wake.clear()
            await self._wake.wait()

    async def _more(self) -> None:
        """Return once there is more to send."""
        self.is_idle = True
        self._link.idle()
        self._link.flush()
        self._wake.clear()
        waiting = asyncio.ensure_future(self._pages.more(self._stream, self.position))
        waiting.add_done_callback(lambda _: self._wake.set())
        try:
            while not waiting.done() and not self._again:
                await self._wake.wait()
                self._wake.clear()
            if waiting.done():
                waiting.result()
        finally:
            self.is_idle = False
            waiting.cancel()

    def _send(self, item: Item) -> None:
        if not self._link.send(item):
            self._on_done()

    def _may_read(self, topic: bytes) -> bool:
        return self._identity.unrestricted or self._identity.may_read(topic)

    def _item(self, record: LogRecord, attempts: int) -> Item:
        expires = next((value for name, value in record.headers if name == EXPIRES and isinstance(value, int)), 0)
        qos = 0 if record.flags & Flag.PUBLISHED_QOS0 else 1
        message = Message(
            record.topic,
            record.payload,
            qos,
            expires_ns=expires,
            stream=self._stream,
            seq=record.seq,
            headers=record.headers,
        )
        return Item(message, attempts, (self._name, record.seq))

    def _lost(self, count: int) -> None:
        if not self._has_reported_loss:
            self._has_reported_loss = True
            log.warning(
                "%s reads stream %s: the log has deleted %d records before it read them",
                self._client,
                self._name,
                count,
            )


def first_since(segment_log: SegmentLog, stream: int, time_ns: int) -> int:
    """Return the first seq of a stream that was stored at a time or later. Blocks on the disk.

    With a clock that was set back, older records with later times may be missed.

    Raises:
        OSError, LogFailed: the log cannot be read.
    """
    end = segment_log.durable_end(stream)
    held = list(segment_log.ranges(stream))
    low, high = (held[0][0] if held else end), end
    before: bytes | None = None
    while low < high:
        middle = (low + high) // 2
        batches = segment_log.read(stream, middle, 1)
        if not batches or (header := decode_header(batches[0])).base_seq >= high:
            high = middle
        elif header.first_time >= time_ns:
            high = min(header.base_seq, middle)
        else:
            low, before = header.end_seq, batches[0]
    if before is not None:
        for record in records(before):
            if record.time >= time_ns:
                return record.seq
    return low


# Messages of a topic address for one link: a subscription, whose messages come live while the link keeps up with
# them, and from the log otherwise.

QUEUE_MAX = 4096
"""Messages that wait in memory for one link; beyond it they are read from the log again."""
LONG_BYTES = 64 << 10
"""Size from which a live message is sent in the client's turn."""


class TopicSubscription:
    """The ``Subscriber`` of one link, and the ``Reader`` of its ``CatchUp``. It outlives the link if that is kept."""

    def __init__(  # noqa: PLR0917
        self,
        name: str,
        topic_filter: str,
        identity: Identity,
        subscriptions: Subscriptions,
        readers: LogReaders,
        outbox: Outbox,
        counters: Counters,
        account: QueueAccount,
        *,
        persistent: bool,
    ) -> None:
        """Prepare to subscribe with ``begin``.

        Args:
            name: of the link, for log lines.
            account: account for waiting messages.
            persistent: True if it gets messages later that it misses while its link is detached.
        """
        self.client_id = name
        self.persistent = persistent
        self.filter = topic_filter
        self.identity = identity
        self._subscriptions = subscriptions
        self._readers = readers
        self._outbox = outbox
        self._counters = counters
        self._account = account
        self._subscription = ClientSubscription(self, topic_filter, Subscription(topic_filter, 1), None)
        self._link: Outlet | None = None
        self._again: deque[Item] = deque()
        self._queue: deque[Message] = deque()
        self._queued_bytes = 0
        self._catch_up: CatchUp | None = None
        self._keeps_live = True
        """True if live messages wait in the queue, False while all are read from the log."""
        self._is_noted = False
        self._has_reported_loss = False
        self._wake = asyncio.Event()
        self._owed: list[tuple[int, int]] = []
        self._owed_task: asyncio.Task[None] | None = None
        self._positions: Positions = {}
        """Positions at which it resumes, while the link is detached."""
        self.doubtful: Positions = {}
        """Stream -> number below which messages may have been sent before a crash."""
        self.on_done: Callable[[], None] = lambda: None
        """Called each time that messages were settled."""
        self.on_stop: Callable[[bool], None] = lambda _: None
        """Called when the link is gone."""

    # --- the life of a subscription

    def begin(self) -> None:
        """Subscribe."""
        self._subscriptions.add(self._subscription)

    def finish(self) -> None:
        """Unsubscribe."""
        self._subscriptions.remove(self._subscription)

    def attach(self, link: Outlet, identity: Identity) -> None:
        """Send to a link from now on."""
        self._link = link
        self.identity = identity
        link.supply = self
        self._subscriptions.changed()  # another identity may read other topics

    def resume(self, positions: Positions, owed: list[tuple[int, int]]) -> None:
        """Resume at the position of a former link. Call it before the link begins.

        Args:
            positions: stream -> first unsent seq.
            owed: (stream, seq) of unsettled messages.
        """
        self._positions, self._owed = dict(positions), list(owed)
        self._keeps_live = False

    @property
    def positions(self) -> Positions:
        """Return for each stream the first unsent seq."""
        if self._link is None or self._positions:
            return dict(self._positions)
        if self._catch_up is not None:
            return lowered(self._catch_up.positions, ((each.stream, each.seq) for each in _stored(self._queue)))
        return lowered(self._readers.ends(), ((each.stream, each.seq) for each in _stored(self._queue)))

    @property
    def owed(self) -> list[tuple[int, int]]:
        """Return (stream, seq) of unsettled messages."""
        items = [*self._again, *(self._link.unsettled if self._link is not None else ())]
        sent = _stored(item.message for item in items if item.is_kept)
        return sorted({*self._owed, *((each.stream, each.seq) for each in sent)})

    # --- Supply

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to send now."""
        return not self._again and not self._queue and self._catch_up is None and self._owed_task is None

    def start(self) -> None:
        """Begin to send."""
        if self._owed or self._positions:
            self._owed_task = asyncio.get_running_loop().create_task(self._send_owed())

    def room(self) -> None:
        """Send waiting messages; there may be room again."""
        link = self._link
        if link is None:
            return
        self._wake.set()
        while self._again and link.has_room:
            self._send(self._again.popleft())
        while self._catch_up is None and self._queue and not self._again and link.has_room:
            message = self._queue.popleft()
            self._queued_bytes -= _size(message)
            self._account.free(_size(message))
            self._send(Item(message))
        if self._catch_up is not None and link.has_room:
            self._catch_up.room()

    def again(self, item: Item) -> None:
        """Send a message once more, before any newer one."""
        self._again.append(item)

    def done(self, item: Item, outcome: Outcome) -> None:  # noqa: ARG002 - a subscription keeps no dead letters
        """Note that a message was settled."""
        self.on_done()

    def stop(self, unsettled: list[Item], *, for_good: bool) -> None:
        """Stop sending: the link is gone."""
        self._again.extendleft(reversed([item for item in unsettled if item.is_kept]))
        positions, owed = self.positions, self.owed
        self._link = None
        if self._owed_task is not None:
            self._owed_task.cancel()
            self._owed_task = None
        if self._catch_up is not None:
            self._catch_up.stop()
            self._catch_up = None
        self._set_aside()
        self._again.clear()
        self.resume(positions, owed)
        self.on_stop(for_good)

    def may_continue(self) -> bool:
        """Return whether the client may still subscribe to the filter."""
        return self.identity.unrestricted or self.identity.may_subscribe(self.filter)

    # --- Subscriber

    def may_read(self, topic: bytes) -> bool:
        """Return whether access rules let it read messages of a topic."""
        return self.identity.unrestricted or self.identity.may_read(topic)

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:  # noqa: ARG002
        """Deliver a message now, or later, or from the log."""
        if self._link is None or not self._keeps_live:
            if message.stream == NOWHERE:
                self._counters.deliveries_dropped += 1
            elif self._catch_up is not None:
                self._catch_up.cover((message,))
            return
        is_first = self._catch_up is None and not self._queue and not self._again
        if is_first and self._link.has_room:
            self._send_live(Item(message))
        elif len(self._queue) < QUEUE_MAX and self._account.fits(_size(message)):
            self._queue.append(message)
            self._queued_bytes += _size(message)
            self._account.take(_size(message))
        elif message.stream == NOWHERE:
            self._counters.deliveries_dropped += 1
        else:
            self._fall_behind(message)

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:  # noqa: ARG002
        """Deliver a message that was published at QoS 0, or drop it."""
        link = self._link
        if link is not None and self.is_idle and link.has_room:
            self._send_live(Item(message, is_kept=False))
        else:
            self._counters.deliveries_dropped += 1

    # --- Reader

    @property
    def name(self) -> str:
        """Return the link's name for log lines."""
        return f"AMQP 1.0 link {self.client_id!r}"

    @property
    def owner(self) -> Owner | None:
        """Return the owner that waiting messages are charged to."""
        return self._account.owner

    @property
    def has_room(self) -> bool:
        """Return whether one more message can be sent at once."""
        return self._link is not None and not self._again and self._link.has_room

    def wants(self, topic: bytes) -> bool:
        """Return whether the link gets messages of a topic."""
        return matches(self.filter, topic.decode()) and self.may_read(topic)

    def read(self, stream: int, record: LogRecord) -> None:
        """Send a message that was read; there is room."""
        message = self._readers.messages.read(stream, record)
        if message is not None:
            attempts = int(record.seq < self.doubtful.get(stream, 0))
            self._send(Item(message, attempts))
            self._outbox.flush()  # nothing else flushes before the client sends data

    def lost(self, count: int) -> None:
        """Count records that the log no longer had; a log line reports the first."""
        self._counters.deliveries_lost += count
        if not self._has_reported_loss:
            self._has_reported_loss = True
            log.warning("%s is too slow: the log has deleted %d records before it read them", self.name, count)

    def joining(self) -> None:
        """Keep live messages in the queue from now on."""
        self._keeps_live = True

    def live(self) -> None:
        """Send the messages queued meanwhile, and then live ones."""
        self._catch_up = None
        self.room()
        if self._link is not None and self.is_idle:
            self._link.idle()
        self._note()
        self._outbox.flush()

    # --- inside

    def _fall_behind(self, first: Message) -> None:
        self._counters.sessions_behind += 1
        waited = self._set_aside()
        if self._catch_up is not None:
            self._catch_up.cover((*waited, first))
            self._catch_up.fall_back()
            self._keeps_live = False
            return
        ends = self._readers.ends()

        def find() -> Positions:
            stored = _stored([*waited, first])
            self._counters.deliveries_dropped += len(waited) + 1 - len(stored)
            return lowered(ends, ((each.stream, each.seq) for each in stored))

        self._read_from(find)

    def _read_from(self, find: Callable[[], Positions]) -> None:
        self._keeps_live = False
        self._catch_up = self._readers.catch_up(self, find)
        self._catch_up.start()

    def _set_aside(self) -> deque[Message]:
        """Remove all waiting messages without inspecting them, and return them."""
        waited, self._queue = self._queue, deque()
        self._account.free(self._queued_bytes)
        self._queued_bytes = 0
        return waited

    async def _send_owed(self) -> None:
        """Send first the messages that a former link did not settle, then resume reading at its position."""
        while self._owed:
            stream = self._owed[0][0]
            seqs = [seq for of, seq in self._owed[:FETCHED_MAX] if of == stream]
            try:
                found = await self._readers.backlog.fetch(stream, seqs)
            except (OSError, LogFailed) as error:
                log.warning("could not read what %s did not settle: %s; trying again", self.name, error)
                await asyncio.sleep(RETRY_S)
                continue
            for seq in seqs:
                await self._has_room_again()
                self._owed.remove((stream, seq))
                record = found.get(seq)
                if record is not None and self.wants(record.topic):
                    message = self._readers.messages.read_again(stream, record)
                    if message is not None:
                        self._send(Item(message, 1))
            self._outbox.flush()
        positions, self._positions = self._positions, {}
        self._owed_task = None
        self._read_from(lambda: positions)

    async def _has_room_again(self) -> None:
        while self._link is not None and not self._link.has_room:
            self._outbox.flush()
            self._wake.clear()
            await self._wake.wait()

    def _send_live(self, item: Item) -> None:
        if item.size <= LONG_BYTES or self._link is None:
            self._send(item)
            return
        self._again.append(item)  # the engine copies it, which would make a step with hundreds of such links too long
        self._link.room_in_turn()

    def _send(self, item: Item) -> None:
        if self._link is not None:
            self._link.send(item)
            self._note()

    def _note(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            self._outbox.add(self._flush)

    def _flush(self) -> None:
        self._is_noted = False
        if self._link is not None:
            self._link.flush()


def _stored(messages: Iterable[Message]) -> list[Message]:
    return [each for each in messages if each.stream != NOWHERE]


def _size(message: Message) -> int:
    return len(message.payload) + message.header_bytes + MESSAGE_OVERHEAD_BYTES
