"""MQTT of one node: sessions, retained messages and ``$SYS``, for all of its connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weft.bounds import TurnBudget
from weft.config.limits import EdgeLimits
from weft.config.models import EdgeConfig
from weft.edge_node.ingest.routing import RouteCache
from weft.edge_node.servers.clients.context import Connected, ProtocolContext
from weft.edge_node.servers.clients.reading import Reading
from weft.edge_node.servers.listeners.settings import AcceptedConnection
from weft.edge_node.sessions.broker_state import BrokerState
from weft.edge_node.sessions.session import Session
from weft.edge_node.sessions.sessions import PersistedState, Sessions, make_context
from weft.edge_node.sessions.sys_topics import INTERVAL_S, Facts, SysTopics
from weft.edge_node.subscriptions.message import Message, split_expiry
from weft.protocols.mqtt.connection import ServerLimits
from weft.protocols.mqtt.packets import MqttError, Packet, ReasonCode

NOTED_MAX = 200
"""Number of sessions whose positions are journaled in one turn of the event loop."""
PAUSE_S = 0.001
"""Pause between two such turns."""
NOTING_S = 0.002
"""Time of such a turn."""


KEEP_ALIVE_S_MAX = 65_535
"""Longest keep alive that two bytes can hold: as a limit it has no effect."""
_LIMITS = EdgeLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSettings:
    """Settings specific to MQTT. CONNACK announces the ones that a client needs."""

    receive_maximum: int = _LIMITS.receive_maximum
    """Publishes at QoS 1 and 2 that a client of MQTT 5.0 may have unanswered."""
    topic_alias_maximum: int = _LIMITS.topic_alias_maximum
    """Topic aliases that a client of MQTT 5.0 may use."""
    closes_on_refusal: bool = True
    """True if a refused publish at QoS 1 or 2 ends the connection of a client of 3.1 or 3.1.1, False if it is
    acknowledged."""
    keep_alive_s_max: int = 0
    """Longest keep alive of a client of MQTT 5.0; 0 for any, none included."""
    sys_interval_s: float | None = INTERVAL_S
    """Interval of the updates of ``$SYS``; None for no ``$SYS``."""
    software: str = "weft"
    """Value of ``$SYS/broker/version``."""

    @classmethod
    def of(cls, config: EdgeConfig, software: str) -> MqttSettings:
        """Return the settings that a configuration has."""
        limits = config.limits
        keep_alive_s = round(limits.keep_alive_s)
        return cls(
            receive_maximum=limits.receive_maximum,
            topic_alias_maximum=limits.topic_alias_maximum,
            closes_on_refusal=config.auth.refused_publish == "close",
            keep_alive_s_max=0 if keep_alive_s == KEEP_ALIVE_S_MAX else keep_alive_s,
            software=software,
        )


class MqttServer:
    """Belongs to the event loop's thread. ``start`` before the first connection, ``close`` after the listeners have
    stopped accepting."""

    def __init__(self, context: ProtocolContext, state: BrokerState, settings: MqttSettings) -> None:
        """Connect the parts.

        Args:
            state: state of sessions and retained messages that outlives a restart.
        """
        limits, counters = context.settings.limits, context.counters
        self.context = context
        self.settings = settings
        self.retained = state.retained
        self.journal = state.journal
        self.resent = state.resent
        self.changes = state.changes
        self.limits = ServerLimits(
            receive_maximum=settings.receive_maximum,
            topic_alias_maximum=settings.topic_alias_maximum,
            maximum_packet_size=context.settings.limits.message_bytes,
            keep_alive_s_max=settings.keep_alive_s_max,
        )
        self.session_context = make_context(
            PersistedState(context.log, state.journal, state.changes, state.retained),
            context.delivery,
            context.ingest,
            context.subscriptions,
            context.outbox,
            context.round_robin,
            self._match_retained,
            limits,
            counters,
            context.wall_clock,
        )
        self.sessions = Sessions(self.session_context, limits, counters, context.wheel, context.clock)
        self._sys: SysTopics | None = None
        if settings.sys_interval_s is not None:
            self._sys = SysTopics(counters, self._facts, context.fan_out.message, context.clock, settings.software)

    def start(self) -> None:
        """Restore the sessions of the last run, and start the updates of ``$SYS`` and positions."""
        self.sessions.restore()
        self.context.run(_every(self.context.settings.positions_interval_s, self._look_after_sessions))
        if self._sys is not None and self.settings.sys_interval_s is not None:
            self.context.run(_every(self.settings.sys_interval_s, self._update_sys))

    def close(self) -> None:
        """Close every connection. Wills are published after the next start; unacknowledged messages are sent again."""
        self.sessions.stop()
        self.context.shut_down()
        self.sessions.stop_reading()

    # --- inside

    def _match_retained(self, topic_filter: str, change: int) -> Iterable[Message | None]:
        for kept in self.retained.walk(topic_filter):
            if kept is None or kept.change > change:  # subscribers get later ones in any case
                yield None
                continue
            properties, _ = split_expiry(kept.properties, self.context.wall_clock())
            interval = kept.properties.message_expiry_interval
            expires_ns = 0 if interval is None else kept.stored_ns + interval * 1_000_000_000
            yield Message(kept.topic, kept.payload, kept.qos, True, properties, expires_ns)
        if self._sys is not None:
            yield from self._sys.match(topic_filter)

    def _facts(self) -> Facts:
        return Facts(len(self.sessions), len(self.retained))

    async def _look_after_sessions(self) -> None:
        self.session_context.wills.retry()
        self.session_context.persistence.note_late()
        clock = self.context.clock
        budget = TurnBudget(NOTED_MAX, NOTING_S, clock)
        budget.begin(clock())
        for _ in self.sessions.positions_to_note():
            if not budget.spend():
                await asyncio.sleep(PAUSE_S)  # other tasks get the loop, and threads the interpreter's lock
                budget.begin(clock())
        self.context.counters.backpressure_pauses = self.context.ingest.back_pressure.pauses

    async def _update_sys(self) -> None:
        if self._sys is not None:
            self._sys.update()


async def _every(interval_s: float, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        await action()


# Interface of a client's connection for handshake, packet handlers and publishes.


class MqttClient(Connected, Protocol):
    """One client's connection (``ClientConnection``). Only it has the transport, and it ends the other parts with it.

    Every call belongs to the event loop's thread. Calls that close the connection may be repeated when it is closed.
    """

    accepted: AcceptedConnection
    """The connection in its listener's counts."""
    reading: Reading
    """Pauses and turns."""

    @property
    def is_open(self) -> bool:
        """Return whether data can still be sent to the client."""
        ...

    def send(self, data: bytes) -> None:
        """Write whole packets; do nothing once it is closed."""

    def send_all(self, parts: Sequence[bytes]) -> None:
        """Write whole packets in parts."""

    def answer(self, packet: Packet) -> None:
        """Write one packet in the client's version."""

    def welcome(self, session: Session, routes: RouteCache) -> None:
        """Handle packets for this session from now on. The caller then sends CONNACK, and calls ``reading.resume``."""

    def fail(self, error: MqttError, level: int = logging.WARNING) -> None:
        """Refuse CONNECT and close."""

    def refuse(self, error: BaseException) -> None:
        """Close: the client's messages could not be stored, so they must not be acknowledged."""

    def displace(self, code: ReasonCode) -> None:
        """Close: the session belongs to another connection now [MQTT-3.1.4-3], or has ended."""

    def has_left(self, code: int, *, with_will: bool) -> None:
        """Close after DISCONNECT."""

    def shut_down(self) -> None:
        """Close because the node stops, without publishing the will."""
