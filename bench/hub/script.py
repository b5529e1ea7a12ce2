"""Messages of the benchmark's links, encoded beforehand, so that a thousand of them cost the generator little.

All links of one variant say the same after their greeting. That works because their greetings are as long as each
other and stand in the compressed stream as they are: what follows was compressed by a context that knows nothing of
them. Frames of WebSocket are masked with zeros, which leaves them as they are (RFC 6455 section 5.3).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import zstandard

from bench.common import encode_batch
from weft.protocols.link import PROTOCOL_VERSION, Data, Frame, Hello, LaneOpen, Marks, encode_frame

WINDOW_LOG = 17
_HEADER = struct.pack("<IBB", 0xFD2FB528, 0, (WINDOW_LOG - 10) << 3)
"""Header of a zstd frame without content size or checksum (RFC 8878 section 3.1.1.1)."""
_BLOCK_BYTES_MAX = 1 << 16
RECORDS = 10
"""Records of a batch."""
RECORD_INTERVAL_NS = 1_000_000
FIRST = 4_000
"""Number of the first link's edge: names of all edges have the same length."""


@dataclass(frozen=True)
class Fleet:
    """The shape of the load."""

    links: int
    streams: int
    batches_per_message: int


def websocket(payload: bytes) -> bytes:
    """Return a binary frame of a client."""
    length = len(payload)
    if length < 126:
        head = struct.pack("!BB", 0x82, 0x80 | length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", 0x82, 0xFE, length)
    else:
        head = struct.pack("!BBQ", 0x82, 0xFF, length)
    return head + bytes(4) + payload


def as_it_is(data: bytes) -> bytes:
    """Return bytes as blocks of a zstd frame that hold them uncompressed."""
    parts = []
    for at in range(0, len(data), _BLOCK_BYTES_MAX):
        block = data[at : at + _BLOCK_BYTES_MAX]
        parts += [(len(block) << 3).to_bytes(3, "little"), block]
    return b"".join(parts)


def greeting(fleet: Fleet, number: int) -> bytes:
    """Return HELLO and every LANE_OPEN of a link, as its first message."""
    edge = f"press-{FIRST + number}"
    frames: list[Frame] = [Hello(PROTOCOL_VERSION, "default", edge, 1, 1, time.time_ns(), "bench")]
    frames += [
        LaneOpen(lane, "default", edge, 1, f"stream-{lane:02d}", 1, [], ["plant/{line}/{machine}/telemetry"])
        for lane in range(fleet.streams)
    ]
    return websocket(_HEADER + as_it_is(b"".join(map(encode_frame, frames))))


def idle_message(frames: Sequence[Frame]) -> bytes:
    """Return a message of an idle link."""
    return websocket(as_it_is(b"".join(map(encode_frame, frames))))


@dataclass(frozen=True)
class Message:
    """One message, and the records that the link has sent with it and before."""

    data: bytes
    batches: int


def messages(fleet: Fleet, payloads: Sequence[bytes], count: int) -> list[Message]:
    """Return what a link sends after its greeting: in each message a batch and the mark of some lanes, in turns."""
    context = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(3, window_log=WINDOW_LOG)
    ).compressobj()
    readings = cycle(payloads)
    ends = [0] * fleet.streams
    lanes = cycle(range(fleet.streams))
    found: list[Message] = []
    batches = 0
    keys = [b"plant/7/press-%02d/telemetry" % (n % 5) for n in range(RECORDS)]
    began = time.time_ns()
    for number in range(count):
        first_time = began + number * RECORDS * RECORD_INTERVAL_NS
        frames: list[Frame] = []
        marks = []
        for lane in islice(lanes, fleet.batches_per_message):
            data = encode_batch(ends[lane], first_time, RECORD_INTERVAL_NS, keys, list(islice(readings, RECORDS)))
            frames.append(Data(lane, data))
            ends[lane] += RECORDS
            marks.append((lane, ends[lane]))
        frames.append(Marks(first_time + RECORDS * RECORD_INTERVAL_NS, marks))
        packed = context.compress(b"".join(map(encode_frame, frames)))
        packed += context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        if number == 0:
            assert packed.startswith(_HEADER[:4])
            packed = packed[len(_HEADER) :]
        batches += fleet.batches_per_message
        found.append(Message(websocket(packed), batches))
    return found
