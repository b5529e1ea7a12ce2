"""Bounds on exchanges, queues and bindings, and on the content of queues: totals, and the share of one owner in
each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from weft.bounds import Bound, Owner, Quota, Refusals, RoundRobin
from weft.config.limits import EdgeLimits
from weft.config.listeners import QueueBounds
from weft.config.models import EdgeConfig
from weft.config.streams import Disk
from weft.edge_node.ingest.ingest import TickBatch
from weft.edge_node.queues.definitions import BindingDefinition, ExchangeKind, QueueError, Reason
from weft.edge_node.queues.exchange import Exchange, Pair, words_of
from weft.edge_node.sessions.backlog import Backlog
from weft.edge_node.streams import QUEUES_STATE_STREAM, QUEUES_STREAM
from weft.edge_node.timing import TimerWheel
from weft.storage.segment_log import SegmentLog

# Bound on the cost that bindings add to one look-up of a message's queues, for any routing key and headers.
#
# *Topic exchanges.* The shape of a pattern is the list of its words, each ``*`` or not. Among all prefixes of patterns
# with one shape, a key passes at most one node of the tree: so it passes as many nodes as there are shapes, for any
# number of bindings. Behind ``#`` the same holds for each word of the key. Behind a second ``#``, several nodes of one
# shape may be passed with one word, but only one of the words that follow a node: such patterns count by their prefix.
# Shapes of up to ``COMMON_WORDS`` words with up to ``COMMON_STARS`` of them ``*`` are free: at most 14 nodes.
#
# *Headers exchanges.* A binding that requires several headers is stored at one of them, and compared with each message
# that has it. A message has one value of each header. So among all values of a header the one with the most bindings
# counts; the first binding at each is free, as a message takes time for each of its headers anyway. A binding that
# requires any of several headers is found once more at each.
#
# Each cost is charged to the owner of the bindings' destination.

COMMON_WORDS = 4
COMMON_STARS = 1
LOOP_STEPS = 32
"""Number of steps counted for a node that is examined with every word of a key: few keys have more words."""

_Cost = tuple[Exchange, Hashable]


class LookUpCost:
    """Account of the cost that the bindings of all owners add to a look-up. Event loop's thread only.

    Args:
        quota: steps beside the common ones that one look-up may take, because of all owners together and of one.
        refusals: counts refusals.
    """

    def __init__(self, quota: Quota, refusals: Refusals) -> None:
        self.quota = quota
        self.used = 0
        """Maximum number of steps of one look-up beside the common ones."""
        self._refusals = refusals
        self._owners: dict[Owner, dict[_Cost, int]] = {}
        """Owner -> its costs -> number of its bindings with each."""
        self._taken: dict[Owner, int] = {}
        self._all: dict[_Cost, int] = {}
        """Cost -> number of owners charged with it."""
        self._standing: dict[tuple[Exchange, Pair, Owner], int] = {}
        """Header and value -> cost of an owner's bindings stored there."""

    def of(self, owner: Owner) -> int:
        """Return the steps charged to an owner."""
        return self._taken.get(owner, 0)

    def take(self, owner: Owner, exchange: Exchange, binding: BindingDefinition) -> bool:
        """Charge an owner with a binding, before the exchange has it, if both bounds allow it. Return whether they do,
        and count a refusal."""
        places = _places(exchange, binding)
        costs = list(self._costs(owner, exchange, binding, places, 1))
        bound = self._exceeded(owner, costs)
        if bound is not None:
            what = f"{self.quota.what} like {binding.key[:60]!r} of exchange {exchange.name[:60]!r}"
            self._refusals.note(bound, owner, f"no room for more {what}")
            return False
        self._hold(owner, exchange, costs, places)
        return True

    def hold(self, owner: Owner, exchange: Exchange, binding: BindingDefinition) -> None:
        """Charge an owner with a binding regardless of the bounds, before the exchange has it."""
        places = _places(exchange, binding)
        self._hold(owner, exchange, self._costs(owner, exchange, binding, places, 1), places)

    def free(self, owner: Owner, exchange: Exchange, binding: BindingDefinition) -> None:
        """Release the cost of a binding, while the exchange still has it."""
        own = self._owners.get(owner, {})
        places = _places(exchange, binding)
        for cost, steps in self._costs(owner, exchange, binding, places, -1):
            own[cost] -= 1
            if own[cost]:
                continue
            del own[cost]
            self._taken[owner] -= steps
            self._all[cost] -= 1
            if not self._all[cost]:
                del self._all[cost]
                self.used -= steps
        if not own:
            self._owners.pop(owner, None)
            self._taken.pop(owner, None)
        for pair, steps in places:
            place = exchange, pair, owner
            self._standing[place] -= steps
            if not self._standing[place]:
                del self._standing[place]

    def _exceeded(self, owner: Owner, costs: list[tuple[_Cost, int]]) -> str | None:
        """Return the bound that leaves an owner no more room; None if there is room."""
        own = self._owners.get(owner, {})
        new = [(cost, steps) for cost, steps in costs if cost not in own]
        if not new:
            return None
        if self.of(owner) + sum(steps for _, steps in new) > self.quota.share:
            return self.quota.bound(is_share=True)
        if self.used + sum(steps for cost, steps in new if cost not in self._all) > self.quota.total:
            return self.quota.bound(is_share=False)
        return None

    def _hold(
        self, owner: Owner, exchange: Exchange, costs: Iterable[tuple[_Cost, int]], places: list[tuple[Pair, int]]
    ) -> None:
        own = self._owners.get(owner)
        for cost, steps in costs:
            if own is None:
                own = self._owners[owner] = {}
            own[cost] = own.get(cost, 0) + 1
            if own[cost] > 1:
                continue
            self._taken[owner] = self._taken.get(owner, 0) + steps
            self._all[cost] = self._all.get(cost, 0) + 1
            if self._all[cost] == 1:
                self.used += steps
        for pair, steps in places:
            place = exchange, pair, owner
            self._standing[place] = self._standing.get(place, 0) + steps

    def _costs(
        self, owner: Owner, exchange: Exchange, binding: BindingDefinition, places: list[tuple[Pair, int]], change: int
    ) -> Iterator[tuple[_Cost, int]]:
        """Yield the costs of a binding that is about to be added (1) or removed (-1), each with its steps."""
        if exchange.kind is ExchangeKind.TOPIC:
            for shape, steps in _of_pattern(binding.key):
                yield (exchange, shape), steps
        for pair, steps in places:
            before = self._standing.get((exchange, pair, owner), 0)
            first = before if change > 0 else before - steps
            for rank in range(max(first, 1), first + steps):
                yield (exchange, (pair[0], owner, rank)), 1


