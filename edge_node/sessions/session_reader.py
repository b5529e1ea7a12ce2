"""Reader of the log for one session; it selects the messages that the client gets."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from weft.bounds import Owner
from weft.edge_node.counters import Counters
from weft.edge_node.sessions.stored_messages import StoredMessages
from weft.edge_node.sessions.window.client_window import ClientWindow
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import PUBLISHER
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.own_filters import OwnFilters
from weft.edge_node.subscriptions.subscriber import ClientSubscription, DeliveryOptions, delivery_options
from weft.edge_node.subscriptions.subscriptions import Subscriptions

log = logging.getLogger(__name__)


class SessionReader:
    """The ``Reader`` of one session's ``CatchUp``."""

    def __init__(  # noqa: PLR0917
        self,
        window: ClientWindow,
        subscriptions: Subscriptions,
        messages: StoredMessages,
        outbox: Outbox,
        counters: Counters,
        done: set[tuple[int, int]],
        doubtful: Mapping[int, int],
    ) -> None:
        """Read for a client.

        Args:
            done: (stream, seq) of messages that the client has, although a restart left them to be read.
            doubtful: stream -> the first seq after a crash. The client was connected in the crash and may have received
                earlier messages without a journal entry: these are sent with DUP.
        """
        self._window = window
        self._messages = messages
        self._outbox = outbox
        self._counters = counters
        self._doubtful = doubtful
        # The client gets messages by its own subscriptions even if it got them as a member of a shared one.
        self._done = done | {
            (message.stream, message.seq)
            for message, options, _ in window.in_flight.deliveries.values()
            if options.share is None
        }
        self._own = OwnFilters(window, window.subscribed, subscriptions)
        self._told_of_loss = False
        self._newer: dict[ClientSubscription, dict[int, int]] = {}
        """Subscriptions made while the session was behind -> stream -> their first seq."""

    @property
    def done(self) -> set[tuple[int, int]]:
        """Return (stream, seq) of messages that are not sent again when they are read.

        The client has them, or they were in flight when the session fell behind.
        """
        return set(self._done)

    @property
    def name(self) -> str:
        """Return the client's name for log lines."""
        return f"MQTT client {self._window.client_id!r}"

    @property
    def owner(self) -> Owner | None:
        """Return the client's owner."""
        return self._window.owner

    @property
    def has_room(self) -> bool:
        """Return whether one more message can be sent at once."""
        return self._window.window_open

    def began(self, subscription: ClientSubscription, ends: dict[int, int]) -> None:
        """Add a subscription that gets nothing published before these ends of the streams."""
        self._newer[subscription] = ends

    def wants(self, topic: bytes) -> bool:
        """Return whether the client is subscribed at QoS 1 or 2."""
        options = self._own.options(topic)
        return options is not None and options.qos > 0

    def read(self, stream: int, record: LogRecord) -> None:
        """Send a message that was read; there is room."""
        if (stream, record.seq) in self._done:
            self._done.discard((stream, record.seq))
            return
        options = self._options(stream, record)
        message = self._messages.read(stream, record) if options is not None else None
        if options is None or message is None:
            return
        qos = min(message.qos, options.qos)
        if qos:
            dup = qos == 1 and record.seq < self._doubtful.get(stream, 0)  # [MQTT-3.3.1-1]
            self._window.send(message, options, qos, dup=dup)
            self._outbox.flush()

    def lost(self, count: int) -> None:
        """Count records that the log no longer had; a log line reports the first."""
        self._counters.deliveries_lost += count
        if not self._told_of_loss:
            self._told_of_loss = True
            log.warning("%s is too slow: the log has deleted %d records before it read them", self.name, count)

    def joining(self) -> None:
        """Keep live messages in the queue from now on."""
        self._window.joining()

    def live(self) -> None:
        """Send the messages queued meanwhile, and then live ones."""
        self._window.level()
        self._outbox.flush()

    def _options(self, stream: int, record: LogRecord) -> DeliveryOptions | None:
        options = self._own.options(record.topic)
        if options is None or (options.no_local and (PUBLISHER, self._window.client_id) in record.headers):
            return None
        late = [each for each, ends in self._newer.items() if record.seq < ends.get(stream, 0)]
        if not late:
            return options
        matching = [each for each in self._own.matching(record.topic) if each not in late]
        return delivery_options(matching) if matching else None
