"""Chunks: an index that is right about every byte, and entries that take only what is there."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.strategies import CHUNK_HEADERS, LANE_UPDATES, batches, make_batch, make_chunk, make_section
from weft.protocols import chunk, chunk_index
from weft.protocols.chunk_index import FIRST_LEVEL, LEVEL_MAX, ClockUpdate, Control, LaneUpdate, StreamBlock, index_of
from weft.protocols.errors import CodecError, Corrupt, PreRelease, Truncated, UnsupportedVersion
from weft.protocols.ranges import SEQ_END

HEADER = chunk.ChunkHeader(b"c" * 16, 3, 4, 0, 5, 6)
LANE = chunk.LaneUpdate("default", "pi", 1, "telemetry", 2, [(0, 3)], [], None, None)


def small_chunk() -> bytes:
    return make_chunk(HEADER, [LANE], [("telemetry", [(0, make_batch())])])


def index(streams: list[chunk.StreamSection], lanes: list[chunk.LaneUpdate]) -> chunk.ChunkIndex:
    return chunk.index_of(HEADER, FIRST_LEVEL, streams, chunk.StreamBlock(lanes, [], []))


def footer_bytes(footer: object) -> bytes:
    """A head and trailer with a good checksum around any value."""
    body = msgspec.msgpack.encode(footer)
    return body + struct.pack("<II4s", len(body), crc32c(body), chunk.TRAILER_MAGIC)


@settings(max_examples=50)
@given(
    CHUNK_HEADERS,
    st.lists(LANE_UPDATES, min_size=3, max_size=3),
    st.lists(st.lists(batches(4), min_size=1, max_size=2), max_size=3),
)
def test_round_trip(header: chunk.ChunkHeader, reported: list[chunk.LaneUpdate], sections: list[list[bytes]]) -> None:
    lanes = [msgspec.structs.replace(lane, tenant="default", stream=f"s{i}") for i, lane in enumerate(reported)]
    named = [(f"s{i}", [(0, data) for data in section]) for i, section in enumerate(sections)]
    data = make_chunk(header, lanes, named)
    found = chunk.decode(data)
    assert (found.header, found.footer.lanes) == (header, lanes)
    for stream, (name, entries) in zip(found.footer.streams, named, strict=True):
        section = data[stream.position : stream.position + stream.length]
        chunk.check_section(section, stream)
        assert stream.stream == name
        of_stream = found.footer.lanes_of(stream)
        assert [(e.lane, bytes(e.batch)) for e in chunk.section_entries(stream, section, of_stream)] == entries


def test_every_changed_byte_and_every_cut_of_a_chunk_is_refused() -> None:
    data = small_chunk()
    for position in range(len(data)):
        for bit in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= bit
            with pytest.raises(CodecError):
                chunk.decode(damaged)
    for end in range(len(data)):
        with pytest.raises(CodecError):
            chunk.decode(data[:end])


@given(st.binary(max_size=200))
def test_garbage_raises_codec_errors_only(data: bytes) -> None:
    with pytest.raises(CodecError):
        chunk.decode(data)
    with pytest.raises(CodecError):
        chunk.decode_footer(data + struct.pack("<II4s", len(data), crc32c(data), chunk.TRAILER_MAGIC))


def test_the_tail_says_how_far_back_the_footer_reaches() -> None:
    data = small_chunk()
    length = chunk.footer_bytes(data[-chunk.TRAILER_BYTES :])
    with pytest.raises(Truncated):
        chunk.decode_tail(data[1 - length :])
    whole = chunk.decode_tail(data[-length:]).span()
    with pytest.raises(Truncated):
        chunk.decode_footer(data[1 - whole :])
    assert chunk.decode_footer(data[-whole:]) == chunk.decode_footer(data)


def test_a_footer_that_claims_more_than_a_reader_fetches_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        chunk.footer_bytes(struct.pack("<II4s", chunk.FOOTER_BYTES_MAX + 1, 0, chunk.TRAILER_MAGIC))


def test_a_footer_longer_than_its_chunk_is_corrupt_not_incomplete() -> None:
    data = bytearray(small_chunk())
    struct.pack_into("<I", data, len(data) - chunk.TRAILER_BYTES, len(data))
    with pytest.raises(Corrupt):
        chunk.decode(data)


def test_a_later_version_is_told_apart() -> None:
    data = bytearray(small_chunk())
    data[3] = 2
    with pytest.raises(Corrupt):  # the checksum is that of this version: the byte is damaged
        chunk.decode(data)
    data[4] ^= 1
    with pytest.raises(UnsupportedVersion):
        chunk.decode(data)


LATER = 1 << 5


@pytest.mark.parametrize(
    "footer",
    [
        [list(HEADER), LATER | 1, 9, [], [], []],
        [list(HEADER), LATER, "a new kind of level"],  # whatever else changed with it
        ["another header", LATER],
    ],
)
def test_what_must_be_understood_and_is_not_is_a_later_release_and_no_damage(footer: object) -> None:
    with pytest.raises(UnsupportedVersion, match="0x20 of a later release"):
        chunk.decode_footer(footer_bytes(footer))


def test_a_footer_that_this_release_does_not_understand_is_not_written_by_it() -> None:
    with pytest.raises(ValueError, match="not written"):
        chunk.encode_footer(replace(index([], []), must_understand=LATER | 1))


def test_what_a_later_release_adds_behind_known_fields_is_passed_over() -> None:
    rest: list[Any] = [[], [[3, 4, 1]], ["a/{b}"], None, [], None, 0]
    of_stream, clock = [3, "pi", 1, b"\xc0"], ["pi", 1, 2, 3, -4, 5]
    plain = [["pi"], [], [1], [2], [0], [3], [7], [4], {0: rest}, [of_stream], [clock]]
    more = [*plain[:8], {0: [*rest, "", "more"]}, [[*of_stream, "more"]], [[*clock, "more"]], "more"]
    found = []
    for columns, added in ((plain, []), (more, ["more"])):
        block = msgspec.msgpack.encode(columns)
        place = [*PLACE[:3], len(block), crc32c(block), *PLACE[5:], *added]
        reported = head([place], [[*CONTROL, *added]], {7: b"more"}, *added)
        found.append(chunk.decode_footer(block + footer_bytes(reported))[0])
    (lane,) = found[0].lanes
    assert (lane.gaps, lane.topics) == ([chunk.GapRange(3, 4, 1)], ["a/{b}"])
    assert (len(found[0].controls), len(found[0].clocks), found[0].extensions) == (2, 1, {7: b"more"})
    assert found[1].blocks == found[0].blocks
    assert (found[1].cluster_controls, found[1].extensions) == (found[0].cluster_controls, found[0].extensions)


@pytest.mark.parametrize("footer", [[list(HEADER), 0, 1, [], []], [list(HEADER), 1, FIRST_LEVEL - 1, [], [], {}]])
def test_an_index_of_a_build_before_the_first_release_is_refused_in_one_sentence(footer: object) -> None:
    with pytest.raises(PreRelease, match=r"was written by a pre-release build and cannot be opened\. Use a new store"):
        chunk.decode_footer(footer_bytes(footer))


def test_a_header_and_a_footer_of_two_chunks_are_no_chunk() -> None:
    data = small_chunk()
    other = chunk.encode_header(HEADER._replace(nonce=7))
    with pytest.raises(Corrupt, match="belong together"):
        chunk.decode(other + data[chunk.HEADER_BYTES :])


def test_a_chunk_number_past_the_last_is_refused() -> None:
    with pytest.raises(Corrupt):
        chunk.decode_header(chunk.encode_header(HEADER._replace(n=chunk.N_MAX + 1)))


STREAM = "default", "s"
BLOCK = chunk_index.encode_block(chunk.StreamBlock([], [], []))
PLACE: list[Any] = [*STREAM, chunk.HEADER_BYTES + 10, len(BLOCK), crc32c(BLOCK), 0, 1, 0, 0, chunk.HEADER_BYTES, 10, 0]
CONTROL: list[Any] = [3, "", "", 1, "", b"\xc0"]


def head(blocks: list[Any], *more: object) -> list[Any]:
    """The head of an index in plain values."""
    return [list(HEADER), 1, FIRST_LEVEL, blocks, *more]


def changed(fields: list[Any], index: int, value: object) -> list[Any]:
    return [value if i == index else field for i, field in enumerate(fields)]


def test_the_head_that_the_next_tests_damage_is_good() -> None:
    chunk.decode_footer(BLOCK + footer_bytes(head([PLACE], [CONTROL])))


@pytest.mark.parametrize(
    "footer",
    [
        head([changed(PLACE, 5, SEQ_END)]),  # offsets run past the end
        head([changed(PLACE, 5, -1)]),
        head([changed(PLACE, 6, 0)]),  # a section of nothing
        head([changed(PLACE, 9, 0)]),  # it overlaps the header
        head([PLACE, PLACE]),  # they overlap each other
        head([changed(PLACE, 10, -1)]),
        head([changed(PLACE, 8, 1 << 63)]),  # no signed 64-bit column holds this time
        head([changed(PLACE, 2, chunk.HEADER_BYTES)]),  # the block overlaps the section
        head([changed(PLACE, 3, -1)]),
        head([changed(PLACE, 4, 1 << 32)]),
        head([changed(PLACE, 1, b"bytes")]),
        head([], [changed(CONTROL, 0, -1)]),
        head([], [changed(CONTROL, 5, bytes((1 << 20) + 1))]),
        head([], [], {1: "text"}),
        [[b"short", 3, 4, 0, 5, 6], 1, FIRST_LEVEL, []],
        [changed(list(HEADER), 1, -1), 1, FIRST_LEVEL, []],
        [list(HEADER), -1, FIRST_LEVEL, []],
        [list(HEADER), 1, FIRST_LEVEL],
        [[]],
        {},
    ],
)
def test_fields_out_of_bounds_are_corrupt(footer: object) -> None:
    with pytest.raises(Corrupt):
        chunk.decode_footer(footer_bytes(footer))


@pytest.mark.parametrize(
    ("streams", "lanes"),
    [
        ([chunk.StreamSection("default", "s", SEQ_END, 1, 0, 0, chunk.HEADER_BYTES, 10, 0)], []),
        ([chunk.StreamSection("default", "s", 0, 1, 0, 0, 0, 10, 0)], []),
        ([], [chunk.LaneUpdate("default", "pi", 1, "s", 2, [(-1, 3)], [], None, None)]),
        ([], [chunk.LaneUpdate("default", "pi", 1, "s", 2, [], [], chunk.Mark(1 << 63, 0), None)]),
        ([], [chunk.LaneUpdate("default", "pi", 1, "s", 2, [], [], None, ["t"] * 257)]),
    ],
)
def test_a_footer_that_no_reader_would_take_is_not_written(
    streams: list[chunk.StreamSection], lanes: list[chunk.LaneUpdate]
) -> None:
    with pytest.raises(ValueError, match="not written"):
        chunk.encode_footer(index(streams, lanes))


def test_sections_fill_the_space_between_header_and_footer() -> None:
    section, count = make_section([(0, make_batch())])
    stream = chunk.StreamSection("default", "s", 0, count, 0, 0, chunk.HEADER_BYTES, len(section), crc32c(section))
    tail = chunk.encode_footer(index([stream], [LANE]))[0]
    chunk.decode(chunk.encode_header(HEADER) + section + tail)
    with pytest.raises(Corrupt, match="fill"):
        chunk.decode(chunk.encode_header(HEADER) + section + b"stowaway" + tail)


BATCH = make_batch(3)


def section_of(count: int) -> chunk.StreamSection:
    """The index of LANE's stream, as far as entries are held against it."""
    return chunk.StreamSection("default", "telemetry", 0, count, 0, 0, chunk.HEADER_BYTES, 0, 0)


