"""The sender of a connection's requests: its identity, checked once for all requests with the same credentials."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weft.bounds import Owner, user_or_address
from weft.edge_node.access.credentials import AccessDenied, Denial
from weft.edge_node.access.identity import Identity
from weft.edge_node.ingest.routing import RouteCache
from weft.edge_node.servers.clients.place import FULL, Place
from weft.edge_node.servers.http.access import CHALLENGE, claim_of, credentials_of
from weft.edge_node.servers.http.problem import Problem, try_later
from weft.edge_node.servers.http.request import Request
from weft.edge_node.servers.http.server import Server
from weft.edge_node.servers.listeners.door import Arrival, Door

log = logging.getLogger(__name__)


class Sender:
    """The only client of a connection. Event loop's thread only."""

    __slots__ = ("_arrival", "_claim", "_door", "_place", "_said", "_service", "_task", "denied", "identity",
                 "owner", "routes")  # fmt: skip

    def __init__(self, service: Server, door: Door, arrival: Arrival) -> None:
        self._service = service
        self._door = door
        self._arrival = arrival
        self._claim: bytes | None = None
        """Claim of the results below."""
        self.identity: Identity | None = None
        self.denied: Problem | None = None
        """Refusal of the claim."""
        self.routes: RouteCache | None = None
        self.owner: Owner = user_or_address(None, arrival.origin)
        self._place = Place(service.context.places, service.context.counters)
        self._task: asyncio.Task[None] | None = None
        self._said = 0
        """Level at which a refusal was logged."""

    def is_known(self, request: Request) -> bool:
        """Return whether a request's sender is known, or does not matter."""
        if self._service.is_open_to_all(request):
            return True
        try:
            claim = claim_of(request)
        except Problem:
            return True  # it is refused in any case
        if claim != self._claim:
            return False
        return self.denied is not None or (self.identity is not None and self.identity.admitted)

    def known(self) -> tuple[Identity, RouteCache]:
        """Return the identity, and its routes to the streams.

        Raises:
            Problem: it is refused.
        """
        if self.denied is not None:
            raise self.denied
        assert self.identity is not None
        assert self.routes is not None
        return self.identity, self.routes

    def has_to_go(self) -> bool:
        """Return whether it was admitted and no longer would be: an idle one would keep a place of others."""
        if self.identity is None or self.identity.admitted:
            return False
        self._service.context.counters.clients_expelled += 1
        log.warning("closing HTTP client at %s: its user was removed, or has another password", self._arrival.name)
        return True

    def ask(self, request: Request, transport: asyncio.Transport | None, then: Callable[[], None]) -> None:
        """Check the sender of a request, and call back."""
        self.forget()
        self._claim = claim_of(request)
        self._task = self._service.context.run(self._let_in(self._claim, transport, then))

    def forget(self) -> None:
        """Forget the identity: another client sends, or the connection has ended."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._place.free()
        if self.routes is not None:
            self._service.context.routing.leave(self.routes)
        self._claim = self.identity = self.denied = self.routes = None

    async def _let_in(self, claim: bytes, transport: asyncio.Transport | None, then: Callable[[], None]) -> None:
        try:
            identity = await self._door.authenticate(credentials_of(claim), transport, self._arrival.origin)
            if not await self._arrival.room():
                raise try_later(503, "as many clients as limits.connections allows are connected; try again later")
            if not identity.admitted:
                raise Problem(401, "the user has changed; send its present password", fields=CHALLENGE)
            self._count(identity)
            self._arrival.opened()
            self.identity, self.routes = identity, self._service.context.routing.routes_of(identity)
        except AccessDenied as error:
            self.denied = _denied(error)
            self._say(error)
        except Problem as problem:
            self.denied = problem
        self._task = None
        then()

    def _say(self, error: AccessDenied) -> None:
        """Log a refusal, once for a connection. Programs often send no credentials at first: that has a lower level."""
        level = logging.WARNING if self._claim else logging.INFO
        if level > self._said:
            self._said = level
            log.log(level, "refused HTTP client at %s: %s", self._arrival.name, error)

    def _count(self, identity: Identity) -> None:
        owner = user_or_address(identity.username, self._arrival.origin)
        if not self._place.take(owner):
            raise try_later(503, FULL)
        self.owner = owner


def _denied(error: AccessDenied) -> Problem:
    if error.denial is Denial.BUSY:
        return try_later(503, f"{error}; try again")
    # A flood of requests without a valid password pays for a connection each time.
    advice = "send a user name and password" if error.denial is Denial.NOT_ALLOWED else "send another one"
    return Problem(401, f"{error}; {advice}", closes=True, fields=CHALLENGE)
