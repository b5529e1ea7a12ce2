"""The edge's end: connect, keep a ``Sender`` busy, and reconnect after every failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import aiohttp

from weft.config.machine import why_unreadable
from weft.network.tls import why_distrusted
from weft.protocols.link import RefuseCode
from weft.replication.attempts import (
    REASON_HEADER,
    Backoff,
    ConnectionEnd,
    RedirectHosts,
    Redirects,
    Target,
    refused_by_server,
)
from weft.replication.events import LinkState, LinkStatus
from weft.replication.flow_control import LINK_PATH
from weft.replication.liveness import SECOND
from weft.replication.policy import PolicyRules
from weft.replication.runner.connection import SenderConnection
from weft.replication.runner.control import LinkControl, keep_queue_short
from weft.replication.runner.progress import Acknowledged, LinkLog, Progress
from weft.replication.runner.serve import CLOSE_TIMEOUT_S
from weft.replication.runner.settings import (
    ClockSource,
    ConfigReceiver,
    LinkIdentity,
    LinkSettings,
    LinkTrust,
    MessageTaker,
    ProxyUnusable,
    Puller,
    Stopping,
)
from weft.replication.source import Epochs, LogSource

# Reasons why a link could not connect, as messages for the status page and the log: the error, then advice.

_REFUSED = re.compile("ALERT_((?:UNSUPPORTED_|BAD_)?CERTIFICATE.*|UNKNOWN_CA|ACCESS_DENIED)$")
"""Reasons of OpenSSL for alerts about a client's certificate."""

LOCATION_CHARACTERS_MAX = 256
"""Characters of a redirect's target that a message repeats."""


def no_token(error: OSError | ValueError) -> ConnectionEnd:
    """Return the outcome when the link's token cannot be read."""
    if isinstance(error, OSError):
        return ConnectionEnd(LinkState.WAITING, f"token_file {error.filename}: {why_unreadable(error)}")
    return ConnectionEnd(LinkState.WAITING, f"token_file {error}")


def no_connection(url: str, error: Exception) -> ConnectionEnd:
    """Return the outcome when no HTTP connection was made."""
    return ConnectionEnd(LinkState.WAITING, f"{url}: {_why(error)}")


class Redirected(Exception):
    """An HTTP redirect, which a link does not follow: it may lead from TLS to plain HTTP, or to another machine."""

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"redirect {status} to {location}")
        self.status = status
        self.location = location


def redirected(url: str, error: Redirected) -> ConnectionEnd:
    """Return the outcome when the server answered with an HTTP redirect."""
    there = error.location[:LOCATION_CHARACTERS_MAX].removesuffix(LINK_PATH)
    why = f"the server redirects to {there!r} ({error.status}), and links follow no redirects of HTTP"
    return ConnectionEnd(LinkState.REFUSED, f"{url}: {why}. If the hub moved there, write that URL in `to`")


def _why(error: Exception) -> str:
    """Return the part of the error that aiohttp wraps, in a few words."""
    if (alert := _alert(error)) is not None:
        return f"the hub refuses the link's certificate ({alert}). Renew it, or have the hub's authority sign it"
    match error:
        case aiohttp.ClientHttpProxyError(status=407):
            return "the proxy wants credentials, or does not accept them (407). Check proxy_username and its password"
        case aiohttp.ClientHttpProxyError():
            return (
                f"the proxy does not connect to the hub ({error.status}). Have it allow CONNECT to this host and port"
            )
        case aiohttp.ClientProxyConnectionError():
            return f"cannot connect to the proxy ({error.os_error.strerror}). Check the link's `proxy`"
        case aiohttp.ClientConnectorDNSError():
            return f"the name cannot be resolved ({error.os_error.strerror}). Check it, and the machine's DNS"
        case aiohttp.ClientConnectorCertificateError():
            return why_distrusted(error.certificate_error, authority="the link's `ca_file`", name="the link's `to`")
        case aiohttp.ClientSSLError():
            return f"the port does not speak TLS ({_reason(error)}). Write http:// if the hub is without TLS"
        case aiohttp.ClientConnectorError():
            return f"cannot connect ({os.strerror(error.errno or 0)}). Check that the hub runs, and its host and port"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError() | ConnectionResetError():
            return "the server closed the connection unanswered. Write https:// if it speaks TLS, or check the port"
        case aiohttp.ClientResponseError():
            return "the server does not speak HTTP. Write https:// if it speaks TLS, or check the link's `to`"
    return str(error) or type(error).__name__


def _alert(error: Exception) -> str | None:
    """Return the alert by which a server refuses a certificate (RFC 8446 section 6.2); None for another error."""
    for each in (error, error.__cause__, getattr(error, "os_error", None)):
        reason = getattr(each, "reason", None)
        if isinstance(reason, str) and (found := _REFUSED.search(reason)):
            return found[1].replace("_", " ").lower()
    return None


