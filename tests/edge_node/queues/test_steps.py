"""What one user's bindings cost one step of the node's loop is little, with every bound that the user has filled."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest

from tests.edge_node.queues.room import OWNER, Room
from tests.support.speed import slowness, uncollected
from weft.bounds import Refusals
from weft.config.listeners import QueueBounds
from weft.edge_node.queues.contents import STEP_RECORDS
from weft.edge_node.queues.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    ExchangeKind,
    QueueArguments,
    QueueDefinition,
    QueueError,
    Reason,
)
from weft.edge_node.queues.exchange import KNOWN_MAX
from weft.edge_node.queues.limits import COMMON_WORDS, QueueLimits, QueueShares
from weft.edge_node.queues.ready import Outcome
from weft.edge_node.queues.state import read_changes
from weft.protocols.batch import HeaderPairs

pytestmark = pytest.mark.slow
STEP_S_MAX = 0.02
"""Processor time of one step on the machine of the budgets; the quickest of several tries counts."""
ROUNDS_MAX = 50_000
SHARE = QueueShares(QueueLimits(), Refusals(lambda: 0.0)).bindings.share
HEADERS = [f"h{number:02}" for number in range(16)]
T = TypeVar("T")


class Steps:
    """The longest of each kind of call, and of what the event loop calls by itself."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}

    def timed(self, kind: str, step: Callable[[], T]) -> T:
        began = time.thread_time()
        try:
            return step()
        finally:
            self.longest[kind] = max(self.longest.get(kind, 0.0), time.thread_time() - began)

    async def until(self, is_over: Callable[[], bool]) -> None:
        """Let the event loop continue, and time each of its calls."""
        run = asyncio.Handle._run

        def timed_run(handle: asyncio.Handle) -> None:
            self.timed("loop", lambda: run(handle))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", timed_run)
            await asyncio.sleep(0)  # the step that prepared everything is over
            self.longest.pop("loop", None)
            for _ in range(ROUNDS_MAX):
                if is_over():
                    return
                await asyncio.sleep(0)
        pytest.fail("it is never over")


def subsets(most: int = len(HEADERS)) -> Iterator[dict[str, Any]]:
    """Arguments of which each pair is in many, and one that no message has."""
    for count in range(8, most + 1):
        for names in itertools.combinations(HEADERS, count):
            yield {**dict.fromkeys(names, 1), "zz": 1}


def binding(source: str, key: str = "", arguments: Mapping[str, Any] | None = None, to: str = "q") -> BindingDefinition:
    return BindingDefinition(source, to, False, key, msgspec.msgpack.encode(arguments) if arguments else b"")


def by_headers() -> Iterator[BindingDefinition]:
    """All subsets, again and again with another header."""
    for number in itertools.count():
        for arguments in subsets():
            yield binding("amq.headers", arguments={**arguments, "n": number})


def by_any_header() -> Iterator[BindingDefinition]:
    """Arguments as long as they may be, each header of which is a place of its own."""
    for number in itertools.count():
        yield binding("amq.headers", arguments={"x-match": "any", **{f"{number:x}{at:x}": 1 for at in range(500)}})


def by_words() -> Iterator[BindingDefinition]:
    """Keys of ``a`` and ``*`` in all orders."""
    return (binding("amq.topic", ".".join(words)) for words in itertools.product("a*", repeat=17))


def by_long_keys() -> Iterator[BindingDefinition]:
    return (binding("amq.topic", f"{number}." + ".".join("a" * 120)) for number in itertools.count())


def by_key() -> Iterator[BindingDefinition]:
    return (binding("amq.direct", f"key {number}") for number in itertools.count())


def of_many_exchanges() -> Iterator[BindingDefinition]:
    """Exchanges that are deleted with their last binding, bound to one another in a row."""
    return (
        binding(f"e{number % 1000}", f"key {number // 1000}")
        if number % 1000
        else BindingDefinition(f"e{number // 1000}", f"e{number // 1000 + 1}", True, "", b"")
        for number in range(999_000)
    )


SHAPES = [by_headers, by_any_header, by_words, by_long_keys, by_key, of_many_exchanges]


