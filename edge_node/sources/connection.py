"""The common part of connections to external brokers of every protocol: their path into the log.

A connection is a source of ingest, and a publisher that back-pressure holds. Its messages are acknowledged to the
broker after the fsync and on the same connection, or never: delivery tags and packet identifiers have other meanings on
the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

from weft.bounds import Owner, OwnerKind, RoundRobin
from weft.config.log_lines import Repeats, UpAndDown, left_out
from weft.config.sources import Source, TopicSettings
from weft.config.units import approximate_duration
from weft.edge_node.ingest.ingest import Ingest, Pause
from weft.edge_node.sources.credentials import CredentialsUnusable
from weft.edge_node.sources.status import SourceState, SourceStatus
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.protocols.batch import HEADER_PAIRS_MAX, Flag, HeaderPairs, header_bytes
from weft.protocols.topics import InvalidTopic, check_topic, compile_rule
from weft.replication.attempts import Backoff
from weft.storage.segment_log.settings import RECORD_BYTES_MAX

# Topics of an external broker's messages -> keys of their records: rules, then a prefix.

TOPICS_MAX = 10_000
"""Maximum number of topics whose keys are remembered; beyond it, all are forgotten and computed again."""


class Topics:
    """The rules and the prefix of one source."""

    def __init__(self, rewrite: Iterable[tuple[str, str]] = (), prefix: str = "") -> None:
        """Compile rules: (``from``, ``to``).

        Raises:
            InvalidTopic: as ``compile_rule``.
        """
        self._rules = [compile_rule(from_, to) for from_, to in rewrite]
        self._prefix = prefix
        self._known: dict[bytes, bytes] = {}

    def key(self, topic: bytes) -> bytes:
        """Return the key of a message with a topic.

        Raises:
            InvalidTopic: the topic, or its key, is not valid or too long.
        """
        found = self._known.get(topic)
        if found is None:
            if len(self._known) >= TOPICS_MAX:
                self._known.clear()
            found = self._known[topic] = self._key(topic)
        return found

    def _key(self, topic: bytes) -> bytes:
        text = topic.decode()
        text = self._prefix + next((new for rule in self._rules if (new := rule.apply(text)) is not None), text)
        check_topic(text)
        return text.encode()


log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 15.0
"""Longest time for a connection, its TLS and the broker's welcome."""
ONE_BY_ONE = 200
"""Number of messages that are stored one by one after the log has refused some."""
SETTLE_TIMEOUT_S = 2.0
"""Longest time in which a source that stops waits for the disk, so that its messages need not come again."""
HEADERS_MAX = HEADER_PAIRS_MAX - 2
"""Maximum number of headers of one message: with the node's own a record has no room for more."""
_TEXT_SHOWN_MAX = 128
_RECORD_ROOM_BYTES = RECORD_BYTES_MAX - (16 << 10)
"""Bytes for key, payload and headers of a record: the rest is for encoding, and for headers of the node's own. The log
would refuse a longer message each time that it comes."""
_LONG_BYTES = _RECORD_ROOM_BYTES >> 1


PUBLISHER_PREFIX = "source:"
"""Beginning of the publisher of what sources store. The name of the source follows."""


class SourceDown(Exception):
    """The connection to a broker has ended, or failed; the text has the reason and the remedy."""


class SourceContext(NamedTuple):
    """Parts of the node that sources use."""

    ingest: Ingest
    round_robin: RoundRobin
    wall_clock: Callable[[], int]
    """Clock in ns since 1970."""
    subscriptions: Subscriptions


class Memory:
    """State of a source across connections, while the node runs."""

    def __init__(self) -> None:
        self.recent = Recent()
        self.received: set[int] = set()
        """MQTT: packet identifiers at QoS 2 whose message is on disk, and whose PUBREL has not come."""
        self.lines = Repeats(keys_max=32)
        """Lines about refused messages."""
        self.one_by_one = 0
        """Remaining number of messages to store one by one, after the log has refused some."""