def _places(exchange: Exchange, binding: BindingDefinition) -> list[tuple[Pair, int]]:
    """Return the places at which a binding by headers is or would be stored, and its steps at each."""
    return exchange.stands_at(binding) if exchange.kind is ExchangeKind.HEADERS else []


def _of_pattern(pattern: str) -> Iterator[tuple[Hashable, int]]:
    """Yield the shapes of a pattern's prefixes, and the steps of each."""
    words = words_of(pattern)
    if len(words) <= COMMON_WORDS and words.count("*") <= COMMON_STARS and "#" not in words[:-1]:
        return
    shape, stars, loops = "", 0, 0
    for at, word in enumerate(words):
        if loops > 1:
            # Counted by its prefix: another such binding may cost more, even with the same shape.
            yield (".".join(words[:at]), word if word in {"*", "#"} else "w"), LOOP_STEPS
            continue
        shape += word if word in {"*", "#"} else "w"
        stars += word == "*"
        if word == "#":
            loops += 1
            if at == len(words) - 1:
                yield shape + "end", 1
            else:
                yield shape, LOOP_STEPS
        elif loops:
            yield shape, LOOP_STEPS
        elif at >= COMMON_WORDS or stars > COMMON_STARS:
            yield shape, 1


QUEUES_SHARE = 4
"""Divisor of the disk budget: the share of messages in queues, if ``queues.size`` is unset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Settings of queues: their section of a configuration, and what depends on others."""

    queues: QueueBounds = field(default_factory=QueueBounds)
    size_bytes: int = Disk().budget_bytes // QUEUES_SHARE
    """Bytes of messages in queues, delivered ones included, each with ``ready.ENTRY_BYTES`` beside its payload."""
    user_share: float = EdgeLimits().user_share
    """Part of each total that one owner may have."""

    @classmethod
    def of(cls, config: EdgeConfig) -> QueueLimits:
        """Return the bounds that a configuration sets."""
        return cls(
            queues=config.queues,
            size_bytes=config.queues.size_bytes or config.disk.budget_bytes // QUEUES_SHARE,
            user_share=config.limits.user_share,
        )


