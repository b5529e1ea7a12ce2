"""Bindings of headers exchanges, found by the headers of a message."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)
MATCHES = frozenset({"all", "any", "all-with-x", "any-with-x"})
"""Values of ``x-match``. Without ``-with-x``, headers that begin with ``x-`` are not looked at."""


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


def headers_match(arguments: Mapping[str, Any]) -> HeadersMatch:
    """Return what a binding's arguments say to a headers exchange; ``x-match`` is in ``MATCHES`` or not there."""
    how = str(arguments.get("x-match", "all"))
    looks = how.endswith("-with-x")
    wanted = {
        name: value for name, value in arguments.items() if name != "x-match" and (looks or not name.startswith("x-"))
    }
    return HeadersMatch(wanted, how.startswith("any"))


class _Place(Generic[T]):
    """Bound things at one header and its value."""

    __slots__ = ("all", "any")

    def __init__(self) -> None:
        self.any: dict[T, int] = {}
        """Bound things that need no other header -> number of times."""
        self.all: list[tuple[HeadersMatch, T]] = []


class HeadersBindings(Generic[T]):
    """Arguments of bindings, and what is bound by them.

    A binding that wants all of its headers stands at the one of them that fewest others stand at, so a message is held
    against those that share it, and not against all.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, Hashable], _Place[T]] = {}
        self._everything: dict[T, int] = {}
        self._where: dict[tuple[tuple[tuple[str, Hashable], ...], T], list[tuple[str, Hashable]]] = {}
        """Pairs of a binding that wants all, and the bound thing -> the pairs at which it stands."""

    def add(self, arguments: Mapping[str, Any], bound: T) -> None:
        """Bind something; the same again counts."""
        match = headers_match(arguments)
        pairs = _pairs(match.wanted)
        if match.matches_any:
            for pair in pairs:
                _count(self._place(pair).any, bound, 1)
        elif not pairs:
            _count(self._everything, bound, 1)
        else:
            rarest = min(pairs, key=lambda pair: len(self._place(pair).all))
            self._place(rarest).all.append((match, bound))
            self._where.setdefault((pairs, bound), []).append(rarest)

    def remove(self, arguments: Mapping[str, Any], bound: T) -> None:
        """Take back what ``add`` did, once."""
        match = headers_match(arguments)
        pairs = _pairs(match.wanted)
        if match.matches_any:
            for pair in pairs:
                _count(self._places[pair].any, bound, -1)
        elif not pairs:
            _count(self._everything, bound, -1)
        else:
            where = self._where[pairs, bound]
            self._places[where.pop()].all.remove((match, bound))
            if not where:
                del self._where[pairs, bound]
        for pair in pairs:
            place = self._places.get(pair)
            if place is not None and not place.any and not place.all:
                del self._places[pair]

    def match(self, headers: Mapping[str, Any]) -> set[T]:
        """Return what is bound by arguments that match a message's headers."""
        found = set(self._everything)
        for name, value in headers.items():
            for pair in ((name, _key(value)), (name, None)):
                place = self._places.get(pair)
                if place is not None:
                    found.update(place.any)
                    found.update(bound for match, bound in place.all if bound not in found and match.matches(headers))
        return found

    def _place(self, pair: tuple[str, Hashable]) -> _Place[T]:
        found = self._places.get(pair)
        if found is None:
            found = self._places[pair] = _Place()
        return found


def _equal(had: Any, wanted: Any) -> bool:
    # True is 1 in Python, and not in a table of AMQP.
    return had == wanted and isinstance(had, bool) == isinstance(wanted, bool)


def _pairs(wanted: Mapping[str, Any]) -> tuple[tuple[str, Hashable], ...]:
    return tuple((name, None if value is None else _key(value)) for name, value in sorted(wanted.items()))


def _key(value: Any) -> Hashable:
    """Return the same for values that are equal in a table of AMQP, and never None."""
    if isinstance(value, bool | int | float | str | bytes):
        return isinstance(value, bool), value
    return repr(value)  # arrays and tables: no header of a stored message is one


def _count(counts: dict[T, int], bound: T, change: int) -> None:
    left = counts.get(bound, 0) + change
    if left:
        counts[bound] = left
    else:
        del counts[bound]