def fill(room: Room, bindings: Iterator[BindingDefinition]) -> int:
    """Give a queue as many bindings as its owner may have. Return their units."""
    units, taken = 0, list[BindingDefinition]()
    for each in bindings:
        units += each.units
        if units > SHARE:
            break
        taken.append(each)
    registry = room.queues.registry
    exchanges = [
        ExchangeDefinition(name, ExchangeKind.DIRECT, False, True, False, None, *OWNER)
        for name in dict.fromkeys(each.source for each in taken if each.source.startswith("e"))
    ]
    queue = QueueDefinition(1, "q", False, False, False, QueueArguments(), *OWNER, since=0)
    registry.restore(exchanges, [queue], taken)
    used = registry._bounds.bindings.taken(OWNER)
    assert used > SHARE * 0.95
    return used


async def quick(story: Callable[[Room, Steps], Any]) -> None:
    """Tell a story until no step of it was long, at most three times."""
    quickest: dict[str, float] = {}
    for _ in range(3):
        room, steps = Room(), Steps()
        with uncollected():
            await story(room, steps)
        quickest = {kind: min(seconds, quickest.get(kind, seconds)) for kind, seconds in steps.longest.items()}
        if max(quickest.values()) < STEP_S_MAX * slowness():
            return
    assert max(quickest.values()) < STEP_S_MAX * slowness(), {
        kind: f"{seconds * 1e3:.1f} ms" for kind, seconds in quickest.items()
    }


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
async def test_a_queue_is_deleted_in_short_steps(shape: Callable[[], Iterator[BindingDefinition]]) -> None:
    async def story(room: Room, steps: Steps) -> None:
        fill(room, shape())
        steps.timed("delete", lambda: room.queues.declarations.delete_queue(room.client, "q"))
        steps.timed("declare", lambda: room.queues.declarations.declare_queue(room.client, "q"))
        room.queues.declarations.bind(room.client, "q", "amq.fanout")
        assert room.publish(b"x", exchange="amq.fanout") == [False]
        await steps.until(lambda: room.queues.bounds.bindings.used == 1)
        topology = room.queues.registry.topology
        assert list(topology.bindings()) == [binding("amq.fanout")]
        assert len(topology.exchanges) == 6
        for exchange in topology.exchanges.values():
            assert not exchange._by_headers._places
            assert exchange._patterns._root.is_empty, "every pattern was taken apart"

    await quick(story)


async def test_the_queues_of_a_connection_go_in_short_steps() -> None:
    async def story(room: Room, steps: Steps) -> None:
        client = room.new_client()
        for queue in range(1000):
            room.queues.declarations.declare_queue(client, f"q{queue}", exclusive=True)
        bindings = [binding("amq.direct", f"{number}", to=f"q{number % 1000}") for number in range(SHARE)]
        room.queues.registry.restore([], [], bindings)
        steps.timed("gone", lambda: room.queues.disconnects.begin(client))
        await steps.until(lambda: not room.queues.bounds.bindings.used)
        assert not room.queues.bounds.queues.used

    await quick(story)


async def test_exchanges_that_are_all_bound_to_one_another_cost_short_steps() -> None:
    async def story(room: Room, steps: Steps) -> None:
        names = [f"e{number}" for number in range(256)]
        exchanges = [ExchangeDefinition(name, ExchangeKind.FANOUT, False, False, False, None, *OWNER) for name in names]
        bindings = [BindingDefinition(one, other, True, "", b"") for one, other in itertools.permutations(names, 2)]
        queue = QueueDefinition(1, "q", False, False, False, QueueArguments(), *OWNER, since=0)
        room.queues.registry.restore(exchanges, [queue], bindings)
        steps.timed("bind", lambda: room.queues.declarations.bind(room.client, "q", "e1"))
        assert steps.timed("route", lambda: room.queues.publishing.route(room.client, "e0", "a")).is_routed
        steps.timed("unbind", lambda: room.queues.declarations.unbind(room.client, "q", "e1"))
        steps.timed("delete", lambda: room.queues.declarations.delete_exchange(room.client, "e0"))
        assert not room.queues.publishing.route(room.client, "e1", "a").is_routed
        await steps.until(lambda: room.queues.bounds.bindings.used == 255 * 254)

    await quick(story)


async def test_many_keys_are_forgotten_in_short_steps() -> None:
    async def story(room: Room, steps: Steps) -> None:
        topology = room.queues.registry.topology
        room.queues.declarations.declare_queue(room.client, "q")
        exchange = topology.exchange("amq.direct")
        for number in range(KNOWN_MAX):
            topology.known(exchange, f"key {number}")
        steps.timed("bind", lambda: room.queues.declarations.bind(room.client, "q", "amq.direct", "key 1"))
        assert topology.known(exchange, "key 1").targets is not None
        for number in range(KNOWN_MAX + 1):
            steps.timed("known", partial(topology.known, exchange, f"key {number}"))

    await quick(story)