class QueueShares:
    """The bounds, and the units that each owner has taken."""

    def __init__(self, limits: QueueLimits, refusals: Refusals) -> None:
        def quota(name: str, total: int, what: str) -> Quota:
            return Quota.of(f"queues.{name}", total, limits.user_share, what)

        queues = limits.queues
        self.queues = Bound(quota("queues", queues.queues, "queues"), refusals)
        self.exchanges = Bound(quota("exchanges", queues.exchanges, "exchanges"), refusals)
        self.bindings = Bound(quota("bindings", queues.bindings, "bindings of queues"), refusals)
        self.match_cost = LookUpCost(quota("match_cost", queues.match_cost, "bindings"), refusals)
        self.waiting = Bound(quota("size", limits.size_bytes, "bytes of messages in queues"), refusals)
        self.consumers = Bound(quota("consumers", queues.consumers, "consumers of queues"), refusals)
        self.unacknowledged = Bound(
            quota("unacknowledged", queues.unacknowledged, "deliveries that are not acknowledged"), refusals
        )

    def take_binding(self, owner: Owner, exchange: Exchange, binding: BindingDefinition) -> None:
        """Charge an owner with a binding that is about to be added to an exchange.

        Raises:
            QueueError: TOO_MANY.
        """
        charge(self.bindings, owner, binding.units)
        if not self.match_cost.take(owner, exchange, binding):
            self.bindings.free(owner, binding.units)
            raise QueueError(
                Reason.TOO_MANY,
                f"{owner} has used up its share of what finding a message's queues may cost. Bind with fewer * and #, "
                f"or by a header that few bindings have, or raise {self.match_cost.quota.raised(is_share=True)}",
            )

    def hold_binding(self, owner: Owner, exchange: Exchange, binding: BindingDefinition) -> None:
        """Charge an owner with a binding that a start found."""
        self.bindings.hold(owner, binding.units)
        self.match_cost.hold(owner, exchange, binding)

    def free_binding(self, owner: Owner, exchange: Exchange, binding: BindingDefinition) -> None:
        """Release the units of a binding that is about to be removed from its exchange."""
        self.match_cost.free(owner, exchange, binding)
        self.bindings.free(owner, binding.units)


def charge(bound: Bound, owner: Owner, units: int = 1) -> None:
    """Take units for an owner.

    Raises:
        QueueError: TOO_MANY.
    """
    if not bound.take(owner, units):
        bound.refuse(owner, units)
        raise QueueError(
            Reason.TOO_MANY, f"{owner} has used up its share: delete what is not needed, or raise the limit"
        )


# What the parts of the queues share.


class QueueContext:
    """The log, the time and the bounds of all queues, from which each of their parts is made. Event loop's thread only.

    Args:
        messages: reads messages of the log again.
        turn: publishes of this turn of the loop; its end is when queues deliver and changes are written.
        round_robin: turns of the owners, for long work.
        wheel: timers of queues that expire.
        clock: ns since 1970.
    """

    __slots__ = ("batch", "bounds", "clock", "log", "messages", "round_robin", "state_stream", "stream", "wheel")

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        messages: Backlog,
        batch: TickBatch,
        round_robin: RoundRobin,
        wheel: TimerWheel,
        clock: Callable[[], int],
        bounds: QueueShares,
    ) -> None:
        self.log = log
        self.messages = messages
        self.batch = batch
        self.round_robin = round_robin
        self.wheel = wheel
        self.clock = clock
        self.bounds = bounds
        self.stream = log.stream(QUEUES_STREAM)
        """Number of the stream with the messages."""
        self.state_stream = log.stream(QUEUES_STATE_STREAM)
        """Number of the stream with declarations and settlements."""
