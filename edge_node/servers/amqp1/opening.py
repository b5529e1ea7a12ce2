"""From the protocol header to the engine: SASL, the client's identity, and room for it."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import Any, Protocol

from weft.bounds import user_or_address
from weft.edge_node.access.credentials import AccessDenied, Credentials, Denial
from weft.edge_node.access.identity import Identity
from weft.edge_node.check.proton import MISSING, is_installed
from weft.edge_node.ingest.back_pressure import Pause
from weft.edge_node.servers.amqp1.parts import Parts
from weft.edge_node.servers.clients.place import FULL, Place
from weft.edge_node.servers.clients.reading import Reading
from weft.edge_node.servers.listeners.door import Arrival, Door
from weft.protocols.amqp1 import opening as frames
from weft.protocols.amqp1.opening import AMQP, FRAME_BYTES_MAX, HEADER_BYTES, SASL, frame_size
from weft.protocols.errors import Corrupt

OK, WRONG, LATER = 0, 1, 4
"""Outcomes of SASL."""
logger = logging.getLogger(__name__)
_DENIALS = {Denial.WRONG: WRONG, Denial.NOT_ALLOWED: WRONG, Denial.BUSY: LATER}


class OpeningClient(Protocol):
    """The connection (``Amqp1Connection``)."""

    arrival: Arrival
    place: Place
    reading: Reading

    def send(self, data: bytes) -> None:
        """Send bytes."""

    def welcome(self, identity: Identity) -> None:
        """Pass the connection to the engine."""

    def refuse(self, condition: str, description: str) -> None:
        """Close with an error of AMQP."""

    def close(self, reason: str, level: int = logging.WARNING, *, drains: bool = False) -> None:
        """Close."""


class Denied(Exception):
    """Refusal of a client, in the terms of SASL and AMQP."""

    def __init__(self, outcome: int, condition: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        """Outcome of SASL. After ``OK`` AMQP reports the reason, as SASL cannot."""
        self.condition = condition


class Opening:
    """The time before a client is admitted. Only SASL is accepted meanwhile."""

    __slots__ = ("_client", "_door", "_has_sasl", "_parts", "_task", "_transport")

    def __init__(self, parts: Parts, door: Door, client: OpeningClient, transport: Any) -> None:
        self._parts = parts
        self._door = door
        self._client = client
        self._transport = transport
        self._has_sasl = False
        self._task: asyncio.Task[None] | None = None

    def step(self, data: bytearray) -> None:
        """Handle the received part of a protocol header or a SASL frame.

        Raises:
            Corrupt: it is neither.
        """
        if self._task is not None:
            return
        if self._has_sasl:
            size = frame_size(data, 0, FRAME_BYTES_MAX)
            if size is not None and len(data) >= size:
                init = frames.sasl_init(bytes(data[:size]))
                del data[:size]
                self._log_in(init)
            return
        if len(data) < HEADER_BYTES:
            return
        header = bytes(data[:HEADER_BYTES])
        if header == SASL:
            del data[:HEADER_BYTES]
            self._has_sasl = True
            self._client.send(SASL + frames.mechanisms(self._mechanisms()))
            self.step(data)
        elif header == AMQP:
            self._begin(Credentials())
        else:
            raise Corrupt(f"expected a protocol header of AMQP 1.0, got {header!r}")

    def cancel(self) -> None:
        """Stop: the connection is gone."""
        if self._task is not None:
            self._task.cancel()

    def _mechanisms(self) -> list[str]:
        has_certificate = bool(self._transport.get_extra_info("peercert"))
        return [*(["EXTERNAL"] if has_certificate else []), "PLAIN", "ANONYMOUS"]

    def _credentials(self, init: frames.SaslInit) -> Credentials:
        """Return the client's credentials.

        Raises:
            Corrupt: they cannot be parsed.
        """
        if init.mechanism == "PLAIN":
            found = frames.plain(init.response)
            return Credentials("", found.username, found.password)
        if init.mechanism not in self._mechanisms():
            offered = ", ".join(self._mechanisms())
            raise Corrupt(f"the mechanism {init.mechanism[:40]!r} was not offered; use one of {offered}")
        return Credentials()

    def _log_in(self, init: frames.SaslInit) -> None:
        try:
            credentials = self._credentials(init)
        except Corrupt as error:  # the frame itself is valid: SASL has an outcome for its content
            self._deny(Denied(WRONG, "amqp:unauthorized-access", str(error)))
        else:
            self._begin(credentials)

    def _begin(self, credentials: Credentials) -> None:
        self._client.reading.hold(Pause.ASKING)
        self._task = self._parts.context.run(self._let_in(credentials))

    async def _let_in(self, credentials: Credentials) -> None:
        try:
            identity = await self._identify(credentials)
        except Denied as denied:
            self._task = None
            self._deny(denied)
        except Exception:
            logger.exception("AMQP 1.0 client at %s could not be let in", self._client.arrival.name)
            self._task = None
            self._client.close("a mistake of the node's")
        else:
            self._task = None
            if self._has_sasl:
                self._client.send(frames.outcome(OK))
            self._client.welcome(identity)
            self._client.reading.go_on(Pause.ASKING)

    async def _identify(self, credentials: Credentials) -> Identity:
        """Return the client's identity once the engine is loaded.

        Raises:
            Denied: it is refused.
        """
        try:
            identity = await self._door.authenticate(credentials, self._transport, self._client.arrival.origin)
        except AccessDenied as error:
            raise Denied(_DENIALS[error.denial], "amqp:unauthorized-access", str(error)) from None
        if not is_installed():
            raise Denied(OK, "amqp:not-implemented", MISSING)
        if not await self._client.arrival.room():
            reason = "as many clients as limits.connections allows are connected"
            raise Denied(LATER, "amqp:resource-limit-exceeded", reason)
        # In a thread: the first import takes as long as a hundred messages.
        await asyncio.to_thread(importlib.import_module, "weft.edge_node.servers.amqp1.links")
        if not identity.admitted:
            raise Denied(WRONG, "amqp:unauthorized-access", "its user has changed")
        if not self._client.place.take(user_or_address(identity.username, self._client.arrival.origin)):
            raise Denied(LATER, "amqp:resource-limit-exceeded", FULL)
        return identity

    def _deny(self, denied: Denied) -> None:
        self._parts.context.counters.protocol_errors += 1
        if self._has_sasl:
            self._client.send(frames.outcome(denied.outcome))
        if not self._has_sasl or denied.outcome == OK:
            self._client.refuse(denied.condition, str(denied))
        else:
            self._client.close(str(denied), drains=True)
