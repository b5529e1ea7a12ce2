"""The certificates of a link: those that it trusts, and its own."""

from __future__ import annotations

import asyncio
import logging
import ssl
from urllib.parse import urlsplit
from urllib.request import getproxies

from weft.network.reload import file_state
from weft.network.tls.certificate import certificate_end
from weft.network.tls.contexts import client_context
from weft.network.tls.files import ClientTlsFiles, TlsUnusable
from weft.replication.liveness import SECOND
from weft.replication.status import LinkStatus

log = logging.getLogger(__name__)


class LinkTrust:
    """The TLS context of a link, made when a connection first needs it: the system's authorities take 1 MiB, some 20
    ms.

    Args:
        files: what they name is read again before a connection once it has changed; authorities of the system are not.
        status: gets the end of the link's own certificate.
        given: a context to use instead.
    """

    def __init__(self, files: ClientTlsFiles, status: LinkStatus, given: ssl.SSLContext | None = None) -> None:
        self._files = files
        self._status = status
        self._given = given
        self._context: ssl.SSLContext | None = None
        self._state: object = None

    async def context(self, url: str) -> ssl.SSLContext | bool:
        """Return what aiohttp takes as ``ssl`` for a connection to ``url``. Reads files beside the event loop.

        Files that cannot be used any more leave the former ones in force: a certificate and its key may be replaced one
        after the other.

        Raises:
            TlsUnusable: the files cannot be used, and never could.
        """
        if self._given is not None or not _speaks_tls(url):
            return self._given or True
        state = file_state(self._files.paths)
        if self._context is None or state != self._state:
            try:
                self._context, self._status.certificate_expires = await asyncio.to_thread(_read, self._files)
                self._state = state
            except TlsUnusable as error:
                if self._context is None:
                    raise
                log.error(
                    "the certificates of the link to %s cannot be used, the former ones stay in use: %s", url, error
                )
        assert self._context is not None
        return self._context


def _read(files: ClientTlsFiles) -> tuple[ssl.SSLContext, int | None]:
    """Return a context, and the end of the own certificate in ns since 1970."""
    context = client_context(files)
    if files.certificate is None:
        return context, None
    return context, int(certificate_end(files.certificate).timestamp()) * SECOND


def _speaks_tls(url: str) -> bool:
    # The proxy of the environment may itself be reached by TLS, also for a hub that is not.
    return any(urlsplit(each).scheme in ("https", "wss") for each in (url, *getproxies().values()))
