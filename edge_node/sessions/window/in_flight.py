"""Deliveries sent to a client and not completed, and its answers to them (MQTT 5.0 section 4.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from weft.edge_node.sessions.records import Sent
from weft.edge_node.sessions.window.packet_writer import PacketWriter
from weft.edge_node.subscriptions.message import NOWHERE, Message
from weft.edge_node.subscriptions.queue_budget import MESSAGE_OVERHEAD_BYTES, QueueAccount
from weft.edge_node.subscriptions.subscriber import DeliveryOptions, Subscriber
from weft.protocols.mqtt.encoder import PUBREL
from weft.protocols.mqtt.errors import ProtocolViolation
from weft.protocols.mqtt.packet_ids import PACKET_IDS_MAX
from weft.protocols.mqtt.packet_types import Version
from weft.protocols.mqtt.reason_codes import ReasonCode

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
            if delivery is None or delivery[2] != 1:
                break
            del deliveries[packet_id]
            freed += len(delivery[0].payload) + MESSAGE_OVERHEAD_BYTES
            at += 4
        if freed:
            self._account.free(freed)
            if self._writer.persistent:
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
