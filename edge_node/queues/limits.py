"""Bounds on exchanges, queues and bindings, and on what is in queues: totals, and what one owner may have of each."""

from __future__ import annotations

from dataclasses import dataclass

from weft.bounds import Bound, Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Settings of the bounds."""

    queues_max: int = 65_536
    queues_per_user_max: int = 16_384
    exchanges_max: int = 4_096
    exchanges_per_user_max: int = 1_024
    bindings_max: int = 262_144
    bindings_per_user_max: int = 65_536
    waiting_bytes_max: int = 4 << 30
    """Bytes of messages in queues, delivered ones included, each with ``message.ENTRY_BYTES`` beside its payload."""
    waiting_bytes_per_user_max: int = 1 << 30
    consumers_max: int = 65_536
    consumers_per_user_max: int = 16_384
    unacknowledged_max: int = 262_144
    """Deliveries that are not acknowledged."""
    unacknowledged_per_user_max: int = 65_536


class QueueShares:
    """The bounds, and who has taken what."""

    def __init__(self, limits: QueueLimits, refusals: Refusals) -> None:
        def bound(total: int, share: int, name: str, what: str) -> Bound:
            return Bound(total, share, refusals, f"queues.{name}", f"queues.{name}_per_user", what)

        self.queues = bound(limits.queues_max, limits.queues_per_user_max, "queues", "queues")
        self.exchanges = bound(limits.exchanges_max, limits.exchanges_per_user_max, "exchanges", "exchanges")
        self.bindings = bound(limits.bindings_max, limits.bindings_per_user_max, "bindings", "bindings of queues")
        self.waiting = bound(
            limits.waiting_bytes_max, limits.waiting_bytes_per_user_max, "size", "bytes of messages in queues"
        )
        self.consumers = bound(limits.consumers_max, limits.consumers_per_user_max, "consumers", "consumers of queues")
        self.unacknowledged = bound(
            limits.unacknowledged_max, limits.unacknowledged_per_user_max, "unacknowledged",
            "deliveries that are not acknowledged",
        )  # fmt: skip
