"""Targets of AMQP 1.0: what comes before the engine, and messages. Proton's own frames are ``fuzz_frames``."""

from __future__ import annotations

from uuid import UUID

from tests.fuzz.target import NOW, Target, check_storable
from weft.edge_node.servers.amqp1.mapping import TooMany, to_headers, to_message
from weft.edge_node.subscriptions.message import Message as Stored
from weft.protocols.amqp.typed_values import Milliseconds, Symbol
from weft.protocols.amqp1 import (
    FRAME_BYTES_MAX,
    HEADER,
    decode_message,
    described,
    encode,
    encode_map,
    encode_message,
    fields,
    frame_size,
    plain,
    sasl_init,
    ubyte,
    uint,
    ulong,
)
from weft.protocols.errors import Corrupt
from weft.protocols.message_headers import EXPIRES


def _opening(data: bytes) -> None:
    """Frames of SASL, one after the other."""
    at = 0
    try:
        while (size := frame_size(data, at, FRAME_BYTES_MAX)) is not None and at + size <= len(data):
            found = sasl_init(data[at : at + size])
            assert len(found.response) <= size
            claim = plain(found.response)
            assert claim.username
            at += size
    except Corrupt:
        return


def _opening_seeds() -> list[bytes]:
    def frame(body: bytes) -> bytes:
        return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\0\0" + body

    init = frame(described(0x41, fields([encode(Symbol("PLAIN")), encode(b"\0ann\0secret"), encode("host")])))
    return [
        init * 3,
        frame(described(0x41, fields([encode(Symbol("ANONYMOUS"))]))),
        frame(described(0x41, fields([encode(Symbol("EXTERNAL")), encode(b"")]))),
        frame(b"\0\xa3\x12amqp:sasl-init:list\x45"),
        frame(b"\0\x53\x41" + b"\xc0\x05\x01" * 200),
        frame(b"\0" * 300),
        b"\xff\xff\xff\xff\x02\x01\0\0",
        b"\0\0\0\x08\xff\x01\0\0",
    ]


def _message(data: bytes) -> None:
    """What is taken can be stored, and what was stored can be sent again."""
    try:
        message = decode_message(data)
        headers = to_headers(message, NOW, ("known",))
    except (Corrupt, TooMany):
        return
    check_storable([(b"a/b", message.body.payload, headers)])
    expires = next((value for name, value in headers if name == EXPIRES), 0)
    assert isinstance(expires, int)
    assert 0 <= expires < 1 << 63, "no reader of the log could compare it"
    again = encode_message(
        to_message(Stored(b"a/b", message.body.payload, headers=headers, expires_ns=expires), NOW, ("s", 7), 1)
    )
    found = decode_message(again)
    assert (found.body.kind, found.body.payload) == (message.body.kind, message.body.payload)


def _message_seeds() -> list[bytes]:
    def section(code: int, body: bytes) -> bytes:
        return described(code, body)

    def pairs(found: dict[object, object]) -> bytes:
        return encode_map([(encode(key), encode(value)) for key, value in found.items()])

    everything = [
        encode(UUID(int=7)),
        encode(b"ann"),
        encode("plant/a"),
        encode("subject"),
        encode("answers"),
        ulong(9),
        encode(Symbol("text/plain")),
        encode(Symbol("gzip")),
        encode(Milliseconds(1_700_000_000_000)),
        encode(Milliseconds(1)),
        encode("group"),
        uint(4),
        encode("group"),
    ]
    header = section(HEADER, fields([encode(True), ubyte(4), uint(60_000), encode(True), uint(3)]))
    properties = section(0x73, fields(everything))
    application = section(0x74, pairs({"a": 1, "b": 2.5, "c": None, "weft.x": b"bytes", "d": True}))
    annotations = section(0x72, pairs({Symbol("x-opt-a"): 1, Symbol("x-opt-weft-b"): 2, Symbol("c"): "text"}))
    data = section(0x75, encode(b"payload"))
    return [
        header + annotations + properties + application + data,
        section(HEADER, fields([encode(False), ulong((1 << 64) - 1), ulong((1 << 64) - 1)])) + data,
        section(
            0x73, fields([encode(None)] * 8 + [encode(Milliseconds(-(1 << 63))), encode(Milliseconds((1 << 63) - 1))])
        ),
        section(0x73, fields([encode(Symbol("a"))] * 8)) + section(0x74, pairs({Symbol("a"): Symbol("b")})) + data,
        data * 3,
        section(0x76, encode([1, "a", {"b": 2}])) * 2,
        section(0x77, encode("text")),
        section(0x77, encode({"a": [1, 2]})),
        section(0x77, encode(b"binary")),
        b"\0\xa3\x15amqp:properties:list\0\x45" + data,
        section(0x74, pairs({f"name {number}": number for number in range(300)})) + data,
        b"\0\x53\x77" + b"\xc0\x7f\x01" * 400,
        b"\0\x53\x77\xf0\0\0\0\x09\xff\xff\xff\xff\x40",
        b"\0\x53\x77" + b"\x45" * 60_000,
        b"\0\x53\x75\xa0\0" * 3_000,
    ]


TARGETS = {
    "amqp1-opening": Target(_opening, _opening_seeds, memory_per_byte=64),
    "amqp1-messages": Target(_message, _message_seeds, memory_per_byte=256, is_slow=True),
}
