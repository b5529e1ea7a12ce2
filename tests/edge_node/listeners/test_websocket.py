"""WebSocket: packets in any number of messages, who may connect, and frames that mean harm."""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from edge_node.listeners.settings import DoorLimits, WebSocketSettings
from tests.edge_node.listeners.echo import PATIENCE_S, Door, echoing, until

MESSAGE_BYTES_MAX = 64 << 10
LIMITS = DoorLimits(websocket_message_bytes_max=MESSAGE_BYTES_MAX, connect_timeout_s=0.5)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with echoing(websocket=WebSocketSettings(), limits=LIMITS) as opened:
        yield opened


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def url(door: Door, path: str = "/mqtt") -> str:
    return f"http://127.0.0.1:{door.port}{path}"


async def connect(http: aiohttp.ClientSession, door: Door, **options: Any) -> aiohttp.ClientWebSocketResponse:
    return await http.ws_connect(url(door), **{"protocols": ("mqtt",)} | options)


async def test_messages_become_bytes_and_bytes_become_messages(door: Door, http: aiohttp.ClientSession) -> None:
    for protocol in ("mqtt", "mqttv3.1"):
        async with await connect(http, door, protocols=("other", protocol)) as client:
            assert client.protocol == protocol
            await client.send_bytes(b"hel")
            await client.send_bytes(b"lo")
            received = b""
            while len(received) < 5:
                received += await client.receive_bytes()
            assert received == b"hello"
            assert door.counters.connections == 1
            assert door.door_counters.connections_half_open == 0
        await until(lambda: door.counters.connections == 0)


async def test_the_server_closes_with_a_closing_frame(door: Door, http: aiohttp.ClientSession) -> None:
    async with await connect(http, door) as client:
        await client.send_bytes(b"hello")
        assert await client.receive_bytes() == b"hello"
        door.echoes[0].transport.write(b"the last words")
        door.echoes[0].transport.close()
        assert await client.receive_bytes() == b"the last words"
        assert (await client.receive()).type is WSMsgType.CLOSE
    await until(lambda: "lost" in door.echoes[0].calls)


async def test_text_is_no_mqtt(door: Door, http: aiohttp.ClientSession) -> None:
    async with await connect(http, door) as client:
        await client.send_str("hello")
        message = await client.receive()
        assert (message.type, message.data) == (WSMsgType.CLOSE, 1003)
        assert door.echoes[0].received == b""


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
    door: Door, http: aiohttp.ClientSession, path: str, headers: dict[str, str], status: int
) -> None:
    asked = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    async with http.get(url(door, path), headers=asked | headers) as answer:
        assert answer.status == status
    await until(lambda: door.counters.connections == 0)
    assert door.echoes == []


async def test_pages_of_the_same_host_and_those_named_may_connect(http: aiohttp.ClientSession) -> None:
    async with echoing(websocket=WebSocketSettings()) as door:
        async with await connect(http, door, origin="http://127.0.0.1:3000") as client:
            await client.send_bytes(b"hello")
            assert await client.receive_bytes() == b"hello"
    settings = WebSocketSettings(origins=("https://dash.example.com",))
    async with echoing(websocket=settings) as door:
        async with await connect(http, door, origin="https://dash.example.com"):
            pass
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await connect(http, door, origin="http://127.0.0.1:3000")


async def test_who_never_upgrades_or_never_says_who_it_is_is_closed_in_time(
    door: Door, http: aiohttp.ClientSession
) -> None:
    reader, writer = await door.open()
    writer.write(b"GET /mqtt HTTP/1.1\r\nHost: x\r\n")
    slow_reader, slow_writer = await door.open()
    async with await connect(http, door) as client:
        assert (await client.receive()).type in (WSMsgType.CLOSED, WSMsgType.CLOSE, WSMsgType.ERROR)
    for each in (reader, slow_reader):
        assert await asyncio.wait_for(each.read(), PATIENCE_S) == b""
    await until(lambda: door.counters.connections == 0)
    assert door.counters.connect_timeouts == 3
    writer.close()
    slow_writer.close()


async def test_a_slow_reader_pauses_writing_and_memory_stays_bounded(door: Door, http: aiohttp.ClientSession) -> None:
    async with await connect(http, door, max_msg_size=0) as client:
        await client.send_bytes(b"hello")
        await client.receive_bytes()
        (echo,) = door.echoes
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


async def test_reading_pauses(door: Door, http: aiohttp.ClientSession) -> None:
    async with await connect(http, door) as client:
        await client.send_bytes(b"a")
        await client.receive_bytes()
        (echo,) = door.echoes
        echo.transport.pause_reading()
        await client.send_bytes(b"b")  # the reader was waiting for this one
        await client.send_bytes(b"c")
        await asyncio.sleep(0.05)
        assert echo.received in (b"a", b"ab")
        echo.transport.resume_reading()
        await until(lambda: echo.received == b"abc")


# --- frames that no library sends


def frame(
    payload: bytes, opcode: int = 2, *, final: bool = True, length: int | None = None, mask: bool = True
) -> bytes:
    """One frame, masked with zeros."""
    size = len(payload) if length is None else length
    head = bytes([opcode | (0x80 if final else 0)])
    bit = 0x80 if mask else 0
    if size < 126:
        head += bytes([bit | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", bit | 126, size)
    else:
        head += struct.pack("!BQ", bit | 127, size)
    return head + (b"\0\0\0\0" if mask else b"") + payload


async def raw(door: Door) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An open WebSocket whose frames the test makes."""
    reader, writer = await door.open()
    writer.write(
        b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101")
    writer.write(frame(b"hello"))
    assert await reader.readexactly(7) == b"\x82\x05hello"
    return reader, writer


@pytest.mark.parametrize(
    "data",
    [
        frame(b"x" * (MESSAGE_BYTES_MAX + 1)),
        frame(b"", length=1 << 62),
        frame(b"x" * 1000, final=False) + frame(b"x" * 1000, 0, final=False) * (MESSAGE_BYTES_MAX // 1000),
        frame(b"x", 0),
        frame(b"x", 3),
        frame(b"x", 0x82 | 0x40),
        frame(b"x" * 126, 9),
        frame(b"x", 9, final=False),
    ],
    ids=["long", "endless", "fragments", "continues nothing", "opcode", "reserved bit", "long ping", "cut ping"],
)
async def test_a_bad_frame_ends_its_connection_and_no_other(door: Door, data: bytes) -> None:
    good_reader, good_writer = await raw(door)
    reader, writer = await raw(door)
    writer.write(data)
    writer.write(frame(b"x" * 1000, 0, final=False))
    async with asyncio.timeout(PATIENCE_S):
        try:
            rest = await reader.read()
        except ConnectionResetError:
            rest = b""
    assert not rest or rest[0] == 0x88, "nothing but a closing frame"
    await until(lambda: door.counters.connections == 1)
    assert door.echoes[1].received == b"hello"
    good_writer.write(frame(b"still"))
    assert await good_reader.readexactly(7) == b"\x82\x05still"
    for each in (writer, good_writer):
        each.transport.abort()


async def test_a_message_in_many_small_fragments_is_whole(door: Door) -> None:
    reader, writer = await raw(door)
    writer.write(frame(b"a", final=False) + frame(b"b", 0, final=False) * 1000 + frame(b"?", 9) + frame(b"c", 0))
    assert await reader.readexactly(3) == b"\x8a\x01?"
    assert await reader.readexactly(4 + 1002) == b"\x82\x7e\x03\xea" + b"a" + b"b" * 1000 + b"c"
    writer.transport.abort()
