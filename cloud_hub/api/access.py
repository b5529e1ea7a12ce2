"""Access control at the hub's port: the requests that a token permits."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from aiohttp import web

from weft.bounds import Owner, OwnerKind, address_owner
from weft.bounds.browsers import MISDIRECTED_REQUEST, is_misdirected, misdirected_advice
from weft.cloud_hub.api.certificates import CERTIFICATE_REVOKED, NEW_CERTIFICATE, Certificates, NoEdge
from weft.cloud_hub.api.tokens import Scope, TokenIdentity, Tokens

NO_CERTIFICATE = "this hub takes links with a client certificate only"


class ApiError(Exception):
    """An error response: HTTP status, the error, and advice."""

    def __init__(self, status: int, error: str, advice: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.advice = advice


class Access:
    """Checks of requests by token, or without tokens by the peer's address.

    Args:
        open_to_network: without tokens, admit peers of other machines too.
        hosts: without tokens, names of the hub that readers may use, beside addresses; None: any.
        certificates: those of edges; None if edges show none.
    """

    def __init__(
        self,
        tokens: Tokens,
        open_to_network: bool,
        hosts: Collection[str] | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self._tokens = tokens
        self._open_to_network = open_to_network
        self._hosts = hosts
        self._certificates = certificates

    def link(self, request: web.Request) -> TokenIdentity | None:
        """Return the edge's identity for a link; None when the hub has no tokens and trusts HELLO.

        Raises:
            ApiError: 401, 403.
        """
        if "Origin" in request.headers:
            # Only browsers send it, and any page opened on this machine could reach a loopback port.
            raise ApiError(403, "links are not for browsers", "connect with weft edge run")
        identity = self._of_certificate(request) or self._identity(request)
        if identity is not None and identity.scope is not Scope.EDGE:
            raise ApiError(
                403, f"the token {identity.name!r} has the scope {identity.scope}", "use a token for an edge"
            )
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

    def tenant(self, request: web.Request) -> str:
        """Return the tenant whose streams a request may read: ``?tenant=``, else the token's own, else "default".

        Raises:
            ApiError: 401, 403, 421.
        """
        identity = self._reader(request)
        wanted = request.query.get("tenant")
        if identity is None:
            return wanted or "default"
        if identity.scope is Scope.EDGE:
            raise ApiError(403, f"the token {identity.name!r} is for a link", "use a token of scope reader")
        if identity.scope is not Scope.ADMIN and wanted not in (None, identity.tenant):
            raise ApiError(403, f"the token {identity.name!r} is for tenant {identity.tenant}", "leave out ?tenant=")
        return wanted or identity.tenant

    def tenants(self, request: web.Request) -> str | None:
        """Return the tenant whose edges a request may see; None for all: for an admin, or without tokens.

        Raises:
            ApiError: 401, 403, 421.
        """
        identity = self._reader(request)
        if (identity is None or identity.scope is Scope.ADMIN) and "tenant" not in request.query:
            return None
        return self.tenant(request)

    def owner(self, request: web.Request) -> Owner:
        """Return the owner that is charged for a reader's request: its token, or without tokens its address (for IPv6
        its /64).

        Raises:
            ApiError: 401, 403, 421.
        """
        identity = self._reader(request)
        if identity is None:
            return address_owner(request.remote or "")
        return Owner(OwnerKind.TOKEN, identity.name)

    def operate(self, request: web.Request) -> None:
        """Permit a request that concerns the whole node.

        Raises:
            ApiError: 401, 403, 421.
        """
        identity = self._reader(request)
        if identity is not None and identity.scope is not Scope.ADMIN:
            raise ApiError(403, f"the token {identity.name!r} has the scope {identity.scope}", "use an admin token")

    def _reader(self, request: web.Request) -> TokenIdentity | None:
        """Return the identity of a reader. A foreign page in a browser has no token, but a name of its own for the
        hub."""
        hosts = request.headers.getall("Host", ())
        if not self._tokens.required and self._hosts is not None and is_misdirected(hosts, self._hosts):
            error = "the hub is not read under this name"
            raise ApiError(MISDIRECTED_REQUEST, error, misdirected_advice("hosts"))
        return self._identity(request)

    def _identity(self, request: web.Request) -> TokenIdentity | None:
        if not self._tokens.required:
            if not self._open_to_network and not _is_loopback(request.remote):
                raise ApiError(
                    403,
                    "without tokens this hub serves its own machine only",
                    "make tokens (`weft hub token add`), or trust the network: `anonymous: allowed_beyond_loopback`",
                )
            return None
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        identity = self._tokens.identify(token.strip()) if scheme.lower() == "bearer" else None
        if identity is None:
            raise ApiError(401, "no valid token", "send the header 'Authorization: Bearer TOKEN'")
        return identity


def _is_loopback(remote: str | None) -> bool:
    try:
        address = ipaddress.ip_address(remote or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
