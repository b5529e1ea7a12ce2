"""Bounds on exchanges, queues and bindings, and on the content of queues: totals, and the share of one owner in
each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from weft.bounds import Bound, Owner, Refusals, Rounds, one_share
from weft.config.models import EdgeConfig
from weft.edge_node.ingest.ingest import Turn
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
        total: steps beside the common ones that one look-up may take, because of all owners together.
        share: the same because of one owner.
        refusals: counts refusals.
    """

    def __init__(self, total: int, share: int, refusals: Refusals) -> None:
        self.total = total
        self.share = min(share, total)
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
        setting = self._exceeded(owner, costs)
        if setting is not None:
            what = f"bindings like {binding.key[:60]!r} of exchange {exchange.name[:60]!r}"
            self._refusals.note(setting, owner, f"no room for more {what}")
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
        """Return the setting that leaves an owner no more room; None if there is room."""
        own = self._owners.get(owner, {})
        new = [(cost, steps) for cost, steps in costs if cost not in own]
        if not new:
            return None
        if self.of(owner) + sum(steps for _, steps in new) > self.share:
            return "queues.match_cost_per_user"
        if self.used + sum(steps for cost, steps in new if cost not in self._all) > self.total:
            return "queues.match_cost"
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
        self,
        owner: Owner,
        exchange: Exchange,
        binding: BindingDefinition,
        places: list[tuple[Pair, int]],
        change: int,
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
    """Settings of the bounds."""

    queues_max: int = 65_536
    queues_per_user_max: int = 16_384
    exchanges_max: int = 4_096
    exchanges_per_user_max: int = 1_024
    bindings_max: int = 262_144
    bindings_per_user_max: int = 65_536
    match_cost_max: int = 32_768
    """Steps that one look-up may take because of uncommon bindings (``routing.look_up_cost``)."""
    match_cost_per_user_max: int = 8_192
    waiting_bytes_max: int = 4 << 30
    """Bytes of messages in queues, delivered ones included, each with ``message.ENTRY_BYTES`` beside its payload."""
    waiting_bytes_per_user_max: int = 1 << 30
    consumers_max: int = 65_536
    consumers_per_user_max: int = 16_384
    unacknowledged_max: int = 262_144
    """Deliveries that are not acknowledged."""
    unacknowledged_per_user_max: int = 65_536

    @classmethod
    def of(cls, config: EdgeConfig) -> QueueLimits:
        """Return the bounds that a configuration sets."""
        bounds = config.queues
        waiting = bounds.size_bytes or config.disk.budget_bytes // QUEUES_SHARE
        return cls(
            queues_max=bounds.queues,
            queues_per_user_max=one_share(bounds.queues_per_user, bounds.queues),
            exchanges_max=bounds.exchanges,
            exchanges_per_user_max=one_share(bounds.exchanges_per_user, bounds.exchanges),
            bindings_max=bounds.bindings,
            bindings_per_user_max=one_share(bounds.bindings_per_user, bounds.bindings),
            match_cost_max=bounds.match_cost,
            match_cost_per_user_max=one_share(bounds.match_cost_per_user, bounds.match_cost),
            waiting_bytes_max=waiting,
            waiting_bytes_per_user_max=one_share(bounds.size_per_user_bytes, waiting),
            consumers_max=bounds.consumers,
            consumers_per_user_max=one_share(bounds.consumers_per_user, bounds.consumers),
            unacknowledged_max=bounds.unacknowledged,
            unacknowledged_per_user_max=one_share(bounds.unacknowledged_per_user, bounds.unacknowledged),
        )


class QueueShares:
    """The bounds, and the units that each owner has taken."""

    def __init__(self, limits: QueueLimits, refusals: Refusals) -> None:
        def bound(total: int, share: int, name: str, what: str) -> Bound:
            return Bound(total, share, refusals, f"queues.{name}", f"queues.{name}_per_user", what)

        self.queues = bound(limits.queues_max, limits.queues_per_user_max, "queues", "queues")
        self.exchanges = bound(limits.exchanges_max, limits.exchanges_per_user_max, "exchanges", "exchanges")
        self.bindings = bound(limits.bindings_max, limits.bindings_per_user_max, "bindings", "bindings of queues")
        self.match_cost = LookUpCost(limits.match_cost_max, limits.match_cost_per_user_max, refusals)
        self.waiting = bound(
            limits.waiting_bytes_max, limits.waiting_bytes_per_user_max, "size", "bytes of messages in queues"
        )
        self.consumers = bound(limits.consumers_max, limits.consumers_per_user_max, "consumers", "consumers of queues")
        self.unacknowledged = bound(
            limits.unacknowledged_max, limits.unacknowledged_per_user_max, "unacknowledged",
            "deliveries that are not acknowledged",
        )  # fmt: skip

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
                "or by a header that few bindings have, or raise queues.match_cost_per_user",
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
        rounds: turns of the owners, for long work.
        wheel: timers of queues that expire.
        clock: ns since 1970.
    """

    __slots__ = ("bounds", "clock", "log", "messages", "rounds", "state_stream", "stream", "turn", "wheel")

    def __init__(  # noqa: PLR0917
        self,
        log: SegmentLog,
        messages: Backlog,
        turn: Turn,
        rounds: Rounds,
        wheel: TimerWheel,
        clock: Callable[[], int],
        bounds: QueueShares,
    ) -> None:
        self.log = log
        self.messages = messages
        self.turn = turn
        self.rounds = rounds
        self.wheel = wheel
        self.clock = clock
        self.bounds = bounds
        self.stream = log.stream(QUEUES_STREAM)
        """Number of the stream with the messages."""
        self.state_stream = log.stream(QUEUES_STATE_STREAM)
        """Number of the stream with declarations and settlements."""
