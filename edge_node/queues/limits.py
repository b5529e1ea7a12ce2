"""Bounds on exchanges, queues and bindings, and on the content of queues: totals, and the share of one owner in
each."""

from __future__ import annotations

from dataclasses import dataclass

from weft.bounds import Bound, Owner, Refusals, one_share
from weft.config.models import EdgeConfig
from weft.edge_node.queues.definitions import BindingDefinition
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.routing.exchange import Exchange
from weft.edge_node.queues.routing.look_up_cost import LookUpCost

QUEUES_SHARE = 4
"""Divisor of the disk budget: the share of messages in queues, if ``queues.size`` is unset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Settings of the bounds."""

    queues_max: int = 65_536
    queues_per_user_max: int = 16_384
    exchanges_max: int = 4_096
    exchanges_per_user_max: int = 1_024
    bindings_max: int = 262_144
    bindings_per_user_max: int = 65_536
    match_cost_max: int = 32_768
    """Steps that one look-up may take because of uncommon bindings (``routing.look_up_cost``)."""
    match_cost_per_user_max: int = 8_192
    waiting_bytes_max: int = 4 << 30
    """Bytes of messages in queues, delivered ones included, each with ``message.ENTRY_BYTES`` beside its payload."""
    waiting_bytes_per_user_max: int = 1 << 30
    consumers_max: int = 65_536
    consumers_per_user_max: int = 16_384
    unacknowledged_max: int = 262_144
    """Deliveries that are not acknowledged."""
    unacknowledged_per_user_max: int = 65_536

    @classmethod
    def of(cls, config: EdgeConfig) -> QueueLimits:
        """Return the bounds that a configuration sets."""
        bounds = config.queues
        waiting = bounds.size_bytes or config.disk.budget_bytes // QUEUES_SHARE
        return cls(
            queues_max=bounds.queues,
            queues_per_user_max=one_share(bounds.queues_per_user, bounds.queues),
            exchanges_max=bounds.exchanges,
            exchanges_per_user_max=one_share(bounds.exchanges_per_user, bounds.exchanges),
            bindings_max=bounds.bindings,
            bindings_per_user_max=one_share(bounds.bindings_per_user, bounds.bindings),
            match_cost_max=bounds.match_cost,
            match_cost_per_user_max=one_share(bounds.match_cost_per_user, bounds.match_cost),
            waiting_bytes_max=waiting,
            waiting_bytes_per_user_max=one_share(bounds.size_per_user_bytes, waiting),
            consumers_max=bounds.consumers,
            consumers_per_user_max=one_share(bounds.consumers_per_user, bounds.consumers),
            unacknowledged_max=bounds.unacknowledged,
            unacknowledged_per_user_max=one_share(bounds.unacknowledged_per_user, bounds.unacknowledged),
        )


class QueueShares:
    """The bounds, and the units that each owner has taken."""

    def __init__(self, limits: QueueLimits, refusals: Refusals) -> None:
        def bound(total: int, share: int, name: str, what: str) -> Bound:
            return Bound(total, share, refusals, f"queues.{name}", f"queues.{name}_per_user", what)

        self.queues = bound(limits.queues_max, limits.queues_per_user_max, "queues", "queues")
        self.exchanges = bound(limits.exchanges_max, limits.exchanges_per_user_max, "exchanges", "exchanges")
        self.bindings = bound(limits.bindings_max, limits.bindings_per_user_max, "bindings", "bindings of queues")
        self.match_cost = LookUpCost(limits.match_cost_max, limits.match_cost_per_user_max, refusals)
        self.waiting = bound(
            limits.waiting_bytes_max, limits.waiting_bytes_per_user_max, "size", "bytes of messages in queues"
        )
        self.consumers = bound(limits.consumers_max, limits.consumers_per_user_max, "consumers", "consumers of queues")
        self.unacknowledged = bound(
            limits.unacknowledged_max, limits.unacknowledged_per_user_max, "unacknowledged",
            "deliveries that are not acknowledged",
        )  # fmt: skip

    def take_binding(self, owner: Owner, exchange: Exchange, binding: BindingDefinition) -> None:
        """Charge an owner with a binding that is about to be added to an exchange.

        Raises:
            QueueError: TOO_MANY.
        """
        charge(self.bindings, owner, binding.units)
        if not self.match_cost.take(owner, exchange, binding):
            self.bindings.free(owner, binding.units)
            raise QueueError(
                Reason.TOO_MANY,
                f"{owner} has used up its share of what finding a message's queues may cost. Bind with fewer * and #, "
                "or by a header that few bindings have, or raise queues.match_cost_per_user",
            )

    def hold_binding(self, owner: Owner, exchange: Exchange, binding: BindingDefinition) -> None:
        """Charge an owner with a binding that a start found."""
        self.bindings.hold(owner, binding.units)
        self.match_cost.hold(owner, exchange, binding)

    def free_binding(self, owner: Owner, exchange: Exchange, binding: BindingDefinition) -> None:
        """Release the units of a binding that is about to be removed from its exchange."""
        self.match_cost.free(owner, exchange, binding)
        self.bindings.free(owner, binding.units)


def charge(bound: Bound, owner: Owner, units: int = 1) -> None:
    """Take units for an owner.

    Raises:
        QueueError: TOO_MANY.
    """
    if not bound.take(owner, units):
        bound.refuse(owner, units)
        raise QueueError(
            Reason.TOO_MANY, f"{owner} has used up its share: delete what is not needed, or raise the limit"
        )