@pytest.mark.parametrize(
    ("lane", "skip", "take", "data", "length"),
    [
        (1, 0, 3, BATCH, None),  # a lane that the footer lacks
        (0, 0, 0, BATCH, None),
        (0, 0, 4, BATCH, None),  # more than the batch has
        (0, 3, 1, BATCH, None),
        (0, 1, 3, BATCH, None),
        (0, 0xFFFFFFFF, 1, BATCH, None),
        (0, 0, 3, BATCH, len(BATCH) + 1),
        (0, 0, 3, BATCH, 0xFFFFFFFF),
        (0, 0, 3, BATCH, len(BATCH) - 1),
        (0, 0, 3, BATCH + b"x", None),  # a batch and something else
        (0, 0, 3, b"", None),
        (0, 0, 3, bytes(100), None),
    ],
)
def test_entries_that_do_not_fit_are_corrupt(lane: int, skip: int, take: int, data: bytes, length: int | None) -> None:
    section = chunk.encode_entry_header(lane, skip, take, len(data) if length is None else length, 0) + data
    with pytest.raises(Corrupt):
        list(chunk.section_entries(section_of(take), section, [LANE]))


@pytest.mark.parametrize("change", [{"stream": "alarms"}, {"tenant": "acme"}])
def test_an_entry_of_another_streams_lane_is_corrupt(change: dict[str, str]) -> None:
    """One tenant's record must not become a row of another's table."""
    section = chunk.encode_entry_header(1, 0, 3, len(BATCH), 0) + BATCH
    with pytest.raises(Corrupt, match="default/telemetry"):
        list(chunk.section_entries(section_of(3), section, [LANE, msgspec.structs.replace(LANE, **change)]))


