"""What a restart has left in flight: read from the log, and sent again as it was (MQTT 5.0 section 4.4)."""

from __future__ import annotations

from collections.abc import Callable

from weft.edge_node.sessions.client_window import Outbound
from weft.edge_node.sessions.packets_out import OWN
from weft.edge_node.sessions.stored_messages import StoredMessages, is_retained_copy
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import Grant, Subscriptions


class InFlight:
    """One client's deliveries in flight, for ``SessionReader.fetch_inflight``."""

    def __init__(
        self, outbound: Outbound, subscriptions: Subscriptions, messages: StoredMessages, flush: Callable[[], None]
    ) -> None:
        self.counters = messages.counters
        self.subscriptions = subscriptions
        self.flush = flush
        self._outbound = outbound
        self._messages = messages
        self._grants: dict[tuple[int, int], Grant] = {
            (message.stream, message.seq): grant for message, grant, _ in outbound.inflight.values()
        }

    def message_of(self, stream: int, record: LogRecord) -> Message | None:
        """A record as the message that was sent. Its flags and identifiers are those of the subscriptions as they are
        now, which may have changed meanwhile."""
        message = self._messages.read_again(stream, record)
        if message is None:
            return None
        granted = self.subscriptions.plan(record.topic).grant_of(self._outbound)
        message.retain &= is_retained_copy(record) or (granted is not None and granted.retain_as_published)
        grant = self._grants.get((stream, record.seq))
        if grant is not None and granted is not None and granted.identifiers:
            grant.identifiers, grant.kind = granted.identifiers, OWN
        return message
