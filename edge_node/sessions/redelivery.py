"""Redelivery of messages in flight at a restart: read from the log, and sent again unchanged (MQTT 5.0 section 4.4)."""

from __future__ import annotations

import logging

from weft.edge_node.sessions.store.backlog import Backlog
from weft.edge_node.sessions.stored_messages import StoredMessages, is_retained_copy
from weft.edge_node.sessions.window.client_window import ClientWindow
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import NOWHERE
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.own_filters import OwnFilters
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.mqtt.reason_codes import ReasonCode
from weft.storage.segment_log import LogFailed

log = logging.getLogger(__name__)


class Redelivery:
    """Reader of the messages that restored windows have in flight."""

    def __init__(
        self, subscriptions: Subscriptions, messages: StoredMessages, backlog: Backlog, outbox: Outbox
    ) -> None:
        self._subscriptions = subscriptions
        self._messages = messages
        self._backlog = backlog
        self._outbox = outbox

    async def run(self, window: ClientWindow) -> None:
        """Read the messages that one client has in flight, and send them again. At most the in-flight window is in
        memory."""
        unread, own = window.in_flight.unread(), OwnFilters(window, window.subscribed, self._subscriptions)
        for stream in {stream for stream, _ in unread.values()} - {NOWHERE}:
            wanted = {packet_id: seq for packet_id, (of, seq) in unread.items() if of == stream}
            try:
                found = await self._backlog.fetch(stream, list(wanted.values()))
            except (OSError, LogFailed) as error:
                log.warning("could not read what MQTT client %r has in flight: %s", window.client_id, error)
                window.displace(ReasonCode.UNSPECIFIED_ERROR)
                return
            for packet_id, seq in wanted.items():
                if packet_id in window.in_flight.deliveries:
                    self._set_read(window, own, packet_id, stream, found.get(seq))
        window.pump()
        self._outbox.flush()

    def _set_read(
        self, window: ClientWindow, own: OwnFilters, packet_id: int, stream: int, record: LogRecord | None
    ) -> None:
        """Set the message of a delivery. Its flags and identifiers are those of the present subscriptions, which may
        have changed since it was sent."""
        message = self._messages.read_again(stream, record) if record is not None else None
        if record is None or message is None:
            window.in_flight.set_read(packet_id, None, ())
            return
        options = own.options(record.topic)
        message.retain &= is_retained_copy(record) or (options is not None and options.retain_as_published)
        window.in_flight.set_read(packet_id, message, options.identifiers if options is not None else ())
