"""Exchanges and bindings: how a message finds its queues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from math import isnan
from typing import Any, Generic, NamedTuple, TypeVar

from weft.bounds import Bound, Owner, OwnerKind
from weft.edge_node.ingest.record import WIDE, Remembering, Route
from weft.edge_node.queues.definitions import (
    DEFAULT_EXCHANGE,
    PREDECLARED,
    QUEUES,
    BindingDefinition,
    ExchangeDefinition,
    ExchangeKind,
    QueueDefinition,
    QueueError,
    Reason,
    headers_of_route,
    topic_of,
)
from weft.edge_node.queues.queue import Queue
from weft.edge_node.queues.ready import ENTRY_BYTES
from weft.protocols.batch import HeaderPairs, HeaderValue, read_u32s, u32s
from weft.protocols.message_headers import own_name

# Keys of topic bindings in a tree. ``*`` is one word, ``#`` any number of them, also in the middle.

T = TypeVar("T", bound=Hashable)


class _Node(Generic[T]):
    __slots__ = ("bound", "loop", "star", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node[T]] | None = None
        """Word -> node that follows it; None without any, as in most nodes."""
        self.star: _Node[T] | None = None
        self.loop: _Node[T] | None = None
        """Node of ``#``, which matches further words."""
        self.bound: dict[T, int] | None = None
        """Bound things with the key that ends here -> number of times."""

    def get(self, word: str) -> _Node[T] | None:
        """Return the node that follows a word of a pattern."""
        if word == "*":
            return self.star
        if word == "#":
            return self.loop
        return None if self.words is None else self.words.get(word)

    def set(self, word: str, node: _Node[T] | None) -> None:
        """Set the node that follows a word of a pattern; None removes it."""
        if word == "*":
            self.star = node
        elif word == "#":
            self.loop = node
        elif node is None:
            assert self.words is not None
            del self.words[word]
            if not self.words:
                self.words = None
        elif self.words is None:
            self.words = {word: node}
        else:
            self.words[word] = node

    @property
    def continues(self) -> bool:
        """Return whether a word follows."""
        return self.words is not None or self.star is not None

    @property
    def is_empty(self) -> bool:
        """Return whether no pattern needs the node."""
        return self.bound is None and self.loop is None and not self.continues


class PatternTree(Generic[T]):
    """Patterns and the things bound by them.

    A look-up follows all patterns side by side, word by word. It takes time for the nodes that match on the way, and
    for each ``#`` that is not the last word, with every word that follows it. ``steps`` counts both.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self.steps = 0
        """Number of nodes that the last look-up passed."""

    def add(self, pattern: str, bound: T) -> None:
        """Bind something by a pattern; repeated calls are counted."""
        node = self._root
        for word in words_of(pattern):
            found = node.get(word)
            if found is None:
                found = _Node()
                node.set(word, found)
            node = found
        if node.bound is None:
            node.bound = {}
        node.bound[bound] = node.bound.get(bound, 0) + 1

    def remove(self, pattern: str, bound: T) -> None:
        """Undo one ``add``."""
        node, way = self._root, list[tuple[_Node[T], str]]()
        for word in words_of(pattern):
            way.append((node, word))
            found = node.get(word)
            assert found is not None, f"{pattern!r} is not bound"
            node = found
        assert node.bound is not None, f"{pattern!r} is not bound"
        node.bound[bound] -= 1
        if not node.bound[bound]:
            del node.bound[bound]
        if not node.bound:
            node.bound = None
        for parent, word in reversed(way):
            if not node.is_empty:
                break
            parent.set(word, None)
            node = parent

    def match(self, key: str) -> set[T]:
        """Return the things bound by patterns that match a key."""
        active = [self._root]
        loops: dict[_Node[T], None] = {}
        waiting: list[_Node[T]] = []
        steps = 0
        for word in key.split(".") if key else ():
            following: list[_Node[T]] = []
            for node in active:
                loop = node.loop
                if loop is not None and loop not in loops:
                    loops[loop] = None
                    if loop.continues:
                        waiting.append(loop)
            steps += len(active) + len(waiting)
            # A node has one parent, so each word reaches it once.
            for nodes in (active, waiting):
                for node in nodes:
                    if node.words is not None and (found := node.words.get(word)) is not None:
                        following.append(found)
                    if node.star is not None:
                        following.append(node.star)
            active = following
            if not active and not waiting:
                break
        ends = [*loops, *active]
        self.steps = steps + len(ends)
        ends += (node.loop for node in active if node.loop is not None and node.loop not in loops)
        return {bound for node in ends if node.bound is not None for bound in node.bound}


def words_of(pattern: str) -> list[str]:
    """Return the words of a pattern. ``#.#`` matches the same as ``#`` and is reduced to it, so that the tree has no
    redundant chains."""
    words = pattern.split(".") if pattern else []
    return [word for at, word in enumerate(words) if word != "#" or not at or words[at - 1] != "#"]


# Bindings of headers exchanges, found by the headers of a message.

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


# One exchange: its bindings, and the matching of messages against them.


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
            _count_destination(self._by_key.setdefault(binding.key, {}), to, 1)
        elif self.kind is ExchangeKind.FANOUT:
            _count_destination(self._everything, to, 1)
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
            _count_destination(found, to, -1)
            if not found:
                del self._by_key[binding.key]
        elif self.kind is ExchangeKind.FANOUT:
            _count_destination(self._everything, to, -1)
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


def _count_destination(counts: dict[Destination, int], to: Destination, change: int) -> None:
    left = counts.get(to, 0) + change
    if left:
        counts[to] = left
    else:
        del counts[to]


# The queues of a route: the choice of those that take a message, and their names in its record.


class QueueSet:
    """Queues that take a message."""

    __slots__ = ("header", "queues")

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.queues = tuple(queues)
        self.header = (QUEUES, _pack([queue.number for queue in self.queues]))
        """Header of the message's record."""


