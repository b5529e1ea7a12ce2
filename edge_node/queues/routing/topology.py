"""Exchanges and bindings, and the look-up of a message's queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from weft.bounds import Owner, OwnerKind
from weft.edge_node.ingest.routes import Remembering, Route
from weft.edge_node.queues.definitions import (
    DEFAULT_EXCHANGE,
    PREDECLARED,
    BindingDefinition,
    ExchangeDefinition,
    ExchangeKind,
)
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.routing.exchange import Destination, Exchange
from weft.edge_node.queues.routing.targets import BoundQueues
from weft.edge_node.queues.topics import headers_of_route, topic_of

KNOWN_MAX = 100_000
"""Maximum number of routing keys whose queues are remembered; beyond it, all are forgotten and looked up again."""
KEY_REMEMBERED_MAX = 512
_NODE = (OwnerKind.USER, "")
_NO_HEADERS: Mapping[str, Any] = {}


class Known:
    """Remembered route of messages with one routing key at one exchange, the same for every publisher."""

    __slots__ = ("as_of", "by_headers", "headers", "is_plain", "route", "targets", "topic")

    def __init__(self, exchange: str, key: str, targets: BoundQueues | None, *, by_headers: bool) -> None:
        topic = topic_of(exchange, key)
        self.topic = topic.encode()
        self.is_plain = not topic.startswith("$SYS/")
        """False for topics that no client may publish to."""
        self.headers = headers_of_route(exchange, key, topic)
        """Headers that the record needs beside the topic."""
        self.targets = targets
        """Queues, for publishers that learn whether the queues take the message; None without queues, or with
        ``by_headers``."""
        self.by_headers = by_headers
        """True if the queues depend on the headers of each message."""
        self.route: Route | None = None
        """Route of the messages, as of the state ``as_of`` of all routes."""
        self.as_of = -1


class Topology:
    """The exchanges of the node. It finds the queues of messages, and checks no permissions. Event loop's thread
    only."""

    def __init__(self, targets: Callable[[frozenset[str]], BoundQueues | None]) -> None:
        """Begin with the predeclared exchanges.

        Args:
            targets: names of queues -> targets of routes to them; None for no queue.
        """
        self._targets = targets
        self.exchanges: dict[str, Exchange] = {
            name: Exchange(ExchangeDefinition(name, kind, True, False, False, None, *_NODE))
            for name, kind in PREDECLARED.items()
        }
        self._destinations: dict[tuple[str, bool], Destination] = {}
        """Name, and whether it is an exchange -> destination of bindings."""
        self._alternates: dict[str, dict[str, None]] = {}
        """Exchange -> exchanges that have it as their alternate."""
        self._known = 0
        self.steps = 0
        """Cost of all look-ups so far."""
        self._watchers: dict[str, Callable[[], None]] = {}
        self.remembering: set[Remembering] = set()
        """Holders of remembered routes, which changes are reported to."""

    def watch(self, exchange: str, callback: Callable[[], None]) -> None:
        """Call back when the routes of an exchange's messages may have changed."""
        self._watchers[exchange] = callback

    # --- look-up of declarations

    def exchange(self, name: str) -> Exchange:
        """Return an exchange.

        Raises:
            QueueError: there is none of that name.
        """
        found = self.exchanges.get(name)
        if found is None:
            raise QueueError(Reason.NOT_FOUND, f"no exchange {name!r}: declare it first")
        return found

    def definition(self, name: str | None) -> ExchangeDefinition | None:
        """Return the declaration of an exchange; None where there is none of that name."""
        found = None if name is None else self.exchanges.get(name)
        return None if found is None else found.definition

    def bindings(self) -> Iterator[BindingDefinition]:
        """Yield all bindings."""
        for exchange in self.exchanges.values():
            for bindings in exchange.bindings.values():
                yield from bindings

    # --- changes

    def add_exchange(self, definition: ExchangeDefinition) -> None:
        """Add an exchange of a new name."""
        self.exchanges[definition.name] = Exchange(definition)
        if definition.alternate is not None:
            self._alternates.setdefault(definition.alternate, {})[definition.name] = None
        self.changed([definition.name])

    def remove_exchange(self, exchange: Exchange) -> None:
        """Remove an exchange. The caller removes the bindings from it and to it, and calls ``changed``."""
        name = exchange.name
        self._forget_known(exchange)
        if exchange.definition.alternate is not None:
            of_alternate = self._alternates[exchange.definition.alternate]
            del of_alternate[name]
            if not of_alternate:
                del self._alternates[exchange.definition.alternate]
        del self.exchanges[name]

    def has(self, binding: BindingDefinition) -> bool:
        """Return whether a binding exists."""
        to = self._destinations.get((binding.destination, binding.to_exchange))
        return to is not None and binding in self.exchanges[binding.source].bindings.get(to, ())

    def bind(self, binding: BindingDefinition, owner: Owner) -> None:
        """Add a binding that does not exist yet.

        Args:
            owner: owner of its destination.
        """
        self.restore(binding, owner)
        self.changed([binding.source])

    def restore(self, binding: BindingDefinition, owner: Owner) -> None:
        """Add a binding at a start, when no routes are remembered yet."""
        name = binding.destination, binding.to_exchange
        to = self._destinations.get(name)
        if to is None:
            to = self._destinations[name] = Destination(binding.destination, owner, is_exchange=binding.to_exchange)
        self.exchanges[binding.source].add(binding, to)

    def unbind(self, binding: BindingDefinition) -> None:
        """Remove an existing binding."""
        name = binding.destination, binding.to_exchange
        to = self._destinations[name]
        self.exchanges[binding.source].remove(binding, to)
        if not to.sources:
            del self._destinations[name]
        self.changed([binding.source])

    def take_destination(self, name: str, *, is_exchange: bool) -> Destination | None:
        """Stop routing to a deleted queue or exchange. Call ``changed`` with its sources afterwards.

        Returns:
            The destination, whose bindings the caller removes; None where nothing was bound to it.
        """
        to = self._destinations.pop((name, is_exchange), None)
        if to is not None:
            to.gone = True
        return to

    def changed(self, names: Iterable[str]) -> None:
        """Forget the routes of exchanges, and of all exchanges that lead to them."""
        self._forget_elsewhere()
        waiting = [*names]
        reached = {*waiting}
        while waiting:
            at = waiting.pop()
            to = self._destinations.get((at, True))
            before = () if to is None else [each.name for each in to.sources]
            for other in (*before, *self._alternates.get(at, ())):
                if other not in reached:
                    reached.add(other)
                    waiting.append(other)
        for each in reached:
            exchange = self.exchanges.get(each)
            if exchange is not None:
                self._forget_known(exchange)
            callback = self._watchers.get(each)
            if callback is not None:
                callback()

    def _forget_known(self, exchange: Exchange) -> None:
        self._known -= len(exchange.known)
        exchange.known.clear()

    def _forget_elsewhere(self) -> None:
        remembering, self.remembering = self.remembering, set()
        for each in remembering:
            each.clear()

    def forget(self) -> None:
        """Forget the routes of all exchanges."""
        self._forget_elsewhere()
        for exchange in self.exchanges.values():
            exchange.known.clear()
        self._known = 0

    def forget_key(self, exchange: str, key: str) -> None:
        """Forget the route of one key, of an exchange that no other leads to."""
        self._forget_elsewhere()
        self._known -= self.exchanges[exchange].known.pop(key, None) is not None

    # --- routes

    def known(self, exchange: Exchange, key: str) -> Known:
        """Return the route of an exchange's messages with one routing key, looked up if it is not remembered."""
        found: Known | None = exchange.known.get(key)
        if found is None:
            names, by_headers = self.walk(exchange, key, _NO_HEADERS)
            found = Known(exchange.name, key, None if by_headers else self._targets(names), by_headers=by_headers)
            if len(key) <= KEY_REMEMBERED_MAX:
                if self._known >= KNOWN_MAX:
                    self.forget()
                exchange.known[key] = found
                self._known += 1
        return found

    def walk(self, exchange: Exchange, key: str, headers: Mapping[str, Any]) -> tuple[frozenset[str], bool]:
        """Return the names of the queues that a message reaches, each once, and whether its headers matter."""
        names: set[str] = set()
        reached, waiting = {exchange.name}, [exchange]
        by_headers = False
        while waiting:
            at = waiting.pop()
            by_headers = by_headers or at.kind is ExchangeKind.HEADERS
            if at.name == DEFAULT_EXCHANGE:
                names.add(key)
                continue
            found = [to for to in at.match(key, headers) if not to.gone]
            self.steps += 1 + at.steps
            for to in found:
                if not to.is_exchange:
                    names.add(to.name)
                elif to.name not in reached:
                    reached.add(to.name)
                    waiting.append(self.exchanges[to.name])
            alternate = None if found else at.definition.alternate
            if alternate is not None and alternate in self.exchanges and alternate not in reached:
                reached.add(alternate)
                waiting.append(self.exchanges[alternate])
        return frozenset(names), by_headers
