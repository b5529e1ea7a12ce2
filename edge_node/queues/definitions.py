"""Exchanges, queues and bindings as they are declared, stored and compared."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from weft.bounds import Owner, OwnerKind
from weft.edge_node.access.identity import ALL, Permission
from weft.protocols.batch import HeaderPairs

# Refusals of requests about exchanges and queues, the same for every protocol.


class Reason(enum.Enum):
    """Reason of a refused request; each protocol maps it to its own reply code."""

    NOT_FOUND = "not found"
    """There is no such exchange or queue. AMQP 0-9-1: 404, a channel error."""
    PRECONDITION_FAILED = "precondition failed"
    """It exists with other properties or arguments, an argument has an invalid value, or a delivery is unknown. 406, a
    channel error."""
    IN_USE = "in use"
    """The request deletes it only if it is unused or empty, and it is not. 406, a channel error."""
    ACCESS_REFUSED = "access refused"
    """Access rules forbid it, its name is reserved, or a consumer reads it exclusively. 403, a channel error."""
    RESOURCE_LOCKED = "resource locked"
    """It is exclusive to another connection, or only one of it and a declaration is exclusive. 405, a channel error."""
    NOT_ALLOWED = "not allowed"
    """No client may do that, such as publish to an internal exchange or rebind the default one. 403 or 530."""
    UNKNOWN_KIND = "unknown kind"
    """There is no exchange of that type. 503, a connection error."""
    TOO_MANY = "too many"
    """A share of exchanges, queues, bindings or deliveries is used up. 506, or 406 where a channel error is wanted."""
    NO_ROOM = "no room"
    """The log is full or has failed: nothing was changed. 506 or 541."""


class QueueError(Exception):
    """A request about exchanges or queues that was refused. Nothing was changed.

    Its text states the problem and the remedy; AMQP's reply text contains it.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


# Routing keys of AMQP as topics, and back.
#
# A key ``a.b.c`` is the topic ``a/b/c``, so that streams, access rules and subscribers of other protocols match it. A
# key that cannot be a topic is replaced, and a header has the key as sent.

EXCHANGE: Final = "amqp.exchange"
"""Header with the name of the exchange; messages without it came by ``TOPIC_EXCHANGE``."""
ROUTING_KEY: Final = "amqp.routing-key"
"""Header with the routing key as sent, where it does not follow from the topic."""
QUEUES: Final = "weft.queues"
"""Header of records in the stream of queued messages: the numbers of the queues that they are for. Not delivered."""
DEATHS: Final = "amqp.deaths"
"""Header with the dead-letter history of the message (``deaths``)."""
TOPIC_EXCHANGE: Final = "amq.topic"
"""Exchange to which every publish of other protocols goes."""
_REPLACED = str.maketrans({".": "/", "+": "_", "#": "_", "\0": "_"})


def topic_of(exchange: str, routing_key: str) -> str:
    """Return the topic of a message. An empty routing key stands for the name of the exchange."""
    topic = (routing_key or exchange).translate(_REPLACED)
    # Topics that begin with `$` are not for wildcards, and `$SYS` is the node's own.
    return topic if topic and topic[0] != "$" else "_" + topic[1:]


def routing_key_of(topic: str) -> str:
    """Return the routing key of a message that another protocol published."""
    return topic.replace("/", ".")


def headers_of_route(exchange: str, routing_key: str, topic: str) -> HeaderPairs:
    """Return the headers that a publish to an exchange needs beside its topic."""
    found: HeaderPairs = ()
    if exchange != TOPIC_EXCHANGE:
        found = ((EXCHANGE, exchange),)
    if routing_key_of(topic) != routing_key:
        found = (*found, (ROUTING_KEY, routing_key))
    return found


def origin_of(topic: bytes, headers: HeaderPairs) -> tuple[str, str]:
    """Return exchange and routing key of a stored message."""
    exchange, routing_key = TOPIC_EXCHANGE, None
    for name, value in headers:
        if name == EXCHANGE and isinstance(value, str):
            exchange = value
        elif name == ROUTING_KEY and isinstance(value, str):
            routing_key = value
    return exchange, routing_key_of(topic.decode(errors="replace")) if routing_key is None else routing_key


def filter_of(key: str) -> str:
    """Return a filter of topics that covers all topics that a binding key of a topic exchange matches."""
    words = key.split(".")
    if "#" in words:
        words = words[: words.index("#") + 1]
    return "/".join("+" if word == "*" else word for word in words) or "#"


# Arguments of queues, exchanges and bindings, as clients write them (``x-message-ttl`` and others).

