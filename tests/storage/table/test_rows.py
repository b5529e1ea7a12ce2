"""Rows against ``protocols.batch.records``: the slow decoder says what the fast one must find."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState, Flag, header_text
from weft.protocols.chunk import TIME_END, encode_entry_header
from weft.protocols.chunk_index import ClockUpdate, LaneUpdate, Mark, StreamSection
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane, Origin, OriginKind
from weft.storage.table import rows as row_columns
from weft.storage.table.rows import LEVELS_MAX, RowsOf, row_schema, rows_of, usable_fields

LANES = [
    LaneUpdate("default", edge, log_id, "telemetry", 1, [], [], None, None, origins=[])
    for edge, log_id in (("press-1", 7), ("press-2", 0xFEDC_BA98_7654_3210), ("press-1", 8))
]
LANES[0].origins.append(Origin(1, OriginKind.FUNCTION, "calm", "1", b"\xab\xcd\xef\x01\x02"))
LANES[2] = LaneUpdate(
    "default",
    "press-1",
    8,
    "telemetry",
    1,
    [],
    [],
    None,
    None,
    floor=Mark(2 * 10**18, 2**60),
    origins=[Origin(1, OriginKind.FUNCTION, "calm", "", b""), Origin(2, OriginKind.SCHEMA, "pressure", "2", b"")],
)
ORIGINS = [{1: "calm@1#abcdef01", 2: "#2"}, {1: "#1", 2: "#2"}, {1: "calm", 2: "schema:pressure@2"}]
"""What the numbers mean, by lane: each chunk says it of its own lanes."""
OFFSET = 3 * 10**18
CLOCKS = [ClockUpdate("default", "press-2", 0xFEDC_BA98_7654_3210, 1, 5, OFFSET, 10)]
"""The clock of the boot that all batches are of, known of one log."""
PATTERNS = ["plant/{line}/{machine}/telemetry", "other/{line}"]
KEYS = [b"plant/a/m1/telemetry", b"plant/b/m2/telemetry", b"other/c", b"elsewhere", b"plant/\xff/m/telemetry", b""]
FIELDS = ["line", "machine"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000_000


def topics(lane: Lane) -> list[str]:
    return PATTERNS if lane.edge == "press-1" else PATTERNS[:1]


@st.composite
def encoded_batches(draw: st.DrawFn) -> bytes:
    count = draw(st.integers(1, 12))
    times = draw(st.lists(st.integers(-(10**12), 4 * 10**18), min_size=count, max_size=count))
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=count, max_size=count))
    payloads = draw(st.lists(st.binary(max_size=900), min_size=count, max_size=count))
    text = st.text(max_size=5)
    headers = draw(
        st.dictionaries(
            st.integers(0, count - 1), st.lists(st.tuples(text, text), min_size=1, max_size=3).map(tuple), max_size=3
        )
    )
    flags = draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, 7), max_size=3))
    return batch.encode(
        draw(st.integers(1, 5)),
        draw(st.integers(0, 2**62)),
        batch.columns_from_lists(struct.pack(f"<{count}q", *times), keys, payloads, headers, flags),
        ClockReading(1, 2, draw(st.sampled_from(ClockState))),
        zstandard.ZstdCompressor() if draw(st.booleans()) else None,
        origin=draw(st.integers(0, 2)),
    )


@st.composite
def entries(draw: st.DrawFn) -> tuple[int, int, int, int, bytes]:
    data = draw(encoded_batches())
    count = batch.decode_header(data).count
    skip = draw(st.integers(0, count - 1))
    take = draw(st.integers(1, count - skip))
    received = draw(st.integers(0, 4 * 10**18))
    return draw(st.integers(0, len(LANES) - 1)), skip, take, received, data


def make_section(parts: list[tuple[int, int, int, int, bytes]], base_offset: int) -> tuple[StreamSection, bytes]:
    data = b"".join(encode_entry_header(*part[:3], len(part[4]), part[3]) + part[4] for part in parts)
    count = sum(part[2] for part in parts)
    return StreamSection("default", "telemetry", base_offset, count, 0, 0, 0, len(data), crc32c(data)), data


def levels_of(lane: Lane, key: str) -> dict[str, str]:
    parts = key.split("/")
    if len(parts) == 4 and parts[0] == "plant" and parts[3] == "telemetry":
        return {"line": parts[1], "machine": parts[2]}
    if len(parts) == 2 and parts[0] == "other" and lane.edge == "press-1":
        return {"line": parts[1]}
    return {}


def micros(nanoseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=nanoseconds // 1000)


def expected_rows(parts: list[tuple[int, int, int, int, bytes]], base_offset: int) -> list[dict[str, Any]]:
    rows = []
    offset = base_offset
    for number, skip, take, received, data in parts:
        update = LANES[number]
        lane = Lane(update.tenant, update.edge, update.log_id, update.stream)
        header = batch.decode_header(data)
        clock, first_stamp = header.clock, header.first_time
        # Beyond what a clock can say, a correction is taken for damage and the whole batch keeps its stamps.
        is_corrected = clock is ClockState.UNSYNCED and number == 1
        is_corrected &= 0 <= OFFSET + 2 + header.last_time - first_stamp < TIME_END
        for record in list(batch.records(data))[skip : skip + take]:
            key = record.key.decode("utf-8", "replace")
            time, state, stamp = record.time, clock.name.lower(), None
            if is_corrected:
                time, state, stamp = OFFSET + 2 + record.time - first_stamp, "corrected", micros(record.time)
            if time // 1000 - received // 1000 > 300_000_000:
                state = "future"
            if number == 2 and record.seq >= 2**60 and time <= 2 * 10**18:
                time, state, stamp = 2 * 10**18 + 1000, "stepped", micros(record.time)
            headers: dict[str, list[str]] = {}
            for name, value in record.headers:
                texts = headers.setdefault(name, [])
                if value is not None:
                    texts.append(header_text(value) or "")
            rows.append(
                {
                    "_offset": offset,
                    "_shard": 3,
                    "_edge": lane.edge,
                    "_log": f"{lane.log_id:016x}",
                    "_seq": record.seq,
                    "_time": micros(time),
                    "_clock": state,
                    "_received": micros(received),
                    "_key": key,
                    "line": levels_of(lane, key).get("line"),
                    "machine": levels_of(lane, key).get("machine"),
                    "_resent": bool(record.flags & Flag.DUPLICATE_SUSPECTED),
                    "_headers": [(name, ", ".join(values) if values else None) for name, values in headers.items()]
                    or None,
                    "_edge_time": stamp,
                    "_origin": ORIGINS[number].get(header.origin),
                    "payload": record.payload,
                }
            )
            offset += 1
    return rows


def as_dicts(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    for each in batches:
        each.validate(full=True)
    return [row for each in batches for row in each.to_pylist()]


@settings(max_examples=50, deadline=None)
@given(st.lists(entries(), min_size=1, max_size=6), st.integers(0, 2**40), st.data())
def test_rows_are_the_records(
    parts: list[tuple[int, int, int, int, bytes]], base_offset: int, data: st.DataObject
) -> None:
    section, section_bytes = make_section(parts, base_offset)
    end = base_offset + section.count
    first = data.draw(st.integers(max(0, base_offset - 2), end + 1))
    stop = data.draw(st.none() | st.integers(first, end + 2))
    made = list(rows_of([RowsOf(section, section_bytes, LANES, CLOCKS)], 3, FIELDS, topics, first, stop))
    assert all(each.schema.equals(row_schema(FIELDS)) for each in made)
    last = end if stop is None else stop
    wanted = [row for row in expected_rows(parts, base_offset) if first <= row["_offset"] < last]
    assert as_dicts(made) == wanted


@settings(max_examples=60, deadline=None)
@given(
    st.lists(entries(), min_size=1, max_size=4),
    st.sets(st.sampled_from([*row_schema(FIELDS).names]), min_size=1),
    st.none() | st.sets(st.sampled_from(["press-1", "press-2"])),
)
def test_columns_and_edges_leave_out_and_change_nothing(
    parts: list[tuple[int, int, int, int, bytes]], columns: set[str], edges: set[str] | None
) -> None:
    section, data = make_section(parts, 10)
    made = rows_of([RowsOf(section, data, LANES, CLOCKS)], 3, FIELDS, topics, columns=columns, edges=edges)
    wanted = [
        {name: value for name, value in row.items() if name in columns}
        for row in expected_rows(parts, 10)
        if edges is None or row["_edge"] in edges
    ]
    assert as_dicts(list(made)) == wanted


def plain_batch(count: int, base_seq: int = 0, key: bytes = b"k", payload: bytes = b"x" * 10) -> bytes:
    columns = batch.columns_from_lists(struct.pack(f"<{count}q", *range(count)), [key] * count, [payload] * count)
    return batch.encode(1, base_seq, columns, ClockReading(1, 2, ClockState.SYNCED))


def test_many_small_batches_become_few_record_batches() -> None:
    parts = [(0, 0, 5, SECOND, plain_batch(5, 5 * i)) for i in range(400)]
    section, data = make_section(parts, 0)
    (made,) = rows_of([RowsOf(section, data, LANES)], 0, [], topics)
    assert made.column("_seq").to_pylist() == list(range(2000))


def test_a_long_batch_is_wrapped_and_not_copied() -> None:
    section, data = make_section([(0, 0, 1000, SECOND, plain_batch(1000))], 0)
    (made,) = rows_of([RowsOf(section, data, LANES)], 0, [], topics)
    start = pa.py_buffer(data).address
    assert start <= made.column("payload").buffers()[2].address < start + len(data)


def test_record_batches_are_bounded_in_rows() -> None:
    parts = [(0, 0, 70_000, SECOND, plain_batch(70_000, payload=b"")), (0, 0, 10, SECOND, plain_batch(10, 70_000))]
    section, data = make_section(parts, 0)
    sizes = [made.num_rows for made in rows_of([RowsOf(section, data, LANES)], 0, [], topics)]
    assert max(sizes) <= row_columns.ROWS_MAX
    assert sum(sizes) == 70_010


def test_a_long_key_does_not_multiply_into_unbounded_memory() -> None:
    """One key of 60 kB in a batch of 2,000 records is 60 kB in the batch and 120 MB in a column."""
    section, data = make_section([(0, 0, 2_000, SECOND, plain_batch(2_000, key=b"k" * 60_000, payload=b""))], 0)
    made = rows_of([RowsOf(section, data, LANES)], 0, [], topics)
    rows = 0
    for each in made:
        assert each.column("_key").nbytes < row_columns.BYTES_MAX * 1.1
        rows += each.num_rows
    assert rows == 2_000


def test_a_section_shorter_than_its_index_is_refused() -> None:
    section, data = make_section([(0, 0, 5, SECOND, plain_batch(5))], 0)
    longer = StreamSection("default", "telemetry", 0, 6, 0, 0, 0, section.length, section.crc)
    with pytest.raises(Corrupt, match="holds 5 records, its index lists 6"):
        list(rows_of([RowsOf(longer, data, LANES)], 0, [], topics))


def test_an_entry_that_counts_more_than_its_batch_has_is_refused() -> None:
    section, data = make_section([(0, 3, 3, SECOND, plain_batch(5))], 0)
    with pytest.raises(Corrupt, match="3 records after 3 of a batch of 5"):
        list(rows_of([RowsOf(section, data, LANES)], 0, [], topics))


def test_levels_never_collide_with_other_columns() -> None:
    assert usable_fields(["line", "payload", "Line", "_KEY", "line", "machine"]) == ["line", "machine"]
    assert usable_fields(["line", "machine", "Zone"], ["_offset", "Line", "zone", "payload"]) == ["machine"]


def test_levels_of_one_stream_are_bounded() -> None:
    reports = [f"level{i}" for i in range(LEVELS_MAX + 10)]
    assert usable_fields(reports) == reports[:LEVELS_MAX]
    assert usable_fields(reports, ["_offset", "somebodys_own", *reports[:500]]) == reports[500 : LEVELS_MAX - 1]


def test_spellings_that_differ_in_case_share_a_column() -> None:
    section, data = make_section([(0, 0, 1, SECOND, plain_batch(1, key=b"site/north"))], 0)
    (made,) = rows_of([RowsOf(section, data, LANES)], 0, ["Place"], lambda lane: ["site/{place}"])
    assert made.column("Place").to_pylist() == ["north"]


def test_a_pattern_of_another_release_names_no_levels_and_stops_nothing() -> None:
    section, data = make_section([(0, 0, 1, SECOND, plain_batch(1, key=b"site/north"))], 0)
    (made,) = rows_of(
        [RowsOf(section, data, LANES)], 0, ["place"], lambda lane: ["site/{place:future}", "site/{place}"]
    )
    assert made.column("place").to_pylist() == ["north"]


def test_a_clock_is_ahead_only_by_more_than_five_minutes() -> None:
    received = 1_700_000_000 * SECOND
    limit = received + 300 * SECOND
    columns = batch.columns_from_lists(struct.pack("<2q", limit + 999, limit + 1000), [b"k"] * 2, [b""] * 2)
    data = batch.encode(1, 0, columns, ClockReading(1, 2, ClockState.UNSYNCED))
    section, section_bytes = make_section([(0, 0, 2, received, data)], 0)
    (made,) = rows_of([RowsOf(section, section_bytes, LANES)], 0, [], topics)
    assert made.column("_clock").to_pylist() == ["unsynced", "future"]


def test_random_cuts_of_one_section_add_up() -> None:
    rng = random.Random(1)
    parts = [(rng.randrange(3), 1, 3, SECOND, plain_batch(5, 10 * i)) for i in range(30)]
    section, data = make_section(parts, 100)
    cuts = sorted({100, 190, *(rng.randrange(100, 190) for _ in range(6))})
    found = [
        offset
        for first, end in pairwise(cuts)
        for each in rows_of([RowsOf(section, data, LANES)], 0, [], topics, first, end)
        for offset in each.column("_offset").to_pylist()
    ]
    assert found == list(range(100, 190))
