"""Live delivery: what is published now, to who is there and keeps up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.client_window import Outbound
from weft.edge_node.sessions.packets_out import OWN, shared_parts
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.message_headers import from_headers
from weft.edge_node.subscriptions.subscriptions import Grant, Subscriptions
from weft.protocols.batch import Flag, HeaderPairs

# As plain integers: an IntFlag's arithmetic costs more than the rest of a message's turn.
_QOS0, _QOS2, _RETAINED = int(Flag.PUBLISHED_QOS0), int(Flag.PUBLISHED_QOS2), int(Flag.RETAINED)


class FanOut:
    """Delivers runs of messages. Nothing here waits: what a client has no room for is dropped, or read again later."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        touched: list[Outbound],
        flush: Callable[[], None],
        counters: Counters,
    ) -> None:
        """Join subscriptions and the list of clients that have something to be written, which ``flush`` empties."""
        self._subscriptions = subscriptions
        self.touched = touched
        self._flush = flush
        self._counters = counters

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
        """Deliver one record. ``flush`` follows once more of them have been.

        Args:
            flags: ``Flag`` bits, which say the QoS too.
            headers: empty for a message without properties.
            publisher: client identifier, for subscriptions that do not want their own messages.
            stream: where the record is at ``seq``; ``message.NOWHERE`` if the log does not have it.
        """
        subscriptions = self._subscriptions
        plan = subscriptions.plans.get(topic) or subscriptions.plan(topic)
        qos = 1 if not flags else 0 if flags & _QOS0 else 2 if flags & _QOS2 else 1
        message = Message(topic, payload, qos, stream=stream, seq=seq)
        if flags & _RETAINED:
            message.retain = True
        if headers:
            message.properties, message.expires_ns = from_headers(headers)
        if plan.grants:
            self._deliver(message, plan.grants, publisher)
        for group in plan.groups:
            group.offer(message)

    def message(self, message: Message, publisher: str | None = None) -> None:
        """Deliver one message."""
        plan = self._subscriptions.plan(message.topic)
        self._deliver(message, plan.grants, publisher)
        for group in plan.groups:
            group.offer(message)
        self.flush()

    def flush(self) -> None:
        """Write what was gathered for each client, in one go."""
        self._flush()

    def _deliver(self, message: Message, grants: Sequence[Grant], publisher: str | None) -> None:
        # The inner loop of fan-out: a hundred subscribers are a hundred turns for every message.
        qos, plain, touched = message.qos, message.plain, self.touched
        sent = dropped = 0
        for grant in grants:
            outbound = grant.outbound
            if grant.no_local and outbound.client_id == publisher:
                continue  # [MQTT-3.8.3-3]
            granted = qos if qos < grant.qos else grant.qos
            if granted:
                outbound.offer(message, grant, granted)
            elif not outbound.live:
                dropped += 1
            elif plain and grant.kind != OWN:
                if not outbound.out:
                    touched.append(outbound)
                outbound.out.append(shared_parts(message, 0, grant.kind)[0])
                sent += 1
            else:
                outbound.send_at_most_once(message, grant)
        self._counters.deliveries_sent += sent
        self._counters.deliveries_dropped += dropped