def _pack(numbers: list[int]) -> HeaderValue:
    return numbers[0] if len(numbers) == 1 else u32s(numbers).tobytes()


def numbers_in(headers: HeaderPairs) -> Iterable[int]:
    """Return the numbers of the queues that a record is for."""
    for name, value in reversed(headers):
        if name == QUEUES:
            if type(value) is int:
                return (value,)
            if isinstance(value, bytes) and not len(value) % 4:
                return read_u32s(value)
    return ()


class Admission:
    """Choice of the queues that take a message: the messages of an owner's queues are bounded, and queues may have
    limits.

    Args:
        waiting: bytes of messages in queues.
    """

    def __init__(self, waiting: Bound) -> None:
        self.waiting = waiting
        self.not_taken = 0
        """Messages that queues rejected, since the start."""
        self.reserved: dict[Queue, None] = {}
        """Queues with messages that are accepted and not stored."""

    def takes(self, queue: Queue, size: int) -> bool:
        """Return whether a queue takes one more message, and count a rejection."""
        arguments = queue.definition.arguments
        if arguments.rejects and queue.is_full(queue.reserved + 1, size):
            queue.refused()
            self.not_taken += 1
            return False
        if not self.has_share(queue, size):
            return False
        if arguments.rejects:
            queue.reserve()
            self.reserved[queue] = None
        return True

    def has_share(self, queue: Queue, size: int) -> bool:
        """Return whether a queue's owner may have one more message in queues, and count a rejection."""
        owner = queue.owner
        if self.waiting.fits(owner, size + ENTRY_BYTES):
            return True
        queue.refused()
        self.not_taken += 1
        self.waiting.refuse(owner, size + ENTRY_BYTES)
        return False

    def stored(self) -> None:
        """Forget the accepted messages: they are in the queues now, or were refused."""
        if self.reserved:
            for queue in self.reserved:
                queue.forget_reserved()
            self.reserved.clear()


class BoundQueues:
    """Queues that the messages of a route go to.

    Args:
        reserved: whether ``Admission.takes`` has admitted each message already, for a publisher that learns the answer.
    """

    __slots__ = ("_admission", "all", "is_of_topic", "queues", "reserved", "width")

    def __init__(self, queues: Iterable[Queue], admission: Admission, *, reserved: bool) -> None:
        self.all = QueueSet(queues)
        self.queues = self.all.queues
        self.width = len(self.queues)
        self._admission = admission
        self.reserved = reserved
        self.is_of_topic = not reserved

    def admit(self, _headers: HeaderPairs, size: int) -> QueueSet | None:
        """Return the queues that take a message, None for none of them."""
        takes = self._admission.takes
        found = [queue for queue in self.queues if not queue.deleted and (self.reserved or takes(queue, size))]
        if len(found) == len(self.queues):
            return self.all
        return QueueSet(found) if found else None

    def admit_all(self, size: int) -> QueueSet | None:
        """Return all queues if each of them takes messages of up to ``size`` bytes; None where each has to be asked
        for."""
        fits = self._admission.waiting.fits
        for queue in self.queues:
            if queue.deleted or not (
                self.reserved or (not queue.definition.arguments.rejects and fits(queue.owner, size + ENTRY_BYTES))
            ):
                return None
        return self.all

    def withdraw(self) -> None:
        """Give back the room that ``Admission.takes`` has reserved for a message, which is not stored after all."""
        if self.reserved:
            for queue in self.queues:
                queue.withdraw()


