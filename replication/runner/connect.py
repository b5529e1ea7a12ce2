"""The edge's end: connect, keep a ``Sender`` busy, and reconnect after every failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import Callable

import aiohttp

from weft.protocols.link import RefuseCode
from weft.replication.epochs import Epochs
from weft.replication.liveness import SECOND
from weft.replication.runner import connect_errors
from weft.replication.runner.acknowledged import Acknowledged
from weft.replication.runner.backoff import Backoff
from weft.replication.runner.connection import ConnectionEnd, SenderConnection
from weft.replication.runner.link_log import LinkLog
from weft.replication.runner.progress import Progress
from weft.replication.runner.redirects import Redirects, Target
from weft.replication.runner.serve import CLOSE_TIMEOUT_S, LINK_PATH
from weft.replication.runner.settings import ClockSource, LinkIdentity, LinkSettings
from weft.replication.runner.sockets import keep_queue_short
from weft.replication.runner.trust import LinkTrust
from weft.replication.source import LogSource
from weft.replication.status import LinkState, LinkStatus

log = logging.getLogger(__name__)


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
    stopping: asyncio.Event | None = None,
) -> None:
    """Replicate ``source`` to a hub until cancelled. Never raises for errors of the network, the hub or the log.

    Args:
        status: updated by this function, for status pages.
        tls: for ``https`` URLs, instead of the files in ``settings``.
        rng: for the jitter.
        clocks: the clocks of the boots that wrote the log; None if they were right.
        acknowledged: the ranges that hubs have acknowledged before; None if unknown.
        stopping: set when the log accepts no more records: an open link then sends its last words and ends.
    """
    rng = rng or random.Random()
    backoff = Backoff(settings.urls, settings.retry_min_s, settings.retry_max_s, rng)
    redirects = Redirects(rng)
    target: Target | None = None
    trust = LinkTrust(settings.tls, status, tls)
    progress = Progress(source, status, wall_clock, acknowledged or Acknowledged())
    link_log = LinkLog(status.name, clock() / SECOND)
    attempt, own = 0, settings
    try:
        async with _session(settings) as session:
            while True:
                if target is None:
                    urls = [settings.urls[(attempt + at) % len(settings.urls)] for at in range(len(settings.urls))]
                    target, own = Target(redirects.best(urls, clock() / SECOND)), settings.of_attempt(attempt)
                    attempt += 1
                status.state, status.url, status.next_try = LinkState.CONNECTING, target.url, None
                connection = SenderConnection(
                    source, identity, settings.sender, epochs, progress, link_log=link_log, clock=clock,
                    wall_clock=wall_clock, stay=target.stay_s is not None, clocks=clocks, stopping=stopping,
                )  # fmt: skip
                try:
                    async with asyncio.timeout(target.stay_s):
                        outcome = await _attempt(session, connection, target.url, own, trust)
                except TimeoutError:
                    # This node serves the edge in place of another, which may be reachable by now.
                    target = None
                    continue
                except Exception as error:
                    log.exception("link %s: an attempt failed", status.name)
                    outcome = ConnectionEnd(LinkState.WAITING, f"{type(error).__name__}: {error}")
                if stopping is not None and stopping.is_set():
                    return
                if connection.proven(int(settings.retry_max_s * SECOND)):
                    backoff.reset()
                target = redirects.after(target, outcome, taken=connection.proven(0), now=clock() / SECOND)
                if target is not None:
                    continue
                seconds = _wait_s(outcome, backoff, settings)
                link_log.failed(outcome.state, outcome.reason, seconds, clock() / SECOND)
                await _wait(progress, outcome, backoff.failures, seconds, wall_clock)
    finally:
        status.state, status.next_try = LinkState.STOPPED, None


async def _attempt(
    session: aiohttp.ClientSession,
    connection: SenderConnection,
    url: str,
    settings: LinkSettings,
    trust: LinkTrust,
) -> ConnectionEnd:
    try:
        token = await asyncio.to_thread(settings.token)
    except (OSError, ValueError) as error:
        return connect_errors.no_token(error)
    try:
        tls = await trust.context(url)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        opening = session.ws_connect(
            url.rstrip("/") + LINK_PATH, headers=headers, ssl=tls, compress=0, max_msg_size=4 << 20,
            timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
        )  # fmt: skip
        async with asyncio.timeout(settings.connect_timeout_s):
            socket = await opening
        keep_queue_short(socket)
    except connect_errors.Redirected as error:
        return connect_errors.redirected(url, error)
    except aiohttp.WSServerHandshakeError as error:
        has_certificate = settings.tls.certificate is not None
        return connect_errors.refused(url, error.status, has_token=token is not None, has_certificate=has_certificate)
    except TimeoutError:
        reason = f"{url}: no answer within {settings.connect_timeout_s:.3g} s"
        return ConnectionEnd(LinkState.WAITING, reason, is_silent=True)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return connect_errors.no_connection(url, error)
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


def _session(settings: LinkSettings) -> aiohttp.ClientSession:
    """Return a client for all attempts of a link."""
    timeout = aiohttp.ClientTimeout(total=None, connect=settings.connect_timeout_s)
    # Without a cache of names, each attempt asks for the addresses of the hub's name, and tries all of them.
    connector = aiohttp.TCPConnector(use_dns_cache=False)
    return aiohttp.ClientSession(timeout=timeout, trust_env=True, connector=connector, trace_configs=[_no_redirects()])


def _no_redirects() -> aiohttp.TraceConfig:
    """Return hooks that refuse HTTP redirects, which ``ws_connect`` follows, from TLS to plain HTTP as well."""

    async def refuse(_session: object, _context: object, params: aiohttp.TraceRequestRedirectParams) -> None:
        params.response.close()
        raise connect_errors.Redirected(params.response.status, params.response.headers.get("Location", ""))

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
