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
from tests.vectors.goldens import (
    ACTED,
    APART_CHUNK,
    APART_STATE,
    CANARY,
    CHUNK,
    CONFIG,
    CONTROL,
    DATA,
    DOWN,
    EMPTY,
    EMPTY_CHUNK,
    EMPTY_STATE,
    FIRST_POSITION,
    FULL,
    LARGE,
    LAST,
    LAST_WORDS,
    MADE,
    MOVED,
    NODE_REPORT,
    OPEN,
    OWNED,
    PAIR_REPORT,
    PULL,
    RENAMED_CHUNK,
    RENAMED_STATE,
    SEALED_CHUNK,
    SEGMENT,
    SEVERAL,
    SMALL,
    SNAPSHOT,
    SPLIT_STATE,
    STATE,
    THROTTLED,
    TOGETHER,
    TWO_STREAMS,
    TYPED,
    WITHDRAWN,
)
from tests.vectors.goldens import DECLARED as DECLARED_FACT
from tests.vectors.notation import Notation
from weft.protocols import batch, chunk, link, segment
from weft.protocols.link import FrameEncoder

HERE = Path(__file__).parent


def whole(changes: list[Any]) -> list[Any]:
    """Changes of queues with the elements that are left out at the end."""
    found: Any = notation.decode("queue-state", notation.encode("queue-state", changes))  # type: ignore[arg-type]
    return list(found)


def u64s(*numbers: int) -> str:
    """A column of numbers, as JSON has bytes."""
    return base64.b64encode(struct.pack(f"<{len(numbers)}Q", *numbers)).decode()


DECLARED: list[Any] = [
    1,
    {},
    {},
    {},
    [],
    [],
    [],
    [["plant", "topic", True, False, False, None, "user", "ann"]],
    [[7, "jobs", True, False, False, {"message_ttl_ms": 60000}, "user", "ann", 12]],
    [["plant", "jobs", False, "press.#", ""]],
]
SETTLED: list[Any] = [1, {"7": [[u64s(12, 20), u64s(3, 1)], 96]}, {"7": 25}, {"7": {"16": 1}}]
COPIED: list[Any] = [
    1,
    {},
    {},
    {},
    [],
    [],
    [],
    [],
    DECLARED[8],
    [],
    -1,
    False,
    True,
    True,
    31,
    8,
    [[7, 640, {"0": [u64s(21), u64s(9)]}, [[16, 0]], {"16": 1}, 25, 0]],
]

