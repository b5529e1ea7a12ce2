"""A small MQTT client that builds and reads bytes by hand and sends whatever it is told to, right or wrong.

It shares no code with the broker, so that a misreading of the specification on one side shows on the other. It is
synchronous: a test reads from top to bottom as the packets go.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

ANSWER_S_MAX = 5.0
"""How long a broker may take for anything."""
SILENCE_S = 0.25
"""How long a test listens before it says that nothing came."""

_PROPERTIES = {
    "payload_format_indicator": (1, "byte"),
    "message_expiry_interval": (2, "four"),
    "content_type": (3, "string"),
    "response_topic": (8, "string"),
    "correlation_data": (9, "binary"),
    "subscription_identifier": (11, "variable"),
    "session_expiry_interval": (17, "four"),
    "assigned_client_identifier": (18, "string"),
    "server_keep_alive": (19, "two"),
    "authentication_method": (21, "string"),
    "authentication_data": (22, "binary"),
    "request_problem_information": (23, "byte"),
    "will_delay_interval": (24, "four"),
    "request_response_information": (25, "byte"),
    "response_information": (26, "string"),
    "server_reference": (28, "string"),
    "reason_string": (31, "string"),
    "receive_maximum": (33, "two"),
    "topic_alias_maximum": (34, "two"),
    "topic_alias": (35, "two"),
    "maximum_qos": (36, "byte"),
    "retain_available": (37, "byte"),
    "user_property": (38, "pair"),
    "maximum_packet_size": (39, "four"),
    "wildcard_subscription_available": (40, "byte"),
    "subscription_identifier_available": (41, "byte"),
    "shared_subscription_available": (42, "byte"),
}
_PROPERTY_NAMES = {number: (name, kind) for name, (number, kind) in _PROPERTIES.items()}
_REPEATED = ("user_property", "subscription_identifier")


class Closed(Exception):
    """The broker closed the connection."""


# --- bytes out


def number(value: int) -> bytes:
    """A variable byte integer (MQTT 5.0 section 1.5.5)."""
    encoded = bytearray()
    while True:
        value, low = divmod(value, 128)
        encoded.append(low | 128 if value else low)
        if not value:
            return bytes(encoded)


def string(text: str | bytes) -> bytes:
    """A UTF-8 string or binary data: two bytes of length first."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("!H", len(data)) + data


def packet(kind: int, flags: int, body: bytes) -> bytes:
    """A control packet."""
    return bytes([kind << 4 | flags]) + number(len(body)) + body


def _property(name: str, value: Any) -> bytes:
    identifier, kind = _PROPERTIES[name]
    data = {
        "byte": lambda: struct.pack("!B", value),
        "two": lambda: struct.pack("!H", value),
        "four": lambda: struct.pack("!I", value),
        "variable": lambda: number(value),
        "string": lambda: string(value),
        "binary": lambda: string(value),
        "pair": lambda: string(value[0]) + string(value[1]),
    }[kind]()
    return number(identifier) + data


def properties(values: dict[str, Any] | bytes | None) -> bytes:
    """A property section, its length included. Lists repeat a property; bytes are taken as they are."""
    if values is None:
        return b"\x00"
    if isinstance(values, bytes):
        return number(len(values)) + values
    encoded = b"".join(
        _property(name, one)
        for name, value in values.items()
        for one in (value if isinstance(value, list) else [value])
    )
    return number(len(encoded)) + encoded


@dataclass
class Will:
    topic: str
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    properties: dict[str, Any] | bytes | None = None


