"""Queues as targets of AMQP 1.0 clients: by the default exchange, whose routing key is the name of a queue."""

from __future__ import annotations

from weft.edge_node.ingest.routes import Route
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.queue.queue import QueueClient
from weft.edge_node.queues.queues import Queues
from weft.edge_node.servers.amqp1.addresses import Refused
from weft.protocols.batch import HeaderPairs

_CONDITIONS = {
    Reason.NOT_FOUND: "amqp:not-found", Reason.ACCESS_REFUSED: "amqp:unauthorized-access",
    Reason.RESOURCE_LOCKED: "amqp:resource-locked", Reason.TOO_MANY: "amqp:resource-limit-exceeded",
    Reason.NO_ROOM: "amqp:resource-limit-exceeded", Reason.PRECONDITION_FAILED: "amqp:precondition-failed",
}  # fmt: skip


def refused_by_queue(error: QueueError) -> Refused:
    """Return a refusal of queues in the form of AMQP 1.0."""
    return Refused(_CONDITIONS.get(error.reason, "amqp:not-allowed"), str(error))


def check_queue(queues: Queues | None, client: QueueClient, name: str) -> None:
    """Check that there is a queue that the client may send to.

    Raises:
        Refused: there is none, or access rules give the client no right to it.
    """
    if queues is None:
        raise Refused("amqp:not-found", f"there is no queue {name[:80]!r}")
    try:
        queues.declarations.find_queue(client, name)
    except QueueError as error:
        raise refused_by_queue(error) from None


def route_to_queue(
    queues: Queues | None, client: QueueClient, name: str, headers: HeaderPairs, size: int
) -> tuple[Route, bytes, HeaderPairs]:
    """Return route, topic and headers of a message for a queue.

    Raises:
        Refused: there is no such queue, it is full, or the client may not publish there.
    """
    if queues is None:
        raise Refused("amqp:not-found", f"there is no queue {name[:80]!r}")
    try:
        found = queues.publishing.route(client, "", name, headers, size)
    except QueueError as error:
        raise refused_by_queue(error) from None
    if found.is_rejected:
        raise Refused("amqp:resource-limit-exceeded", f"queue {name[:80]!r} is full")
    if found.route is None or found.route.queues is None:
        raise Refused("amqp:not-found", f"there is no queue {name[:80]!r}")
    return found.route, found.topic, (*found.headers, *headers)
