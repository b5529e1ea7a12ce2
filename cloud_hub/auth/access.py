"""Access control of HTTP requests: the tenant, the streams and the edges that a token permits."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from weft.bounds import Events, Owner, OwnerKind, SecurityEvent, Severity, address_owner
from weft.bounds.browsers import MISDIRECTED_REQUEST, is_misdirected, misdirected_advice
from weft.cloud_hub.auth.certificates import (
    CERTIFICATE_REVOKED,
    NEW_CERTIFICATE,
    Certificates,
    NoEdge,
    ReaderCertificate,
)
from weft.cloud_hub.auth.claims import JwtRefused
from weft.cloud_hub.auth.tokens import NO_TOKEN, TokenIdentity, Tokens, is_jwt
from weft.hub_api.answers import ApiError
from weft.hub_api.rights import CONCERNS, Right, Scope
from weft.protocols.chunk_index import StreamKey
from weft.protocols.lane import NAME_CHARACTERS_MAX, NAME_RULE, NodeName, valid_name
from weft.replication.attempts import REASON_HEADER

UNAUTHORISED, UNAVAILABLE = 401, 503
_ADVICE = {
    Right.WRITE: "use a token of scope edge (`weft hub token add HUB NAME --scope edge --edge EDGE`)",
    Right.READ: "use a token of scope reader (`weft hub token add HUB NAME --scope reader`), or a grant read:STREAM",
    Right.SHARE: "use a token of `weft hub share`, or of scope reader (`weft hub token add HUB NAME --scope reader`)",
    Right.EDGES: "use a token of scope reader (`weft hub token add HUB NAME --scope reader`), or the grant edges",
    Right.PUBLISH: "use a token of scope publish (`weft hub token add HUB NAME --scope publish`), or the grant "
    "publish:EDGE",
    Right.PULL: "use a token of scope pull (`weft hub token add HUB NAME --scope pull`), or with a grant pull:STREAM",
    Right.RELAY: "use a token of scope region (`weft hub token add HUB NAME --scope region`), or a grant relay:STREAM",
    Right.STATUS: "use a token of scope admin (`weft hub token add HUB NAME --scope admin`), or the grant status",
    Right.METRICS: "use a token of scope admin (`weft hub token add HUB NAME --scope admin`), or the grant metrics",
    Right.ACTS: "use a token of scope admin (`weft hub token add HUB NAME --scope admin`), or the grant acts",
    Right.TENANTS: "use a token with the grant tenants, or `weft hub tenant set`",
    Right.REPORT: "use a token with the grant report (`weft hub token add HUB NAME --grant report`)",
    Right.DECLARE: "use a token with a grant declare:STREAM (`weft hub token add HUB NAME --grant declare:STREAM`)",
    Right.NODES: "use a token with the grant nodes, or `weft hub drain` and `weft hub split` with the configuration",
    Right.TOKENS: "use a token with the grant tokens, or `weft hub token` with the configuration",
}
"""Right -> what opens it."""
CHALLENGE_CHARACTERS_MAX = 400


class _Checked(NamedTuple):
    """The outcome of the check of a request's JSON Web Token: one of the two."""

    identity: TokenIdentity | None = None
    refused: JwtRefused | None = None


_CHECKED = web.RequestKey("checked", _Checked)
NO_CERTIFICATE = "this hub accepts only links with a client certificate"


def headers_of(error: ApiError) -> dict[str, str]:
    """Return the headers of the answer to a refused request."""
    headers = {} if error.retry_s is None else {"Retry-After": str(max(1, math.ceil(error.retry_s)))}
    if error.status == UNAUTHORISED:
        headers["WWW-Authenticate"] = challenge(error.error)
    if error.status == UNAVAILABLE:
        headers[REASON_HEADER] = _plain(error.error)
    return headers


def challenge(reason: str) -> str:
    """Return the header ``WWW-Authenticate`` of a 401 (RFC 9110, section 11.6.1). It has the reason as well, since
    clients of WebSockets see no body (RFC 6750, section 3)."""
    if reason == NO_TOKEN.error:
        return "Bearer"
    return f'Bearer error="invalid_token", error_description="{_plain(reason)}"'