def connect(
    client_id: str | bytes = "",
    *,
    version: int = 4,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    properties_: dict[str, Any] | bytes | None = None,
    flags: int | None = None,
    name: str | bytes | None = None,
) -> bytes:
    """CONNECT. ``flags`` and ``name`` replace the right connect flags and protocol name."""
    bits = (clean << 1) | ((username is not None) << 7) | ((password is not None) << 6)
    payload = string(client_id)
    if will is not None:
        bits |= 4 | will.qos << 3 | will.retain << 5
        payload += properties(will.properties) if version == 5 else b""
        payload += string(will.topic) + string(will.payload)
    payload += string(username) if username is not None else b""
    payload += string(password) if password is not None else b""
    name = name if name is not None else ("MQIsdp" if version == 3 else "MQTT")
    head = string(name) + struct.pack("!BBH", version, bits if flags is None else flags, keep_alive)
    return packet(CONNECT, 0, head + (properties(properties_) if version == 5 else b"") + payload)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    version: int = 4,
    qos: int = 0,
    packet_id: int | None = None,
    retain: bool = False,
    dup: bool = False,
    properties_: dict[str, Any] | bytes | None = None,
) -> bytes:
    head = string(topic) + (struct.pack("!H", packet_id) if packet_id is not None else b"")
    section = properties(properties_) if version == 5 else b""
    return packet(PUBLISH, dup << 3 | qos << 1 | retain, head + section + payload)