PRIORITIES_MAX: Final = 255
"""Highest priority that a queue may have (``x-max-priority``)."""
DURATION_MS_MAX: Final = 10 * 365 * 86_400_000
"""Longest time to live, ten years: Celery delays tasks by queues whose messages live for more than four."""
ATTEMPTS_MAX_OF_QUORUM: Final = 20
"""Failed deliveries after which a message leaves a queue of type quorum unless its arguments say otherwise."""
ARGUMENTS_BYTES_MAX: Final = 4096
"""Longest arguments of one binding, encoded: every restart reads them."""

TEXT_BYTES_MAX: Final = 255
"""Longest name of an exchange, and routing key, in arguments: a short string of AMQP 0-9-1."""


class QueueType(enum.StrEnum):
    """Types of queues that clients may ask for. On one node they are the same but for ``x-delivery-limit``."""

    CLASSIC = "classic"
    QUORUM = "quorum"


class Overflow(enum.StrEnum):
    """Rules for a queue that is full."""

    DROP_HEAD = "drop-head"
    """Its oldest messages leave it, and are dead-lettered if it names a dead-letter exchange."""
    REJECT_PUBLISH = "reject-publish"
    """It rejects new messages; publishers that ask for confirms get a nack."""
    REJECT_PUBLISH_DLX = "reject-publish-dlx"
    """The same, and the rejected messages are dead-lettered."""


class QueueArguments(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Checked arguments of a queue. Two declarations that differ in them are not the same queue."""

    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    length_max: int | None = None
    bytes_max: int | None = None
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    priority_max: int = 0
    """Highest priority; 0 for a queue without priorities."""
    single_active: bool = False
    type: QueueType = QueueType.CLASSIC
    attempts_max: int | None = None
    """Failed deliveries of a message after which it is dead-lettered; None for any number."""

    @property
    def is_bounded(self) -> bool:
        """Return whether the queue has a maximum length."""
        return self.length_max is not None or self.bytes_max is not None

    @property
    def rejects(self) -> bool:
        """Return whether the queue rejects new messages when it is full."""
        return self.is_bounded and self.overflow is not Overflow.DROP_HEAD


def _invalid(name: str, value: object, expected: str) -> QueueError:
    return QueueError(Reason.PRECONDITION_FAILED, f"invalid argument {name}: expected {expected}, got {value!r:.60}")


def _number(arguments: Mapping[str, Any], name: str, least: int, most: int = (1 << 63) - 1) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    # Clients write small numbers as integers of 8 or 16 bits, which are separate types in the protocols.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _invalid(name, value, f"an integer from {least} to {most}")
    return int(value)


def _text(arguments: Mapping[str, Any], name: str) -> str | None:
    value = arguments.get(name)
    if value is not None and not isinstance(value, str):
        raise _invalid(name, value, "text")
    if value is not None and len(value.encode()) > TEXT_BYTES_MAX:
        raise _invalid(name, value, f"at most {TEXT_BYTES_MAX} bytes")
    return value


def _one_of(arguments: Mapping[str, Any], name: str, words: type[enum.StrEnum]) -> str | None:
    value = _text(arguments, name)
    if value is not None and value not in list(words):
        raise _invalid(name, value, " or ".join(words))
    return value


def queue_arguments(arguments: Mapping[str, Any], *, durable: bool, exclusive: bool) -> QueueArguments:
    """Return the checked arguments of a queue. Unknown names are ignored.

    Raises:
        QueueError: a value is invalid, or a feature is not available.
    """
    if arguments.get("x-queue-type") == "stream":
        raise QueueError(
            Reason.PRECONDITION_FAILED,
            "queues of type stream are not available: bind a classic or quorum queue, or read a stream of the node",
        )
    kind = QueueType(_one_of(arguments, "x-queue-type", QueueType) or QueueType.CLASSIC)
    if kind is QueueType.QUORUM and (not durable or exclusive):
        raise QueueError(
            Reason.PRECONDITION_FAILED, "a queue of type quorum must be durable and not exclusive: declare it so"
        )
    single_active = arguments.get("x-single-active-consumer", False)
    if not isinstance(single_active, bool):
        raise _invalid("x-single-active-consumer", single_active, "a boolean")
    found = QueueArguments(
        message_ttl_ms=_number(arguments, "x-message-ttl", 0, DURATION_MS_MAX),
        expires_ms=_number(arguments, "x-expires", 1, DURATION_MS_MAX),
        length_max=_number(arguments, "x-max-length", 0),
        bytes_max=_number(arguments, "x-max-length-bytes", 0),
        overflow=Overflow(_one_of(arguments, "x-overflow", Overflow) or Overflow.DROP_HEAD),
        dead_letter_exchange=_text(arguments, "x-dead-letter-exchange"),
        dead_letter_routing_key=_text(arguments, "x-dead-letter-routing-key"),
        priority_max=_number(arguments, "x-max-priority", 0, PRIORITIES_MAX) or 0,
        single_active=single_active,
        type=kind,
        attempts_max=_attempts_max(arguments, kind),
    )
    if found.dead_letter_routing_key is not None and found.dead_letter_exchange is None:
        raise QueueError(
            Reason.PRECONDITION_FAILED,
            "invalid argument x-dead-letter-routing-key: it also needs x-dead-letter-exchange",
        )
    return found


def _attempts_max(arguments: Mapping[str, Any], kind: QueueType) -> int | None:
    # -1 is RabbitMQ's word for no limit.
    found = _number(arguments, "x-delivery-limit", -1)
    if found is None:
        return ATTEMPTS_MAX_OF_QUORUM if kind is QueueType.QUORUM else None
    return None if found < 0 else found


def differences(had: QueueArguments, asked: QueueArguments) -> str:
    """Return the names of the arguments in which two declarations differ, for a refusal; empty when they do not."""
    return ", ".join(name for name in had.__struct_fields__ if getattr(had, name) != getattr(asked, name))


def alternate_exchange(arguments: Mapping[str, Any]) -> str | None:
    """Return the name in ``alternate-exchange``; None without one.

    Raises:
        QueueError: it is not text.
    """
    return _text(arguments, "alternate-exchange")


def consumer_priority(arguments: Mapping[str, Any]) -> int:
    """Return a consumer's ``x-priority``; 0 without one.

    Raises:
        QueueError: it is not an integer.
    """
    return _number(arguments, "x-priority", -(1 << 31), (1 << 31) - 1) or 0


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a binding in their stored form: values that a record cannot hold become text.

    Raises:
        QueueError: they are too long.
    """
    found = {name: _plain(value) for name, value in sorted(arguments.items())}
    if len(msgspec.msgpack.encode(found)) > ARGUMENTS_BYTES_MAX:
        raise QueueError(
            Reason.PRECONDITION_FAILED,
            f"the arguments of a binding have more than {ARGUMENTS_BYTES_MAX} bytes: shorten them",
        )
    return found


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str | bytes):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else str(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)


