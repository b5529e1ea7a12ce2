"""Identity, settings, proxy and certificates of a link's sending end, and the contracts with those parts of an edge
that a hub can call."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

from weft.config.machine import why_unreadable
from weft.network.reload import file_state
from weft.network.tls import ClientTlsFiles, TlsUnusable, certificate_end, client_context
from weft.protocols.link import (
    Clock,
    ConfigDesired,
    ConfigState,
    DownMessage,
    DownOpen,
    Outcomes,
    PullRequest,
    PullState,
)
from weft.replication.events import LinkStatus
from weft.replication.flow_control import SenderSettings
from weft.replication.liveness import SECOND
from weft.replication.source import LogSource

# The HTTP proxy of a link, and the credentials for it.

PASSWORD_BYTES_MAX = 4096


class ProxyUnusable(Exception):
    """The password for the proxy cannot be read; the text has the reason and the remedy."""


@dataclass(frozen=True)
class LinkProxy:
    """The proxy of a link. Without a URL, that of the environment (`https_proxy`, `http_proxy`) is used."""

    url: str | None = None
    username: str | None = None
    password_file: str | None = None
    password_env: str | None = None

    def headers(self) -> dict[str, str] | None:
        """Return the headers for the proxy, with user name and password (RFC 7617). Blocks; called before each attempt,
        so that they can change.

        Raises:
            ProxyUnusable: the password cannot be read.
        """
        if self.url is None or self.username is None:
            return None
        pair = f"{self.username}:{self._password()}".encode()
        return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"}

    def _password(self) -> str:
        if self.password_env is not None:
            value = os.environ.get(self.password_env)
            if value is None:
                raise ProxyUnusable(f"the node has no environment variable {self.password_env}. Set it where it starts")
            return value
        if self.password_file is None:
            return ""
        try:
            with open(self.password_file, "rb") as file:
                data = file.read(PASSWORD_BYTES_MAX + 1)
        except OSError as error:
            raise ProxyUnusable(f"proxy_password_file {self.password_file}: {why_unreadable(error)}") from None
        text = data.decode("utf-8", "replace").strip("\r\n")
        if not text or len(data) > PASSWORD_BYTES_MAX or "\n" in text or "\ufffd" in text:
            raise ProxyUnusable(f"proxy_password_file {self.password_file}: expected one password on one line")
        return text


# Identity of a link's sender, and the settings of the link.


class LinkIdentity(NamedTuple):
    """Identity of a sender."""

    tenant: str
    edge: str
    log_id: int
    software: str
    boot: int = 0
    """Boot id of the machine, as in the log's batches."""


class Stopping(asyncio.Event):
    """The end of a node's links: set when its log accepts no more records."""

    renamed_to = ""
    """The name under which the log continues, if its links never send under the present one again."""


class ClockSource(Protocol):
    """The clocks of the sender's boots (``edge_node.links.source``, which may not be imported here)."""

    @property
    def is_synchronised(self) -> bool:
        """Return whether a time source keeps the wall clock right."""
        ...

    @property
    def is_unknown(self) -> bool:
        """Return whether the records that arrive now have a time that nothing corrects yet."""
        ...

    def note_time(self, hub: str, time: int, error: int) -> None:
        """Note the time of a receiver (``hub``; ns since 1970, within ``error`` ns)."""

    def notices(self) -> list[Clock]:
        """Return the clock notices about the log's boots, for the receiver."""
        ...


class ConfigReceiver(Protocol):
    """The side of a node that takes configurations from a hub (``edge_node.links.desired``, which may not be imported
    here)."""

    def opened(self, cluster_id: str, tell: Callable[[ConfigState], None]) -> ConfigState:
        """Handle a new connection to a hub that knows the feature.

        Args:
            tell: sends a later statement, until ``closed``.

        Returns:
            The first statement.
        """
        ...

    def closed(self) -> None:
        """Handle the end of the connection."""

    def desire(self, desired: ConfigDesired, cluster_id: str) -> None:
        """Take a configuration; it is checked and applied later."""

    def own_urls(self) -> tuple[str, ...]:
        """Return the URLs that the link had without the hub's configuration, if that is confirmed and has others."""
        ...


