"""Values of the formats, for property tests. Strategies are made once: Hypothesis looks into each before it draws."""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

import zstandard
from crc32c import crc32c
from hypothesis import strategies as st

from weft.protocols import batch, chunk, link, segment
from weft.protocols import lane as origin
from weft.protocols.batch import ClockReading, ClockState, Columns
from weft.protocols.chunk_index import FIRST_LEVEL
from weft.protocols.lane import Origin
from weft.protocols.ranges import SEQ_END

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,15}", fullmatch=True)
HEADER_VALUES = (
    st.text(max_size=8) | st.binary(max_size=8) | INT64 | st.floats(allow_nan=False) | st.booleans() | st.none()
)
PAIRS = st.lists(st.tuples(st.text(max_size=8), HEADER_VALUES), max_size=3).map(tuple)
COMPRESSORS = st.sampled_from([None, zstandard.ZstdCompressor(level=1)])


@functools.cache
@st.composite
def ranges(draw: st.DrawFn, items_max: int = 5) -> list[tuple[int, int]]:
    """Half-open ranges, ascending, that do not touch."""
    bounds = draw(st.sets(st.integers(0, SEQ_END), max_size=2 * items_max).map(sorted))
    return list(zip(bounds[::2], bounds[1::2], strict=False))


class _OfColumns(NamedTuple):
    """The strategies of the columns of so many records."""

    times: st.SearchStrategy[list[int]]
    keys: st.SearchStrategy[list[bytes]]
    payloads: st.SearchStrategy[list[bytes]]
    headers: st.SearchStrategy[dict[int, batch.HeaderPairs]]
    flags: st.SearchStrategy[dict[int, int]]


@functools.cache
def _of_columns(count: int, payload_bytes_max: int) -> _OfColumns:
    numbers = st.integers(0, count - 1)
    return _OfColumns(
        st.lists(INT64, min_size=count, max_size=count),
        st.lists(st.sampled_from([b"", b"a", b"plant/1/t", "wärme".encode()]), min_size=count, max_size=count),
        st.lists(st.binary(max_size=payload_bytes_max), min_size=count, max_size=count),
        st.dictionaries(numbers, PAIRS, max_size=2),
        st.dictionaries(numbers, st.integers(1, 255), max_size=2),
    )


@functools.cache
@st.composite
def columns(draw: st.DrawFn, records_max: int = 12, payload_bytes_max: int = 40) -> Columns:
    """Columns of at least one record."""
    count = draw(st.integers(1, records_max))
    made = _of_columns(count, payload_bytes_max)
    keys, payloads, headers, flags = draw(made.keys), draw(made.payloads), draw(made.headers), draw(made.flags)
    return batch.columns_from_lists(struct.pack(f"<{count}q", *draw(made.times)), keys, payloads, headers, flags)


CLOCKS = st.builds(ClockReading, U64, INT64, st.sampled_from(ClockState))


@functools.cache
@st.composite
def batches(draw: st.DrawFn, records_max: int = 12) -> bytes:
    """Encoded batches, some of them large enough to be compressed."""
    columns_ = draw(columns(records_max))
    if draw(st.booleans()):
        large = batch.COMPRESS_BYTES_MIN // records_max * bytes(range(records_max))
        columns_ = columns_._replace(
            payload=bytes(columns_.payload) + large, payload_offsets=_longer_last(columns_.payload_offsets, len(large))
        )
    base_seq = draw(st.integers(0, SEQ_END - records_max))
    return batch.encode(draw(U32), base_seq, columns_, draw(CLOCKS), draw(COMPRESSORS))


def _longer_last(offsets: batch.Buffer, by: int) -> bytes:
    return bytes(offsets[:-4]) + struct.pack("<I", struct.unpack_from("<I", offsets, len(offsets) - 4)[0] + by)


def make_batch(count: int = 3, base_seq: int = 0, stream: int = 1) -> bytes:
    """A small batch where what it holds does not matter."""
    times = struct.pack(f"<{count}q", *range(count))
    payloads = [f"value {base_seq + i}".encode() for i in range(count)]
    made = batch.columns_from_lists(times, [b"plant/1"] * count, payloads)
    return batch.encode(stream, base_seq, made, ClockReading(7, 0, ClockState.SYNCED))


