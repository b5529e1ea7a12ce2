"""Devices: MQTT 3.1.1 clients on one event loop that publish at QoS 1, each at a rate of its own."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial

PUBACK, CONNACK = 0x40, 0x20
PUBLISH_QOS1 = 0x32
READY_S = 10.0


def _with_length(kind: int, body: bytes) -> bytes:
    length, digits = len(body), bytearray()
    while length > 127:
        digits.append(length % 128 | 128)
        length //= 128
    return bytes([kind, *digits, length]) + body


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


class Device(asyncio.Protocol):
    """One connection, and how long its acknowledgements took.

    Args:
        name: client id and part of the topic.
        payload: makes the next payload.
    """

    def __init__(self, name: str, payload: Callable[[], bytes]) -> None:
        self._topic, self._name, self._payload = f"plant/line-1/{name}/telemetry", name, payload
        self._transport: asyncio.Transport | None = None
        self._held = b""
        self._sent: dict[int, int] = {}
        self._packet_id = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.acked_ns: list[int] = []
        self.drained = asyncio.Event()
        """Set while everything is acknowledged."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_with_length(0x10, _text("MQTT") + b"\x04\x02\x00\x3c" + _text(self._name)))

    def data_received(self, data: bytes) -> None:
        self._held += data
        while len(self._held) >= 4:  # CONNACK and PUBACK both have four bytes
            packet, self._held = self._held[:4], self._held[4:]
            if packet[0] == CONNACK:
                self.ready.set_result(None)
            elif packet[0] == PUBACK:
                self.acked_ns.append(time.monotonic_ns() - self._sent.pop(packet[2] << 8 | packet[3]))
                if not self._sent:
                    self.drained.set()

    def publish(self) -> None:
        """Publish one message."""
        assert self._transport is not None
        self._packet_id = self._packet_id % 0xFFFF + 1
        self.drained.clear()
        self._sent[self._packet_id] = time.monotonic_ns()
        body = _text(self._topic) + struct.pack(">H", self._packet_id) + self._payload()
        self._transport.write(_with_length(PUBLISH_QOS1, body))

    def close(self) -> None:
        """Disconnect."""
        if self._transport is not None:
            self._transport.write(b"\xe0\x00")
            self._transport.close()


def _same(device: Device) -> Device:
    return device


async def connected(ports: Sequence[int], payload: Callable[[], bytes], prefix: str = "m") -> list[Device]:
    """Return a device for each port, connected."""
    loop, devices = asyncio.get_running_loop(), []
    for number, port in enumerate(ports):
        device = Device(f"{prefix}-{number:05}", payload)
        await loop.create_connection(partial(_same, device), "127.0.0.1", port)
        await asyncio.wait_for(device.ready, READY_S)
        devices.append(device)
    return devices


async def publish(devices: Sequence[Device], rate: float, seconds: float, chance: random.Random) -> None:
    """Have each device publish ``rate`` messages a second, and wait for the acknowledgements."""
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def one(device: Device, first: float) -> None:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begin + first + number / rate - loop.time()))
            device.publish()

    await asyncio.gather(*(one(device, chance.random() / rate) for device in devices))
    await asyncio.wait_for(asyncio.gather(*(device.drained.wait() for device in devices)), READY_S)
