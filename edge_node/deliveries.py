"""QoS 1 deliveries of one session: what was sent and not acknowledged, and what waits behind it."""

from __future__ import annotations

from collections import deque

from protocols.mqtt.encoder import encode_publish
from protocols.mqtt.packet_ids import PACKET_IDS_MAX

MESSAGE_OVERHEAD_BYTES = 200
"""What a queued message takes besides its payload, roughly: its topic, tuple and places in the containers."""

_Message = tuple[bytes, bytes]


class QueueBudget:
    """Bytes that the queues of all sessions may take together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0


def _cost(message: _Message) -> int:
    return len(message[1]) + MESSAGE_OVERHEAD_BYTES


class Deliveries:
    """At-least-once delivery to one client (MQTT 3.1.1 section 4.3.2), in order (section 4.6), in memory."""

    def __init__(self, inflight_max: int, queue_bytes_max: int, budget: QueueBudget) -> None:
        self._inflight_max = min(inflight_max, PACKET_IDS_MAX)
        self._queue_bytes_max = queue_bytes_max
        self._budget = budget
        self._inflight: dict[int, _Message] = {}
        self._queue: deque[_Message] = deque()
        self._bytes = 0
        self._last_id = 0

    def offer(self, topic: bytes, payload: bytes) -> bool:
        """Take a message, to be had from ``sendable``; False when there is no room for it."""
        message = (topic, payload)
        cost = _cost(message)
        if self._bytes + cost > self._queue_bytes_max or self._budget.used + cost > self._budget.bytes_max:
            return False
        self._bytes += cost
        self._budget.used += cost
        self._queue.append(message)
        return True

    def sendable(self) -> list[bytes]:
        """Encoded PUBLISH packets to send now, as far as the in-flight window reaches."""
        packets = []
        while self._queue and len(self._inflight) < self._inflight_max:
            message = self._queue.popleft()
            packet_id = self._next_id()
            self._inflight[packet_id] = message
            packets.append(encode_publish(*message, 1, packet_id))
        return packets

    def unacknowledged(self) -> list[bytes]:
        """What a client that resumes its session must get again, in the first order, with DUP [MQTT-4.4.0-1]."""
        return [encode_publish(*message, 1, packet_id, dup=True) for packet_id, message in self._inflight.items()]

    def acknowledged(self, packet_id: int) -> None:
        """PUBACK came. One for an unknown identifier is ignored: it may answer a delivery sent twice."""
        message = self._inflight.pop(packet_id, None)
        if message is not None:
            self._free(message)

    def clear(self) -> None:
        """Forget everything; the session has ended."""
        for message in (*self._inflight.values(), *self._queue):
            self._free(message)
        self._inflight.clear()
        self._queue.clear()

    def _free(self, message: _Message) -> None:
        self._bytes -= _cost(message)
        self._budget.used -= _cost(message)

    def _next_id(self) -> int:
        while True:  # ends: fewer identifiers are in flight than there are
            self._last_id = self._last_id % PACKET_IDS_MAX + 1
            if self._last_id not in self._inflight:
                return self._last_id