def acknowledge(
    kind: int,
    packet_id: int,
    *,
    reason: int | None = None,
    properties_: dict[str, Any] | bytes | None = None,
    flags: int | None = None,
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; with a reason it is one of MQTT 5."""
    body = struct.pack("!H", packet_id) + (bytes([reason]) if reason is not None else b"")
    body += properties(properties_) if properties_ is not None else b""
    return packet(kind, flags if flags is not None else (2 if kind == PUBREL else 0), body)


def subscribe(
    packet_id: int,
    *filters: tuple[str | bytes, int],
    version: int = 4,
    properties_: dict[str, Any] | bytes | None = None,
) -> bytes:
    """SUBSCRIBE; each filter comes with its options byte."""
    head = struct.pack("!H", packet_id) + (properties(properties_) if version == 5 else b"")
    return packet(SUBSCRIBE, 2, head + b"".join(string(text) + bytes([options]) for text, options in filters))


def unsubscribe(packet_id: int, *filters: str | bytes, version: int = 4) -> bytes:
    head = struct.pack("!H", packet_id) + (properties(None) if version == 5 else b"")
    return packet(UNSUBSCRIBE, 2, head + b"".join(map(string, filters)))


def disconnect(reason: int | None = None, properties_: dict[str, Any] | bytes | None = None) -> bytes:
    body = bytes([reason]) if reason is not None else b""
    return packet(DISCONNECT, 0, body + (properties(properties_) if properties_ is not None else b""))


# --- bytes in


@dataclass
class Packet:
    """What the broker sent, taken apart."""

    kind: int
    flags: int
    body: bytes
    packet_id: int = 0
    topic: str = ""
    payload: bytes = b""
    reason: int = 0
    reasons: list[int] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    session_present: bool = False
    size: int = 0

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        return self.properties.get("user_property", [])


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _read_string(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("!H", data, at)
    assert at + 2 + length <= len(data), "a string reaches past its packet"
    return data[at + 2 : at + 2 + length], at + 2 + length


def _read_value(kind: str, data: bytes, at: int) -> tuple[Any, int]:
    if kind == "variable":
        return _read_number(data, at)
    if kind in ("string", "binary"):
        value, at = _read_string(data, at)
        return (value.decode() if kind == "string" else value), at
    if kind == "pair":
        name, at = _read_string(data, at)
        value, at = _read_string(data, at)
        return (name.decode(), value.decode()), at
    form = {"byte": "!B", "two": "!H", "four": "!I"}[kind]
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def read_properties(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """A property section as a dictionary; what may repeat is a list."""
    length, at = _read_number(data, at)
    end = at + length
    assert end <= len(data), "a property section reaches past its packet"
    found: dict[str, Any] = {}
    while at < end:
        identifier, at = _read_number(data, at)
        name, kind = _PROPERTY_NAMES[identifier]
        value, at = _read_value(kind, data, at)
        if name in _REPEATED:
            found.setdefault(name, []).append(value)
        else:
            assert name not in found, f"{name} is there twice"
            found[name] = value
    assert at == end, "a property reaches past its section"
    return found, at


def _take_apart(kind: int, flags: int, body: bytes, version: int) -> Packet:
    read = Packet(kind, flags, body)
    if kind != PUBLISH:
        assert flags == (2 if kind == PUBREL else 0), f"reserved flags {flags:04b} of packet type {kind}"
    if kind == CONNACK:
        assert body[0] in (0, 1)
        read.session_present, read.reason = bool(body[0]), body[1]
        if version == 5:
            read.properties, at = read_properties(body, 2)
            assert at == len(body)
        else:
            assert len(body) == 2
    elif kind == PUBLISH:
        topic, at = _read_string(body, 0)
        read.topic = topic.decode()
        if read.qos:
            read.packet_id, at = struct.unpack_from("!H", body, at)[0], at + 2
            assert read.packet_id
        if version == 5:
            read.properties, at = read_properties(body, at)
        read.payload = body[at:]
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        read.packet_id = struct.unpack_from("!H", body)[0]
        assert version == 5 or len(body) == 2
        read.reason = body[2] if len(body) > 2 else 0
        if len(body) > 3:
            read.properties, at = read_properties(body, 3)
            assert at == len(body)
    elif kind in (SUBACK, UNSUBACK):
        read.packet_id, at = struct.unpack_from("!H", body)[0], 2
        if version == 5:
            read.properties, at = read_properties(body, at)
        read.reasons = list(body[at:])
    elif kind == DISCONNECT:
        assert version == 5, "a server of MQTT 3.1.1 sends no DISCONNECT"
        read.reason = body[0] if body else 0
        if len(body) > 1:
            read.properties, at = read_properties(body, 1)
            assert at == len(body)
    elif kind == PINGRESP:
        assert not body
    else:
        raise AssertionError(f"a server sends no packet of type {kind}")
    return read


class Transport(Protocol):
    """What a client needs of a socket; ``recv`` returns nothing at the end."""

    def fileno(self) -> int: ...
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, bytes_max: int, /) -> bytes: ...
    def close(self) -> None: ...


def connect_tcp(port: int) -> socket.socket:
    """A TCP connection to this machine."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


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

    def next(self, seconds: float = ANSWER_S_MAX) -> Packet:
        """The next packet.

        Raises:
            Closed: the broker closed the connection instead.
            TimeoutError: nothing came.
        """
        return self._waiting.popleft() if self._waiting else self._receive(seconds)

    def take(self, kind: int, seconds: float = ANSWER_S_MAX) -> Packet:
        """The next packet of this type; others that come before it are kept for ``next``."""
        for waiting in self._waiting:
            if waiting.kind == kind:
                self._waiting.remove(waiting)
                return waiting
        deadline = time.monotonic() + seconds
        while True:
            received = self._receive(max(deadline - time.monotonic(), 0.0))
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

    def closed(self, seconds: float = ANSWER_S_MAX) -> list[Packet]:
        """Wait until the broker closes; what it sent before."""
        found = []
        deadline = time.monotonic() + seconds
        try:
            while True:
                found.append(self.next(max(deadline - time.monotonic(), 0.0)))
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

    def _receive(self, seconds: float) -> Packet:
        deadline = time.monotonic() + seconds
        while (received := self._complete()) is None:
            readable, _, _ = select.select([self._socket], [], [], max(deadline - time.monotonic(), 0.0))
            if not readable:
                raise TimeoutError(f"nothing came within {seconds:.2f} s")
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
                length, at = _read_number(self._data, 1)
                if len(self._data) < at + length:
                    return None
                first, body = self._data[0], bytes(self._data[at : at + length])
                del self._data[: at + length]
                read = _take_apart(first >> 4, first & 15, body, self.version)
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

    def message(self, seconds: float = ANSWER_S_MAX, *, acknowledged: bool = True) -> Packet:
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
