"""Output of a connection: packets that are written at once, or together with the other answers of a turn."""

from __future__ import annotations

import asyncio

from weft.edge_node.counters import Counters

CORKED_BYTES_MAX = 16 << 10
"""Bytes of answers that are written together."""


class Output:
    """Writes packets to a transport.

    While it is corked, they are gathered: a write for each PINGREQ would make small segments by the thousand, and a
    network that is full of them drops those of other clients.
    """

    __slots__ = ("_counters", "_transport", "corked")

    def __init__(self, transport: asyncio.WriteTransport, counters: Counters) -> None:
        self._transport = transport
        self._counters = counters
        self.corked: bytearray | None = None
        """Gathered packets; None while it is not corked."""

    def write(self, data: bytes) -> None:
        """Write whole packets."""
        self._counters.bytes_sent += len(data)
        if self.corked is None:
            self._transport.write(data)
            return
        self.corked += data
        if len(self.corked) > CORKED_BYTES_MAX:
            self._transport.write(self.corked)
            self.corked = bytearray()

    def cork(self) -> None:
        """Gather what is written until ``uncork``."""
        if self.corked is None:
            self.corked = bytearray()

    def uncork(self) -> None:
        """Write what was gathered."""
        corked, self.corked = self.corked, None
        if corked:
            self._transport.write(corked)