GAP_NOTICES = st.builds(segment.GapNotice, U32, st.just(3), st.just(9), U32, INT64)
CLOCK_NOTICES = st.builds(segment.ClockNotice, U64, INT64, INT64, INT64)
STREAM_ENTRIES = st.builds(segment.StreamEntry, NAMES, st.integers(0, SEQ_END))
LANE_INDEXES = st.builds(segment.LaneIndex, U32, ranges(), INT64, INT64, ranges())
KEPT_LANES = st.builds(segment.KeptLane, U32, st.integers(0, SEQ_END), ranges())
OWNERS = st.builds(segment.Owner, NAMES, NAMES, st.lists(st.tuples(U32, st.integers(0, SEQ_END)), max_size=3))
WHOLES = st.builds(segment.Whole, U64)
ORIGINS = st.builds(origin.Origin, U32, U32, st.text(max_size=9), st.text(max_size=9), st.binary(max_size=64))
ORIGIN_LISTS = st.lists(ORIGINS, max_size=3)
FOOTERS = st.builds(
    segment.Footer,
    st.dictionaries(U32, NAMES, max_size=3),
    st.lists(LANE_INDEXES, max_size=3),
    st.lists(GAP_NOTICES, max_size=3),
    st.lists(KEPT_LANES, max_size=2),
    st.lists(st.lists(U64, max_size=3), max_size=3),
    st.lists(LANE_INDEXES, max_size=2),
    st.none() | OWNERS,
    ORIGIN_LISTS,
)
KEPT = st.builds(segment.Kept, st.lists(KEPT_LANES, max_size=3))

GAP_RANGES = st.builds(chunk.GapRange, st.just(1), st.just(2), U32)
MARKS = st.builds(chunk.Mark, INT64, st.integers(0, SEQ_END))
ORIGINS = st.builds(
    origin.Origin, st.integers(1, (1 << 32) - 1), U32, st.text(max_size=8), st.text(max_size=8), st.binary(max_size=8)
)
LANE_UPDATES = st.builds(
    chunk.LaneUpdate,
    tenant=NAMES,
    edge=NAMES,
    log_id=U64,
    stream=NAMES,
    epoch=st.integers(0, 9),
    ranges=ranges(),
    gaps=st.lists(GAP_RANGES, max_size=2),
    mark=st.none() | MARKS,
    topics=st.none() | st.lists(st.text(max_size=8), max_size=2),
    payload=st.none() | U32,
    origins=st.lists(ORIGINS, max_size=2),
    floor=st.none() | MARKS,
    flags=U32,
    renamed_to=NAMES,
)
CHUNK_HEADERS = st.builds(
    chunk.ChunkHeader,
    st.binary(min_size=16, max_size=16),
    st.integers(0, chunk.N_MAX),
    st.integers(0, chunk.N_MAX),
    U32,
    U32,
    U64,
)


def make_chunk(
    header: chunk.ChunkHeader, lanes: list[chunk.LaneUpdate], sections: list[tuple[str, list[tuple[int, bytes]]]]
) -> bytes:
    """A chunk with one section per (stream name, [(lane, batch), ...]) of tenant "default".

    Lanes are named by their index among those of the stream."""
    parts, streams, at = [chunk.encode_header(header)], [], chunk.HEADER_BYTES
    for name, entries in sections:
        section, count = make_section(entries)
        crc = crc32c(section)
        streams.append(chunk.StreamSection("default", name, 0, count, 0, 0, at, len(section), crc))
        parts.append(section)
        at += len(section)
    index = chunk.index_of(header, FIRST_LEVEL, streams, chunk.StreamBlock(lanes, [], []))
    return b"".join([*parts, chunk.encode_footer(index)[0]])


def make_section(entries: list[tuple[int, bytes]]) -> tuple[bytes, int]:
    """The bytes of a section that takes every record of each (lane index, batch), and how many records those are."""
    parts, count = [], 0
    for lane, data in entries:
        take = batch.decode_header(data).count
        parts += [chunk.encode_entry_header(lane, 0, take, len(data), 5), data]
        count += take
    return b"".join(parts), count


