"""Targets of what devices and their proxies send to an edge node."""

from __future__ import annotations

import asyncio
from functools import cache

from tests.fuzz.conversations import UPGRADE, conversation, frame
from tests.fuzz.mqtt_codec import SEEDS, run_one
from tests.fuzz.target import Target
from tests.support.waiting import until
from weft.config.limits import EdgeLimits
from weft.edge_node.counters import Counters, ListenerCounters
from weft.edge_node.servers.listeners.settings import WebSocketSettings
from weft.edge_node.servers.listeners.websocket_connection import WebSocketContext, WebSocketTransport
from weft.edge_node.sessions.retained import TopicTree
from weft.network import accepting
from weft.network.admission import Admission, AdmissionLimits
from weft.protocols.topics import (
    FilterTree,
    InvalidTopic,
    check_filter,
    check_topic,
    compile_pattern,
    matches,
    split_share,
)

# --- WebSocket


class _Socket(asyncio.Transport):
    """The client's end: takes everything."""

    closing = False
    is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class _Received(asyncio.Protocol):
    """The MQTT side."""

    count = 0

    def data_received(self, data: bytes) -> None:
        self.count += len(data)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


async def _receive(data: bytes) -> None:
    received, open_now = _Received(), set[WebSocketTransport]()
    admission = Admission(AdmissionLimits(), Counters(), ListenerCounters())
    shared = WebSocketContext(WebSocketSettings(), lambda *_: received, admission, open_now.add, open_now.discard)
    connection = admission.arrive("127.0.0.1", "fuzz")
    assert connection is not None
    socket, server = _Socket(), WebSocketTransport(shared, connection)
    server.connection_made(socket)
    size = data[0] >> 1 or len(data)
    stream = (UPGRADE if data[0] & 1 else b"") + data[1:]
    for at in range(0, len(stream), size):
        if not socket.closing:
            server.data_received(stream[at : at + size])
        await until(lambda: socket.closing or not socket.is_paused)
    server.connection_lost(None)
    assert received.count <= len(stream)
    assert not open_now


def _websocket(data: bytes) -> None:
    """The first byte says whether the handshake is made already, and in what pieces the rest comes."""
    if data:
        _loop().run_until_complete(_receive(data))


def _websocket_seeds() -> list[bytes]:
    packets = conversation(5, "fuzz", clean=True)
    frames = b"".join(map(frame, packets[:4]))
    return [
        b"\0" + UPGRADE + frames,
        b"\0" + UPGRADE.replace(b"\r\n", b"\r\nOrigin: https://example.org\r\n", 1),
        b"\0GET /other?x=1 HTTP/1.1\r\n\r\n",
        b"\1" + frames,
        b"\x07" + frames,
        b"\1" + frame(b"abc", 2, 0) + frame(b"", 9) + frame(b"def", 0),
        b"\1" + frame(b"text", 1),
        b"\1" + frame(b"\x03\xe8bye", 8) + frame(b"late"),
        b"\1\x82\xff" + (1 << 62).to_bytes(8, "big"),
    ]


# --- PROXY


def _proxy(data: bytes) -> None:
    prefix, body = data[: accepting.PREFIX_BYTES], data[accepting.PREFIX_BYTES :]
    try:
        if data.startswith(accepting.LINE_START):
            accepting.source_of_line(data)
            return
        length = accepting.body_length(prefix)
        assert 0 <= length <= accepting.BODY_BYTES_MAX
        address = accepting.source(prefix, body[:length])
    except accepting.BadProxyHeader:
        return
    assert address is None or (address.host and 0 <= address.port <= 65_535)


def _proxy_seeds() -> list[bytes]:
    signature = accepting.SIGNATURE
    four, six = bytes.fromhex("c0a80001 0a000001 04d2 075b"), bytes(15) + b"\1" + bytes(15) + b"\2\x04\xd2\x07\x5b"
    return [
        signature + b"\x21\x11" + len(four).to_bytes(2, "big") + four,
        signature + b"\x21\x21" + len(six).to_bytes(2, "big") + six,
        signature + b"\x21\x11" + (len(four) + 7).to_bytes(2, "big") + four + b"\x04\0\4xxxx",
        signature + b"\x20\0\0\0",
        signature + b"\x21\x31\0\xd8" + bytes(216),
        b"PROXY TCP4 192.168.0.1 10.0.0.1 1234 1883\r\n",
        b"PROXY TCP6 ::1 2001:db8::2 1234 1883\r\n",
        b"PROXY UNKNOWN\r\n",
    ]


