"""A small MQTT client that reads and sends bytes by hand, and sends whatever a test asks for, right or wrong.

It shares no code with the broker, so that a misreading of the specification on one side shows on the other. It is
synchronous: a test reads from top to bottom as the packets go.
"""

from __future__ import annotations

import base64
import os
import select
import socket
import struct
from collections import deque
from typing import Any, Protocol

from tests.conformance.packets import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Packet,
    Will,
    acknowledge,
    connect,
    disconnect,
    packet,
    properties,
    publish,
    read_number,
    string,
    subscribe,
    take_apart,
    unsubscribe,
)
from tests.support.waiting import PATIENCE_S, Patience, by_the_clock

__all__ = [
    "CONNACK",
    "CONNECT",
    "DISCONNECT",
    "PINGREQ",
    "PINGRESP",
    "PUBACK",
    "PUBCOMP",
    "PUBLISH",
    "PUBREC",
    "PUBREL",
    "SILENCE_S",
    "SUBACK",
    "SUBSCRIBE",
    "UNSUBACK",
    "UNSUBSCRIBE",
    "Client",
    "Closed",
    "Packet",
    "Transport",
    "Will",
    "acknowledge",
    "connect",
    "connect_tcp",
    "disconnect",
    "packet",
    "properties",
    "publish",
    "string",
    "subscribe",
    "unsubscribe",
]
"""Tests have everything they need of a client from here."""

SILENCE_S = 0.25
"""How long a test listens before it says that nothing came."""


class Closed(Exception):
    """The broker closed the connection."""


class Transport(Protocol):
    """What a client needs of a socket; ``recv`` returns nothing at the end."""

    def fileno(self) -> int: ...
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, bytes_max: int, /) -> bytes: ...
    def close(self) -> None: ...