def _plain(reason: str) -> str:
    """Return a reason as a header may have it."""
    shown = "".join(c if c not in '"\\' and c.isascii() and c.isprintable() else "'" for c in reason)
    return shown[:CHALLENGE_CHARACTERS_MAX]


class Charged(NamedTuple):
    """Owners to which a reader's request is charged."""

    owner: Owner
    """The request's token; without tokens the client's address (for IPv6 its /64)."""
    tenant: Owner
    """The token's tenant; for an admin and without tokens the owner itself."""


class Access:
    """Checks of requests by token, or without tokens by the peer's address.

    Args:
        open_to_network: without tokens, admit clients of other machines as well.
        hosts: without tokens, names of the hub that readers may use besides addresses; None: any.
        certificates: client certificates of edges and readers; None if none are requested.
        events: gets refusals; None for none.
        now: nanoseconds since 1970.
    """

    def __init__(
        self,
        tokens: Tokens,
        open_to_network: bool,
        hosts: Collection[str] | None = None,
        certificates: Certificates | None = None,
        events: Events | None = None,
        *,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._tokens = tokens
        self._open_to_network = open_to_network
        self._hosts = hosts
        self._certificates = certificates
        self._events = events
        self._now = now

    @property
    def middleware(self) -> Middleware:
        """Return the middleware that checks the JSON Web Token of a request, and may wait for the issuer. Later checks
        of the request do not wait."""

        @web.middleware
        async def checked(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            given, jwts = _bearer(request), self._tokens.jwts
            if given is not None and jwts is not None and is_jwt(given):
                try:
                    request[_CHECKED] = _Checked(await jwts.check(given))
                except JwtRefused as error:
                    request[_CHECKED] = _Checked(refused=error)
            return await handler(request)

        return checked

    def link(self, request: web.Request) -> TokenIdentity | None:
        """Return the edge's identity for a link; None when the hub has no tokens and trusts HELLO.

        Raises:
            ApiError: 401, 403.
        """
        if "Origin" in request.headers:
            # Only browsers send it, and any page opened on this machine could reach a loopback port.
            raise ApiError(403, "links are not for browsers", "connect with weft edge run")
        identity = self._of_certificate(request) or self._identity(request)
        if identity is not None and not identity.is_region:
            _check(identity, Right.WRITE)
        return identity

    def _of_certificate(self, request: web.Request) -> TokenIdentity | None:
        """Return the edge that a link's certificate names. A token goes before it, and proxies show one for all."""
        if self._certificates is None:
            return None
        if self._certificates.is_revoked(request):
            # A handshake checks the lists once, and a connection that stays open may ask for one link after another.
            raise ApiError(403, CERTIFICATE_REVOKED, NEW_CERTIFICATE)
        if self._certificates.required and not self._certificates.is_shown(request):
            raise ApiError(403, NO_CERTIFICATE, "set certificate and key of the link at the edge")
        if "Authorization" in request.headers and self._tokens.required:
            return None  # without tokens, any words would set the certificate aside, and HELLO name any edge
        try:
            return self._certificates.identity(request)
        except NoEdge as error:
            raise ApiError(403, str(error), "give the edge a certificate of its own, or a token") from None

    @property
    def needs_token(self) -> bool:
        """Return whether every request needs a token."""
        return self._tokens.required

    async def consumer(self, token: str | None, host: str, on: str) -> TokenIdentity | None:
        """Return the identity of a client of another protocol than HTTP that reads; None without tokens.

        Args:
            token: token that it sent; None if it sent none.
            host: its address.
            on: what it came to, for the event of a refusal.

        Raises:
            ApiError: 401, 403.
        """
        try:
            if not self._tokens.required:
                self._check_network(host)
                return None
            jwts = self._tokens.jwts
            try:
                identity = await jwts.check(token) if token and jwts and is_jwt(token) else self._tokens.identify(token)
            except JwtRefused as error:
                raise ApiError(UNAUTHORISED, error.error, error.advice, retry_s=error.retry_s) from None
            if identity is None:
                raise ApiError(UNAUTHORISED, *self._tokens.refusal(token))
            _check(identity, Right.READ)
        except ApiError as error:
            if self._events is not None:
                event = SecurityEvent.LOGIN_FAILED if error.status == UNAUTHORISED else SecurityEvent.ACCESS_REFUSED
                self._events.note(event, Severity.WARNING, address_owner(host), error.error, on=on)
            raise
        return identity

    def is_over(self, identity: TokenIdentity | None) -> bool:
        """Return whether an identity that was admitted is no longer in force: withdrawn, changed or expired."""
        return bool(self._tokens.revoked([identity]))

    def stream(self, request: web.Request, right: Right = Right.READ) -> StreamKey:
        """Return the tenant and the stream that a request with a right is for.

        Raises:
            ApiError: 400, 401, 403, 421.
        """
        tenant, identity = self._permitted(request, right)
        stream = request.match_info["stream"]
        self.check(identity, right, stream)
        return tenant, stream

    def streams(self, request: web.Request) -> tuple[str, Callable[[str], bool]]:
        """Return the tenant whose streams a request may list, and which of them.

        Raises:
            ApiError: 400, 401, 403, 421.
        """
        tenant, identity = self._permitted(request, Right.READ)
        return tenant, lambda stream: identity is None or identity.rights.allow(Right.READ, stream)

    def tables(self, request: web.Request, *rights: Right) -> tuple[str | None, Callable[[str], bool]]:
        """Return the tenant whose tables a request may read, None for all: for an admin, or without tokens; and which
        of its streams have them, by any of some rights over streams.

        Raises:
            ApiError: 401, 403, 421.
        """
        identity = self.reader(request)
        if identity is None:
            return None, lambda _: True
        held = identity.rights
        if not any(right in held for right in rights):
            _check(identity, rights[-1])
        tenant = None if identity.scope is Scope.ADMIN else identity.tenant
        return tenant, lambda stream: any(held.allow(right, stream) for right in rights)

    def tenants(self, request: web.Request) -> str | None:
        """Return the tenant whose edges a request may see; None for all: for an admin, or without tokens.

        Raises:
            ApiError: 400, 401, 403, 421.
        """
        tenant, identity = self._permitted(request, Right.EDGES)
        of_all = identity is None or identity.scope is Scope.ADMIN
        return None if of_all and "tenant" not in request.query else tenant

    def edge(self, request: web.Request) -> NodeName:
        """Return the edge that a request of a reader is for.

        Raises:
            ApiError: 400, 401, 403, 421.
        """
        tenant, _ = self._permitted(request, Right.EDGES)
        return NodeName(tenant, request.match_info["edge"])

    def publisher(self, request: web.Request) -> tuple[str, TokenIdentity | None]:
        """Return the tenant to whose edges a request may publish, and the token; None without tokens.

        Raises:
            ApiError: 400, 401, 403, 421.
        """
        return self._acting(request, Right.PUBLISH, "use `weft hub publish`")

    def puller(self, request: web.Request) -> tuple[str, TokenIdentity | None]:
        """Return the tenant whose edges a request may ask for records, and the token, as ``publisher``.

        Raises:
            ApiError: 400, 401, 403, 421.
        """
        return self._acting(request, Right.PULL, "use `weft hub pull`")

    def reporter(self, request: web.Request) -> tuple[str, TokenIdentity | None]:
        """Return the tenant of whose pipelines a request reports, and the token, as ``publisher``.

        Raises:
            ApiError: 400, 401, 403, 421.
        """
        return self._acting(request, Right.REPORT, "use `weft spark run PIPELINE --report URL`")

    def check(self, identity: TokenIdentity | None, right: Right, name: str) -> None:
        """Refuse a request whose right does not cover a stream or an edge.

        Raises:
            ApiError: 403.
        """
        if identity is not None and not identity.rights.allow(right, name):
            has = ", ".join(identity.rights.texts)
            error = f"{identity.shown} is not for {CONCERNS[right]} {name[:NAME_CHARACTERS_MAX]!r}"
            raise ApiError(403, error, f"it has the rights {has}; another needs {right}:{CONCERNS[right].upper()}")

    def _acting(self, request: web.Request, right: Right, instead: str) -> tuple[str, TokenIdentity | None]:
        tenant, identity = self._permitted(request, right)
        if identity is None and "Origin" in request.headers:
            # Only browsers send it, and any page opened on this machine could reach edges by a loopback port.
            raise ApiError(403, "without tokens, this is not for browsers", instead)
        return tenant, identity

    def _permitted(self, request: web.Request, right: Right) -> tuple[str, TokenIdentity | None]:
        """Return the tenant of a request that has a right: ``?tenant=``, else the token's own, else "default"."""
        identity = self.reader(request)
        wanted = _tenant(request)
        if identity is None:
            return wanted or "default", None
        _check(identity, right)
        if identity.scope is not Scope.ADMIN and wanted not in (None, identity.tenant):
            error = f"{identity.shown} is for tenant {identity.tenant}, and not for {wanted}"
            raise ApiError(
                403, error, "leave out ?tenant= (--tenant), or use a token of that tenant, or of scope admin"
            )
        return wanted or identity.tenant, identity

    def charged(self, request: web.Request) -> Charged:
        """Return the owners to which a reader's request is charged.

        Raises:
            ApiError: 401, 403, 421.
        """
        return charged_to(self.reader(request), request.remote or "")

    def note_refusal(self, request: web.Request, error: ApiError) -> None:
        """Record an event for an answer of status 401 or 403. Other answers are ignored."""
        if self._events is None or error.status not in (401, 403):
            return
        try:
            identity = self._identity(request)
        except ApiError:
            identity = None
        owner = address_owner(request.remote or "") if identity is None else Owner(OwnerKind.TOKEN, identity.name)
        # Without a token it may be a person with a browser; with a wrong one, a program or a person tries.
        severity = Severity.WARNING if "Authorization" in request.headers else Severity.NOTICE
        event = SecurityEvent.LOGIN_FAILED if error.status == 401 else SecurityEvent.ACCESS_REFUSED
        self._events.note(event, severity, owner, error.error, on=f"{request.method} {request.path}")

    def operate(self, request: web.Request, right: Right) -> None:
        """Permit a request that needs a right over the hub as a whole.

        Raises:
            ApiError: 401, 403, 421.
        """
        identity = self.reader(request)
        if identity is not None:
            _check(identity, right)

    def reader(self, request: web.Request) -> TokenIdentity | None:
        """Return the identity of a reader, of any scope; None without tokens, in which case the request's host name is
        checked.

        Raises:
            ApiError: 401, 403, 421.
        """
        self.check_name(request)
        return self._identity(request)

    def check_name(self, request: web.Request) -> None:
        """Refuse a request under a host name that is not the hub's: without tokens, a foreign page could otherwise read
        the hub by DNS rebinding.

        Raises:
            ApiError: 421.
        """
        hosts = request.headers.getall("Host", ())
        if not self._tokens.required and self._hosts is not None and is_misdirected(hosts, self._hosts):
            error = "the hub is not read under this name"
            raise ApiError(MISDIRECTED_REQUEST, error, misdirected_advice("hosts"))

    def _of_reader(self, request: web.Request) -> ReaderCertificate | None:
        """Return the reader that a request's certificate names; None for others. A token goes before it."""
        if self._certificates is None or (reader := self._certificates.reader(request)) is None:
            return None
        if self._certificates.is_revoked(request):
            raise ApiError(403, CERTIFICATE_REVOKED, "get a new one, or use a token")
        if self._now() >= reader.until:  # a handshake looks at it once, and a connection may stay open for long
            raise ApiError(UNAUTHORISED, f"{reader.shown} has expired", "get a new one, or use a token")
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            # A browser shows its certificate for whatever page asks.
            raise ApiError(403, f"{reader.shown} is not for pages of other sites", "use a token")
        return reader

    def _identity(self, request: web.Request) -> TokenIdentity | None:
        if "Authorization" not in request.headers and (reader := self._of_reader(request)) is not None:
            return reader
        if not self._tokens.required:
            self._check_network(request.remote)
            return None
        checked: _Checked | None = request.get(_CHECKED)
        if checked is not None:
            return self._checked(checked)
        given = _bearer(request)
        identity = self._tokens.identify(given)
        if identity is None:
            raise ApiError(UNAUTHORISED, *self._tokens.refusal(given))
        return identity

    def _check_network(self, host: str | None) -> None:
        """Refuse a client of another machine, at a hub without tokens."""
        if not self._open_to_network and not _is_loopback(host):
            raise ApiError(
                403,
                "without tokens this hub serves its own machine only",
                "make tokens (`weft hub token add`), or trust the network: `anonymous: allowed_beyond_loopback`",
            )

    def _checked(self, checked: _Checked) -> TokenIdentity | None:
        """Return the bearer of a JSON Web Token that was checked when its request came."""
        identity, refused = checked
        if refused is not None:
            status = UNAUTHORISED if refused.retry_s is None else UNAVAILABLE
            raise ApiError(status, refused.error, refused.advice, retry_s=refused.retry_s)
        # An answer may continue for longer than its token counts, and asks again meanwhile.
        if identity is not None and (why := self._tokens.lapsed(identity)) is not None:
            raise ApiError(UNAUTHORISED, *why)
        return identity

    def until(self, identity: TokenIdentity) -> int | None:
        """Return the moment at which a token or certificate ends, nanoseconds since 1970; None for no end, or if it is
        unknown."""
        return identity.until if isinstance(identity, ReaderCertificate) else self._tokens.until(identity)

    def left_s(self, identity: TokenIdentity) -> float | None:
        """Return the seconds until a token or certificate ends; None as ``until``."""
        until = self.until(identity)
        return None if until is None else (until - self._now()) / 1e9


def charged_to(identity: TokenIdentity | None, host: str) -> Charged:
    """Return the owners to which requests of a client are charged.

    Args:
        host: its address, which counts without a token.
    """
    owner = address_owner(host) if identity is None else Owner(OwnerKind.TOKEN, identity.name)
    if identity is None or identity.scope is Scope.ADMIN:
        return Charged(owner, owner)
    return Charged(owner, Owner(OwnerKind.TENANT, identity.tenant))


CHECKED_AT_ONCE = 200
"""Maximum number of streams checked before other tasks have a turn: each may be compared with 64 patterns."""


async def readable(names: Iterable[str], is_readable: Callable[[str], bool], limit: int | None = None) -> list[str]:
    """Return the streams that a token may read, in the given order. Other tasks have a turn after ``CHECKED_AT_ONCE``.

    Args:
        limit: maximum number of streams to return; None for all.
    """
    found: list[str] = []
    for at, name in enumerate(names, 1):
        if is_readable(name):
            found.append(name)
            if len(found) == limit:
                break
        if at % CHECKED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


def _check(identity: TokenIdentity, right: Right) -> None:
    if right in identity.rights:
        return
    granted = f"the rights {', '.join(identity.rights.texts)}"
    has = granted if identity.scope is Scope.GRANTED else f"the scope {identity.scope}"
    raise ApiError(403, f"{identity.shown} of tenant {identity.tenant} has {has}", _ADVICE[right])


def _bearer(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _tenant(request: web.Request) -> str | None:
    """Return the tenant that a request names; None if it names none."""
    wanted = request.query.get("tenant")
    if wanted is not None and not valid_name(wanted):
        raise ApiError(400, f"tenant={wanted[:80]!r}", f"expected {NAME_RULE}")
    return wanted


def _is_loopback(remote: str | None) -> bool:
    try:
        address = ipaddress.ip_address(remote or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
