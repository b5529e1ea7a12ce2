"""Sessions and links of one connection: attaching, events and their end.

Loaded with the first client of AMQP 1.0, because it needs the engine.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from weft.edge_node.access.identity import Identity
from weft.edge_node.servers.amqp1 import endpoints
from weft.edge_node.servers.amqp1.addresses import Refused
from weft.edge_node.servers.amqp1.engine import SESSION_BYTES, Engine
from weft.edge_node.servers.amqp1.inbox import Amqp1Inbox
from weft.edge_node.servers.amqp1.incoming import IncomingLink, Sending, SendingClient
from weft.edge_node.servers.amqp1.outgoing import OutgoingLink
from weft.edge_node.servers.amqp1.parts import LINKS_MAX, SESSION_LINKS, Parts
from weft.edge_node.servers.amqp1.receiving import Receiving

NAME_BYTES_MAX = 1024
"""Longest name of a link, and container identifier."""
REFUSED_MAX = 1000
"""Attaches of one connection that may be refused before it is closed: each stays in the engine until the client
detaches it."""

logger = logging.getLogger(__name__)


class LinkConnection(SendingClient, Protocol):
    """The connection (``Amqp1Connection``)."""

    @property
    def takes_more(self) -> bool:
        """Return whether its socket has room."""
        ...

    def look_at_times(self) -> None:
        """Compute the next deadline."""

    def end(self, condition: str, description: str) -> None:
        """Close the connection with an error."""


class Links:
    """The ``Events`` of one connection's engine. Belongs to the event loop's thread."""

    def __init__(self, parts: Parts, connection: LinkConnection, identity: Identity, held: Amqp1Inbox) -> None:
        """Begin for an admitted client. Call ``begin`` afterwards."""
        self._parts = parts
        self._connection = connection
        self._receiving = Receiving(parts, connection, identity, held.owner)
        self._sending = Sending(parts, connection, identity, held, self._receiving.queue_client)
        self._links: dict[int, IncomingLink | OutgoingLink] = {}
        self._sessions: dict[int, int] = {}
        """Number of a link -> number of its session."""
        self._open: set[int] = set()
        """Numbers of the sessions charged to the owner."""
        self._refused = 0
        self._is_over = False
        self._owner = held.owner
        self.container = ""
        """The client's container identifier."""
        self._engine: Engine

    def begin(self, engine: Engine) -> None:
        """Handle the engine's events."""
        self._engine = engine

    def end_read(self) -> None:
        """Note that a read is over."""
        self._sending.end_read()

    def room(self) -> None:
        """Resume sending: the client's socket has room."""
        for link in list(self._links.values()):
            link.room()

    def permissions_changed(self) -> None:
        """Close the links on which the client may no longer receive."""
        for link in list(self._links.values()):
            link.permissions_changed()

    def end(self) -> None:
        """Detach all links: the connection is gone. Later events are ignored."""
        self._is_over = True
        for number in list(self._links):
            self._drop(number, closed=False)
        if self._open:
            self._parts.links.free(self._owner, SESSION_LINKS * len(self._open))
            self._open.clear()
        self._sending.end()
        if self._parts.queues is not None:
            self._parts.queues.gone(self._receiving.queue_client)

    # --- events

    def opened(self) -> None:
        """Answer ``open``."""
        if self._is_over:
            return
        container = self._engine.remote_container
        if len(container.encode()) > NAME_BYTES_MAX:
            self._engine.open(self._parts.software)
            self._connection.end("amqp:invalid-field", f"a container-id is at most {NAME_BYTES_MAX} bytes")
            return
        self.container = self._sending.container = self._receiving.container = container
        self._engine.open(self._parts.software)
        self._connection.look_at_times()

    def closed(self) -> None:
        """Answer ``close``."""
        for number in list(self._links):
            self._drop(number, closed=False)
        self._engine.close()

    def session_opened(self, session: Any) -> None:
        """Answer ``begin``."""
        if self._is_over:
            return
        if not self._parts.links.take(self._owner, SESSION_LINKS):
            self._parts.links.refuse(self._owner, SESSION_LINKS)
            # Close the connection, not only the session: the engine would keep a refused one until the client ends it.
            self._connection.end("amqp:resource-limit-exceeded", "the user has too many sessions and links; close some")
            return
        self._open.add(endpoints.key(session))
        session.incoming_capacity = SESSION_BYTES
        session.open()

    def session_closed(self, session: Any) -> None:
        """Answer ``end``."""
        number = endpoints.key(session)
        for link, of in list(self._sessions.items()):
            if of == number:
                self._drop(link, closed=False)
        if number in self._open:
            self._open.remove(number)
            self._parts.links.free(self._owner, SESSION_LINKS)
        session.close()
        session.free()

    def attached(self, link: Any) -> None:
        """Answer ``attach``, or refuse it."""
        if self._is_over:
            return
        try:
            if link.name is None or len(link.name.encode()) > NAME_BYTES_MAX:
                raise Refused("amqp:invalid-field", f"the name of a link is at most {NAME_BYTES_MAX} bytes")
            if len(self._links) >= LINKS_MAX:
                raise Refused("amqp:resource-limit-exceeded", f"a connection may have {LINKS_MAX} links")
            if not self._parts.links.take(self._owner):
                self._parts.links.refuse(self._owner)
                raise Refused("amqp:resource-limit-exceeded", "the user has too many links; close some")
            try:
                found = self._accept(link)
            except Refused:
                self._parts.links.free(self._owner)
                raise
        except Refused as refusal:
            self._refuse(link, refusal)
            return
        number = endpoints.key(link)
        self._links[number] = found
        self._sessions[number] = endpoints.key(link.session)
        self._engine.join(link, found)
        found.begin()

    def detached(self, link: Any, *, closed: bool) -> None:
        """Answer ``detach``."""
        self._drop(endpoints.key(link), closed=closed)
        if closed:
            link.close()
        else:
            link.detach()
        self._engine.forget(link)

    # --- inside

    def _accept(self, link: Any) -> IncomingLink | OutgoingLink:
        if link.is_sender:
            return self._receiving.accept(link)
        target = link.remote_target
        if endpoints.is_coordinator(target):
            raise Refused("amqp:not-implemented", "this node has no transactions for clients of AMQP 1.0")
        if target.dynamic:
            raise Refused("amqp:not-implemented", "this node makes no targets for clients to send to")
        found = IncomingLink(self._sending, link, target.address or "", endpoints.address_of(target))
        found.check()
        link.source.copy(link.remote_source)
        link.target.copy(target)
        link.max_message_size = self._parts.message_bytes_max
        endpoints.accept_attach(link)
        return found

    def _refuse(self, link: Any, refusal: Refused) -> None:
        self._refused += 1
        if self._refused > REFUSED_MAX:
            self._connection.end("amqp:resource-limit-exceeded", f"{self._refused} links were refused")
            return
        logger.info("refused a link of AMQP 1.0 client %r: %s", self.container[:80], refusal)
        endpoints.refuse(link, refusal.condition, str(refusal))

    def _drop(self, number: int, *, closed: bool) -> None:
        found = self._links.pop(number, None)
        if found is not None:
            del self._sessions[number]
            self._engine.leave(number)
            found.end(closed=closed)
            self._parts.links.free(self._owner)
