"""One client as the subscriber of messages: deliveries sent, waiting, and left to the log."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import IntEnum, auto

from weft.bounds import Owner
from weft.edge_node.access.identity import Identity
from weft.edge_node.sessions.packets_out import ClientConnection, PacketWriter, WindowContext, Wire
from weft.edge_node.sessions.records import Sent
from weft.edge_node.subscriptions.catch_up import CatchUp
from weft.edge_node.subscriptions.limits import MESSAGE_OVERHEAD_BYTES, QueueAccount
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.subscriptions import (
    ClientSubscription,
    DeliveryOptions,
    SharedSubscription,
    Subscriber,
)
from weft.protocols.mqtt.encoder import PUBREL
from weft.protocols.mqtt.packets import PACKET_IDS_MAX, ProtocolViolation, ReasonCode, Version

# States of a client's window and the events between them: no socket, no log, no clock.
#
# Where new messages come from, and whether the client can be sent any::
#
#     AWAY --OPENED--> OPENING --GREETED--> RESENDING --RESENT--> BEHIND --NEAR--> JOINING --LEVEL--> LIVE
#                                                                    ^--------FELL_BEHIND---+----------'
#
# Each state with a connection has a twin for a full socket (``PAUSED``, ``RESUMED``). ``LOST`` leads from every one
# of them to AWAY.
#
# One table, not one for the connection and one for the source of messages: their combinations are what goes wrong.


class WindowState(IntEnum):
    """State of a window. An integer, because sets of them are checked for every message."""

    AWAY = auto()
    """No connection. A persistent session reads missed messages from the log, once its client is back."""
    OPENING = auto()
    """CONNECT was accepted, CONNACK is not out: the client must not be sent anything yet [MQTT-3.2.0-1]."""
    RESENDING = auto()
    """Packets that the last connection left unanswered go out first [MQTT-4.4.0-1]."""
    BEHIND = auto()
    """Messages are read from the log, also the ones published now."""
    JOINING = auto()
    """The reader is about to be level: messages published now wait in the queue."""
    LIVE = auto()
    """Messages are sent as they are published, as far as the window has room; the rest waits in the queue."""
    OPENING_BLOCKED = auto()
    RESENDING_BLOCKED = auto()
    BEHIND_BLOCKED = auto()
    JOINING_BLOCKED = auto()
    LIVE_BLOCKED = auto()


class Event(IntEnum):
    """Event that moves a window to another state. An integer, for which a table look-up takes half the time."""

    OPENED = auto()
    """A client has connected to the session."""
    GREETED = auto()
    """CONNACK is out."""
    RESENT = auto()
    """All packets that the last connection left unanswered are sent."""
    NEAR = auto()
    """Only records that are not durable yet are missing."""
    LEVEL = auto()
    """Nothing is missing."""
    FELL_BEHIND = auto()
    """The queue had no room for a published message."""
    PAUSED = auto()
    """The socket is full."""
    RESUMED = auto()
    """The socket has room again."""
    LOST = auto()
    """The connection has ended."""


S, E = WindowState, Event
TRANSITIONS: Mapping[WindowState, Mapping[Event, WindowState]] = {
    S.AWAY: {E.OPENED: S.OPENING},
    S.OPENING: {E.GREETED: S.RESENDING, E.PAUSED: S.OPENING_BLOCKED, E.LOST: S.AWAY},
    S.RESENDING: {E.RESENT: S.BEHIND, E.PAUSED: S.RESENDING_BLOCKED, E.LOST: S.AWAY},
    # LEVEL at once: a client that has missed nothing needs no reader.
    S.BEHIND: {E.NEAR: S.JOINING, E.LEVEL: S.LIVE, E.PAUSED: S.BEHIND_BLOCKED, E.LOST: S.AWAY},
    S.JOINING: {E.LEVEL: S.LIVE, E.FELL_BEHIND: S.BEHIND, E.PAUSED: S.JOINING_BLOCKED, E.LOST: S.AWAY},
    S.LIVE: {E.FELL_BEHIND: S.BEHIND, E.PAUSED: S.LIVE_BLOCKED, E.LOST: S.AWAY},
    # Reading continues while the socket is full, up to the first message without room.
    S.OPENING_BLOCKED: {E.GREETED: S.RESENDING_BLOCKED, E.RESUMED: S.OPENING, E.LOST: S.AWAY},
    S.RESENDING_BLOCKED: {E.RESUMED: S.RESENDING, E.LOST: S.AWAY},
    S.BEHIND_BLOCKED: {E.NEAR: S.JOINING_BLOCKED, E.RESUMED: S.BEHIND, E.LOST: S.AWAY},
    S.JOINING_BLOCKED: {E.LEVEL: S.LIVE_BLOCKED, E.FELL_BEHIND: S.BEHIND_BLOCKED, E.RESUMED: S.JOINING, E.LOST: S.AWAY},
    S.LIVE_BLOCKED: {E.FELL_BEHIND: S.BEHIND_BLOCKED, E.RESUMED: S.LIVE, E.LOST: S.AWAY},
}
"""State -> event -> next state. Other combinations cannot happen."""

CONNECTED = frozenset(WindowState) - {S.AWAY}
"""The client is connected: messages that only memory has may wait for it."""
SENDING = frozenset({S.RESENDING, S.BEHIND, S.JOINING, S.LIVE})
"""The socket takes packets."""
TAKING_NEW = SENDING - {S.RESENDING}
"""Messages never sent to the client can be sent, as far as the window has room."""
QUEUEING = frozenset({S.JOINING, S.LIVE, S.JOINING_BLOCKED, S.LIVE_BLOCKED})
"""A message published now, and not sent, waits in the queue; else it is read from the log."""


def after(state: WindowState, event: Event) -> WindowState:
    """Return the state after an event.

    Raises:
        AssertionError: the event cannot happen in this state: a bug in the node.
    """
    following = TRANSITIONS[state].get(event)
    assert following is not None, f"{event.name} while {state.name}"
    return following


def can(state: WindowState, event: Event) -> bool:
    """Return whether an event can happen in a state."""
    return event in TRANSITIONS[state]


# Deliveries sent to a client and not completed, and its answers to them (MQTT 5.0 section 4.3).

Delivery = tuple[Message, DeliveryOptions, int]
"""A message, the client's options for it, and the QoS of the delivery."""


