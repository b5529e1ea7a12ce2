"""One source while the node runs: it connects, serves, and reconnects after every failure."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from abc import ABC, abstractmethod

from weft.config.intake.sources import SourceSettings
from weft.config.log_lines.repeats import left_out
from weft.config.log_lines.up_and_down import UpAndDown
from weft.config.units import approximate_duration
from weft.edge_node.sources.connection import CONNECT_TIMEOUT_S, Memory, NodeParts, SourceConnection, SourceDown
from weft.edge_node.sources.credentials import CredentialsUnusable
from weft.edge_node.sources.status import SourceState, SourceStatus
from weft.edge_node.sources.topics import Topics
from weft.replication.attempts.backoff import Backoff

log = logging.getLogger(__name__)


class Runner(ABC):
    """Base of the sources of each protocol."""

    def __init__(self, settings: SourceSettings, status: SourceStatus, node: NodeParts, rng: random.Random) -> None:
        """Use checked settings.

        Raises:
            InvalidTopic: a rule for topics is not valid.
        """
        self._settings = settings
        self.status = status
        self.node = node
        self.topics = Topics(((each.from_, each.to) for each in settings.rewrite), settings.prefix)
        self.memory = Memory()
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(settings.url, settings.retry_min_s, settings.retry_max_s, rng)
        self._lines = SourceLog(status.name, self._loop.time())

    @abstractmethod
    async def connect(self, url: str) -> SourceConnection:
        """Connect, and start the flow of messages. On a failure, close everything that was opened.

        Raises:
            SourceDown, OSError, TimeoutError, CredentialsUnusable: there is no connection.
        """

    @abstractmethod
    async def close(self, connection: SourceConnection) -> None:
        """Stop, acknowledge the messages on disk, and disconnect."""

    async def run(self) -> None:
        """Serve until cancelled. Never raises for errors of the network, the broker or the log."""
        status, attempt = self.status, 0
        try:
            while True:
                url = self._settings.url[attempt % len(self._settings.url)]
                attempt += 1
                status.state, status.url, status.next_try = SourceState.CONNECTING, url, None
                acknowledged, reason, since = status.acknowledged, "", self._loop.time()
                try:
                    reason = await self._serve(url)
                except (SourceDown, CredentialsUnusable) as error:
                    reason = str(error)
                except TimeoutError:
                    reason = f"no answer within {CONNECT_TIMEOUT_S:g} s. Is the address right, and the network up?"
                except OSError as error:
                    reason = _why(error)
                except Exception as error:
                    log.exception("source %s failed", status.name)
                    reason = f"internal fault: {error!r}"
                if status.acknowledged > acknowledged or self._loop.time() - since >= self._settings.retry_max_s:
                    self._backoff.reset()
                await self._wait(url, reason)
        finally:
            status.state, status.next_try, status.connected_since = SourceState.STOPPED, None, None

    async def _serve(self, url: str) -> str:
        """Serve one connection; return the reason of its end."""
        self.memory.recent.reconnected()
        async with asyncio.timeout(2 * CONNECT_TIMEOUT_S):
            connection = await self.connect(url)
        if not connection.ended.done():
            connection.up()
        self._lines.connected(url, self._loop.time())
        try:
            return await asyncio.shield(connection.ended)
        except asyncio.CancelledError:
            await self.close(connection)
            raise

    async def _wait(self, url: str, reason: str) -> None:
        status, now = self.status, self.node.wall_clock()
        seconds = self._backoff.next_wait_s()
        status.state, status.connected_since = SourceState.WAITING, None
        status.attempts_failed = self._backoff.failures
        status.last_error, status.last_error_time = reason, now
        status.next_try = now + int(seconds * 1e9)
        self._lines.failed(url, reason, seconds, self._loop.time())
        await asyncio.sleep(seconds)


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}. Check tls.ca_file and tls.server_name"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or error}). Does this port speak TLS, and does it want a certificate?"
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved. Check the URL, and the machine's name server"
    return (os.strerror(error.errno) if error.errno else str(error) or type(error).__name__).lower()


log = logging.getLogger(__name__)


class SourceLog:
    """The log lines of one source. Every call takes monotonic seconds."""

    def __init__(self, name: str, now: float) -> None:
        self._name = name
        self._state = UpAndDown(now)

    def connected(self, url: str, now: float) -> None:
        """Log that messages can come."""
        told = self._state.up(now)
        if told is None:
            return
        after = f", after {approximate_duration(told.away_s)}{' away' if told.again else ''}"
        log.info(
            "source %s: connected %sto %s%s",
            self._name, "again " if told.again else "", url, after if told.again or told.failures else "",
        )  # fmt: skip

    def failed(self, url: str, reason: str, retry_s: float, now: float) -> None:
        """Log a failed attempt, or the end of a connection.

        Args:
            reason: for people; parts of it are a broker's text.
        """
        told = self._state.down(reason, now)
        if told is None:
            return
        what = f"disconnected after {approximate_duration(told.since_s)}" if told.was_up else "not connected"
        log.warning(
            "source %s: %s: %s: %s (next try in %.1f s%s)", self._name, what, url, reason, retry_s,
            left_out(told.left_out),
        )  # fmt: skip
