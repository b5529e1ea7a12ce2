"""Indexes of chunks: blocks of streams come back as they were, whole or some of them, and damage is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocols.strategies import CHUNK_HEADERS, LANE_UPDATES
from weft.protocols import chunk, chunk_index
from weft.protocols.chunk_index import LEVEL_MAX, ClockUpdate, Control, LaneUpdate, StreamBlock, index_of
from weft.protocols.errors import CodecError, Corrupt, Truncated
from weft.protocols.ranges import SEQ_END

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
def test_garbage_raises_codec_errors_only(data: bytes) -> None:
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