_SIZES = st.integers(1, link.FRAME_BYTES_MAX)
_FEATURES = st.lists(st.text(max_size=9), max_size=2)
_NUMBERS, _TIMES = st.integers(0, SEQ_END), st.integers(0, (1 << 63) - 1)
_MESSAGES = st.builds(
    link.DownMessage, _NUMBERS, INT64, _TIMES, st.text(max_size=9), st.binary(max_size=9), st.integers(0, 1)
)
_OUTCOMES = st.builds(link.MessageOutcome, _NUMBERS, INT64, U32, st.text(max_size=9))
_PULLS = st.builds(link.PullRequest, st.text(min_size=1, max_size=9), NAMES, INT64, INT64, U64)
_ORIGINS = st.lists(
    st.builds(Origin, U32, U32, st.text(max_size=9), st.text(max_size=9), st.binary(max_size=8)), max_size=2
)
CONTROL_FRAMES = st.one_of(
    st.builds(
        link.Hello, U32, NAMES, NAMES, U64, U64, INT64, st.text(max_size=9), _FEATURES, st.booleans(), st.booleans()
    ),
    st.builds(link.Welcome, U32, NAMES, _SIZES, _SIZES, INT64, st.text(max_size=9), _FEATURES),
    st.builds(link.Refuse, U32, U32, st.text(max_size=20), st.text(max_size=20), st.text(max_size=20)),
    st.builds(
        link.LaneOpen,
        U32,
        NAMES,
        NAMES,
        U64,
        NAMES,
        st.integers(0, 1 << 40),
        ranges(),
        st.lists(st.text(max_size=9), max_size=2),
        U32,
        U32,
        _ORIGINS,
    ),
    st.builds(link.LaneOpened, U32, ranges()),
    st.builds(link.LaneClosed, U32, U32, st.text(max_size=20), st.text(max_size=20)),
    st.builds(link.LaneOrigins, U32, _ORIGINS),
    st.builds(link.Gap, U32, st.just(4), st.integers(5, SEQ_END), U32),
    st.builds(link.DownOpen, _NUMBERS),
    st.builds(link.Messages, st.lists(_MESSAGES, max_size=3)),
    st.builds(link.Outcomes, st.lists(_OUTCOMES, max_size=3)),
    st.builds(link.Pulls, st.lists(_PULLS, max_size=3)),
    st.builds(link.PullState, st.text(max_size=9), U32, U64, ranges(), U64, U64, INT64, st.text(max_size=30)),
    st.builds(link.Canary, U32),
    st.builds(link.CanaryBack, U32, U64),
    st.builds(link.Throttled, st.integers(0, link.WAIT_NS_MAX), U64, st.text(max_size=9)),
    st.builds(
        link.NodeReport,
        U64,
        U64,
        U64,
        st.none() | U64,
        st.none() | U64,
        st.lists(
            st.builds(link.FunctionReport, NAMES, st.text(max_size=9), U64, U64, U64, st.text(max_size=9)), max_size=2
        ),
        U32,
    ),
    st.builds(
        link.PairReport,
        st.lists(st.tuples(INT64, st.none() | INT64), max_size=2),
        st.lists(st.builds(link.CopyReport, NAMES, NAMES, U64, st.none() | INT64, st.booleans(), U64), max_size=2),
    ),
    st.builds(link.LastWords, INT64, st.lists(st.tuples(U32, st.integers(0, SEQ_END)), max_size=3), NAMES),
    st.builds(
        link.ConfigDesired,
        U64,
        st.text(max_size=16),
        st.lists(st.builds(link.ConfigLayer, st.text(max_size=9), U64, st.text(max_size=30)), max_size=2),
    ),
    st.builds(link.ConfigState, U64, st.text(max_size=16), U32, st.text(max_size=30), U64, st.text(max_size=16)),
    st.builds(link.Marks, INT64, st.lists(st.tuples(U32, st.integers(0, SEQ_END)), max_size=3)),
    st.builds(link.Ack, U32, ranges()),
    st.builds(link.Ping, INT64),
    st.builds(link.Pong, INT64, INT64),
    st.builds(link.Clock, U64, U64, INT64, INT64, st.integers(0, (1 << 63) - 1)),
)
DATA_FRAMES = st.builds(link.Data, U32, st.lists(batches(4), min_size=1, max_size=2).map(b"".join))
FRAMES = CONTROL_FRAMES | DATA_FRAMES
