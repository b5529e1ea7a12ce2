"""Connections that ask nothing are closed, those of the address with most of them first; others are not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tests.support.waiting import PATIENCE_S, until
from weft.bounds import Owner, OwnerKind, Refusals, address_owner
from weft.network import http_server
from weft.network.http_server import (
    AT_ONCE,
    HEAD_FIELDS_MAX,
    HEAD_LINE_BYTES_MAX,
    IDLE_S_MAX,
    LINGER_BYTES_MAX,
    Bound,
    HttpServer,
)

HALF_A_REQUEST = b"GET / HTTP/1.1\r\nHost: hub\r\nX-Slowly: "
IDLE_MAX = 8
IDLE = Bound(IDLE_MAX, "limits.idle")
OF_ADDRESS = Bound(10, "limits.of_address")
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""Both are kept: a writer that is collected closes its connection."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Server(HttpServer):
    """Answers to ``/``, to ``/slow`` once `resume` is set, and to ``/long`` as long as it is read."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(IDLE, OF_ADDRESS, self.clock, Refusals(self.clock), shutdown_s=1.0)
        self.resume = asyncio.Event()

    async def run(self) -> None:
        async def slow(_: web.Request) -> web.Response:
            await self.resume.wait()
            return web.Response()

        async def fast(_: web.Request) -> web.Response:
            return web.Response()

        async def long(request: web.Request) -> web.StreamResponse:
            answer = web.StreamResponse()
            await answer.prepare(request)
            while True:
                await answer.write(bytes(1 << 16))

        application = web.Application(middlewares=[self.middleware])
        application.add_routes([web.get("/", fast), web.get("/slow", slow), web.get("/long", long)])
        await self.start(application, "127.0.0.1", 0)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    await made.run()
    yield made
    made.resume.set()
    await made.close()


async def half_open(server: HttpServer, data: bytes = HALF_A_REQUEST, source: str = "127.0.0.1") -> Peer:
    reader, writer = await asyncio.open_connection(*server.addresses[0], local_addr=(source, 0))
    writer.write(data)
    return reader, writer


async def closed(peer: Peer) -> bool:
    try:
        return await asyncio.wait_for(peer[0].read(1), PATIENCE_S) == b""
    except ConnectionError:
        return True


async def test_a_head_that_never_ends_is_not_awaited_longer_than_that(server: Server) -> None:
    peer = await half_open(server)
    busy = await half_open(server, b"GET /slow HTTP/1.1\r\nHost: hub\r\n\r\n")
    await until(lambda: len(server._owners) == 1 and server._busy)
    server.clock.now = IDLE_S_MAX - 1
    server.look()
    assert not peer[0].at_eof()
    server.clock.now = IDLE_S_MAX
    server.look()
    assert await closed(peer)
    server.resume.set()
    assert (await busy[0].readline()).startswith(b"HTTP/1.1 200 ")


async def test_a_request_in_between_begins_the_wait_anew(server: Server) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.addresses[0][1]}") as session:
        for _ in range(4):
            async with session.get("/") as answer:
                assert answer.status == 200
            server.clock.now += IDLE_S_MAX - 1
            server.look()
            assert server.connections == 1


