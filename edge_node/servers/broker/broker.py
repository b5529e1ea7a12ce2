"""The broker: puts connections, sessions, subscriptions and the log together. Listeners bring it connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.bounds import Bound, Rounds, TurnBudget
from weft.config.log_lines.partings import Partings
from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import TOPIC_LEVELS_MAX, Ingest
from weft.edge_node.ingest.router import Router
from weft.edge_node.ingest.turn import Turn
from weft.edge_node.ingest.unrouted import Unrouted
from weft.edge_node.servers.broker.connected import Connected
from weft.edge_node.servers.broker.output import Writes
from weft.edge_node.servers.broker.turns import Turns
from weft.edge_node.sessions.limits import SessionLimits
from weft.edge_node.sessions.parts import Kept, make_parts
from weft.edge_node.sessions.sessions import Sessions
from weft.edge_node.sessions.store.broker_state import BrokerState
from weft.edge_node.sessions.sys_topics import INTERVAL_S, Facts, SysTopics
from weft.edge_node.streams import SESSION_TOPICS_STREAM
from weft.edge_node.subscriptions.fan_out import FanOut
from weft.edge_node.subscriptions.message import Message, split_expiry
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.edge_node.timing.timer_wheel import TimerWheel
from weft.protocols.mqtt.connection import ServerLimits
from weft.protocols.mqtt.publish_run import SCAN_PACKET_BYTES_MIN
from weft.storage.segment_log import SegmentLog
from weft.storage.segment_log.settings import RECORD_BYTES_MAX

log = logging.getLogger(__name__)

NOTED_MAX = 200
"""Sessions whose positions are noted in one turn of the event loop."""
PAUSE_S = 0.001
"""Pause between two such turns."""
NOTING_S = 0.002
"""Time of such a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of what the broker takes in, and bounds on clients. CONNACK announces those that a client needs."""

    patterns: Mapping[str, Sequence[str]]
    """Stream name -> its patterns, in the order of the configuration."""
    sessions: SessionLimits = field(default_factory=SessionLimits)
    """Bounds on sessions."""
    pending_bytes_max: int = 8 << 20
    """Bytes that may wait for the disk before publishers are held."""
    packet_bytes_max: int = 1 << 20
    """Longest packet, fixed header included; a longer one is refused on its first bytes."""
    connect_bytes_max: int = 64 << 10
    """Longest CONNECT, its will included: who sends it is not known yet."""
    unfinished_bytes_max: int = 128 << 20
    """Bytes of packets that have not come whole, and of what clients sent ahead of their turn, of all clients."""
    unfinished_bytes_per_user_max: int = 32 << 20
    """The same of one user, or of one address."""
    write_timeout_s: float = 60.0
    """Seconds for which a client may leave unread what it was sent."""
    send_queue_bytes_max: int = 1 << 20
    """Bytes written to one client and not yet taken by its socket: past it deliveries at QoS 0 are dropped, and the
    client is not read."""
    receive_maximum: int = 65_535
    """Publishes at QoS 1 and 2 that a client of MQTT 5.0 may have unanswered."""
    topic_alias_maximum: int = 64
    """Topic aliases that a client of MQTT 5.0 may use."""
    topic_levels_max: int = TOPIC_LEVELS_MAX
    """Levels of a topic that is published to; deeper ones are refused."""
    closes_on_refusal: bool = True
    """True if a refused publish at QoS 1 or 2 ends the connection of a client of 3.1 or 3.1.1, False if it is
    acknowledged."""
    keep_alive_s_max: int = 0
    """Longest keep alive of a client of MQTT 5.0; 0 for any, none included."""
    positions_interval_s: float = 1.0
    """Interval at which the read positions of connected sessions are saved. Messages acknowledged since the last save
    may be redelivered after a crash. Wills that found no room are retried at the same interval."""
    sys_interval_s: float | None = INTERVAL_S
    """Interval of the updates of ``$SYS``; None for no ``$SYS``."""
    software: str = "weft"
    """Value of ``$SYS/broker/version``."""

    def __post_init__(self) -> None:
        if not SCAN_PACKET_BYTES_MIN <= self.packet_bytes_max <= RECORD_BYTES_MAX:
            raise ValueError(
                f"packet_bytes_max must be {SCAN_PACKET_BYTES_MIN} to {RECORD_BYTES_MAX}, got {self.packet_bytes_max}"
            )


class Broker:
    """One node's broker. Belongs to the event loop's thread. ``start`` before the first connection, ``close`` after the
    listeners have stopped accepting."""

    def __init__(  # noqa: PLR0917
        self,
        segment_log: SegmentLog,
        state: BrokerState,
        turn: Turn,
        unrouted: Unrouted,
        settings: BrokerSettings,
        counters: Counters,
        wall_clock: Callable[[], int],
    ) -> None:
        """Join the parts.

        Args:
            state: what of sessions and retained messages outlives a restart.
            turn: the one whose end is the end of the log's turns.
            wall_clock: nanoseconds since 1970.
        """
        limits, journal = settings.sessions, state.journal
        self._loop = asyncio.get_running_loop()
        self._log = segment_log
        self.settings = settings
        self.counters = counters
        self.wall_clock = wall_clock
        self.clock = self._loop.time
        self.partings = Partings(self.clock)
        """Log lines about clients that were closed."""
        self.turns = Turns(self._loop)
        self.refusals = state.refusals
        """Counter of what shares refuse."""
        self.unfinished = Bound(
            settings.unfinished_bytes_max, settings.unfinished_bytes_per_user_max, state.refusals,
            "limits.unfinished", "limits.unfinished_per_user", "bytes of packets that have not come whole",
        )  # fmt: skip
        """Bytes that clients have the node hold before it can handle them."""
        self.retained = state.retained
        self.journal = journal
        self.resent = state.resent
        self.changes = state.changes
        self.server_limits = ServerLimits(
            receive_maximum=settings.receive_maximum,
            topic_alias_maximum=settings.topic_alias_maximum,
            maximum_packet_size=settings.packet_bytes_max,
            keep_alive_s_max=settings.keep_alive_s_max,
        )
        self.wheel = TimerWheel(self._loop)
        self.subscriptions, self.outbox = Subscriptions(), (outbox := Outbox(turn.crowd))
        self.rounds = Rounds(outbox.flush)
        """Queues of clients whose turn is over."""
        self.writes = Writes(turn.crowd, counters, settings.send_queue_bytes_max)
        self.fan_out = FanOut(self.subscriptions, outbox)
        self.ingest = Ingest(
            segment_log, Router(settings.patterns, segment_log.stream), self.subscriptions, self.fan_out, wall_clock,
            counters, unrouted, turn, session_topics=segment_log.stream(SESSION_TOPICS_STREAM),
            pending_bytes_max=settings.pending_bytes_max,
            topic_levels_max=settings.topic_levels_max,
        )  # fmt: skip
        self.session_parts = make_parts(
            Kept(segment_log, journal, state.changes, state.backlog, state.retained), self.ingest,
            self.subscriptions, outbox, self.rounds, self._match_retained, limits, state.refusals, counters, wall_clock,
        )  # fmt: skip
        self.places = self.session_parts.shares.connections
        """Connections of each user, by every protocol (``Place``)."""
        self.sessions = Sessions(self.session_parts, limits, counters, self.wheel, self.clock)
        self._connections: set[Connected] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sys: SysTopics | None = None
        if settings.sys_interval_s is not None:
            self._sys = SysTopics(counters, self._facts, self.fan_out.message, self.clock, settings.software)

    def start(self) -> None:
        """Take up the sessions of the last run, and begin to keep ``$SYS`` and positions."""
        self.sessions.restore()
        self.run(self._every(self.settings.positions_interval_s, self._look_after_sessions))
        if self._sys is not None and self.settings.sys_interval_s is not None:
            self.run(self._every(self.settings.sys_interval_s, self._update_sys))

    def close(self) -> None:
        """Close every connection. Wills are published after the next start; what was not acknowledged comes again."""
        self.sessions.stop()
        for connection in list(self._connections):
            connection.shut_down()
        self.sessions.stop_reading()
        self.wheel.close()
        for task in self._tasks:
            task.cancel()

    def reroute(self, patterns: Mapping[str, Sequence[str]]) -> None:
        """Route publishes by other patterns from now on: stream -> its filters.

        Raises:
            InvalidTopic: a pattern is not valid; nothing has changed.
        """
        self.sessions.add_streams(self.ingest.reroute(Router(patterns, self._log.stream)))

    def permissions_changed(self) -> None:
        """Ask again what clients may do: users or access rules were read again."""
        self.sessions.permissions_changed()

    # --- what connections ask

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call back once what is being handled is done."""
        return self._loop.call_soon(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after some time, unless the broker is closed by then."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            callback()

        self.run(wait())

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that takes a while; it is cancelled when the broker closes."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def arrived(self, connection: Connected) -> None:
        """Count a new connection in."""
        self._connections.add(connection)

    def left(self, connection: Connected) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)
        self.ingest.back_pressure.leave(connection)

    # --- inside

    def _match_retained(self, topic_filter: str, change: int) -> Iterable[Message | None]:
        for kept in self.retained.walk(topic_filter):
            if kept is None or kept.change > change:  # later ones, subscribers get in any case
                yield None
                continue
            properties, _ = split_expiry(kept.properties, self.wall_clock())
            interval = kept.properties.message_expiry_interval
            expires_ns = 0 if interval is None else kept.stored_ns + interval * 1_000_000_000
            yield Message(kept.topic, kept.payload, kept.qos, True, properties, expires_ns)
        if self._sys is not None:
            yield from self._sys.match(topic_filter)

    def _facts(self) -> Facts:
        return Facts(len(self.sessions), len(self.retained))

    async def _look_after_sessions(self) -> None:
        self.sessions.retry_wills()
        self.sessions.note_absences()
        budget = TurnBudget(NOTED_MAX, NOTING_S, self.clock)
        budget.begin(self.clock())
        for _ in self.sessions.positions_to_note():
            if not budget.spend():
                await asyncio.sleep(PAUSE_S)  # others get the loop, and threads the interpreter's lock
                budget.begin(self.clock())
        self.counters.backpressure_pauses = self.ingest.back_pressure.pauses

    async def _every(self, interval_s: float, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await action()

    async def _update_sys(self) -> None:
        if self._sys is not None:
            self._sys.update()
