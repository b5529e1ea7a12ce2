"""Deliveries of the engine: its own pointers, which must not be used once their link is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cproton import (
    PN_ACCEPTED,
    PN_MODIFIED,
    PN_REJECTED,
    PN_RELEASED,
    addressof,
    pn_condition_set_description,
    pn_condition_set_name,
    pn_delivery,
    pn_delivery_aborted,
    pn_delivery_local,
    pn_delivery_local_state,
    pn_delivery_partial,
    pn_delivery_pending,
    pn_delivery_readable,
    pn_delivery_remote,
    pn_delivery_remote_state,
    pn_delivery_settle,
    pn_delivery_settled,
    pn_delivery_update,
    pn_disposition_condition,
    pn_disposition_is_failed,
    pn_disposition_is_undeliverable,
    pn_link_advance,
    pn_link_credit,
    pn_link_recv,
    pn_link_send,
)

from weft.edge_node.servers.amqp1.items import Outcome, Outcomes

# --- incoming

is_readable: Callable[[Any], bool] = pn_delivery_readable
is_partial: Callable[[Any], bool] = pn_delivery_partial
is_aborted: Callable[[Any], bool] = pn_delivery_aborted
is_settled: Callable[[Any], bool] = pn_delivery_settled
settle: Callable[[Any], None] = pn_delivery_settle


def take(link: Any, delivery: Any) -> bytes:
    """Return the bytes of the link's current delivery since the last call."""
    pending = pn_delivery_pending(delivery)
    if not pending:
        return b""
    code, data = pn_link_recv(link._impl, pending)
    return bytes(data) if code > 0 else b""


def is_answered(delivery: Any) -> bool:
    """Return whether the node has set the outcome of a delivery."""
    return bool(pn_delivery_local_state(delivery))


def advance(link: Any) -> None:
    """Advance to the link's next delivery."""
    pn_link_advance(link._impl)


def accept(delivery: Any) -> None:
    """Mark a delivery as accepted. Call ``settle`` afterwards."""
    pn_delivery_update(delivery, PN_ACCEPTED)


def release(delivery: Any) -> None:
    """Mark a delivery as released: the client may send it again, here or elsewhere. Call ``settle`` afterwards."""
    pn_delivery_update(delivery, PN_RELEASED)


def reject(delivery: Any, condition: str, description: str) -> None:
    """Mark a delivery as rejected, with the reason. Call ``settle`` afterwards."""
    error = pn_disposition_condition(pn_delivery_local(delivery))
    pn_condition_set_name(error, condition)
    pn_condition_set_description(error, description)
    pn_delivery_update(delivery, PN_REJECTED)


# --- outgoing


def credit(link: Any) -> int:
    """Return the client's remaining credit in deliveries."""
    return int(pn_link_credit(link._impl))


def send(link: Any, tag: bytes, parts: Iterable[bytes], *, settled: bool) -> tuple[int, Any]:
    """Send a message. Return the delivery's number, valid until it is settled, and the delivery."""
    delivery = pn_delivery(link._impl, tag)
    for part in parts:
        pn_link_send(link._impl, part)
    pn_link_advance(link._impl)
    if settled:
        pn_delivery_settle(delivery)
    return addressof(delivery), delivery


def number_of(delivery: Any) -> int:
    """Return the number that ``send`` returned for a delivery."""
    return int(addressof(delivery))


def outcome(delivery: Any) -> Outcome | None:
    """Return the outcome of a delivery; None until the client has sent it."""
    state = pn_delivery_remote_state(delivery)
    if state == PN_ACCEPTED:
        return Outcomes.ACCEPTED
    if state == PN_REJECTED:
        return Outcomes.REJECTED
    if state == PN_RELEASED:
        return Outcomes.RELEASED
    if state == PN_MODIFIED:
        remote = pn_delivery_remote(delivery)
        return Outcome(
            "modified", failed=pn_disposition_is_failed(remote), undeliverable=pn_disposition_is_undeliverable(remote)
        )
    return Outcomes.ACCEPTED if pn_delivery_settled(delivery) else None
