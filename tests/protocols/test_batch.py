"""Batches: what goes in comes out, and nothing else is ever accepted."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.protocols.strategies import CLOCKS, COMPRESSORS, INT64, PAIRS, U32, batches, columns
from weft.protocols import batch
from weft.protocols.batch import (
    ClockReading,
    ClockState,
    Codec,
    Column,
    Columns,
    columns_from_lists,
    decode_body,
    encode_body,
    ends_of,
    is_plainly_sound,
)
from weft.protocols.errors import CodecError, Corrupt, Truncated, UnsupportedVersion
from weft.protocols.ranges import SEQ_END

CLOCK = ClockReading(7, 1_000, ClockState.SYNCED)
TIMES = struct.pack("<2q", 10, 20)


def encode(columns_: Columns | None = None, compressor: zstandard.ZstdCompressor | None = None) -> bytes:
    return batch.encode(
        1, 5, columns_ or batch.columns_from_lists(TIMES, [b"a", b"b"], [b"x", b"yz"]), CLOCK, compressor
    )


def with_crc(data: bytes | bytearray) -> bytes:
    """``data`` as a writer with bad intentions would sign it."""
    data = bytearray(data)
    struct.pack_into("<I", data, 4, crc32c(data[8:]))
    return bytes(data)


def forged(
    raw: bytes, count: int, columns_: int = 0, codec: Codec = Codec.NONE, raw_length: int | None = None
) -> bytes:
    """A batch with a good checksum around any body."""
    header = bytearray(encode()[: batch.HEADER_BYTES])
    header[8:10] = bytes([codec, columns_])
    struct.pack_into("<III", header, 16, count, len(raw) if raw_length is None else raw_length, len(raw))
    return with_crc(bytes(header) + raw)


def body_parts(columns_: Columns | None = None) -> bytes:
    return encode(columns_)[batch.HEADER_BYTES :]


@given(U32, st.integers(0, SEQ_END - 12), columns(), CLOCKS, COMPRESSORS)
def test_round_trip(
    stream: int, base_seq: int, made: Columns, clock: ClockReading, compressor: zstandard.ZstdCompressor | None
) -> None:
    data = batch.encode(stream, base_seq, made, clock, compressor)
    header = batch.verify(data)
    assert (header.stream, header.base_seq, header.count) == (stream, base_seq, len(made.times) // 8)
    assert ClockReading(header.boot_id, header.monotonic, header.clock) == clock
    assert header.length == len(data)
    assert batch.decode_columns(data) == made


@given(
    st.lists(
        st.tuples(INT64, st.binary(max_size=5), st.binary(max_size=9), PAIRS, st.integers(0, 255)),
        min_size=1,
        max_size=9,
    )
)
def test_records_are_the_lists_they_came_from(rows: list[tuple[int, bytes, bytes, batch.HeaderPairs, int]]) -> None:
    times, keys, payloads, headers, flags = zip(*rows, strict=True)
    made = batch.columns_from_lists(
        struct.pack(f"<{len(rows)}q", *times),
        keys,
        payloads,
        {i: pairs for i, pairs in enumerate(headers) if pairs},
        {i: bits for i, bits in enumerate(flags) if bits},
    )
    found = list(batch.records(batch.encode(1, 100, made, CLOCK)))
    assert [(r.time, r.key, r.payload, r.headers, int(r.flags)) for r in found] == rows
    assert [r.seq for r in found] == list(range(100, 100 + len(rows)))


@pytest.mark.parametrize("keys", [[b"a", b"b", b"c"], [b"a", b"a", b"a"], [b"b", b"a", b"b"], [b""]])
def test_a_batch_has_each_key_once_in_order_of_first_use(keys: list[bytes]) -> None:
    made = batch.columns_from_lists(bytes(8 * len(keys)), keys, keys)
    assert made.keys == list(dict.fromkeys(keys))
    assert [each.key for each in batch.records(encode(made))] == keys


@given(batches(), st.data())
def test_any_changed_byte_is_refused(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    damaged[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(CodecError):
        batch.decode_columns(damaged)


@pytest.mark.parametrize("compressor", [None, zstandard.ZstdCompressor(level=1)])
def test_every_changed_byte_and_every_cut_of_one_batch_is_refused(compressor: zstandard.ZstdCompressor | None) -> None:
    data = encode(batch.columns_from_lists(TIMES, [b"a", b"b"], [b"x" * 5000, b"y"], {0: (("n", "v"),)}), compressor)
    positions = [*range(200), *range(200, len(data), 61), len(data) - 1] if compressor is None else range(len(data))
    for position in positions:
        for bit in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= bit
            with pytest.raises(CodecError):
                batch.verify(damaged)
    for end in positions:
        with pytest.raises(Truncated):
            batch.verify(data[:end])


@given(batches(), st.data())
def test_any_cut_is_truncated(data: bytes, draw: st.DataObject) -> None:
    with pytest.raises(Truncated):
        batch.decode_columns(data[: draw.draw(st.integers(0, len(data) - 1))])


@given(batches(), st.binary(max_size=20), st.binary(max_size=20))
def test_a_batch_is_found_at_an_offset_and_bytes_behind_it_are_left_alone(
    data: bytes, before: bytes, after: bytes
) -> None:
    whole = memoryview(before + data + after)
    header = batch.verify(whole, len(before))
    assert batch.decode_columns(whole, header, len(before)) == batch.decode_columns(data)


@given(st.binary(max_size=200))
def test_garbage_raises_codec_errors_only(data: bytes) -> None:
    with pytest.raises(CodecError):
        batch.decode_columns(data)
    with pytest.raises(CodecError):
        batch.decode_columns(with_crc(b"WFB\1" + bytes(4) + data))


@settings(max_examples=300)
@given(batches(4), st.data())
def test_a_hostile_body_with_a_good_checksum_raises_codec_errors_only(data: bytes, draw: st.DataObject) -> None:
    header = batch.decode_header(data)
    raw = bytearray(batch.body_of(data, header))
    for _ in range(draw.draw(st.integers(1, 3))):
        raw[draw.draw(st.integers(0, len(raw) - 1))] = draw.draw(st.integers(0, 255))
    try:
        list(batch.records(forged(bytes(raw), header.count, header.columns)))
    except CodecError:
        pass


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [
        (16, "I", 0),  # no records
        (16, "I", batch.COUNT_MAX + 1),
        (16, "I", 1000),  # more records than the body has room for
        (20, "I", batch.RAW_BYTES_MAX + 1),
        (20, "I", 1 << 20),  # not compressed, yet another length
        (32, "Q", SEQ_END - 1),  # two records run past the end
        (32, "Q", (1 << 64) - 1),
    ],
)
def test_header_fields_out_of_bounds_are_refused(offset: int, layout: str, value: int) -> None:
    data = bytearray(encode())
    struct.pack_into(f"<{layout}", data, offset, value)
    with pytest.raises(Corrupt):
        batch.verify(with_crc(data))


LATER = {
    "codec": (8, 2),
    "second flags": (9, 4),
    "event time": (9, 8),
    "column": (9, 128),
    "clock": (10, 2),
    "zero": (11, 1),
}


@pytest.mark.parametrize("name", LATER)
def test_what_only_a_later_release_knows_is_no_damage(name: str) -> None:
    offset, value = LATER[name]
    data = bytearray(encode())
    data[offset] = value
    later = with_crc(data)
    for read in (batch.verify, batch.decode_header, batch.decode_columns):
        with pytest.raises(UnsupportedVersion):
            read(later)


@pytest.mark.parametrize("name", LATER)
def test_a_damaged_byte_is_no_later_release(name: str) -> None:
    offset, value = LATER[name]
    data = bytearray(encode())
    data[offset] = value
    for read in (batch.verify, batch.decode_header, batch.decode_columns):
        with pytest.raises(Corrupt) as found:
            read(data)
        assert not isinstance(found.value, UnsupportedVersion)
    with pytest.raises(UnsupportedVersion):  # the header alone cannot tell: its caller looks at the whole batch
        batch.decode_header(data[: batch.HEADER_BYTES])


def test_a_batch_keeps_its_origin() -> None:
    made = batch.columns_from_lists(TIMES, [b"a", b"b"], [b"x", b"yz"])
    later = batch.columns_from_lists(TIMES[8:] * 2, [b"a", b"b"], [b"x", b"yz"])
    parts = [batch.encode(1, seq, columns, CLOCK, origin=4_000_000_000) for seq, columns in ((5, made), (7, later))]
    assert batch.verify(parts[0]).origin == 4_000_000_000
    assert batch.verify(batch.merge(parts)).origin == 4_000_000_000
    assert batch.verify(encode()).origin == 0


def test_a_later_version_is_told_apart() -> None:
    data = bytearray(encode())
    data[3] = 2
    with pytest.raises(UnsupportedVersion):
        batch.decode_header(data)


def test_the_times_in_the_header_are_those_of_the_records() -> None:
    data = bytearray(encode())
    struct.pack_into("<q", data, 48, 99)
    with pytest.raises(Corrupt, match="times"):
        batch.decode_columns(with_crc(data))


@pytest.mark.parametrize("count_claimed", [1, 3])
def test_the_columns_have_the_records_of_the_header(count_claimed: int) -> None:
    with pytest.raises(Corrupt):
        batch.decode_columns(forged(body_parts(), count_claimed))


def test_bytes_behind_the_last_column_are_refused() -> None:
    with pytest.raises(Corrupt, match="follow"):
        batch.decode_columns(forged(body_parts() + bytes(8), 2))


# --- what a hostile writer can make a reader allocate


def peak_bytes(data: bytes) -> int:
    """Most memory held while ``data`` is decoded and refused."""
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            batch.decode_columns(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_frame_that_claims_more_than_the_header_is_refused_before_it_expands() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    assert peak_bytes(forged(bomb, 1, codec=Codec.ZSTD, raw_length=len(bomb) + 1000)) < 1 << 20


def test_a_frame_that_claims_nothing_expands_no_further_than_the_header_says() -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(256 << 20))
    assert peak_bytes(forged(bomb, 1, codec=Codec.ZSTD, raw_length=len(bomb) + 1000)) < 1 << 20


def test_a_frame_that_claims_a_pebibyte_is_corrupt_not_out_of_memory() -> None:
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 50) + b"\x01\0\0"
    assert peak_bytes(forged(frame, 1, codec=Codec.ZSTD, raw_length=1000)) < 1 << 20


def test_bytes_behind_a_compressed_frame_are_refused() -> None:
    raw = body_parts(batch.columns_from_lists(TIMES, [b"a", b"b"], [bytes(999), b""]))
    packed = zstandard.ZstdCompressor().compress(raw)
    batch.decode_columns(forged(packed, 2, codec=Codec.ZSTD, raw_length=len(raw)))
    with pytest.raises(Corrupt):
        batch.decode_columns(forged(packed + b"more", 2, codec=Codec.ZSTD, raw_length=len(raw)))


@pytest.mark.parametrize(
    "blob",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of four thousand million pairs
        b"\x91" * 50_000,  # nested too deeply
        b"\x91\x92\xa1\xff\xa1v",  # not UTF-8
        b"\x91\x93\xa1a\xa1b\xa1c",  # not a pair
        b"\x91\x92\x01\x02",  # a name that is not text
        b"\x91\x92\xa1n\x91\x01",  # a list
        b"\x91\x92\xa1n\xdd\xff\xff\xff\xff",  # a very long one
        b"\x91\x92\xa1n" + b"\x91" * 50_000,  # a deep one
        b"\x91\x92\xa1n\x80",  # a map
        b"\x91\x92\xa1n\xcf" + b"\xff" * 8,  # more than 64 signed bits
        b"\x91\x92\xa1n\xd6\xff\0\0\0\0",  # an extension: msgpack's time
        b"\xdc\x04\x01" + b"\x92\xa1n\xa1v" * 1025,  # one more than HEADER_PAIRS_MAX
        b"",
    ],
    ids=[
        "huge",
        "deep",
        "text",
        "triple",
        "numbers",
        "list",
        "long list",
        "deep list",
        "map",
        "large",
        "extension",
        "many",
        "empty",
    ],
)
def test_hostile_headers_are_corrupt(blob: bytes) -> None:
    column = struct.pack("<IIII", 1, 0, 0, len(blob)) + blob
    raw = body_parts() + struct.pack("<II", len(column), 0) + column + bytes(-len(column) % 8)
    assert peak_bytes(forged(raw, 2, Column.HEADERS)) < 1 << 20


@pytest.mark.parametrize("size", [0, 3, 0xFFFFFFFF])
def test_a_key_table_has_at_most_one_key_a_record(size: int) -> None:
    raw = bytearray(body_parts())
    struct.pack_into("<I", raw, 8 + 16 + 8 + 8, size)
    assert peak_bytes(forged(bytes(raw), 2)) < 1 << 20


@pytest.mark.parametrize("offsets", [(0, 2, 1), (1, 1, 3), (0, 0xFFFFFFFF, 3), (0, 1, 2)])
def test_payload_offsets_ascend_from_zero_to_the_end(offsets: tuple[int, int, int]) -> None:
    made = batch.columns_from_lists(TIMES, [b"a", b"b"], [b"x", b"yz"])
    with pytest.raises(Corrupt, match="offsets"):
        batch.decode_columns(encode(made._replace(payload_offsets=struct.pack("<3I", *offsets))))


# --- what our own code may not write


@pytest.mark.parametrize(
    "change",
    [
        {"times": TIMES + b"1234"},
        {"times": b""},
        {"key_index": b"1234"},
        {"payload_offsets": bytes(8)},
        {"flags": b"1"},
        {"headers": {2: (("a", "b"),)}},
        {"headers": {-1: (("a", "b"),)}},
        {"headers": {0: (("a", "b"),) * (batch.HEADER_PAIRS_MAX + 1)}},
    ],
    ids=repr,
)
def test_what_could_not_be_read_back_is_not_written(change: dict[str, Any]) -> None:
    made = batch.columns_from_lists(TIMES, [b"a", b"b"], [b"x", b"yz"])
    with pytest.raises(ValueError):
        encode(made._replace(**change))


def test_sequence_numbers_end() -> None:
    made = batch.columns_from_lists(TIMES, [b"a", b"b"], [b"x", b"yz"])
    last = batch.encode(1, SEQ_END - 2, made, CLOCK)
    assert batch.verify(last).end_seq == SEQ_END
    with pytest.raises(ValueError):
        batch.encode(1, SEQ_END - 1, made, CLOCK)


def test_small_bodies_stay_raw_and_large_ones_shrink() -> None:
    compressor = zstandard.ZstdCompressor(level=1)
    assert batch.verify(encode(compressor=compressor)).codec is Codec.NONE
    large = encode(batch.columns_from_lists(TIMES, [b"a", b"b"], [bytes(9000), b""]), compressor)
    assert batch.verify(large).codec is Codec.ZSTD
    assert len(large) < 1000


# --- merging


@st.composite
def neighbours(draw: st.DrawFn) -> list[bytes]:
    seq, made = draw(st.integers(0, SEQ_END - 100)), []
    parts = draw(st.lists(columns(6), min_size=1, max_size=5))
    times = sorted(time for part in parts for (time,) in struct.iter_unpack("<q", part.times))
    for drawn in parts:
        count = len(drawn.times) // 8
        part = drawn._replace(times=struct.pack(f"<{count}q", *times[:count]))
        del times[:count]
        first_time = struct.unpack_from("<q", part.times)[0]
        clock = ClockReading(7, max(min(first_time, (1 << 63) - 1), -(1 << 63)), ClockState.SYNCED)
        made.append(batch.encode(3, seq, part, clock, draw(COMPRESSORS)))
        seq += len(part.times) // 8
    return made


@given(neighbours(), COMPRESSORS)
def test_a_merge_has_the_records_of_its_parts(parts: list[bytes], compressor: zstandard.ZstdCompressor | None) -> None:
    merged = batch.merge(parts, compressor)
    assert list(batch.records(merged)) == [record for part in parts for record in batch.records(part)]
    first, whole = batch.verify(parts[0]), batch.verify(merged)
    assert (whole.boot_id, whole.monotonic, whole.clock) == (first.boot_id, first.monotonic, first.clock)


def neighbour(base_seq: int, clock: ClockReading, time: int = 10, stream: int = 1, origin: int = 0) -> bytes:
    made = batch.columns_from_lists(struct.pack("<q", time), [b"k"], [b"p"])
    return batch.encode(stream, base_seq, made, clock, origin=origin)


@pytest.mark.parametrize(
    "right",
    [
        neighbour(2, CLOCK),  # a hole
        neighbour(0, CLOCK),  # a repeat
        neighbour(1, CLOCK, time=9),  # the clock was set back
        neighbour(1, CLOCK, stream=2),
        neighbour(1, CLOCK, origin=1),
        neighbour(1, CLOCK._replace(boot_id=8)),
        neighbour(1, CLOCK._replace(state=ClockState.UNSYNCED)),
        neighbour(1, CLOCK, time=10 + batch.CLOCK_STEP_NS_MAX + 1),  # the clock was set
        neighbour(1, CLOCK, time=10 - batch.CLOCK_STEP_NS_MAX - 1),
    ],
)
def test_what_is_not_one_run_under_one_clock_does_not_merge(right: bytes) -> None:
    with pytest.raises(ValueError, match="do not merge"):
        batch.merge([neighbour(0, CLOCK), right])


def test_a_merge_keeps_to_the_bounds_of_a_batch() -> None:
    third = batch.columns_from_lists(struct.pack("<q", 10), [b"k"], [bytes(batch.RAW_BYTES_MAX // 3)])
    compressor = zstandard.ZstdCompressor(level=1)
    parts = [batch.encode(1, seq, third, CLOCK, compressor) for seq in range(3)]
    with pytest.raises(ValueError, match="merge"):
        batch.merge(parts)
    with pytest.raises(ValueError, match="merge"):
        batch.merge([])


# --- what records take as rows


def shared(count: int, key: bytes, payload: bytes = b"") -> bytes:
    """A batch in which all records have one key, from an encoder that refuses nothing."""
    columns = batch.Columns(bytes(8 * count), bytes(4 * count), [key], bytes(4 * count + 4), b"", {}, b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "check_expanded", lambda *_: None)
        return batch.encode(1, 0, columns, CLOCK, zstandard.ZstdCompressor())


@pytest.mark.parametrize(
    ("count", "length", "is_taken"),
    [
        (1, batch.KEY_BYTES_MAX, True),
        (1, batch.KEY_BYTES_MAX + 1, False),
        (300, batch.KEY_BYTES_MAX + 1, False),
        (2_000, batch.KEY_BYTES_MAX, True),
        (2_047, batch.KEY_BYTES_MAX, False),
        (batch.COUNT_MAX, 64, True),
        (batch.COUNT_MAX, 65, False),
    ],
)
def test_records_that_would_take_too_much_as_rows_are_refused(count: int, length: int, is_taken: bool) -> None:
    data = shared(count, b"k" * length)
    if is_taken:
        batch.check(memoryview(data), batch.decode_header(data))
        assert batch.expanded_bytes(batch.decode_columns(data)) == count * (batch.ROW_BYTES + length)
    else:
        for read in (batch.decode_columns, lambda data: batch.check(memoryview(data), batch.decode_header(data))):
            with pytest.raises(Corrupt):
                read(data)


def test_a_batch_that_readers_would_refuse_is_not_encoded() -> None:
    for count, key in ((1, b"k" * (batch.KEY_BYTES_MAX + 1)), (3_000, b"k" * 60_000)):
        columns = batch.columns_from_lists(bytes(8 * count), [key] * count, [b""] * count)
        with pytest.raises(Corrupt):
            batch.encode(1, 0, columns, CLOCK)


def test_headers_count_with_what_they_take_as_rows() -> None:
    pairs = dict.fromkeys(range(4_000), tuple(("", None) for _ in range(batch.HEADER_PAIRS_MAX)))
    columns = batch.columns_from_lists(bytes(8 * 4_000), [b"k"] * 4_000, [b""] * 4_000, pairs)
    with pytest.raises(Corrupt):
        batch.encode(1, 0, columns, CLOCK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "check_expanded", lambda *_: None)
        data = batch.encode(1, 0, columns, CLOCK)
    with pytest.raises(Corrupt):
        batch.check(memoryview(data), batch.decode_header(data))


def test_a_batch_that_is_cut_is_not_sound_whatever_its_checksum_says() -> None:
    """The fuzzer found one whose checksum is right for the bytes that are there, and whose header claims more"""
    whole = batch.encode(1, 7, batch.columns_from_lists(struct.pack("<q", 1), [b"k"], [b""]), CLOCK)
    cut = bytearray(whole[:-8])
    struct.pack_into("<I", cut, 4, crc32c(cut[batch.HEADER_BYTES :], crc32c(cut[8 : batch.HEADER_BYTES])))
    with pytest.raises(Corrupt, match="has only"):
        batch.check(bytes(cut), batch.decode_header(cut))


# --- The fast look at a batch's body says yes only where the full one does


RECORDS = st.lists(
    st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=9), st.binary(max_size=40)),
    min_size=1,
    max_size=12,
)


def body_of(records: list[tuple[int, bytes, bytes]]) -> bytes:
    times = struct.pack(f"<{len(records)}q", *(time for time, _, _ in records))
    return encode_body(columns_from_lists(times, [key for _, key, _ in records], [data for _, _, data in records]))


@given(RECORDS)
def test_what_is_sound_is_seen_to_be(records: list[tuple[int, bytes, bytes]]) -> None:
    assert is_plainly_sound(memoryview(body_of(records)), len(records), records[0][0], records[-1][0])


@given(RECORDS, st.data())
def test_it_never_says_yes_to_what_does_not_decode(
    records: list[tuple[int, bytes, bytes]], draw: st.DataObject
) -> None:
    body = bytearray(body_of(records))
    for _ in range(draw.draw(st.integers(1, 3), "changes")):
        at = draw.draw(st.integers(0, len(body) - 1))
        body[at] = draw.draw(st.integers(0, 255))
    cut = bytes(body)[: draw.draw(st.integers(0, len(body)))] if draw.draw(st.booleans()) else bytes(body)
    count = draw.draw(st.integers(0, len(records) + 1))
    if is_plainly_sound(cut, count, records[0][0], records[-1][0]):
        columns = decode_body(cut, count, headers=False, flags=False)
        assert ends_of(columns.times, count) == (records[0][0], records[-1][0])


@given(st.binary(max_size=200), st.integers(0, 8))
@example(bytes(200), 1)
def test_it_refuses_any_other_bytes_without_an_error(body: bytes, count: int) -> None:
    if is_plainly_sound(body, count, 0, 0):
        decode_body(body, count, headers=False, flags=False)


@pytest.mark.parametrize("column", ["headers", "flags"])
def test_batches_with_further_columns_are_checked_in_full(column: str) -> None:
    columns = columns_from_lists(struct.pack("<q", 5), [b"k"], [b"p"], {0: (("unit", "C"),)}, {0: 1})
    if column == "headers":
        columns = columns._replace(flags=b"")
    else:
        columns = columns._replace(headers={})
    data = bytearray(batch.encode(1, 0, columns, batch.ClockReading(1, 1, batch.ClockState.SYNCED)))
    batch.check(bytes(data), batch.decode_header(data))
    data[-1] ^= 1
    with pytest.raises(Corrupt):
        batch.check(bytes(data), batch.decode_header(data))