def _reason(error: aiohttp.ClientSSLError) -> str:
    inner = getattr(error, "os_error", None)
    return str(getattr(inner, "reason", None) or inner or error).replace("_", " ").lower()


log = logging.getLogger(__name__)
OWN_URLS_S = 120.0
"""Seconds without a link after which the URLs are tried, too, that it had before a hub set others: that hub's host may
be gone for good."""


async def run_link(
    source: LogSource,
    identity: LinkIdentity,
    settings: LinkSettings,
    epochs: Epochs,
    status: LinkStatus,
    *,
    tls: ssl.SSLContext | None = None,
    rng: random.Random | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
    wall_clock: Callable[[], int] = time.time_ns,
    clocks: ClockSource | None = None,
    acknowledged: Acknowledged | None = None,
    stopping: Stopping | None = None,
    config: ConfigReceiver | None = None,
    control: LinkControl | None = None,
    taker: MessageTaker | None = None,
    puller: Puller | None = None,
) -> None:
    """Replicate ``source`` to a hub until cancelled. Never raises for errors of the network, the hub or the log.

    Args:
        status: updated by this function, for status pages.
        tls: for ``https`` URLs, instead of the files in ``settings``.
        rng: for the jitter.
        clocks: the clocks of the boots that wrote the log; None if they were right.
        acknowledged: the ranges that hubs have acknowledged before; None if unknown.
        config: takes configurations from the hub; None for a link that takes none.
        control: orders to this link, kept across calls; None for a link that sends everything at once.
        stopping: set when the log accepts no more records: an open link then sends its last words and ends.
        taker: takes the hub's messages; None if the link takes none.
        puller: sends records that the hub asks for; None if the link sends none.
    """
    rng = rng or random.Random()
    control = control or LinkControl(PolicyRules(), wall_clock=wall_clock, counts_bytes=False)
    backoff = Backoff(settings.urls, settings.retry_min_s, settings.retry_max_s, rng)
    turns = _Turns(settings, config, clock)
    redirects = Redirects(rng, RedirectHosts((*settings.urls, *turns.own()), settings.redirects), status.name)
    target: Target | None = None
    progress = Progress(source, status, wall_clock, acknowledged or Acknowledged())
    link_log = LinkLog(status.name, clock() / SECOND)
    trust, own = LinkTrust(settings.tls, status, tls), settings
    connect = partial(
        SenderConnection,
        source,
        identity,
        epochs=epochs,
        progress=progress,
        clock=clock,
        wall_clock=wall_clock,
        clocks=clocks,
        link_log=link_log,
        stopping=stopping,
        config=config,
        control=control,
        taker=taker,
        puller=puller,
    )
    try:
        async with _session(settings, control) as session:
            while True:
                if target is None:
                    target, own = turns.next(redirects)
                status.state, status.url, status.next_try = LinkState.CONNECTING, target.url, None
                beat_timeout = redirects.beat_timeout(target, settings.sender)
                connection = connect(
                    settings=replace(settings.sender, beat_timeout=beat_timeout), stay=target.stay_s is not None
                )
                outcome = await _outcome(session, connection, target, own, trust)
                await control.keep_count()
                if outcome is None:
                    target = None
                    continue
                if stopping is not None and stopping.is_set():
                    return
                turns.note(was_up=connection.proven(0))
                if connection.proven(int(settings.retry_max_s * SECOND)):
                    backoff.reset()
                target = redirects.after(target, outcome, taken=connection.proven(0), now=clock() / SECOND)
                if target is None:
                    seconds = _wait_s(outcome, backoff, settings)
                    link_log.failed(outcome.state, outcome.reason, seconds, clock() / SECOND)
                    await _wait(progress, outcome, backoff.failures, seconds, wall_clock)
    finally:
        status.state, status.next_try = LinkState.STOPPED, None


class _Turns:
    """The URLs of a link, of which each attempt begins with another one."""

    def __init__(self, settings: LinkSettings, config: ConfigReceiver | None, clock: Callable[[], int]) -> None:
        self._settings, self._clock = settings, clock
        self.own = config.own_urls if config is not None else tuple
        self._attempt = 0
        self._up_at = clock()

    def note(self, *, was_up: bool) -> None:
        """Note whether there was a link until now."""
        if was_up:
            self._up_at = self._clock()

    def next(self, redirects: Redirects) -> tuple[Target, LinkSettings]:
        """Return the target of the next attempt, and its settings."""
        now, attempt = self._clock(), self._attempt
        own = self.own() if now - self._up_at >= OWN_URLS_S * SECOND else ()
        urls = list(dict.fromkeys((*self._settings.urls, *own)))
        first = attempt % len(urls)
        self._attempt += 1
        return Target(redirects.best(urls[first:] + urls[:first], now / SECOND)), self._settings.of_attempt(attempt)


