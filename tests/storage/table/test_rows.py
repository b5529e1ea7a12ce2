"""Rows against ``protocols.batch.records``: the slow decoder says what the fast one must find."""

from __future__ import annotations

import json
import random
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState, Flag, header_text
from weft.protocols.chunk import TIME_END, encode_entry_header
from weft.protocols.chunk_index import ClockUpdate, LaneUpdate, Mark, StreamSection
from weft.protocols.errors import Corrupt
from weft.protocols.lane import Lane, Origin, OriginKind
from weft.protocols.message_headers import TRACE
from weft.protocols.payloads import (
    NESTING_MAX,
    PayloadKind,
    is_json,
    is_text,
    keeps,
    kind_labelled,
    label_of,
    nests_at_most,
    strictest,
)
from weft.storage.table import rows as module
from weft.storage.table import rows as row_columns
from weft.storage.table.rows import (
    BYTES_COLUMN,
    HEADERS,
    KEPT_ROWS_MAX,
    KEPT_ROWS_MIN,
    KEPT_TEXT_BYTES_MAX,
    KEY_COST_BYTES,
    LEVELS_MAX,
    TIMESTAMP,
    FoundLevels,
    Levels,
    Names,
    RowsOf,
    TracedRow,
    compile_topics,
    falses,
    nulls,
    payload_columns,
    payload_fields,
    repeated_text,
    row_schema,
    rows_of,
    traced_rows,
    usable_fields,
)

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


# --- Payloads as text: every byte is in exactly one of two columns, and engines can open the text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ALMOST = st.text(alphabet='[]{}",:\\u0dD8/*-+.eE19tfn \n\t\0é', max_size=12).map(str.encode)
PAYLOADS = st.lists(
    st.binary(max_size=12)
    | st.text(max_size=8).map(str.encode)
    | VALUES.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    | ALMOST,
    max_size=12,
)
BAD_SYNTAX = [b"", b" ", b"nul", b"01", b"1.", b".5", b"+1", b"NaN", b"Infinity", b"-", b"[1,]", b'{"a":1,}', b"{} {}"]
BAD_TEXT = [
    b"\xef\xbb\xbf{}",
    b'"\\x"',
    b'"\t"',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b"{}\0",
    b"/**/1",
    b'"\xff"',
    b"[1",
]
GOOD = [b"1", b'"x"', b"null", b' {"a": [1, -0.5e3]}\r\n', b'"\\ud83d\\ude00"', b'"\\u0000"']
KINDS = [PayloadKind.TEXT, PayloadKind.JSON]


def joined(columns: dict[str, pa.Array]) -> list[bytes]:
    """The payloads again, and the proof that each stands in one column only."""
    text, rest = columns["payload"].to_pylist(), columns[BYTES_COLUMN].to_pylist()
    assert all((one is None) != (other is None) for one, other in zip(text, rest, strict=True))
    return [other if one is None else one.encode() for one, other in zip(text, rest, strict=True)]


@settings(max_examples=300, deadline=None)
@given(PAYLOADS, st.sampled_from(KINDS))
@example([b"\xc3", b"\xa9", b"ok"], PayloadKind.TEXT)
@example([b"[1", b",2]"], PayloadKind.JSON)
@example([b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"a\0b", b""], PayloadKind.TEXT)
def test_bytes_come_back_as_they_were(payloads: list[bytes], kind: PayloadKind) -> None:
    found = payload_columns(pa.array(payloads, pa.binary()), kind)
    for field in payload_fields(kind):
        found[field.name].validate(full=True)
        assert found[field.name].type == field.type
    assert joined(found) == payloads
    for payload, text in zip(payloads, found["payload"].to_pylist(), strict=True):
        assert (text is not None) == keeps(kind, payload)
        assert not keeps(kind, payload) or is_text(payload)


def test_a_slice_of_a_longer_batch() -> None:
    found = payload_columns(pa.array([b"\xff", b"1", b"x", b"\xff"], pa.binary())[1:3], PayloadKind.JSON)
    assert (found["payload"].to_pylist(), found[BYTES_COLUMN].to_pylist()) == (["1", None], [None, b"x"])


