"""Whole conversations as clients have them, and what becomes of them when bytes are lost, changed or made up."""

from __future__ import annotations

import random
import struct

from tests.conformance.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Will,
    acknowledge,
    connect,
    disconnect,
    packet,
    publish,
    string,
    subscribe,
    unsubscribe,
)

INTERESTING = bytes([0, 1, 2, 0x7F, 0x80, 0xFF, *range(0x20, 0x2B), *range(0x10, 0x100, 0x10)])
EVERYTHING = {
    "payload_format_indicator": 1,
    "message_expiry_interval": 2,
    "content_type": "text/plain",
    "response_topic": "fuzz/answers",
    "correlation_data": b"\x00\xff",
    "topic_alias": 1,
    "user_property": [("a", "b"), ("a", "b")],
}
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(32) + b"\x20" + bytes(32) + bytes.fromhex("0002130101")


def frame(data: bytes, opcode: int = 2, first: int = 0x80) -> bytes:
    """A WebSocket frame, masked with zeros."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + struct.pack("!H", len(data))
    return bytes([first | opcode]) + size + bytes(4) + data


def conversation(version: int, client_id: str, *, clean: bool) -> list[bytes]:
    """One packet of every kind that a client may send, in an order that the protocol allows."""
    is_5 = version == 5
    expiry = {"session_expiry_interval": 0 if clean else 1, "receive_maximum": 3, "maximum_packet_size": 2000}
    will = Will("fuzz/will", b"gone", 1, retain=True, properties={"will_delay_interval": 0} if is_5 else None)
    said = EVERYTHING if is_5 else None
    return [
        connect(client_id, version=version, clean=clean, will=will, properties_=expiry if is_5 else None),
        subscribe(1, ("fuzz/#", 2), ("kept/fuzz/+", 1), ("+/fuzz", 0), version=version),
        *(
            [subscribe(2, ("$share/g/fuzz/+", 1), version=5, properties_={"subscription_identifier": 7})]
            if is_5
            else []
        ),
        publish("fuzz/a", b"x" * 30, version=version, properties_=said),
        publish("kept/fuzz/a", b"y" * 30, version=version, qos=1, packet_id=3, retain=True, properties_=said),
        publish("fuzz/b", b"z" * 300, version=version, qos=2, packet_id=4),
        acknowledge(PUBREL, 4),
        *[acknowledge(kind, 1) for kind in (PUBACK, PUBREC, PUBCOMP)],
        packet(12, 0, b""),
        publish("kept/fuzz/a", b"", version=version, qos=1, packet_id=5, retain=True),
        unsubscribe(6, "fuzz/#", "never", version=version),
        *([packet(15, 0, b"\x18" + b"\x04\x15" + string("x"))] if is_5 else []),
        disconnect(),
    ]


def seeds() -> list[list[bytes]]:
    """What is sent, in the pieces that damage keeps together."""
    plain = [
        conversation(version, f"fuzz-{version}-{clean}", clean=clean)
        for version in (3, 4, 5)
        for clean in (True, False)
    ]
    web = [[UPGRADE, *[frame(each) for each in packets], frame(b"", 9), frame(b"\x03\xe8", 8)] for packets in plain]
    return [*plain, *web, [CLIENT_HELLO, *plain[0]]]


def damaged(pieces: list[bytes], others: list[list[bytes]], chance: random.Random) -> list[bytes]:
    """A conversation with one to four things wrong; now and then with none."""
    pieces = list(pieces)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 4))):
        at = chance.randrange(len(pieces))
        match chance.randrange(8):
            case 0:
                pieces.pop(at) if len(pieces) > 1 else None
            case 1:
                pieces.insert(at, chance.choice(chance.choice(others)))
            case 2:
                pieces[at:at] = [pieces[at]] * chance.randint(1, 20)
            case 3:
                pieces.insert(at, chance.randbytes(chance.randint(1, 200)))
            case _:
                pieces[at] = _changed(pieces[at], chance)
    return pieces


def _changed(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    at = chance.randrange(len(changed) + 1)
    match chance.randrange(6):
        case 0 if at < len(changed):
            changed[at] = chance.choice(INTERESTING)
        case 1 if at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        case 2:
            changed[at:at] = bytes([chance.choice(INTERESTING)]) * chance.randint(1, 5)
        case 3:
            del changed[at : at + chance.randint(1, 8)]
        case 4 if len(changed) > 1:
            changed[1] = chance.randrange(256)  # the length of the packet, or of the frame
        case _:
            del changed[at:]
    return bytes(changed)


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    """The bytes in as many writes as a network may make of them."""
    if chance.random() < 0.5:
        return [data]
    places = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randint(1, 6)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True) if start < end]