async def test_a_copy_of_all_bindings_is_one_short_step() -> None:
    async def story(room: Room, steps: Steps) -> None:
        queue = QueueDefinition(1, "q", True, False, False, QueueArguments(), *OWNER, since=0)
        room.queues.registry.restore([], [queue], itertools.islice(by_key(), SHARE))
        pieces = steps.timed("copy", lambda: [msgspec.msgpack.encode(each) for each in room.queues.writer._pieces()])
        assert sum(len(read_changes(piece).bindings) for piece in pieces) == SHARE

    await quick(story)


# --- look-ups


def exchanges_in_a_row(room: Room) -> Iterator[BindingDefinition]:
    """Topic exchanges to which one exchange leads, each with all patterns that cost nothing."""
    names = [f"t{number}" for number in range(1000)]
    for name in names:
        room.queues.declarations.declare_exchange(room.client, name, "topic")
    for name in names:
        yield BindingDefinition("amq.topic", name, True, "a.#", b"")
    patterns = [
        A_KEY,
        *(".".join("*" if at == star else "a" for at in range(COMMON_WORDS)) for star in range(COMMON_WORDS)),
    ]
    for name in names:
        for pattern in patterns:
            yield binding(name, pattern)


def by_words_and_loops(before: int) -> Iterator[BindingDefinition]:
    for words in itertools.product("a*", repeat=12):
        yield binding("amq.topic", ".".join([*words[:before], "#", *words[before:]]))


def by_many_loops() -> Iterator[BindingDefinition]:
    for words in itertools.product("ab", repeat=14):
        yield binding("amq.topic", "#." + ".#.".join(words))


def by_many_values() -> Iterator[BindingDefinition]:
    """What is found by one header of many is looked at alone."""
    return (binding("amq.headers", arguments={"kind": "press", "number": number}) for number in itertools.count())


A_KEY = ".".join("a" * COMMON_WORDS)
A_LONG_KEY = ".".join("a" * 127)
LOOK_UPS: dict[str, tuple[Callable[[Room], Iterator[BindingDefinition]], str, str, HeaderPairs]] = {
    "words and stars": (lambda _: by_words(), "amq.topic", ".".join("a" * 17), ()),
    "long patterns": (lambda _: by_long_keys(), "amq.topic", "1." + ".".join("a" * 120), ()),
    "loops at the beginning": (lambda _: by_words_and_loops(0), "amq.topic", A_LONG_KEY, ()),
    "loops in the middle": (lambda _: by_words_and_loops(6), "amq.topic", A_LONG_KEY, ()),
    "loops at the end": (lambda _: by_words_and_loops(12), "amq.topic", A_LONG_KEY, ()),
    "many loops": (lambda _: by_many_loops(), "amq.topic", ".".join("ab" * 63), ()),
    "exchanges": (exchanges_in_a_row, "amq.topic", A_KEY, ()),
    "keys": (lambda _: by_key(), "amq.direct", "key 1", ()),
    "headers": (lambda _: by_headers(), "amq.headers", "", tuple((name, 1) for name in (*HEADERS, "n"))),
    "values": (lambda _: by_many_values(), "amq.headers", "", (("kind", "press"), ("number", -1))),
    "any header": (lambda _: by_any_header(), "amq.headers", "", tuple((f"0{at:x}", 1) for at in range(500))),
}


def bind_all(room: Room, bindings: Iterator[BindingDefinition], steps: Steps) -> list[BindingDefinition]:
    """Bind until it is too many. Return what was bound."""
    found: list[BindingDefinition] = []
    for each in bindings:
        try:
            steps.timed("bind", partial(room.queues.registry.bind, room.client, each))
        except QueueError as error:
            if error.reason is not Reason.TOO_MANY:
                raise
            break
        found.append(each)
    return found


