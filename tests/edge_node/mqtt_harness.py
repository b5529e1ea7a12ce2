"""An MQTT listener over a real log, a filesystem whose sync can be held, and clients over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edge_node.counters import Counters
from edge_node.ingest import Ingest
from edge_node.mqtt_listener import MqttListener, MqttSettings
from edge_node.router import Router
from edge_node.sessions import SessionLimits, Sessions
from edge_node.subscriptions import Subscriptions
from protocols.batch import ClockReading, ClockState, Record, records
from protocols.mqtt.decoder import decode
from protocols.mqtt.encoder import encode
from protocols.mqtt.packets import ConnAck, Connect, Packet
from storage.filesystem import File, OSFileSystem
from storage.segment_log import LogSettings, SegmentLog

PATTERNS = {"telemetry": ["plant/{line}/#"], "alarms": ["alarm/+"]}
PATIENCE_S = 10.0


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something that no event tells has come true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class _GatedFile:
    def __init__(self, file: File, gate: SyncGate) -> None:
        self._file, self._gate = file, gate

    def sync(self) -> None:
        self._gate.pass_through()
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class SyncGate(OSFileSystem):
    """The disk, except that a sync waits while the gate is held, and fails when it is told to."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.error: OSError | None = None
        self.reached = threading.Event()
        """Set when a sync waits at the gate."""

    def pass_through(self) -> None:
        if not self._open.is_set():
            self.reached.set()
        assert self._open.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error

    @contextmanager
    def held(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self.reached.clear()
            self._open.set()

    def open(self, path: str) -> Any:
        return _GatedFile(super().open(path), self)

    def create(self, path: str) -> Any:
        return _GatedFile(super().create(path), self)


@dataclass
class Node:
    log: SegmentLog
    listener: MqttListener
    ingest: Ingest
    sessions: Sessions
    counters: Counters

    @property
    def port(self) -> int:
        return self.listener.port

    async def durable(self) -> None:
        """Wait until everything appended so far is on disk."""
        done = asyncio.get_running_loop().create_future()
        self.log.on_durable(done.set_result)
        assert await asyncio.wait_for(done, PATIENCE_S) is None

    async def stored(self, stream: str = "telemetry") -> list[Record]:
        """All records of a stream, once durable."""
        await self.durable()
        number, found, seq = self.log.streams()[stream], [], 0
        while batches := self.log.read(number, seq, 1 << 24):
            found += [record for data in batches for record in records(data)]
            seq = found[-1].seq + 1
        return found


@asynccontextmanager
async def running(
    directory: Path,
    *,
    patterns: dict[str, list[str]] = PATTERNS,
    filesystem: OSFileSystem | None = None,
    limits: SessionLimits = SessionLimits(),
    log_settings: LogSettings = LogSettings(segment_bytes=1 << 20, budget_bytes=64 << 20),
    pending_bytes_max: int = 8 << 20,
    **settings: Any,
) -> AsyncIterator[Node]:
    loop, counters, subscriptions = asyncio.get_running_loop(), Counters(), Subscriptions()
    log = SegmentLog.open(
        str(directory), log_settings, filesystem=filesystem or OSFileSystem(), wall_clock=time.time_ns,
        clock_reading=lambda: ClockReading(7, time.monotonic_ns(), ClockState.SYNCED),
        random_bits=random.SystemRandom().getrandbits, post=loop.call_soon_threadsafe,
    )  # fmt: skip
    ingest = Ingest(
        log, Router(patterns, log.stream), subscriptions, time.time_ns, counters, pending_bytes_max=pending_bytes_max
    )
    sessions = Sessions(subscriptions, limits, counters)
    listener = MqttListener(ingest, sessions, MqttSettings(port=0, **settings), counters)
    await listener.start()
    try:
        yield Node(log, listener, ingest, sessions, counters)
    finally:
        await listener.close()
        await asyncio.to_thread(log.close)


class RawClient:
    """A client that sends what it is told to, byte by byte if need be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._data = b""

    @classmethod
    async def open(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @classmethod
    async def deaf(cls, port: int, *packets: Packet) -> RawClient:
        """A client that sends these packets and reads nothing, with little room in its socket."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        client = cls(*await asyncio.open_connection(sock=connection))
        client.send(*packets)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        return client

    @classmethod
    async def connect(cls, port: int, client_id: str = "raw", **fields: Any) -> RawClient:
        client = await cls.open(port)
        client.send(Connect(client_id, **fields))
        assert (await client.receive()).code == 0
        return client

    def send(self, *packets: Packet) -> None:
        self.writer.write(b"".join(map(encode, packets)))

    async def receive(self) -> Any:
        """The next packet; None when the server has closed the connection."""
        async with asyncio.timeout(PATIENCE_S):
            while (decoded := decode(self._data, 0, 1 << 24)) is None:
                try:
                    more = await self.reader.read(1 << 16)
                except ConnectionResetError:
                    more = b""
                if not more:
                    return None
                self._data += more
        packet, end = decoded
        self._data = self._data[end:]
        return packet

    async def silent(self) -> bool:
        """Whether nothing has come although the event loop has had time to send it."""
        for _ in range(20):
            await asyncio.sleep(0.001)
        return not self._data and not self.reader._buffer  # type: ignore[attr-defined]

    async def close(self) -> None:
        self.writer.close()


class PahoClient:
    """paho-mqtt on its own thread, seen from the event loop."""

    def __init__(self, client_id: str, *, clean_session: bool = True) -> None:
        self._loop = asyncio.get_running_loop()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=clean_session)
        self.connects: asyncio.Queue[ConnAck] = asyncio.Queue()
        self.messages: asyncio.Queue[paho.MQTTMessage] = asyncio.Queue()
        self.grants: asyncio.Queue[list[int]] = asyncio.Queue()
        self.client.on_connect = lambda _c, _u, flags, code, _p: self._put(
            self.connects, ConnAck(flags.session_present, code.value)
        )
        self.client.on_message = lambda _c, _u, message: self._put(self.messages, message)
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: self._put(self.grants, [code.value for code in codes])

    def _put(self, queue: asyncio.Queue[Any], item: Any) -> None:
        self._loop.call_soon_threadsafe(queue.put_nowait, item)

    async def connect(self, port: int) -> ConnAck:
        self.client.connect_async("127.0.0.1", port, keepalive=30)
        self.client.loop_start()
        return await asyncio.wait_for(self.connects.get(), PATIENCE_S)

    async def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        self.client.subscribe(list(filters))
        return await asyncio.wait_for(self.grants.get(), PATIENCE_S)

    async def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Publish and wait until the server has acknowledged (QoS 1, 2) or the packet was sent (QoS 0)."""
        info = self.client.publish(topic, payload, qos, retain)
        await asyncio.to_thread(info.wait_for_publish, PATIENCE_S)
        assert info.is_published()

    async def message(self) -> paho.MQTTMessage:
        return await asyncio.wait_for(self.messages.get(), PATIENCE_S)

    async def close(self) -> None:
        self.client.disconnect()
        await asyncio.to_thread(self.client.loop_stop)