@pytest.mark.parametrize("count", [2, 4])
def test_a_section_holds_as_many_records_as_its_index_says(count: int) -> None:
    section = chunk.encode_entry_header(0, 0, 3, len(BATCH), 0) + BATCH
    with pytest.raises(Corrupt, match=f"holds 3 records, its index lists {count}"):
        list(chunk.section_entries(section_of(count), section, [LANE]))


@pytest.mark.parametrize(("skip", "take"), [(0, 3), (0, 1), (1, 2), (2, 1)])
def test_entries_may_take_any_run_of_the_batch(skip: int, take: int) -> None:
    section = chunk.encode_entry_header(0, skip, take, len(BATCH), -5) + BATCH
    (entry,) = chunk.section_entries(section_of(take), section, [LANE])
    assert tuple(entry) == (0, skip, take, -5, BATCH)


@given(st.binary(min_size=1, max_size=200), st.integers(0, 3))
def test_garbage_sections_raise_codec_errors_only(section: bytes, lanes: int) -> None:
    with pytest.raises(CodecError):
        list(chunk.section_entries(section_of(1), section, [LANE] * lanes))


@given(st.lists(st.integers(0, chunk.N_MAX), max_size=8))
def test_names_sort_in_log_order(numbers: list[int]) -> None:
    names = sorted(map(chunk.file_name, numbers))
    assert [chunk.parse_file_name(name) for name in names] == sorted(numbers)