GOLDEN: dict[str, dict[str, Any]] = {
    "batch": {"small": SMALL, "every_column": FULL, "last_numbers": LAST, "origin": MADE, "typed_headers": TYPED},
    "segment": {"sealed": SEGMENT, "open": OPEN, "moved": MOVED, "owned": OWNED, "together": TOGETHER},
    "chunk": {
        "two_streams": CHUNK,
        "mark_only": EMPTY_CHUNK,
        "seal": SEALED_CHUNK,
        "apart": APART_CHUNK,
        "renamed": RENAMED_CHUNK,
    },
    "shard-state": {
        "ended": STATE,
        "empty": EMPTY_STATE,
        "two_streams": TWO_STREAMS,
        "split": SPLIT_STATE,
        "apart": APART_STATE,
        "renamed": RENAMED_STATE,
    },
    "cluster-log": {
        "declared": DECLARED_FACT,
        "withdrawn": WITHDRAWN,
        "acted": ACTED,
        "several": SEVERAL,
        "snapshot": SNAPSHOT,
        "empty": EMPTY,
    },
    "link": {
        "control": CONTROL,
        "data": DATA,
        "last_words": LAST_WORDS,
        "config": CONFIG,
        "down": DOWN,
        "pull": PULL,
        "canary": CANARY,
        "throttled": THROTTLED,
        "report": NODE_REPORT,
        "pair_report": PAIR_REPORT,
    },
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
    head = msgspec.msgpack.decode(whole[-length : -chunk.TRAILER_BYTES])
    place = head[3][0]
    columns = msgspec.msgpack.decode(whole[place[2] : place[2] + place[3]], strict=False)
    columns[8][0] += ["", "more of a lane", 7]
    block = msgspec.msgpack.encode([*columns, "more of the block"])
    place[3:5] = [len(block), crc32c(block)]
    place.append("more of the place")
    body = msgspec.msgpack.encode([*head, {"more": "of the head"}])
    return whole[: place[2]] + block + notation.with_trailer(body)


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


def later_version(data: bytes, version: int) -> bytes:
    """What a later release might write: a later version, and a header checksum that this one cannot make sense of."""
    return flipped(patched(data, 3, bytes([version])), 4)


def rejects() -> Iterator[tuple[str, str, str, bytes]]:
    """Format, name, error and bytes of every vector that must be refused."""
    for kind, name, magic_name in (
        ("batch", "small", "batch"),
        ("segment", "open", "segment"),
        ("chunk", "two_streams", "chunk"),
        ("shard-state", "ended", "snapshot"),
    ):
        data = notation.encode(kind, GOLDEN[kind][name])
        yield kind, "wrong_magic", "Corrupt", patched(data, 0, b"XYZ")
        version = 3 if kind in ("shard-state", "segment") else 2
        yield kind, "later_version", "UnsupportedVersion", later_version(data, version)
        yield kind, "empty", "Truncated", b""
        yield kind, "flipped_header", "Corrupt", flipped(data, 5 if kind == "shard-state" else 25)
        yield kind, "flipped_body", "Corrupt", flipped(data, len(data) * 2 // 3)
        yield kind, f"cut_{magic_name}", "Corrupt" if kind == "chunk" else "Truncated", data[:-3]
    yield from batch_rejects()
    yield from file_rejects()
    yield from link_rejects()
    yield from cluster_rejects()


def cluster_rejects() -> Iterator[tuple[str, str, str, bytes]]:
    """Entries and snapshots of the cluster log that no reader may believe."""
    for name, meaning in (("entry", DECLARED_FACT), ("snapshot", SNAPSHOT)):
        data = notation.encode("cluster-log", meaning)
        yield "cluster-log", f"empty_{name}", "Truncated", b"" if name == "entry" else data[:4]
        yield "cluster-log", f"cut_{name}", "Truncated", data[:-3]
        yield "cluster-log", f"flipped_{name}", "Corrupt", flipped(data, len(data) * 2 // 3)
        # The checksum covers the version: damage must not read as a later release's.
        yield "cluster-log", f"flipped_version_of_{name}", "Corrupt", patched(data, 3, b"\x02")
        begin = data[:3] + b"\x02"
        signed = begin + struct.pack("<I", crc32c(data[12:], crc32c(begin))) + data[8:]
        yield "cluster-log", f"later_version_of_{name}", "UnsupportedVersion", signed
        yield "cluster-log", f"over_long_{name}", "Corrupt", data + b"\0"
    later = notation.encode("cluster-log", {**DECLARED_FACT, "must_understand": 4})
    yield "cluster-log", "of_a_later_release", "UnsupportedVersion", later
    yield "cluster-log", "wrong_magic", "Corrupt", patched(later, 0, b"XYZ")
    named = notation.encode("cluster-log", {**DECLARED_FACT, "name": "a\nb"})
    yield "cluster-log", "name_of_two_lines", "Corrupt", named
    facts = SNAPSHOT["kinds"][1]["facts"]
    twice = {**SNAPSHOT, "kinds": [{**SNAPSHOT["kinds"][1], "facts": [{**facts[0], "version": 9}, facts[1]]}]}
    yield "cluster-log", "fact_behind_the_last_of_its_kind", "Corrupt", notation.encode("cluster-log", twice)


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
        ("second_flags", 9, 4),
        ("event_time", 9, 8),
        ("unknown_column", 9, 128),
        ("unknown_clock_state", 10, 2),
        ("reserved_byte", 11, 1),
    ):
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
    greedy = {**CHUNK, "sections": [{**CHUNK["sections"][1]}]}
    greedy["sections"][0]["entries"] = [{**CHUNK["sections"][1]["entries"][0], "take": 3}]
    yield (
        "chunk",
        "of_a_build_before_the_first_release",
        "PreRelease",
        notation.encode("chunk", {**CHUNK, "must_understand": 0}),
    )
    state = notation.encode("shard-state", STATE)
    yield "shard-state", "over_long", "Corrupt", state + b"\0"
    yield (
        "shard-state",
        "of_a_later_release",
        "UnsupportedVersion",
        notation.encode("shard-state", {**STATE, "must_understand": 4}),
    )
    yield "chunk", "of_a_later_release", "UnsupportedVersion", notation.encode("chunk", {**CHUNK, "must_understand": 9})
    length = chunk.footer_bytes(whole)
    yield "chunk", "flipped_block", "Corrupt", flipped(whole, -length - 3)
    yield "shard-state", "of_a_build_before_the_first_release", "PreRelease", patched(state, 3, b"\x01")
    streams = notation.encode("shard-state", TWO_STREAMS)
    yield "shard-state", "flipped_block", "Corrupt", flipped(streams, -40)
    yield "shard-state", "cut_block", "Truncated", streams[:-3]
    yield "shard-state", "behind_the_blocks", "Corrupt", streams + b"\0"
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
