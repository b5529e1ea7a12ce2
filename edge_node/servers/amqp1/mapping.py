"""Messages of AMQP 1.0 as records of the log, and back (docs/reference/message-headers.md, docs/reference/amqp1.md)."""

from __future__ import annotations

import enum
from collections.abc import Container
from typing import Any, Final, NamedTuple
from uuid import UUID

from weft.bounds import Bound, Owner
from weft.edge_node.servers.clients.reading import ReadBuffer
from weft.edge_node.subscriptions.message import Message as Stored
from weft.protocols import message_headers as names
from weft.protocols.amqp.typed_values import Encoded, Kind, Symbol, as_header, from_header, kinds_header, kinds_of
from weft.protocols.amqp1 import NO_PROPERTIES, Array, Body, Described, Message, Properties, encode
from weft.protocols.batch import HEADER_PAIRS_MAX, HeaderPairs, HeaderValue
from weft.protocols.message_headers import own_name, stored_name

BODY: Final = "amqp.body"
"""Header with the kind of a body that is not data: ``string``, ``binary``, ``value`` or ``sequence``."""
TO: Final = "amqp.to"
"""Header with ``to``, where it differs from the address that the message was sent to."""
GROUP_ID: Final = "amqp.group-id"
GROUP_SEQUENCE: Final = "amqp.group-sequence"
REPLY_TO_GROUP_ID: Final = "amqp.reply-to-group-id"
ANNOTATION: Final = "amqp.annotation."
"""Prefix of the headers with message annotations."""
FOOTER: Final = "amqp.footer."
"""Prefix of the headers with fields of the footer."""
OWN_ANNOTATIONS: Final = "x-opt-weft-"
"""Prefix of the annotations that the node adds to delivered messages."""
PAIRS_MAX: Final = HEADER_PAIRS_MAX - 32
"""Maximum number of application properties and annotations of one message."""

_MS_NS: Final = 1_000_000
_INT64_MAX: Final = (1 << 63) - 1
_UINT_MAX: Final = (1 << 32) - 1


class TooMany(ValueError):
    """A message has more properties than a record has room for."""


def to_headers(message: Message, now_ns: int, known: Container[str]) -> HeaderPairs:
    """Return the headers of a message received at ``now_ns``.

    Args:
        known: redundant values of ``to``: the address of the link, which most clients repeat there, and the topic.

    Raises:
        TooMany: it has too many properties or annotations.
    """
    if len(message.application) + len(message.annotations) + len(message.footer) > PAIRS_MAX:
        raise TooMany(
            f"{len(message.application)} properties, {len(message.annotations)} annotations and {len(message.footer)} "
            f"fields of the footer; a message may have {PAIRS_MAX} of all"
        )
    found = _Headers()
    for name, value in message.application.items():
        found.add(stored_name(str(name)), value)
    if message.properties is not NO_PROPERTIES:
        _add_properties(found, message.properties, known)
    if message.durable:
        found.pairs.append(names.PERSISTENT)
    if message.priority is not None:
        found.add(names.PRIORITY, message.priority, has_type=False)
    expires = _expires(message, now_ns)
    if expires is not None:
        found.pairs.append((names.EXPIRES, expires))
    if message.body.kind != "data":
        found.pairs.append((BODY, message.body.kind))
    for name, value in message.annotations.items():
        if isinstance(name, str) and not name.startswith(OWN_ANNOTATIONS):
            found.add(ANNOTATION + name, value)
    for name, value in message.footer.items():
        if isinstance(name, str):
            found.add(FOOTER + name, value)
    return (*found.pairs, *kinds_header(found.kinds))


