"""From when on a query needs records: told only where there is no doubt."""

from __future__ import annotations

import sqlite3

import pytest

from tests.edge_node.inspect.view.logs import T0
from weft.edge_node.inspect.query import (
    QueryRefused,
    earliest_ns,
    earliest_wanted,
    few_wanted,
    refuse_other_times,
    time_text,
    time_texts,
    words,
)

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