class QueuesByHeaders:
    """Queues that depend on the headers of each message, for a publisher that does not learn whether they take it.

    Args:
        find: headers -> the queues of a message that has them.
    """

    __slots__ = ("_find", "width")
    is_of_topic = True

    def __init__(self, find: Callable[[Mapping[str, Any]], BoundQueues | None]) -> None:
        self._find = find
        self.width = WIDE  # unknown before there is a message

    def admit(self, headers: HeaderPairs, size: int) -> QueueSet | None:
        """Return the queues that take a message, None for none of them."""
        found = self._find(own_headers(headers))
        return None if found is None else found.admit(headers, size)

    def admit_all(self, _size: int) -> QueueSet | None:
        """Return None: each message has its own queues."""
        return None

    def withdraw(self) -> None:
        """Do nothing: nothing is reserved."""


def own_headers(headers: HeaderPairs) -> Mapping[str, Any]:
    """Return the publisher's own headers, by their names."""
    return {own: value for name, value in headers if (own := own_name(name)) is not None}


# Exchanges and bindings, and the look-up of a message's queues.

KNOWN_MAX = 100_000
"""Maximum number of routing keys whose queues are remembered; beyond it, all are forgotten and looked up again."""
KEY_REMEMBERED_MAX = 512
_NODE = (OwnerKind.USER, "")
_NO_HEADERS: Mapping[str, Any] = {}


class CachedRoute:
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
    """The exchanges, queues and bindings of the node. It finds the queues of messages, and checks no permissions. Event
    loop's thread only.

    Args:
        admission: chooses the queues that take a message.
    """

    def __init__(self, admission: Admission) -> None:
        """Begin with the predeclared exchanges, and without queues."""
        self.admission = admission
        self.queues: dict[str, Queue] = {}
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

    def owner_of(self, binding: BindingDefinition) -> Owner:
        """Return the owner that a binding is charged to: the one of its destination."""
        if binding.to_exchange:
            return self.exchanges[binding.destination].definition.owner
        return self.queues[binding.destination].definition.owner

    # --- what outlives a restart

    def is_kept(self, binding: BindingDefinition) -> bool:
        """Return whether an existing binding outlives a restart: if both of its ends do."""
        source = self.exchanges[binding.source].definition.durable
        if binding.to_exchange:
            return source and self.exchanges[binding.destination].definition.durable
        return source and self.queues[binding.destination].kept

    def kept_definitions(self) -> Iterator[ExchangeDefinition | QueueDefinition]:
        """Yield the exchanges and queues that outlive a restart."""
        for name, exchange in self.exchanges.items():
            if exchange.definition.durable and name not in PREDECLARED:
                yield exchange.definition
        for queue in self.kept_queues():
            yield queue.definition

    def kept_bindings(self) -> Iterator[Collection[BindingDefinition]]:
        """Yield the bindings that outlive a restart, grouped by exchange and destination: a group may have 65,536."""
        for exchange in self.exchanges.values():
            if exchange.definition.durable:
                yield from (each for each in exchange.bindings.values() if self.is_kept(next(iter(each))))

    def kept_queues(self) -> list[Queue]:
        """Return the queues that outlive a restart."""
        return [queue for queue in self.queues.values() if queue.kept]

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

    def targets(self, names: frozenset[str], *, reserved: bool) -> BoundQueues | None:
        """Return the receiver of messages for queues; None when no queue has one of these names.

        Args:
            reserved: as for ``BoundQueues``.
        """
        found = [self.queues[name] for name in sorted(names) if name in self.queues]
        return BoundQueues(found, self.admission, reserved=reserved) if found else None

    def known(self, exchange: Exchange, key: str) -> CachedRoute:
        """Return the route of an exchange's messages with one routing key, looked up if it is not remembered."""
        found: CachedRoute | None = exchange.known.get(key)
        if found is None:
            names, by_headers = self.walk(exchange, key, _NO_HEADERS)
            found = CachedRoute(
                exchange.name, key, None if by_headers else self.targets(names, reserved=True), by_headers=by_headers
            )
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
