"""A tenant has its share of the answers that are not read yet, however many tokens it has, and a reader its time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from weft.bounds import Owner, OwnerKind, Refusals
from weft.cloud_hub.api import answers as bounds
from weft.cloud_hub.api.access import ApiError, Charged
from weft.cloud_hub.api.answers import Answers, LongAnswer

MiB = 1 << 20


def reader(tenant: str, token: int = 0) -> Charged:
    return Charged(Owner(OwnerKind.TOKEN, f"{tenant}-{token}"), Owner(OwnerKind.TENANT, tenant))


@pytest.fixture
def answers() -> Answers:
    return Answers(8 * MiB, Refusals(lambda: 0.0))


async def test_a_tenant_with_many_tokens_leaves_room_for_others(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "WAIT_S", 0.0)
    async with contextlib.AsyncExitStack() as held:
        refused = 0
        for token in range(32):
            for _ in range(4):
                try:
                    await held.enter_async_context(answers.room(reader("evil", token)))
                except ApiError:
                    refused += 1
        assert refused == 32 * 4 - bounds.AT_ONCE_OF_TENANT
        async with answers.room(reader("good")):
            pass
    assert answers.bytes == 0


@contextlib.asynccontextmanager
async def sending(answers: Answers, answer: LongAnswer) -> AsyncIterator[socket.socket]:
    """A reader that has asked, and has not read yet."""

    async def get(request: web.Request) -> web.StreamResponse:
        async with answers.room(reader("good")) as place:
            return await answers.send(request, answer, reader("good"), place)

    app = web.Application()
    app.add_routes([web.get("/", get)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        with socket.socket() as asking:
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asking.connect(runner.addresses[0])
            asking.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(asking, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            yield asking
    finally:
        await runner.cleanup()


async def test_an_answer_counts_as_what_is_left_of_it(answers: Answers) -> None:
    answer = LongAnswer([bytes(100_000) for _ in range(160)])
    seen, left = [], sum(map(len, answer.parts))
    async with sending(answers, answer) as asking:
        while left > 0:
            got = await asyncio.get_running_loop().sock_recv(asking, 64 << 10)
            left -= len(got)
            assert got
            seen.append(answers.bytes)
            assert answers.bytes >= sum(map(len, answer.parts)), "no less than it holds"
    assert max(seen) > 8 * MiB, "more than an answer was expected to hold"
    assert any(0 < each < 4 * MiB for each in seen)


async def test_a_reader_that_takes_too_long_for_the_whole_is_disconnected(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "PIECE_S", 1.0)
    monkeypatch.setattr(bounds, "LEAST_BYTES_PER_S", 1 << 30)
    answer = LongAnswer([bytes(MiB) for _ in range(64)])
    async with sending(answers, answer) as asking:
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(asking, 256 << 10):  # noqa: ASYNC110 - each is in time
                await asyncio.sleep(0.05)
        assert answer.parts, "it did not get the whole"
    assert answers.bytes == 0
