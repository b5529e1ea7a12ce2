"""WebSocket a byte at a time: frames as no library sends them, and frames that mean harm."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import random
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType
from hypothesis import given
from hypothesis import strategies as st

from tests.network.echo import EchoListener, echoing
from tests.support.waiting import PATIENCE_S, until
from weft.edge_node.servers.listeners.settings import WebSocketSettings
from weft.edge_node.servers.listeners.websocket_connection import (
    END,
    REASON_LENGTH_MAX,
    UpgradeRefused,
    too_long,
    upgrade,
)
from weft.network.admission import AdmissionLimits

MESSAGE_BYTES_MAX = 64 << 10
LIMITS = AdmissionLimits(websocket_message_bytes_max=MESSAGE_BYTES_MAX)
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def listener() -> AsyncIterator[EchoListener]:
    async with echoing(websocket=WebSocketSettings(), limits=LIMITS) as opened:
        yield opened


def frame(
    payload: bytes, opcode: int = BINARY, *, final: bool = True, length: int | None = None, mask: bytes = bytes(4)
) -> bytes:
    """One frame of a client; of a server without a mask."""
    size = len(payload) if length is None else length
    head = bytes([opcode | (0x80 if final else 0)])
    bit = 0x80 if mask else 0
    if size < 126:
        head += bytes([bit | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", bit | 126, size)
    else:
        head += struct.pack("!BQ", bit | 127, size)
    return head + mask + (bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if any(mask) else payload)


async def raw(listener: EchoListener) -> Streams:
    """An open WebSocket whose frames the test makes."""
    reader, writer = await listener.open()
    listener.clients.append(writer)
    writer.write(UPGRADE)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101")
    writer.write(frame(b"hello"))
    assert await received(reader) == (BINARY, b"hello")
    return reader, writer


async def received(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The opcode and the payload of the server's next frame."""
    async with asyncio.timeout(PATIENCE_S):
        first, length = await reader.readexactly(2)
        if length > 125:
            length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
        return first & 0x7F, await reader.readexactly(length)


async def until_closed(reader: asyncio.StreamReader) -> tuple[bytes, int]:
    """Bytes that come up to the closing frame, and the code in that; nothing follows it."""
    data = b""
    while (each := await received(reader))[0] != CLOSE:
        data += each[1]
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    return data, int.from_bytes(each[1][:2], "big")


# --- good frames


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        ("82 85 37 fa 21 3d 7f 9f 4d 51 58", "82 05 48 65 6c 6c 6f"),
        ("89 85 37 fa 21 3d 7f 9f 4d 51 58", "8a 05 48 65 6c 6c 6f"),
        ("88 80 00 00 00 00", "88 00"),
        ("88 82 00 00 00 00 03 e8", "88 02 03 e8"),
    ],
    ids=["binary", "ping", "close", "close 1000"],
)
async def test_the_examples_of_the_standard(listener: EchoListener, sent: str, answered: str) -> None:
    """RFC 6455 section 5.7, with binary in place of text."""
    reader, writer = await raw(listener)
    writer.write(bytes.fromhex(sent))
    expected = bytes.fromhex(answered)
    assert await asyncio.wait_for(reader.readexactly(len(expected)), PATIENCE_S) == expected


@pytest.mark.parametrize(
    ("size", "head"),
    [(125, "82 7d"), (126, "82 7e 00 7e"), (65_535, "82 7e ff ff"), (65_536, "82 7f 00 00 00 00 00 01 00 00")],
)
async def test_lengths_have_their_shortest_form(listener: EchoListener, size: int, head: str) -> None:
    reader, _ = await raw(listener)
    listener.echoes[0].transport.write(bytes(size))
    expected = bytes.fromhex(head) + bytes(size)
    assert await asyncio.wait_for(reader.readexactly(len(expected)), PATIENCE_S) == expected


