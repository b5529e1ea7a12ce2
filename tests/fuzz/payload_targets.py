"""Targets of the payloads that functions decode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from tests.functions import values as rfc8949
from tests.functions.test_formats import FORMATS
from tests.functions.test_sparkplug_payloads import NODE_BIRTH
from tests.functions.values import same
from tests.fuzz.target import Target
from weft.config.functions.step import Sparkplug
from weft.functions.chain import Outputs
from weft.functions.contract import Context, Format, PayloadError, Row
from weft.functions.formats import MEMORY_PER_BYTE
from weft.functions.registry import make_sparkplug
from weft.functions.sparkplug_payloads import SparkplugFormat, SparkplugRows

BACK_BYTES_MAX = 4 << 10
"""Longest input that is also written and read again: the time and the memory that are measured are those of reading."""
READING = {
    "temperature": 21.5,
    "count": 5,
    "name": "pump",
    "on": True,
    "error": None,
    "nested": {"list": [1, [2.5], {}]},
    "far": 2**64 - 1,
    "low": -(2**63),
    "text": "ü" * 40,
}


def _target(format_: Format, seeds: Callable[[], list[bytes]], *, ordered: bool = True) -> Target:
    def run(data: bytes) -> None:
        try:
            values = format_.decode(data)
        except PayloadError:
            return
        if len(data) <= BACK_BYTES_MAX:
            again = format_.decode(format_.encode(values))
            assert same(again, values) if ordered else again.keys() == values.keys()

    return Target(run, seeds, memory_per_byte=MEMORY_PER_BYTE)


def _json_seeds() -> list[bytes]:
    return [
        msgspec.json.encode(READING),
        b'[1,-0.0,1e308,"\\ud83d\\ude00\\n",{"a":{"a":1,"a":2}}]',
        b'{"a":NaN}',
        b"[" * 40 + b"]" * 40,
        b'{"":' * 30 + b"1" + b"}" * 30,
        b'"\\ud800"',
        b'["[{","\\"]' + b'"]',
    ]


def _msgpack_seeds() -> list[bytes]:
    return [
        msgspec.msgpack.encode(READING),
        msgspec.msgpack.encode([b"raw", {1: {2: 3}}, [[]] * 20]),
        b"\x92\xd6\xff\x00\x00\x00\x01\xd4\x05\x00",
        b"\xdd\x7f\xff\xff\xff",
        b"\x91" * 40 + b"\x90",
        b"\x81\x91\x01\xc0",
        b"\xdc\xff\xff" + b"\x80" * 0xFFFF,
        b"\xdc\x50\x00" + b"\x91\x91\x80" * 0x5000,
        b"\xdc\x33\x33" + b"\x91\x91\x91\x91\x80" * 0x3333,
        b"\xdd\x00\x00\x54\x00" + b"\x81\x01\xc0" * 0x5400,
        b"\xdc\x20\x00" + b"\xcb\x40\x35\x80\x00\x00\x00\x00\x00" * 0x2000,
    ]


def _cbor_seeds() -> list[bytes]:
    flat = b"\x9f" + b"".join(map(bytes.fromhex, rfc8949.EXAMPLES)) + b"\xff"
    tags = b"\x9f" + bytes.fromhex("c48221196ab3c5822003d90102820102d8236161d81e820102d9d9f780c1f90000") + b"\xff"
    return [
        FORMATS["cbor"].encode(READING),
        flat,
        tags,
        bytes.fromhex("d81c81d81d00"),
        bytes.fromhex("c4821b7fffffffffffffff01"),
        b"\x9a\x00\x00\xff\xff" + b"\xa0" * 0xFFFF,
        b"\x9b\x7f" + b"\xff" * 7,
        b"\x81" * 40 + b"\x80",
        b"\xbf" + b"".join(b"\x19" + key.to_bytes(2) + b"\xf6" for key in range(900)) + b"\xff",
    ]


def _plain(data: bytes) -> None:
    """The first byte says of which format."""
    format_ = FORMATS[("number", "text", "bytes")[data[0] % 3]] if data else FORMATS["number"]
    try:
        values = format_.decode(data[1:])
    except PayloadError:
        return
    assert same(format_.decode(format_.encode(values)), values)


def _plain_seeds() -> list[bytes]:
    texts = "21.5", " -3\n", "+1.5e-3", "007", "5.", "1" * 64, "1" * 65, "1e999", "nan", "." * 60, "é"
    return [bytes([kind]) + text.encode() for text in texts for kind in (0, 1)]


def _struct_seeds() -> list[bytes]:
    return [bytes(31), b"\xff" * 31, bytes(range(31)), bytes(30)]


_TOPICS = (b"NBIRTH/n", b"NDATA/n", b"DBIRTH/n/d", b"DDATA/n/d", b"NDEATH/n", b"DDEATH/n/d", b"NBIRTH/m", b"STATE")


def _messages(data: bytes) -> list[Row]:
    """Messages of a group, each with a byte for its topic and two for its length."""
    rows, at = [], 0
    while at < len(data):
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3])
        topic = b"spBv1.0/g/" + _TOPICS[data[at] % len(_TOPICS)]
        rows.append(Row(time=at * 10**9, key=topic, payload=data[at + 3 : end], values={}))
        at = end
    return rows


def _metrics(data: bytes) -> None:
    """As a host application understands messages, with time passing between them."""
    function, out = make_sparkplug(Sparkplug(), Context("out", ("in",), lambda key: {}, ())), Outputs()
    format_ = FORMATS["json"]
    for row in _messages(data):
        if (due := function.due()) is not None and due < row.time:
            function.tick(row.time, out)
        for made in function.process([row], out):
            with contextlib.suppress(PayloadError):
                format_.encode(made.values)
    assert function.state is not None
    assert len(msgspec.msgpack.encode(list(function.state.items()))) <= 1024 + 8 * len(data)


def _births(data: bytes) -> None:
    rows = _messages(data)
    function, out = SparkplugRows(), Outputs()
    decoded = function.process(rows, out)
    assert len(decoded) + len(out.rejected) == len(rows)
    assert len(msgspec.msgpack.encode(list(function.state.items()))) <= 512 + 4 * len(data)


def _birth_seeds() -> list[bytes]:
    metric = b"\x12\x09\x0a\x01t\x10\x05\x20\x03\x50\x07"
    messages = [
        (0, metric),
        (1, b"\x12\x04\x10\x05\x50\x07"),
        (2, NODE_BIRTH),
        (3, b"\x12\x04\x10\x09\x50\x07"),
        (4, b""),
        (1, metric),
    ]
    return [b"".join(bytes([kind]) + len(payload).to_bytes(2) + payload for kind, payload in messages)]


def _metric_seeds() -> list[bytes]:
    named = b"\x12\x0b\x0a\x01t\x10\x05\x20\x03\x50\x07\x28\x01"
    quality = b"\x12\x15\x10\x05\x50\x07\x4a\x0f\x0a\x07Quality\x12\x04\x08\x03\x18\x00"
    sets = b"\x12\x10\x10\x05\x50\x07\x4a\x0a\x0a\x01a\x12\x05\x4a\x03\x0a\x01b"
    template = b"\x12\x12\x0a\x01m\x20\x13\x92\x01\x0a\x0a\x02v1\x1a\x02\x10\x03\x28\x01"
    number = b"\x12\x0b\x0a\x05bdSeq\x20\x08\x58"
    messages = [
        (0, named + number + b"\x01\x18\x00"),
        (2, named + template + b"\x18\x01"),
        (3, quality + b"\x18\x02"),
        (3, sets + b"\x18\x09"),
        (1, b"\x12\x02\x10\x09\x18\x0a"),
        (4, number + b"\x01"),
        (0, NODE_BIRTH),
    ]
    return [b"".join(bytes([kind]) + len(payload).to_bytes(2) + payload for kind, payload in messages)]


def _sparkplug_seeds() -> list[bytes]:
    deep = b"\x0a\x01a\x20\x03\x50\x01"
    for _ in range(6):
        inner = b"\x12" + bytes([len(deep)]) + deep
        deep = b"\x0a\x01a\x92\x01" + bytes([len(inner)]) + inner
    bools = b"\x0a\x01a\x20\x20\x82\x01\x08\x20\x00\x00\x00\xff\xff\xff\xff"
    return [
        NODE_BIRTH,
        b"\x12" + bytes([len(deep)]) + deep,
        b"\x12" + bytes([len(bools)]) + bools,
        b"\x12\x00",
        b"\x12\x03\x0a\x01\xff",
    ]


TARGETS = {
    "payload-json": _target(FORMATS["json"], _json_seeds),
    "payload-msgpack": _target(FORMATS["msgpack"], _msgpack_seeds),
    "payload-cbor": _target(FORMATS["cbor"], _cbor_seeds),
    "payload-plain": Target(_plain, _plain_seeds, head=1),
    "payload-struct": _target(FORMATS["struct"], _struct_seeds),
    "payload-sparkplug": _target(SparkplugFormat(), _sparkplug_seeds, ordered=False),
    "sparkplug-births": Target(_births, _birth_seeds, memory_per_byte=400),
    "sparkplug-metrics": Target(_metrics, _metric_seeds, memory_per_byte=100, weight=lambda data: 4 * len(data)),
}
"""Three bytes are a message of Sparkplug, which is a row with a topic."""
