"""One listener for protocols that differ in their first bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import cast

from weft.config.log_lines.partings import Partings
from weft.edge_node.servers.listeners.door import Arrival, Door
from weft.edge_node.servers.listeners.listener import MakeConnection
from weft.network.shared_buffer import SharedBufferProtocol

log = logging.getLogger(__name__)


class ByPrefix(asyncio.Protocol):
    """A connection until its protocol is known; then that protocol's connection takes the transport over.

    The listener bounds the time for the first bytes.
    """

    __slots__ = ("_answer", "_arrival", "_choices", "_data", "_door", "_partings", "_transport", "_what")

    def __init__(  # noqa: PLR0917
        self,
        door: Door,
        arrival: Arrival,
        choices: Mapping[bytes, MakeConnection],
        answer: bytes,
        what: str,
        partings: Partings,
    ) -> None:
        """Wait for the bytes of a prefix.

        Args:
            choices: prefix, all of one length -> factory of its connections.
            answer: sent to a client of another protocol before it is closed: a protocol that this listener has.
            what: the protocols of the listener, for the log.
            partings: log lines about clients that are closed.
        """
        self._door = door
        self._arrival = arrival
        self._choices = choices
        self._answer = answer
        self._what = what
        self._partings = partings
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Choose a protocol as soon as the prefix is complete, or cannot match."""
        transport = self._transport
        if transport is None:
            return
        self._data += data
        prefix = self._data[: len(next(iter(self._choices)))]
        if not any(known.startswith(prefix) for known in self._choices):
            self._refuse(transport, prefix)
        elif prefix in self._choices:
            self._transport = None
            protocol = self._choices[prefix](self._door, self._arrival)
            is_tls = transport.get_extra_info("sslcontext") is not None
            transport.set_protocol(SharedBufferProtocol(protocol) if is_tls else protocol)
            protocol.connection_made(transport)
            protocol.data_received(self._data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget a client that has gone before its first bytes."""
        if self._transport is not None:
            self._transport = None
            self._arrival.closed()

    def _refuse(self, transport: asyncio.Transport, prefix: bytes) -> None:
        reason = f"its first bytes are {prefix!r}, and this is a port for {self._what}"
        self._partings.closed(log, f"closed {self._arrival.name}", reason, stranger_at=self._arrival.origin)
        self._transport = None
        transport.write(self._answer)
        transport.close()
        self._arrival.closed()