@pytest.mark.parametrize("seed", range(5))
async def test_bytes_come_whole_however_frames_and_reads_cut_them(listener: EchoListener, seed: int) -> None:
    chance = random.Random(seed)
    sent, data, pings = b"", b"", 0
    for _ in range(20):
        fragments = [chance.randbytes(chance.choice((0, 1, 100, 200))) for _ in range(chance.randint(1, 4))]
        for at, fragment in enumerate(fragments):
            final, mask = at == len(fragments) - 1, chance.randbytes(4)
            data += frame(fragment, CONTINUATION if at else BINARY, final=final, mask=mask)
            data += frame(b"?", PING, mask=mask)
            pings += 1
        sent += b"".join(fragments)
    reader, writer = await raw(listener)
    while data:
        size = chance.randint(1, 60)
        writer.write(data[:size])
        data = data[size:]
        await asyncio.sleep(0)
    got, pongs = b"", 0
    while pongs < pings or len(got) < len(sent):
        opcode, payload = await received(reader)
        assert opcode == BINARY or (opcode, payload) == (PONG, b"?")
        got, pongs = (got + payload, pongs) if opcode == BINARY else (got, pongs + 1)
    assert (got, pongs) == (sent, pings)


async def test_who_does_not_wait_for_the_answer_is_answered_in_order(listener: EchoListener) -> None:
    reader, writer = await listener.open()
    data = UPGRADE + frame(b"hel") + frame(b"?", PING) + frame(b"lo") + frame(b"\x03\xe8", CLOSE)
    writer.write(data[:100])
    await asyncio.sleep(0)
    writer.write(data[100:])
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    assert (await until_closed(reader))[1] == 1000
    await until(lambda: listener.counters.connections == 0)
    assert listener.echoes[0].received == b"hello"
    writer.close()


async def test_after_our_closing_frame_nothing_is_answered(listener: EchoListener) -> None:
    """Nor passed on; the client's closing frame ends the connection."""
    reader, writer = await raw(listener)
    listener.echoes[0].transport.close()
    writer.write(frame(b"?", PING) + frame(b"ignored") + frame(b"\x03\xe8", CLOSE))
    assert await until_closed(reader) == (b"", 1000)
    assert listener.echoes[0].received == b"hello"


# --- ends