async def test_the_address_with_most_idle_connections_loses_the_oldest(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    neighbours = [await half_open(server, source="127.0.0.2") for _ in range(3)]
    await until(lambda: server.connections == 3)
    flood = [await half_open(server) for _ in range(IDLE_MAX - 3)]
    await until(lambda: server.connections == IDLE_MAX)
    with caplog.at_level(logging.WARNING):
        flood += await asyncio.gather(*(half_open(server) for _ in range(200)))
        await until(lambda: server.connections == IDLE_MAX)
    assert await closed(flood[0])
    assert not any(reader.at_eof() for reader, _ in neighbours)
    assert caplog.text.count("address 127.0.0.1 reached its share, limits.idle: closed the connection") == 1


SLOW = b"GET /slow HTTP/1.1\r\nHost: hub\r\n\r\n"


async def test_an_address_has_a_bound_however_busy_its_connections_are(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    busy = [await half_open(server, SLOW) for _ in range(OF_ADDRESS.most)]
    await until(lambda: len(server._busy) == OF_ADDRESS.most)
    with caplog.at_level(logging.WARNING):
        assert await closed(await half_open(server, SLOW))
    assert "address 127.0.0.1 reached its share, limits.of_address: closed the connection" in caplog.text
    good = await half_open(server, b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n", source="127.0.0.2")
    assert (await good[0].readline()).startswith(b"HTTP/1.1 200 ")
    server.resume.set()
    for reader, _ in busy:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    await until(lambda: not server._busy)
    assert not server._busy_of


async def test_an_address_loses_its_longest_idle_connection_first(server: Server) -> None:
    idle = await half_open(server)
    await until(lambda: len(server._owners) == 1)
    busy = [await half_open(server, SLOW) for _ in range(OF_ADDRESS.most)]
    assert await closed(idle)
    await until(lambda: len(server._busy) == OF_ADDRESS.most)
    server.resume.set()
    for reader, _ in busy:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_clients_that_connect_for_each_request_are_no_reason_to_close_another(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    idle = await half_open(server)
    await until(lambda: len(server._owners) == 1)
    for _ in range(3 * OF_ADDRESS.most):
        reader, writer = await half_open(server, b"GET / HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert not idle[0].at_eof()
    assert "reached its share" not in caplog.text


async def test_connections_that_end_are_forgotten(server: Server) -> None:
    for _ in range(3):
        peers = await asyncio.gather(*(half_open(server) for _ in range(IDLE_MAX)))
        await until(lambda: len(server._owners) == IDLE_MAX)
        for _, writer in peers:
            writer.close()
        await until(lambda: server.connections == 0)
        server.look()
        assert not server._owners
        assert not server._idle


async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing(server: Server) -> None:
    other = HttpServer(IDLE, OF_ADDRESS, server.clock, Refusals(server.clock), shutdown_s=1.0)
    with pytest.raises(OSError, match="in use"):
        await other.start(web.Application(), *server.addresses[0])
    await other.close()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_customer_s_addresses_are_one_owner(address: str, name: str) -> None:
    assert address_owner(address) == Owner(OwnerKind.ADDRESS, name)


BAD_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"


async def test_bad_requests_are_few_short_lines_without_a_traceback(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def ask_now(data: bytes) -> bytes:
        # The server closes before it has read everything, so the rest is reset. What was answered comes before that,
        # and a stream of asyncio would raise without it.
        with socket.create_connection(server.addresses[0], PATIENCE_S) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
            return client.recv(1000)

    async def ask(data: bytes) -> bytes:
        return await asyncio.to_thread(ask_now, data)

    caplog.set_level(logging.INFO)
    for clock in (1.0, 1.5, 1.9, 2.5):
        server.clock.now = clock
        assert b" 400 " in await ask(BAD_REQUEST)
    assert b" 400 " in await ask(b"G" * 200_000 + b"\r\n\r\n")
    server.clock.now = 10.0
    assert b" 400 " in await ask(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n")
    lines = [record for record in caplog.records if "handling request" in record.getMessage()]
    assert [record.levelname for record in lines] == ["WARNING"] * 3
    assert all(record.exc_info is None and len(record.getMessage()) < 400 for record in lines)
    assert "(2 such requests before this one)" in lines[1].getMessage()
    assert "\n" not in caplog.text.strip().replace("\nWARNING", "")


async def test_a_reader_that_leaves_within_its_answer_is_no_line_of_the_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        reader, writer = await half_open(server, b"GET /long HTTP/1.1\r\nHost: hub\r\n\r\n")
        await reader.readexactly(1000)
        writer.transport.abort()
        await until(lambda: server.connections == 0)
        await until(lambda: not server._busy)
    assert caplog.text == ""


async def test_all_addresses_of_both_families_have_one_port() -> None:
    clock = [0.0]
    server = HttpServer(IDLE, OF_ADDRESS, lambda: clock[0], Refusals(lambda: clock[0]), shutdown_s=1.0)
    await server.start(web.Application(middlewares=[server.middleware]), "*", 0)
    try:
        addresses = dict(server.addresses)
        assert len(set(addresses.values())) == 1
        for host, port in addresses.items():
            _, writer = await asyncio.open_connection("::1" if ":" in host else "127.0.0.1", port)
            writer.close()
    finally:
        await server.close()


async def test_a_connection_ends_with_a_request_that_is_refused(server: Server) -> None:
    asked = b"GET /none HTTP/1.1\r\nHost: hub\r\n\r\n" * 8
    reader, writer = await half_open(server, asked)
    said = await asyncio.wait_for(reader.read(), PATIENCE_S)
    assert said.count(b"HTTP/1.1 404 ") == 1, "the others were not looked at"
    assert b"Connection: close" in said
    writer.close()


async def test_a_flood_of_one_address_takes_turns_with_others() -> None:
    server = Server()
    await server.run()
    try:
        order: list[str] = []
        turns, flood, good = server._turns, Owner(OwnerKind.ADDRESS, "10.0.0.9"), Owner(OwnerKind.ADDRESS, "10.0.0.1")

        async def ask(owner: Owner) -> None:
            await turns.next(owner)
            order.append(owner.name)

        async with asyncio.TaskGroup() as group:
            for _ in range(1_000):
                group.create_task(ask(flood))
            group.create_task(ask(good))
        assert order.index(good.name) <= AT_ONCE + 2, "behind one turn's work"
    finally:
        await server.close()


# What is done around the application's code.

POST = b"POST /none HTTP/1.1\r\nHost: hub\r\n"


def sent_before_it_reads(server: HttpServer, data: bytes, times: int = 1) -> tuple[int, bytes]:
    """Send as often as the server takes it; return how many bytes, and what it says until it ends the connection."""
    sent, heard = 0, b""
    with socket.create_connection(server.addresses[0], PATIENCE_S) as client:
        with contextlib.suppress(ConnectionError):
            for _ in range(times):
                client.sendall(data)
                sent += len(data)
        with contextlib.suppress(ConnectionError):
            while more := client.recv(1 << 16):
                heard += more
    return sent, heard


async def test_a_client_that_sends_all_before_it_reads_gets_its_answer(server: Server) -> None:
    for _ in range(8):
        body = POST + b"Content-Length: 4000000\r\n\r\n" + bytes(4_000_000)
        sent, heard = await asyncio.to_thread(sent_before_it_reads, server, body)
        assert (sent, heard[:13], heard[-14:]) == (len(body), b"HTTP/1.1 404 ", b"404: Not Found")


async def test_a_body_that_nobody_wants_is_not_read_for_long(server: Server) -> None:
    endless = POST + b"Content-Length: 99999999999\r\n\r\n" + bytes(1 << 20)
    sent, _ = await asyncio.to_thread(sent_before_it_reads, server, endless, 256)
    assert sent < LINGER_BYTES_MAX + (32 << 20), "that, and what the system's buffers hold"
    await until(lambda: server.connections == 0)


@pytest.mark.parametrize("rest", [b"", b"3\r\nabc\r\n", b"3;" + b"x" * 100_000, b"no chunk\r\n"])
async def test_a_body_that_never_ends_ends_the_connection(
    server: Server, rest: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "LINGER_S", 0.05)
    reader, writer = await half_open(server, POST + b"Transfer-Encoding: chunked\r\n\r\n")
    assert b" 404 " in await asyncio.wait_for(reader.readuntil(b"404: Not Found"), PATIENCE_S)
    writer.write(rest)
    assert await closed((reader, writer))
    assert "Traceback" not in caplog.text


async def test_requests_that_the_application_never_sees_are_refused_like_others(server: Server) -> None:
    for asked, status in (
        (b"GET / HTTP/1.1\r\nHost: hub\r\nExpect: more\r\n\r\n", b"417"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"BAD\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: hub\r\nX: " + b"x" * HEAD_LINE_BYTES_MAX + b"x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: hub\r\n" + b"X: x\r\n" * HEAD_FIELDS_MAX + b"\r\n", b"400"),
    ):
        _, heard = await asyncio.to_thread(sent_before_it_reads, server, asked * 8)
        assert heard.split()[1] == status
        assert heard.count(b"HTTP/1.") == 1, "the others were not looked at"
        assert b"\r\nServer: weft\r\n" in heard
    reader, writer = await half_open(server, b"GET /long HTTP/1.1\r\nHost: hub\r\n\r\n")
    assert b"\r\nServer: weft\r\n" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    writer.close()
