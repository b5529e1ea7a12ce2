"""Access to the HTTP server: credentials in requests, the identity of a connection's sender, and browsers' origins."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from weft.bounds import Owner, user_or_address
from weft.bounds.browsers import (
    MISDIRECTED_REQUEST,
    is_misdirected,
    is_own_name,
    misdirected_advice,
    parse_origin,
    served_origin,
)
from weft.edge_node.access.identity import AccessDenied, Credentials, Denial, Identity
from weft.edge_node.ingest.routing import RouteCache
from weft.edge_node.servers.clients.reading import FULL, ConnectionSlot
from weft.edge_node.servers.http.request import Fields, Problem, Request, Server, try_later
from weft.edge_node.servers.http.settings import BrowserSettings
from weft.edge_node.servers.listeners.settings import AcceptedConnection, Authenticator

# Credentials in requests: Basic (RFC 7617), and the tokens of InfluxDB's clients.

V1_PATHS = (b"/write", b"/query")
"""Paths of InfluxDB 1, whose clients may send credentials in the query of the URL."""
CHALLENGE = (("WWW-Authenticate", 'Basic realm="weft", charset="UTF-8"'),)
_HOW = "send `Authorization: Basic` with a user name and password, or `Bearer NAME:PASSWORD`"


def claim_of(request: Request) -> bytes:
    """Return a request's credentials undecoded: two requests with the same claim have the same sender."""
    claim = request.headers.get(b"authorization", b"")
    if not claim and request.path in V1_PATHS:
        query = request.query
        if "u" in query or "p" in query:
            return f"?{query.get('u', '')}\0{query.get('p', '')}".encode()
    return claim


def credentials_of(claim: bytes) -> Credentials:
    """Return the credentials in a claim.

    Raises:
        Problem: the claim cannot be parsed.
    """
    if not claim:
        return Credentials()
    if claim.startswith(b"?"):
        name, _, password = claim[1:].partition(b"\0")
        return _named(name, password)
    scheme, _, rest = claim.partition(b" ")
    rest = rest.strip()
    if scheme.lower() == b"basic":
        try:
            rest = base64.b64decode(rest, validate=True)
        except (binascii.Error, ValueError):
            raise Problem(401, f"the credentials are not in base64; {_HOW}", fields=CHALLENGE) from None
    elif scheme.lower() not in (b"bearer", b"token"):
        raise Problem(401, f"this scheme of authentication is not known; {_HOW}", fields=CHALLENGE)
    name, colon, password = rest.partition(b":")
    if not colon:
        raise Problem(401, f"a token is a user name, a colon and the password here; {_HOW}", fields=CHALLENGE)
    return _named(name, password)


def _named(name: bytes, password: bytes) -> Credentials:
    try:
        return Credentials("", name.decode(), password)
    except UnicodeDecodeError:
        raise Problem(401, f"the user name is not UTF-8; {_HOW}", fields=CHALLENGE) from None


# Requests of web pages in a browser: their admission, and the fields of the answers for the browser.
#
# Two fields reveal a page. Requests to another origin, and all except GET and HEAD, have its Origin. And Host has a
# name that the page's owner had resolved to this machine (docs/decisions/0068-what-a-browser-may-ask.md); requests
# with credentials are not checked for Host, as a page has none.

SETTING = "origins"
PREFLIGHT_S = 600
HOSTS_MAX = 64
"""Maximum number of remembered hosts: with ports, a node has a few."""
_METHODS = "GET, HEAD, POST, OPTIONS"
_EXPOSED = "Retry-After, Idempotency-Replayed"