def test_text_is_wrapped_and_not_copied() -> None:
    payloads = pa.array([b'{"a": 1}'] * 100, pa.binary())
    for kind in KINDS:
        assert payload_columns(payloads, kind)["payload"].buffers()[2].address == payloads.buffers()[2].address


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:  # takes longer than an example
        yield connection


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(ALMOST | VALUES.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")), min_size=1))
def test_what_is_taken_for_json_opens_in_engines(database: duckdb.DuckDBPyConnection, payloads: list[bytes]) -> None:
    """One value that DuckDB cannot read fails the query for all the others."""
    columns = payload_columns(pa.array(payloads, pa.binary()), PayloadKind.JSON)
    table = pa.table({"payload": columns["payload"]})
    database.register("weft", table)
    database.execute("SELECT payload->>'$.a', json_type(payload) FROM weft").fetchall()
    pl.from_arrow(table).select(pl.col("payload").str.json_path_match("$.a"))
    for text in table["payload"].to_pylist():
        if text is not None:
            json.loads(text)


@pytest.mark.parametrize("payload", [*BAD_SYNTAX, *BAD_TEXT])
def test_what_is_not_json(payload: bytes) -> None:
    assert not keeps(PayloadKind.JSON, payload)


@pytest.mark.parametrize("payload", GOOD)
def test_what_is_json(payload: bytes) -> None:
    assert keeps(PayloadKind.JSON, payload)


@pytest.mark.parametrize(("opening", "inside", "closing"), [(b"[", b"", b"]"), (b'{"[[":', b"1", b"}")])
def test_depth_is_bounded_by_a_number_and_not_by_the_stack(opening: bytes, inside: bytes, closing: bytes) -> None:
    def nested(depth: int) -> bytes:
        return opening * depth + inside + closing * depth

    def far_down(frames: int) -> bool:
        return far_down(frames - 1) if frames else is_json(nested(NESTING_MAX))

    assert is_json(nested(NESTING_MAX))
    assert far_down(300)
    assert not is_json(nested(NESTING_MAX + 1))
    assert not is_json(nested(100_000))
    assert is_json(b"[" + b",".join([nested(NESTING_MAX - 1)] * 50) + b"]")
    assert is_json(b'"' + b'[{\\"' * 1000 + b'"')


def test_of_several_declarations_the_strictest_counts_in_any_order() -> None:
    assert strictest([]) is PayloadKind.BYTES
    assert strictest([0, 1, 0]) is PayloadKind.TEXT
    assert strictest([2, 1]) is strictest([1, 2]) is PayloadKind.JSON
    assert strictest([99, 1, 2**32 - 1]) is PayloadKind.TEXT
    assert (kind_labelled("json"), kind_labelled("JSON"), label_of(1), label_of(99)) == (
        PayloadKind.JSON,
        None,
        "text",
        "kind 99",
    )


NESTED = st.recursive(
    st.none() | st.text('ab"\\[]{}\n', max_size=6),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text('"\\[}', max_size=3), inside, max_size=3),
    max_leaves=12,
)


def depth_of(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth_of, inside), default=0)


