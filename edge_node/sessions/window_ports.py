"""What one client's deliveries need of their neighbours: the connection, and what all clients share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.records import Sent
from weft.edge_node.subscriptions.message import Message
from weft.edge_node.subscriptions.subscriptions import Grant
from weft.protocols.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from weft.edge_node.sessions.client_window import Outbound

MESSAGE_OVERHEAD_BYTES = 200
"""What a waiting message takes besides its payload, roughly: its topic, tuple and places in the containers."""

Delivery = tuple[Message, Grant, int]
"""A message, why the client gets it, and the QoS at which it does."""


class QueueBudget:
    """Bytes that the windows and queues of all clients may take together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0


class Link(Protocol):
    """The connection of a session's client."""

    def send(self, data: bytes) -> None:
        """Write whole packets."""

    def displace(self, code: ReasonCode) -> None:
        """Close: the session is another connection's now [MQTT-3.1.4-3], or no more. Leaves the session first."""


class Keeper(Protocol):
    """What the windows of all clients share (``Sessions`` is it)."""

    counters: Counters
    budget: QueueBudget
    touched: list[Outbound]
    """Clients with something in ``out``: to be flushed when the read at hand has been handled."""
    wall_clock: Callable[[], int]

    def fall_behind(self, outbound: Outbound, first: Message | None) -> None:
        """Have the client's messages from ``first`` on (None: from those still to come) read from the log."""

    def dropped(self, outbound: Outbound) -> None:
        """Count a message that the client has no room for and the log does not have; log the first of a session."""

    def journal_sent(self, outbound: Outbound, deliveries: dict[int, Sent], packets: list[bytes]) -> None:
        """Write packets once the journal has the QoS 2 deliveries among them, and after those written before."""

    def journal_sending(self, outbound: Outbound, deliveries: dict[int, Sent]) -> None:
        """Deliveries at QoS 1 are about to be written."""

    def journal_pubrec(self, outbound: Outbound, packet_id: int) -> None:
        """Send PUBREL once it is durable that PUBREC came."""

    def journal_completed(self, outbound: Outbound, packet_ids: list[int]) -> None:
        """Deliveries are over."""
