"""One exchange: its bindings, and which of them a message matches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from weft.edge_node.queues.definitions import BindingDefinition, ExchangeDefinition, ExchangeKind
from weft.edge_node.queues.routing.headers import HeadersBindings
from weft.edge_node.queues.routing.patterns import PatternTree


class Destination(NamedTuple):
    """A queue or an exchange, by name."""

    name: str
    is_exchange: bool


class Exchange:
    """An exchange. ``Topology`` changes it."""

    __slots__ = ("_by_headers", "_by_key", "_everything", "_patterns", "bindings", "definition", "known")

    def __init__(self, definition: ExchangeDefinition) -> None:
        self.definition = definition
        self.bindings: set[BindingDefinition] = set()
        self.known: dict[str, Any] = {}
        """Routing key -> where its messages go, as far as was asked; ``Topology`` keeps it."""
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

    def add(self, binding: BindingDefinition) -> None:
        """Add a binding that is not there."""
        self.bindings.add(binding)
        to = Destination(binding.destination, binding.to_exchange)
        if self.kind is ExchangeKind.DIRECT:
            _count(self._by_key.setdefault(binding.key, {}), to, 1)
        elif self.kind is ExchangeKind.FANOUT:
            _count(self._everything, to, 1)
        elif self.kind is ExchangeKind.TOPIC:
            self._patterns.add(binding.key, to)
        else:
            self._by_headers.add(binding.values, to)

    def remove(self, binding: BindingDefinition) -> None:
        """Remove a binding that is there."""
        self.bindings.remove(binding)
        to = Destination(binding.destination, binding.to_exchange)
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
        """Return where a message goes from here."""
        if self.kind is ExchangeKind.DIRECT:
            return set(self._by_key.get(key, ()))
        if self.kind is ExchangeKind.FANOUT:
            return set(self._everything)
        if self.kind is ExchangeKind.TOPIC:
            return self._patterns.match(key)
        return self._by_headers.match(headers)


def _count(counts: dict[Destination, int], to: Destination, change: int) -> None:
    left = counts.get(to, 0) + change
    if left:
        counts[to] = left
    else:
        del counts[to]
