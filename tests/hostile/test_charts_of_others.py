"""A tenant whose records are made to be costly to chart harms its own charts only, and one device those of no other."""

from __future__ import annotations

import asyncio
import json
import struct
import time

import pytest

from tests.hostile.hub import HOSTILE, GuardedHub
from tests.hostile.link_client import GoodLink, RawLink, encoded, link_to
from tests.hostile.waits import at_most
from weft.protocols import batch
from weft.protocols.link import Ack, Data, Gap

pytestmark = [pytest.mark.processes, pytest.mark.slow]
SECOND = 1_000_000_000
BEGIN = (time.time_ns() // SECOND - 600) * SECOND
FIELDS = [f"f{number}" for number in range(8)]
SERIES = f"/v1/streams/telemetry/series?since={BEGIN}&fields={','.join(FIELDS)}"
VALUES = json.dumps(dict.fromkeys(FIELDS, 1)).encode()
KEYS, HOLES, AT_ONCE = 200, 4_000, 500


def values(first: int, at_s: float, keys: list[bytes], payload: bytes = VALUES) -> bytes:
    """A batch with a record of each key."""
    times = struct.pack("<q", BEGIN + int(at_s * SECOND)) * len(keys)
    return encoded(first, batch.columns_from_lists(times, keys, [payload] * len(keys)))


async def holes(link: RawLink, first: int) -> int:
    """Send records, each with a loss behind it. Return the next number."""
    for begin in range(0, HOLES, AT_ONCE):
        some = range(begin, begin + AT_ONCE)
        lone = (values(first + 2 * at, 10 + at / 100, [b"x"], b"{}") for at in some)
        lost = (Gap(1, first + 2 * at + 1, first + 2 * at + 2, 1) for at in some)
        await link.send(Data(1, b"".join(lone)), *lost)
        while (await link.hear(Ack)).ranges[-1][1] < first + 2 * some.stop:
            pass
    return first + 2 * HOLES


async def charts(hub: GuardedHub, count: int) -> list[tuple[int, bytes]]:
    token = hub.token("evil")
    return await asyncio.gather(*(asyncio.to_thread(hub.get, SERIES, token, 120) for _ in range(count)))


async def test_a_chart_of_many_series_with_many_gaps_is_made_of_bounded_rows(hub: GuardedHub) -> None:
    keys = [b"k%d" % number for number in range(KEYS)]
    with GoodLink(hub) as good:
        async with link_to(hub, HOSTILE) as link:
            await link.greet()
            await link.open(link.opening())
            assert isinstance(await link.deliver(values(0, 0, keys)), Ack)
            after = await holes(link, KEYS)
            assert isinstance(await link.deliver(values(after, 100, keys)), Ack)
        before, _ = hub.memory_bytes(), good.take()
        for status, body in await charts(hub, 2):
            assert status == 200
            rows = json.loads(body)["rows"]
            assert len(rows) == 3 * KEYS * len(FIELDS), "two values of each series, and one gap between them"
        assert hub.memory_bytes() - before < 200 << 20
        at_most(1, good.take().p99)


async def test_long_keys_make_no_long_answer(hub: GuardedHub) -> None:
    """Each row of an answer names its key."""
    with GoodLink(hub) as good:
        async with link_to(hub, HOSTILE) as link:
            await link.greet()
            await link.open(link.opening())
            for number in range(8):
                key = b"%d" % number + b"k" * 60_000
                assert isinstance(await link.deliver(values(40 * number, number, [key] * 40)), Ack)
        before = hub.memory_bytes()
        [(status, body)] = await charts(hub, 1)
        assert (status, json.loads(body)["is_whole"]) == (200, False)
        assert len(body) < 9 << 20
        assert hub.memory_bytes() - before < 200 << 20
        at_most(1, good.take().p99)
