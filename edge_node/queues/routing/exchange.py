"""One exchange: its bindings, and which of them a message matches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from weft.edge_node.queues.definitions import BindingDefinition, ExchangeDefinition, ExchangeKind
from weft.edge_node.queues.routing.patterns import PatternTree


class Destination(NamedTuple):
    """A queue or an exchange, by name."""

    name: str
    is_exchange: bool


class HeadersMatch(NamedTuple):
    """Arguments of a binding to a headers exchange."""

    wanted: dict[str, Any]
    """Header -> value; None for a header that only has to be there."""
    matches_any: bool

    def matches(self, headers: Mapping[str, Any]) -> bool:
        """Return whether a message with these headers goes where the binding leads."""
        found = (
            name in headers and (value is None or _equal(headers[name], value)) for name, value in self.wanted.items()
        )
        return any(found) if self.matches_any else all(found)


def _equal(had: Any, wanted: Any) -> bool:
    # True is 1 in Python, and not in a table of AMQP.
    return had == wanted and isinstance(had, bool) == isinstance(wanted, bool)


MATCHES = frozenset({"all", "any", "all-with-x", "any-with-x"})
"""Values of ``x-match``. Without ``-with-x``, headers that begin with ``x-`` are not looked at."""


def headers_match(arguments: Mapping[str, Any]) -> HeadersMatch:
    """Return what a binding's arguments say to a headers exchange; ``x-match`` is in ``MATCHES`` or not there."""
    how = str(arguments.get("x-match", "all"))
    looks = how.endswith("-with-x")
    wanted = {
        name: value for name, value in arguments.items() if name != "x-match" and (looks or not name.startswith("x-"))
    }
    return HeadersMatch(wanted, how.startswith("any"))


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
        self._by_headers: dict[BindingDefinition, HeadersMatch] = {}

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
            self._by_headers[binding] = headers_match(binding.values)

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
            del self._by_headers[binding]

    def match(self, key: str, headers: Mapping[str, Any]) -> set[Destination]:
        """Return where a message goes from here."""
        if self.kind is ExchangeKind.DIRECT:
            return set(self._by_key.get(key, ()))
        if self.kind is ExchangeKind.FANOUT:
            return set(self._everything)
        if self.kind is ExchangeKind.TOPIC:
            return self._patterns.match(key)
        return {
            Destination(binding.destination, binding.to_exchange)
            for binding, wanted in self._by_headers.items()
            if wanted.matches(headers)
        }


def _count(counts: dict[Destination, int], to: Destination, change: int) -> None:
    left = counts.get(to, 0) + change
    if left:
        counts[to] = left
    else:
        del counts[to]