@pytest.mark.parametrize("name", ["", "1", "9" * 20, "٣" * 20, "0" * 19, "0" * 21, "0" * 20 + "\n", "-" + "0" * 19])
def test_near_misses_are_no_chunks(name: str) -> None:
    assert chunk.parse_file_name(name) is None


# --- Indexes of chunks: blocks of streams come back as they were, whole or some of them, and damage is refused


STREAMS = [("default", "alarms"), ("default", "telemetry"), ("other", "telemetry")]
KEYS = st.sampled_from(STREAMS)
GOLDEN = Path(__file__).parents[1] / "vectors/chunk/two_streams.json"


@settings(max_examples=60)
@given(
    CHUNK_HEADERS,
    st.lists(st.tuples(KEYS, LANE_UPDATES), max_size=6),
    st.lists(st.tuples(KEYS, st.integers(1, 200), st.binary(max_size=9)), max_size=3),
    st.lists(st.tuples(KEYS, st.integers(0, 5)), max_size=3),
    st.sets(KEYS),
)
def test_what_is_told_comes_back_whole_and_by_stream(
    header: chunk.ChunkHeader,
    reported: list[tuple[tuple[str, str], LaneUpdate]],
    controls: list[tuple[tuple[str, str], int, bytes]],
    clocks: list[tuple[tuple[str, str], int]],
    wanted: set[tuple[str, str]],
) -> None:
    lanes = [msgspec.structs.replace(lane, tenant=key[0], stream=key[1]) for key, lane in reported]
    records = [Control(kind, key[0], "pi", 7, key[1], body) for key, kind, body in controls]
    everywhere = Control(200, "", "", 0, "", b"x")
    found_clocks = {key: [ClockUpdate(key[0], "pi", boot, boot, 5, -3, 1)] for key, boot in clocks}
    made = index_of(header, LEVEL_MAX, [], StreamBlock(lanes, [everywhere, *records], []), found_clocks, {7: b"more"})
    tail, crc = chunk.encode_footer(made)
    found, found_crc = chunk.decode_footer(tail)
    assert (found, found_crc) == (made, crc)
    assert sorted(map(repr, found.lanes)) == sorted(map(repr, lanes))
    assert found.controls[0] == everywhere
    some, _ = chunk.decode_footer(tail, frozenset(wanted))
    assert some.blocks == {key: block for key, block in made.blocks.items() if key in wanted}
    assert some.cluster_controls == [everywhere]


def golden() -> bytes:
    return bytes.fromhex("".join(json.loads(GOLDEN.read_text())["hex"]))


def read(data: bytes | bytearray) -> None:
    for section in chunk.decode(data).footer.streams:
        chunk.check_section(data[section.position : section.position + section.length], section)


def test_every_changed_byte_and_every_cut_is_refused() -> None:
    data = golden()
    read(data)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x11
        with pytest.raises(CodecError):
            read(damaged)
    for end in range(len(data)):
        with pytest.raises(CodecError):
            chunk.decode(data[:end])


