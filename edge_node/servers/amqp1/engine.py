"""Proton's engine of one connection: bytes in, events and bytes out.

This module, ``endpoints`` and ``deliveries`` know Proton. They are loaded with the first client of AMQP 1.0, so that
nodes without any do not pay for them. Calls for each message bypass Proton's Python objects and use the functions below
them: an object for each event, its delivery, link, session, connection and transport costs more than all the rest of a
message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cproton import (
    PN_CONNECTION_REMOTE_CLOSE,
    PN_CONNECTION_REMOTE_OPEN,
    PN_DELIVERY,
    PN_LINK_FLOW,
    PN_LINK_REMOTE_CLOSE,
    PN_LINK_REMOTE_DETACH,
    PN_LINK_REMOTE_OPEN,
    PN_SESSION_REMOTE_CLOSE,
    PN_SESSION_REMOTE_OPEN,
    PN_TRANSPORT_ERROR,
    addressof,
    isnull,
    pn_collector_peek,
    pn_collector_pop,
    pn_delivery_link,
    pn_event_delivery,
    pn_event_link,
    pn_event_session,
    pn_event_type,
    pn_transport_peek,
    pn_transport_pending,
    pn_transport_pop,
    pn_transport_push,
)
from proton import Collector, Condition, Connection, Link, ProtonException, Session, Transport

from weft.edge_node.servers.amqp1.endpoints import key
from weft.protocols.errors import Corrupt

SESSION_BYTES = 64 << 20
"""Window of a session: a thousand frames, short ones mostly. The engine keeps none of them: received parts of a message
are taken from it at once, and charged to the user."""


class Events(Protocol):
    """Handlers of the engine's events; ``Links`` implements them."""

    def opened(self) -> None:
        """Handle an ``open`` of the client."""

    def closed(self) -> None:
        """Handle a ``close`` of the client."""

    def session_opened(self, session: Any) -> None:
        """Handle a ``begin`` of the client."""

    def session_closed(self, session: Any) -> None:
        """Handle an ``end`` of the client."""

    def attached(self, link: Any) -> None:
        """Handle an ``attach`` of the client."""

    def detached(self, link: Any, *, closed: bool) -> None:
        """Handle a ``detach`` of the client."""


class LinkEvents(Protocol):
    """Handlers of the events of one link."""

    def delivery(self, delivery: Any) -> None:
        """Handle a part of a message, or the outcome of one."""

    def flow(self) -> None:
        """Handle a change of credit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Bounds that ``open`` announces."""

    container: str
    frame_bytes_max: int
    idle_s: float
    """Seconds of silence after which the client is treated as dead; half of them are announced to it."""
    sessions_max: int


