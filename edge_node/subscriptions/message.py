"""A message on its way to subscribers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from weft.bounds import FAN_OUT_MAX, FanOutCap
from weft.protocols.batch import HEADER_PAIRS_MAX, RESERVED_HEADER_PREFIXES, HeaderPairs, HeaderValue, header_text
from weft.protocols.message_headers import CONTENT_TYPE, CORRELATION_ID, EXPIRES, REPLY_TO, USER, stored_name
from weft.protocols.mqtt.packets import NO_PROPERTIES, Properties

NOWHERE = 0
"""The stream of a message that the log does not have; the log counts its streams from 1."""
PUBLISHER = "mqtt.publisher"
"""Header with the client identifier of the publisher, where a persistent session has subscribed with No Local: its own
messages must be recognised when they are read from the log later (MQTT 5.0 section 3.8.3.1)."""
RECIPIENT = "mqtt.recipient"
"""Header with the client identifier of the only recipient of a retained message. It was sent because of a subscription,
and is in the log so that it can be sent again unchanged; no other client gets it."""
_SECOND_NS = 1_000_000_000


class Message(msgspec.Struct):
    """A message, shared by all its deliveries."""

    topic: bytes
    payload: bytes
    qos: int = 0
    """QoS of the publish."""
    retain: bool = False
    """RETAIN flag of the publish."""
    properties: Properties = NO_PROPERTIES
    """Without topic alias and message expiry: those belong to the publisher's connection, and to ``expires_ns``."""
    expires_ns: int = 0
    """Wall clock time, in nanoseconds, after which the message is not delivered; 0 for never (section 3.3.2.3.3)."""
    stream: int = NOWHERE
    seq: int = 0
    headers: HeaderPairs = ()
    """Headers of the record, with values of any type, for subscribers of protocols other than MQTT."""
    publisher: str | None = None
    """Client identifier of the publisher, or the name of a source."""
    is_repeat: bool = False
    """True if it may have come before: an MQTT client has sent it with DUP, or a source's broker sent it again."""
    packets: dict[int, bytes] | None = None
    """Kind of client -> the packet at QoS 0, encoded once for all of them (``sessions.window.packets_out``)."""
    parts: dict[int, tuple[bytes, bytes]] | None = None
    """QoS << 2 | kind of client -> the bytes before and after the packet identifier, also encoded once."""
    tail: tuple[bytes, int] | None = None
    """Properties and payload of its packets in MQTT 5, also encoded once, and the length of those properties."""

    @property
    def plain(self) -> bool:
        """Return whether the message's packets have nothing but topic and payload."""
        return self.properties is NO_PROPERTIES and not self.expires_ns and not self.retain

    def expired(self, now_ns: int) -> bool:
        """Return whether the message must no longer be sent [MQTT-3.3.2-5]."""
        return bool(self.expires_ns) and now_ns >= self.expires_ns

    def seconds_left(self, now_ns: int) -> int | None:
        """Return the remaining time of the message, at least a second; None if it does not expire."""
        return max(1, -(-(self.expires_ns - now_ns) // _SECOND_NS)) if self.expires_ns else None

    @property
    def header_bytes(self) -> int:
        """Return the approximate length of names and values of its headers."""
        return sum(len(name) + (len(value) if isinstance(value, str | bytes) else 8) for name, value in self.headers)


def split_expiry(properties: Properties, now_ns: int) -> tuple[Properties, int]:
    """Split a publish's properties into those of ``Message`` and the time of its expiry."""
    interval = properties.message_expiry_interval
    if interval is None and properties.topic_alias is None:
        return properties, 0
    kept = msgspec.structs.replace(properties, message_expiry_interval=None, topic_alias=None)
    expires_ns = 0 if interval is None else now_ns + max(interval * _SECOND_NS, 1)
    return (NO_PROPERTIES if kept == NO_PROPERTIES else kept), expires_ns


# Conversion of an MQTT 5.0 message's properties to headers of its record, and back.
#
# User properties keep their names; one whose name begins with a prefix of Weft's own (``RESERVED_HEADER_PREFIXES``)
# is stored as ``weft.user.<name>`` and goes out under its own name. The other properties have reserved names:
#
#     weft.content-type     text (section 3.3.2.3.9)
#     weft.reply-to         text: the response topic (3.3.2.3.5)
#     weft.correlation-id   bytes (3.3.2.3.6); text and integers, which other protocols have, go out as text
#     weft.expires          nanoseconds since 1970 after which no client gets it (3.3.2.3.3)
#     mqtt.payload-format   0 or 1 (3.3.2.3.2)
#
# MQTT has only text in user properties: values of other types, which other protocols have, go out as text.
#
# Topic alias and subscription identifiers belong to one connection and are not stored.

PAYLOAD_FORMAT = "mqtt.payload-format"

USER_PROPERTIES_MAX = HEADER_PAIRS_MAX - 6
"""Maximum number of user properties of one message: with the node's own headers a record has no room for more."""
_EXPIRES_NS_MAX = (1 << 63) - 1
_TEXT_BYTES_MAX = 65_535
"""Longest text of MQTT (1.5.4)."""


class TooManyProperties(ValueError):
    """A message has more user properties than a record has room for: refuse the message, because it cannot be
    stored."""


def to_headers(properties: Properties, now_ns: int) -> HeaderPairs:
    """Return the headers of a message that was published at ``now_ns``; empty if it has no properties.

    Raises:
        TooManyProperties: more than ``USER_PROPERTIES_MAX`` user properties.
    """
    if properties is NO_PROPERTIES:
        return ()
    user = properties.user_properties
    if len(user) > USER_PROPERTIES_MAX:
        raise TooManyProperties(f"{len(user)} user properties; a message may have {USER_PROPERTIES_MAX}")
    pairs: list[tuple[str, HeaderValue]] = [(stored_name(name), value) for name, value in user]
    if properties.content_type is not None:
        pairs.append((CONTENT_TYPE, properties.content_type))
    if properties.response_topic is not None:
        pairs.append((REPLY_TO, properties.response_topic))
    if properties.correlation_data is not None:
        pairs.append((CORRELATION_ID, properties.correlation_data))
    if properties.payload_format_indicator is not None:
        pairs.append((PAYLOAD_FORMAT, properties.payload_format_indicator))
    if properties.message_expiry_interval is not None:
        pairs.append((EXPIRES, min(now_ns + properties.message_expiry_interval * _SECOND_NS, _EXPIRES_NS_MAX)))
    return tuple(pairs)


def from_headers(headers: HeaderPairs) -> tuple[Properties, int]:
    """Return the properties of a stored message without its expiry, and the time at which it expires.

    Unknown reserved names (of a later release), and values that do not fit them (in a record of another protocol), are
    skipped.

    Returns:
        ``NO_PROPERTIES`` when there are none; nanoseconds since 1970, 0 for a message that never expires.
    """
    if not headers:
        return NO_PROPERTIES, 0
    user: list[tuple[str, str]] = []
    fields: dict[str, Any] = {}
    expires_ns = 0
    for name, value in headers:
        if not name.startswith(RESERVED_HEADER_PREFIXES) or name.startswith(USER):
            text = value if type(value) is str else _as_text(value)
            if text is not None:
                user.append((name.removeprefix(USER), text))
        elif name == CONTENT_TYPE and isinstance(value, str):
            fields["content_type"] = value
        elif name == REPLY_TO and isinstance(value, str):
            fields["response_topic"] = value
        elif name == CORRELATION_ID and isinstance(value, bytes | str | int) and not isinstance(value, bool):
            fields["correlation_data"] = value if isinstance(value, bytes) else str(value).encode()
        elif name == PAYLOAD_FORMAT and type(value) is int and value in (0, 1):
            fields["payload_format_indicator"] = value
        elif name == EXPIRES and type(value) is int and value > 0:
            expires_ns = value
    if user:
        fields["user_properties"] = tuple(user)
    return (Properties(**fields) if fields else NO_PROPERTIES), expires_ns


def _as_text(value: HeaderValue) -> str | None:
    """Return the value of a user property; None for a value whose text is too long for MQTT."""
    text = header_text(value) or ""
    return text if len(text) <= _TEXT_BYTES_MAX else None


# Stored messages, read page by page for subscribers that fell behind.


class LogRecord(NamedTuple):
    """A stored message."""

    seq: int
    """Number in its stream."""
    topic: bytes
    payload: bytes
    flags: int
    """``protocols.batch.Flag`` bits."""
    headers: HeaderPairs
    """Headers as stored. They include the node's own (``weft.queues``): skip unknown ones."""
    time: int = 0
    """Nanoseconds since 1970."""


record_of: Callable[[tuple[int, bytes, bytes, int, HeaderPairs, int]], LogRecord] = partial(tuple.__new__, LogRecord)
"""Returns the record with these fields. For many records: a call of the class is one of a function in Python."""


class Page(NamedTuple):
    """A piece of one stream."""

    records: list[LogRecord]
    next_seq: int
    """First seq of the next page. It is past unwanted records and records that the log no longer has."""
    lost: int
    """Number of deleted records between the requested seq and ``next_seq``."""


Turn = Callable[[], Awaitable[None]]
"""Returns at a reader's turn."""
ReadPage = Callable[[int, int, Callable[[bytes], bool], Turn], Awaitable[Page]]
"""(stream, seq, wants, turn) -> the wanted durable records from ``seq`` on, a page of them; ``wants`` is called once
for each distinct topic. ``next_seq == seq`` only at the durable end. ``turn`` is awaited after a page was loaded:
thousands of readers may have waited for it. Raises OSError and LogFailed."""


# Positions of readers in the log: for each stream the first sequence number that a reader has not had.

Positions = dict[int, int]
"""Stream -> seq: everything before it was delivered, or is in flight."""


def lowered(positions: Mapping[int, int], missing: Iterable[tuple[int, int]]) -> Positions:
    """Return positions from which (stream, seq) that are missing are read, too."""
    found = dict(positions)
    for stream, seq in missing:
        found[stream] = min(seq, found.get(stream, seq))
    return found


def before(messages: Iterable[Message], ends: Mapping[int, int]) -> Positions:
    """Return the positions of a reader that has had everything up to the ends of the streams but these messages."""
    found = dict(ends)
    for each in messages:
        seq = each.seq
        if seq < found.get(each.stream, seq + 1):
            found[each.stream] = seq
    found.pop(NOWHERE, None)
    return found


# Clients with pending packets, gathered while a read is handled, so that each gets them in one write.


class Outbox:
    """Clients with a pending flush. Belongs to the event loop's thread."""

    __slots__ = ("_fan_out_cap", "_last", "_waiting")

    def __init__(self, fan_out_cap: FanOutCap) -> None:
        """Start without pending writes.

        Args:
            fan_out_cap: notified once so many clients were flushed in one call that the others' writes must wait.
        """
        self._fan_out_cap = fan_out_cap
        self._waiting: list[Callable[[], None]] = []
        self._last: Callable[[], None] | None = None

    def add(self, flush: Callable[[], None]) -> None:
        """Schedule a client's ``flush``. Add it only once until then."""
        self._waiting.append(flush)

    def add_last(self, callback: Callable[[], None]) -> None:
        """Call back once, after all clients are flushed: the only one that does so."""
        self._last = callback

    def flush(self) -> None:
        """Call the scheduled flushes, also those that a flush adds for other clients."""
        waiting = self._waiting
        if not waiting:
            return
        left = FAN_OUT_MAX
        try:
            while waiting:
                if not left:
                    self._fan_out_cap.is_reached = True
                left -= 1
                waiting.pop()()
        finally:
            self._fan_out_cap.is_reached = False
            if self._last is not None:
                last, self._last = self._last, None
                last()
