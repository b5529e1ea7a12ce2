"""One client as the subscriber of messages: deliveries sent, waiting, and left to the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.sessions.window.in_flight import Delivery, InFlight
from weft.edge_node.sessions.window.packet_writer import ClientConnection, PacketWriter
from weft.edge_node.sessions.window.packets_out import Wire
from weft.edge_node.sessions.window.parts import WindowParts
from weft.edge_node.sessions.window.states import (
    CONNECTED,
    QUEUEING,
    SENDING,
    TAKING_NEW,
    Event,
    WindowState,
    after,
    can,
)
from weft.edge_node.sessions.window.waiting import Waiting
from weft.edge_node.subscriptions.catch_up import CatchUp
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.own_filters import SUBSCRIBED
from weft.edge_node.subscriptions.queue_budget import QueueAccount
from weft.edge_node.subscriptions.subscriber import DeliveryOptions
from weft.protocols.mqtt.packet_ids import PACKET_IDS_MAX
from weft.protocols.mqtt.reason_codes import ReasonCode

log = logging.getLogger(__name__)


FallBehind = Callable[["ClientWindow", Message | None], None]
"""Calls ``read_from``, so that messages from one on (None: from those still to come) are read from the log."""


class ClientWindow:
    """Deliveries to one client, in order, within bounds; a ``Subscriber``. ``states`` has its states and
    transitions."""

    __slots__ = (
        "_account", "_catch_up", "_fall_behind", "_identity", "_inflight_max", "_live", "_parts", "_sending", "_state",
        "_told_of_drops", "_waiting", "_when_room", "_writer", "client_id", "in_flight", "owner", "subscribed",
    )  # fmt: skip

    def __init__(
        self, client_id: str, wire: Wire, parts: WindowParts, fall_behind: FallBehind, owner: Owner | None = None
    ) -> None:
        self.client_id = client_id
        self.owner = owner
        """Owner that the window's memory is charged to; None for the node."""
        self.subscribed: SUBSCRIBED = {}
        """Subscriptions of the client, by filter."""
        self._fall_behind = fall_behind
        self._parts = parts
        self._account = QueueAccount(parts.budget, parts.bytes_max, owner)
        self._writer = PacketWriter(client_id, wire, parts)
        self.in_flight = InFlight(self._account, self._writer)
        """Deliveries sent and not completed. It handles the client's answers, which make room for ``pump``."""
        self._waiting = Waiting(self._account)
        self._inflight_max = min(parts.inflight_max, PACKET_IDS_MAX)
        self._identity: Identity | None = None
        self._state = WindowState.AWAY
        self._sending = self._live = False
        """Flags, read for every message: ``_state`` is one of ``SENDING``; ``_state`` is ``LIVE``."""
        self._catch_up: CatchUp | None = None
        """Reader of the log; None unless messages are read from the log or the client is away."""
        self._when_room: dict[Callable[[], None], None] | None = None
        self._told_of_drops = False

    # --- state for other objects

    @property
    def state(self) -> WindowState:
        """Return the state, which decides the window's handling of messages."""
        return self._state

    @property
    def persistent(self) -> bool:
        """Return whether the session outlives its connection."""
        return self._writer.persistent

    @property
    def connected(self) -> bool:
        """Return whether the client is connected: possibly slow, possibly without its CONNACK."""
        return self._state in CONNECTED

    @property
    def queued(self) -> list[Message]:
        """Return the waiting messages."""
        return self._waiting.messages()

    @property
    def catch_up(self) -> CatchUp | None:
        """Return the reader of the log for the client; None when it has missed nothing."""
        return self._catch_up

    @property
    def held(self) -> bool:
        """Return whether writes wait for the journal: packets sent now wait behind them in memory."""
        return self._writer.held

    @property
    def window_open(self) -> bool:
        """Return whether the window can send one more message at QoS 1 or 2."""
        return self._state in TAKING_NEW and self._has_place()

    @property
    def is_idle(self) -> bool:
        """Return whether one more message could be sent, and none waits: retained messages have their turn."""
        return not self._waiting and self.window_open

    def takes(self, qos: int) -> bool:
        """Return whether one more message at this QoS can be sent at once."""
        return self.window_open if qos else self._sending

    def may_read(self, topic: bytes) -> bool:
        """Return whether access rules let the client read messages of a topic."""
        return self._identity is None or self._identity.may_read(topic)

    def is_of(self, connection: ClientConnection) -> bool:
        """Return whether the session belongs to this connection."""
        return self._writer.is_to(connection)

    def _has_place(self) -> bool:
        count = len(self.in_flight.deliveries)
        return not count or (count < self._inflight_max and not self._account.is_full())

    # --- deliveries

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:
        """Send at QoS 0, or drop the message when the client is slow or away."""
        if self._sending:
            self._writer.add_at_most_once(message, options)
        else:
            self._parts.counters.deliveries_dropped += 1

    def offer(self, message: Message, options: DeliveryOptions, qos: int) -> None:
        """Send or queue at QoS 1 or 2. Without room, a message that a stream keeps is read from the log later; another
        is dropped."""
        count = len(self.in_flight.deliveries)
        # ``_has_place`` and ``send`` without the calls: fan-out at QoS 1 spends its time here.
        if (
            self._live
            and self._waiting.deliveries is None
            and (not count or (count < self._inflight_max and not self._account.is_full()))
        ):
            packet_id = self.in_flight.add(message, options, qos)
            if not self._writer.add_delivery(packet_id, message, options, qos, False, False):
                self.in_flight.withdraw(packet_id)
        elif self._state in QUEUEING or message.stream == NOWHERE or self._catch_up is None:
            self._wait(message, options, qos)
        else:
            self._catch_up.cover((message,))

    def send(
        self, message: Message, options: DeliveryOptions, qos: int, *, dup: bool = False, noted: bool = False
    ) -> None:
        """Send at QoS 1 or 2, after ``takes`` has returned True.

        Args:
            dup: the client may have had it before.
            noted: the journal must record, before the client receives the message, that it is this member's.
        """
        packet_id = self.in_flight.add(message, options, qos)
        if not self._writer.add_delivery(packet_id, message, options, qos, dup, noted):
            self.in_flight.withdraw(packet_id)  # as if it had been sent and completed [MQTT-3.1.2-25]

    def pump(self) -> None:
        """Send waiting messages, as far as the client keeps up and the window has room."""
        if not self._sending:
            return
        if self._state is WindowState.RESENDING:
            self._send_again()
        while self._live and self._waiting and self._has_place():
            message, options, qos = self._waiting.pop()
            if message.expires_ns and message.expired(self._parts.wall_clock()):
                self._parts.counters.messages_expired += 1
                continue
            self.send(message, options, qos)
        if self._catch_up is not None:
            self._catch_up.room()
        if self._when_room is not None:
            for callback in tuple(self._when_room):
                callback()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back with each ``pump``: there may be room."""
        if self._when_room is None:
            self._when_room = {}
        self._when_room[callback] = None

    def no_longer_when_room(self, callback: Callable[[], None]) -> None:
        """Stop calling back."""
        if self._when_room is not None:
            self._when_room.pop(callback, None)
            self._when_room = self._when_room or None

    def _send_again(self) -> None:
        if not self.in_flight.send_again(self._inflight_max, self.may_read):
            return
        self._after(Event.RESENT)
        if self._catch_up is None or self._catch_up.level:
            self._catch_up = None
            self._after(Event.LEVEL)
        else:
            self._catch_up.start()

    def _wait(self, message: Message, options: DeliveryOptions, qos: int) -> None:
        connected = self._state in CONNECTED
        if connected and self._waiting.push((message, options, qos)):
            return
        if message.stream == NOWHERE or not (self.persistent or connected):
            self._drop()
        elif self._catch_up is None:
            self._fall_behind(self, message)
        else:
            self._after(Event.FELL_BEHIND)
            self._catch_up.cover((*self._waiting.messages(), message))
            self._waiting.set_aside()
            self._catch_up.fall_back()

    def _drop(self) -> None:
        """Count a message that has no room and is not in the log; a log line reports the first."""
        self._parts.counters.deliveries_dropped += 1
        if not self._told_of_drops:
            self._told_of_drops = True
            log.warning(
                "MQTT client %r acknowledges too slowly: messages that no stream keeps are dropped beyond "
                "limits.session_queue. Add a stream for their topics, and the client gets them from the log",
                self.client_id,
            )

    # --- connections come and go

    def introduce(self, identity: Identity | None, *, persistent: bool) -> None:
        """Apply the changes of a CONNECT or DISCONNECT.

        Args:
            identity: None when the client may read all topics.
        """
        self._identity = identity
        self._writer.persistent = persistent

    def open(self, connection: ClientConnection) -> None:
        """Attach a connection; nothing is sent to it before ``greet``."""
        self._writer.open(connection)
        self._after(Event.OPENED)

    def greet(self, wire: Wire, inflight_max: int) -> None:
        """Send from the next ``pump`` on: the client has its CONNACK."""
        self._writer.use(wire)
        self._inflight_max = min(inflight_max, self._parts.inflight_max, PACKET_IDS_MAX)
        self.in_flight.begin_resending()
        self._after(Event.GREETED)

    def pause(self, connection: ClientConnection) -> None:
        """Stop sending for now: the connection's socket is full."""
        self._of_connection(connection, Event.PAUSED)

    def resume(self, connection: ClientConnection) -> None:
        """Resume sending: the connection's socket has room again."""
        self._of_connection(connection, Event.RESUMED)
        self.pump()

    def lose(self) -> None:
        """Detach the connection, and wait for another one."""
        if self._state is not WindowState.AWAY:
            self._after(Event.LOST)
        self._writer.close()
        self.in_flight.stop_resending()
        if self._catch_up is not None:
            self._catch_up.stop()
            self._waiting.set_aside()

    def end(self) -> None:
        """Forget all deliveries: the session has ended."""
        self.lose()
        self._waiting.clear()
        self.in_flight.clear()
        self._catch_up = None

    def displace(self, code: ReasonCode) -> None:
        """Close the connection, if there is one."""
        self._writer.displace(code)

    def _of_connection(self, connection: ClientConnection, event: Event) -> None:
        # Sockets send events even after their session was taken over.
        if self._writer.is_to(connection) and can(self._state, event):
            self._after(event)

    def _after(self, event: Event) -> None:
        self._state = after(self._state, event)
        self._sending, self._live = self._state in SENDING, self._state is WindowState.LIVE

    # --- the log instead of the queue

    def set_aside(self) -> Collection[Delivery]:
        """Keep only deliveries in the queue that cannot be read from the log; return its former content."""
        return self._waiting.set_aside()

    def read_from(self, catch_up: CatchUp) -> None:
        """Read deliveries that were set aside, and messages published from now on, from the log."""
        self._catch_up = catch_up
        if can(self._state, Event.FELL_BEHIND):
            self._after(Event.FELL_BEHIND)
            catch_up.start()

    def joining(self) -> None:
        """Keep live messages in the queue from now on: the messages before them are about to be read."""
        self._after(Event.NEAR)

    def level(self) -> None:
        """Send waiting messages, and then live ones."""
        self._catch_up = None
        self._after(Event.LEVEL)
        self.pump()

    def stop_reading(self) -> None:
        """Stop reading the log: the node stops."""
        if self._catch_up is not None:
            self._catch_up.stop()

    # --- shared subscriptions

    def unanswered(self, share: str) -> list[tuple[int, Message]]:
        """Return the QoS 1 deliveries of a share that the client has not acknowledged, in the order of sending."""
        return self.in_flight.unanswered(share)

    def unsettled(self, share: str) -> Iterator[tuple[int, int]]:
        """Return (stream, seq) of the deliveries of a share that this client would lose in a crash."""
        return self.in_flight.unsettled(share)

    def give_back(self, packet_id: int) -> None:
        """Remove a delivery from flight: another member gets it."""
        self.in_flight.complete(packet_id)
