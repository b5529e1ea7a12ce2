"""The hub's listener: HTTP at one address, with TLS where it has a certificate, whose files are read again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from types import MappingProxyType
from typing import Any

from aiohttp import web

from weft.bounds import Refusals
from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.api.tokens import TokenIdentity
from weft.cloud_hub.settings import CertificateRights, HubSettings
from weft.config.errors import SettingError
from weft.config.machine import why_not_listening
from weft.config.metrics.exposition import Sample
from weft.config.units import Address
from weft.hub_api.rights import TOKEN_NAME_CHARACTERS_MAX, Scope, grants_of
from weft.network.accepting import CannotListen
from weft.network.admission import Admission
from weft.network.http_server import Bound, HttpServer
from weft.network.reload import Reloads, Watched
from weft.network.tls import CertificateName, TlsFiles, TlsInForce, TlsUnusable, certificate_name, common_name, read_tls
from weft.protocols.lane import NAME_RULE, node_in_certificate
from weft.protocols.link import RefuseCode

# Client certificates: the edge that a link's certificate names, the rights of a reader's, and the end of links whose
# certificate is revoked.

End = Callable[[RefuseCode, str, str], object]
"""Function that ends a link, with a reason and advice for the edge."""

COMMON_NAME, UNIT = "CN=", "OU="
NAME_PREFIX = "certificate:"
"""Begin of the names of readers with a certificate, so that a common name is no token of the hub."""
_NAMELESS = "without a common name"
CERTIFICATE_REVOKED = "the certificate of the link was revoked"
NEW_CERTIFICATE = "give the edge a new one if it still belongs here"


class CertificateIdentity(TokenIdentity, frozen=True):
    """An edge that comes by its certificate: ``name`` is the common name, ``sha256`` that of the certificate."""

    @property
    def shown(self) -> str:
        """Return what it is called in messages."""
        return f"the certificate {self.name!r}"


class ReaderCertificate(TokenIdentity, frozen=True, kw_only=True):
    """A person or a program that comes by a certificate: ``name`` has its common name, ``sha256`` is that of the
    certificate."""

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
    """The certificates of edges and readers, which handshakes have verified. Event loop's thread only.

    Args:
        required: whether links without a certificate are refused.
        readers: those of readers (``is_reader_name``), with their rights.
    """

    def __init__(self, *, required: bool, readers: Mapping[str, CertificateRights] = MappingProxyType({})) -> None:
        self.required = required
        self._readers = readers
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
        """Return the reader that the certificate of a request names; None without one, and for others' certificates."""
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


def is_reader_name(text: str) -> bool:
    """Return whether a text names certificates of readers: ``CN=`` and a common name, or ``OU=`` and a unit."""
    return any(text.startswith(each) and len(text) > len(each) for each in (COMMON_NAME, UNIT))


def _certificate(request: web.Request) -> bytes | None:
    """Return the certificate of a request's connection in DER; None without one."""
    connection: Any = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    found: bytes | None = None if connection is None else connection.getpeercert(binary_form=True)
    return found


LOOK_INTERVAL_S = 2.0
"""Interval at which the files of certificates are looked at."""
SHUTDOWN_S = 2.0
"""Longest time that requests may take to end when the node closes."""
_GAUGES = {"connections", "connections_half_open"}


@dataclass
class TlsCounters:
    """Totals of TLS since the start; counters whose metric is a gauge have the present value."""

    connections: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    connect_timeouts: int = 0
    connections_rate_limited: int = 0
    connections_half_open: int = 0
    half_open_evicted: int = 0
    handshakes_failed: int = 0
    proxy_headers_refused: int = 0
    accept_pauses: int = 0
    reloads: int = 0
    reload_failures: int = 0


_UNUSED = {"connections", "connections_refused", "proxy_headers_refused"}
"""Counters of listeners that a hub has no use for: it counts connections otherwise, and reads no PROXY headers."""