class Browsers:
    """The rules of one listener."""

    def __init__(self, settings: BrowserSettings) -> None:
        self._settings = settings
        named = (urlsplit(each).hostname for each in settings.origins if each != "*")
        self._names = frozenset(name for name in named if name)
        self._parsed = frozenset(filter(None, map(parse_origin, settings.origins)))
        self._own: set[bytes] = set()
        """Hosts of earlier requests that are the node's own names."""

    def check(self, request: Request) -> Fields:
        """Return the fields that every answer to a request has.

        Raises:
            Problem: it comes from a page that is not permitted.
        """
        headers = request.headers
        origin = headers.get(b"origin")
        settings = self._settings
        if origin is not None:
            text = origin.decode("latin-1")
            if not self._is_welcome(text, headers.get(b"host", b"")):
                raise Problem(
                    403, f"pages of this origin may not ask here; add it to `{SETTING}` of the listener if they should"
                )
            return (
                ("Access-Control-Allow-Origin", text),
                ("Access-Control-Expose-Headers", _EXPOSED),
                ("Vary", "Origin"),
            )
        if settings.is_loopback and b"authorization" not in headers and b"host" in headers:
            host = headers[b"host"]
            if host not in self._own:
                if "*" not in settings.origins and is_misdirected([host.decode("latin-1")], self._names):
                    advice = misdirected_advice(SETTING)
                    raise Problem(MISDIRECTED_REQUEST, f"this is not the name of this node; {advice}")
                if len(self._own) < HOSTS_MAX:
                    self._own.add(host)
        return ()

    def preflight(self, request: Request) -> Fields:
        """Return the fields of the answer to OPTIONS."""
        asked = request.headers.get(b"access-control-request-headers", b"").decode("latin-1")
        allowed = asked if asked and asked.isascii() and asked.isprintable() else "Content-Type"
        return (
            ("Allow", _METHODS),
            ("Access-Control-Allow-Methods", _METHODS),
            ("Access-Control-Allow-Headers", allowed),
            ("Access-Control-Max-Age", str(PREFLIGHT_S)),
        )

    def _is_welcome(self, text: str, host: bytes) -> bool:
        settings = self._settings
        origin = parse_origin(text)
        # Origins of other schemes, such as those of browser extensions, are compared as text.
        if "*" in settings.origins or text in settings.origins or (origin is not None and origin in self._parsed):
            return True
        if origin is None or origin != served_origin(settings.scheme, [host.decode("latin-1")]):
            return False
        return not settings.is_loopback or is_own_name(origin.host)


# The sender of a connection's requests: its identity, checked once for all requests with the same credentials.

log = logging.getLogger(__name__)


class RequestAuth:
    """The only client of a connection. Event loop's thread only."""

    __slots__ = (
        "_accepted",
        "_authenticator",
        "_claim",
        "_said",
        "_service",
        "_slot",
        "_task",
        "denied",
        "identity",
        "owner",
        "routes",
    )

    def __init__(self, service: Server, authenticator: Authenticator, accepted: AcceptedConnection) -> None:
        self._service = service
        self._authenticator = authenticator
        self._accepted = accepted
        self._claim: bytes | None = None
        """Claim of the results below."""
        self.identity: Identity | None = None
        self.denied: Problem | None = None
        """Refusal of the claim."""
        self.routes: RouteCache | None = None
        self.owner: Owner = user_or_address(None, accepted.origin)
        self._slot = ConnectionSlot(service.context.connection_bound, service.context.counters)
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

    def admits(self, head: Request) -> bool:
        """Return whether the sender of a request that is not open to all was checked, and may send."""
        identity = self.identity
        return identity is not None and claim_of(head) == self._claim and self.denied is None and identity.admitted

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
        log.warning("closing HTTP client at %s: its user was removed, or has another password", self._accepted.name)
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
        self._slot.free()
        if self.routes is not None:
            self._service.context.routing.leave(self.routes)
        self._claim = self.identity = self.denied = self.routes = None

    async def _let_in(self, claim: bytes, transport: asyncio.Transport | None, then: Callable[[], None]) -> None:
        try:
            identity = await self._authenticator.authenticate(credentials_of(claim), transport, self._accepted.origin)
            if not await self._accepted.room():
                raise try_later(503, "as many clients as limits.connections allows are connected; try again later")
            if not identity.admitted:
                raise Problem(401, "the user has changed; send its present password", fields=CHALLENGE)
            self._count(identity)
            self._accepted.opened()
            self.identity, self.routes = identity, self._service.context.routing.routes_of(identity)
        except AccessDenied as error:
            self.denied = _denied(error)
            self._log(error)
        except Problem as problem:
            self.denied = problem
        self._task = None
        then()

    def _log(self, error: AccessDenied) -> None:
        """Log a refusal, once for a connection. Programs often send no credentials at first: that has a lower level."""
        level = logging.WARNING if self._claim else logging.INFO
        if level > self._said:
            self._said = level
            log.log(level, "refused HTTP client at %s: %s", self._accepted.name, error)

    def _count(self, identity: Identity) -> None:
        owner = user_or_address(identity.username, self._accepted.origin)
        if not self._slot.take(owner):
            raise try_later(503, FULL)
        self.owner = owner


def _denied(error: AccessDenied) -> Problem:
    if error.denial is Denial.BUSY:
        return try_later(503, f"{error}; try again")
    # A flood of requests without a valid password pays for a connection each time.
    advice = "send a user name and password" if error.denial is Denial.NOT_ALLOWED else "send another one"
    return Problem(401, f"{error}; {advice}", closes=True, fields=CHALLENGE)
