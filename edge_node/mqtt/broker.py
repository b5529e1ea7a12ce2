"""The MQTT broker: puts connections, sessions, subscriptions and the log together. Listeners bring it connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from weft.edge_node.counters import Counters
from weft.edge_node.ingest.ingest import TOPIC_LEVELS_MAX, Ingest
from weft.edge_node.ingest.router import Router
from weft.edge_node.ingest.turn import Turn
from weft.edge_node.ingest.unrouted import Unrouted
from weft.edge_node.mqtt.connection import MqttConnection
from weft.edge_node.mqtt.door import Arrival, Door
from weft.edge_node.sessions.keeping import Keeping
from weft.edge_node.sessions.limits import SessionLimits
from weft.edge_node.sessions.session import Session
from weft.edge_node.sessions.sessions import Sessions
from weft.edge_node.sessions.store.backlog import Backlog
from weft.edge_node.sessions.store.journal import SessionJournal
from weft.edge_node.sessions.store.resent import Resent
from weft.edge_node.sessions.store.retained import RetainedMessages
from weft.edge_node.sessions.sys_topics import INTERVAL_S, Facts, SysTopics
from weft.edge_node.sessions.wills import Wills
from weft.edge_node.sessions.window_ports import QueueBudget
from weft.edge_node.streams import SESSION_TOPICS_STREAM
from weft.edge_node.subscriptions.fan_out import FanOut
from weft.edge_node.subscriptions.message import Message, split_expiry
from weft.edge_node.subscriptions.subscriptions import Subscriptions
from weft.edge_node.timer_wheel import TimerWheel
from weft.protocols.mqtt.connection import ServerLimits
from weft.protocols.mqtt.packets import Subscription
from weft.protocols.mqtt.publish_run import SCAN_PACKET_BYTES_MIN
from weft.protocols.mqtt.reason_codes import ReasonCode
from weft.storage.segment_log import SegmentLog
from weft.storage.segment_log.settings import RECORD_BYTES_MAX

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Bounds on one connection, and what CONNACK says of them."""

    packet_bytes_max: int = 1 << 20
    """Longest packet, fixed header included; a longer one is refused on its first bytes."""
    write_timeout_s: float = 60.0
    """How long a client may leave unread what it was sent."""
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
    """Whether a refused publish at QoS 1 or 2 ends the connection of a client of 3.1 or 3.1.1, or is acknowledged."""
    keep_alive_s_max: int = 0
    """Longest keep alive of a client of MQTT 5.0; 0 for any, none included."""
    positions_interval_s: float = 1.0
    """How often it is noted how far connected sessions are: after a crash they get what they acknowledged since again.
    How often wills that found no room are tried again, too."""
    sys_interval_s: float | None = INTERVAL_S
    """Between two updates of ``$SYS``; None for no ``$SYS``."""
    software: str = "weft"
    """What ``$SYS/broker/version`` says."""

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
        patterns: dict[str, Any],
        settings: BrokerSettings,
        limits: SessionLimits,
        counters: Counters,
        wall_clock: Callable[[], int],
        *,
        retained: RetainedMessages,
        journal: SessionJournal,
        backlog: Backlog,
        resent: Resent,
        unrouted: Unrouted,
        pending_bytes_max: int,
        turn: Turn,
    ) -> None:
        """Join the parts.

        Args:
            patterns: stream name -> its patterns, in the order of the configuration.
            wall_clock: nanoseconds since 1970.
            pending_bytes_max: bytes that may wait for the disk before publishers are held.
        """
        self._loop = asyncio.get_running_loop()
        self.settings = settings
        self.counters = counters
        self.wall_clock = wall_clock
        self.clock = self._loop.time
        self.retained = retained
        self.journal = journal
        self.resent = resent
        self.server_limits = ServerLimits(
            receive_maximum=settings.receive_maximum,
            topic_alias_maximum=settings.topic_alias_maximum,
            maximum_packet_size=settings.packet_bytes_max,
            keep_alive_s_max=settings.keep_alive_s_max,
        )
        self.wheel = TimerWheel(self._loop)
        self.subscriptions = Subscriptions()
        budget = QueueBudget(limits.queue_bytes_total_max)
        self._keeping = Keeping(
            segment_log, self.subscriptions, journal, backlog, self._match_retained, wall_clock, counters, budget
        )
        deliveries = self._keeping.deliveries
        self.fan_out = FanOut(self.subscriptions, deliveries.touched, deliveries.flush, counters)
        self.ingest = self._keeping.messages.ingest = Ingest(
            segment_log, Router(patterns, segment_log.stream), self.subscriptions, self.fan_out, wall_clock, counters,
            unrouted, turn, session_topics=segment_log.stream(SESSION_TOPICS_STREAM),
            pending_bytes_max=pending_bytes_max,
            topic_levels_max=settings.topic_levels_max,
        )  # fmt: skip
        self._wills = Wills(self.ingest, retained, journal, counters, wall_clock, limits.will_bytes_max)
        self.sessions = Sessions(
            self.subscriptions, limits, counters, self._keeping, self._wills, self.wheel, self.clock
        )
        self._connections: set[MqttConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sys: SysTopics | None = None
        if settings.sys_interval_s is not None:
            self._sys = SysTopics(counters, self._facts, self.fan_out.message, self.clock, settings.software)

    def start(self) -> None:
        """Take up the sessions of the last run, and begin to keep ``$SYS`` and positions."""
        self.sessions.restore()
        self.run(self._every(self.settings.positions_interval_s, self._look_after_sessions))
        if self._sys is not None and self.settings.sys_interval_s is not None:
            self.run(self._every(self.settings.sys_interval_s, self._sys.update))

    def connection(self, door: Door, arrival: Arrival) -> MqttConnection:
        """The protocol of a new connection."""
        return MqttConnection(self, door, arrival)

    def close(self) -> None:
        """Close every connection. Wills are published after the next start; what was not acknowledged comes again."""
        self.sessions.stop()
        for connection in list(self._connections):
            connection.shut_down()
        for session in self.sessions.all():
            if session.outbound.catch_up is not None:
                session.outbound.catch_up.stop()
        for group in self.sessions.filters.groups:
            if group.catch_up is not None:
                group.catch_up.stop()
        self._note_positions()
        self.wheel.close()
        for task in self._tasks:
            task.cancel()

    def permissions_changed(self) -> None:
        """Users or access rules were read anew: what was remembered of them is asked again, and clients that would not
        be let in any more are closed, their wills published."""
        for session in self.sessions.all():
            link, identity = session.outbound.link, session.identity
            if link is not None and identity is not None and not identity.admitted:
                self.counters.clients_expelled += 1
                link.displace(ReasonCode.NOT_AUTHORIZED)
        self.subscriptions.changed()

    def send_retained(self, session: Session, subscribed: Iterable[Subscription]) -> None:
        """Begin to send the retained messages of new subscriptions; shared ones get none (section 4.8.2)."""
        for options in subscribed:
            entry, group = session.entries.get(options.filter, (None, None))
            if entry is not None and group is None:
                self._keeping.send_retained(entry)
        session.outbound.pump()
        self.fan_out.flush()

    # --- what connections ask

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call back once what is being handled is done."""
        return self._loop.call_soon(callback)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that takes a while; it is cancelled when the broker closes."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def arrived(self, connection: MqttConnection) -> None:
        """A connection was made."""
        self._connections.add(connection)

    def left(self, connection: MqttConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self.ingest.back_pressure.leave(connection)

    # --- inside

    def _match_retained(self, topic_filter: str) -> Iterable[Message]:
        for topic in [kept.topic for kept in self.retained.match(topic_filter)]:
            kept = self.retained.get(topic)  # whoever is subscribed has had the newer one, or will have it
            if kept is None:
                continue
            properties, _ = split_expiry(kept.properties, self.wall_clock())
            interval = kept.properties.message_expiry_interval
            expires_ns = 0 if interval is None else kept.stored_ns + interval * 1_000_000_000
            yield Message(kept.topic, kept.payload, kept.qos, True, properties, expires_ns)
        if self._sys is not None:
            yield from self._sys.match(topic_filter)

    def _facts(self) -> Facts:
        return Facts(len(self.sessions), len(self.retained))

    def _look_after_sessions(self) -> None:
        self._wills.retry()
        self._note_positions()
        self.counters.backpressure_pauses = self.ingest.back_pressure.pauses

    def _note_positions(self) -> None:
        self._keeping.note_positions(self.sessions)

    async def _every(self, interval_s: float, action: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            action()
