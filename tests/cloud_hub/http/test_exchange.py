"""A tenant has its share of the answers that are not read yet, however many tokens it has, and a reader its time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import PATIENCE_S, until
from weft.bounds import Owner, OwnerKind, Refusals
from weft.cloud_hub.auth.access import Charged
from weft.cloud_hub.http import exchange as bounds
from weft.cloud_hub.http.exchange import PIECE_BYTES, Answers, LongAnswer, pieces
from weft.cloud_hub.reads.views import Part
from weft.hub_api.answers import ApiError

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
async def sending(
    answers: Answers, answer: LongAnswer, asks: Charged = reader("good"), method: str = "GET"
) -> AsyncIterator[socket.socket]:
    """A reader that has asked, and has not read yet."""

    async def get(request: web.Request) -> web.StreamResponse:
        async with answers.room(asks) as room:
            return await answers.send(request, answer, room)

    app = web.Application()
    app.add_routes([web.route(method, "/", get)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        with socket.socket() as asking:
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            asking.connect(runner.addresses[0])
            asking.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(asking, f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            yield asking
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_answer_counts_as_what_is_left_of_it(answers: Answers, method: str) -> None:
    answer = LongAnswer([bytes(100_000) for _ in range(160)])
    seen, left = [], sum(map(len, answer.parts))
    async with sending(answers, answer, method=method) as asking:
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
            while await asyncio.get_running_loop().sock_recv(asking, 256 << 10) and answers.bytes:  # noqa: ASYNC110 - each is in time
                await asyncio.sleep(0.05)
        assert answer.parts, "it did not get the whole"
    assert answers.bytes == 0


@pytest.mark.parametrize("is_late", [False, True])
async def test_who_gives_up_as_its_turn_comes_leaves_it_to_the_next(answers: Answers, *, is_late: bool) -> None:
    evil, in_turn = reader("evil"), list[int]()

    async def wait(number: int) -> None:
        async with answers.turn(evil):
            in_turn.append(number)

    async with contextlib.AsyncExitStack() as held:
        rooms = [await held.enter_async_context(answers.room(evil)) for _ in range(bounds.AT_ONCE_OF_OWNER)]
        tasks = [asyncio.create_task(wait(number)) for number in range(2)]
        await asyncio.sleep(0)
        if is_late:
            rooms[0].holds(0)
        tasks[0].cancel()
        rooms[0].holds(0)
        await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert in_turn == [1]
    assert answers.bytes == 0


async def test_an_answer_of_any_length_keeps_out_its_own_reader_alone(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record more may make an answer longer than all others together."""
    monkeypatch.setattr(bounds, "WAIT_S", 0.0)
    total = bounds.AT_ONCE * 8 * MiB
    async with sending(answers, LongAnswer([bytes(MiB)] * 300), reader("evil")):
        await until(lambda: answers.bytes > 2 * total)
        for other in (reader("good"), reader("good", 1), reader("evil", 1)):
            async with answers.room(other), answers.room(other):
                pass
        with pytest.raises(ApiError):
            async with answers.room(reader("evil")):
                pass
    await until(lambda: answers.bytes == 0)
    async with answers.room(reader("evil")):
        pass


def test_a_longer_answer_buys_no_more_time(answers: Answers) -> None:
    """At the least rate a whole answer has its time, with a third more for the form of its payloads."""
    assert answers.longest_s(11 * MiB) == bounds.PIECE_S + 11 * MiB / bounds.LEAST_BYTES_PER_S
    assert answers.longest_s(1 << 40) < 4 * 60


READERS = [reader(tenant, token) for tenant in ("evil", "good", "third") for token in range(3)]
STEP = st.one_of(
    st.tuples(st.sampled_from(["room", "turn"]), st.sampled_from(READERS)),
    st.tuples(st.sampled_from(["leave", "give up"]), st.integers(0, 7)),
    st.tuples(st.just("hold"), st.tuples(st.integers(0, 7), st.integers(0, 400))),
)
STEPS = st.lists(st.tuples(STEP, st.booleans()), max_size=80)
"""What readers do, and whether the loop runs before the next."""


@given(STEPS)
def test_who_waits_has_no_room_and_gets_in_as_soon_as_there_is_some(steps: list[tuple[tuple[str, Any], bool]]) -> None:
    """By any order of readers that come, hold more or less than they were expected to, leave, and give up."""
    asyncio.run(take(steps))


async def take(steps: list[tuple[tuple[str, Any], bool]]) -> None:
    answers = Answers(MiB, Refusals(lambda: 0.0))
    held: dict[asyncio.Task[None], tuple[Charged, int]] = {}
    rooms, leaving = dict[asyncio.Task[None], bounds.AnswerRoom](), dict[asyncio.Task[None], asyncio.Event]()
    waiting: list[tuple[asyncio.Task[None], Charged]] = []

    async def ask(kind: str, asks: Charged, leave: asyncio.Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with answers.room(asks) if kind == "room" else answers.turn(asks) as room:
                held[task], rooms[task] = (asks, MiB), room
                await leave.wait()
        finally:
            held.pop(task, None)

    async def settle() -> None:
        for _ in range(6):
            await asyncio.sleep(0)
        waiting[:] = [each for each in waiting if each[0] not in rooms and not each[0].done()]
        assert answers.bytes == sum(size for _, size in held.values())
        for _, each in waiting:
            own = sum(size for who, size in held.values() if who == each)
            tenants: dict[object, int] = {}
            for owner in READERS:
                beside = sum(size for who, size in held.values() if who == owner)
                tenants[owner.tenant] = tenants.get(owner.tenant, 0) + min(beside, bounds.AT_ONCE_OF_OWNER * MiB)
            total = sum(min(size, bounds.AT_ONCE_OF_TENANT * MiB) for size in tenants.values())
            assert (
                own + MiB > bounds.AT_ONCE_OF_OWNER * MiB
                or tenants[each.tenant] + MiB > bounds.AT_ONCE_OF_TENANT * MiB
                or total + MiB > bounds.AT_ONCE * MiB
            ), "it waits for nothing"

    for (kind, what), is_followed in steps:
        if isinstance(what, Charged):
            leave = asyncio.Event()
            task = asyncio.create_task(ask(kind, what, leave))
            leaving[task] = leave
            waiting.append((task, what))
        elif isinstance(what, tuple):
            for task in list(held)[what[0] : what[0] + 1]:
                held[task] = held[task][0], what[1] * MiB // 100
                rooms[task].holds(held[task][1])
        elif kind == "leave":
            for task in list(held)[what : what + 1]:
                leaving[task].set()
        else:
            for task, _ in waiting[what : what + 1]:
                task.cancel()
        if is_followed:
            await settle()
    await settle()
    while held:
        leaving[next(iter(held))].set()
        await settle()
    assert not waiting
    assert answers.bytes == 0
    assert not answers._queues, "nothing is remembered of those who waited"


# --- A long answer goes out in pieces that are its bytes


SIZES = st.lists(
    st.sampled_from([0, 1, 2, 100_000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 600_000]), max_size=8
)


@given(SIZES)
def test_pieces_are_the_bytes_of_all_parts_and_none_is_long(sizes: list[int]) -> None:
    parts = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    left: list[Part] = [msgspec.Raw(part) if number % 2 else part for number, part in enumerate(parts)]
    found = list(pieces(left))
    assert not left, "what was sent is not held"
    assert b"".join(found) == b"".join(parts)
    assert all(len(piece) == PIECE_BYTES for piece in found[:-1])
    assert all(0 < len(piece) <= PIECE_BYTES for piece in found)
