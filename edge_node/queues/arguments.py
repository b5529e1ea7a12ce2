"""Arguments of queues, exchanges and bindings, as clients write them (``x-message-ttl`` and others)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from weft.edge_node.queues.errors import QueueError, Reason

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
            "invalid argument x-dead-letter-routing-key: it needs x-dead-letter-exchange beside it",
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
            f"the arguments of a binding take more than {ARGUMENTS_BYTES_MAX} bytes: shorten them",
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
