"""Targets of what edges, readers and stores send to a hub."""

from __future__ import annotations

import contextlib
import json
import struct
from importlib.util import find_spec
from pathlib import Path

import zstandard
from aiohttp.test_utils import make_mocked_request
from crc32c import crc32c

from tests.fuzz.target import INPUT_BYTES_MAX, Target
from tests.vectors import notation
from weft.hub_api.answers import ApiError
from weft.hub_api.operation import reader_of
from weft.hub_api.operations import OF_NAME
from weft.hub_api.records import RECORDS_MAX
from weft.protocols import batch, chunk, link
from weft.protocols.batch import ClockReading
from weft.protocols.errors import CodecError
from weft.protocols.link import PENDING_BYTES_MAX, Data, FrameDecoder, FrameEncoder, FrameType, split_batches

VECTORS = Path(notation.__file__).parent
_CRC = struct.Struct("<I")


def _vectors(kind: str) -> list[bytes]:
    """The golden and the reject vectors of a format, the large ones left out."""
    paths = [*(VECTORS / kind).glob("*.json"), *(VECTORS / kind / "reject").glob("*.json")]
    found = (bytes.fromhex("".join(json.loads(path.read_text())["hex"])) for path in sorted(paths))
    return [data for data in found if len(data) <= INPUT_BYTES_MAX]


# --- batches


def _mend_batch(data: bytes) -> bytes:
    """Make the checksum right: a stranger can."""
    if len(data) < batch.HEADER_BYTES:
        return data
    length = min(len(data), batch.HEADER_BYTES + struct.unpack_from("<I", data, 24)[0])
    return (
        data[:4] + _CRC.pack(crc32c(data[batch.HEADER_BYTES : length], crc32c(data[8 : batch.HEADER_BYTES]))) + data[8:]
    )


def _batch(data: bytes) -> None:
    for each in (data, _mend_batch(data)):
        try:
            header = batch.decode_header(each)
            batch.check(memoryview(each), header)
        except CodecError:
            continue
        columns = batch.decode_columns(each, header)
        clock = ClockReading(header.boot_id, header.monotonic, header.clock)
        again = batch.encode(header.stream, header.base_seq, columns, clock, origin=header.origin)
        # As text: NaN, which a header may have, is no NaN's equal.
        assert repr(list(batch.records(again))) == repr(list(batch.records(each)))


def _batch_weight(data: bytes) -> int:
    try:
        return max(len(data), batch.decode_header(_mend_batch(data)).raw_length)
    except CodecError:
        return len(data)


# --- frames


def _frames(data: bytes) -> None:
    at = 0
    try:
        while True:
            frame, end = link.decode_frame(data, at)
            assert at + link.FRAME_HEADER_BYTES <= end <= len(data)
            at = end
            again = link.encode_frame(frame)
            assert link.decode_frame(again) == (frame, len(again))
            if isinstance(frame, Data):
                _check_batches(bytes(frame.batches))
    except CodecError:
        return


def _check_batches(batches: bytes) -> None:
    whole = 0
    for header, each in split_batches(batches):
        assert header.length == len(each)
        whole += len(each)
        if header.raw_length <= 2 * INPUT_BYTES_MAX:
            batch.check(each, header)
    assert whole == len(batches)


def _frame_seeds() -> list[bytes]:
    data = [
        struct.pack("<BII", FrameType.DATA, len(each) + 4, 1) + each for each in _vectors("batch") if len(each) < 1000
    ]
    bodies = (
        b"\xc1",
        b"\x90",
        b"\x93\x01\x02\x03",
        b"\x80",
        b"\x91" * 2000,
        b"\xdd\xff\xff\xff\xff",
        b"\x92\x01\xdc\xff\xff",
    )
    control = [
        struct.pack("<BI", number, len(body)) + body
        for number in FrameType
        if number != FrameType.DATA
        for body in bodies
    ]
    large: list[link.Frame] = [
        link.LaneOpen(1, "t", "e", 1, "s", 1, [(2 * at, 2 * at + 1) for at in range(15_000)]),
        link.LaneOpen(1, "t", "e", 1, "s", 1, [], ["/".join("+" * 100)] * 256),
        link.Ack(1, [(2 * at, 2 * at + 1) for at in range(15_000)]),
        link.Marks(1, [(at, at) for at in range(4096)]),
        link.Hello(1, "t", "e", 1, 1, 1, "s", ["x" * 64] * 64),
    ]
    known = [each for each in _vectors("link") if each[:1] != b"\x28"]
    return [*known, *data, *control, *map(link.encode_frame, large)]


# --- the stream of a link


def _stream(data: bytes) -> None:
    """The first byte says in what pieces the rest comes."""
    decoder, size = FrameDecoder(), (data[:1] or b"\0")[0] << 4 or INPUT_BYTES_MAX
    try:
        for at in range(1, len(data), size):
            for frame in decoder.decode(data[at : at + size]):
                if isinstance(frame, Data):
                    split_batches(frame.batches)
    except CodecError:
        return


