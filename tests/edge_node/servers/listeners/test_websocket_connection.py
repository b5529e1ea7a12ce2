"""WebSocket a byte at a time: frames as no library sends them, and frames that mean harm."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from tests.network.echo import EchoListener, echoing
from tests.support.waiting import PATIENCE_S, until
from weft.edge_node.servers.listeners.settings import WebSocketSettings
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