NAME_BYTES_MAX: Final = 255
"""Longest name and routing key: a short string of AMQP 0-9-1."""
OWN_NAMES: Final = "amq."
"""Prefix of names that clients cannot use (AMQP 0-9-1, exchange.declare and queue.declare)."""
SERVER_NAME: Final = "amq.gen-"
"""Prefix of the names that the node gives to queues."""
DEFAULT_EXCHANGE: Final = ""


LOOP_UNITS = 16
"""Bindings that one with ``#`` before the end of its key counts as."""
UNIT_BYTES = 256
"""Bytes of names, key and arguments for each unit that a binding counts as: each start reads them."""
UNIT_WORDS = 8
"""Words of a key for the same: each may take some 200 bytes of memory."""
UNIT_HEADERS = 4
"""Headers in its arguments for the same: each may take some 400 bytes."""


class ExchangeKind(enum.StrEnum):
    """Types of exchanges."""

    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


PREDECLARED: Final = {
    DEFAULT_EXCHANGE: ExchangeKind.DIRECT,
    "amq.direct": ExchangeKind.DIRECT,
    "amq.fanout": ExchangeKind.FANOUT,
    "amq.topic": ExchangeKind.TOPIC,
    "amq.headers": ExchangeKind.HEADERS,
    "amq.match": ExchangeKind.HEADERS,
}
"""Exchanges that are always there."""


class ExchangeDefinition(msgspec.Struct, frozen=True, array_like=True):
    """An exchange as declared."""

    name: str
    kind: ExchangeKind
    durable: bool
    auto_delete: bool
    internal: bool
    alternate: str | None
    owner_kind: OwnerKind
    owner_name: str

    @property
    def owner(self) -> Owner:
        """Return the owner that the exchange is charged to."""
        return Owner(self.owner_kind, self.owner_name)

    @property
    def names_topics(self) -> bool:
        """Return whether routing keys, which correspond to topics, decide who gets a message."""
        return self.kind in (ExchangeKind.DIRECT, ExchangeKind.TOPIC)


class QueueDefinition(msgspec.Struct, frozen=True, array_like=True):
    """A queue as declared."""

    number: int
    """Name of the queue in records, never reused."""
    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: QueueArguments
    owner_kind: OwnerKind
    owner_name: str
    since: int
    """Number of the first message that can belong to it: before a crash another queue may have had its number."""

    @property
    def owner(self) -> Owner:
        """Return the owner that the queue and its messages are charged to."""
        return Owner(self.owner_kind, self.owner_name)

    @property
    def kept(self) -> bool:
        """Return whether the queue outlives the node's process: an exclusive one ends with its connection."""
        return self.durable and not self.exclusive