class AnyConnection:
    """A connection to where a source reads. Event loop's thread only."""

    def __init__(self, status: SourceStatus, wall_clock: Callable[[], int]) -> None:
        self.status = status
        self._wall_clock = wall_clock
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set to the reason once the connection has ended."""

    def up(self) -> None:
        """Note that the source is subscribed, consumes, or polls."""
        self.status.state = SourceState.CONNECTED
        self.status.connected_since = self._wall_clock()
        self.status.connections += 1
        self.status.attempts_failed = 0

    def end(self, reason: str) -> None:
        """End the connection, once."""
        if not self.ended.done():
            self.ended.set_result(reason)


class SourceConnection(AnyConnection):
    """Base of what publishes to ingest: the connections of each protocol that acknowledges messages."""

    def __init__(self, node: SourceContext, status: SourceStatus, topics: Topics, memory: Memory) -> None:
        super().__init__(status, node.wall_clock)
        self.node = node
        self.publisher: str | None = f"{PUBLISHER_PREFIX}{status.name}"
        self._topics = topics
        self.memory = memory
        self.owner = Owner(OwnerKind.USER, self.publisher or "")
        self._routes = node.ingest.routing.routes_of(None)
        self._pauses = 0
        self._is_refused = False
        self._loop = asyncio.get_running_loop()

    # --- messages

    def take(
        self, topic: bytes, payload: bytes, answer: bytes, flags: int = 0, headers: HeaderPairs = ()
    ) -> str | None:
        """Gather a message and its acknowledgement. Return the reason where it can never be stored.

        Args:
            answer: passed to ``acknowledge`` once the message is durable; empty for one that needs none.
        """
        ingest = self.node.ingest
        if len(headers) > HEADERS_MAX:
            return self._refused("headers", f"it has {len(headers)} headers; a record has room for {HEADERS_MAX}")
        try:
            key = self._topics.key(topic)
        except (InvalidTopic, UnicodeDecodeError) as error:
            return self._refused("topic", f"no record can have its topic: {error}")
        route = self._routes.route(key)
        if route is None:
            shown = key[:_TEXT_SHOWN_MAX].decode(errors="replace")
            if self._routes.permits(key):
                ingest.routing.unrouted.count([key])
                return self._refused("unrouted", f"no stream matches topic {shown!r} (`unrouted: refuse`)")
            return self._refused("topic", f"topic {shown!r} is refused: it begins with $SYS/ or has too many levels")
        if len(key) + len(payload) > _LONG_BYTES or headers:
            size = len(key) + len(payload) + sum(len(name) + header_bytes(value) for name, value in headers)
            if size > _RECORD_ROOM_BYTES:
                return self._refused("size", f"it has {size} bytes; a record has at most {_RECORD_ROOM_BYTES}")
        status = self.status
        if answer and self.memory.recent.is_again(key, payload):
            flags |= Flag.DUPLICATE_SUSPECTED
        if flags & Flag.DUPLICATE_SUSPECTED:
            status.duplicates += 1
        batch = ingest.batch
        batch.add(route, key, payload, self, flags, headers)
        batch.joined_bytes += len(payload)
        status.messages += 1
        status.bytes += len(payload)
        status.last_message = self.node.wall_clock()
        if answer:
            batch.answer(self, answer)
            status.unacknowledged += 1
        if self.memory.one_by_one:
            self.memory.one_by_one -= 1
            batch.store()
        else:
            batch.relieve()
        return None

    def _refused(self, kind: str, why: str) -> str:
        self.status.refused += 1
        repeated = self.memory.lines.due(kind, asyncio.get_running_loop().time())
        if repeated is not None:
            log.warning("source %s: a message is refused and not kept: %s%s", self.status.name, why, left_out(repeated))
        return why

    # --- for ingest

    def acknowledge(self, answers: bytes) -> None:
        """Send answers: everything before them is durable."""
        raise NotImplementedError

    def refuse(self, error: BaseException) -> None:
        """End the connection, as some of its messages could not be stored: the broker sends them again.

        Earlier stored messages are acknowledged first. The next messages are stored one by one: a turn that is refused
        in part is not acknowledged at all, and a log with room for half of it would store that half again and again.
        """
        self.memory.one_by_one = ONE_BY_ONE
        if self._is_refused or self.ended.done():
            return
        self._is_refused = True
        self.hold(Pause.DISK)
        reason = f"what it sent could not be stored, and is not acknowledged: {error}"

        def end(_: BaseException | None) -> None:
            self._loop.call_soon(answered_end)  # the callbacks of a commit come before its answers

        def answered_end() -> None:
            self.node.ingest.batch.answer_all()
            self.end(reason)

        self.node.ingest.on_durable(end)

    # --- for back-pressure

    @property
    def is_held(self) -> bool:
        """Return whether the source is paused."""
        return bool(self._pauses) or self._is_refused

    def hold(self, reason: Pause) -> None:
        """Pause."""
        is_first = not self._pauses
        self._pauses |= reason
        if is_first and not self.ended.done():
            self.pause()

    def release(self, reason: Pause) -> None:
        """Resume, if no other reason remains."""
        if not self._pauses & reason:
            return
        self._pauses &= ~reason
        if self._is_refused:
            return
        if not self._pauses and not self.ended.done():
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self._is_refused and not self._pauses and not self.ended.done():
            self.resume()

    def pause(self) -> None:
        """Stop reading from the broker."""
        raise NotImplementedError

    def resume(self) -> None:
        """Handle data that arrived meanwhile, and resume reading."""
        raise NotImplementedError

    # --- the connection

    def join(self) -> None:
        """Join back-pressure: messages may come, of an earlier session at once."""
        self.node.ingest.back_pressure.join(self)

    def end(self, reason: str) -> None:
        """End the connection, once. Messages not acknowledged by now never are on this one."""
        if self.ended.done():
            return
        super().end(reason)
        self.status.unacknowledged = 0
        self.status.waiting = None
        self.node.ingest.back_pressure.leave(self)
        self.node.ingest.routing.leave(self._routes)

    async def settle(self) -> None:
        """Pause, and wait a while until all messages are on disk and acknowledged."""
        self.hold(Pause.FAIRNESS)
        self.node.ingest.batch.store()
        durable = asyncio.get_running_loop().create_future()
        self.node.ingest.on_durable(lambda _: None if durable.done() else durable.set_result(None))
        await asyncio.wait([durable, self.ended], timeout=SETTLE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        # The callbacks of a commit come before its answers: one more turn.
        await asyncio.sleep(0)
        self.node.ingest.batch.answer_all()


RECENT_MAX = 10_000
"""Messages remembered: more than a broker that writes its state every few seconds can lose. Some 1 MB when full."""
NEW_MAX = 200
"""Consecutive new messages after which no earlier one is expected any more: brokers send them in order."""


class Recent:
    """Digests of one source's last messages, and of messages that may come again on a new connection."""

    def __init__(self) -> None:
        self._digests: deque[int] = deque(maxlen=RECENT_MAX)
        self._expected: Counter[int] = Counter()
        self._new_in_a_row = 0

    def reconnected(self) -> None:
        """Expect that each earlier message may come once more."""
        self._expected = Counter(self._digests)
        self._new_in_a_row = 0

    def is_again(self, key: bytes, payload: bytes) -> bool:
        """Add a message. Return whether it may have come before."""
        digest = hash((key, payload))
        if self._expected:
            if self._expected[digest] > 0:
                self._expected[digest] -= 1
                self._new_in_a_row = 0
                return True
            self._new_in_a_row += 1
            if self._new_in_a_row >= NEW_MAX:
                self._expected.clear()
        self._digests.append(digest)
        return False