def _stream_weight(data: bytes) -> int:
    decompressor, count = zstandard.ZstdDecompressor(max_window_size=1 << 17).decompressobj(), 0
    try:
        for at in range(1, len(data), 64):
            count += len(decompressor.decompress(data[at : at + 64]))
            if count > PENDING_BYTES_MAX:
                break
    except zstandard.ZstdError:
        pass
    return max(len(data), min(count, PENDING_BYTES_MAX))


def _stream_seeds() -> list[bytes]:
    sent = bytes.fromhex("".join(json.loads((VECTORS / "link/stream.json").read_text())["hex"]))
    small = FrameEncoder(small=True).encode([link.Ping(1), link.Ack(1, [(0, 5)])])
    bomb = zstandard.ZstdCompressor(level=1).compress(struct.pack("<BI", FrameType.MARK, 4 << 20) + bytes(4 << 20))
    return [b"\0" + sent, b"\1" + sent, b"\0" + small, b"\0" + sent + small, b"\0" + bomb, b"\0" + sent[:-9]]


# --- chunks


def _mend_chunk(data: bytes) -> bytes:
    """Make the checksums of header and footer right."""
    try:
        start = len(data) - chunk.footer_bytes(data)
    except CodecError:
        return data
    if start < chunk.HEADER_BYTES:
        return data
    header = data[:4] + _CRC.pack(crc32c(data[8 : chunk.HEADER_BYTES], crc32c(data[:4])))
    crc = _CRC.pack(crc32c(data[start : -chunk.TRAILER_BYTES]))
    return header + data[8:-8] + crc + data[-4:]


def _chunk(data: bytes) -> None:
    for each in (data, _mend_chunk(data)):
        try:
            found = chunk.decode(each)
            footer, _ = chunk.encode_footer(found.footer)
            assert chunk.decode_footer(footer)[0] == found.footer
            for section in found.footer.streams:
                body = memoryview(each)[section.position : section.position + section.length]
                for entry in chunk.section_entries(section, body, found.footer.lanes_of(section)):
                    batch.verify(entry.batch)
        except CodecError:
            continue


# --- parameters of the hub's API


_READERS = {each.name: reader_of(each) for name in ("series", "trace", "records") for each in OF_NAME[name].parameters}


def _parameters(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    request = make_mocked_request("GET", f"/v1/streams/x/records?{text}")
    for name, value in request.query.items():
        if (read := _READERS.get(name)) is not None:
            with contextlib.suppress(ApiError):
                found = read(value)
                assert name != "limit" or 1 <= found <= RECORDS_MAX


def _parameter_seeds() -> list[bytes]:
    texts = (
        "limit=5&shard=0&offset=12",
        "since=2026-01-31T12:00:00Z",
        "since=1700000000000000000",
        "since=-5&limit=%31",
        "since=0001-01-01T00:00:00%2B23:59",
        "since=9999-12-31T23:59:59-23:59",
        "since=2026-W05-1",
        "since=20260131T12",
        "tenant=%FF%00",
        "a&&=;%zz",
        "limit=" + "9" * 5000,
        "since=" + "1" * 5000,
        "limit=%D9%A3",
        "limit=²",
        "since=--1",
    )
    return [text.encode() for text in texts]


BATCH = Target(_batch, lambda: _vectors("batch"), memory_per_byte=64, weight=_batch_weight)
"""Each record of a batch may be an object or two here; the receivers make none."""
FRAMES = Target(_frames, _frame_seeds, memory_per_byte=64)
"""Small integers and ranges of msgpack take some twenty times their bytes, and are there twice."""
STREAM = Target(_stream, _stream_seeds, head=1, memory_per_byte=64, weight=_stream_weight)
CHUNK = Target(_chunk, lambda: _vectors("chunk"), memory_per_byte=64)
PARAMETERS = Target(_parameters, _parameter_seeds, memory_per_byte=64)
# --- requests of Kafka's clients


def _kafka(data: bytes) -> None:
    from weft.cloud_hub.kafka.messages import decode

    with contextlib.suppress(CodecError):
        decode(data)


def _kafka_seeds() -> list[bytes]:
    from tests.cloud_hub.kafka.frames import SEEDS, framed

    return [framed(*each)[4:] for each in SEEDS]


# A topic without a name has two bytes, and is an object in the request's version and in the newest.
KAFKA = Target(_kafka, _kafka_seeds, memory_per_byte=128)


TARGETS = {"batch": BATCH, "frames": FRAMES, "stream": STREAM, "chunk": CHUNK, "parameters": PARAMETERS}
if find_spec("kio"):  # an extra
    TARGETS["kafka"] = KAFKA