@pytest.mark.parametrize("case", LOOK_UPS)
async def test_a_look_up_is_short(case: str) -> None:
    shape, exchange, key, headers = LOOK_UPS[case]

    async def story(room: Room, steps: Steps) -> None:
        room.queues.declarations.declare_queue(room.client, "q")
        bound = bind_all(room, shape(room), steps)
        assert len(bound) > 100
        for number in range(3):
            room.queues.registry.topology.forget()
            steps.timed("route", partial(room.queues.publishing.route, room.client, exchange, key, headers))
            further = tuple(f"{key}.{number}.{at}" for at in range(255))
            with suppress(QueueError):
                steps.timed(
                    "further keys",
                    partial(room.queues.publishing.route, room.client, exchange, key, headers, 0, further),
                )
        last = bound[-1]
        steps.timed("unbind", partial(room.queues.registry.unbind, room.client, last))
        steps.timed("bind again", partial(room.queues.registry.bind, room.client, last))

    await quick(story)


async def test_others_may_bind_where_one_has_used_up_the_share() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q")
    assert len(bind_all(room, by_words(), Steps())) < 16_384
    assert [each.bound for each in room.refusals] == ["limits.user_share of queues.match_cost"]
    room.queues.declarations.bind(room.client, "q", "amq.topic", "common.*.key")
    bob = room.new_client("bob")
    room.queues.declarations.declare_queue(bob, "bobs")
    room.queues.declarations.bind(bob, "bobs", "amq.topic", "a.*.*.#.b")
    assert room.queues.publishing.route(bob, "amq.topic", "a.x.y.b").is_routed
    room.queues.declarations.delete_queue(room.client, "q")
    room.queues.declarations.delete_queue(bob, "bobs")
    while room.queues.bounds.bindings.used:
        await room.settle_down()
    cost = room.queues.bounds.match_cost
    assert (cost.used, cost.of(OWNER)) == (0, 0)


async def test_bindings_beyond_the_share_that_a_start_finds_stay() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    for words in itertools.product("a*", repeat=6):
        room.queues.declarations.bind(room.client, "q", "amq.topic", ".".join(words))
    used = room.queues.bounds.match_cost.used
    room.limits = QueueLimits(queues=QueueBounds(match_cost=10), user_share=1)
    await room.restart()
    assert room.queues.bounds.match_cost.used == used
    assert room.queues.publishing.route(room.client, "amq.topic", "a.b.c.a.b.c").is_routed
    room.queues.declarations.bind(room.client, "q", "amq.topic", "*.*.a", {"another": "one"})
    with pytest.raises(QueueError):
        room.queues.declarations.bind(room.client, "q", "amq.topic", "#.a")


# --- dead letters

MESSAGES = 96


@pytest.mark.parametrize("exchange", ["amq.headers", "amq.topic"])
async def test_dead_letters_go_on_in_short_steps(exchange: str) -> None:
    shape = by_headers if exchange == "amq.headers" else by_words
    headers = (*((name, 1) for name in (*HEADERS, "zz")), ("n", 0)) if exchange == "amq.headers" else ()

    async def story(room: Room, steps: Steps) -> None:
        room.queues.declarations.declare_queue(room.client, "q")
        assert len(bind_all(room, shape(), Steps())) > 100
        room.queues.declarations.declare_queue(
            room.client,
            "dying",
            arguments={"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": ".".join("a" * 17)},
        )
        for number in range(MESSAGES):
            room.publish(b"%d" % number, key="dying", headers=headers)
        taker = room.consume("dying")
        await room.settle_down()
        assert len(taker.unsettled) == MESSAGES

        def are_there() -> bool:
            room.batch.store()
            room.commit()
            return room.queue().count == MESSAGES

        steps.timed("reject", lambda: taker.settle(Outcome.REJECT))
        await steps.until(are_there)
        assert [int(each) for each in await room.drain()] == list(range(MESSAGES))

    await quick(story)


async def test_dead_letters_of_others_wait_for_one_step_and_not_for_all() -> None:
    room = Room()
    room.queues.declarations.declare_queue(room.client, "q")
    mallory = room.new_client("mallory")
    for client, name in ((mallory, "many"), (room.client, "one")):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
        room.queues.declarations.declare_queue(client, name, arguments=arguments)
    room.publish(*(b"mallory's" for _ in range(8 * STEP_RECORDS)), key="many")
    room.publish(b"ann's", key="one")
    takers = [room.consume("many", client=mallory), room.consume("one")]
    await room.settle_down()
    for taker in takers:
        taker.settle(Outcome.REJECT)
    while room.queues.dead_letters._task is not None:
        await room.settle_down()
    found = await room.drain()
    assert len(found) == 8 * STEP_RECORDS + 1
    assert found.index(b"ann's") <= STEP_RECORDS