@given(NESTED, st.integers(2, 9))
def test_the_nesting_is_the_same_wherever_a_payload_is_cut(value: object, size: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("weft.protocols.payloads.SLICE_BYTES", size)
        data = json.dumps(value).encode()
        depth = depth_of(value)
        assert nests_at_most(depth, data)
        assert depth == 0 or not nests_at_most(depth - 1, data)


# --- Levels of keys that are remembered between sections: never those of other patterns, and never without a bound


PLANT, SITE = ("plant/{line}/{machine}",), ("plant/{site}/{line}",)
LEVELS_LANES = [Lane("default", edge, 1, "telemetry") for edge in ("press-1", "press-2")]


def test_the_same_key_has_the_levels_of_each_lanes_own_patterns() -> None:
    topics = {LEVELS_LANES[0]: PLANT, LEVELS_LANES[1]: SITE}
    for _ in range(2):
        levels = Levels(["line", "machine"], lambda lane: topics[lane])
        assert levels.of(LEVELS_LANES[0], [b"plant/a/m1", b"other"]) == [("a", "m1"), (None, None)]
        assert levels.of(LEVELS_LANES[1], [b"plant/a/m1"]) == [("m1", None)]
    assert Levels(["machine"], lambda lane: PLANT).of(LEVELS_LANES[0], [b"plant/a/m1"]) == [("m1",)]


def test_patterns_that_a_lane_gets_later_count() -> None:
    for reported, level in (((), None), (PLANT, "m7"), (SITE, None)):
        levels = Levels(["machine"], lambda lane, reported=reported: reported)  # type: ignore[misc]
        assert levels.of(LEVELS_LANES[0], [b"plant/a/m7"]) == [(level,)]


def test_memory_for_keys_is_bounded() -> None:
    found = FoundLevels(bytes_max=1000 * KEY_COST_BYTES)
    names = Names(("line", "machine"), PLANT)
    for first in range(0, 50_000, 500):
        keys = [b"plant/a/m%d" % at for at in range(first, first + 500)]
        assert found.of(names, keys, lambda: compile_topics(PLANT))[-1] == ("a", f"m{first + 499}")
        assert found.kept_keys <= 1000


def test_keys_past_the_bound_are_found_each_time() -> None:
    found = FoundLevels(bytes_max=1000)
    names = Names(("line",), PLANT)
    key = b"plant/" + b"a" * 10_000 + b"/m"
    for _ in range(2):
        assert found.of(names, [key], lambda: compile_topics(PLANT)) == [("a" * 10_000,)]
    assert found.kept_keys == 0


def test_long_lists_of_patterns_are_not_kept() -> None:
    long = tuple(f"site{at}/{'x' * 100}/{{machine}}" for at in range(200))
    before = module._FOUND.kept_keys
    levels = Levels(["machine"], lambda lane: (*long, *PLANT))
    assert levels.of(LEVELS_LANES[0], [b"plant/a/m1"]) == [("m1",)]
    assert module._FOUND.kept_keys == before


def test_threads_share_what_was_found() -> None:
    found = FoundLevels(bytes_max=100 * KEY_COST_BYTES)
    names = Names(("line", "machine"), PLANT)
    wrong: list[object] = []

    def look(part: int) -> None:
        for at in range(400):
            keys = [b"plant/%d/m%d" % (at % 7, (at * part + each) % 50) for each in range(20)]
            made = found.of(names, keys, lambda: compile_topics(PLANT))
            expected = [tuple(key.decode().split("/")[1:]) for key in keys]
            if made != expected:
                wrong.append((made, expected))

    threads = [threading.Thread(target=look, args=(part,)) for part in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- Columns that say one thing in every row: as Arrow would write them, and the same to another process


ROWS = (1, 9, KEPT_ROWS_MIN - 1, KEPT_ROWS_MIN, 5_000, KEPT_ROWS_MAX, KEPT_ROWS_MAX + 1)


@pytest.mark.parametrize("rows", ROWS)
def test_columns_are_those_that_arrow_makes(rows: int) -> None:
    texts = ("press-1", "", "Größe", "x" * KEPT_TEXT_BYTES_MAX, "x" * (KEPT_TEXT_BYTES_MAX + 1))
    expected = [pa.array([text] * rows, pa.string()) for text in texts]
    expected += [pa.nulls(rows, kind) for kind in (pa.string(), HEADERS, TIMESTAMP)] + [pa.array([False] * rows)]
    made = [repeated_text(text, rows) for text in texts]
    made += [nulls(kind, rows) for kind in (pa.string(), HEADERS, TIMESTAMP)] + [falses(rows)]
    for column, same in zip(made, expected, strict=True):
        column.validate(full=True)
        assert column.equals(same)
        assert column.null_count == same.null_count


def test_only_the_rows_of_a_batch_are_sent() -> None:
    """A kept column is longer than most batches; what is behind their rows must not go to Java."""
    columns = [repeated_text("press-1", 300), nulls(HEADERS, 300), nulls(TIMESTAMP, 300), falses(300)]
    batch = pa.RecordBatch.from_arrays(columns, names=list("abcd"))
    written = pa.RecordBatch.from_arrays([pa.array(c.to_pylist(), c.type) for c in columns], names=list("abcd"))
    sent = [each.serialize() for each in (batch, written)]
    assert sent[0].size <= sent[1].size + 64
    assert pa.ipc.read_record_batch(sent[0], batch.schema).equals(written)


# --- Rows of traced messages among others


SCHEMA = row_schema(())


def traced_rows_batch(*headers: list[tuple[str, str]] | None) -> pa.RecordBatch:
    values = {
        "_headers": list(headers),
        "_offset": range(40, 40 + len(headers)),
        "_seq": range(7, 7 + len(headers)),
        "_edge": ["press-7"] * len(headers),
        "_log": ["00" * 8] * len(headers),
        "_shard": [3] * len(headers),
        "_received": [1_700_000_000_000_001] * len(headers),
    }
    fields = [field for field in SCHEMA if field.name in values]
    return pa.record_batch([pa.array(values[field.name], field.type) for field in fields], schema=pa.schema(fields))


def test_traced_rows_are_found_and_rows_of_one_span_are_one() -> None:
    plain = [("unit", "C")]
    found = traced_rows(traced_rows_batch(None, plain, [*plain, (TRACE, "a")], [(TRACE, "b")], [(TRACE, "a")], []), 10)
    received = 1_700_000_000_000_001_000
    assert list(found) == [
        TracedRow("a", 2, "press-7", "00" * 8, 9, 3, 42, received),
        TracedRow("b", 1, "press-7", "00" * 8, 10, 3, 43, received),
    ]


def test_batches_without_one_have_none() -> None:
    assert list(traced_rows(traced_rows_batch(None, None), 10)) == []
    assert list(traced_rows(traced_rows_batch([("unit", "C")], None), 10)) == []
    assert list(traced_rows(traced_rows_batch(), 10)) == []


def test_a_file_has_no_more_than_its_share() -> None:
    many = traced_rows_batch(*([(TRACE, str(number % 50))] for number in range(200)))
    assert [(row.trace, row.rows) for row in traced_rows(many, 3)] == [("0", 4), ("1", 4), ("2", 4)]
    assert list(traced_rows(many, 0)) == []
