"""What one client is sent: its in-flight window, what waits behind it, and the answers (MQTT 5.0 section 4.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.edge_node.access.identity import Identity
from weft.edge_node.sessions.packets_out import OWN, Wire, shared_parts
from weft.edge_node.sessions.records import Sent
from weft.edge_node.sessions.window_ports import MESSAGE_OVERHEAD_BYTES, Delivery, Keeper, Link
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.subscriptions import Grant
from weft.protocols.mqtt.encoder import PUBREL, encode
from weft.protocols.mqtt.errors import ProtocolViolation
from weft.protocols.mqtt.packet_ids import PACKET_IDS_MAX
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.packets import PubRel
from weft.protocols.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from weft.edge_node.sessions.retained_delivery import RetainedFeed
    from weft.edge_node.subscriptions.catch_up import CatchUp
    from weft.edge_node.subscriptions.shared_subscription import Group


class Outbound:
    """Deliveries to one client, in order, within bounds. ``link`` is None while the client is away."""

    __slots__ = (
        "bytes", "bytes_max", "catch_up", "client_id", "feed", "groups", "held", "identity", "inflight", "inflight_max",
        "keeper", "last_id", "link", "live", "out", "persistent", "queue", "released", "resend", "told_of_drops",
        "unjournaled", "waits", "wire",
    )  # fmt: skip

    def __init__(self, client_id: str, wire: Wire, keeper: Keeper, inflight_max: int, bytes_max: int) -> None:
        self.client_id = client_id
        self.wire = wire
        self.keeper = keeper
        self.inflight_max = min(inflight_max, PACKET_IDS_MAX)
        self.bytes_max = bytes_max
        self.bytes = 0
        """Of messages in flight and waiting."""
        self.persistent = False
        self.identity: Identity | None = None
        """None when it may read everything."""
        self.link: Link | None = None
        self.live = False
        """Whether the client is there and keeps up with what it is sent."""
        self.out: list[bytes] = []
        """Packets to be written together by ``flush``."""
        self.unjournaled: dict[int, Sent] = {}
        """Deliveries among ``out`` that the journal does not have."""
        self.waits = False
        """Whether ``out`` may be written only once the journal has them."""
        self.held = 0
        """Writes that wait for the journal; later ones wait behind them, so that order is kept."""
        self.inflight: dict[int, Delivery] = {}
        """Packet identifier -> sent and not completed, in the order of sending."""
        self.released: set[int] | None = None
        """Those of ``inflight`` whose PUBREC has come."""
        self.resend: deque[int] | None = None
        """Those of ``inflight`` that this connection has not been sent yet."""
        self.queue: deque[Delivery] | None = None
        self.last_id = 0
        self.catch_up: CatchUp | None = None
        """Not None while messages are read from the log."""
        self.feed: RetainedFeed | None = None
        """Retained messages that new subscriptions are still to get."""
        self.groups: list[Group] = []
        self.told_of_drops = False
        """Whether the node's log says that messages for this client were dropped."""

    # --- what subscriptions ask

    def may_read(self, topic: bytes) -> bool:
        """Whether access rules let the client have messages of a topic."""
        return self.identity is None or self.identity.may_read(topic)

    @property
    def window_open(self) -> bool:
        """Whether the client may be sent one more message."""
        if not self.live or self.resend:
            return False
        budget = self.keeper.budget
        inflight = len(self.inflight)
        return not inflight or (
            inflight < self.inflight_max and self.bytes < self.bytes_max and budget.used < budget.bytes_max
        )

    @property
    def has_room(self) -> bool:
        """Whether a message would not wait behind others."""
        return not self.queue and self.catch_up is None and self.window_open

    # --- deliveries

    def send_at_most_once(self, message: Message, grant: Grant) -> bool:
        """Send at QoS 0, or drop it when the client is slow or away."""
        if not self.live:
            self.keeper.counters.deliveries_dropped += 1
            return False
        packet = self._encode(message, grant, 0, 0)
        if packet is not None:
            self.emit(packet)
        return True

    def offer(self, message: Message, grant: Grant, qos: int) -> None:
        """Send or queue at QoS 1 or 2. Without room, a message that a stream keeps comes from the log later; another
        is dropped."""
        if self.has_room:
            self.send(message, grant, qos)
        elif self.catch_up is None or self.catch_up.joining or message.stream == NOWHERE:
            self._wait(message, grant, qos)

    def send(self, message: Message, grant: Grant, qos: int, *, dup: bool = False) -> None:
        """Send at QoS 1 or 2; there must be room."""
        packet_id = self._next_id()
        if not dup and grant.kind != OWN and grant.kind == self.wire.kind and message.plain:
            head, tail = shared_parts(message, qos, grant.kind)
            packet = head + packet_id.to_bytes(2, "big") + tail
        else:
            encoded = self._encode(message, grant, qos, packet_id, dup=dup)
            if encoded is None:
                return
            packet = encoded
        self._take(message)
        self.inflight[packet_id] = (message, grant, qos)
        if self.persistent:
            self.unjournaled[packet_id] = Sent(message.stream, message.seq, qos)
            # The journal must know a QoS 2 identifier before the client can: after a crash it is not used for another.
            self.waits |= qos == 2
        self.emit(packet)

    def _wait(self, message: Message, grant: Grant, qos: int) -> None:
        keeper, cost = self.keeper, len(message.payload) + MESSAGE_OVERHEAD_BYTES
        fits = self.bytes + cost <= self.bytes_max and keeper.budget.used + cost <= keeper.budget.bytes_max
        if fits and self.link is not None:
            self._take(message)
            if self.queue is None:
                self.queue = deque()
            self.queue.append((message, grant, qos))
        elif message.stream == NOWHERE or not (self.persistent or self.link is not None):
            keeper.dropped(self)
        elif self.catch_up is None:
            keeper.fall_behind(self, message)
        else:
            self.drop_queue()
            self.catch_up.fall_back()

    def emit(self, packet: bytes) -> None:
        """Have a packet written with the next ``flush``."""
        if not self.out:
            self.keeper.touched.append(self)
        self.out.append(packet)
        self.keeper.counters.deliveries_sent += 1

    def flush(self) -> None:
        """Write what was gathered, in one go."""
        packets, self.out = self.out, []
        if self.link is None or not packets:
            return
        deliveries = self.unjournaled
        if deliveries:
            self.unjournaled = {}
        if self.waits or self.held:
            self.waits = False
            self.keeper.journal_sent(self, deliveries, packets)
        else:
            if deliveries:
                self.keeper.journal_sending(self, deliveries)
            self.link.send(packets[0] if len(packets) == 1 else b"".join(packets))

    def pump(self) -> None:
        """Send what waits, as far as the client keeps up and the window reaches."""
        if not self.live:
            return
        self._send_again()
        queue = self.queue if self.catch_up is None else None
        while queue and self.window_open:
            message, grant, qos = queue.popleft()
            self._free(message)
            if message.expires_ns and message.expired(self.keeper.wall_clock()):
                self.keeper.counters.messages_expired += 1
                continue
            self.send(message, grant, qos)
        if not self.queue:
            self.queue = None
        if self.feed is not None:
            self.feed.pump()
        if self.catch_up is not None:
            self.catch_up.room()
        for group in self.groups:
            group.pump()

    # --- answers of the client

    def take_pubacks(self, data: bytes, at: int) -> int:
        """Handle a row of plain PUBACKs in ``data[at:]``; returns where something else begins."""
        inflight, first, last, taken = self.inflight, at, len(data) - 4, 0
        while at <= last and data[at] == 0x40 and data[at + 1] == 2:
            packet_id = data[at + 2] << 8 | data[at + 3]
            delivery = inflight.get(packet_id)
            if delivery is None or delivery[2] != 1:
                break
            del inflight[packet_id]
            taken += len(delivery[0].payload) + MESSAGE_OVERHEAD_BYTES
            at += 4
        self.bytes -= taken
        self.keeper.budget.used -= taken
        if self.persistent and at > first:
            self.keeper.journal_completed(self, [data[i] << 8 | data[i + 1] for i in range(first + 2, at, 4)])
        return at

    def puback(self, packet_id: int) -> None:
        """Complete a QoS 1 delivery, whatever the reason code [MQTT-4.8.2-6]. Unknown identifiers are ignored: they
        may answer a delivery sent twice.

        Raises:
            ProtocolViolation: the delivery is of QoS 2.
        """
        delivery = self.inflight.get(packet_id)
        if delivery is None:
            return
        if delivery[2] != 1:
            raise self._wrong_answer("PUBACK", packet_id)
        self._complete(packet_id)

    def pubrec(self, packet_id: int, code: int) -> None:
        """Release a QoS 2 delivery with PUBREL, or complete it when the client refuses it.

        Raises:
            ProtocolViolation: the delivery is of QoS 1.
        """
        delivery = self.inflight.get(packet_id)
        failed = code >= ReasonCode.UNSPECIFIED_ERROR
        if delivery is None:
            # PUBREL answers a PUBREC below 0x80 only [MQTT-4.3.3-4]: a client that refuses an unknown identifier has
            # ended the exchange itself.
            if self.link is not None and not failed:
                code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
                self.link.send(encode(PubRel(packet_id, code), self.wire.version))
        elif delivery[2] != 2:
            raise self._wrong_answer("PUBREC", packet_id)
        elif failed:
            self._complete(packet_id)
        else:
            self.released = self.released or set()
            self.released.add(packet_id)
            if self.persistent:
                self.keeper.journal_pubrec(self, packet_id)
            elif self.link is not None:
                self.link.send(PUBREL + packet_id.to_bytes(2, "big"))

    def pubcomp(self, packet_id: int) -> None:
        """Complete a QoS 2 delivery. Unknown identifiers are ignored: they answer our PUBREL for such.

        Raises:
            ProtocolViolation: the delivery is of QoS 1, or its PUBREC has not come.
        """
        if self.released is not None and packet_id in self.released:
            self._complete(packet_id)
        elif packet_id in self.inflight:
            raise self._wrong_answer("PUBCOMP", packet_id)

    def _wrong_answer(self, name: str, packet_id: int) -> ProtocolViolation:
        """Return the error for an answer that the delivery cannot have at this point.

        Neither way of overlooking it would do: with the delivery completed, a message that the client may not have is
        lost; with it kept, no right answer may ever follow and its place in the window is taken until the client
        reconnects. Closing keeps the message, and the session sends it again.
        """
        in_5, qos = self.wire.version == Version.V5, self.inflight[packet_id][2]
        if qos == 1:
            clause, expected = "4.3.2-4" if in_5 else "4.3.2-2", "PUBACK"
        else:
            clause, expected = "4.3.3-8" if in_5 else "4.3.3-2", "PUBREC"
            if self.released is not None and packet_id in self.released:
                clause, expected = "4.3.3-11" if in_5 else "4.3.3-2", "PUBCOMP"
        return ProtocolViolation(f"{name} for delivery {packet_id} at QoS {qos}, expected {expected}", clause)

    # --- connections come and go

    def attach(self, link: Link, wire: Wire, inflight_max: int) -> None:
        """The client is there."""
        self.held = 0
        self.link, self.wire, self.live = link, wire, True
        self.inflight_max = min(inflight_max, PACKET_IDS_MAX)
        self.resend = deque(self.inflight) if self.inflight else None

    def detach(self) -> None:
        """The client has gone. Without persistence nothing is worth keeping."""
        self.link, self.live, self.feed = None, False, None
        self.out = []
        self.unjournaled = {}
        self.waits = False
        self.resend = None

    def clear(self) -> None:
        """Forget everything; the session has ended."""
        for message, _, _ in self.waiting():
            self._free(message)
        self.inflight.clear()
        self.queue = self.released = None

    def drop_queue(self) -> None:
        """Forget what waits and can be read from the log."""
        kept = deque(delivery for delivery in self.queue or () if delivery[0].stream == NOWHERE)
        for message, _, _ in self.queue or ():
            if message.stream != NOWHERE:
                self._free(message)
        self.queue = kept or None

    def give_back(self, packet_id: int) -> Delivery:
        """Take a delivery out of flight: somebody else gets it."""
        delivery = self.inflight[packet_id]
        self._complete(packet_id)
        return delivery

    def waiting(self) -> Iterator[Delivery]:
        """Everything in flight and queued."""
        yield from self.inflight.values()
        yield from self.queue or ()

    def restore(self, packet_id: int, delivery: Delivery, *, released: bool) -> None:
        """Take up a delivery that the last run of the node left in flight, in the order of sending."""
        self.inflight[packet_id] = delivery
        self.last_id = packet_id
        self._take(delivery[0])
        if released:
            self.released = self.released or set()
            self.released.add(packet_id)

    def set_read(self, packet_id: int, message: Message | None) -> None:
        """What a restart left in flight has been read from the log; None when the log has it no more."""
        known, grant, qos = self.inflight[packet_id]
        if message is None:
            self._complete(packet_id)
            return
        self._free(known)
        self._take(message)
        self.inflight[packet_id] = (message, grant, qos)

    # --- inside

    def _send_again(self) -> None:
        """What the last connection left unanswered, in the first order [MQTT-4.4.0-1, 4.4.0-2]."""
        while self.resend and self.live:
            packet_id = self.resend[0]
            delivery = self.inflight.get(packet_id)
            if delivery is not None and self.released is not None and packet_id in self.released:
                self.emit(PUBREL + packet_id.to_bytes(2, "big"))
            elif delivery is not None:
                if not delivery[0].topic or self._unanswered() >= self.inflight_max:
                    return  # still to be read from the log, or over the client's receive maximum
                packet = self._encode(delivery[0], delivery[1], delivery[2], packet_id, dup=True)
                if packet is not None:
                    self.emit(packet)
            self.resend.popleft()
        if not self.resend:
            self.resend = None

    def _unanswered(self) -> int:
        return len(self.inflight) - len(self.resend or ())

    def _encode(self, message: Message, grant: Grant, qos: int, packet_id: int, *, dup: bool = False) -> bytes | None:
        if not packet_id and grant.kind != OWN and grant.kind == self.wire.kind and message.plain:
            return shared_parts(message, 0, grant.kind)[0]
        now = self.keeper.wall_clock() if message.expires_ns else 0
        retain = message.retain and grant.retain_as_published
        packet = self.wire.publish(message, qos, packet_id, retain, dup, grant.identifiers, now)
        if packet is None:
            self.keeper.counters.deliveries_too_large += 1
            if packet_id in self.inflight:
                self._complete(packet_id)
        return packet

    def _complete(self, packet_id: int) -> None:
        if self.released is not None:
            self.released.discard(packet_id)
        if self.persistent:
            self.keeper.journal_completed(self, [packet_id])
        message, _, _ = self.inflight.pop(packet_id)
        self._free(message)

    def _take(self, message: Message) -> None:
        cost = len(message.payload) + MESSAGE_OVERHEAD_BYTES
        self.bytes += cost
        self.keeper.budget.used += cost

    def _free(self, message: Message) -> None:
        cost = len(message.payload) + MESSAGE_OVERHEAD_BYTES
        self.bytes -= cost
        self.keeper.budget.used -= cost

    def _next_id(self) -> int:
        packet_id = self.last_id
        while True:  # ends: fewer identifiers are in flight than there are
            packet_id = packet_id % PACKET_IDS_MAX + 1
            if packet_id not in self.inflight:
                self.last_id = packet_id
                return packet_id