def test_a_reader_of_one_stream_needs_the_head_and_its_block() -> None:
    data = golden()
    tail = chunk_index.decode_tail(data[-chunk_index.footer_bytes(data) :])
    only = frozenset({("default", "quiet")})
    assert tail.span(only) < tail.span()
    found, _ = chunk.decode_footer(data[-tail.span(only) :], only)
    assert [lane.edge for lane in found.lanes] == ["pi-2"]
    with pytest.raises(Truncated):
        chunk.decode_footer(data[-tail.span(only) :])


REST = chunk_index.LaneRest([], [], None, None, [], None, 1)
COLUMNS = chunk_index.BlockColumns(["a", "b"], [], [1, 2], [1, 1], [0, 5], [3, 0], [9, 0], [3, -1], {})


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (msgspec.structs.replace(COLUMNS, log_id=[1]), "different lengths"),
        (msgspec.structs.replace(COLUMNS, edges=["a"]), "different lengths"),
        (msgspec.structs.replace(COLUMNS, edge=[0, 2]), "names an edge that it does not have"),
        (msgspec.structs.replace(COLUMNS, first=[(1 << 63) - 2, 5]), "a record beyond"),
        (msgspec.structs.replace(COLUMNS, rest={2: REST}), "part of a lane"),
        (
            msgspec.structs.replace(COLUMNS, rest={0: chunk_index.LaneRest([(7, 8)], [], None, None, [], None, 0)}),
            "twice",
        ),
        ([1, 2], "block of default/s"),
    ],
)
def test_columns_that_do_not_fit_are_corrupt(columns: object, text: str) -> None:
    with pytest.raises(Corrupt, match=text):
        chunk_index.decode_block(msgspec.msgpack.encode(columns), ("default", "s"))


PLAIN: list[Any] = [["pi"], [], [1], [2], [0], [3], [7], [4], {}, [], []]
"""Columns of one lane in plain values."""


def with_rest(*fields: object) -> list[Any]:
    return [*PLAIN[:4], [0], [0], *PLAIN[6:8], {0: [*fields]}, *PLAIN[9:]]


def with_column(index: int, *values: object) -> list[Any]:
    return [[*values] if at == index else column for at, column in enumerate(PLAIN)]


def test_the_columns_that_the_next_test_damages_are_good() -> None:
    for good in (PLAIN, with_rest([[0, 3]], [[3, 4, 1]], ["a/{b}"], 2, [], [5, 1], 1)):
        chunk_index.decode_block(msgspec.msgpack.encode(good), ("default", "s"))


@pytest.mark.parametrize(
    "columns",
    [
        with_column(0, b"bytes"),
        with_column(2, -1),
        with_column(3, 1 << 63),
        with_column(4, SEQ_END),
        with_column(6, 1 << 63),
        with_column(7, "4"),
        with_column(9, [-1, "pi", 1, b""]),
        with_column(9, [3, "pi", 1, bytes((1 << 20) + 1)]),
        with_column(10, ["pi", 1, 2, 1 << 63, -4, 5]),
        with_rest([[0, SEQ_END + 1]], [], None, None, [], None, 0),
        with_rest([], [], ["t"] * 257, None, [], None, 0),
        with_rest([], [], None, None, [[0] * 5] * 2, None, 0),
        with_rest([], [], None, None, [], [1, -1], 0),
        with_rest([], [], None, None, [], None, 1 << 32),
        with_rest([], []),
    ],
)
def test_fields_of_a_block_out_of_bounds_are_corrupt(columns: list[Any]) -> None:
    with pytest.raises(Corrupt):
        chunk_index.decode_block(msgspec.msgpack.encode(columns), ("default", "s"))


@given(st.binary(max_size=200))
def test_garbage_of_blocks_raises_codec_errors_only(data: bytes) -> None:
    with pytest.raises(CodecError):
        chunk_index.decode_block(data, ("default", "s"))


def test_a_head_whose_blocks_do_not_follow_one_another_is_corrupt() -> None:
    data = golden()
    length = chunk_index.footer_bytes(data)
    head = msgspec.msgpack.decode(data[-length : -chunk_index.TRAILER_BYTES])
    for change in ((1, 2, 1), (1, 9, 1), (0, 1, "telemetry")):
        place, field, more = change
        damaged = msgspec.msgpack.decode(msgspec.msgpack.encode(head))
        damaged[3][place][field] = more if isinstance(more, str) else damaged[3][place][field] + more
        body = msgspec.msgpack.encode(damaged)
        tail = body + struct.pack("<II4s", len(body), crc32c(body), chunk_index.TRAILER_MAGIC)
        with pytest.raises(Corrupt):
            chunk.decode(data[:-length] + tail)
