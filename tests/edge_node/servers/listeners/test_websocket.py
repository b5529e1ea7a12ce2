"""WebSocket as clients know it: packets in any number of messages, and who may connect."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from tests.network.echo import EchoListener, echoing
from tests.support.waiting import PATIENCE_S, until
from weft.edge_node.servers.listeners.settings import WebSocketSettings
from weft.network.admission import AdmissionLimits

MESSAGE_BYTES_MAX = 64 << 10
LIMITS = AdmissionLimits(websocket_message_bytes_max=MESSAGE_BYTES_MAX, connect_timeout_s=0.5)


@pytest.fixture
async def listener() -> AsyncIterator[EchoListener]:
    async with echoing(websocket=WebSocketSettings(), limits=LIMITS) as opened:
        yield opened


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def url(listener: EchoListener, path: str = "/mqtt") -> str:
    return f"http://127.0.0.1:{listener.port}{path}"


async def connect(
    http: aiohttp.ClientSession, listener: EchoListener, **options: Any
) -> aiohttp.ClientWebSocketResponse:
    return await http.ws_connect(url(listener), **{"protocols": ("mqtt",)} | options)


async def test_messages_become_bytes_and_bytes_become_messages(
    listener: EchoListener, http: aiohttp.ClientSession
) -> None:
    for protocol in ("mqtt", "mqttv3.1"):
        async with await connect(http, listener, protocols=("other", protocol)) as client:
            assert client.protocol == protocol
            await client.send_bytes(b"hel")
            await client.send_bytes(b"lo")
            received = b""
            while len(received) < 5:
                received += await client.receive_bytes()
            assert received == b"hello"
            assert listener.counters.connections == 1
            assert listener.listener_counters.connections_half_open == 0
        await until(lambda: listener.counters.connections == 0)


async def test_the_server_closes_with_a_closing_frame(listener: EchoListener, http: aiohttp.ClientSession) -> None:
    async with await connect(http, listener) as client:
        await client.send_bytes(b"hello")
        assert await client.receive_bytes() == b"hello"
        listener.echoes[0].transport.write(b"the last words")
        listener.echoes[0].transport.close()
        assert await client.receive_bytes() == b"the last words"
        assert (await client.receive()).type is WSMsgType.CLOSE
    await until(lambda: "lost" in listener.echoes[0].calls)


async def test_text_is_no_mqtt(listener: EchoListener, http: aiohttp.ClientSession) -> None:
    async with await connect(http, listener) as client:
        await client.send_str("hello")
        message = await client.receive()
        assert (message.type, message.data) == (WSMsgType.CLOSE, 1003)
        assert listener.echoes[0].received == b""


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 404),
        ("/mqtt", {"Upgrade": "h2c"}, 426),
        ("/mqtt", {"Sec-WebSocket-Protocol": "chat"}, 400),
        ("/mqtt", {"Origin": "https://evil.example.com"}, 403),
        ("/mqtt", {"Origin": "null"}, 403),
        ("/mqtt", {"Sec-WebSocket-Version": "6"}, 400),
    ],
)
async def test_other_requests_are_told_what_is_wrong(
    listener: EchoListener, http: aiohttp.ClientSession, path: str, headers: dict[str, str], status: int
) -> None:
    asked = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    async with http.get(url(listener, path), headers=asked | headers) as answer:
        assert answer.status == status
    await until(lambda: listener.counters.connections == 0)
    assert listener.echoes == []


async def test_pages_of_the_listener_itself_and_those_named_may_connect(http: aiohttp.ClientSession) -> None:
    async with echoing(websocket=WebSocketSettings()) as listener:
        async with await connect(http, listener, origin=f"http://127.0.0.1:{listener.port}") as client:
            await client.send_bytes(b"hello")
            assert await client.receive_bytes() == b"hello"
    settings = WebSocketSettings(origins=("https://dash.example.com",))
    async with echoing(websocket=settings) as listener:
        async with await connect(http, listener, origin="https://dash.example.com"):
            pass
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await connect(http, listener, origin="http://127.0.0.1:3000")


async def test_who_never_upgrades_or_never_says_who_it_is_is_closed_in_time(
    listener: EchoListener, http: aiohttp.ClientSession
) -> None:
    reader, writer = await listener.open()
    writer.write(b"GET /mqtt HTTP/1.1\r\nHost: x\r\n")
    slow_reader, slow_writer = await listener.open()
    async with await connect(http, listener) as client:
        assert (await client.receive()).type in (WSMsgType.CLOSED, WSMsgType.CLOSE, WSMsgType.ERROR)
    for each in (reader, slow_reader):
        assert await asyncio.wait_for(each.read(), PATIENCE_S) == b""
    await until(lambda: listener.counters.connections == 0)
    assert listener.counters.connect_timeouts == 3
    writer.close()
    slow_writer.close()


async def test_a_slow_reader_pauses_writing_and_memory_stays_bounded(
    listener: EchoListener, http: aiohttp.ClientSession
) -> None:
    async with await connect(http, listener, max_msg_size=0) as client:
        await client.send_bytes(b"hello")
        await client.receive_bytes()
        (echo,) = listener.echoes
        transport, sent = echo.transport, 0
        client._response.connection.transport.pause_reading()  # type: ignore[union-attr]
        while "pause" not in echo.calls:
            transport.write(b"x" * 10_000)
            sent += 10_000
            await asyncio.sleep(0)
        assert transport.get_write_buffer_size() < 1 << 20
        client._response.connection.transport.resume_reading()  # type: ignore[union-attr]
        received = 0
        while received < sent:
            received += len(await client.receive_bytes())
        await until(lambda: echo.calls == ["pause", "resume"])


async def test_reading_pauses(listener: EchoListener, http: aiohttp.ClientSession) -> None:
    async with await connect(http, listener) as client:
        await client.send_bytes(b"a")
        await client.receive_bytes()
        (echo,) = listener.echoes
        echo.transport.pause_reading()
        await client.send_bytes(b"b")  # the reader was waiting for this one
        await client.send_bytes(b"c")
        await asyncio.sleep(0.05)
        assert echo.received in (b"a", b"ab")
        echo.transport.resume_reading()
        await until(lambda: echo.received == b"abc")
