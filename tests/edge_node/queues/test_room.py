"""Memory and disk: idle queues and long ones stay small, and a log that is full of messages gets empty again."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from tests.edge_node.queues.room import Room
from weft.edge_node.queues import contents
from weft.storage.segment_log import LogSettings

IDLE_BYTES_MAX = 4_000
"""Memory of a queue that has nothing, with a binding: ten thousand are 40 MB at most."""


async def test_idle_queues_are_small() -> None:
    room = Room(settings=LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20))
    count = 500
    room.queues.declarations.declare_queue(room.client, "warm", durable=True)
    await room.settle_down()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            room.queues.declarations.declare_queue(room.client, f"queue-{number}", durable=True)
            room.queues.declarations.bind(room.client, f"queue-{number}", "amq.topic", f"plant.{number}.#")
        await room.settle_down()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / count < IDLE_BYTES_MAX


async def test_a_long_queue_is_in_the_log_and_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "LOADED_BYTES_MAX", 10_000)
    room = Room(settings=LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20, tail_bytes=50_000))
    for name in ("a", "b"):
        room.queues.declarations.declare_queue(room.client, name, durable=True)
    payloads = [b"%06d" % number + b"x" * 500 for number in range(3_000)]
    for at in range(0, 3_000, 500):
        for payload in payloads[at : at + 500]:
            room.publish(payload, key="ab"[payload[5] % 2])
        await room.settle_down()
        assert room.queues.contents.loaded_bytes <= 10_000 + 506
    room.queues.writer.copy()
    await room.settle_down()
    room.power_cut()
    assert room.queues.contents.loaded_bytes == 0
    assert room.queues.figures.facts()["messages"] == 3_000
    assert await room.drain("a") == payloads[::2]
    assert await room.drain("b") == payloads[1::2]
    assert room.queues.figures.facts()["bytes"] == 0


async def test_a_consumer_that_keeps_up_does_not_wait_for_the_disk() -> None:
    """What it gets next is read, and marked as perhaps delivered, before it has acknowledged what it got."""
    room = Room(settings=LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20, tail_bytes=50_000))
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    for number in range(80):
        room.publish(*[b"%06d" % each for each in range(number * 100, number * 100 + 100)])
        await room.settle_down()
    await room.restart()
    taker = room.consume(prefetch=100)
    await room.settle_down()
    while len(taker.got) < 5_000:
        taker.settle()
        await room.settle_down()
    for number in range(20):
        taker.settle()
        await asyncio.sleep(0)
        assert len(taker.got) == 5_000 + 100 * (number + 1), "it waits for a read or a commit"
        while room.queues.deliveries._loading:
            await asyncio.wait(room.queues.deliveries._loading)
        room.commit()
    assert taker.payloads == [b"%06d" % number for number in range(7_000)]


async def test_a_full_log_gets_empty_by_acknowledgements() -> None:
    room = Room(settings=LogSettings(segment_bytes=16_384, budget_bytes=8 * 16_384, pending_bytes_max=1 << 20))
    room.queues.declarations.declare_queue(room.client, "q", durable=True)
    sent = 0
    while not room.publisher.refused:
        room.publish(b"%06d" % sent + b"x" * 1000)
        sent += 1
        await room.settle_down()
        assert sent < 500
    confirmed = [int(payload[:6]) for payload in room.confirmed()]
    taker = room.consume(prefetch=3)
    for _ in range(sent):
        await room.settle_down()
        taker.settle()
    await room.settle_down()
    assert [int(payload[:6]) for payload in taker.payloads] == confirmed
    room.publisher.refused.clear()
    room.publish(b"there is room again")
    await room.settle_down()
    assert room.confirmed()[-4:] == [b"there", b"is", b"room", b"again"]
    assert not room.publisher.refused