# One source while the node runs: it connects, serves, and reconnects after every failure.

log = logging.getLogger(__name__)


class Runner(ABC):
    """Base of the sources of each protocol."""

    connect_timeout_s: ClassVar[float | None] = 2 * CONNECT_TIMEOUT_S
    """Longest time for all of ``connect``; None where each of its steps has a bound."""

    def __init__(
        self,
        settings: TopicSettings,
        urls: Sequence[str],
        status: SourceStatus,
        node: SourceContext,
        rng: random.Random,
    ) -> None:
        """Use checked settings.

        Args:
            urls: tried in turn.

        Raises:
            InvalidTopic: a rule for topics is not valid.
        """
        self._settings = settings
        self._urls = urls
        self.status = status
        self.node = node
        self.topics = Topics(((each.from_, each.to) for each in settings.rewrite), settings.prefix)
        self.memory = Memory()
        self.connection: AnyConnection | None = None
        """The present connection; None without one."""
        self.is_last = False
        """True if no later run resumes what the server keeps of this one."""
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(urls, settings.retry_min_s, settings.retry_max_s, rng)
        self._lines = SourceLog(status.name, self._loop.time())

    @abstractmethod
    async def connect(self, url: str) -> AnyConnection:
        """Connect, and start the flow of messages. On a failure, close everything that was opened.

        Raises:
            SourceDown, OSError, TimeoutError, CredentialsUnusable: there is no connection.
        """

    @abstractmethod
    async def close(self, connection: AnyConnection) -> None:
        """Stop, acknowledge the messages on disk, and disconnect."""

    def replaced(self, by: Source | None) -> None:
        """Note, before the end, what takes the place of these settings: None if the source is removed.

        What a server keeps for the next run then ends with this one, if that run could not use it.
        """
        self.is_last = by is None

    async def run(self) -> None:
        """Serve until cancelled. Never raises for errors of the network, the broker or the log."""
        status, attempt = self.status, 0
        try:
            while True:
                url = self._urls[attempt % len(self._urls)]
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
                    reason = f"internal fault: {type(error).__name__}. The log has more"
                if status.acknowledged > acknowledged or self._loop.time() - since >= self._settings.retry_max_s:
                    self._backoff.reset()
                await self._wait(url, reason)
        finally:
            status.state, status.next_try, status.connected_since = SourceState.STOPPED, None, None

    async def _serve(self, url: str) -> str:
        """Serve one connection; return the reason of its end."""
        self.memory.recent.reconnected()
        async with asyncio.timeout(self.connect_timeout_s):
            connection = self.connection = await self.connect(url)
        if not connection.ended.done():
            connection.up()
        self._lines.connected(url, self._loop.time())
        try:
            return await asyncio.shield(connection.ended)
        except asyncio.CancelledError:
            await self.close(connection)
            raise
        finally:
            self.connection = None

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


class SourceLog:
    """The log lines of one source. Every call takes monotonic seconds."""

    def __init__(self, name: str, now: float) -> None:
        self._name = name
        self._state = UpAndDown(now)

    def connected(self, url: str, now: float) -> None:
        """Log that messages can come."""
        change = self._state.up(now)
        if change is None:
            return
        after = f", after {approximate_duration(change.away_s)}{' away' if change.again else ''}"
        log.info(
            "source %s: connected %sto %s%s",
            self._name,
            "again " if change.again else "",
            url,
            after if change.again or change.failures else "",
        )

    def failed(self, url: str, reason: str, retry_s: float, now: float) -> None:
        """Log a failed attempt, or the end of a connection.

        Args:
            reason: for people; parts of it are a broker's text.
        """
        change = self._state.down(reason, now)
        if change is None:
            return
        what = f"disconnected after {approximate_duration(change.since_s)}" if change.was_up else "not connected"
        log.warning(
            "source %s: %s: %s: %s (next try in %.1f s%s)",
            self._name,
            what,
            url,
            reason,
            retry_s,
            left_out(change.left_out),
        )