# --- topics


def _topics(data: bytes) -> None:
    """The first line is a topic, the second one a filter, a shared one or a pattern."""
    topic, _, text = data.decode(errors="surrogateescape").partition("\n")
    _pattern(text, topic if _is_topic(topic) else "a")
    try:
        check_filter(text)
        share = split_share(text)
    except InvalidTopic:
        return
    assert text.endswith(share.filter)
    if _is_topic(topic):
        found = matches(share.filter, topic)
        if max(text.count("/"), topic.count("/")) < EdgeLimits().topic_levels:
            _in_trees(topic, share.filter, found=found)


def _in_trees(topic: str, topic_filter: str, *, found: bool) -> None:
    filters: FilterTree[str] = FilterTree()
    filters.add(topic_filter, "x")
    assert filters.match(topic) == ["x"] * found
    topics = TopicTree()
    topics.add(topic.encode())
    assert topics.match(topic_filter) == [topic.encode()] * found


def _is_topic(text: str) -> bool:
    try:
        check_topic(text)
    except InvalidTopic:
        return False
    return True


def _pattern(text: str, topic: str) -> None:
    try:
        pattern = compile_pattern(text)
    except InvalidTopic:
        return
    values = pattern.match(topic)
    assert (values is not None) == matches(pattern.filter, topic)
    assert values is None or tuple(values) == pattern.fields


def _topic_seeds() -> list[bytes]:
    pairs = (
        "plant/1/press\nplant/+/press",
        "plant/1\nplant/1/#",
        "$SYS/x\n#",
        "$SYS/x\n+/x",
        "a//b\na/+/b",
        "a\n$share/g/a/#",
        "plant/1/press/telemetry\nplant/{line}/{machine}/telemetry",
        "plant/1\nplant/{line}/{line}",
        "a\n{payload}",
        "a\na/#/b",
        "é/ü\né/{ü}",
        "a\n$share//a",
        "a\n$share/g",
        "+\n+",
        "a/b\n{a}/{b}/#",
    )
    deep = "/".join("abc" * 5_000), "/".join("+" * 15_000), "/".join(f"{{l{number}}}" for number in range(9_000))
    long = (f"{deep[0]}\n{deep[1]}", f"{deep[0]}\n{deep[1]}/#", f"a\n{deep[2]}", "a\n" + "{" * 60_000)
    return [pair.encode() for pair in (*pairs, *long)]


def _mqtt_seeds() -> list[bytes]:
    """Conversations, and packets as long as they may be of what is shortest."""
    properties = b"\x26\0\0\0\0" * 12_000
    filters = b"\0\1" + b"\0" + b"\0\1a\0" * 15_000
    hello = b"\0\4MQTT\5\2\0\0" + _variable(len(properties)) + properties + b"\0\1c"
    publish = b"\0\1t" + _variable(len(properties)) + properties + b"x"
    return [
        *SEEDS,
        *(bytes([version - 3]) + b"".join(conversation(version, "fuzz", clean=True)) for version in (3, 4, 5)),
        b"\2\x82" + _variable(len(filters)) + filters,
        b"\2\xa2" + _variable(len(filters)) + filters,
        b"\2\x10" + _variable(len(hello)) + hello,
        b"\2\x30" + _variable(len(publish)) + publish,
        b"\2" + b"\xc0\0" * 30_000,
    ]


def _variable(number: int) -> bytes:
    found = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        found.append(low | 0x80 * bool(number))
        if not number:
            return bytes(found)


MQTT = Target(run_one, _mqtt_seeds, head=1, memory_per_byte=64)
"""A SUBSCRIBE has a filter in four bytes, and an empty user property takes five: each is an object or two."""
WEBSOCKET = Target(_websocket, _websocket_seeds, head=1, memory_per_byte=72)
"""A frame without content takes two bytes, and an object for as long as its read is handled."""
PROXY = Target(_proxy, _proxy_seeds)
TOPICS = Target(_topics, _topic_seeds, memory_per_byte=64)
"""A level takes two bytes, and text of its own when it is looked at."""
TARGETS = {"mqtt": MQTT, "websocket": WEBSOCKET, "proxy": PROXY, "topics": TOPICS}
