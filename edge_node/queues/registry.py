"""The existing exchanges, queues and bindings: declared, checked, stored and deleted."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from weft.bounds import Owner
from weft.edge_node.queues.definitions import (
    CHANGE,
    DECLARE,
    DEFAULT_EXCHANGE,
    OWN_NAMES,
    PREDECLARED,
    READ,
    SERVER_NAME,
    BindingDefinition,
    ExchangeDefinition,
    ExchangeKind,
    QueueDefinition,
    QueueError,
    Reason,
    Use,
    alternate_exchange,
    check_name,
    check_not_default,
    check_text,
    differences,
    filter_of,
    plain_arguments,
    queue_arguments,
    topic_of,
)
from weft.edge_node.queues.exchange import MATCHES, Admission, BoundQueues, Destination, Exchange, Topology, Unbinding
from weft.edge_node.queues.limits import QueueShares, charge
from weft.edge_node.queues.queue import Queue, QueueClient
from weft.edge_node.queues.state import QueueStateWriter
from weft.storage.segment_log import LogError


class Registry:
    """All declarations. Event loop's thread only.

    A change that outlives a restart is in the log when the call returns, and durable with the next commit: answer after
    that.

    Args:
        next_message: returns the number that the next message will get.
        deleted: called with a deleted queue, before its messages are released.
        next_round: calls back at an owner's turn.
    """

    def __init__(
        self,
        bounds: QueueShares,
        admission: Admission,
        next_message: Callable[[], int],
        deleted: Callable[[Queue], None],
        next_round: Callable[[Owner | None, Callable[[], None]], None],
    ) -> None:
        self.queues: dict[str, Queue] = {}
        self.topology = Topology(lambda names: self.targets(names, reserved=True))
        self._bounds = bounds
        self._admission = admission
        self._next_message = next_message
        self._deleted = deleted
        self._unbinding = Unbinding(bounds.free_binding, next_round)
        self.writer: QueueStateWriter

    # --- for the state

    def definitions(self) -> Iterator[ExchangeDefinition | QueueDefinition]:
        """Yield the exchanges and queues that outlive a restart."""
        for name, exchange in self.topology.exchanges.items():
            if exchange.definition.durable and name not in PREDECLARED:
                yield exchange.definition
        for queue in self.kept_queues():
            yield queue.definition

    def kept_bindings(self) -> Iterator[Collection[BindingDefinition]]:
        """Yield the bindings that outlive a restart, grouped by exchange and destination: a group may have 65,536."""
        for exchange in self.topology.exchanges.values():
            if exchange.definition.durable:
                yield from (each for each in exchange.bindings.values() if self._is_kept(next(iter(each))))

    def kept_queues(self) -> Iterable[Queue]:
        """Return the queues that outlive a restart."""
        return [queue for queue in self.queues.values() if queue.kept]

    def restore(
        self,
        exchanges: Iterable[ExchangeDefinition],
        queues: Iterable[QueueDefinition],
        bindings: Iterable[BindingDefinition],
    ) -> None:
        """Restore the declarations that a start read."""
        for exchange in exchanges:
            self._bounds.exchanges.hold(exchange.owner)
            self.topology.add_exchange(exchange)
        for definition in queues:
            self._bounds.queues.hold(definition.owner)
            self._add(Queue(definition))
        for binding in bindings:
            to = self.topology.exchanges if binding.to_exchange else self.queues
            if binding.source in self.topology.exchanges and binding.destination in to:
                owner = self._owner_of(binding)
                self._bounds.hold_binding(owner, self.topology.exchange(binding.source), binding)
                self.topology.restore(binding, owner)

    # --- for routes

    def targets(self, names: frozenset[str], *, reserved: bool) -> BoundQueues | None:
        """Return the receiver of messages for queues; None when no queue has one of these names."""
        found = [self.queues[name] for name in sorted(names) if name in self.queues]
        return BoundQueues(found, self._admission, reserved=reserved) if found else None

    # --- exchanges

    def declare_exchange(
        self,
        client: QueueClient,
        name: str,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
    ) -> None:
        """Declare an exchange; see ``Declarations.declare_exchange``."""
        check_not_default(name)
        if kind not in list(ExchangeKind):
            raise QueueError(
                Reason.UNKNOWN_KIND, f"unknown type of exchange {kind!r:.60}: use {', '.join(ExchangeKind)}"
            )
        had = self.topology.exchanges.get(name)
        definition = ExchangeDefinition(
            name, ExchangeKind(kind), durable, auto_delete, internal, alternate_exchange(arguments) or None,
            *(client.owner if had is None else had.definition.owner),
        )  # fmt: skip
        if had is not None:
            # Also for another user's exchange, without a right to it: a publish shows as much.
            if had.definition != definition:
                raise QueueError(
                    Reason.PRECONDITION_FAILED,
                    f"exchange {name!r} exists and is not the same: {_differing(had.definition, definition)} differ. "
                    "Declare it as it is, or delete it first",
                )
            return
        check_name(name, "exchange")
        client.check(DECLARE, name, None, "exchange")
        client.check_target(self.topology.definition(definition.alternate))
        charge(self._bounds.exchanges, client.owner)
        try:
            if durable:
                self._write(exchanges=[definition])
        except QueueError:
            self._bounds.exchanges.free(client.owner)
            raise
        self.topology.add_exchange(definition)

    def delete_exchange(self, client: QueueClient, name: str, *, if_unused: bool) -> None:
        """Delete an exchange; do nothing where there is none."""
        if name in PREDECLARED or name.startswith(OWN_NAMES):
            raise QueueError(Reason.ACCESS_REFUSED, f"the exchange {name!r} is the node's own and stays")
        exchange = self.topology.exchanges.get(name)
        if exchange is None:
            return
        client.check(CHANGE, name, exchange.definition.owner, "exchange")
        if if_unused and exchange.bindings:
            raise QueueError(Reason.IN_USE, f"exchange {name!r} has bindings: unbind them, or delete it all the same")
        self._unbind_all(*self._drop_exchange(exchange))

    def _drop_exchange(self, exchange: Exchange) -> tuple[Destination | None, Exchange]:
        """Delete an exchange whose bindings still exist, and the routes to it."""
        definition = exchange.definition
        self.topology.remove_exchange(exchange)
        self.writer.gone(exchanges=[definition.name] if definition.durable else ())
        self._bounds.exchanges.free(definition.owner)
        return self.topology.take_destination(definition.name, is_exchange=True), exchange

    def _unbind_all(self, to: Destination | None, exchange: Exchange | None = None) -> None:
        """Stop routing by the bindings of a deleted queue or exchange, and delete auto-delete exchanges that had no
        others. The bindings are removed in turns: there may be 65,536. The log needs no record of each: the deletion
        implies them."""
        changed, waiting = set[str](), [(to, exchange)]
        while waiting:
            to, exchange = waiting.pop()
            sources = [] if to is None else [*to.sources]
            changed.update(each.name for each in sources)
            if exchange is not None:
                changed.add(exchange.name)
                self._unbinding.begin(exchange.definition.owner, to, exchange)
            elif to is not None:
                self._unbinding.begin(to.owner, to)
            waiting += [self._drop_exchange(each) for each in sources if self._is_over(each)]
        self.topology.changed(changed)

    def _is_over(self, exchange: Exchange) -> bool:
        """Return whether an exchange that lost a binding must be deleted."""
        return (
            exchange.definition.auto_delete
            and not exchange.bindings
            and self.topology.exchanges.get(exchange.name) is exchange
        )

    # --- queues

    def queue(self, client: QueueClient, name: str, use: Use = READ) -> Queue:
        """Return a queue that a client may use.

        Args:
            use: intended use.

        Raises:
            QueueError: access rules forbid it, there is none of that name, or it is exclusive to another connection.
        """
        found = self.queues.get(name)
        if found is None:
            client.check_missing(name, use)
            raise QueueError(Reason.NOT_FOUND, f"no queue {name!r}: declare it first")
        client.check(use, name, found.definition.owner, "queue")
        if found.client is not None and found.client is not client:
            raise QueueError(Reason.RESOURCE_LOCKED, f"queue {name!r} is exclusive to another connection")
        return found

    def declare_queue(
        self,
        client: QueueClient,
        name: str,
        raw: Mapping[str, Any],
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        own_name: str = SERVER_NAME,
    ) -> Queue:
        """Declare a queue; see ``Declarations.declare_queue``."""
        arguments = queue_arguments(raw, durable=durable, exclusive=exclusive)
        if name in self.queues:
            queue = self.queue(client, name, DECLARE.by_any)
            had = queue.definition
            if had.exclusive != exclusive:
                kind = "exclusive to this connection" if had.exclusive else "not exclusive"
                raise QueueError(
                    Reason.RESOURCE_LOCKED, f"queue {name!r} exists and is {kind}: declare it so, or delete it first"
                )
            flags = [
                word
                for word, before, now in (
                    ("durable", had.durable, durable),
                    ("auto_delete", had.auto_delete, auto_delete),
                )
                if before != now
            ]
            if flags or had.arguments != arguments:
                found = ", ".join([*flags, *filter(None, [differences(had.arguments, arguments)])])
                raise QueueError(
                    Reason.PRECONDITION_FAILED,
                    f"queue {name!r} exists and is not the same: {found} differ. Declare it as it is, or delete it "
                    "first",
                )
            return queue
        if name:
            check_name(name, "queue")
            client.check(DECLARE, name, None, "queue")
        else:
            name = own_name + secrets.token_urlsafe(16)
            client.check(DECLARE, name, client.owner, "queue")
        if arguments.dead_letter_exchange is not None and arguments.dead_letter_routing_key is not None:
            client.check_publish(topic_of(arguments.dead_letter_exchange, arguments.dead_letter_routing_key))
        client.check_target(self.topology.definition(arguments.dead_letter_exchange))
        charge(self._bounds.queues, client.owner)
        definition = QueueDefinition(
            self.writer.next_number, name, durable, exclusive, auto_delete, arguments, *client.owner,
            since=self._next_message(),
        )  # fmt: skip
        try:
            if definition.kept:
                self._write(queues=[definition])
        except QueueError:
            self._bounds.queues.free(client.owner)
            raise
        # After the write, so that a failed declaration leaves neither a used number nor a queue.
        self.writer.next_number += 1
        queue = Queue(definition, client if exclusive else None)
        if exclusive:
            client.exclusive[queue] = None
        self._add(queue)
        return queue

    def _add(self, queue: Queue) -> None:
        self.queues[queue.name] = queue
        self.topology.forget_key(DEFAULT_EXCHANGE, queue.name)

    def remove_queue(self, queue: Queue) -> None:
        """Delete a queue, with its messages and bindings."""
        queue.delete()
        del self.queues[queue.name]
        self.topology.forget_key(DEFAULT_EXCHANGE, queue.name)
        self.writer.gone(queues=[queue.number] if queue.kept else ())
        self._bounds.queues.free(queue.owner)
        self._unbind_all(self.topology.take_destination(queue.name, is_exchange=False))
        self._deleted(queue)

    # --- bindings

    def binding(
        self, source: str, destination: str, key: str, arguments: Mapping[str, Any], *, to_exchange: bool
    ) -> BindingDefinition:
        """Return a binding in the form in which bindings are compared.

        Raises:
            QueueError: source or destination is the default exchange, or an argument is invalid.
        """
        if source == DEFAULT_EXCHANGE or (to_exchange and destination == DEFAULT_EXCHANGE):
            raise QueueError(
                Reason.ACCESS_REFUSED, "the default exchange has one binding for each queue, and no others: name one"
            )
        check_text(key, "routing key")
        exchange = self.topology.exchange(source)
        if to_exchange:
            self.topology.exchange(destination)
        plain = plain_arguments(arguments)
        if exchange.kind is ExchangeKind.HEADERS and plain.get("x-match", "all") not in MATCHES:
            raise QueueError(
                Reason.PRECONDITION_FAILED, f"invalid x-match {plain['x-match']!r:.60}: expected all or any"
            )
        return BindingDefinition(
            source, destination, to_exchange, key, msgspec.msgpack.encode(plain) if plain else b""
        )  # fmt: skip

    def bind(self, client: QueueClient, binding: BindingDefinition) -> None:
        """Add a binding; do nothing where it exists."""
        exchange = self.topology.exchange(binding.source)
        if exchange.kind is ExchangeKind.TOPIC:
            client.check_subscribe(filter_of(binding.key))
        elif exchange.kind is ExchangeKind.DIRECT:
            client.check_subscribe(topic_of(binding.source, binding.key))
        if self.topology.has(binding):
            return
        client.check_source(exchange.definition)
        owner = self._owner_of(binding)
        client.check(CHANGE, binding.destination, owner, _what(binding))
        self._bounds.take_binding(owner, exchange, binding)
        try:
            if self._is_kept(binding):
                self._write(bindings=[binding])
        except QueueError:
            self._bounds.free_binding(owner, exchange, binding)
            raise
        self.topology.bind(binding, owner)

    def unbind(self, client: QueueClient, binding: BindingDefinition) -> None:
        """Remove a binding; do nothing where it does not exist."""
        if not self.topology.has(binding):
            return
        owner = self._owner_of(binding)
        client.check(CHANGE, binding.destination, owner, _what(binding))
        source = self.topology.exchanges[binding.source]
        kept = self._is_kept(binding)
        self._bounds.free_binding(owner, source, binding)
        self.topology.unbind(binding)
        if kept:
            self.writer.gone(bindings=[binding])
        if self._is_over(source):
            self._unbind_all(*self._drop_exchange(source))

    # --- inside

    def _owner_of(self, binding: BindingDefinition) -> Owner:
        """Return the owner that a binding is charged to: the one of its destination."""
        if binding.to_exchange:
            return self.topology.exchanges[binding.destination].definition.owner
        return self.queues[binding.destination].definition.owner

    def _is_kept(self, binding: BindingDefinition) -> bool:
        source = self.topology.exchanges[binding.source].definition.durable
        if binding.to_exchange:
            return source and self.topology.exchanges[binding.destination].definition.durable
        return source and self.queues[binding.destination].kept

    def _write(self, **came: Any) -> None:
        try:
            self.writer.came(**came)
        except LogError as error:
            raise QueueError(Reason.NO_ROOM, f"the log takes nothing more: {error}") from error


def _what(binding: BindingDefinition) -> str:
    return "exchange" if binding.to_exchange else "queue"


def _differing(had: ExchangeDefinition, asked: ExchangeDefinition) -> str:
    return ", ".join(name for name in had.__struct_fields__ if getattr(had, name) != getattr(asked, name))
