"""Messages of a topic address for one link: a subscription, whose messages come live while the link keeps up with them,
and from the log otherwise."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.counters import Counters
from weft.edge_node.servers.amqp1.items import Item, Outcome, Outlet
from weft.edge_node.sessions.log_readers import LogReaders
from weft.edge_node.subscriptions.catch_up import CatchUp
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.positions import Positions, lowered
from weft.edge_node.subscriptions.queue_budget import MESSAGE_OVERHEAD_BYTES, QueueAccount
from weft.edge_node.subscriptions.subscriber import ClientSubscription, DeliveryOptions
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.topics import matches
from weft.storage.segment_log import LogFailed

log = logging.getLogger(__name__)

QUEUE_MAX = 4096
"""Messages that wait in memory for one link; beyond it they are read from the log again."""
LONG_BYTES = 64 << 10
"""Size from which a live message is sent in the client's turn."""
FETCHED_MAX = 64
"""Number of messages read at a time that a former link did not settle."""
RETRY_S = 1.0
"""Wait after a failed read of the disk."""


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
        self._told_of_loss = False
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

    def may_go_on(self) -> bool:
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
        if not self._told_of_loss:
            self._told_of_loss = True
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
                found = await self._readers.fetch(stream, seqs)
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
