"""Links: frames survive any slicing of the stream, and a hostile peer gets a bounded answer."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.strategies import DATA_FRAMES, FRAMES, make_batch
from weft.protocols import batch, link
from weft.protocols import link as link_stream
from weft.protocols.errors import CodecError, Corrupt, Truncated, UnsupportedVersion
from weft.protocols.link import FrameType, split_batches
from weft.protocols.ranges import SEQ_END


def raw_frame(number: int, body: bytes) -> bytes:
    return struct.pack("<BI", number, len(body)) + body


def packed(number: int, *items: object, **fields: object) -> bytes:
    return raw_frame(number, msgspec.msgpack.encode(fields or items))


def message(*parts: bytes) -> bytes:
    """Uncompressed bytes as one message of a peer that does not care for our limits."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=link_stream.STREAM_WINDOW_LOG_MAX)
    context = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return b"".join(map(context.compress, parts)) + context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@given(FRAMES, st.binary(max_size=9), st.binary(max_size=9))
def test_frames_round_trip(frame: link.Frame, before: bytes, after: bytes) -> None:
    data = link.encode_frame(frame)
    assert link.decode_frame(before + data + after, len(before)) == (frame, len(before) + len(data))


@given(FRAMES, st.data())
def test_any_cut_of_a_frame_waits_for_more(frame: link.Frame, draw: st.DataObject) -> None:
    data = link.encode_frame(frame)
    with pytest.raises(Truncated):
        link.decode_frame(data[: draw.draw(st.integers(0, len(data) - 1))])


@given(FRAMES, st.data())
def test_a_changed_byte_never_raises_anything_but_codec_errors(frame: link.Frame, draw: st.DataObject) -> None:
    """Control frames rely on TCP and TLS for integrity; here a change must only stay inside the types."""
    data = bytearray(link.encode_frame(frame))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        found, _ = link.decode_frame(data)
        link.encode_frame(found)
    except CodecError:
        pass


def take(batches: bytes | bytearray) -> None:
    """What a receiver does with a DATA frame."""
    for header, view in split_batches(batches):
        batch.check(view, header)


@given(DATA_FRAMES, st.data())
def test_a_changed_byte_in_a_batch_is_refused(frame: link.Data, draw: st.DataObject) -> None:
    data = bytearray(frame.batches)
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        take(data)


@given(DATA_FRAMES, st.data())
def test_a_data_frame_that_ends_inside_a_batch_is_refused(frame: link.Data, draw: st.DataObject) -> None:
    whole = split_batches(frame.batches)
    assert b"".join(view for _, view in whole) == frame.batches
    end = draw.draw(st.integers(1, len(frame.batches) - 1))
    if end == whole[0][0].length:
        assert len(split_batches(frame.batches[:end])) == 1
        return
    with pytest.raises(Corrupt):
        split_batches(frame.batches[:end])


def test_a_batch_with_a_good_checksum_and_a_bad_body_is_found_at_the_door() -> None:
    data = bytearray(make_batch(3))
    data[batch.HEADER_BYTES] ^= 8
    struct.pack_into("<I", data, 4, crc32c(data[8:]))
    batch.verify(data)
    with pytest.raises(Corrupt):
        take(data)


def test_a_batch_of_a_later_version_is_told_apart() -> None:
    data = bytearray(make_batch(3))
    data[3] = 2
    with pytest.raises(UnsupportedVersion):
        split_batches(data)


@given(st.binary(max_size=60))
def test_garbage_raises_codec_errors_only(data: bytes) -> None:
    for number in FrameType:
        try:
            link.decode_frame(raw_frame(number, data))
        except CodecError:
            pass
    try:
        link.decode_frame(data)
    except CodecError:
        pass
    with pytest.raises(CodecError):
        split_batches(data + b"x")


@settings(max_examples=60)
@given(st.lists(st.lists(FRAMES, max_size=3), max_size=4), st.data())
def test_frames_survive_any_slicing_of_the_stream(messages: list[list[link.Frame]], draw: st.DataObject) -> None:
    encoder, decoder = link_stream.FrameEncoder(), link_stream.FrameDecoder()
    stream = b"".join(map(encoder.encode, messages))
    cuts = draw.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    found: list[link.Frame] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += decoder.decode(stream[start:end])
    assert found == [frame for frames in messages for frame in frames]