async def test_who_does_not_answer_a_closing_frame_is_not_waited_for(
    listener: EchoListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.edge_node.servers.listeners.websocket_connection.CLOSE_TIMEOUT_S", 0.05)
    reader, _ = await raw(listener)
    listener.echoes[0].transport.close()
    listener.echoes[0].transport.write(b"too late")
    assert await received(reader) == (CLOSE, b"\x03\xe8")
    await until(lambda: "lost" in listener.echoes[0].calls)


@pytest.mark.parametrize("last", [frame(b"\x03\xe8", CLOSE), frame(b"x", 3)], ids=["closed", "broken"])
async def test_who_does_not_read_to_the_end_is_not_waited_for(
    listener: EchoListener, monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    monkeypatch.setattr("weft.edge_node.servers.listeners.websocket_connection.CLOSE_TIMEOUT_S", 0.05)
    _, writer = await raw(listener)
    (echo,) = listener.echoes
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    while "pause" not in echo.calls:
        echo.transport.write(bytes(1 << 20))
        await asyncio.sleep(0)
    writer.write(last)
    await until(lambda: "lost" in echo.calls)
    assert listener.counters.connections == 0


# --- bad frames


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"x" * (MESSAGE_BYTES_MAX + 1)), 1009),
        (frame(b"", length=1 << 62), 1009),
        (frame(b"x", mask=b""), 1002),
        (frame(b"x", CONTINUATION), 1002),
        (frame(b"x", 3), 1002),
        (frame(b"x", 11), 1002),
        (frame(b"x", BINARY | 0x40), 1002),
        (frame(b"x" * 126, PING), 1002),
        (frame(b"x", PING, final=False), 1002),
        (frame(b"x", TEXT), 1003),
        (frame(b"x", TEXT) + frame(b"x", 3), 1002),
        (frame(b"x", CLOSE), 1002),
        (frame(b"\x03\xe8\xff", CLOSE), 1007),
    ],
    ids=[
        "long",
        "endless",
        "unmasked",
        "continues nothing",
        "opcode",
        "control",
        "reserved bit",
        "long ping",
        "cut ping",
        "text",
        "text and opcode",
        "short close",
        "close not in UTF-8",
    ],
)
async def test_a_bad_frame_ends_its_connection_and_no_other(
    listener: EchoListener, data: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    good_reader, good_writer = await raw(listener)
    reader, writer = await raw(listener)
    writer.write(frame(b" and more") + data)
    with contextlib.suppress(ConnectionResetError):  # where more was sent than was read
        assert await until_closed(reader) in ((b" and more", code), (b"", code))
    await until(lambda: listener.counters.connections == 1)
    assert listener.echoes[1].received == b"hello and more", "what came before it is good"
    good_writer.write(frame(b"still"))
    assert await received(good_reader) == (BINARY, b"still")
    assert [(each.name, each.exc_info) for each in caplog.records if each.levelno >= logging.WARNING] == [
        ("weft.network.admission", None)
    ]


async def test_a_message_is_bounded_however_many_fragments_it_has(listener: EchoListener) -> None:
    reader, writer = await raw(listener)
    for at in range(MESSAGE_BYTES_MAX // 1000):
        writer.write(frame(b"x" * 1000, CONTINUATION if at else BINARY, final=False))
        assert await received(reader) == (BINARY, b"x" * 1000)
    writer.write(frame(b"x" * 1000, CONTINUATION, final=True))
    assert await until_closed(reader) == (b"", 1009)


async def test_a_fragment_is_followed_by_nothing_but_another(listener: EchoListener) -> None:
    reader, writer = await raw(listener)
    writer.write(frame(b"x", final=False) + frame(b"x"))
    assert (await until_closed(reader))[1] == 1002


async def test_a_message_in_many_small_fragments_is_whole(listener: EchoListener) -> None:
    reader, writer = await raw(listener)
    writer.write(frame(b"a", final=False) + frame(b"b", 0, final=False) * 1000 + frame(b"?", PING) + frame(b"c", 0))
    data = b""
    while len(data) < 1003:
        data += (await received(reader))[1]
    assert sorted(data) == sorted(b"a" + b"b" * 1000 + b"c" + b"?")
    assert listener.echoes[0].received == b"hello" + b"a" + b"b" * 1000 + b"c"


# --- the rest of the node


async def test_refusals_are_counted_and_make_one_line_in_the_log(
    listener: EchoListener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    requests = [
        UPGRADE.replace(b"/mqtt", b"/other"),
        UPGRADE.replace(b"websocket", b"h2c"),
        UPGRADE.replace(b"websocket", b"\xff"),
        UPGRADE.replace(b"==", b"\xe9="),
        UPGRADE.replace(b"GET", b"\xff"),
        UPGRADE.replace(b"\r\n\r\n", b"\r\nOrigin: \xed\xa0\x80\r\n\r\n"),
        b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab\r\n\r\n",
        b"x" * 9000,
    ]
    for request in requests:
        reader, writer = await listener.open()
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert answer.startswith(b"HTTP/1.1 4"), request
        writer.close()
    await until(lambda: listener.counters.connections == 0)
    assert listener.listener_counters.handshakes_failed == len(requests)
    (line,) = (each for each in caplog.records if each.levelno >= logging.INFO)
    assert "no WebSocket with 127.0.0.1:" in line.message
    assert line.exc_info is None
    assert [each.name for each in caplog.records if "websocket" in each.name] == []


def test_a_node_without_such_a_listener_does_not_load_the_library() -> None:
    code = "import sys, edge_node.node; print('websockets' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "False\n", done.stderr


# --- websocket handshake


SETTINGS = WebSocketSettings()
FIELDS = {
    "Host": "node.example:9001",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "mqtt",
}


def request(first: str = "GET /mqtt HTTP/1.1", more: str = "", **changed: str) -> bytes:
    fields = {name: changed.get(name.replace("-", "_"), value) for name, value in FIELDS.items()}
    lines = [f"{name}: {value}" for name, value in fields.items() if value]
    return "\r\n".join([first, *lines, *([more] if more else []), "", ""]).encode("latin-1")


def test_the_example_of_the_standard() -> None:
    """RFC 6455 section 1.3."""
    answer = upgrade(request(), SETTINGS).decode()
    assert answer.startswith("HTTP/1.1 101 ")
    assert answer.endswith("\r\n\r\n")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
    assert "Sec-WebSocket-Protocol: mqtt\r\n" in answer


def test_there_are_no_extensions() -> None:
    answer = upgrade(request(more="Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"), SETTINGS)
    assert b"Extensions" not in answer


@pytest.mark.parametrize(
    "good",
    [
        request(Upgrade="WebSocket", Connection="upgrade"),
        request("GET /mqtt?token=x HTTP/1.1"),
        request(Sec_WebSocket_Protocol="chat, mqtt"),
        request(Sec_WebSocket_Protocol="mqttv3.1, mqtt"),
        request(Sec_WebSocket_Protocol="chat", more="sec-websocket-protocol: mqtt"),
        request(more="Origin: http://127.0.0.1:9001", Host="127.0.0.1:9001"),
        request(more="Origin: http://[::1]:9001", Host="[::1]:9001"),
        request(more="Origin: http://localhost", Host="LocalHost:80"),
        request(more="Cookie: a=\xe9"),
    ],
)
def test_what_means_the_same(good: bytes) -> None:
    answer = upgrade(good, SETTINGS)
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in answer


# The first of websockets 15, the second of 17.
WRONG_METHOD, WRONG_VERSION, WRONG_PATH = (400, 405), (400, 505), (404, 400)


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        (request("POST /mqtt HTTP/1.1"), WRONG_METHOD),
        (request("GET /mqtt HTTP/1.0"), WRONG_VERSION),
        (request("GET /mqtt"), 400),
        (request("GET /mqtt HTTP/2"), 400),
        (b"\r\n\r\n", 400),
        (b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab\r\n\r\n", 400),
        (request("GET /other HTTP/1.1"), 404),
        (request("GET /\xe9 HTTP/1.1"), WRONG_PATH),
        (request(Upgrade=""), 426),
        (request(Upgrade="h2c"), 426),
        (request(Upgrade="\xe9"), 400),
        (request(Connection="close"), 426),
        (request(Sec_WebSocket_Version="8"), 400),
        (request(Sec_WebSocket_Version=""), 400),
        (request(Sec_WebSocket_Key=""), 400),
        (request(Sec_WebSocket_Key="c2hvcnQ="), 400),
        (request(Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ\xe9="), 400),
        (request(more="Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), 400),
        (request(Sec_WebSocket_Protocol="MQTT"), 400),
        (request(Sec_WebSocket_Protocol="\xe9"), 400),
        (request(Sec_WebSocket_Protocol=","), 400),
        (request(Sec_WebSocket_Protocol=""), 400),
        (request(more="Origin: https://evil.example"), 403),
        (request(more="Origin: http://node.example:9001"), 403),  # its own name, which strangers can have as well
        (request(more="Origin: http://localhost:3000", Host="localhost:9001"), 403),
        (request(more="Origin: https://localhost:9001", Host="localhost:9001"), 403),
        (request(more="Origin: http://127.0.0.1:9001", Host="localhost:9001"), 403),
        (request(more="Origin: null"), 403),
        (request(more="Origin: null", Host=""), 403),
        (request(more="Origin: http://[x"), 403),
        (request(more="Origin: https://node.example\r\nHost: node.example"), 403),
        (request(more="Origin: https://node.example\r\nOrigin: https://node.example"), 400),
        (request(more=" folded: x"), 400),
        (request(more="no colon"), 400),
        (request(more="Content-Length: 5"), 400),
        (request(more="Transfer-Encoding: chunked"), 400),
        (request(more="\r\n".join(["a:"] * 130)), 400),
    ],
)
def test_what_is_refused(bad: bytes, status: int | tuple[int, int]) -> None:
    with pytest.raises(UpgradeRefused) as caught:
        upgrade(bad, SETTINGS)
    assert caught.value.status in (status if isinstance(status, tuple) else (status,))
    is_whole(caught.value)


NAMED = ("https://Dash.example.com:443/", "app://dash")


@pytest.mark.parametrize(
    ("settings", "origin", "comes_in"),
    [
        (WebSocketSettings(is_loopback=False), "http://node.example:9001", True),
        (WebSocketSettings(is_loopback=False), "http://node.example", False),
        (WebSocketSettings(is_loopback=False), "https://node.example:9001", False),
        (WebSocketSettings(is_loopback=False, scheme="https"), "https://node.example:9001", True),
        (WebSocketSettings(is_loopback=False, scheme="https"), "http://node.example:9001", False),
        (WebSocketSettings(origins=NAMED), "https://dash.example.com", True),
        (WebSocketSettings(origins=NAMED), "http://dash.example.com", False),
        (WebSocketSettings(origins=NAMED), "https://dash.example.com:8443", False),
        (WebSocketSettings(origins=NAMED), "https://evil.example/dash.example.com", False),
        (WebSocketSettings(origins=NAMED), "http://node.example:9001", False),
        (WebSocketSettings(origins=NAMED), "app://dash", True),
        (WebSocketSettings(origins=NAMED), "app://other", False),
        (WebSocketSettings(origins=("*",)), "https://anyone.example", True),
    ],
)
def test_origins_are_compared_by_scheme_host_and_port(settings: WebSocketSettings, origin: str, comes_in: bool) -> None:
    head = request(more=f"Origin: {origin}")
    if comes_in:
        assert upgrade(head, settings).startswith(b"HTTP/1.1 101 ")
    else:
        with pytest.raises(UpgradeRefused, match=r"`websocket\.origins`"):
            upgrade(head, settings)


def test_what_goes_on_too_long() -> None:
    assert too_long().status == 431
    is_whole(too_long())


def test_a_log_line_about_a_refusal_is_short() -> None:
    with pytest.raises(UpgradeRefused) as caught:
        upgrade(request(Sec_WebSocket_Version="1" * 5000), SETTINGS)
    assert len(str(caught.value)) < REASON_LENGTH_MAX + 10


@given(st.binary(max_size=400))
def test_nothing_else_comes_of_any_bytes(data: bytes) -> None:
    fields = ("Upgrade", "Connection", "Sec_WebSocket_Key", "Sec_WebSocket_Version", "Sec_WebSocket_Protocol")
    for head in (
        data,
        request().rstrip() + data,
        request(more="Origin: _").replace(b"_", data, 1),
        *(request(**{field: "_"}).replace(b"_", data, 1) for field in fields),
    ):
        refused = None
        try:
            answer = upgrade(head.partition(END)[0] + END, SETTINGS)
        except UpgradeRefused as error:
            refused = error
        if refused is None:
            assert answer.startswith(b"HTTP/1.1 101 ")
        else:
            assert 400 <= refused.status < 500 or refused.status == 505
            assert str(refused).replace("\t", " ").isprintable(), "it goes to the log"
            is_whole(refused)


def is_whole(refused: UpgradeRefused) -> None:
    """Whether a client that reads the answer knows when it ends, and that the connection ends with it."""
    head, _, body = refused.answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % refused.status)
    assert b"Connection: close" in head
    assert f"Content-Length: {len(body)}".encode() in head


# --- WebSocket as clients know it: packets in any number of messages, and who may connect


WEBSOCKET_LIMITS = AdmissionLimits(websocket_message_bytes_max=MESSAGE_BYTES_MAX, connect_timeout_s=0.5)


@pytest.fixture
async def websocket_listener() -> AsyncIterator[EchoListener]:
    async with echoing(websocket=WebSocketSettings(), limits=WEBSOCKET_LIMITS) as opened:
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
    websocket_listener: EchoListener, http: aiohttp.ClientSession
) -> None:
    for protocol in ("mqtt", "mqttv3.1"):
        async with await connect(http, websocket_listener, protocols=("other", protocol)) as client:
            assert client.protocol == protocol
            await client.send_bytes(b"hel")
            await client.send_bytes(b"lo")
            received = b""
            while len(received) < 5:
                received += await client.receive_bytes()
            assert received == b"hello"
            assert websocket_listener.counters.connections == 1
            assert websocket_listener.listener_counters.connections_half_open == 0
        await until(lambda: websocket_listener.counters.connections == 0)


async def test_the_server_closes_with_a_closing_frame(
    websocket_listener: EchoListener, http: aiohttp.ClientSession
) -> None:
    async with await connect(http, websocket_listener) as client:
        await client.send_bytes(b"hello")
        assert await client.receive_bytes() == b"hello"
        websocket_listener.echoes[0].transport.write(b"the last words")
        websocket_listener.echoes[0].transport.close()
        assert await client.receive_bytes() == b"the last words"
        assert (await client.receive()).type is WSMsgType.CLOSE
    await until(lambda: "lost" in websocket_listener.echoes[0].calls)


async def test_text_is_no_mqtt(websocket_listener: EchoListener, http: aiohttp.ClientSession) -> None:
    async with await connect(http, websocket_listener) as client:
        await client.send_str("hello")
        message = await client.receive()
        assert (message.type, message.data) == (WSMsgType.CLOSE, 1003)
        assert websocket_listener.echoes[0].received == b""


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
    websocket_listener: EchoListener, http: aiohttp.ClientSession, path: str, headers: dict[str, str], status: int
) -> None:
    asked = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    async with http.get(url(websocket_listener, path), headers=asked | headers) as answer:
        assert answer.status == status
    await until(lambda: websocket_listener.counters.connections == 0)
    assert websocket_listener.echoes == []


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
    websocket_listener: EchoListener, http: aiohttp.ClientSession
) -> None:
    reader, writer = await websocket_listener.open()
    writer.write(b"GET /mqtt HTTP/1.1\r\nHost: x\r\n")
    slow_reader, slow_writer = await websocket_listener.open()
    async with await connect(http, websocket_listener) as client:
        assert (await client.receive()).type in (WSMsgType.CLOSED, WSMsgType.CLOSE, WSMsgType.ERROR)
    for each in (reader, slow_reader):
        assert await asyncio.wait_for(each.read(), PATIENCE_S) == b""
    await until(lambda: websocket_listener.counters.connections == 0)
    assert websocket_listener.counters.connect_timeouts == 3
    writer.close()
    slow_writer.close()


async def test_a_slow_reader_pauses_writing_and_memory_stays_bounded(
    websocket_listener: EchoListener, http: aiohttp.ClientSession
) -> None:
    async with await connect(http, websocket_listener, max_msg_size=0) as client:
        await client.send_bytes(b"hello")
        await client.receive_bytes()
        (echo,) = websocket_listener.echoes
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


async def test_reading_pauses(websocket_listener: EchoListener, http: aiohttp.ClientSession) -> None:
    async with await connect(http, websocket_listener) as client:
        await client.send_bytes(b"a")
        await client.receive_bytes()
        (echo,) = websocket_listener.echoes
        echo.transport.pause_reading()
        await client.send_bytes(b"b")  # the reader was waiting for this one
        await client.send_bytes(b"c")
        await asyncio.sleep(0.05)
        assert echo.received in (b"a", b"ab")
        echo.transport.resume_reading()
        await until(lambda: echo.received == b"abc")