class Engine:
    """One connection's engine. Belongs to the event loop's thread."""

    __slots__ = ("_collector", "_connection", "_events", "_is_handling", "_links", "_transport", "ended", "error")

    def __init__(self, settings: EngineSettings, events: Events) -> None:
        self._events = events
        self._links: dict[int, LinkEvents] = {}
        """Address of a link in the engine -> handlers of its events."""
        self._is_handling = False
        self.ended = False
        """True once there is nothing more to send."""
        self.error: str | None = None
        """Reason why the engine closed the connection."""
        self._transport = transport = Transport(Transport.SERVER)
        transport.max_frame_size = settings.frame_bytes_max
        transport.idle_timeout = settings.idle_s
        transport.channel_max = settings.sessions_max - 1
        self._collector = Collector()
        self._connection = Connection()
        self._connection.container = settings.container
        self._connection.collect(self._collector)
        transport.bind(self._connection)

    # --- bytes

    def receive(self, data: bytes) -> None:
        """Pass whole frames to the engine. Call ``handle`` afterwards."""
        transport, at = self._transport._impl, 0
        while at < len(data):
            taken = pn_transport_push(transport, data[at:] if at else data)
            if taken <= 0:
                break  # an error, which an event reports
            at += taken

    def handle(self) -> None:
        """Handle all events. Within one of them, do nothing.

        Raises:
            Corrupt: a name or an address is not in UTF-8.
        """
        if self._is_handling:
            return
        self._is_handling = True
        try:
            self._handle_all()
        finally:
            self._is_handling = False

    def _handle_all(self) -> None:
        collector = self._collector._impl
        while not isnull(event := pn_collector_peek(collector)):
            try:
                self._handle(event)
            except (UnicodeDecodeError, ProtonException) as error:
                # Names and addresses are text, and the engine does not check it.
                raise Corrupt(f"what came cannot be understood: {error}") from None
            finally:
                pn_collector_pop(collector)

    def output(self, bytes_max: int | None = None) -> bytes:
        """Return the bytes to send; ``ended`` is set afterwards if they were the last.

        Args:
            bytes_max: approximate number of bytes after which the rest is left for the next call; None for all.
        """
        transport, parts, size = self._transport._impl, [], 0
        while (pending := pn_transport_pending(transport)) > 0 and (bytes_max is None or size < bytes_max):
            code, data = pn_transport_peek(transport, pending)
            if code <= 0:
                break
            parts.append(bytes(data))
            size += code
            pn_transport_pop(transport, code)
        if pending < 0:
            self.ended = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def tick(self, now: float) -> float | None:
        """Check whether the client has been silent for too long, or needs a heartbeat. Return the next time to call."""
        return self._transport.tick(now) or None

    def free(self) -> None:
        """Free the engine's memory. Do not use the object afterwards."""
        self._links.clear()
        self._transport.unbind()
        self._connection.free()
        self._collector.release()

    # --- the connection

    @property
    def remote_container(self) -> str:
        """Return the client's container identifier."""
        return self._connection.remote_container or ""

    def open(self, software: str) -> None:
        """Answer ``open``."""
        self._connection.offered_capabilities = ["ANONYMOUS-RELAY"]
        self._connection.properties = {"product": "weft", "version": software}
        self._connection.open()

    def close(self, condition: str | None = None, description: str = "") -> None:
        """Send ``close``."""
        if condition is not None:
            self._connection.condition = Condition(condition, description)
        self._connection.close()

    # --- links

    def join(self, link: Any, events: LinkEvents) -> None:
        """Register the handlers of a link's events."""
        self._links[key(link)] = events

    def leave(self, number: int) -> None:
        """Stop handling a link's events."""
        self._links.pop(number, None)

    def forget(self, link: Any) -> None:
        """Stop handling a link's events, and free it with its deliveries."""
        self.leave(key(link))
        link.free()

    # --- inside

    def _handle(self, event: Any) -> None:
        kind = pn_event_type(event)
        if kind == PN_DELIVERY:
            delivery = pn_event_delivery(event)
            link = self._links.get(addressof(pn_delivery_link(delivery)))
            if link is not None:
                link.delivery(delivery)
        elif kind == PN_LINK_FLOW:
            link = self._links.get(addressof(pn_event_link(event)))
            if link is not None:
                link.flow()
        elif kind in _LINKS:
            _LINKS[kind](self._events, Link.wrap(pn_event_link(event)))
        elif kind in _SESSIONS:
            _SESSIONS[kind](self._events, Session.wrap(pn_event_session(event)))
        elif kind == PN_CONNECTION_REMOTE_OPEN:
            self._events.opened()
        elif kind == PN_CONNECTION_REMOTE_CLOSE:
            self._events.closed()
        elif kind == PN_TRANSPORT_ERROR:
            condition = self._transport.condition
            self.error = f"{condition.name}: {condition.description}" if condition is not None else "an error"


_LINKS: dict[int, Callable[[Events, Any], None]] = {
    PN_LINK_REMOTE_OPEN: lambda events, link: events.attached(link),
    PN_LINK_REMOTE_DETACH: lambda events, link: events.detached(link, closed=False),
    PN_LINK_REMOTE_CLOSE: lambda events, link: events.detached(link, closed=True),
}
_SESSIONS: dict[int, Callable[[Events, Any], None]] = {
    PN_SESSION_REMOTE_OPEN: lambda events, session: events.session_opened(session),
    PN_SESSION_REMOTE_CLOSE: lambda events, session: events.session_closed(session),
}
