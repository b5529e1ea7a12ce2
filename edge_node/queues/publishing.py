"""Publishing to exchanges: from exchange and routing key to a route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.bounds import Owner
from weft.edge_node.ingest.routes import Route
from weft.edge_node.ingest.routing import Routing
from weft.edge_node.queues.arguments import Overflow
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.message import ENTRY_BYTES
from weft.edge_node.queues.queue.queue import Queue, QueueClient
from weft.edge_node.queues.registry import Registry
from weft.edge_node.queues.routing.exchange import Exchange
from weft.edge_node.queues.routing.targets import Admission, BoundQueues, own_headers
from weft.edge_node.queues.routing.topology import Known
from weft.edge_node.queues.topics import topic_of
from weft.protocols.batch import HeaderPairs

NEAR_BYTES = 1 << 20
"""Room in a share below which each message is checked against it: one turn of the loop does not bring more."""

FURTHER_STEPS_MAX = 8_192
"""Steps after which no further keys of a message are looked up (``Topology.steps``): at most ten milliseconds."""


class Published(NamedTuple):
    """Route of a message, for ``turn.add(route, topic, payload, source, flags, (*own, *headers))``."""

    route: Route | None
    """None when nothing takes the message and unrouted ones are refused (``unrouted: refuse``)."""
    topic: bytes
    headers: HeaderPairs
    """Headers with exchange and routing key, beside the message's own headers."""
    is_routed: bool
    """True if a queue, a stream of the configuration or a subscriber takes the message. Otherwise an AMQP publisher
    that sets ``mandatory`` gets it back."""
    is_rejected: bool
    """True if one of its queues is full: a publisher that wants confirms gets a nack, even if other queues take it."""
    is_constant: bool
    """True if all further messages to this exchange with this key have the same answer, until ``Routing.forget``."""
    dead_letter_of: tuple[Queue, ...] = ()
    """Full queues whose rejected messages are dead-lettered (``Queues.dead_letters_of``)."""


class ExchangePublishing:
    """Routes of publishes to exchanges. Event loop's thread only."""

    def __init__(self, registry: Registry, admission: Admission, routing: Routing) -> None:
        self._registry = registry
        self._admission = admission
        self._routing = routing
        self._near: set[Owner] = set()
        """Owners whose share of messages in queues is nearly used up."""

    def check_exchange(self, name: str) -> Exchange:
        """Return an exchange to which clients may publish.

        Raises:
            QueueError: there is none of that name, or it is internal.
        """
        exchange = self._registry.topology.exchange(name)
        if exchange.definition.internal:
            raise QueueError(Reason.ACCESS_REFUSED, f"exchange {name!r} is internal: publish to one that leads to it")
        return exchange

    def route(  # noqa: PLR0917
        self,
        client: QueueClient,
        name: str,
        key: str,
        headers: HeaderPairs = (),
        size: int = 0,
        also: Sequence[str] = (),
    ) -> Published:
        """Return the route of a message. If it is added to the turn, add it at once.

        Args:
            name: of the exchange.
            headers: of the message, in their stored form.
            size: bytes of the payload, for queues with a limit.
            also: further routing keys, whose queues get the message as well.

        Raises:
            QueueError: NOT_FOUND; ACCESS_REFUSED where the exchange is internal, or access rules forbid the topic.
        """
        exchange = self.check_exchange(name)
        topology = self._registry.topology
        known = topology.known(exchange, key)
        if client.identity is not None or not known.is_plain:
            client.check_publish(known.topic.decode())
            client.check_target(exchange.definition)
        bound = known.targets
        if known.by_headers:
            names, _ = topology.walk(exchange, key, own_headers(headers))
            bound = self._registry.targets(names, reserved=True)
        if also:
            bound = self._with_further_keys(client, exchange, bound, headers, also)
        targets, full = self._reserve(bound, size) if bound is not None else (None, ())
        is_rejected = bool(full)
        if targets is not bound or known.by_headers or also:
            route = self._routing.route_to(known.topic, targets)
        else:
            route = self._remembered(known)
        is_routed = bound is not None or (route.taken and not route.unrouted)
        return Published(
            None if route.unrouted and self._routing.unrouted.refuses else route,
            known.topic, known.headers, is_routed, is_rejected,
            is_constant=not (known.by_headers or is_rejected or also) and (bound is None or self._is_roomy(bound)),
            dead_letter_of=tuple(queue for queue in full if self._sends_on(queue, size)),
        )  # fmt: skip

    def stored(self, queues: dict[Queue, None]) -> None:
        """Check each message from now on where shares are nearly used up."""
        waiting = self._admission.waiting
        for queue in queues:
            owner = queue.owner
            if owner not in self._near and not waiting.fits(owner, NEAR_BYTES):
                self._near.add(owner)
                self._routing.forget()

    def _with_further_keys(
        self,
        client: QueueClient,
        exchange: Exchange,
        bound: BoundQueues | None,
        headers: HeaderPairs,
        also: Sequence[str],
    ) -> BoundQueues | None:
        """Return the queues of a message and of its further keys, each once."""
        topology, own = self._registry.topology, own_headers(headers)
        found = set() if bound is None else {queue.name for queue in bound.queues}
        end = topology.steps + FURTHER_STEPS_MAX
        for key in also:
            client.check_publish(topic_of(exchange.name, key))
            found |= topology.walk(exchange, key, own)[0]
            if topology.steps > end:
                raise QueueError(
                    Reason.PRECONDITION_FAILED,
                    f"too many bindings of exchange {exchange.name!r} are like the further keys (CC, BCC) of the "
                    "message: publish to some of them by themselves",
                )
        return self._registry.targets(frozenset(found), reserved=True)

    def _is_roomy(self, bound: BoundQueues) -> bool:
        for queue in bound.queues:
            owner = queue.owner
            if queue.definition.arguments.rejects:
                return False
            if owner in self._near:
                if not self._admission.waiting.fits(owner, NEAR_BYTES):
                    return False
                self._near.discard(owner)
        return True

    def _remembered(self, known: Known) -> Route:
        if known.route is None or known.as_of != self._routing.as_of:
            known.route, known.as_of = self._routing.route_to(known.topic, known.targets), self._routing.as_of
        return known.route

    def _reserve(self, bound: BoundQueues, size: int) -> tuple[BoundQueues | None, tuple[Queue, ...]]:
        """Return the queues that take a message (``bound`` itself if all do), and the full ones."""
        full = {queue for queue in bound.queues if not self._admission.takes(queue, size)}
        if not full:
            return bound, ()
        left = (queue.name for queue in bound.queues if queue not in full)
        return self._registry.targets(frozenset(left), reserved=True), tuple(full)

    def _sends_on(self, queue: Queue, size: int) -> bool:
        """Return whether a full queue dead-letters the messages that it rejects."""
        arguments = queue.definition.arguments
        return (
            arguments.overflow is Overflow.REJECT_PUBLISH_DLX
            and arguments.dead_letter_exchange is not None
            and self._admission.waiting.fits(queue.owner, size + ENTRY_BYTES)
        )
