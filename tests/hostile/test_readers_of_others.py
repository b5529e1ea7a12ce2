"""A tenant's readers harm its own answers only: one that asks for much and reads nothing does not hold up others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.hostile.good_client import at_most
from tests.hostile.hub import HOSTILE, GuardedHub
from tests.hostile.link_client import GoodLink, RawLink, encoded, link_to, records
from tests.support.processes import processor_s
from tests.support.slices import SLICE
from tests.support.speed import Stopwatch
from tests.support.waiting import wait_until
from weft.cloud_hub.http.tail import SEARCH_AT_ONCE_S, SEARCH_S
from weft.protocols import batch
from weft.protocols.link import Ack, Data, Gap

pytestmark = pytest.mark.processes

REFUSED = 'weft_hub_refusals_total{bound="limits.response",owner="token reader-evil"}'
PATIENCE_S = 30.0
MiB = 1 << 20
READERS = 40
BAD_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"


async def fill(hub: GuardedHub, size: int = 24 * MiB) -> None:
    """Give the hostile tenant a stream with long records."""
    async with link_to(hub, HOSTILE) as link:
        await link.greet()
        await link.open(link.opening())
        for at in range(size // MiB):
            assert isinstance(await link.deliver(records(64 * at, 64, payload=os.urandom(16 << 10))), Ack)


@contextlib.contextmanager
def slow_readers(hub: GuardedHub) -> Iterator[list[socket.socket]]:
    """Ask for the longest answers on many connections, and read nothing."""
    request = (
        f"GET /v1/streams/telemetry/records?limit=10000 HTTP/1.1\r\nHost: 127.0.0.1:{hub.port}\r\n"
        f"Authorization: Bearer {hub.token('evil')}\r\n\r\n"
    ).encode()
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(READERS):
            each = stack.enter_context(socket.create_connection(("127.0.0.1", hub.port), 5))
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.sendall(request * 8)
            sockets.append(each)
        yield sockets


def answer_s(hub: GuardedHub) -> float:
    """Return how long an answer to the other tenant takes."""
    stopwatch = Stopwatch(hub.pid)
    assert hub.get("/v1/streams/telemetry", hub.token("good"))[0] == 200
    return stopwatch.seconds()


@pytest.mark.search
async def test_slow_readers_hold_little_memory_and_nobody_else_up(hub: GuardedHub) -> None:
    with GoodLink(hub) as good:
        await fill(hub)
        wait_until(
            lambda: hub.get("/v1/streams/telemetry", hub.token("good"))[0] == 200, what="the other tenant's stream"
        )
        before = hub.memory_bytes()
        good.take()
        most, waits = 0, []
        with slow_readers(hub):
            until = time.monotonic() + SLICE.amount(ci=4, night=12)
            while time.monotonic() < until or REFUSED not in hub.metrics():
                assert time.monotonic() < until + PATIENCE_S, "no reader is refused"
                most = max(most, hub.memory_bytes())
                waits.append(answer_s(hub))
                time.sleep(0.1)
        assert hub.metrics()[REFUSED] > 0
        assert most - before < 400 * MiB
        at_most(0.5, sorted(waits)[len(waits) // 2])
        at_most(2, good.take().p99)
        wait_until(
            lambda: hub.get("/v1/streams/telemetry/records?limit=1", hub.token("evil"))[0] == 200, what="an answer"
        )


@pytest.mark.slow
def test_bad_requests_do_not_fill_the_log(hub: GuardedHub) -> None:
    log = hub.folder / "hub.log"
    before = log.stat().st_size
    until, asked = time.monotonic() + 2, 0
    while time.monotonic() < until:
        with socket.create_connection(("127.0.0.1", hub.port), 5) as connection:
            connection.sendall(BAD_REQUEST)
            assert connection.recv(100).startswith(b"HTTP/1.0 400")
        asked += 1
    said = log.read_text()[before:]
    assert asked > 50
    assert "Traceback" not in said
    assert len(said) < 2000


@contextlib.contextmanager
def tails(hub: GuardedHub, queries: list[str]) -> Iterator[list[socket.socket]]:
    """Tails of the hostile tenant that read no more than the head."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for query in queries:
            each = stack.enter_context(socket.create_connection(("127.0.0.1", hub.port), 5))
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.sendall(
                f"GET /v1/streams/telemetry/tail?{query} HTTP/1.1\r\nHost: 127.0.0.1:{hub.port}\r\n"
                f"Authorization: Bearer {hub.token('evil')}\r\n\r\n".encode()
            )
            assert each.recv(100).startswith(b"HTTP/1.1 200")
            sockets.append(each)
        yield sockets


@pytest.mark.slow
async def test_tails_that_read_nothing_hold_a_long_record_once(hub: GuardedHub) -> None:
    """As text of control characters it is six times as long, and some kB on the wire."""
    with GoodLink(hub) as good:
        async with link_to(hub, HOSTILE) as link:
            await link.greet()
            await link.open(link.opening())
            assert isinstance(await link.deliver(records(0)), Ack)
            wait_until(lambda: hub.get("/v1/streams/telemetry", hub.token("evil"))[0] == 200, what="the stream")
            with tails(hub, ["position=0:0"] * 30):
                before, most = hub.memory_bytes(), 0
                long = records(1, payload=b"\x01" * (4 * MiB), level=3)
                assert isinstance(await link.deliver(long), Ack)
                good.take()
                until = time.monotonic() + 6
                while time.monotonic() < until:
                    most = max(most, hub.memory_bytes())
                    time.sleep(0.1)
                at_most(1, good.take().p99)
        assert most - before < 200 * MiB


@pytest.mark.slow
async def test_tails_whose_filters_match_nothing_take_a_share_of_a_processor(hub: GuardedHub) -> None:
    chunks, size = 60, 500
    with GoodLink(hub) as good:
        async with link_to(hub, HOSTILE) as link:
            await link.greet()
            await link.open(link.opening())
            for number in range(chunks):
                assert isinstance(await link.deliver(records(size * number, size)), Ack)
        began, used = time.monotonic(), processor_s(hub.pid)
        time.sleep(3)
        idle = (processor_s(hub.pid) - used) / (time.monotonic() - began)
        with tails(hub, [f"position=0:{3 * number}&key=none" for number in range(64)]):
            good.take()
            began, used = time.monotonic(), processor_s(hub.pid)
            time.sleep(6)
            used, took = processor_s(hub.pid) - used, time.monotonic() - began
            at_most(1, good.take().p99)
        assert used < SEARCH_AT_ONCE_S + (2 * SEARCH_S + idle) * took, "twice, for what the tails do beside"


# --- A tenant whose records are made to be costly to chart harms its own charts only, and one device those of no
# other


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


@pytest.mark.slow
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


@pytest.mark.slow
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
