"""Client certificates: the edge that a link's certificate names, the rights of a reader's certificate, and the end of
links whose certificate is revoked."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from aiohttp import web

from weft.cloud_hub.auth.tokens import TokenIdentity
from weft.cloud_hub.settings import CertificateRights
from weft.hub_api.rights import TOKEN_NAME_CHARACTERS_MAX, Scope, grants_of
from weft.network.tls import CertificateName, certificate_name, common_name
from weft.protocols.lane import NAME_RULE, node_in_certificate
from weft.protocols.link import RefuseCode

COMMON_NAME, UNIT = "CN=", "OU="
End = Callable[[RefuseCode, str, str], object]
"""Function that ends a link, with a reason and advice for the edge."""
NAME_PREFIX = "certificate:"
"""Prefix of the names of readers with a certificate, so that a common name is never the name of a token."""
_NAMELESS = "without a common name"
CERTIFICATE_REVOKED = "the certificate of the link was revoked"
NEW_CERTIFICATE = "give the edge a new one if it still belongs here"


class CertificateIdentity(TokenIdentity, frozen=True):
    """An edge that authenticates by its certificate: ``name`` is the common name, ``sha256`` the certificate's."""

    @property
    def shown(self) -> str:
        """Return what it is called in messages."""
        return f"the certificate {self.name!r}"


class ReaderCertificate(TokenIdentity, frozen=True, kw_only=True):
    """A person or a program that authenticates by a certificate: ``name`` has its common name, ``sha256`` is the
    certificate's."""

    until: int
    """End of the certificate, nanoseconds since 1970."""

    @property
    def common_name(self) -> str:
        """Return the common name of the certificate."""
        return self.name.removeprefix(NAME_PREFIX)

    @property
    def shown(self) -> str:
        """Return what it is called in messages."""
        return f"the certificate {self.common_name!r}"


class NoEdge(ValueError):
    """A verified certificate that names no edge."""


class Certificates:
    """Certificates of edges and readers that TLS handshakes have verified. Event loop's thread only.

    Args:
        required: whether links without a certificate are refused.
        readers: name of a reader's certificate (``is_reader_name``) -> its rights.
    """

    def __init__(self, *, required: bool, readers: Mapping[str, CertificateRights] = MappingProxyType({})) -> None:
        self.required = required
        self._readers = readers
        self._revoked: frozenset[CertificateName] = frozenset()
        self._open: dict[End, CertificateName] = {}
        """Open links with a certificate, by the function that ends each."""

    def identity(self, request: web.Request) -> CertificateIdentity | None:
        """Return the edge that the certificate of a request names; None without a certificate. Raises: NoEdge: it names
        no edge.
        """
        certificate = _certificate(request)
        if certificate is None:
            return None
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        name = common_name(peer) or ""
        if self._rights(peer) is not None:
            raise NoEdge(f"the certificate {name!r} is one of a reader, by `tls.readers`")
        node = node_in_certificate(name)
        if node is None:
            raise NoEdge(
                f"the certificate's common name {name!r} is neither an edge nor tenant, slash and edge ({NAME_RULE})"
            )
        fingerprint = hashlib.sha256(certificate).hexdigest()
        return CertificateIdentity(name, fingerprint, Scope.EDGE, node.tenant, node.edge)

    def reader(self, request: web.Request) -> ReaderCertificate | None:
        """Return the reader that the certificate of a request names; None without a certificate, or if it is not a
        reader's."""
        if not self._readers or (certificate := _certificate(request)) is None:
            return None
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        found = self._rights(peer)
        if found is None:
            return None
        grants = tuple(dict.fromkeys(grant for right in found.rights for grant in grants_of(right)))
        scope = Scope.ADMIN if Scope.ADMIN in found.rights else Scope.GRANTED
        until = int(ssl.cert_time_to_seconds(peer["notAfter"])) * 10**9
        name = f"{NAME_PREFIX}{(common_name(peer) or _NAMELESS)[:TOKEN_NAME_CHARACTERS_MAX]}"
        return ReaderCertificate(
            name, hashlib.sha256(certificate).hexdigest(), scope, found.tenant, None, grants, until=until
        )

    def _rights(self, peer: dict[str, Any] | None) -> CertificateRights | None:
        """Return the rights of a verified certificate of a reader; None for others."""
        if not self._readers:
            return None
        subject = [pair for part in (peer or {}).get("subject", ()) for pair in part]
        units = [f"{UNIT}{value}" for key, value in subject if key == "organizationalUnitName"]
        name = common_name(peer)
        names = [f"{COMMON_NAME}{name}", *units] if name else units
        return next((self._readers[each] for each in names if each in self._readers), None)

    def is_shown(self, request: web.Request) -> bool:
        """Return whether the request's connection has a certificate."""
        return _certificate(request) is not None

    def is_revoked(self, request: web.Request) -> bool:
        """Return whether a request's certificate is revoked, also since the handshake of its connection."""
        certificate = _certificate(request)
        return certificate is not None and certificate_name(certificate) in self._revoked

    @contextlib.contextmanager
    def opened(self, request: web.Request, end: End) -> Iterator[None]:
        """Register a link while it is open.

        Args:
            end: ends the link when its certificate is revoked.
        """
        certificate = _certificate(request)
        if certificate is not None:
            self._open[end] = certificate_name(certificate)
        try:
            yield
        finally:
            self._open.pop(end, None)

    def use(self, revoked: frozenset[CertificateName]) -> None:
        """Replace the revoked certificates, and end the links of those that were added."""
        added, self._revoked = revoked - self._revoked, revoked
        for end, name in list(self._open.items()):
            if name in added:
                end(RefuseCode.UNAUTHORISED, CERTIFICATE_REVOKED, NEW_CERTIFICATE)


def is_reader_name(text: str) -> bool:
    """Return whether a text names certificates of readers: ``CN=`` and a common name, or ``OU=`` and a unit."""
    return any(text.startswith(each) and len(text) > len(each) for each in (COMMON_NAME, UNIT))


def _certificate(request: web.Request) -> bytes | None:
    """Return the certificate of a request's connection in DER; None without one."""
    connection: Any = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    found: bytes | None = None if connection is None else connection.getpeercert(binary_form=True)
    return found
