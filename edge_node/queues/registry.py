"""The existing exchanges, queues and bindings: declared, checked, stored and deleted."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from weft.bounds import Owner
from weft.edge_node.queues.contents import Contents
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
from weft.edge_node.queues.exchange import MATCHES, Destination, Exchange, Topology
from weft.edge_node.queues.limits import QueueContext, charge
from weft.edge_node.queues.queue import Queue, QueueClient
from weft.edge_node.queues.state import QueueStateWriter
from weft.edge_node.timing import TimerWheel
from weft.storage.segment_log import LogError

# Bindings of queues and exchanges that were deleted: no message is routed by them, and they are removed in turns.

NOW_UNITS = 16
"""Units of bindings that are removed at once: most queues have no more."""
SLICE_UNITS = 128
"""Units of bindings that are removed before other owners have a turn: about a millisecond."""


class Unbinding:
    """Removal of bindings. Event loop's thread only.

    Their owners are charged with them until then: the bindings take memory, and look-ups pass them."""

    def __init__(self, context: QueueContext) -> None:
        self._bounds = context.bounds
        self._round_robin = context.round_robin

    def begin(self, owner: Owner, to: Destination | None, exchange: Exchange | None = None) -> None:
        """Remove the bindings to a deleted queue or exchange, and from it.

        Args:
            owner: owner in whose turns they are removed.
            to: the queue or exchange; None where nothing is bound to it.
            exchange: the deleted exchange as a source of bindings.
        """
        taken = [] if to is None else [(source, to, source.take(to)) for source in list(to.sources)]
        self._resume(owner, self._apart(taken, exchange), NOW_UNITS)

    def _resume(self, owner: Owner, apart: Iterator[int], left: int) -> None:
        for units in apart:
            left -= units
            if left <= 0:
                self._round_robin.wait(owner, partial(self._resume, owner, apart, SLICE_UNITS))
                return

    def _apart(
        self, taken: list[tuple[Exchange, Destination, dict[BindingDefinition, None]]], exchange: Exchange | None
    ) -> Iterator[int]:
        """Remove one binding at each step; yield its units."""
        for part in taken:
            yield from self._part(*part)
        while exchange is not None and exchange.bindings:
            to = next(reversed(exchange.bindings))
            yield from self._part(exchange, to, exchange.take(to))

    def _part(self, source: Exchange, to: Destination, bindings: dict[BindingDefinition, None]) -> Iterator[int]:
        while bindings:
            binding, _ = bindings.popitem()
            self._bounds.free_binding(to.owner, source, binding)
            source.forget(binding, to)
            yield binding.units


# Queues that are deleted when no client has used them for a while (``x-expires``).


class _ExpiryTimer:
    """A queue without consumers that expires."""

    __slots__ = ("_expire", "queue", "until", "wheel_slot")

    def __init__(self, queue: Queue, expire: Callable[[Queue], None]) -> None:
        self.queue = queue
        self._expire = expire
        self.until = 0.0
        self.wheel_slot = -1

    def due(self, now: float) -> float | None:
        """Delete the queue if its time is over."""
        if now < self.until:
            return self.until
        self._expire(self.queue)
        return None


class QueueExpiry:
    """Timer of queues that expire. Consumers, ``get`` and repeated declarations count as use; a restart begins the time
    again."""

    def __init__(self, wheel: TimerWheel, expire: Callable[[Queue], None]) -> None:
        self._wheel = wheel
        self._expire = expire
        self._waiting: dict[Queue, _ExpiryTimer] = {}

    def used(self, queue: Queue) -> None:
        """Start the time of a queue, unless it has consumers."""
        expires_ms = queue.definition.arguments.expires_ms
        if expires_ms is None or queue.consumptions:
            return
        waiting = self._waiting.get(queue)
        if waiting is None:
            waiting = self._waiting[queue] = _ExpiryTimer(queue, self._expire)
        waiting.until = asyncio.get_running_loop().time() + expires_ms / 1000
        self._wheel.set(waiting, waiting.until)

    def is_over(self, queue: Queue) -> bool:
        """Return whether a queue's time is over, and no client has used it since."""
        waiting = self._waiting.get(queue)
        return waiting is not None and asyncio.get_running_loop().time() >= waiting.until

    def in_use(self, queue: Queue) -> None:
        """Stop the time of a queue that has a consumer, or is deleted."""
        waiting = self._waiting.pop(queue, None)
        if waiting is not None:
            self._wheel.cancel(waiting)


# The declarations.

logger = logging.getLogger(__name__)


