"""Requests of clients to declare, bind and delete, in the order of their publishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weft.bounds import Owner
from weft.edge_node.ingest.ingest import TickBatch
from weft.edge_node.ingest.record import Route
from weft.edge_node.ingest.routing import Routing
from weft.edge_node.queues.contents import Contents
from weft.edge_node.queues.definitions import (
    CHANGE,
    LOOK,
    SERVER_NAME,
    Overflow,
    QueueError,
    Reason,
    check_not_default,
    topic_of,
)
from weft.edge_node.queues.exchange import BoundQueues, CachedRoute, Exchange, Topology, own_headers
from weft.edge_node.queues.queue import Queue, QueueClient
from weft.edge_node.queues.ready import ENTRY_BYTES, Declared
from weft.edge_node.queues.registry import Registry
from weft.protocols.batch import HeaderPairs


class Declarations:
    """Changes of exchanges, queues and bindings. Event loop's thread only.

    Changes are applied when a call returns, and durable with the next commit: have ``TickBatch.answer`` send the
    answer."""

    def __init__(self, batch: TickBatch, registry: Registry, contents: Contents) -> None:
        self._batch = batch
        self._registry = registry
        self._contents = contents

    # --- exchanges

    def declare_exchange(
        self,
        client: QueueClient,
        name: str,
        kind: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare an exchange. ``alternate-exchange`` is the only known argument.

        Raises:
            QueueError: UNKNOWN_KIND, ACCESS_REFUSED (reserved name, or access rules), PRECONDITION_FAILED (it exists
                and differs, or an argument is invalid), TOO_MANY, NO_ROOM.
        """
        self._registry.declare_exchange(
            client, name, kind, arguments or {}, durable=durable, auto_delete=auto_delete, internal=internal
        )

    def find_exchange(self, name: str) -> None:
        """Check that there is an exchange: a passive declaration.

        Raises:
            QueueError: NOT_FOUND; ACCESS_REFUSED for the default exchange.
        """
        check_not_default(name)
        self._registry.topology.exchange(name)

    def delete_exchange(self, client: QueueClient, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; do nothing where there is none.

        Raises:
            QueueError: ACCESS_REFUSED (the node's own, or another user's), IN_USE.
        """
        self._batch.store()
        self._registry.delete_exchange(client, name, if_unused=if_unused)

    # --- queues

    def declare_queue(
        self,
        client: QueueClient,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        own_name: str = SERVER_NAME,
    ) -> Declared:
        """Declare a queue; without a name the node chooses one.

        Args:
            own_name: beginning of that name.

        Raises:
            QueueError: ACCESS_REFUSED (reserved name, or access rules), RESOURCE_LOCKED (it is exclusive, and only one
                of the two declarations is exclusive, or it is another connection's), PRECONDITION_FAILED (it exists and
                differs, or an argument is invalid), TOO_MANY, NO_ROOM.
        """
        self._batch.store()
        queue = self._registry.declare_queue(
            client,
            name,
            arguments or {},
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            own_name=own_name,
        )
        self._registry.expiry.used(queue)
        return self._declared(queue)

    def find_queue(self, client: QueueClient, name: str) -> Declared:
        """Return the facts of a queue: a passive declaration.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED, ACCESS_REFUSED.
        """
        self._batch.store()
        return self._declared(self._registry.queue(client, name, LOOK))

    def has_queue(self, name: str) -> bool:
        """Return whether there is a queue, also an exclusive one of another connection."""
        return name in self._registry.queues

    def delete_queue(self, client: QueueClient, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; do nothing where there is none. Return the number of messages deleted with it.

        Raises:
            QueueError: RESOURCE_LOCKED, ACCESS_REFUSED (another user's, unless rules permit it), IN_USE.
        """
        if name not in self._registry.queues:
            client.check_missing(name, CHANGE)
            return 0
        self._batch.store()
        queue = self._registry.queue(client, name, CHANGE)
        if if_unused and queue.consumptions:
            raise QueueError(Reason.IN_USE, f"queue {name!r} has consumers: cancel them, or delete it all the same")
        if if_empty and queue.count:
            raise QueueError(Reason.IN_USE, f"queue {name!r} has messages: purge it, or delete it all the same")
        count = queue.count
        self._registry.remove_queue(queue)
        return count

    def purge(self, client: QueueClient, name: str) -> int:
        """Remove all messages that are ready. Return their number.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED, ACCESS_REFUSED (another user's).
        """
        self._batch.store()
        queue = self._registry.queue(client, name, CHANGE)
        return self._contents.purge(queue)

    # --- bindings

    def bind(
        self, client: QueueClient, queue: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Bind a queue to an exchange.

        Raises:
            QueueError: NOT_FOUND, RESOURCE_LOCKED, ACCESS_REFUSED (the default exchange, or access rules),
                PRECONDITION_FAILED (an argument is invalid), TOO_MANY, NO_ROOM.
        """
        found = self._registry.queue(client, queue, LOOK)
        binding = self._registry.binding(exchange, found.name, key, arguments or {}, to_exchange=False)
        self._registry.bind(client, binding)

    def unbind(
        self, client: QueueClient, queue: str, exchange: str, key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Remove a binding; do nothing where it does not exist, or its queue or exchange does not.

        Programs unbind as they end, when a queue or an exchange may have been deleted with its last consumer or
        binding.

        Raises:
            QueueError: as ``bind``, except for NOT_FOUND.
        """
        if queue not in self._registry.queues:
            client.check_missing(queue, LOOK)
            return
        found = self._registry.queue(client, queue, LOOK)
        if exchange not in self._registry.topology.exchanges:
            return
        binding = self._registry.binding(exchange, found.name, key, arguments or {}, to_exchange=False)
        self._registry.unbind(client, binding)

    def bind_exchange(
        self,
        client: QueueClient,
        destination: str,
        source: str,
        key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Bind an exchange to another: ``destination`` routes on the messages that match the binding at ``source``.

        Raises:
            QueueError: as ``bind``.
        """
        binding = self._registry.binding(source, destination, key, arguments or {}, to_exchange=True)
        self._registry.bind(client, binding)

    def unbind_exchange(
        self,
        client: QueueClient,
        destination: str,
        source: str,
        key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Remove a binding between exchanges; do nothing where it does not exist, or one of them does not.

        Raises:
            QueueError: as ``bind``, except for NOT_FOUND.
        """
        if not {source, destination} <= self._registry.topology.exchanges.keys():
            return
        binding = self._registry.binding(source, destination, key, arguments or {}, to_exchange=True)
        self._registry.unbind(client, binding)

    def _declared(self, queue: Queue) -> Declared:
        return Declared(queue.name, queue.count, len(queue.consumptions))


# Publishing to exchanges: from exchange and routing key to a route.

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
    """Full queues whose rejected messages are dead-lettered (``DeadLetters.letters_of``)."""


class ExchangePublishing:
    """Routes of publishes to exchanges. Event loop's thread only."""

    def __init__(self, topology: Topology, routing: Routing) -> None:
        self._topology = topology
        self._admission = topology.admission
        self._routing = routing
        self._near: set[Owner] = set()
        """Owners whose share of messages in queues is nearly used up."""

    def check_exchange(self, name: str) -> Exchange:
        """Return an exchange to which clients may publish.

        Raises:
            QueueError: there is none of that name, or it is internal.
        """
        exchange = self._topology.exchange(name)
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
        topology = self._topology
        known = topology.known(exchange, key)
        if client.identity is not None or not known.is_plain:
            client.check_publish(known.topic.decode())
            client.check_target(exchange.definition)
        bound = known.targets
        if known.by_headers:
            names, _ = topology.walk(exchange, key, own_headers(headers))
            bound = self._topology.targets(names, reserved=True)
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
            known.topic,
            known.headers,
            is_routed,
            is_rejected,
            is_constant=not (known.by_headers or is_rejected or also) and (bound is None or self._is_roomy(bound)),
            dead_letter_of=tuple(queue for queue in full if self._sends_on(queue, size)),
        )

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
        topology, own = self._topology, own_headers(headers)
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
        return self._topology.targets(frozenset(found), reserved=True)

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

    def _remembered(self, known: CachedRoute) -> Route:
        if known.route is None or known.as_of != self._routing.as_of:
            known.route, known.as_of = self._routing.route_to(known.topic, known.targets), self._routing.as_of
        return known.route

    def _reserve(self, bound: BoundQueues, size: int) -> tuple[BoundQueues | None, tuple[Queue, ...]]:
        """Return the queues that take a message (``bound`` itself if all do), and the full ones."""
        full = {queue for queue in bound.queues if not self._admission.takes(queue, size)}
        if not full:
            return bound, ()
        left = (queue.name for queue in bound.queues if queue not in full)
        return self._topology.targets(frozenset(left), reserved=True), tuple(full)

    def _sends_on(self, queue: Queue, size: int) -> bool:
        """Return whether a full queue dead-letters the messages that it rejects."""
        arguments = queue.definition.arguments
        return (
            arguments.overflow is Overflow.REJECT_PUBLISH_DLX
            and arguments.dead_letter_exchange is not None
            and self._admission.waiting.fits(queue.owner, size + ENTRY_BYTES)
        )
