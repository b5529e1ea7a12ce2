"""A device on a bare socket that knows every message it sent and, in order, which of them were acknowledged.

MQTT 3.1.1, QoS 1, up to ``WINDOW`` messages on their way. Most go to ``load/<name>/count``; every so many-th is an
alarm, and every so many-th a retained state.
"""

from __future__ import annotations

import json
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, overload

from tests.support.waiting import PATIENCE_S

WINDOW = 200
ALARM_EVERY, STATE_EVERY = 40, 60
KEPT_MAX = 100_000
_IDS = 65_535
_ACCEPTED = b"\x20\x02\0\0"
"""CONNACK without a session (MQTT 3.1.1 section 3.2)."""


class Sent(NamedTuple):
    """A message."""

    topic: str
    payload: bytes
    retain: bool


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def _packet(head: int, body: bytes) -> bytes:
    length, digits = len(body), bytearray()
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (128 if length else 0))
        if not length:
            return bytes([head]) + bytes(digits) + body


def puback_ids(stream: bytes) -> list[int]:
    """The packet ids in whole PUBACKs, each of 4 bytes (MQTT 3.1.1 section 3.4)."""
    acks = stream[: len(stream) // 4 * 4]
    assert acks[0::4].count(0x40) == len(acks) // 4, "the server sent something else than acknowledgements"
    return [high << 8 | low for high, low in zip(acks[2::4], acks[3::4], strict=True)]


class Messages(Sequence[Sent]):
    """A device's messages, by number. Old ones are made again on request: those of an hour would fill the memory."""

    def __init__(self, name: str, payload_bytes: int, random_bytes: int) -> None:
        self.many = 0
        """How many were sent."""
        self._name, self._payload_bytes, self._random_bytes = name, payload_bytes, random_bytes
        self._message = lru_cache(KEPT_MAX)(self._make)

    def __len__(self) -> int:
        return self.many

    @overload
    def __getitem__(self, which: int) -> Sent: ...
    @overload
    def __getitem__(self, which: slice) -> list[Sent]: ...
    def __getitem__(self, which: int | slice) -> Sent | list[Sent]:
        if isinstance(which, slice):
            return [self._message(number) for number in range(self.many)[which]]
        return self._message(range(self.many)[which])

    def _make(self, number: int) -> Sent:
        name, chance = self._name, random.Random(f"{self._name}:{number}")
        if number % ALARM_EVERY == 1:
            return Sent(f"alarm/{name}", b"%d" % number, False)
        if number % STATE_EVERY == 2:
            return Sent(f"state/{name}", b"%d" % number, True)
        reading = {"n": number, "device": name, "value": round(chance.gauss(20, 3), 3)}
        if self._random_bytes:
            reading["noise"] = chance.randbytes(self._random_bytes).hex()
        return Sent(f"load/{name}/count", json.dumps(reading).encode().ljust(self._payload_bytes), False)


class Device(threading.Thread):
    """Publishes until told to stop, or until the server is gone."""

    def __init__(
        self,
        name: str,
        port: int,
        *,
        rate: float = 0,
        payload_bytes: int = 60,
        random_bytes: int = 0,
        again_s: float | None = None,
    ) -> None:
        """Connect.

        Args:
            rate: messages a second; 0 as fast as it can.
            payload_bytes: padded to so many.
            random_bytes: of each message, in hexadecimal digits: what does not compress.
            again_s: connect again so long after a connection was lost, and send again what was not acknowledged.
        """
        super().__init__(name=name, daemon=True)
        self.sent = Messages(name, payload_bytes, random_bytes)
        self.acked = 0
        """Messages acknowledged: the first so many of ``sent``."""
        self.lost_connections = 0
        self.quit = threading.Event()
        self._server, self._rate, self._again_s = port, rate, again_s
        self._next = 0
        self._connect()
        self.port: int = self._socket.getsockname()[1]

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._server), timeout=PATIENCE_S)
        self._socket.sendall(_packet(0x10, _text("MQTT") + bytes([4, 2]) + struct.pack(">H", 600) + _text(self.name)))
        answer = self._socket.recv(4, socket.MSG_WAITALL)
        if answer != _ACCEPTED:
            raise ConnectionError(f"the server answered {answer!r}")
        self._received, self._next = b"", self.acked

    def run(self) -> None:
        started = time.monotonic()
        while True:
            try:
                self._publish(started)
            except OSError:
                self.lost_connections += 1
            self._socket.close()
            while True:
                if self._again_s is None or self.quit.wait(self._again_s):
                    return
                try:
                    self._connect()
                    break
                except OSError:
                    continue

    def _publish(self, started: float) -> None:
        self._socket.setblocking(False)
        unsent = b""
        while not self.quit.is_set():
            due = int((time.monotonic() - started) * self._rate) if self._rate else self._next + WINDOW
            while self._next < min(due, self.acked + WINDOW):
                unsent += self._encode(self._next)
                self._next += 1
            readable, writable, _ = select.select([self._socket], [self._socket] if unsent else [], [], 0.02)
            if writable:
                unsent = unsent[self._socket.send(unsent) :]
            if readable:
                self._read()
        while self.acked < self._next and select.select([self._socket], [], [], 2)[0]:
            self._read()

    def _read(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._received += data
        whole = len(self._received) // 4 * 4
        for identifier in puback_ids(self._received[:whole]):
            assert identifier == self.acked % _IDS + 1, "acknowledgements out of order [MQTT-4.6.0-2]"
            self.acked += 1
        self._received = self._received[whole:]

    def _encode(self, number: int) -> bytes:
        self.sent.many = max(self.sent.many, number + 1)
        message = self.sent[number]
        body = _text(message.topic) + struct.pack(">H", number % _IDS + 1) + message.payload
        return _packet(0x32 | message.retain, body)