def no_token() -> None:
    """Return no token, for a hub without tokens."""


@dataclass(frozen=True)
class LinkSettings:
    """One link of an edge node."""

    urls: tuple[str, ...]
    """Nodes of one hub, ``http(s)://host:port``; tried in turn."""
    token: Callable[[], str | None] = no_token
    """Source of the token, called in a thread before every attempt, so that a token can change without a restart. It
    may raise ``OSError`` and ``ValueError``, which the status shows."""
    tls: ClientTlsFiles = field(default_factory=ClientTlsFiles)
    """Files for ``https`` URLs. What has changed is read again before each attempt."""
    redirects: tuple[str, ...] | None = None
    """Hosts to which the hub may send the link on, ``*`` for any characters; None for those near ``urls``."""
    proxy: LinkProxy = field(default_factory=LinkProxy)
    """Proxy for all URLs."""
    follows_environment: bool = True
    """False if the link passes over the proxies that environment variables name."""
    retry_min_s: float = 0.5
    retry_max_s: float = 30.0
    conflict_retry_s: float = 300.0
    connect_timeout_s: float = 10.0
    hold_at_start_s: float = 0.0
    """Seconds for which a start waits for the hub's answer: each of several URLs is tried within this time."""
    sender: SenderSettings = field(default_factory=SenderSettings)

    def of_attempt(self, number: int) -> LinkSettings:
        """Return the settings of one attempt to connect, counted from 0 at the start."""
        if self.hold_at_start_s <= 0 or not 1 < len(self.urls) > number:
            return self
        share_s = self.hold_at_start_s / (len(self.urls) + 1)  # one more share for the answer
        return replace(self, connect_timeout_s=min(self.connect_timeout_s, share_s))


# The contract between a sender and the edge's part that takes the hub's messages.

Answer = Callable[[Outcomes], None]


class MessageTaker(Protocol):
    """The taker of one link (``edge_node.links.down.LinkTaker``, which may not be imported here).

    All calls come on the event loop's thread, and must not block.
    """

    def opening(self, hub: str) -> DownOpen:
        """Return the frame by which the edge says that it takes messages of ``hub``, the ``cluster_id`` of its
        WELCOME. Messages that an earlier connection brought, and that wait, are forgotten: the hub sends them
        again."""
        ...

    def take(self, hub: str, messages: list[DownMessage], answer: Answer) -> None:
        """Take messages in order. Each gets an outcome when that is durable, and after a WAITING another one.

        Args:
            answer: sends outcomes; it does nothing once the connection is over.
        """
        ...


# The contract between a link and the edge's part that sends records which its hub asks for.

Tell = Callable[[PullState], None]


class Puller(Protocol):
    """The puller of one link (``edge_node.links.pulls.LinkPuller``, which may not be imported here).

    It adds lanes of its own to those of the link, with ``OfferedLane.is_background``. All calls come on the event
    loop's thread, and must not block.
    """

    @property
    def is_offered(self) -> bool:
        """Return whether the link says in its HELLO that it sends what the hub asks for."""
        ...

    def over(self, source: LogSource) -> LogSource:
        """Return the link's lanes with those of pulls."""
        ...

    def opened(self, hub: str, tell: Tell) -> None:
        """Note that a connection to ``hub``, the ``cluster_id`` of its WELCOME, takes pulls.

        Args:
            tell: sends a word; it does nothing once the connection is over.
        """

    def take(self, pulls: list[PullRequest]) -> None:
        """Serve these pulls from now on, and no others."""

    def lane_ended(self, reason: str) -> None:
        """Note that the hub closed the lane of a pull. The link offers it again after a while."""

    def closed(self) -> None:
        """Note that the connection is over."""


# The certificates of a link: those that it trusts, and its own.

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
