"""Addresses of links: streams, queues and topics."""

from __future__ import annotations

import enum
from collections.abc import Container
from typing import Final, NamedTuple

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
