"""The hub's listener: HTTP at one address, with TLS if there is a certificate, whose files are reloaded when they
change."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime

from aiohttp import web

from weft.bounds import Refusals
from weft.bounds.scheduling import BackgroundTask
from weft.cloud_hub.auth.certificates import Certificates, End
from weft.cloud_hub.part import Part
from weft.cloud_hub.settings import HubSettings
from weft.config.errors import SettingError
from weft.config.machine import why_not_listening
from weft.config.metrics.exposition import Sample
from weft.config.units import Address
from weft.hub_api.status import CertificateInForce
from weft.network.accepting import Acceptor, CannotListen
from weft.network.admission import Admission
from weft.network.http_server import Bound, HttpServer
from weft.network.reload import Reloads, Watched
from weft.network.tls import TlsFiles, TlsInForce, TlsUnusable, read_tls

LOOK_INTERVAL_S = 2.0
"""Interval at which certificate files are checked for changes."""
SHUTDOWN_S = 2.0
"""Longest wait for requests to end when the node closes."""
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


class HubListener(Part):
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
        self._tls: ssl.SSLContext | None = None
        self._sharing: list[Acceptor] = []
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

    async def listen(self, application: web.Application) -> None:
        """Begin to listen.

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

    def share_tls(self, acceptor: Acceptor) -> None:
        """Have another acceptor use the certificate in force, if there is one, from now on."""
        self._sharing.append(acceptor)
        acceptor.tls = self._tls

    def linked(self, request: web.Request, end: End) -> contextlib.AbstractContextManager[None]:
        """Return the context of an open link, which ends the link if its certificate is revoked.

        Inside it the link does not count towards the connections of its address, since a proxy's address has those of a
        fleet. Links have their own bounds.
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

    def views(self) -> dict[str, object]:
        """Return the certificate in force, for status pages; None without TLS."""
        files = self._settings.tls
        if files is None or self._expires is None:
            return {"tls": None}
        return {"tls": CertificateInForce(files.certificate, self._expires.isoformat(), self.counters.reload_failures)}

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
        self._tls = tls.context
        self.server.use_tls(tls.context)
        for each in self._sharing:
            each.tls = tls.context
        if self.certificates is not None:
            self.certificates.use(tls.revoked)

    async def _look(self) -> None:
        while True:
            is_asked = False
            with contextlib.suppress(TimeoutError):
                is_asked = await asyncio.wait_for(self._asked.wait(), LOOK_INTERVAL_S)
            self._asked.clear()
            await self._reloads.check(all_of_them=is_asked)
