"""One exchange: its bindings, and the matching of messages against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.bounds import Owner
from weft.edge_node.queues.definitions import BindingDefinition, ExchangeDefinition, ExchangeKind
from weft.edge_node.queues.routing.headers import HeadersBindings, Pair
from weft.edge_node.queues.routing.patterns import PatternTree


class Destination:
    """A queue or an exchange as destination of bindings, as long as it exists. Compared by identity: another may have
    its name while its bindings are being removed."""

    __slots__ = ("gone", "is_exchange", "name", "owner", "sources")

    def __init__(self, name: str, owner: Owner, *, is_exchange: bool) -> None:
        self.name = name
        self.owner = owner
        """Owner that the bindings to this destination are charged to."""
        self.is_exchange = is_exchange
        self.sources: dict[Exchange, None] = {}
        """Exchanges with bindings to this destination."""
        self.gone = False
        """True once it was deleted: messages do not go there, although bindings may remain."""


class Exchange:
    """An exchange. ``Topology`` changes it. Compared by identity."""

    __slots__ = ("_by_headers", "_by_key", "_everything", "_patterns", "bindings", "definition", "known", "steps")

    def __init__(self, definition: ExchangeDefinition) -> None:
        self.definition = definition
        self.bindings: dict[Destination, dict[BindingDefinition, None]] = {}
        self.known: dict[str, Any] = {}
        """Routing key -> remembered result of its look-up; maintained by ``Topology``."""
        self.steps = 0
        """Cost of the last look-up."""
        self._by_key: dict[str, dict[Destination, int]] = {}
        self._everything: dict[Destination, int] = {}
        self._patterns: PatternTree[Destination] = PatternTree()
        self._by_headers = HeadersBindings[Destination]()

    @property
    def name(self) -> str:
        """Return the exchange's name."""
        return self.definition.name

    @property
    def kind(self) -> ExchangeKind:
        """Return the exchange's type."""
        return self.definition.kind

    def add(self, binding: BindingDefinition, to: Destination) -> None:
        """Add a binding that does not exist yet."""
        self.bindings.setdefault(to, {})[binding] = None
        to.sources[self] = None
        if self.kind is ExchangeKind.DIRECT:
            _count(self._by_key.setdefault(binding.key, {}), to, 1)
        elif self.kind is ExchangeKind.FANOUT:
            _count(self._everything, to, 1)
        elif self.kind is ExchangeKind.TOPIC:
            self._patterns.add(binding.key, to)
        else:
            self._by_headers.add(binding.values, to)

    def remove(self, binding: BindingDefinition, to: Destination) -> None:
        """Remove an existing binding."""
        found = self.bindings[to]
        del found[binding]
        if not found:
            del self.bindings[to], to.sources[self]
        self.forget(binding, to)

    def take(self, to: Destination) -> dict[BindingDefinition, None]:
        """Remove all bindings to a destination from ``bindings`` at once, and return them. Call ``forget`` for each."""
        del to.sources[self]
        return self.bindings.pop(to)

    def forget(self, binding: BindingDefinition, to: Destination) -> None:
        """Remove a binding from the look-up tables."""
        if self.kind is ExchangeKind.DIRECT:
            found = self._by_key[binding.key]
            _count(found, to, -1)
            if not found:
                del self._by_key[binding.key]
        elif self.kind is ExchangeKind.FANOUT:
            _count(self._everything, to, -1)
        elif self.kind is ExchangeKind.TOPIC:
            self._patterns.remove(binding.key, to)
        else:
            self._by_headers.remove(binding.values, to)

    def match(self, key: str, headers: Mapping[str, Any]) -> set[Destination]:
        """Return the destinations of a message; some may be ``gone``."""
        if self.kind is ExchangeKind.DIRECT:
            found = set(self._by_key.get(key, ()))
        elif self.kind is ExchangeKind.FANOUT:
            found = set(self._everything)
        elif self.kind is ExchangeKind.TOPIC:
            found = self._patterns.match(key)
            self.steps = self._patterns.steps
            return found
        else:
            found = self._by_headers.match(headers)
            self.steps = self._by_headers.steps
            return found
        self.steps = len(found)
        return found

    def stands_at(self, binding: BindingDefinition) -> list[tuple[Pair, int]]:
        """Return the places of a binding in a headers exchange, present or future, and its cost at each."""
        return self._by_headers.stands_at(binding.values)


def _count(counts: dict[Destination, int], to: Destination, change: int) -> None:
    left = counts.get(to, 0) + change
    if left:
        counts[to] = left
    else:
        del counts[to]
