"""Writes the golden and reject vectors: ``python -m tests.vectors.generate``.

For a new format, or a new version of one. The files are the promise that what was written yesterday is read
tomorrow: running this over files that exist must change nothing, and ``tests/protocols/test_vectors.py`` reads only
the files. Compressed vectors are never written again, since another zstd may compress otherwise.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import zstandard
from crc32c import crc32c

from tests.vectors import notation
from tests.vectors.notation import Notation
from weft.protocols import batch, chunk, link, segment
from weft.protocols.link.stream import FrameEncoder

HERE = Path(__file__).parent
T = 1_700_000_000_000_000_000

SMALL: Notation = {
    "stream": 1,
    "base_seq": 7,
    "boot_id": 0x0123456789ABCDEF,
    "monotonic": 5_000_000_000,
    "clock": "SYNCED",
    "records": [
        {"time": T, "key": "plant/1/t", "payload": b"21.5".hex()},
        {"time": T + 1_000_000, "key": "plant/2/t", "payload": b"19".hex()},
        {"time": T + 2_000_000, "key": "plant/1/t", "payload": ""},
    ],
}
FULL: Notation = {
    **SMALL,
    "stream": 2,
    "base_seq": 1 << 40,
    "clock": "UNSYNCED",
    "records": [
        {"time": -1, "key": "", "payload": "00ff", "flags": 4},
        {
            "time": T,
            "key": "wärme",
            "payload": "ff" * 9,
            "headers": [["unit", "°C"], ["unit", "again"], ["", ""]],
            "flags": 3,
        },
        {"time": T - 5, "key": "wärme", "payload": "01"},
    ],
}
LARGE: Notation = {
    **SMALL,
    "records": [{"time": T + i, "key": f"plant/{i % 3}", "payload": (b"%08d" % i * 6).hex()} for i in range(100)],
}
LAST: Notation = {**SMALL, "base_seq": (1 << 63) - 1 - 3, "boot_id": (1 << 64) - 1, "stream": (1 << 32) - 1}
MADE: Notation = {**SMALL, "origin": 2}
TYPED: Notation = {
    **SMALL,
    "records": [
        {
            "time": T, "key": "a", "payload": "",
            "headers": [
                ["text", "x"], ["bytes", {"hex": "00ff"}], ["int", -(1 << 63)], ["int", (1 << 63) - 1], ["float", 0.5],
                ["bool", True], ["bool", False], ["nil", None],
            ],
        },
    ],
}  # fmt: skip
FIRST_POSITION = 1 << 26
STREAMS = {"1": ["telemetry", 7], "2": ["alarms", 0]}
SEGMENT: Notation = {
    "header": {"log_id": 0xFEDCBA9876543210, "first_position": FIRST_POSITION, "created": T},
    "entries": [
        {"kind": "STREAMS", "body": STREAMS},
        {"kind": "BATCH", "body": SMALL},
        {"kind": "GAP", "body": [2, 0, 5, 1, T]},
        {"kind": "CLOCK", "body": [0x0123456789ABCDEF, 5_000_000_000, -250_000, 1_000]},
        {
            "kind": "FOOTER",
            "body": [
                {"1": "telemetry", "2": "alarms"},
                [[1, [[7, 10]], T, T + 2_000_000, [[7, 71]]]],
                [[2, 0, 5, 1, T]],
            ],
        },
    ],
    "sealed": True,
}
MOVED: Notation = {
    "header": SEGMENT["header"],
    "entries": [
        {"kind": "STREAMS", "body": {"1": ["telemetry", 90]}},
        {"kind": "KEPT", "body": [[[1, 90, [[5, 10], [80, 90]]], [2, 0, []]]]},
        {"kind": "GAP", "body": [1, 5, 7, 1, T]},
        {"kind": "MOVED", "body": SMALL},
        {"kind": "STREAMS", "body": {}},
        {
            "kind": "FOOTER",
            "body": [
                {"1": "telemetry"},
                [],
                [[1, 5, 7, 1, T]],
                [[1, 90, [[5, 10], [80, 90]]]],
                [[0, 200]],
                [[1, [[7, 10]], T, T + 2_000_000, [[7, 120]]]],
            ],
        },
    ],
    "sealed": True,
}
OWNER = ["default", "press-2", [[1, 90]]]
OWNED: Notation = {
    "header": SEGMENT["header"],
    "entries": [
        {"kind": "STREAMS", "body": {"1": ["telemetry", 90]}},
        {"kind": "OWNER", "body": OWNER},
        {"kind": "KEPT", "body": [[[1, 90, []]]]},
        {"kind": "OWNER", "body": OWNER},
        {"kind": "STREAMS", "body": {}},
        {"kind": "FOOTER", "body": [{"1": "telemetry"}, [], [], [[1, 90, []]], [], [], OWNER]},
    ],
    "sealed": True,
}
ORIGINS = [[1, 1, "smooth", "2.0.1", "q80="], [2, 2, "telemetry", "7", ""]]
"""Hashes are base64 text."""
TOGETHER: Notation = {
    "header": SEGMENT["header"],
    "entries": [
        {"kind": "STREAMS", "body": {"1": ["telemetry", 7], "2": ["alarms", 7]}},
        {"kind": "STREAMS", "body": {}},
        {"kind": "ORIGINS", "body": ORIGINS},
        {"kind": "WHOLE", "body": [408]},
        {"kind": "BATCH", "body": MADE},
        {"kind": "BATCH", "body": {**MADE, "stream": 2}},
        {
            "kind": "FOOTER",
            "body": [
                {"1": "telemetry", "2": "alarms"},
                [
                    [1, [[7, 10]], T, T + 2_000_000, [[7, 147]]],
                    [2, [[7, 10]], T, T + 2_000_000, [[7, 351]]],
                ],
                [],
                [],
                [[0, 204], [0, 204]],
                [],
                None,
                ORIGINS,
            ],
        },
    ],
    "sealed": True,
}
OPEN: Notation = {**SEGMENT, "entries": SEGMENT["entries"][:2], "sealed": False}
CHUNK: Notation = {
    "header": {
        "cluster_id": "000102030405060708090a0b0c0d0e0f",
        "n": 3,
        "created": T,
        "shard": 1,
        "previous_footer_crc": 0xDEADBEEF,
        "nonce": 42,
    },
    "must_understand": 0,
    "fold_level": 1,
    "sections": [
        {
            "tenant": "default",
            "stream": "alarms",
            "base_offset": 0,
            "count": 3,
            "first_time": -1,
            "last_time": T,
            "entries": [{"lane": 1, "skip": 0, "take": 3, "received": T + 9, "batch": FULL}],
        },
        {
            "tenant": "default",
            "stream": "telemetry",
            "base_offset": 1000,
            "count": 1,
            "first_time": T,
            "last_time": T + 2_000_000,
            "entries": [{"lane": 0, "skip": 1, "take": 1, "received": T + 9, "batch": SMALL}],
        },
    ],
    "lanes": [
        [
            "default",
            "pi-1",
            0xFEDCBA9876543210,
            "telemetry",
            2,
            [[8, 9]],
            [[9, 12, 1]],
            [T, 12],
            None,
            None,
            [[1, 1, "mean", "3", "q80="]],
            [T + 5, 8],
            3,
        ],
        [
            "default",
            "pi-1",
            0xFEDCBA9876543210,
            "alarms",
            2,
            [[1 << 40, (1 << 40) + 3]],
            [],
            None,
            ["a/{line}"],
            2,
            [],
            None,
            0,
        ],
    ],
    "controls": [
        [3, "default", "pi-0", 7, "telemetry", base64.b64encode(msgspec.msgpack.encode([2, "scrapped"])).decode()],
        [99, "default", "", 0, "alarms", "kw=="],
    ],
    "clocks": [["default", "pi-1", 0xFEDCBA9876543210, 0x0123456789ABCDEF, 5_000_000_000, -250_000, 1_000]],
    "extensions": {"7": "c0"},
}
EMPTY_CHUNK: Notation = {
    **CHUNK,
    "sections": [],
    "lanes": [["default", "pi-1", 1, "telemetry", 1, [], [], [T, 0], ["plant/{line}/t"], 0, [], None, 0]],
    "controls": [],
    "clocks": [],
    "extensions": {},
}
CONTROL: Notation = {
    "frames": [
        {
            "type": "HELLO",
            "version": 1,
            "tenant": "default",
            "edge": "pi-1",
            "log_id": 0xFEDCBA9876543210,
            "boot": 0x0123456789ABCDEF,
            "clock": T,
            "software": "weft 0.1.0",
            "features": ["compact-marks"],
            "stay": False,
        },
        {
            "type": "WELCOME",
            "version": 1,
            "cluster_id": "000102030405060708090a0b0c0d0e0f",
            "window_bytes": 8 << 20,
            "batch_bytes_max": 1 << 20,
            "clock": T + 1,
            "software": "weft 0.1.0",
            "features": [],
        },
        {
            "type": "REFUSE",
            "version": 1,
            "code": 3,
            "message": "another node has this identity",
            "advice": "give it its own log",
            "url": "",
        },
        {
            "type": "REFUSE",
            "version": 1,
            "code": 7,
            "message": "another node serves this edge",
            "advice": "nothing: the edge goes there",
            "url": "https://hub-2:8443",
        },
        {
            "type": "LANE_OPEN",
            "lane": 1,
            "tenant": "default",
            "edge": "pi-1",
            "log_id": 0xFEDCBA9876543210,
            "stream": "telemetry",
            "epoch": 3,
            "ranges": [[0, 5], [7, 10]],
            "topics": ["plant/{line}/t"],
            "payload": 2,
            "flags": 0,
            "origins": [[1, 1, "mean-1m", "4", "q80="]],
        },
        {
            "type": "LANE_OPEN",
            "lane": 2,
            "tenant": "default",
            "edge": "pi-7",
            "log_id": 5,
            "stream": "alarms",
            "epoch": 0,
            "ranges": [],
            "topics": [],
            "payload": 0,
            "flags": 3,
            "origins": [],
        },
        {"type": "LANE_OPENED", "lane": 1, "ranges": [[0, 5]]},
        {
            "type": "LANE_CLOSED",
            "lane": 2,
            "code": 8,
            "message": "shard 3 has trouble with its store",
            "advice": "try another node",
        },
        {"type": "ORIGINS", "lane": 1, "origins": [[2, 2, "telemetry", "7", ""]]},
        {
            "type": "CLOCK",
            "log_id": 0xFEDCBA9876543210,
            "boot": 1,
            "monotonic": 5_000_000_000,
            "offset": -7,
            "error": 3,
        },
        {"type": "GAP", "lane": 1, "first": 5, "end": 7, "reason": 1},
        {"type": "MARK", "time": T, "lanes": [[1, 10], [3, 0]]},
        {"type": "ACK", "lane": 1, "ranges": [[0, 7]]},
        {"type": "PING", "sent": 123},
        {"type": "PONG", "sent": 123, "clock": T},
    ]
}
STATE: Notation = {
    "cluster_id": "000102030405060708090a0b0c0d0e0f",
    "shard": 1,
    "n": 3,
    "footer_crc": 0xDEADBEEF,
    "must_understand": 0,
    "made_with": 1,
    "fold_level": 1,
    "created": T + 7,
    "drops": 0,
    "streams": [
        {
            "tenant": "default",
            "stream": "telemetry",
            "next_offset": 1001,
            "fields": ["line", "machine"],
            "named_by": ["pi-1", "pi-1"],
            "skips": [[700, 702, T + 6, "no row", [["pi-1", 0xFEDCBA9876543210, 700, 702]]]],
        }
    ],
    "lanes": [
        {
            "tenant": "default",
            "edge": "pi-1",
            "log_id": 0xFEDCBA9876543210,
            "stream": "telemetry",
            "epoch": 2,
            "ranges": [[0, 1003], [1010, 1011]],
            "gaps": [[5, 7, 1], [900, 905, 6]],
            "mark": [T, 1003],
            "whole_mark": [T - 9, 800],
            "pending_marks": [[T, 1003], [T + 1, 1011]],
            "topics": ["plant/{line}/{machine}/telemetry"],
            "payload": 2,
            "origins": [[1, 1, "mean", "3", "q80="]],
            "partial": False,
            "last_seen": T + 7,
            "retired": [T + 7, 1, "not seen for 90 days"],
            "conflict": [T + 5, 1, T, T - 9, "a connection with epoch 2 has taken over"],
        }
    ],
    "clocks": [["default", "pi-1", 0xFEDCBA9876543210, [[0x0123456789ABCDEF, 5_000_000_000, -250_000, 1_000]]]],
    "extensions": {},
}
EMPTY_STATE: Notation = {**STATE, "n": -1, "footer_crc": 0, "created": 0, "streams": [], "lanes": [], "clocks": []}
DATA: Notation = {"frames": [{"type": "DATA", "lane": 1, "batches": [SMALL, {**SMALL, "base_seq": 10}]}]}


def whole(changes: list[Any]) -> list[Any]:
    """Changes of queues with the elements that are left out at the end."""
    found: Any = notation.decode("queue-state", notation.encode("queue-state", changes))  # type: ignore[arg-type]
    return list(found)


def u64s(*numbers: int) -> str:
    """A column of numbers, as JSON has bytes."""
    return base64.b64encode(struct.pack(f"<{len(numbers)}Q", *numbers)).decode()


DECLARED: list[Any] = [
    1, {}, {}, {}, [], [], [],
    [["plant", "topic", True, False, False, None, "user", "ann"]],
    [[7, "jobs", True, False, False, {"message_ttl_ms": 60000}, "user", "ann", 12]],
    [["plant", "jobs", False, "press.#", ""]],
]  # fmt: skip
SETTLED: list[Any] = [
    1,
    {"7": [[u64s(12, 20), u64s(3, 1)], 96]},
    {"7": 25},
    {"7": {"16": 1}},
]  # fmt: skip
COPIED: list[Any] = [
    1, {}, {}, {}, [], [], [], [], DECLARED[8], [], -1, False, True, True, 31, 8,
    [[7, 640, {"0": [u64s(21), u64s(9)]}, [[16, 0]], {"16": 1}, 25, 0]],
]  # fmt: skip

GOLDEN: dict[str, dict[str, Any]] = {
    "batch": {"small": SMALL, "every_column": FULL, "last_numbers": LAST, "origin": MADE, "typed_headers": TYPED},
    "segment": {"sealed": SEGMENT, "open": OPEN, "moved": MOVED, "owned": OWNED, "together": TOGETHER},
    "chunk": {"two_streams": CHUNK, "mark_only": EMPTY_CHUNK},
    "shard-state": {"one_lane": STATE, "empty": EMPTY_STATE},
    "link": {"control": CONTROL, "data": DATA},
    "queue-state": {"declared": whole(DECLARED), "settled": whole(SETTLED), "copied": whole(COPIED)},
}


def compressed_batch() -> bytes:
    """A batch that a compressor made."""
    raw = notation.encode("batch", LARGE)
    header = batch.verify(raw)
    clock = batch.ClockReading(header.boot_id, header.monotonic, header.clock)
    compressor = zstandard.ZstdCompressor(level=1)
    return batch.encode(header.stream, header.base_seq, batch.decode_columns(raw), clock, compressor)


def later_chunk() -> bytes:
    """A chunk to which a later release added fields that a reader may skip."""
    whole = notation.encode("chunk", EMPTY_CHUNK)
    length = chunk.footer_bytes(whole)
    footer = msgspec.msgpack.decode(whole[-length : -chunk.TRAILER_BYTES])
    footer[4][0] += ["more of a lane", 7]
    body = msgspec.msgpack.encode([*footer, {"more": "of the footer"}])
    return whole[:-length] + body + struct.pack("<II4s", len(body), crc32c(body), chunk.TRAILER_MAGIC)


def compressed_messages() -> bytes:
    """The frames of ``CONTROL`` and ``DATA`` as two messages of one stream."""
    encoder = FrameEncoder()
    return b"".join(encoder.encode([notation.frame(noted) for noted in part["frames"]]) for part in (CONTROL, DATA))


def patched(data: bytes, offset: int, new: bytes) -> bytes:
    """``data`` with other bytes at an offset, counted from the end when negative."""
    offset %= len(data)
    return data[:offset] + new + data[offset + len(new) :]


def flipped(data: bytes, offset: int) -> bytes:
    """``data`` with one bit changed."""
    return patched(data, offset, bytes([data[offset] ^ 0x10]))


def signed_batch(data: bytes, offset: int, new: bytes) -> bytes:
    """A batch changed by an attacker who can compute checksums."""
    data = patched(data, offset, new)
    return patched(data, 4, struct.pack("<I", crc32c(data[8:])))


def later_version(data: bytes) -> bytes:
    """What a later release might write: the next version, and a header checksum that this one cannot make sense of."""
    return flipped(patched(data, 3, b"\x02"), 4)


def rejects() -> Iterator[tuple[str, str, str, bytes]]:
    """Format, name, error and bytes of every vector that must be refused."""
    for kind, name, magic_name in (
        ("batch", "small", "batch"),
        ("segment", "open", "segment"),
        ("chunk", "two_streams", "chunk"),
        ("shard-state", "one_lane", "snapshot"),
    ):
        data = notation.encode(kind, GOLDEN[kind][name])
        yield kind, "wrong_magic", "Corrupt", patched(data, 0, b"XYZ")
        yield kind, "later_version", "UnsupportedVersion", later_version(data)
        yield kind, "empty", "Truncated", b""
        yield kind, "flipped_header", "Corrupt", flipped(data, 5 if kind == "shard-state" else 25)
        yield kind, "flipped_body", "Corrupt", flipped(data, len(data) * 2 // 3)
        yield kind, f"cut_{magic_name}", "Corrupt" if kind == "chunk" else "Truncated", data[:-3]
    yield from batch_rejects()
    yield from file_rejects()
    yield from link_rejects()


def batch_rejects() -> Iterator[tuple[str, str, str, bytes]]:
    """Batches with a good checksum that no reader may believe."""
    data = notation.encode("batch", SMALL)
    yield "batch", "over_long", "Corrupt", data + b"\0"
    yield "batch", "no_records", "Corrupt", signed_batch(data, 16, struct.pack("<I", 0))
    yield "batch", "too_many_records", "Corrupt", signed_batch(data, 16, struct.pack("<I", 1 << 31))
    yield "batch", "raw_length_too_large", "Corrupt", signed_batch(data, 20, struct.pack("<I", 1 << 31))
    yield "batch", "seq_past_the_end", "Corrupt", signed_batch(data, 32, struct.pack("<Q", (1 << 64) - 1))
    yield "batch", "unknown_codec", "UnsupportedVersion", signed_batch(data, 8, b"\x02")
    yield "batch", "flipped_codec", "Corrupt", patched(data, 8, b"\x02")
    for name, at, value in (
        ("second_flags", 9, 4), ("event_time", 9, 8), ("unknown_column", 9, 128), ("unknown_clock_state", 10, 2),
        ("reserved_byte", 11, 1),
    ):  # fmt: skip
        yield "batch", name, "UnsupportedVersion", signed_batch(data, at, bytes([value]))
    yield "batch", "column_longer_than_body", "Corrupt", signed_batch(data, 72, struct.pack("<I", 1 << 30))
    yield "batch", "key_index_outside_table", "Corrupt", signed_batch(data, 112, struct.pack("<I", 9))
    yield "batch", "another_first_time", "Corrupt", signed_batch(data, 40, struct.pack("<q", 1))
    bomb = zeros_frame(16 << 20)
    head = patched(data[:72], 8, bytes([batch.Codec.ZSTD]))
    head = patched(head, 20, struct.pack("<II", len(bomb) + 100, len(bomb)))
    yield "batch", "compressed_bomb", "Corrupt", signed_batch(head + bomb, 11, b"\0")


def zeros_frame(length: int) -> bytes:
    """A zstd frame of zeros, made by hand: one repeated byte per block of 128 KiB (RFC 8878, section 3.1.1.2)."""
    blocks = length // (128 << 10)
    block = [struct.pack("<I", (128 << 10) << 3 | 1 << 1 | (at == blocks - 1))[:3] + b"\0" for at in range(blocks)]
    return b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", length) + b"".join(block)


def file_rejects() -> Iterator[tuple[str, str, str, bytes]]:
    """Segments and chunks whose parts do not belong together."""
    for kind, name in (("segment", "open"), ("chunk", "two_streams")):
        # The header's checksum tells a damaged version byte from a later version.
        yield kind, "flipped_version", "Corrupt", patched(notation.encode(kind, GOLDEN[kind][name]), 3, b"\x02")
    data = notation.encode("segment", OPEN)
    elsewhere = {**OPEN, "header": {**OPEN["header"], "first_position": FIRST_POSITION + 4096}}
    moved = notation.encode("segment", elsewhere)
    yield (
        "segment",
        "entries_of_an_earlier_life",
        "Corrupt",
        data[: segment.HEADER_BYTES] + moved[segment.HEADER_BYTES :],
    )
    sealed = notation.encode("segment", SEGMENT)
    yield "segment", "flipped_trailer", "Corrupt", flipped(sealed, len(sealed) - 16)
    entry_length = struct.pack("<IIBxxx", 1, segment.ENTRY_BYTES_MAX + 1, 1)
    yield "segment", "entry_over_long", "Corrupt", data[: segment.HEADER_BYTES] + entry_length
    whole = notation.encode("chunk", CHUNK)
    yield "chunk", "over_long", "Corrupt", whole + b"\0"
    yield "chunk", "no_footer", "Corrupt", whole[: chunk.HEADER_BYTES]
    yield "chunk", "footer_longer_than_chunk", "Corrupt", patched(whole, -12, struct.pack("<I", len(whole)))
    greedy = {**CHUNK, "sections": [{**CHUNK["sections"][1]}], "lanes": CHUNK["lanes"][:1]}
    greedy["sections"][0]["entries"] = [{**CHUNK["sections"][1]["entries"][0], "take": 3}]
    state = notation.encode("shard-state", STATE)
    yield "shard-state", "over_long", "Corrupt", state + b"\0"
    yield (
        "shard-state",
        "of_a_later_release",
        "UnsupportedVersion",
        notation.encode("shard-state", {**STATE, "must_understand": 4}),
    )
    yield "chunk", "of_a_later_release", "UnsupportedVersion", notation.encode("chunk", {**CHUNK, "must_understand": 4})
    later = notation.encode("chunk", {**CHUNK, "header": {**CHUNK["header"], "nonce": 43}})
    yield "chunk", "another_attempts_header", "Corrupt", later[: chunk.HEADER_BYTES] + whole[chunk.HEADER_BYTES :]
    yield "chunk", "takes_more_than_the_batch_has", "Corrupt", notation.encode("chunk", greedy)


def link_rejects() -> Iterator[tuple[str, str, str, bytes]]:
    """Frames that close a link."""
    data = notation.encode("link", DATA)
    yield "link", "cut_frame", "Truncated", data[:-3]
    yield "link", "flipped_batch", "Corrupt", flipped(data, len(data) // 2)
    yield "link", "unknown_type", "UnsupportedVersion", patched(data, 0, b"\x63")
    yield "link", "reserved_type", "UnsupportedVersion", patched(data, 0, bytes([link.FrameType.THROTTLE]))
    later = msgspec.msgpack.encode({"version": 2, "edge": 7})
    yield "link", "later_hello", "UnsupportedVersion", raw_frame(1, later)
    yield "link", "later_welcome", "UnsupportedVersion", raw_frame(2, later)
    yield "link", "data_over_long", "Corrupt", struct.pack("<BI", 4, link.FRAME_BYTES_MAX + 1)
    yield "link", "control_over_long", "Corrupt", struct.pack("<BI", 1, link.CONTROL_BYTES_MAX + 1)
    yield "link", "data_without_a_batch", "Corrupt", raw_frame(4, bytes(4))
    yield "link", "body_with_a_tail", "Corrupt", raw_frame(8, b"\x91\x01\x00")
    yield "link", "nested_too_deeply", "Corrupt", raw_frame(8, b"\x92\x01" + b"\x91" * 5000)
    lane = [1, "default", "pi-1", 1, "s", 1, [], [], 1 << 32]
    yield "queue-state", "later_version", "UnsupportedVersion", msgspec.msgpack.encode([2, {}])
    yield "queue-state", "no_array", "Corrupt", msgspec.msgpack.encode({"version": 1})
    yield "queue-state", "numbers_for_text", "Corrupt", msgspec.msgpack.encode([1, {}, {}, {}, [], [], [5]])
    yield "queue-state", "empty", "Corrupt", b""
    yield "queue-state", "no_version", "Corrupt", msgspec.msgpack.encode([])
    yield "link", "payload_kind_over_32_bits", "Corrupt", raw_frame(14, msgspec.msgpack.encode(lane))
    text = b"\x84\xa7version\x01\xa4code\x01\xa7message\xa1\xff\xa6advice\xa0"
    yield "link", "text_not_utf8", "Corrupt", raw_frame(3, text)
    gap = b"\x94\x01\x05\x05\x01"
    yield "link", "gap_of_nothing", "Corrupt", raw_frame(5, gap)


def raw_frame(number: int, body: bytes) -> bytes:
    """A frame around any body."""
    return struct.pack("<BI", number, len(body)) + body


def main() -> None:
    """Write every vector."""
    for kind, vectors in GOLDEN.items():
        for name, meaning in vectors.items():
            write(f"{kind}/{name}", {"hex": notation.encode(kind, meaning).hex(), "meaning": meaning})
    for kind, name, error, data in rejects():
        write(f"{kind}/reject/{name}", {"hex": data.hex(), "error": error})
    if not (HERE / "batch/compressed.json").exists():
        data = compressed_batch()
        write("batch/compressed", {"hex": data.hex(), "meaning": notation.decode("batch", data), "decode_only": True})
    write("chunk/later_fields", {"hex": later_chunk().hex(), "meaning": EMPTY_CHUNK, "decode_only": True})
    if not (HERE / "link/stream.json").exists():
        frames = CONTROL["frames"] + DATA["frames"]
        write("link/stream", {"hex": compressed_messages().hex(), "meaning": {"frames": frames}, "decode_only": True})


def write(name: str, vector: Notation) -> None:
    """Write one vector, hex in lines of 32 bytes so that a change shows where it is."""
    digits = vector.pop("hex")
    lines = [digits[at : at + 64] for at in range(0, len(digits), 64)]
    path = HERE / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"hex": lines, **vector}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