class Registry:
    """All declarations. Event loop's thread only.

    A change that outlives a restart is in the log when the call returns, and durable with the next commit: answer after
    that.
    """

    def __init__(self, context: QueueContext, topology: Topology, writer: QueueStateWriter, contents: Contents) -> None:
        self.topology = topology
        self.queues = topology.queues
        self.expiry = QueueExpiry(context.wheel, self._expire)
        self._context = context
        self._bounds = context.bounds
        self._writer = writer
        self._contents = contents
        self._unbinding = Unbinding(context)

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
                owner = self.topology.owner_of(binding)
                self._bounds.hold_binding(owner, self.topology.exchange(binding.source), binding)
                self.topology.restore(binding, owner)

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
            name,
            ExchangeKind(kind),
            durable,
            auto_delete,
            internal,
            alternate_exchange(arguments) or None,
            *(client.owner if had is None else had.definition.owner),
        )
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
        self._writer.gone(exchanges=[definition.name] if definition.durable else ())
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
            self._writer.next_number,
            name,
            durable,
            exclusive,
            auto_delete,
            arguments,
            *client.owner,
            since=self._context.log.next_seq(self._context.stream),
        )
        try:
            if definition.kept:
                self._write(queues=[definition])
        except QueueError:
            self._bounds.queues.free(client.owner)
            raise
        # After the write, so that a failed declaration leaves neither a used number nor a queue.
        self._writer.next_number += 1
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
        self._writer.gone(queues=[queue.number] if queue.kept else ())
        self._bounds.queues.free(queue.owner)
        self._unbind_all(self.topology.take_destination(queue.name, is_exchange=False))
        self._end_readers(queue)

    def _end_readers(self, queue: Queue) -> None:
        """Release the messages of a deleted queue, and tell its consumers."""
        consumptions = list(queue.consumptions)
        for consumption in consumptions:
            queue.consumptions.remove(consumption)
            self._bounds.consumers.free(consumption.client.owner)
        getters = queue.take_getters()
        self.expiry.in_use(queue)
        self._contents.drop_all(queue)
        for getter in getters:
            self._contents.free_share(getter.client.owner)
        for consumption in (*consumptions, *getters):
            consumption.end()
        error = QueueError(Reason.NOT_FOUND, f"queue {queue.name!r} was deleted")
        for consumption in (*consumptions, *getters):
            try:
                consumption.consumer.cancelled(error)
            except Exception:
                logger.exception("a consumer of deleted queue %r could not be ended", queue.name)

    def _expire(self, queue: Queue) -> None:
        # Thousands may be declared, and expire, at once.
        self._context.round_robin.wait(queue.owner, partial(self._delete_unused, queue))

    def _delete_unused(self, queue: Queue) -> None:
        self._context.batch.store()
        if not queue.deleted and self.expiry.is_over(queue):
            self.remove_queue(queue)

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
        return BindingDefinition(source, destination, to_exchange, key, msgspec.msgpack.encode(plain) if plain else b"")

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
        owner = self.topology.owner_of(binding)
        client.check(CHANGE, binding.destination, owner, _what(binding))
        self._bounds.take_binding(owner, exchange, binding)
        try:
            if self.topology.is_kept(binding):
                self._write(bindings=[binding])
        except QueueError:
            self._bounds.free_binding(owner, exchange, binding)
            raise
        self.topology.bind(binding, owner)

    def unbind(self, client: QueueClient, binding: BindingDefinition) -> None:
        """Remove a binding; do nothing where it does not exist."""
        if not self.topology.has(binding):
            return
        owner = self.topology.owner_of(binding)
        client.check(CHANGE, binding.destination, owner, _what(binding))
        source = self.topology.exchanges[binding.source]
        kept = self.topology.is_kept(binding)
        self._bounds.free_binding(owner, source, binding)
        self.topology.unbind(binding)
        if kept:
            self._writer.gone(bindings=[binding])
        if self._is_over(source):
            self._unbind_all(*self._drop_exchange(source))

    # --- inside

    def _write(self, **came: Any) -> None:
        try:
            self._writer.came(**came)
        except LogError as error:
            raise QueueError(Reason.NO_ROOM, f"the log refuses appends: {error}") from error


def _what(binding: BindingDefinition) -> str:
    return "exchange" if binding.to_exchange else "queue"


def _differing(had: ExchangeDefinition, asked: ExchangeDefinition) -> str:
    return ", ".join(name for name in had.__struct_fields__ if getattr(had, name) != getattr(asked, name))
