"""Records of the log as messages for sessions, and retained messages as records."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.streams import SESSION_TOPICS_STREAM
from weft.edge_node.subscriptions.log_records import LogRecord
from weft.edge_node.subscriptions.message import RECIPIENT, Message
from weft.edge_node.subscriptions.message_headers import TooManyProperties, from_headers, to_headers
from weft.edge_node.subscriptions.subscriber import Subscriber
from weft.protocols.batch import Flag
from weft.protocols.message_headers import EXPIRES
from weft.storage.segment_log import LogError, SegmentLog


class StoredMessages:
    """Converter of records to messages, and of retained messages to records. Belongs to the event loop's thread."""

    def __init__(
        self, segment_log: SegmentLog, ingest: Ingest, wall_clock: Callable[[], int], counters: Counters
    ) -> None:
        self._log = segment_log
        self._ingest = ingest
        self._counters = counters
        self._topics = segment_log.stream(SESSION_TOPICS_STREAM)
        self._wall_clock = wall_clock

    def read(self, stream: int, record: LogRecord) -> Message | None:
        """Return a record as a message.

        None when it was published at QoS 0, has expired, or is read in another stream, or is a retained message that
        was sent to one session alone.
        """
        if record.flags & Flag.PUBLISHED_QOS0 or is_retained_copy(record):
            return None
        if (
            stream in self._ingest.routing.unrouted.streams
        ):  # other streams that match the topic now did not when it was stored
            return None if record.flags & Flag.COPIED_FOR_SESSIONS else self.read_again(stream, record)
        route = self._ingest.routing.route(record.topic)
        if route.streams and route.streams[0] != stream and stream in route.streams:
            return None
        return self.read_again(stream, record)

    def read_again(self, stream: int, record: LogRecord) -> Message | None:
        """Return a message that was already sent; None when it has expired."""
        properties, expires_ns = from_headers(record.headers)
        message = Message(
            record.topic, record.payload, 2 if record.flags & Flag.PUBLISHED_QOS2 else 1,
            bool(record.flags & Flag.RETAINED), properties, expires_ns, stream, record.seq, record.headers,
        )  # fmt: skip
        if message.expired(self._wall_clock()):
            self._counters.messages_expired += 1
            return None
        return message

    def keep_retained(self, subscriber: Subscriber, message: Message) -> Message:
        """Store a retained message in the log while it is in flight to a client: its topic may have another one soon.

        Returns:
            The message with its place in the log; unchanged when the session ends with its connection, or when the log
                has no room: then a restart loses the delivery.
        """
        if not subscriber.persistent:
            return message
        now, expires = self._wall_clock(), ((EXPIRES, message.expires_ns),) if message.expires_ns else ()
        flags = Flag.RETAINED | (Flag.PUBLISHED_QOS2 if message.qos == 2 else Flag(0))
        try:
            headers = (*to_headers(message.properties, now), *expires, (RECIPIENT, subscriber.client_id))
            seq = self._log.append(
                self._topics, now, [message.topic], [message.payload], {0: headers}, {0: int(flags)}
            )  # fmt: skip
        except (LogError, TooManyProperties):
            return message
        self._ingest.back_pressure.appended()
        return msgspec.structs.replace(message, stream=self._topics, seq=seq)


def is_retained_copy(record: LogRecord) -> bool:
    """Return whether this is a copy of a retained message on its way to one session, not a publish."""
    return any(name == RECIPIENT for name, _ in record.headers)