class InFlight:
    """Deliveries by packet identifier, in the order of sending. Their bytes are counted in the client's account."""

    __slots__ = ("_account", "_last_id", "_released", "_resend", "_writer", "deliveries")

    def __init__(self, account: QueueAccount, writer: PacketWriter) -> None:
        self._account = account
        self._writer = writer
        self._last_id = 0
        self.deliveries: dict[int, Delivery] = {}
        """Packet identifier -> delivery. Read it only."""
        self._released: set[int] | None = None
        """Packet identifiers whose PUBREC has come."""
        self._resend: deque[int] | None = None
        """Packet identifiers still to be sent again on the present connection."""

    def add(self, message: Message, options: DeliveryOptions, qos: int) -> int:
        """Add a delivery that is about to be sent. Return its unique packet identifier.

        The caller has checked that one is free.
        """
        packet_id, deliveries = self._last_id, self.deliveries
        while True:  # ends: fewer identifiers are in flight than there are
            packet_id = packet_id % PACKET_IDS_MAX + 1
            # Identifiers go round and are not reused at once, so a late answer to an earlier delivery hardly ever meets
            # a new one.
            if packet_id not in deliveries:
                break
        self._last_id = packet_id
        deliveries[packet_id] = (message, options, qos)
        self._account.take(len(message.payload) + MESSAGE_OVERHEAD_BYTES)
        return packet_id

    def withdraw(self, packet_id: int) -> None:
        """Remove a delivery that was not sent after all."""
        self._free(self.deliveries.pop(packet_id))

    def complete(self, packet_id: int) -> None:
        """Remove a delivery: it is complete, or belongs to another client now."""
        self._writer.completed([packet_id])
        if self._released is not None:
            self._released.discard(packet_id)
        self.withdraw(packet_id)

    def clear(self) -> None:
        """Remove all deliveries: the session has ended, and the journal has that."""
        for delivery in self.deliveries.values():
            self._free(delivery)
        self.deliveries.clear()
        self._released = self._resend = None

    # --- answers of the client

    def take_pubacks(self, data: bytes, at: int) -> int:
        """Complete the deliveries of a row of plain PUBACKs in ``data[at:]``; return the offset after the last one."""
        deliveries, first, last, freed = self.deliveries, at, len(data) - 4, 0
        while at <= last and data[at] == 0x40 and data[at + 1] == 2:
            packet_id = data[at + 2] << 8 | data[at + 3]
            delivery = deliveries.get(packet_id)
            # Anything unusual ends the fast loop. The packet is then read by the state machine, which has the word on
            # violations.
            if delivery is None or delivery[2] != 1:
                break
            del deliveries[packet_id]
            freed += len(delivery[0].payload) + MESSAGE_OVERHEAD_BYTES
            at += 4
        if freed:
            self._account.free(freed)
            if self._writer.persistent:
                # One entry of the journal for a run of answers. Clients answer many deliveries at a time.
                self._writer.completed([data[i] << 8 | data[i + 1] for i in range(first + 2, at, 4)])
        return at

    def puback(self, packet_id: int) -> None:
        """Complete a QoS 1 delivery, with any reason code [MQTT-4.8.2-6]. Unknown identifiers are ignored: they may
        answer a delivery sent twice.

        Raises:
            ProtocolViolation: the delivery is of QoS 2.
        """
        delivery = self.deliveries.get(packet_id)
        if delivery is None:
            return
        if delivery[2] != 1:
            raise self._wrong_answer("PUBACK", packet_id)
        self.complete(packet_id)

    def pubrec(self, packet_id: int, code: int) -> None:
        """Release a QoS 2 delivery with PUBREL, or complete it when the client refuses it.

        Raises:
            ProtocolViolation: the delivery is of QoS 1.
        """
        delivery = self.deliveries.get(packet_id)
        failed = code >= ReasonCode.UNSPECIFIED_ERROR
        if delivery is None:
            # PUBREL answers a PUBREC below 0x80 only [MQTT-4.3.3-4]: a client that refuses an unknown identifier has
            # ended the exchange itself.
            if not failed:
                self._writer.send_pubrel_of_unknown(packet_id)
        elif delivery[2] != 2:
            raise self._wrong_answer("PUBREC", packet_id)
        elif failed:
            self.complete(packet_id)
        else:
            self._release(packet_id)
            self._writer.send_pubrel(packet_id)

    def pubcomp(self, packet_id: int) -> None:
        """Complete a QoS 2 delivery. Unknown identifiers are ignored: they answer the node's PUBREL for such.

        Raises:
            ProtocolViolation: the delivery is of QoS 1, or its PUBREC has not come.
        """
        if self._is_released(packet_id):
            self.complete(packet_id)
        elif packet_id in self.deliveries:
            raise self._wrong_answer("PUBCOMP", packet_id)

    def _wrong_answer(self, name: str, packet_id: int) -> ProtocolViolation:
        """Return the error for an answer that is invalid for the delivery's state.

        Tolerating it has no safe form: completing the delivery may lose a message that the client does not have;
        keeping it may occupy its place in the window until the client reconnects, as no right answer may follow.
        Closing keeps the message, and the session sends it again.
        """
        in_5, qos = self._writer.version == Version.V5, self.deliveries[packet_id][2]
        if qos == 1:
            clause, expected = "4.3.2-4" if in_5 else "4.3.2-2", "PUBACK"
        else:
            clause, expected = "4.3.3-8" if in_5 else "4.3.3-2", "PUBREC"
            if self._is_released(packet_id):
                clause, expected = "4.3.3-11" if in_5 else "4.3.3-2", "PUBCOMP"
        return ProtocolViolation(f"{name} for delivery {packet_id} at QoS {qos}, expected {expected}", clause)

    def _release(self, packet_id: int) -> None:
        if self._released is None:
            self._released = set()
        self._released.add(packet_id)

    def _is_released(self, packet_id: int) -> bool:
        return self._released is not None and packet_id in self._released

    # --- sending again

    def begin_resending(self) -> None:
        """Begin to send all of them again, in the original order [MQTT-4.4.0-1, 4.4.0-2]."""
        self._resend = deque(self.deliveries) if self.deliveries else None

    def stop_resending(self) -> None:
        """Forget the progress of sending again: the connection is gone."""
        self._resend = None

    def send_again(self, unanswered_max: int, may_read: Callable[[bytes], bool]) -> bool:
        """Send deliveries again as far as the client takes them; return whether all are sent.

        Args:
            unanswered_max: the client's receive maximum.
            may_read: returns whether access rules still let the client read messages of a topic.
        """
        resend = self._resend
        while resend:
            packet_id = resend[0]
            delivery = self.deliveries.get(packet_id)
            if delivery is not None:
                # Rights may have changed while the client was away. What it may no longer read is dropped and counts as
                # sent.
                if not (self._is_released(packet_id) or not delivery[0].topic or may_read(delivery[0].topic)):
                    self.complete(packet_id)
                elif not self._resend_one(packet_id, delivery, unanswered_max):
                    return False
            resend.popleft()
        self._resend = None
        return True

    def _resend_one(self, packet_id: int, delivery: Delivery, unanswered_max: int) -> bool:
        message, options, qos = delivery
        if self._is_released(packet_id):
            self._writer.add(PUBREL + packet_id.to_bytes(2, "big"))
            return True
        unanswered = len(self.deliveries) - len(self._resend or ())
        # In the order of the first sending (MQTT 5.0, section 4.6): one that cannot go holds back those behind it.
        if not message.topic or unanswered >= unanswered_max:
            return False  # still to be read from the log, or over the client's receive maximum
        if not self._writer.add_again(packet_id, message, options, qos):
            self.complete(packet_id)  # as if it had been sent [MQTT-3.1.2-25]
        return True

    # --- across a restart

    def sent(self) -> dict[int, Sent]:
        """Return the deliveries whose messages are in the log, for a restart."""
        return {
            packet_id: Sent(message.stream, message.seq, qos, self._is_released(packet_id))
            for packet_id, (message, _, qos) in self.deliveries.items()
            # What no stream keeps cannot be read again after a restart, so no promise about it is written.
            if message.stream != NOWHERE
        }

    def restore(self, deliveries: Mapping[int, Sent], subscriber: Subscriber) -> None:
        """Restore the deliveries of the node's last run, in the order of sending.

        Topics and payloads are in the log; ``set_read`` brings them.
        """
        for packet_id, sent in deliveries.items():
            message = Message(b"", b"", sent.qos, stream=sent.stream, seq=sent.seq)
            # A placeholder: ``Redelivery`` sets the real flags once the message is read.
            options = DeliveryOptions(subscriber, sent.qos, retain_as_published=True)
            self._put(packet_id, (message, options, sent.qos))
            self._last_id = packet_id
            if sent.released:
                self._release(packet_id)

    def unread(self) -> dict[int, tuple[int, int]]:
        """Return (stream, seq) of restored deliveries whose topic and payload are not read from the log yet."""
        return {
            packet_id: (message.stream, message.seq)
            for packet_id, (message, _, _) in self.deliveries.items()
            if not message.topic
        }

    def set_read(self, packet_id: int, message: Message | None, identifiers: tuple[int, ...]) -> None:
        """Set the message of a restored delivery as read from the log; None when the log has deleted it."""
        if message is None:
            self.complete(packet_id)
            return
        known = self.deliveries[packet_id]
        self._free(known)
        options = known[1]
        if identifiers:
            options = DeliveryOptions(options.subscriber, options.qos, False, True, identifiers)
        self._put(packet_id, (message, options, known[2]))

    # --- shared subscriptions

    def unanswered(self, share: str) -> list[tuple[int, Message]]:
        """Return the QoS 1 deliveries of a share that the client has not acknowledged, in the order of sending."""
        return [(packet_id, message) for packet_id, (message, _, qos) in self._of_share(share) if qos == 1]

    def unsettled(self, share: str) -> Iterator[tuple[int, int]]:
        """Yield (stream, seq) of the deliveries of a share that this client would lose in a crash. For a persistent
        session these are the ones that the journal does not have yet; for another, all at QoS 1.
        """
        writer = self._writer
        for packet_id, (message, _, qos) in self._of_share(share):
            if writer.is_unjournaled(packet_id) if writer.persistent else qos == 1:
                yield message.stream, message.seq

    def _of_share(self, share: str) -> Iterator[tuple[int, Delivery]]:
        return ((packet_id, each) for packet_id, each in self.deliveries.items() if each[1].share == share)

    def _put(self, packet_id: int, delivery: Delivery) -> None:
        self.deliveries[packet_id] = delivery
        self._account.take(len(delivery[0].payload) + MESSAGE_OVERHEAD_BYTES)

    def _free(self, delivery: Delivery) -> None:
        self._account.free(len(delivery[0].payload) + MESSAGE_OVERHEAD_BYTES)