class HubListener:
    """The listener of one hub process. Event loop's thread only.

    Args:
        refusals: counter of connections closed because there are too many.
        monotonic: seconds.
    """

    def __init__(
        self, settings: HubSettings, refusals: Refusals, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        idle = Bound(settings.idle_connections_max, "limits.idle_connections")
        of_address = Bound(settings.connections_per_address_max, "limits.connections_per_address")
        self.server = HttpServer(idle, of_address, monotonic, refusals, shutdown_s=SHUTDOWN_S)
        self.middleware = self.server.middleware
        self.counters = TlsCounters()
        self._admission: Admission | None = None
        self._reloads = Reloads(self.counters)
        self._asked = asyncio.Event()
        self._looking = BackgroundTask()
        self._expires: datetime | None = None
        has_edges = settings.tls is not None and settings.tls.client_ca is not None
        self.certificates = (
            Certificates(required=settings.edges_need_certificate, readers=settings.certificate_readers)
            if has_edges
            else None
        )
        """Certificates of edges and readers; None if no client is asked for one."""

    @property
    def port(self) -> int:
        """Return the port of the started listener."""
        return self.server.addresses[0][1]

    @property
    def url(self) -> str:
        """Return the URL of the started listener."""
        assert self.server.addresses, "the hub has not been started"
        return f"{self._settings.scheme}://{Address(*self.server.addresses[0])}"

    async def start(self, application: web.Application) -> None:
        """Listen.

        Raises:
            SettingError: the address cannot be bound, or the files of TLS cannot be used.
        """
        host, port, files = self._settings.host, self._settings.port, self._settings.tls
        try:
            if files is None:
                await self.server.start(application, host, port)
            else:
                await self._start_tls(application, files)
        except TlsUnusable as error:
            raise SettingError(("tls",), str(error)) from None
        except CannotListen as error:
            raise SettingError(("listen",), str(error)) from None
        except OSError as error:
            raise SettingError(("listen",), why_not_listening(error, Address(host, port))) from None

    async def _start_tls(self, application: web.Application, files: TlsFiles) -> None:
        settings = self._settings
        self._admission = admission = Admission(settings.admission, self.counters, self.counters)
        tls = await asyncio.to_thread(read_tls, files)
        self._use(tls)
        await self.server.start(application, settings.host, settings.port, tls=tls.context, admission=admission)
        self._reloads.add(Watched("certificates", files.paths, lambda: read_tls(files), self._use))
        self._looking.start(self._look(), name="certificates")

    def reload(self) -> None:
        """Read the files of TLS again soon, changed or not."""
        self._asked.set()

    def linked(self, request: web.Request, end: End) -> contextlib.AbstractContextManager[None]:
        """Return a context for the time of an open link, which ends it if its certificate is revoked.

        The link no longer counts for its address, as a proxy's has those of a fleet: it has bounds of its own.
        """
        self.server.admitted(request.protocol)
        return contextlib.nullcontext() if self.certificates is None else self.certificates.opened(request, end)

    def samples(self) -> Iterator[Sample]:
        """Yield the figures for Prometheus."""
        yield Sample(
            "weft_hub_certificate_expires_timestamp_seconds", self._expires.timestamp() if self._expires else 0
        )
        for field in fields(self.counters):
            if field.name not in _UNUSED:
                ending = "" if field.name in _GAUGES else "_total"
                yield Sample(f"weft_hub_tls_{field.name}{ending}", getattr(self.counters, field.name))

    def view(self) -> dict[str, object] | None:
        """Return the certificate in force, for status pages; None without TLS."""
        files = self._settings.tls
        if files is None or self._expires is None:
            return None
        return {
            "certificate": files.certificate,
            "expires": self._expires.isoformat(),
            "reload_failures": self.counters.reload_failures,
        }

    async def stop_listening(self) -> None:
        """Accept no more connections, and read no more files."""
        await self._looking.close()
        await self.server.stop_listening()
        if self._admission is not None:
            self._admission.close()

    async def close(self) -> None:
        """End the requests and connections."""
        await self.stop_listening()
        await self.server.close()

    def _use(self, tls: TlsInForce) -> None:
        self._expires = tls.expires
        self.server.use_tls(tls.context)
        if self.certificates is not None:
            self.certificates.use(tls.revoked)

    async def _look(self) -> None:
        while True:
            is_asked = False
            with contextlib.suppress(TimeoutError):
                is_asked = await asyncio.wait_for(self._asked.wait(), LOOK_INTERVAL_S)
            self._asked.clear()
            await self._reloads.check(all_of_them=is_asked)
