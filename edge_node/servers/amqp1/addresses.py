"""Addresses of links: streams, queues and topics."""

from __future__ import annotations

import enum
from collections.abc import Container
from typing import Final, NamedTuple

STREAM: Final = "stream/"
QUEUE: Final = "queue/"
TOPIC: Final = "topic/"
ADDRESS_BYTES_MAX: Final = 1024
"""Longest address, so that what links remember stays small."""


class AddressKind(enum.Enum):
    """Things that an address names."""

    STREAM = "stream"
    QUEUE = "queue"
    TOPIC = "topic"
    ANY = "any"
    """No address: each message says its own in ``to`` (the anonymous terminus)."""


class Address(NamedTuple):
    """An address in parts."""

    kind: AddressKind
    name: str
    """Name of a stream or queue, a topic or a topic filter; empty for ``ANY``."""


class BadAddress(ValueError):
    """An address that names nothing; the sentence says what is wrong with it."""


class Refused(Exception):
    """A link or a message that is refused, and why."""

    def __init__(self, condition: str, text: str) -> None:
        """Say why.

        Args:
            condition: as AMQP names it, such as ``amqp:not-found``.
        """
        super().__init__(text)
        self.condition = condition


def parse(text: str | None, capabilities: Container[str] = ()) -> Address:
    """Return what an address names: ``stream/NAME``, ``queue/NAME``, ``topic/TOPIC``, or a topic as it is.

    Args:
        capabilities: of the terminus; clients of JMS say ``queue`` there and give the name alone.

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