# Deliveries that wait until a client's window has room for them.


class Waiting:
    """A queue whose bytes are counted in the client's account."""

    __slots__ = ("_account", "_stored_bytes", "_unstored", "deliveries")

    def __init__(self, account: QueueAccount) -> None:
        self._account = account
        self.deliveries: deque[Delivery] | None = None
        """None while nothing waits: most clients never have anything here. Read it only."""
        self._stored_bytes = self._unstored = 0
        """Bytes of deliveries that can be read from the log, and number of the others."""

    def __bool__(self) -> bool:
        return self.deliveries is not None

    def messages(self) -> list[Message]:
        """Return the waiting messages, in order."""
        return [message for message, _, _ in self.deliveries or ()]

    def push(self, delivery: Delivery) -> bool:
        """Append a delivery; return False, and do nothing, when there is no room for it."""
        cost = _cost(delivery)
        if not self._account.fits(cost):
            return False
        self._account.take(cost)
        if delivery[0].stream == NOWHERE:
            self._unstored += 1
        else:
            self._stored_bytes += cost
        if self.deliveries is None:
            self.deliveries = deque()
        self.deliveries.append(delivery)
        return True

    def pop(self) -> Delivery:
        """Remove and return the first delivery; there must be one."""
        assert self.deliveries is not None
        delivery = self.deliveries.popleft()
        cost = _cost(delivery)
        self._account.free(cost)
        if delivery[0].stream == NOWHERE:
            self._unstored -= 1
        else:
            self._stored_bytes -= cost
        if not self.deliveries:
            self.deliveries = None
        return delivery

    def set_aside(self) -> Collection[Delivery]:
        """Keep only deliveries that cannot be read from the log.

        Without such, the deliveries are not inspected: thousands of clients may do this in one step.

        Returns:
            The deliveries that waited until now.
        """
        waited: Collection[Delivery] = self.deliveries or ()
        # Messages that a stream keeps are read from the log later and need no memory. Those of no stream exist only
        # here.
        self.deliveries = deque([each for each in waited if each[0].stream == NOWHERE]) if self._unstored else None
        self._account.free(self._stored_bytes)
        self._stored_bytes = 0
        return waited

    def clear(self) -> None:
        """Forget all deliveries."""
        self._account.free(sum(map(_cost, self.deliveries or ())))
        self.deliveries = None
        self._stored_bytes = self._unstored = 0