def connect_tcp(port: int) -> socket.socket:
    """A TCP connection to this machine."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def patience(seconds: float | None) -> Patience:
    """Return so many seconds by the clock, or as many as a broker may take for anything."""
    return Patience() if seconds is None else by_the_clock(seconds)


class Client:
    """One connection. ``next`` is strict about order; ``take`` looks for a type and keeps the rest for later."""

    def __init__(self, port: int, version: int = 4, transport: Transport | None = None) -> None:
        self.version = version
        self._socket = transport if transport is not None else connect_tcp(port)
        self._data = bytearray()
        self._waiting: deque[Packet] = deque()
        self._last_id = 0

    # --- bytes

    def send(self, *packets: bytes) -> None:
        """Send bytes as they are, in one write."""
        self._socket.sendall(b"".join(packets))

    def next(self, seconds: float | None = None) -> Packet:
        """The next packet.

        Args:
            seconds: by the clock; without it, as long as the broker may take for anything.

        Raises:
            Closed: the broker closed the connection instead.
            TimeoutError: nothing came.
        """
        return self._waiting.popleft() if self._waiting else self._receive(patience(seconds))

    def take(self, kind: int, seconds: float | None = None) -> Packet:
        """The next packet of this type; others that come before it are kept for ``next``."""
        for waiting in self._waiting:
            if waiting.kind == kind:
                self._waiting.remove(waiting)
                return waiting
        left = patience(seconds)
        while True:
            received = self._receive(left)
            if received.kind == kind:
                return received
            self._waiting.append(received)

    def nothing(self, seconds: float = SILENCE_S) -> None:
        """Assert that the broker is silent and stays connected."""
        try:
            received = self.next(seconds)
        except TimeoutError:
            return
        except Closed:
            raise AssertionError("the broker closed the connection") from None
        raise AssertionError(f"unexpected packet: {received}")

    def closed(self, seconds: float | None = None) -> list[Packet]:
        """Wait until the broker closes; what it sent before."""
        found, left = list(self._waiting), patience(seconds)
        self._waiting.clear()
        try:
            while True:
                found.append(self._receive(left))
        except Closed:
            return found
        except TimeoutError:
            raise AssertionError(f"the broker did not close the connection; it sent {found}") from None

    def refused(self, *reasons: int) -> None:
        """Assert that the broker closes and, in MQTT 5, says one of these reasons in DISCONNECT."""
        packets = [received for received in self.closed() if received.kind != PUBLISH]
        if self.version == 5:
            assert packets, "closed without DISCONNECT"
            assert packets[-1].kind == DISCONNECT, f"no DISCONNECT: {packets}"
            got = packets[-1].reason
            assert not reasons or got in reasons, f"reason 0x{got:02x}, expected one of {[hex(r) for r in reasons]}"
        else:
            assert not packets, f"unexpected: {packets}"

    def _receive(self, patience: Patience) -> Packet:
        while (received := self._complete()) is None:
            readable, _, _ = select.select([self._socket], [], [], patience.left())
            if not readable:
                if patience.is_over():
                    raise TimeoutError("nothing came")
                continue
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise Closed
            self._data += data
        return received

    def _complete(self) -> Packet | None:
        for end in range(1, min(len(self._data), 5)):
            if self._data[end] < 128:
                length, at = read_number(bytes(self._data[:5]), 1)
                if len(self._data) < at + length:
                    return None
                first, body = self._data[0], bytes(self._data[at : at + length])
                del self._data[: at + length]
                read = take_apart(first >> 4, first & 15, body, self.version)
                read.size = at + length
                return read
        return None

    # --- verbs

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def connect(self, client_id: str = "", **options: Any) -> Packet:
        """CONNECT; asserts that it is accepted and returns CONNACK."""
        self.send(connect(client_id, version=self.version, **options))
        answer = self.next()
        assert answer.kind == CONNACK, f"CONNACK comes first, not {answer}"
        assert answer.reason == 0, f"refused with 0x{answer.reason:02x} {answer.properties}"
        return answer

    def subscribe(self, topic_filter: str, options: int = 0, properties_: dict[str, Any] | None = None) -> int:
        """SUBSCRIBE to one filter; the reason code of SUBACK."""
        packet_id = self.next_id()
        self.send(subscribe(packet_id, (topic_filter, options), version=self.version, properties_=properties_))
        answer = self.take(SUBACK)
        assert answer.packet_id == packet_id
        assert len(answer.reasons) == 1
        return answer.reasons[0]

    def unsubscribe(self, topic_filter: str) -> Packet:
        packet_id = self.next_id()
        self.send(unsubscribe(packet_id, topic_filter, version=self.version))
        answer = self.take(UNSUBACK)
        assert answer.packet_id == packet_id
        return answer

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, **options: Any) -> Packet | None:
        """PUBLISH and its whole handshake; the last acknowledgement."""
        packet_id = self.next_id() if qos else None
        self.send(publish(topic, payload, version=self.version, qos=qos, packet_id=packet_id, **options))
        if not qos:
            return None
        if qos == 1:
            answer = self.take(PUBACK)
        else:
            received = self.take(PUBREC)
            assert received.packet_id == packet_id
            if received.reason >= 0x80:
                return received
            self.send(acknowledge(PUBREL, received.packet_id))
            answer = self.take(PUBCOMP)
        assert answer.packet_id == packet_id
        return answer

    def message(self, seconds: float | None = None, *, acknowledged: bool = True) -> Packet:
        """The next PUBLISH; with its handshake unless told otherwise."""
        message = self.take(PUBLISH, seconds)
        if acknowledged and message.qos == 1:
            self.send(acknowledge(PUBACK, message.packet_id))
        elif acknowledged and message.qos == 2:
            self.send(acknowledge(PUBREC, message.packet_id))
            assert self.take(PUBREL).packet_id == message.packet_id
            self.send(acknowledge(PUBCOMP, message.packet_id))
        return message

    def messages(self, count: int) -> list[bytes]:
        """The payloads of the next messages."""
        return [self.message().payload for _ in range(count)]

    def ping(self) -> None:
        """PINGREQ and PINGRESP: everything sent before has been read."""
        self.send(packet(PINGREQ, 0, b""))
        self.take(PINGRESP)

    def disconnect(self, reason: int | None = None, properties_: dict[str, Any] | None = None) -> None:
        """Go in good order and wait until the broker has seen it."""
        self.send(disconnect(reason, properties_))
        self.closed()
        self.drop()

    def vanish(self) -> None:
        """Go without a word, as when power fails, and wait until the broker has seen it."""
        assert isinstance(self._socket, socket.socket)
        self._socket.shutdown(socket.SHUT_WR)
        self.closed()
        self.drop()

    def drop(self) -> None:
        """Go without a word."""
        self._socket.close()


# --- The client side of WebSocket (RFC 6455) on a socket, as far as the tests need it: every frame is under control


CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Refused(Exception):
    """The server did not switch protocols."""


class WebSocket:
    """A connection; ``sendall`` sends one binary frame, ``recv`` returns the payload of one."""

    def __init__(self, port: int, path: str = "/mqtt", subprotocols: str | None = "mqtt") -> None:
        self._socket = connect_tcp(port)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        if subprotocols is not None:
            lines.append(f"Sec-WebSocket-Protocol: {subprotocols}")
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = self._socket.recv(1)
            if not byte:
                raise Refused(head.decode())
            head += byte
        status, *fields = head.decode().strip().split("\r\n")
        if " 101 " not in f"{status} ":
            raise Refused(status)
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        self.subprotocol = headers.get("sec-websocket-protocol")

    def fileno(self) -> int:
        return self._socket.fileno()

    def sendall(self, data: bytes, /) -> None:
        self.send_frame(BINARY, data)

    def send_frame(self, opcode: int, data: bytes, *, final: bool = True) -> None:
        """A frame, masked as a client's must be."""
        mask = os.urandom(4)
        length = len(data)
        if length < 126:
            size = bytes([0x80 | length])
        elif length < 1 << 16:
            size = b"\xfe" + struct.pack("!H", length)
        else:
            size = b"\xff" + struct.pack("!Q", length)
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        self._socket.sendall(bytes([final << 7 | opcode]) + size + mask + masked)

    def recv(self, _bytes_max: int, /) -> bytes:
        """The next data; nothing at the end. Frames must be binary [MQTT-6.0.0-1]."""
        while True:
            try:
                first, second = self._exactly(2)
                length = second & 127
                if length > 125:
                    length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
                data = self._exactly(length)
            except (EOFError, ConnectionError):
                return b""
            opcode = first & 15
            if opcode == CLOSE:
                return b""
            if opcode in (BINARY, CONTINUATION) and data:
                return data
            assert opcode in (BINARY, CONTINUATION, PING, PONG), f"a frame with opcode {opcode}"

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def close(self) -> None:
        self._socket.close()
