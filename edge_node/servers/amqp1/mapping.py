"""Messages of AMQP 1.0 as records of the log, and back (docs/reference/message-headers.md, docs/reference/amqp1.md)."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final
from uuid import UUID

from weft.edge_node.subscriptions.message import Message as Stored
from weft.protocols import message_headers as names
from weft.protocols.amqp1.message import NO_PROPERTIES, Body, Message, Properties
from weft.protocols.amqp1.types import Opaque, Symbol
from weft.protocols.batch import HEADER_PAIRS_MAX, HeaderPairs
from weft.protocols.columns import HeaderValue
from weft.protocols.message_headers import own_name, stored_name

BODY: Final = "amqp.body"
"""Header with the kind of a body that is no data: ``string``, ``binary``, ``value`` or ``sequence``."""
TO: Final = "amqp.to"
"""Header with ``to``, where it is not the address that the message was sent to."""
GROUP_ID: Final = "amqp.group-id"
GROUP_SEQUENCE: Final = "amqp.group-sequence"
REPLY_TO_GROUP_ID: Final = "amqp.reply-to-group-id"
ANNOTATION: Final = "amqp.annotation."
"""Beginning of the headers with message annotations."""
OWN_ANNOTATIONS: Final = "x-opt-weft-"
"""Beginning of the annotations that the node gives to what it delivers."""
PAIRS_MAX: Final = HEADER_PAIRS_MAX - 32
"""Most application properties and annotations of one message."""

_MS_NS: Final = 1_000_000
_INT64_MAX: Final = (1 << 63) - 1
_UINT_MAX: Final = (1 << 32) - 1


class TooMany(ValueError):
    """A message has more properties than a record has room for."""


def to_headers(message: Message, now_ns: int, known: Container[str]) -> HeaderPairs:
    """Return the headers of a message that came at ``now_ns``.

    Args:
        known: values of ``to`` that say nothing new: the address of the link, which most clients repeat there, and the
            topic.

    Raises:
        TooMany: it has too many properties or annotations.
    """
    if len(message.application) + len(message.annotations) > PAIRS_MAX:
        raise TooMany(
            f"{len(message.application)} properties and {len(message.annotations)} annotations; a message may have "
            f"{PAIRS_MAX} of both"
        )
    pairs: list[tuple[str, HeaderValue]] = [
        (stored_name(str(name)), header_value(value)) for name, value in message.application.items()
    ]
    if message.properties is not NO_PROPERTIES:
        _add_properties(pairs, message.properties, known)
    if message.priority is not None:
        pairs.append((names.PRIORITY, header_value(message.priority)))
    expires = _expires(message, now_ns)
    if expires is not None:
        pairs.append((names.EXPIRES, expires))
    if message.body.kind != "data":
        pairs.append((BODY, message.body.kind))
    for name, value in message.annotations.items():
        if isinstance(name, str) and not name.startswith(OWN_ANNOTATIONS) and not isinstance(value, list | dict):
            pairs.append((ANNOTATION + name, header_value(value)))
    return tuple(pairs)


def _add_properties(pairs: list[tuple[str, HeaderValue]], found: Properties, known: Container[str]) -> None:
    for name, value in (
        (names.MESSAGE_ID, found.message_id), (names.CORRELATION_ID, found.correlation_id),
        (names.SUBJECT, found.subject), (names.REPLY_TO, found.reply_to), (names.CONTENT_TYPE, found.content_type),
        (names.CONTENT_ENCODING, found.content_encoding), (GROUP_ID, found.group_id),
        (GROUP_SEQUENCE, found.group_sequence), (REPLY_TO_GROUP_ID, found.reply_to_group_id),
    ):  # fmt: skip
        if value is not None:
            pairs.append((name, header_value(value)))
    if found.user_id is not None:
        pairs.append((names.USER_ID, found.user_id.decode(errors="replace")))
    if found.creation_time is not None:
        pairs.append((names.SENT, _nanoseconds(found.creation_time)))
    if found.to is not None and found.to not in known:
        pairs.append((TO, str(found.to)))


def header_value(value: Any) -> HeaderValue:
    """Return a value of AMQP as a header's: what headers lack becomes text, as the page on AMQP 1.0 has it."""
    if value is None or type(value) in (str, bytes, bool, float):
        return value  # type: ignore[no-any-return]
    if isinstance(value, int):
        return int(value) if -_INT64_MAX - 1 <= value <= _INT64_MAX else str(int(value))
    if isinstance(value, Symbol):
        return str(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Opaque):
        return value.data
    return str(value)


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
    """Return a stored message as it is delivered.

    Args:
        place: name of its stream, and its seq there; None where receivers are not told.
        count: times that it was delivered before, without success.
        is_redelivered: True if it was delivered before, even where that was no failure.
    """
    found: dict[str, Any] = {"to": stored.topic.decode(errors="replace")}
    message = Message(
        durable=stored.qos > 0,
        first_acquirer=not count and not is_redelivered,
        delivery_count=count,
        body=Body("data", stored.payload),
    )
    application, annotations = dict[Any, Any](), dict[Any, Any]()
    for name, value in stored.headers:
        own = own_name(name)
        if own is not None:
            application[own] = value
        elif name.startswith(ANNOTATION):
            annotations[Symbol(name[len(ANNOTATION) :].encode("ascii", "replace").decode())] = value
        elif name in _INTO:
            field, kinds = _INTO[name]
            if isinstance(value, kinds) and not isinstance(value, bool):
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
    message.application, message.annotations, message.properties = application, annotations, Properties(**found)
    return message


_INTO: dict[str, tuple[str, tuple[type, ...]]] = {
    names.MESSAGE_ID: ("message_id", (str, bytes, int)), names.CORRELATION_ID: ("correlation_id", (str, bytes, int)),
    names.SUBJECT: ("subject", (str,)), names.REPLY_TO: ("reply_to", (str,)),
    names.CONTENT_TYPE: ("content_type", (str,)), names.CONTENT_ENCODING: ("content_encoding", (str,)),
    GROUP_ID: ("group_id", (str,)), GROUP_SEQUENCE: ("group_sequence", (int,)),
    REPLY_TO_GROUP_ID: ("reply_to_group_id", (str,)), TO: ("to", (str,)),
}  # fmt: skip
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
