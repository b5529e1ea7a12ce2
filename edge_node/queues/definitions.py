"""Exchanges, queues and bindings as they are declared, stored and compared."""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec

from weft.bounds import Owner, OwnerKind
from weft.edge_node.queues.arguments import QueueArguments
from weft.edge_node.queues.errors import QueueError, Reason

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
