"""Deliver published messages to connected subscribers that keep up."""

from __future__ import annotations

from collections.abc import Sequence

from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.message_headers import from_headers
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.subscriber import DeliveryOptions
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.batch import Flag, HeaderPairs

# As plain integers: an IntFlag's arithmetic costs more than the rest of a message's turn.
_QOS0, _QOS2, _RETAINED = int(Flag.PUBLISHED_QOS0), int(Flag.PUBLISHED_QOS2), int(Flag.RETAINED)


class FanOut:
    """Delivers runs of messages. Nothing here waits: messages without room at a client are dropped, or read from the
    log later."""

    def __init__(self, subscriptions: Subscriptions, outbox: Outbox) -> None:
        """Connect subscriptions and the clients with pending writes."""
        self._subscriptions = subscriptions
        self._outbox = outbox

    def deliver(  # noqa: PLR0917
        self,
        topic: bytes,
        payload: bytes,
        flags: int,
        headers: HeaderPairs,
        publisher: str | None,
        stream: int,
        seq: int,
    ) -> None:
        """Deliver one record. Call ``flush`` after a run of records.

        Args:
            flags: ``Flag`` bits, the QoS among them.
            headers: empty for a message without properties.
            publisher: client identifier, for subscriptions that do not want their own messages.
            stream: stream that has the record at ``seq``; ``message.NOWHERE`` if the log does not have it.
        """
        subscriptions = self._subscriptions
        recipients = subscriptions.known.get(topic) or subscriptions.recipients(topic)
        qos = 1 if not flags else 0 if flags & _QOS0 else 2 if flags & _QOS2 else 1
        message = Message(topic, payload, qos, stream=stream, seq=seq)
        if flags & _RETAINED:
            message.retain = True
        if headers:
            message.headers = headers
            message.properties, message.expires_ns = from_headers(headers)
        if recipients.clients:
            _deliver(message, recipients.clients, publisher)
        for shared in recipients.shared:
            shared.offer(message)

    def message(self, message: Message, publisher: str | None = None) -> None:
        """Deliver one message."""
        recipients = self._subscriptions.recipients(message.topic)
        _deliver(message, recipients.clients, publisher)
        for shared in recipients.shared:
            shared.offer(message)
        self._outbox.flush()

    def flush(self) -> None:
        """Write the gathered packets of each client at once."""
        self._outbox.flush()


def _deliver(message: Message, clients: Sequence[DeliveryOptions], publisher: str | None) -> None:
    # The inner loop of fan-out: a hundred subscribers mean a hundred iterations for every message. Each is one call,
    # which finds the encoded packet in the message (``packets_out.shared_parts``).
    qos = message.qos
    for options in clients:
        subscriber = options.subscriber
        if options.no_local and subscriber.client_id == publisher:
            continue  # [MQTT-3.8.3-3]
        granted = qos if qos < options.qos else options.qos
        if granted:
            subscriber.offer(message, options, granted)
        else:
            subscriber.send_at_most_once(message, options)
