"""Certificates of edges: whom a link's certificate names, and the end of links whose certificate is revoked."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

from weft.cloud_hub.api.tokens import Scope, TokenIdentity
from weft.network.tls.certificate import CertificateName, certificate_name
from weft.network.tls.contexts import common_name
from weft.protocols.lane import NAME_RULE, node_in_certificate
from weft.protocols.link import RefuseCode

End = Callable[[RefuseCode, str, str], object]
"""Function that ends a link, with a reason and advice for the edge."""

CERTIFICATE_REVOKED = "the certificate of the link was revoked"
NEW_CERTIFICATE = "give the edge a new one if it still belongs here"


class CertificateIdentity(TokenIdentity, frozen=True):
    """An edge that comes by its certificate: ``name`` is the common name, ``sha256`` that of the certificate."""

    @property
    def shown(self) -> str:
        """Return what it is called in messages."""
        return f"the certificate {self.name!r}"


class NoEdge(ValueError):
    """A verified certificate that names no edge."""


class Certificates:
    """The certificates of edges, which handshakes have verified. Event loop's thread only.

    Args:
        required: whether links without a certificate are refused.
    """

    def __init__(self, *, required: bool) -> None:
        self.required = required
        self._revoked: frozenset[CertificateName] = frozenset()
        self._open: dict[End, CertificateName] = {}
        """Open links with a certificate, by the function that ends each."""

    def identity(self, request: web.Request) -> CertificateIdentity | None:
        """Return the edge that the certificate of a request names; None without a certificate.

        Raises:
            NoEdge: it names none.
        """
        certificate = _certificate(request)
        if certificate is None:
            return None
        assert request.transport is not None
        name = common_name(request.transport.get_extra_info("peercert")) or ""
        node = node_in_certificate(name)
        if node is None:
            raise NoEdge(
                f"the certificate's common name {name!r} is neither an edge nor tenant, slash and edge ({NAME_RULE})"
            )
        fingerprint = hashlib.sha256(certificate).hexdigest()
        return CertificateIdentity(name, fingerprint, Scope.EDGE, node.tenant, node.edge)

    def is_shown(self, request: web.Request) -> bool:
        """Return whether a request came with a certificate."""
        return _certificate(request) is not None

    def is_revoked(self, request: web.Request) -> bool:
        """Return whether a request's certificate was revoked, if only after the handshake of its connection."""
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


def _certificate(request: web.Request) -> bytes | None:
    """Return the certificate of a request's connection in DER; None without one."""
    connection: Any = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    found: bytes | None = None if connection is None else connection.getpeercert(binary_form=True)
    return found