class _Headers:
    """Headers of one message, and the types that headers cannot express."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, HeaderValue]] = []
        self.kinds: dict[str, Kind] = {}

    def add(self, name: str, value: Any, *, has_type: bool = True) -> None:
        """Add a value of any type.

        Args:
            has_type: False for a property whose type is always the same.
        """
        if isinstance(value, dict | list | Described) and not _is_json(value):
            value = Encoded(encode(value))
        plain, kind = as_header(value)
        self.pairs.append((name, plain))
        if kind is not None and has_type:
            self.kinds[name] = kind


def _is_json(value: Any) -> bool:
    """Return whether a value consists of tables with names, lists, and values that a header can store."""
    if isinstance(value, Described | Array | Encoded):
        return False
    if isinstance(value, dict):
        # A symbol as name would come back as a string.
        return all(type(name) is str and _is_json(each) for name, each in value.items())
    return not isinstance(value, list) or all(map(_is_json, value))


def _add_properties(headers: _Headers, found: Properties, known: Container[str]) -> None:
    for name, value in ((names.MESSAGE_ID, found.message_id), (names.CORRELATION_ID, found.correlation_id)):
        if value is not None:  # an integer can only be a ulong, which the types record where it has more than 63 bits
            headers.add(name, value, has_type=not isinstance(value, int) or value > _INT64_MAX)
    for name, value in (
        (names.SUBJECT, found.subject),
        (names.REPLY_TO, found.reply_to),
        (names.CONTENT_TYPE, found.content_type),
        (names.CONTENT_ENCODING, found.content_encoding),
        (GROUP_ID, found.group_id),
        (GROUP_SEQUENCE, found.group_sequence),
        (REPLY_TO_GROUP_ID, found.reply_to_group_id),
    ):
        if value is not None:
            headers.add(name, value, has_type=False)
    pairs = headers.pairs
    if found.user_id is not None:
        pairs.append((names.USER_ID, found.user_id.decode(errors="replace")))
    if found.creation_time is not None:
        pairs.append((names.SENT, _nanoseconds(found.creation_time)))
    if found.to is not None and found.to not in known:
        pairs.append((TO, str(found.to)))


def _nanoseconds(milliseconds: int) -> int:
    return max(-_INT64_MAX, min(int(milliseconds) * _MS_NS, _INT64_MAX))


def _expires(message: Message, now_ns: int) -> int | None:
    times = []
    if message.ttl_ms is not None:
        times.append(min(now_ns + max(message.ttl_ms * _MS_NS, 1), _INT64_MAX))
    if message.properties.absolute_expiry_time is not None:
        times.append(max(_nanoseconds(message.properties.absolute_expiry_time), 1))
    return min(times, default=None)


def to_message(
    stored: Stored, now_ns: int, place: tuple[str, int] | None, count: int, *, is_redelivered: bool = False
) -> Message:
    """Return a stored message in the form for delivery.

    Args:
        place: name of its stream, and its seq there; None where receivers do not get them.
        count: number of earlier deliveries without success.
        is_redelivered: True if it was delivered before, even without a failure.
    """
    found: dict[str, Any] = {"to": stored.topic.decode(errors="replace")}
    message = Message(
        durable=stored.qos > 0,
        first_acquirer=not count and not is_redelivered,
        delivery_count=count,
        body=Body("data", stored.payload),
    )
    application, annotations, footer = dict[Any, Any](), dict[Any, Any](), dict[Any, Any]()
    kinds = kinds_of(stored.headers)
    for name, value in stored.headers:
        if name in kinds:
            value = from_header(value, kinds[name])  # noqa: PLW2901
        own = own_name(name)
        if own is not None:
            application[own] = value
        elif name.startswith(ANNOTATION):
            annotations[_symbol(name[len(ANNOTATION) :])] = value
        elif name.startswith(FOOTER):
            footer[_symbol(name[len(FOOTER) :])] = value
        elif name in _INTO:
            field, allowed = _INTO[name]
            if isinstance(value, allowed) and not isinstance(value, bool):
                found[field] = value
        else:
            _add(message, found, name, value)
    if stored.expires_ns:
        left_ms = max((stored.expires_ns - now_ns) // _MS_NS, 1)
        found["absolute_expiry_time"] = stored.expires_ns // _MS_NS
        message.ttl_ms = min(left_ms, _UINT_MAX)
    if place is not None:
        annotations[Symbol("x-opt-weft-stream")] = place[0]
        annotations[Symbol("x-opt-weft-offset")] = place[1]
    message.application, message.annotations, message.footer = application, annotations, footer
    message.properties = Properties(**found)
    return message


def _symbol(text: str) -> Symbol:
    return Symbol(text.encode("ascii", "replace").decode())


_INTO: dict[str, tuple[str, tuple[type, ...]]] = {
    names.MESSAGE_ID: ("message_id", (str, bytes, int, UUID)),
    names.CORRELATION_ID: ("correlation_id", (str, bytes, int, UUID)),
    names.SUBJECT: ("subject", (str,)),
    names.REPLY_TO: ("reply_to", (str,)),
    names.CONTENT_TYPE: ("content_type", (str,)),
    names.CONTENT_ENCODING: ("content_encoding", (str,)),
    GROUP_ID: ("group_id", (str,)),
    GROUP_SEQUENCE: ("group_sequence", (int,)),
    REPLY_TO_GROUP_ID: ("reply_to_group_id", (str,)),
    TO: ("to", (str,)),
}
"""Header -> property, and the types that it may have."""


def _add(message: Message, found: dict[str, Any], name: str, value: HeaderValue) -> None:
    if name == names.PRIORITY and type(value) is int:
        message.priority = max(0, min(value, 255))
    elif name == names.USER_ID and isinstance(value, str):
        found["user_id"] = value.encode()
    elif name == names.SENT and type(value) is int:
        found["creation_time"] = value // _MS_NS
    elif name == BODY and isinstance(value, str):
        message.body = Body(value, message.body.payload)


# Addresses of links: streams, queues and topics.

STREAM: Final = "stream/"
QUEUE: Final = "queue/"
TOPIC: Final = "topic/"
ADDRESS_BYTES_MAX: Final = 1024
"""Longest address, which bounds the memory of links."""


class AddressKind(enum.Enum):
    """Kinds of addresses."""

    STREAM = "stream"
    QUEUE = "queue"
    TOPIC = "topic"
    ANY = "any"
    """No address: each message has its own in ``to`` (the anonymous terminus)."""


class Address(NamedTuple):
    """An address in parts."""

    kind: AddressKind
    name: str
    """Name of a stream or queue, a topic or a topic filter; empty for ``ANY``."""


class BadAddress(ValueError):
    """An address that names nothing; the text states the problem."""


class Refused(Exception):
    """Refusal of a link or a message, with the reason."""

    def __init__(self, condition: str, text: str) -> None:
        """Set the reason.

        Args:
            condition: AMQP's name of it, such as ``amqp:not-found``.
        """
        super().__init__(text)
        self.condition = condition


def parse(text: str | None, capabilities: Container[str] = ()) -> Address:
    """Return the parts of an address: ``stream/NAME``, ``queue/NAME``, ``topic/TOPIC``, or a topic as it is.

    Args:
        capabilities: of the terminus; clients of JMS have ``queue`` there, and only the name in the address.

    Raises:
        BadAddress: it is too long, or names nothing.
    """
    if not text:
        return Address(AddressKind.ANY, "")
    if len(text.encode(errors="surrogatepass")) > ADDRESS_BYTES_MAX:
        raise BadAddress(f"an address of {len(text)} characters; at most {ADDRESS_BYTES_MAX} bytes are possible")
    for prefix, kind in ((STREAM, AddressKind.STREAM), (QUEUE, AddressKind.QUEUE), (TOPIC, AddressKind.TOPIC)):
        if text.startswith(prefix):
            if len(text) == len(prefix):
                raise BadAddress(f"the address {text!r} has no name behind {prefix!r}")
            return Address(kind, text[len(prefix) :])
    return Address(AddressKind.QUEUE if "queue" in capabilities else AddressKind.TOPIC, text)


# Bytes of a client that wait for their rest, or for their turn, and the owner charged with them.


class Amqp1ReadBuffer(ReadBuffer):
    """Store of such bytes of one client, charged to its owner."""

    __slots__ = ("data", "parts_bytes")

    def __init__(self, bound: Bound, owner: Owner) -> None:
        """Start without bytes.

        Args:
            bound: bytes of all clients.
            owner: the address, until ``belongs_to`` names a user.
        """
        super().__init__(bound, owner)
        self.data = bytearray()
        """Frames to handle; the last may be incomplete."""
        self.parts_bytes = 0
        """Bytes of incomplete messages."""

    @property
    def waits(self) -> bool:
        """Return whether bytes wait."""
        return bool(self.data)

    def clear(self) -> None:
        """Drop all bytes: the connection has ended."""
        self.data = bytearray()
        super().clear()

    def settle(self) -> bool:
        """Charge the bytes held now. Return whether the owner may have so many; if not, nothing is charged."""
        return self.charge(len(self.data) + self.parts_bytes)