@settings(max_examples=60)
@given(st.lists(st.lists(FRAMES, min_size=1, max_size=3), min_size=1, max_size=4))
def test_each_message_is_complete_in_itself(messages: list[list[link.Frame]]) -> None:
    encoder, decoder = link_stream.FrameEncoder(), link_stream.FrameDecoder()
    for frames in messages:
        assert decoder.decode(encoder.encode(frames)) == frames


@given(st.lists(FRAMES, min_size=1, max_size=3), st.data())
def test_a_changed_byte_in_the_stream_raises_codec_errors_only(frames: list[link.Frame], draw: st.DataObject) -> None:
    stream = bytearray(link_stream.FrameEncoder().encode(frames))
    stream[draw.draw(st.integers(0, len(stream) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        link_stream.FrameDecoder().decode(bytes(stream))
    except CodecError:
        pass


@given(st.binary(min_size=1, max_size=200))
def test_a_stream_of_garbage_raises_codec_errors_only(data: bytes) -> None:
    try:
        assert link_stream.FrameDecoder().decode(data) == []
    except CodecError:
        pass


@pytest.mark.parametrize("level", [-5, 1, 3, 19, 22])
def test_a_peer_can_read_every_compression_level(level: int) -> None:
    frames: list[link.Frame] = [link.Ping(1), link.Data(1, make_batch())]
    assert link_stream.FrameDecoder().decode(link_stream.FrameEncoder(level).encode(frames)) == frames


def test_later_sends_compress_against_earlier_ones() -> None:
    encoder = link_stream.FrameEncoder()
    sizes = [len(encoder.encode([link.Data(1, make_batch(3, seq))])) for seq in (0, 3)]
    assert sizes[1] < sizes[0] / 2


# --- a hostile peer


HELLO = {"version": 1, "tenant": "t", "edge": "e", "log_id": 1, "boot": 1, "clock": 0, "software": ""}
WELCOME = {"version": 1, "cluster_id": "", "window_bytes": 1, "batch_bytes_max": 1, "clock": 0, "software": ""}


def opened(number: int = FrameType.LANE_OPEN, **changes: object) -> bytes:
    lane = {"lane": 1, "tenant": "t", "edge": "e", "log_id": 1, "stream": "s", "epoch": 1, "ranges": [], "topics": []}
    return packed(number, *{**lane, "payload": 0, "flags": 0, "origins": [], **changes}.values())


@pytest.mark.parametrize(
    "data",
    [
        packed(FrameType.HELLO, **{**HELLO, "log_id": -1}),
        packed(FrameType.HELLO, **{**HELLO, "clock": 1 << 63}),
        packed(FrameType.HELLO, **{**HELLO, "features": ["f"] * (link.FEATURES_MAX + 1)}),
        packed(FrameType.HELLO, **{**HELLO, "features": ["f" * 65]}),
        opened(epoch=1 << 63),
        opened(lane=1 << 32),
        opened(ranges=[[-1, 5]]),
        opened(ranges=[[0, SEQ_END + 1]]),
        opened(topics=["t"] * 257),
        opened(flags=-1),
        opened(origins=[[1, 1, "n", "v", b""]] * (link.ORIGINS_MAX + 1)),
        packed(FrameType.WELCOME, **{**WELCOME, "window_bytes": 0}),
        packed(FrameType.WELCOME, **{**WELCOME, "batch_bytes_max": 0}),
        packed(FrameType.ACK, 1, [[0, 1]] * (1 << 16) + [[0, 1]]),
        packed(FrameType.ACK, 1, [[0]]),
        packed(FrameType.GAP, 1, 5, 5, 1),
        packed(FrameType.GAP, 1, 5, 4, 1),
        packed(FrameType.GAP, 1, 0, SEQ_END + 1, 1),
        packed(FrameType.MARK, 0, [[1, -1]]),
        packed(FrameType.MARK, 0, [[1, 1]] * (link.LANES_MAX + 1)),
        packed(FrameType.CLOCK, 1, 1, 0, 0, -1),
        raw_frame(FrameType.ACK, b"\x92\x01\xdd\xff\xff\xff\xff"),
        raw_frame(FrameType.PING, b"\x92\x01" + b"\x91" * 100_000),
        raw_frame(FrameType.REFUSE, b"\x84\xa7version\x01\xa4code\x01\xa7message\xa1\xff\xa6advice\xa0"),
        raw_frame(FrameType.PING, b"\x91\x01more"),
        raw_frame(FrameType.DATA, bytes(4 + batch.HEADER_BYTES - 1)),
    ],
)
def test_fields_that_a_peer_may_not_choose_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        link.decode_frame(data)


def test_unknown_fields_of_a_later_release_are_skipped() -> None:
    assert link.decode_frame(packed(FrameType.PING, 1, "good mood"))[0] == link.Ping(1)
    hello, _ = link.decode_frame(packed(FrameType.HELLO, **HELLO, mood="good"))
    assert isinstance(hello, link.Hello)
    assert hello.features == []


@pytest.mark.parametrize(
    "data",
    [
        raw_frame(0, b""),
        raw_frame(FrameType.THROTTLE, b""),
        raw_frame(127, b""),
        raw_frame(255, b""),
        packed(FrameType.HELLO, version=2, lanes="many"),
        packed(FrameType.WELCOME, version=2),
    ],
)
def test_what_a_later_release_says_is_no_damage(data: bytes) -> None:
    with pytest.raises(UnsupportedVersion):
        link.decode_frame(data)


def test_a_greeting_of_this_release_that_does_not_decode_is_damage() -> None:
    with pytest.raises(Corrupt) as caught:
        link.decode_frame(packed(FrameType.HELLO, version=1, tenant=7))
    assert not isinstance(caught.value, UnsupportedVersion)


def test_acknowledgements_take_little_memory() -> None:
    """A hub has an encoder for each link. Their memory is zstd's own; its window tells how much."""
    encoder, decoder = link_stream.FrameEncoder(small=True), link_stream.FrameDecoder()
    for end in range(1, 2000):
        ack = link.Ack(1, [(0, end)])
        assert decoder.decode(encoder.encode([ack])) == [ack]
    first = link_stream.FrameEncoder(small=True).encode([link.Ping(1)])
    assert zstandard.get_frame_parameters(first).window_size <= 1 << link_stream.SMALL_WINDOW_LOG
    first = link_stream.FrameEncoder().encode([link.Ping(1)])
    assert zstandard.get_frame_parameters(first).window_size <= 1 << link_stream.STREAM_WINDOW_LOG_MAX


@pytest.mark.parametrize(
    ("number", "length"), [(FrameType.DATA, link.FRAME_BYTES_MAX + 1), (FrameType.HELLO, link.CONTROL_BYTES_MAX + 1)]
)
def test_a_frame_that_can_never_be_taken_is_refused_at_its_header(number: int, length: int) -> None:
    with pytest.raises(Corrupt):
        link.decode_frame(struct.pack("<BI", number, length))


def peak_bytes_of_refusal(data: bytes) -> int:
    decoder = link_stream.FrameDecoder()
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            decoder.decode(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Spy:
    """A decompressor that keeps the length of the longest piece that one call returned."""

    def __init__(self, context: Any) -> None:
        self._context, self.longest = context, 0

    @property
    def eof(self) -> bool:
        return bool(self._context.eof)

    def decompress(self, data: bytes) -> bytes:
        found: bytes = self._context.decompress(data)
        self.longest = max(self.longest, len(found))
        return found


RAW, REPEATED = 0, 1
BLOCKS = st.lists(
    st.tuples(st.sampled_from([RAW, REPEATED]), st.integers(0, 300) | st.just(128 << 10)), min_size=1, max_size=12
)
HEADER = struct.pack("<IBB", 0xFD2FB528, 0, (link_stream.STREAM_WINDOW_LOG_MAX - 10) << 3)


@given(BLOCKS, st.lists(st.integers(0, 1 << 12), max_size=4), st.binary(max_size=3))
def test_no_piece_of_a_bomb_is_large_however_its_blocks_and_messages_are_cut(
    blocks: list[tuple[int, int]], cuts: list[int], garbage: bytes
) -> None:
    """Blocks that stand for 128 KiB each follow whatever may mislead the count of blocks."""
    stream = HEADER
    for kind, size in blocks:
        content = bytes(min(size, 1 << 10)) if kind == RAW else b"x"
        stream += ((len(content) if kind == RAW else size) << 3 | kind << 1).to_bytes(3, "little") + content
    bomb = ((128 << 10) << 3 | REPEATED << 1).to_bytes(3, "little") + b"x"
    stream += garbage + 300 * bomb
    places = sorted({min(cut, len(stream)) for cut in cuts})
    decoder = link_stream.FrameDecoder()
    spy = Spy(decoder._context)
    decoder._context = cast(Any, spy)
    with contextlib.suppress(CodecError):
        for first, end in pairwise([0, *places, len(stream)]):
            decoder.decode(stream[first:end])
    assert spy.longest <= 9 << 20


def test_a_stream_that_expands_without_end_is_cut_off() -> None:
    data_frame = struct.pack("<BI", FrameType.DATA, link.FRAME_BYTES_MAX)
    bomb = message(data_frame, *[bytes(16 << 20)] * 24)
    assert len(bomb) < 64 << 10
    assert peak_bytes_of_refusal(bomb) < 3 * link_stream.PENDING_BYTES_MAX


def test_a_message_of_endless_small_frames_is_cut_off() -> None:
    assert peak_bytes_of_refusal(message(link.encode_frame(link.Ping(1)) * 1_000_000)) < 64 << 20


@pytest.mark.slow
def test_a_message_of_endless_ranges_is_cut_off() -> None:
    ack = link.encode_frame(link.Ack(1, [(0, 1)] * (1 << 16)))
    assert peak_bytes_of_refusal(message(*[ack] * 60)) < 512 << 20


def test_a_window_larger_than_agreed_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    context = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    stream = context.compress(link.encode_frame(link.Ping(1))) + context.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    with pytest.raises(Corrupt):
        link_stream.FrameDecoder().decode(stream)


def test_a_stream_that_ends_is_refused_together_with_what_follows() -> None:
    with pytest.raises(Corrupt, match="ended"):
        link_stream.FrameDecoder().decode(zstandard.ZstdCompressor().compress(link.encode_frame(link.Ping(1))))


def test_a_frame_that_trickles_in_is_not_copied_again_and_again() -> None:
    """Without this a peer could make an 80 MiB frame cost terabytes of copying."""
    encoder, decoder = link_stream.FrameEncoder(), link_stream.FrameDecoder()
    large = batch.encode(
        1,
        0,
        batch.columns_from_lists(bytes(8), [b"k"], [bytes(4 << 20)]),
        batch.ClockReading(1, 0, batch.ClockState.SYNCED),
    )
    stream = encoder.encode([link.Data(1, large)])
    decoder.decode(stream[:100])
    tracemalloc.start()
    for at in range(100, len(stream) - 1, 10):
        assert decoder.decode(stream[at : min(at + 10, len(stream) - 1)]) == []
        tracemalloc.reset_peak()
    base = tracemalloc.get_traced_memory()[0]
    assert decoder.decode(b"") == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - base < 1 << 20
    assert decoder.decode(stream[-1:]) == [link.Data(1, large)]


# --- what our own code may not send


def test_frames_that_the_peer_would_refuse_are_not_encoded() -> None:
    with pytest.raises(ValueError):
        link.encode_frame(link.Data(1, bytes(link.FRAME_BYTES_MAX)))
    with pytest.raises(ValueError):
        link.encode_frame(link.Refuse(1, 1, "x" * link.CONTROL_BYTES_MAX, ""))
    with pytest.raises(ValueError):
        link.Gap(1, 5, 5, 1)


def test_a_refused_send_leaves_the_stream_intact() -> None:
    encoder, decoder = link_stream.FrameEncoder(), link_stream.FrameDecoder()
    too_large: list[link.Frame] = [link.Ping(1), link.Data(1, bytes(link.FRAME_BYTES_MAX))]
    too_many: list[link.Frame] = [link.Ping(1)] * (link_stream.FRAMES_MAX + 1)
    for frames in (too_large, too_many):
        with pytest.raises(ValueError):
            encoder.encode(frames)
    assert decoder.decode(encoder.encode([link.Ping(2)])) == [link.Ping(2)]
