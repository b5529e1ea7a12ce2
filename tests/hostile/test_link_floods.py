"""What a link sends is worked off in turns, and a hub holds no parts of frames: others hardly notice."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time

import pytest
import zstandard

from tests.hostile.hub import NEIGHBOUR, GuardedHub
from tests.hostile.link_client import GoodLink, RawLink, link_to, records, sparse
from tests.hostile.waits import at_most
from tests.support.processes import processor_s
from weft.protocols.batch import COUNT_MAX
from weft.protocols.link import (
    Ack,
    Canary,
    CanaryBack,
    Data,
    FrameType,
    LastWords,
    Marks,
    Ping,
    Pong,
    Refuse,
    Welcome,
    encode_frame,
)

pytestmark = pytest.mark.processes
UNDISTURBED_S = 1.0
"""Time in which the well-behaved link measures what is usual."""
MOST_S = 0.6
"""Longest wait for an acknowledgement during an attack: a few commits, on a machine with other work."""


async def opened(link: RawLink) -> None:
    assert isinstance(await link.greet(), Welcome)
    await link.open(link.opening())


def part_of_a_frame(link: RawLink, length: int) -> bytes:
    """A message that ends inside of a frame."""
    context = link.encoder._context
    body = struct.pack("<BI", FrameType.DATA, length) + bytes(length - 100)
    return context.compress(body) + context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@pytest.mark.parametrize("greets", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_parts_of_frames_are_not_held(hub: GuardedHub, greets: bool) -> None:
    async with contextlib.AsyncExitStack() as stack:
        with GoodLink(hub) as good:
            before = hub.memory_bytes()
            for _ in range(8):
                link = await stack.enter_async_context(link_to(hub, level=19))
                if greets:
                    await opened(link)
                message = part_of_a_frame(link, (16 << 20) if greets else (80 << 20))
                assert len(message) < 20_000
                await link.send_raw(message)
                assert isinstance(await link.hear(Refuse), Refuse)
            assert hub.memory_bytes() - before < 192 << 20  # of two messages, however many links there are
            at_most(MOST_S * 4, good.take().longest)


@pytest.mark.slow
async def test_long_batches_are_charged_and_checked_beside_other_links(hub: GuardedHub) -> None:
    bomb = sparse(0, COUNT_MAX, b"k")
    assert len(bomb) < 8_000
    with GoodLink(hub) as good:
        await asyncio.sleep(UNDISTURBED_S)
        usual = good.take()
        async with link_to(hub, level=19) as link:
            await opened(link)
            await link.send(Data(1, bomb + sparse(COUNT_MAX, COUNT_MAX, b"k")))  # the second is past the window
            assert "window" in (await link.hear(Refuse)).message
        for _ in range(4):
            async with link_to(hub, level=19) as link:
                await opened(link)
                await link.deliver(bomb)
        waits = good.take()
    at_most(max(10 * usual.p99, MOST_S), waits.p99, usual, waits)


@pytest.mark.slow
async def test_a_message_of_many_small_frames_is_taken_in_turns(hub: GuardedHub) -> None:
    with GoodLink(hub) as good:
        await asyncio.sleep(UNDISTURBED_S)
        usual = good.take()
        async with link_to(hub, level=1) as link:
            await opened(link)
            frames = [Data(1, records(seq, payload=b"1")) for seq in range(16_000)]
            await link.send(*frames)
            while (await link.hear(Ack)).ranges != [(0, 16_000)]:
                pass
        async with link_to(hub, level=1) as link:
            await opened(link)
            gaps = b"".join(encode_frame(link.opening(2 + at, f"s{at}", ["x" * 30_000])) for at in range(250))
            context = link.encoder._context
            await link.send_raw(context.compress(gaps) + context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
            await asyncio.sleep(1)
        async with link_to(hub, NEIGHBOUR, level=1) as link:  # the other token has used up its budget
            await opened(link)
            for first in range(0, 20_000, 10_000):
                await link.send(*(Canary(first + at) for at in range(10_000)))
            await link.send(Canary(20_000), Ping(1))
            while (await link.hear(Pong)).sent != 1:
                pass
            await asyncio.sleep(1)  # as long as two marks wait
            await link.send(Ping(2))
            assert (await link.hear(CanaryBack)).number == 20_000, "only the last one is kept"
        waits = good.take()
    at_most(max(10 * usual.p99, MOST_S), waits.p99, usual, waits)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Marks, LastWords])
async def test_marks_without_end_are_read_later_and_go_with_their_link(
    hub: GuardedHub, kind: type[Marks] | type[LastWords]
) -> None:
    lanes = 400
    with GoodLink(hub) as good:
        await asyncio.sleep(UNDISTURBED_S)
        usual = good.take()
        async with link_to(hub, level=1) as link:
            assert isinstance(await link.greet(), Welcome)
            await link.open(*(link.opening(number, f"s{number}") for number in range(lanes)))
            marked = [(number, 0) for number in range(lanes)]
            for _ in range(40):  # three times what a token may have at once, in 40 kB
                await link.send(*(kind(time.time_ns(), marked) for _ in range(160)))
            await asyncio.sleep(UNDISTURBED_S)
            waits = good.take()
        await asyncio.sleep(2)  # the hub looks every second whether an edge that waits has left
        before = processor_s(hub.pid)
        await asyncio.sleep(3)
        assert processor_s(hub.pid) - before < 1.5, "what was sent is not worked off"
        refused = 'weft_hub_refusals_total{bound="frames of links",owner="edge evil/mallory"}'
        assert hub.metrics()[refused] > 0
    at_most(max(10 * usual.p99, MOST_S), waits.p99, usual, waits)
