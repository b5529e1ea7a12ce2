"""Segments: entries stand where they were written, whole, or they are not entries."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.strategies import (
    CLOCK_NOTICES,
    FOOTERS,
    GAP_NOTICES,
    KEPT,
    NAMES,
    ORIGIN_LISTS,
    OWNERS,
    STREAM_ENTRIES,
    U32,
    U64,
    WHOLES,
    make_batch,
)
from weft.protocols import segment
from weft.protocols import segment as segment_header
from weft.protocols.batch import Codec, Column
from weft.protocols.checksum import crc32c
from weft.protocols.errors import CodecError, Corrupt, Truncated, UnsupportedVersion
from weft.protocols.segment import EntryKind

POSITIONS = st.integers(0, segment.POSITION_MAX - (1 << 20))
KINDS = st.sampled_from([kind for kind in EntryKind if kind is not EntryKind.END])


def entry(position: int, kind: EntryKind, body: bytes) -> bytes:
    return segment.encode_entry_header(position, kind, body) + body


@given(U64, st.integers(0, segment.POSITION_MAX), U64)
def test_headers_round_trip(log_id: int, first_position: int, created: int) -> None:
    header = segment.SegmentHeader(log_id, first_position, created)
    data = segment.encode_header(header)
    assert len(data) == segment.HEADER_BYTES
    assert segment.decode_header(data + b"entries") == header


def test_every_changed_byte_and_every_cut_of_a_header_is_refused() -> None:
    data = segment.encode_header(segment.SegmentHeader(1, 2, 3))
    for position in range(len(data)):
        for bit in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= bit
            with pytest.raises(Corrupt):
                segment.decode_header(damaged)
    for end in range(len(data)):
        with pytest.raises(Truncated):
            segment.decode_header(data[:end])


def test_a_header_past_the_last_position_is_refused() -> None:
    with pytest.raises(Corrupt):
        segment.decode_header(segment.encode_header(segment.SegmentHeader(1, segment.POSITION_MAX + 1, 3)))


@given(POSITIONS, KINDS, st.binary(max_size=60), st.binary(max_size=30))
def test_entries_round_trip_where_they_stand(position: int, kind: EntryKind, body: bytes, before: bytes) -> None:
    data = before + entry(position + len(before), kind, body) + b"more"
    found = segment.decode_entry(data, len(before), position)
    assert found is not None
    assert (found.kind, data[found.body_start : found.body_end]) == (kind, body)
    assert found.end == len(data) - 4


@given(POSITIONS, KINDS, st.binary(max_size=60), st.integers(1, 1 << 20))
def test_an_entry_that_stands_elsewhere_is_refused(position: int, kind: EntryKind, body: bytes, moved: int) -> None:
    """Bytes of an earlier life of a recycled file must not come back as records."""
    with pytest.raises(Corrupt):
        segment.decode_entry(entry(position, kind, body), 0, position + moved)


@given(POSITIONS, KINDS, st.binary(max_size=60), st.data())
def test_the_quick_look_takes_exactly_what_is_sound(
    position: int, kind: EntryKind, body: bytes, data: st.DataObject
) -> None:
    whole = bytearray(entry(position, kind, body))
    assert segment.sound_entry(whole, 0, position) == (kind, len(whole))
    assert segment.sound_entry(whole, 0, position + 1) is None
    assert segment.sound_entry(whole[:-1], 0, position) is None
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert segment.sound_entry(whole, 0, position) is None
    assert segment.sound_entry(bytes(40), 0, position) is None


@pytest.mark.parametrize("body", [b"", b"x", make_batch()], ids=["empty", "short", "batch"])
def test_every_changed_byte_and_every_cut_of_an_entry_is_refused(body: bytes) -> None:
    data = entry(4096, EntryKind.BATCH, body)
    for position in range(len(data)):
        for bit in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= bit
            with pytest.raises(CodecError):
                segment.decode_entry(damaged, 0, 4096)
    assert segment.decode_entry(b"", 0, 4096) is None
    for end in range(1, len(data)):
        with pytest.raises(Truncated):
            segment.decode_entry(data[:end], 0, 4096)


@given(st.integers(0, 40))
def test_zeros_are_the_end_of_the_entries(length: int) -> None:
    assert segment.decode_entry(bytes(length), 0, 4096) is None


@given(st.binary(max_size=60), st.integers(0, 70), POSITIONS)
def test_garbage_is_no_entry(data: bytes, offset: int, position: int) -> None:
    try:
        assert segment.decode_entry(data, offset, position) is None
        assert not any(data[offset : offset + 9])
    except CodecError:
        pass


def test_an_entry_of_a_later_release_is_told_apart_from_damage() -> None:
    header = struct.pack("<IIBxxx", segment._entry_crc(0, 14, b"new"), 3, 14)
    with pytest.raises(UnsupportedVersion):
        segment.decode_entry(header + b"new", 0, 0)


def test_a_header_of_each_version_up_to_the_newest_is_read_and_a_damaged_version_is_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = segment.encode_header(segment.SegmentHeader(1, 2, 3, version=3))
    with pytest.raises(UnsupportedVersion, match="version 3; this release reads up to version 2"):
        segment.decode_header(later)
    monkeypatch.setattr(segment_header, "VERSION", 3)
    first = segment.encode_header(segment.SegmentHeader(1, 2, 3))
    assert [segment.decode_header(data).version for data in (first, later)] == [1, 3]
    for data, version in ((first, 2), (first, 3), (first, 4), (later, 1), (later, 2), (later, 4), (first, 0)):
        with pytest.raises(Corrupt) as found:
            segment.decode_header(data[:3] + bytes([version]) + data[4:])
        assert not isinstance(found.value, UnsupportedVersion)


def test_every_kind_codec_and_column_that_is_written_says_which_release_reads_it() -> None:
    assert set(segment_header.KIND_VERSIONS) == set(EntryKind)
    assert set(segment_header.CODEC_VERSIONS) == set(Codec)
    assert max(segment_header.KIND_VERSIONS.values()) <= segment.VERSION
    assert segment.version_needed(EntryKind.BATCH, make_batch()) == 1
    reserved = bytearray(make_batch())
    reserved[9] = Column.FLAGS2
    with pytest.raises(KeyError):
        segment.version_needed(EntryKind.BATCH, reserved)


def test_an_end_with_a_body_is_damage() -> None:
    with pytest.raises(Corrupt):
        segment.decode_entry(entry(0, EntryKind.END, b"body"), 0, 0)


@given(st.one_of(GAP_NOTICES, CLOCK_NOTICES, KEPT, OWNERS, FOOTERS, WHOLES, ORIGIN_LISTS))
def test_notices_and_footers_round_trip(value: segment.Body) -> None:
    kind = {
        list: EntryKind.ORIGINS,
        segment.Whole: EntryKind.WHOLE,
        segment.GapNotice: EntryKind.GAP,
        segment.ClockNotice: EntryKind.CLOCK,
        segment.Kept: EntryKind.KEPT,
        segment.Owner: EntryKind.OWNER,
        segment.Footer: EntryKind.FOOTER,
    }[type(value)]
    assert segment.decode_body(kind, segment.encode_body(value)) == value


@given(st.dictionaries(U32, STREAM_ENTRIES, max_size=4))
def test_stream_tables_round_trip(streams: dict[int, segment.StreamEntry]) -> None:
    assert segment.decode_body(EntryKind.STREAMS, segment.encode_streams(streams)) == streams


@given(KINDS, st.binary(max_size=60))
def test_garbage_bodies_raise_codec_errors_only(kind: EntryKind, body: bytes) -> None:
    try:
        segment.decode_body(kind, body)
    except CodecError:
        pass


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (EntryKind.BATCH, b"\x80"),
        (EntryKind.GAP, b"\x95\x01\xff\x05\x01\x00"),  # a negative sequence number
        (EntryKind.GAP, b"\x95\x01\x00\xcf" + b"\xff" * 8 + b"\x01\x00"),  # past the last one
        (EntryKind.STREAMS, b"\x81\xff\x92\xa1s\x00"),  # a negative stream
        (EntryKind.STREAMS, b"\x81\x01\x92\xa1\xff\x00"),  # a name that is not UTF-8
        (EntryKind.FOOTER, b"\x93\x80\xdd\xff\xff\xff\xff"),  # four thousand million lanes
        (EntryKind.GAP, b"\x96\x01\x00\x05\x01\x00" + b"\x91" * 100_000),  # nested in a field that is not ours
    ],
)
def test_hostile_bodies_are_corrupt_and_cheap(kind: EntryKind, body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            segment.decode_body(kind, body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_entry_that_claims_too_much_is_corrupt_even_when_cut() -> None:
    with pytest.raises(Corrupt):
        segment.decode_entry(struct.pack("<IIBxxx", 1, segment.ENTRY_BYTES_MAX + 1, 1), 0, 0)


@given(U64)
def test_trailers_round_trip(offset: int) -> None:
    data = segment.encode_trailer(offset)
    assert len(data) == segment.TRAILER_BYTES
    assert segment.decode_trailer(b"before" + data) == offset


def test_every_changed_byte_and_every_cut_of_a_trailer_is_refused() -> None:
    data = segment.encode_trailer(12345)
    for position in range(len(data)):
        for bit in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= bit
            with pytest.raises(Corrupt):
                segment.decode_trailer(damaged)
        with pytest.raises(Truncated):
            segment.decode_trailer(data[:position])


@given(st.lists(st.integers(0, segment.POSITION_MAX), max_size=8))
def test_file_names_sort_in_log_order(positions: list[int]) -> None:
    names = sorted(map(segment.file_name, positions))
    assert [segment.parse_file_name(name) for name in names] == sorted(positions)


@given(NAMES)
def test_other_names_are_no_segments(name: str) -> None:
    assert segment.parse_file_name(name) is None
    assert segment.parse_file_name(f"{name}.seg") is None


@pytest.mark.parametrize("name", ["9" * 20 + ".seg", "٣" * 20 + ".seg", "0" * 20 + ".seg\n", "0" * 20 + ".seg.new"])
def test_near_misses_are_no_segments(name: str) -> None:
    assert segment.parse_file_name(name) is None


# --- The checksum of everything at rest


def test_it_is_castagnoli_and_goes_on_behind_earlier_bytes() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"456789"), crc32c(b"123")) == 0xE3069283