class BindingDefinition(msgspec.Struct, frozen=True, array_like=True):
    """A binding as declared. Bindings with equal source, destination, key and arguments are the same."""

    source: str
    destination: str
    to_exchange: bool
    key: str
    arguments: bytes
    """In MessagePack, ordered by name."""

    @property
    def units(self) -> int:
        """Return the units of the binding against the bound, so that a share limits memory and log: each word of a key
        and each header of the arguments takes memory, and for ``#`` before the end of a pattern, each look-up tries the
        rest of every routing key."""
        words = self.key.split(".")
        texts = sum(len(text.encode()) for text in (self.source, self.destination, self.key))
        return (
            1
            + (texts + len(self.arguments)) // UNIT_BYTES
            + len(words) // UNIT_WORDS
            + _length_of_map(self.arguments) // UNIT_HEADERS
            + (LOOP_UNITS if "#" in words[:-1] else 0)
        )

    @property
    def values(self) -> dict[str, Any]:
        """Return the arguments."""
        found: dict[str, Any] = msgspec.msgpack.decode(self.arguments) if self.arguments else {}
        return found


def _length_of_map(data: bytes) -> int:
    """Return the number of entries of a map in MessagePack, 0 of nothing."""
    if not data:
        return 0
    if data[0] & 0xF0 == 0x80:
        return data[0] & 0x0F
    return int.from_bytes(data[1 : 3 if data[0] == 0xDE else 5])


def check_name(name: str, what: str) -> None:
    """Check a name that a client gives to a queue or an exchange.

    Raises:
        QueueError: it is reserved or too long, or has unprintable characters: log lines contain names.
    """
    if name.startswith(OWN_NAMES):
        raise QueueError(
            Reason.ACCESS_REFUSED, f"the name {name!r} of the {what} is reserved: choose one without {OWN_NAMES!r}"
        )
    check_text(name, f"name of the {what}")
    if not name.isprintable():
        raise QueueError(
            Reason.PRECONDITION_FAILED, f"the name {name!r:.100} of the {what} must have no control characters"
        )


def check_not_default(exchange: str) -> None:
    """Check that a declaration does not name the default exchange, which exists only to reach each queue by its name.

    Raises:
        QueueError: it does.
    """
    if exchange == DEFAULT_EXCHANGE:
        raise QueueError(
            Reason.ACCESS_REFUSED, "the default exchange cannot be declared or looked at: publish to it as it is"
        )


def check_text(text: str, what: str) -> None:
    """Check a name or routing key.

    Raises:
        QueueError: it is too long, or has a null character.
    """
    if len(text.encode()) > NAME_BYTES_MAX or "\0" in text:
        raise QueueError(
            Reason.PRECONDITION_FAILED, f"the {what} must have at most {NAME_BYTES_MAX} bytes and no null character"
        )


# Uses of queues and exchanges that access rules permit or refuse.


class Use(NamedTuple):
    """Kind of use that clients make of queues and exchanges."""

    wanted: Permission
    """Sufficient rights: any one of them permits the use."""
    verb: str
    word: str
    """Word of a rule that permits the use."""

    @property
    def by_any(self) -> Use:
        """Return the same use, permitted by any right: for a name that does not exist, and for a repeated declaration.
        Its refusal does not reveal whether there is a queue."""
        return self._replace(wanted=ALL)


LOOK = Use(ALL, "look at", "read")
READ = Use(Permission.READ, "read", "read")
DECLARE = Use(Permission.DECLARE, "declare", "declare")
PUBLISH = Use(Permission.WRITE, "publish to", "write")
CHANGE = Use(Permission.WRITE, "change", "write")


def refusal(use: Use, name: str, what: str, *, is_denied: bool) -> QueueError:
    """Return a refusal, with the rule that would permit the use.

    Args:
        what: ``queue`` or ``exchange``.
        is_denied: whether a deny rule forbids it, which no other rule overrides.
    """
    # In the form of the rule's pattern, and safe for a terminal.
    pattern = repr(topic_of("", name).replace("/", "."))[1:-1]
    if is_denied:
        return QueueError(Reason.ACCESS_REFUSED, f"access rules deny the user every use of {what} {pattern}")
    return QueueError(
        Reason.ACCESS_REFUSED,
        f"access rules do not let the user {use.verb} this {what}: add the line `queue {use.word} {pattern}`",
    )


class DeathReason(enum.StrEnum):
    """Reasons why a message left a queue without being handled."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"
