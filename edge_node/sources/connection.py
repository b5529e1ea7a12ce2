"""The common part of connections to external brokers of every protocol: their path into the log.

A connection is a source of ingest, and a publisher that back-pressure holds. Its messages are acknowledged to the
broker after the fsync and on the same connection, or never: delivery tags and packet identifiers have other meanings on
the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from weft.bounds import Owner, OwnerKind, Rounds
from weft.config.log_lines.repeats import Repeats, left_out
from weft.edge_node.ingest.back_pressure import Pause
from weft.edge_node.ingest.ingest import Ingest
from weft.edge_node.sources.status import SourceState, SourceStatus
from weft.edge_node.sources.topics import Topics
from weft.protocols.batch import HEADER_PAIRS_MAX, Flag, HeaderPairs
from weft.protocols.columns import header_bytes
from weft.protocols.topics import InvalidTopic
from weft.storage.segment_log.settings import RECORD_BYTES_MAX

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


class SourceDown(Exception):
    """The connection to a broker has ended, or failed; the text has the reason and the remedy."""


class NodeParts(NamedTuple):
    """Parts of the node that sources use."""

    ingest: Ingest
    rounds: Rounds
    wall_clock: Callable[[], int]
    """Clock in ns since 1970."""


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


class SourceConnection:
    """Base of the connections of each protocol. Event loop's thread only."""

    def __init__(self, node: NodeParts, status: SourceStatus, topics: Topics, memory: Memory) -> None:
        self.node = node
        self.status = status
        self.publisher: str | None = f"source:{status.name}"
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set to the reason once the connection has ended."""
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
            return self._refused("topic", f"topic {shown!r} is not taken: it begins with $SYS/ or has too many levels")
        if len(key) + len(payload) > _LONG_BYTES or headers:
            size = len(key) + len(payload) + sum(len(name) + header_bytes(value) for name, value in headers)
            if size > _RECORD_ROOM_BYTES:
                return self._refused("size", f"it has {size} bytes; a record has at most {_RECORD_ROOM_BYTES}")
        status = self.status
        if answer and self.memory.recent.is_again(key, payload):
            flags |= Flag.DUPLICATE_SUSPECTED
        if flags & Flag.DUPLICATE_SUSPECTED:
            status.duplicates += 1
        turn = ingest.turn
        turn.add(route, key, payload, self, flags, headers)
        turn.joined_bytes += len(payload)
        status.messages += 1
        status.bytes += len(payload)
        status.last_message = self.node.wall_clock()
        if answer:
            turn.answer(self, answer)
            status.unacknowledged += 1
        if self.memory.one_by_one:
            self.memory.one_by_one -= 1
            turn.store()
        else:
            turn.relieve()
        return None

    def _refused(self, kind: str, why: str) -> str:
        self.status.refused += 1
        repeated = self.memory.lines.say(kind, asyncio.get_running_loop().time())
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
            self._loop.call_soon(self.end, reason)  # the callbacks of a commit come before its answers

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
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if not self._is_refused and not self._pauses and not self.ended.done():
            self.go_on()

    def pause(self) -> None:
        """Stop reading from the broker."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Handle data that arrived meanwhile, and resume reading."""
        raise NotImplementedError

    # --- the connection

    def join(self) -> None:
        """Join back-pressure: messages may come, of an earlier session at once."""
        self.node.ingest.back_pressure.join(self)

    def up(self) -> None:
        """Note that the source is subscribed, or consumes."""
        self.status.state = SourceState.CONNECTED
        self.status.connected_since = self.node.wall_clock()
        self.status.connections += 1
        self.status.attempts_failed = 0

    def end(self, reason: str) -> None:
        """End the connection, once. Messages not acknowledged by now never are on this one."""
        if self.ended.done():
            return
        self.ended.set_result(reason)
        self.status.unacknowledged = 0
        self.status.waiting = None
        self.node.ingest.back_pressure.leave(self)
        self.node.ingest.routing.leave(self._routes)

    async def settle(self) -> None:
        """Pause, and wait a while until all messages are on disk and acknowledged."""
        self.hold(Pause.TURN)
        self.node.ingest.turn.store()
        durable = asyncio.get_running_loop().create_future()
        self.node.ingest.on_durable(lambda _: None if durable.done() else durable.set_result(None))
        await asyncio.wait([durable, self.ended], timeout=SETTLE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        # The callbacks of a commit come before its answers: one more turn.
        await asyncio.sleep(0)


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
