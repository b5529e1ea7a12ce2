"""Bindings of headers exchanges, found by the headers of a message."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from math import isnan
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)
MATCHES = frozenset({"all", "any", "all-with-x", "any-with-x"})
"""Values of ``x-match``. Without ``-with-x``, headers that begin with ``x-`` are ignored."""
PAIRS_PER_STEP = 8
"""Number of headers compared in the time of a step."""
Pair = tuple[str, Hashable]
"""Name of a header, and its value (``_key``); None for a header that only has to exist."""


class HeadersMatch(NamedTuple):
    """Arguments of a binding to a headers exchange."""

    pairs: frozenset[Pair]
    matches_any: bool


def headers_match(arguments: Mapping[str, Any]) -> HeadersMatch:
    """Return the meaning of a binding's arguments in a headers exchange; ``x-match`` is in ``MATCHES`` or not there."""
    how = str(arguments.get("x-match", "all"))
    looks = how.endswith("-with-x")
    pairs = (
        (sys.intern(name), None if value is None else _key(value))
        for name, value in arguments.items()
        if name != "x-match" and (looks or not name.startswith("x-"))
    )
    return HeadersMatch(frozenset(pairs), how.startswith("any"))


class _Place(Generic[T]):
    """Bound things stored at one header and its value."""

    __slots__ = ("all", "any")

    def __init__(self) -> None:
        self.any: dict[T, int] = {}
        """Bound things that need no other header -> number of times."""
        self.all: dict[frozenset[Pair], dict[T, int]] = {}
        """Set of required headers -> bound things -> number of times."""


class HeadersBindings(Generic[T]):
    """Arguments of bindings, and the things bound by them.

    A binding that requires all of its headers is stored at the header that the fewest others share. So a message is
    compared only with bindings at its own headers, not with all. Bindings with equal requirements are stored together.
    """

    def __init__(self) -> None:
        self._places: dict[Pair, _Place[T]] = {}
        self._everything: dict[T, int] = {}
        self._where: dict[frozenset[Pair], Pair] = {}
        """Pairs of a binding that requires all of them -> the pair at which it is stored."""
        self.steps = 0
        """Number of headers and bindings examined by the last look-up; a comparison counts twice."""

    def add(self, arguments: Mapping[str, Any], bound: T) -> None:
        """Bind something; repeated calls are counted."""
        match = headers_match(arguments)
        if match.matches_any:
            for pair in match.pairs:
                _count(self._place(pair).any, bound, 1)
        elif not match.pairs:
            _count(self._everything, bound, 1)
        else:
            where = self._where[match.pairs] = self._stands_at(match.pairs)
            _count(self._place(where).all.setdefault(match.pairs, {}), bound, 1)

    def remove(self, arguments: Mapping[str, Any], bound: T) -> None:
        """Undo one ``add``."""
        match = headers_match(arguments)
        if match.matches_any:
            for pair in match.pairs:
                _count(self._places[pair].any, bound, -1)
                self._leave(pair)
        elif not match.pairs:
            _count(self._everything, bound, -1)
        else:
            where = self._where[match.pairs]
            here = self._places[where].all
            _count(here[match.pairs], bound, -1)
            if not here[match.pairs]:
                del here[match.pairs], self._where[match.pairs]
                self._leave(where)

    def match(self, headers: Mapping[str, Any]) -> set[T]:
        """Return the things bound by arguments that match a message's headers."""
        found = set(self._everything)
        steps = len(found) + len(headers)
        had: set[Pair] = {(name, None) for name in headers}
        had.update((name, _key(value)) for name, value in headers.items())
        for pair in had:
            place = self._places.get(pair)
            if place is not None:
                found.update(place.any)
                steps += len(place.any) + 2 * len(place.all)
                for pairs, bound in place.all.items():
                    if pairs <= had:
                        found.update(bound)
        self.steps = steps
        return found

    def stands_at(self, arguments: Mapping[str, Any]) -> list[tuple[Pair, int]]:
        """Return the pairs at which a binding is or would be stored, each with the cost of examining it there; empty
        where it is the only thing examined."""
        pairs, matches_any = headers_match(arguments)
        if len(pairs) <= 1:
            return []
        if matches_any:
            return [(pair, 1) for pair in pairs]
        return [(self._stands_at(pairs), 1 + len(pairs) // PAIRS_PER_STEP)]

    def _stands_at(self, pairs: frozenset[Pair]) -> Pair:
        return self._where.get(pairs) or min(pairs, key=self._crowd)

    def _crowd(self, pair: Pair) -> tuple[int, str]:
        """Return the number of others at a pair, and its name, which makes the choice deterministic."""
        place = self._places.get(pair)
        return 0 if place is None else len(place.all), pair[0]

    def _place(self, pair: Pair) -> _Place[T]:
        found = self._places.get(pair)
        if found is None:
            found = self._places[pair] = _Place()
        return found

    def _leave(self, pair: Pair) -> None:
        place = self._places[pair]
        if not place.any and not place.all:
            del self._places[pair]


def _key(value: Any) -> Hashable:
    """Return a key that is the same for values that are equal in a table of AMQP, and never None."""
    if isinstance(value, bool):
        return (value,)  # True equals 1 in Python, but not in a table of AMQP
    if isinstance(value, int | float | str | bytes) and not (isinstance(value, float) and isnan(value)):
        return value
    # Arrays and tables never match: a stored message has no such headers. NaN does not equal itself.
    return (repr(value),)


def _count(counts: dict[T, int], bound: T, change: int) -> None:
    left = counts.get(bound, 0) + change
    if left:
        counts[bound] = left
    else:
        del counts[bound]
