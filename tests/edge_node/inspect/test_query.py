"""SQL over a log: every record once, nothing that could write, and an end to what runs away."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge_node.inspect.logs import T0, append, corrupt, crash, newest_segment, one_batch, open_log, write_segment
from weft.edge_node.inspect.query import (
    Query,
    QueryRefused,
    QuerySettings,
    QueryStopped,
    earliest_ns,
    earliest_wanted,
    few_wanted,
    refuse_other_times,
    time_text,
    time_texts,
    words,
)
from weft.edge_node.inspect.view import Durability, LogDirectory
from weft.protocols.lane import OriginKind
from weft.protocols.segment import EntryKind
from weft.storage.segment_log import SegmentLog

SECOND_NS = 10**9
STREAMS = {"telemetry": ("plant/{line}/{machine}", "site/{machine}/#"), "press-shop": ("{Key}/{line}",)}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    log = open_log(tmp_path)
    yield log
    log.close()


@contextmanager
def opened(path: Path, settings: QuerySettings | None = None, **others: Any) -> Iterator[Query]:
    durability = Durability(str(path), locked=lambda _: False)
    now_ns = T0 + 100 * SECOND_NS
    query = Query(LogDirectory(str(path)), STREAMS, durability, settings or QuerySettings(), now_ns=now_ns, **others)
    try:
        yield query
    finally:
        query.close()


def run(path: Path, sql: str, settings: QuerySettings | None = None) -> list[tuple[Any, ...]]:
    with opened(path, settings) as query:
        return list(query.run(sql).rows)


def test_a_record_is_a_row(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"21.5", key=b"plant/a/m1", headers={0: (("unit", "C"), ("unit", "F"))}, flags={0: 4 | 16})
    append(log, b"\xff", key=b"site/m2/x/y", flags={0: 1 | 8})
    with opened(tmp_path) as query:
        columns, rows = query.run("SELECT * FROM telemetry")
        assert columns == (
            "time",
            "time_ns",
            "seq",
            "key",
            "line",
            "machine",
            "payload",
            "headers",
            "qos",
            "retained",
            "resent",
            "_origin",
        )
        first, second = rows
    headers = json.dumps([["unit", "C"], ["unit", "F"]])
    time = ("2023-11-14 22:13:20.000000000", T0)
    assert first == (*time, 0, "plant/a/m1", "a", "m1", "21.5", headers, 2, 0, 1, None)
    assert second == (*time, 1, "site/m2/x/y", None, "m2", b"\xff", None, 0, 1, 0, None)


def test_a_row_says_what_made_it(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"1")
    append(log, b"2", b"3", origin=log.origin(OriginKind.FUNCTION, "calm", "1"))
    append(log, b"4", origin=log.origin(OriginKind.FUNCTION, "calm", "2", bytes(8)))
    counted = run(tmp_path, "SELECT _origin, count(*) FROM telemetry GROUP BY _origin ORDER BY min(seq)")
    assert counted == [(None, 1), ("calm@1", 2), ("calm@2#00000000", 1)]


def test_any_payload_comes_back_as_it_was(log: SegmentLog, tmp_path: Path) -> None:
    sent = [b"", b"\0", b"a\0b", b"\xff\xfe", "grün".encode(), b"\xed\xa0\x80", b"x" * 1_000_000, b"'; DROP TABLE"]
    append(log, *sent)
    rows = [row[0] for row in run(tmp_path, "SELECT payload FROM telemetry ORDER BY seq")]
    assert [row if isinstance(row, bytes) else row.encode() for row in rows] == sent
    assert isinstance(rows[2], bytes), "SQLite's functions would take text for ended at a NUL"


def test_json_is_within_reach(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b'{"temperature": 21.5}', b'{"temperature": 19}')
    assert run(tmp_path, "SELECT sum(payload ->> '$.temperature') FROM telemetry") == [(40.5,)]
    append(log, b"broken")
    with pytest.raises(QueryRefused, match=r"iif\(json_valid"):
        run(tmp_path, "SELECT sum(payload ->> '$.temperature') FROM telemetry")
    lenient = "SELECT sum(iif(json_valid(payload), payload ->> '$.temperature', NULL)) FROM telemetry"
    assert run(tmp_path, lenient) == [(40.5,)]
    assert run(tmp_path, "SELECT value FROM telemetry, json_each('[1]') LIMIT 1") == [(1,)]


def test_times(log: SegmentLog, tmp_path: Path) -> None:
    for second in range(100):
        append(log, b"x", time=T0 + second * SECOND_NS)
    for condition in (
        "time >= now('-10s')",
        "time > now('-11s') OR seq < 0",
        "time >= '2023-11-14 22:14:50'",
        "time >= datetime('2023-11-14 22:14:50')",
        f"time_ns >= {T0 + 90 * SECOND_NS}",
    ):
        assert run(tmp_path, f"SELECT min(seq), count(*) FROM telemetry WHERE {condition}") == [(90, 10)], condition
    since = QuerySettings(since_ns=T0 + 90 * SECOND_NS)
    assert run(tmp_path, "SELECT min(seq), count(*) FROM telemetry", since) == [(90, 10)]
    with pytest.raises(QueryRefused, match=r"now\('-10m'\)"):
        run(tmp_path, "SELECT now('10m')")


def test_a_bound_on_time_reads_less(log: SegmentLog, tmp_path: Path) -> None:
    for second in range(100):
        append(log, b"x" * 2000 + bytes(range(256)) * 4, time=T0 + second * SECOND_NS)
    bounded = QuerySettings(rows_max=20)
    assert run(tmp_path, "SELECT count(*) FROM telemetry WHERE time >= now('-10s')", bounded) == [(10,)]
    with pytest.raises(QueryStopped, match="--since"):
        run(tmp_path, "SELECT count(*) FROM telemetry", bounded)


def test_a_look_at_a_few_reads_a_few(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1 << 22)
    chance = random.Random(1)
    for _ in range(60):
        append(log, *(chance.randbytes(300) for _ in range(100)))
    bounded = QuerySettings(rows_max=2000)
    first = run(tmp_path, "SELECT seq, payload FROM telemetry LIMIT 3", bounded)
    newest = run(tmp_path, "SELECT seq FROM telemetry ORDER BY seq DESC LIMIT 3", bounded)
    assert [seq for seq, _ in first] == [0, 1, 2]
    assert newest == [(5999,), (5998,), (5997,)]
    log.close()


def test_levels_and_names(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"x", stream="press-shop", key=b"a/b")
    assert run(tmp_path, 'SELECT key, line, level(key, 1), level(key, 3) FROM "press-shop"') == [
        ("a/b", "b", "a", None)
    ]
    assert run(tmp_path, "SELECT count(*) FROM telemetry") == [(0,)]


def test_streams_and_gaps_are_tables(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for payload in (b"one", b"two", b"three"):
        append(log, payload)
    crash(log)
    corrupt(newest_segment(tmp_path), b"two")
    again = open_log(tmp_path)
    gaps = run(tmp_path, "SELECT stream, first, end, records, reason FROM weft_gaps")
    assert gaps == [("telemetry", 1, 2, 1, "corruption")]
    streams = run(tmp_path, "SELECT stream, records, first_seq, next_seq, gaps, records_lost, topics FROM weft_streams")
    assert streams == [
        ("telemetry", 2, 0, 3, 1, 1, "plant/{line}/{machine} site/{machine}/#"),
        ("press-shop", 0, None, 0, 0, 0, "{Key}/{line}"),
    ]
    assert run(tmp_path, "SELECT seq FROM telemetry") == [(0,), (2,)]
    again.close()


def test_a_record_that_was_moved_forward_is_one_row(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, [(EntryKind.BATCH, one_batch(0, b"zero", b"one"))])
    write_segment(tmp_path, 1 << 20, [(EntryKind.MOVED, one_batch(1, b"one")), (EntryKind.BATCH, one_batch(2, b"two"))])
    assert run(tmp_path, "SELECT seq, payload FROM telemetry") == [(0, "zero"), (1, "one"), (2, "two")]
    assert run(tmp_path, "SELECT records, next_seq FROM weft_streams LIMIT 1") == [(3, 3)]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM telemetry",
        "INSERT INTO telemetry (seq) VALUES (1)",
        "CREATE TABLE mine (a)",
        "CREATE TEMP TABLE mine AS SELECT * FROM telemetry",
        "DROP TABLE telemetry",
        "ATTACH DATABASE 'other.db' AS other",
        "VACUUM INTO 'other.db'",
        "PRAGMA writable_schema = 1",
        "PRAGMA hard_heap_limit = 0",
        "SELECT load_extension('other.so')",
        "SELECT * FROM pragma_database_list",
        "BEGIN",
        "SELECT 1; DELETE FROM telemetry",
        "WITH a AS (SELECT 1) DELETE FROM telemetry",
        "EXPLAIN DELETE FROM telemetry",
        "QUERY PLAN SELECT 1",
    ],
)
def test_nothing_but_reading_is_possible(
    log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    append(log, b"x")
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with opened(tmp_path) as query:
        with pytest.raises(QueryRefused):
            list(query.run(sql).rows)
        assert list(query.run("SELECT count(*) FROM telemetry").rows) == [(1,)]
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT * FROM telemetri", 'no such table: telemetri; tables: telemetry, "press-shop", weft_streams, weft_'),
        ("SELECT temperature FROM telemetry", "For a field of a JSON payload, write payload ->> '$.temperature'"),
        ("SELECT t.machin FROM telemetry t", "Columns: telemetry(time, time_ns, seq, key, line, machine, payload"),
        (
            "SELECT * FROM press-shop",
            'near "-": syntax error. Expected a SELECT, such as SELECT * FROM weft_streams; '
            'some names need quotes: "press-shop"',
        ),
        ("", "ends too early"),
        (" ; ", "ends too early"),
        ("SELECT * FROM", "ends too early"),
        ("SELECT now('-10 minutes')", "now(): expected a duration"),
    ],
)
def test_who_errs_is_told_what_to_write(log: SegmentLog, tmp_path: Path, sql: str, text: str) -> None:
    append(log, b"x")
    with pytest.raises(QueryRefused) as refused:
        run(tmp_path, sql)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_query_that_runs_away_is_stopped(log: SegmentLog, tmp_path: Path) -> None:
    append(log, b"x")
    clock = itertools.count()
    with (
        opened(tmp_path, QuerySettings(timeout_s=50), monotonic=lambda: float(next(clock))) as query,
        pytest.raises(QueryStopped, match="longer than 50 s"),
    ):
        list(query.run("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c").rows)
    with pytest.raises(QueryStopped, match="memory"):
        run(tmp_path, "SELECT length(randomblob(1000000000))")


def test_a_query_takes_no_more_room_than_it_is_given(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1 << 24)
    append(log, *(random.Random(number).randbytes(2000) for number in range(1000)))
    log.close()
    with pytest.raises(QueryStopped, match="temporary space"):
        run(tmp_path, "SELECT max(length(payload)) FROM telemetry", QuerySettings(file_bytes_max=1 << 20))
    assert run(tmp_path, "SELECT max(length(payload)) FROM telemetry", QuerySettings(file_bytes_max=4 << 20)) == [
        (2000,)
    ]


def test_damage_costs_its_records_and_is_told(log: SegmentLog, tmp_path: Path) -> None:
    for payload in (b"one", b"two", b"three"):
        append(log, payload)
    corrupt(newest_segment(tmp_path), b"two")
    with opened(tmp_path) as query:
        assert list(query.run("SELECT seq FROM telemetry").rows) == [(0,), (2,)]
        assert len(query.damage) == 1


_COMMITS = st.lists(
    st.lists(st.tuples(st.sampled_from([b"plant/a/b", b"\xff", b"site/c"]), st.binary(max_size=40)), min_size=1),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=50)
@given(_COMMITS, st.integers(0, 25))
def test_every_record_is_one_row(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[tuple[bytes, bytes]]], second: int
) -> None:
    path = tmp_path_factory.mktemp("log")
    log = open_log(path, segment_bytes=1 << 13)
    stream = log.stream("telemetry")
    for number, commit in enumerate(commits):
        log.append(stream, T0 + number * SECOND_NS, [key for key, _ in commit], [payload for _, payload in commit])
        log.committer.run_once()
    sent = [payload for commit in commits for _, payload in commit]
    rows = run(path, "SELECT seq, payload FROM telemetry ORDER BY seq")
    assert [(seq, row if isinstance(row, bytes) else row.encode()) for seq, row in rows] == list(enumerate(sent))
    later = sum(map(len, commits[second:]))
    bound = f"time >= datetime({T0 // SECOND_NS + second}, 'unixepoch')"
    assert run(path, f"SELECT count(*) FROM telemetry WHERE {bound}") == [(later,)]
    assert run(path, f"SELECT count(*) FROM telemetry WHERE {bound} OR 0") == [(later,)]
    log.close()


# --- From when on a query needs records: told only where there is no doubt


T0_TEXT = "2023-11-14 22:13:20.000000000"


def evaluate(expression: str) -> object:
    database = sqlite3.connect(":memory:")
    database.create_function("now", -1, lambda *_: T0_TEXT)
    try:
        return database.execute(f"SELECT {expression}").fetchone()[0]
    finally:
        database.close()


def bound(condition: str, select: str = "SELECT * FROM telemetry WHERE") -> int | None:
    return earliest_wanted(words(f"{select} {condition}"), "telemetry", evaluate)


@pytest.mark.parametrize(
    "condition",
    [
        "time > now('-10m')",
        "time>=now ( '-10m' ) ORDER BY seq",
        "machine = 'a AND b' AND time > now('-10m') AND seq > 3",
        "telemetry.time > now('-10m') GROUP BY machine HAVING count(*) > 3",
        "now('-10m') < time",
        f"time_ns >= {T0} LIMIT 3",
        f"time > '{T0_TEXT}' AND time > '2020-01-01'",
        "TIME > '2023-11-14 22:13:20' -- OR seq > 1",
        "(payload ->> '$.a') > 3 AND time > now('-10m')",
    ],
)
def test_a_plain_bound_is_found(condition: str) -> None:
    assert bound(condition) == T0


@pytest.mark.parametrize(
    "condition",
    [
        "time > now('-10m') OR seq = 1",
        "NOT time > now('-10m')",
        "(time > now('-10m'))",
        "time < now('-10m')",
        "time > now('-10m') || ''",
        "time > lower('2023')",
        "time > (SELECT max(time) FROM telemetry)",
        "seq > 3",
        "seq BETWEEN 1 AND time > now('-10m')",
        "payload = 'time > now()'",
        "time > 'yesterday'",
        "time > 5",
        "time_ns > '5'",
        "key > time AND seq > 1",
    ],
)
def test_anything_else_reads_everything(condition: str) -> None:
    assert bound(condition) is None


def test_a_table_joined_to_itself_has_no_one_bound() -> None:
    assert bound("a.time > now('-10m')", "SELECT * FROM telemetry a, telemetry b WHERE") is None
    assert bound("a.time > now('-10m')", 'SELECT * FROM telemetry a, "telemetry" b WHERE') is None
    assert bound("time > now('-10m')", "SELECT * FROM telemetry UNION SELECT * FROM telemetry WHERE") is None


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM telemetry LIMIT 10", (10, False)),
        ("select level(key, 2), payload ->> '$.a' from telemetry limit 10;", (10, False)),
        ('SELECT seq FROM "telemetry" ORDER BY seq DESC LIMIT 3', (3, True)),
        ("SELECT count(*) FROM telemetry LIMIT 10", None),
        ("SELECT max(seq) FROM telemetry ORDER BY seq DESC LIMIT 10", None),
        ("SELECT * FROM telemetry ORDER BY key LIMIT 10", None),
        ("SELECT * FROM telemetry ORDER BY seq DESC, key LIMIT 10", None),
        ("SELECT DISTINCT key FROM telemetry LIMIT 10", None),
        ("SELECT key FROM telemetry GROUP BY key LIMIT 10", None),
        ("SELECT * FROM telemetry WHERE seq > 5 LIMIT 10", None),
        ("SELECT * FROM telemetry LIMIT 10 OFFSET 5", None),
        ("SELECT * FROM telemetry LIMIT 5, 10", None),
        ("SELECT * FROM telemetry a, telemetry b LIMIT 10", None),
        ("SELECT * FROM telemetry, weft_gaps LIMIT 10", None),
        ("SELECT (SELECT 1 FROM telemetry LIMIT 1) LIMIT 10", None),
        ("SELECT 1 LIMIT 10", None),
    ],
)
def test_few_records_are_enough_for_plain_looks(sql: str, expected: tuple[int, bool] | None) -> None:
    assert few_wanted(words(sql), "telemetry") == expected


def test_times_in_another_spelling_are_refused_with_the_right_one() -> None:
    with pytest.raises(QueryRefused, match="'2026-11-20 07:00' instead of '2026-11-20T07:00Z'"):
        refuse_other_times(words("SELECT * FROM telemetry WHERE time > '2026-11-20T07:00Z'"))
    refuse_other_times(words("SELECT * FROM telemetry WHERE payload ->> '$.ts' > '2026-11-20T07:00Z'"))


def test_times_sort_as_text() -> None:
    times = [0, 1, 999_999_999, T0, T0 + 1, T0 + 10**9, 253_402_300_799 * 10**9]
    assert time_texts(times) == [time_text(time) for time in times] == sorted(time_text(time) for time in times)
    assert time_text(T0) == T0_TEXT
    assert [earliest_ns(time_text(time)) for time in times] == times
    assert earliest_ns("2023-11-14 22:13") == T0 - 20 * 10**9
    assert earliest_ns("2023-13-14") is None
    assert len({len(time_text(time)) for time in (-(1 << 63), -1, 0, (1 << 63) - 1)}) == 1
