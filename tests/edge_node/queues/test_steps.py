"""What one user's bindings cost one step of the node's loop is little, with every bound that the user has filled."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import pytest

from tests.edge_node.queues.room import OWNER, Room
from weft.edge_node.queues.arguments import QueueArguments
from weft.edge_node.queues.definitions import BindingDefinition, ExchangeDefinition, ExchangeKind, QueueDefinition
from weft.edge_node.queues.limits import QueueLimits

STEP_S_MAX = 0.02
"""Processor time of one step; of several tries the quickest counts, because others use the machine's caches."""
SHARE = QueueLimits().bindings_per_user_max
HEADERS = [f"h{number:02}" for number in range(16)]
T = TypeVar("T")


class Steps:
    """The longest of each kind of call, and of what the event loop calls by itself."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}

    def timed(self, kind: str, step: Callable[[], T]) -> T:
        began = time.thread_time()
        done = step()
        self.longest[kind] = max(self.longest.get(kind, 0.0), time.thread_time() - began)
        return done

    async def until(self, is_over: Callable[[], bool]) -> None:
        """Let the event loop go on, and time each of its calls."""
        run = asyncio.Handle._run

        def timed_run(handle: asyncio.Handle) -> None:
            self.timed("loop", lambda: run(handle))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", timed_run)
            await asyncio.sleep(0)  # the step that prepared everything is over
            self.longest.pop("loop", None)
            while not is_over():  # noqa: ASYNC110 - each round is a step
                await asyncio.sleep(0)


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
        binding(f"e{number % 1000}", f"key {number // 1000}") if number % 1000 else
        BindingDefinition(f"e{number // 1000}", f"e{number // 1000 + 1}", True, "", b"")
        for number in range(999_000)
    )  # fmt: skip


SHAPES = [by_headers, by_any_header, by_words, by_long_keys, by_key, of_many_exchanges]


def fill(room: Room, bindings: Iterator[BindingDefinition]) -> int:
    """Give a queue as many bindings as its owner may have. Return their units."""
    units, taken = 0, list[BindingDefinition]()
    for each in bindings:
        units += each.units
        if units > SHARE:
            break
        taken.append(each)
    registry = room.queues._registry
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
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            await story(room, steps)
        finally:
            gc.enable()
            gc.unfreeze()
        quickest = {kind: min(seconds, quickest.get(kind, seconds)) for kind, seconds in steps.longest.items()}
        if max(quickest.values()) < STEP_S_MAX:
            return
    assert max(quickest.values()) < STEP_S_MAX, {kind: f"{seconds * 1e3:.1f} ms" for kind, seconds in quickest.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
async def test_a_queue_is_deleted_in_short_steps(shape: Callable[[], Iterator[BindingDefinition]]) -> None:
    async def story(room: Room, steps: Steps) -> None:
        fill(room, shape())
        steps.timed("delete", lambda: room.queues.delete_queue(room.client, "q"))
        steps.timed("declare", lambda: room.queues.declare_queue(room.client, "q"))
        room.queues.bind(room.client, "q", "amq.fanout")
        assert room.publish(b"x", exchange="amq.fanout") == [False]
        await steps.until(lambda: room.queues.bounds.bindings.used == 1)
        topology = room.queues._registry.topology
        assert list(topology.bindings()) == [binding("amq.fanout")]
        assert len(topology.exchanges) == 6
        for exchange in topology.exchanges.values():
            assert not exchange._by_headers._places
            assert not exchange._patterns._root.branches, "every pattern was taken apart"

    await quick(story)