async def _outcome(
    session: aiohttp.ClientSession,
    connection: SenderConnection,
    target: Target,
    settings: LinkSettings,
    trust: LinkTrust,
) -> ConnectionEnd | None:
    """Return the end of an attempt; None when its time in place of another node, which may be reachable, is over."""
    try:
        async with asyncio.timeout(target.stay_s):
            return await _attempt(session, connection, target.url, settings, trust)
    except TimeoutError:
        return None
    except Exception as error:
        log.exception("an attempt to link to %s failed", target.url)
        return ConnectionEnd(LinkState.WAITING, f"{type(error).__name__}: {error}")


async def _attempt(
    session: aiohttp.ClientSession, connection: SenderConnection, url: str, settings: LinkSettings, trust: LinkTrust
) -> ConnectionEnd:
    with connection.metered():
        return await _run(session, connection, url, settings, trust)


async def _run(
    session: aiohttp.ClientSession, connection: SenderConnection, url: str, settings: LinkSettings, trust: LinkTrust
) -> ConnectionEnd:
    try:
        token = await asyncio.to_thread(settings.token)
    except (OSError, ValueError) as error:
        return no_token(error)
    try:
        proxy_headers = await asyncio.to_thread(settings.proxy.headers)
        tls = await trust.context(url)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        opening = session.ws_connect(
            url.rstrip("/") + LINK_PATH,
            headers=headers,
            ssl=tls,
            compress=0,
            max_msg_size=4 << 20,
            timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
            proxy=settings.proxy.url,
            proxy_headers=proxy_headers,
        )
        async with asyncio.timeout(settings.connect_timeout_s):
            socket = await opening
        keep_queue_short(socket)
    except ProxyUnusable as error:
        return ConnectionEnd(LinkState.WAITING, str(error))
    except Redirected as error:
        return redirected(url, error)
    except aiohttp.WSServerHandshakeError as error:
        has_certificate = settings.tls.certificate is not None
        answered: Mapping[str, str] = error.headers or {}
        return refused_by_server(
            url,
            error.status,
            has_token=token is not None,
            has_certificate=has_certificate,
            challenge=answered.get("WWW-Authenticate"),
            server_reason=answered.get(REASON_HEADER),
        )
    except TimeoutError:
        reason = f"{url}: no answer within {settings.connect_timeout_s:.3g} s"
        return ConnectionEnd(LinkState.WAITING, reason, is_silent=True)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return no_connection(url, error)
    patience_s = CLOSE_TIMEOUT_S
    try:
        outcome = await connection.run(socket)
        if outcome.is_silent:
            patience_s = 0.0
        return outcome
    finally:
        # The close frame queues behind bytes that a stuck peer does not read; a timeout drops the connection instead.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await socket.close()


def _session(settings: LinkSettings, control: LinkControl) -> aiohttp.ClientSession:
    """Return a client for all attempts of a link."""
    timeout = aiohttp.ClientTimeout(total=None, connect=settings.connect_timeout_s)
    # Without a cache of names and of connections, each attempt asks for the addresses of the hub's name, and tries all
    # of them.
    connector = aiohttp.TCPConnector(use_dns_cache=False, force_close=True, socket_factory=control.meter.make_socket)
    return aiohttp.ClientSession(
        timeout=timeout, trust_env=settings.follows_environment, connector=connector, trace_configs=[_no_redirects()]
    )


def _no_redirects() -> aiohttp.TraceConfig:
    """Return hooks that refuse HTTP redirects, which ``ws_connect`` follows, from TLS to plain HTTP as well."""

    async def refuse(_session: object, _context: object, params: aiohttp.TraceRequestRedirectParams) -> None:
        params.response.close()
        raise Redirected(params.response.status, params.response.headers.get("Location", ""))

    hooks = aiohttp.TraceConfig()
    hooks.on_request_redirect.append(refuse)
    return hooks


def _wait_s(outcome: ConnectionEnd, backoff: Backoff, settings: LinkSettings) -> float:
    """Count a failure, and return the wait after it."""
    seconds = backoff.next_wait_s()
    if outcome.state is LinkState.CONFLICT:
        return settings.conflict_retry_s
    if outcome.code in (RefuseCode.VERSION, RefuseCode.BAD_HELLO, RefuseCode.PROTOCOL_ERROR):
        return settings.retry_max_s
    return seconds


async def _wait(
    progress: Progress, outcome: ConnectionEnd, failures: int, seconds: float, wall_clock: Callable[[], int]
) -> None:
    """Wait, keeping the status fresh."""
    status = progress.status
    status.state, status.attempts_failed = outcome.state, failures
    status.next_try = wall_clock() + int(seconds * SECOND)
    progress.failed(outcome.reason)
    while seconds > 0:
        await progress.refresh(None)
        await asyncio.sleep(min(1.0, seconds))
        seconds -= 1.0
