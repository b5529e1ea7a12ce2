"""Objects that the windows of all clients of a node use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.edge_node.counters import Counters
from weft.edge_node.sessions.delivery_journal import DeliveryJournal
from weft.edge_node.subscriptions.outbox import Outbox
from weft.edge_node.subscriptions.queue_budget import QueueBudget


@dataclass(frozen=True, slots=True)
class WindowParts:
    """Parts created once, before the first session."""

    counters: Counters
    budget: QueueBudget
    outbox: Outbox
    journal: DeliveryJournal
    wall_clock: Callable[[], int]
    """Nanoseconds since 1970."""
    inflight_max: int
    """Deliveries at QoS 1 and 2 sent to one client and not completed."""
    bytes_max: int
    """Bytes of messages in flight and waiting for one client."""