def _cost(delivery: Delivery) -> int:
    return len(delivery[0].payload) + MESSAGE_OVERHEAD_BYTES


log = logging.getLogger(__name__)


FallBehind = Callable[["ClientWindow", Message | None], None]
"""Calls ``read_from``, so that messages from one on (None: from those still to come) are read from the log."""


class ClientWindow:
    """Deliveries to one client, in order, within bounds; a ``Subscriber``. ``states`` has its states and
    transitions."""

    __slots__ = (
        "_account",
        "_catch_up",
        "_context",
        "_fall_behind",
        "_has_reported_drops",
        "_identity",
        "_inflight_max",
        "_live",
        "_sending",
        "_state",
        "_waiting",
        "_when_room",
        "_writer",
        "client_id",
        "in_flight",
        "owner",
        "subscribed",
    )

    def __init__(
        self, client_id: str, wire: Wire, context: WindowContext, fall_behind: FallBehind, owner: Owner | None = None
    ) -> None:
        self.client_id = client_id
        self.owner = owner
        """Owner that the window's memory is charged to; None for the node."""
        self.subscribed: dict[str, tuple[ClientSubscription, SharedSubscription | None]] = {}
        """Filter as the client wrote it -> its subscription, and the shared subscription that it is part of."""
        self._fall_behind = fall_behind
        self._context = context
        self._account = QueueAccount(context.budget, context.bytes_max, owner)
        self._writer = PacketWriter(client_id, wire, context)
        self.in_flight = InFlight(self._account, self._writer)
        """Deliveries sent and not completed. It handles the client's answers, which make room for ``pump``."""
        self._waiting = Waiting(self._account)
        self._inflight_max = min(context.inflight_max, PACKET_IDS_MAX)
        self._identity: Identity | None = None
        self._state = WindowState.AWAY
        self._sending = self._live = False
        """Flags, read for every message: ``_state`` is one of ``SENDING``; ``_state`` is ``LIVE``."""
        self._catch_up: CatchUp | None = None
        """Reader of the log; None unless messages are read from the log or the client is away."""
        self._when_room: dict[Callable[[], None], None] | None = None
        self._has_reported_drops = False

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
        # At least one delivery, whatever the budget: a client without any in flight would never free a place.
        return not count or (count < self._inflight_max and not self._account.is_full())

    # --- deliveries

    def send_at_most_once(self, message: Message, options: DeliveryOptions) -> None:
        """Send at QoS 0, or drop the message when the client is slow or away."""
        # At QoS 0 nothing waits: a message that the socket does not take now may be dropped, and is counted.
        if self._sending:
            self._writer.add_at_most_once(message, options)
        else:
            self._context.counters.deliveries_dropped += 1

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
        # A client that reads from the log gets the message there, in order. Queueing it as well would send it twice.
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
        # Only when the log has been read up to the present: what waits is newer than what the reader still has to
        # bring.
        while self._live and self._waiting and self._has_place():
            message, options, qos = self._waiting.pop()
            if message.expires_ns and message.expired(self._context.wall_clock()):
                self._context.counters.messages_expired += 1
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
        # There is no place to read it from again: the bound of the queue is then the only one, and what exceeds it is
        # counted.
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
        self._context.counters.deliveries_dropped += 1
        if not self._has_reported_drops:
            self._has_reported_drops = True
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
        self._inflight_max = min(inflight_max, self._context.inflight_max, PACKET_IDS_MAX)
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
        # A client that is away, or still resending, begins to read when it gets there.
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
