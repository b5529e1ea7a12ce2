"""A SELECT over windows: what it sees, what it may do, and that it gives the same whenever it runs."""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.functions.restart import SECOND, Recorder, context, cuts, row, run, same_after_restarts
from tests.functions.test_window_store import SHAPES, UNTIL, inputs
from tests.functions.window_reference import Times
from tests.support.examples import given
from tests.support.speed import Stopwatch
from tests.support.waiting import PATIENCE_S
from weft.config.functions.windows import Sql
from weft.functions import sql as module
from weft.functions.contract import Row
from weft.functions.sql import SqlFunction
from weft.functions.window_plan import WindowError

LEVELS = {b"p/l1": {"line": "l1"}, b"p/l2": {"line": "l2"}}


def sql(select: str, **chosen: Any) -> Callable[[], SqlFunction]:
    return lambda: SqlFunction(Sql(**{"every_s": 60.0, "select": select, **chosen}), context(LEVELS))


def rows(count: int = 4) -> list[Row]:
    return [
        row(at * SECOND, {"rms": float(at), "on": at % 2 == 0, "pos": {"x": at}}, (b"p/l1", b"p/l2")[at % 2], at)
        for at in range(count)
    ]


def results(select: str, **chosen: Any) -> list[dict[str, Any]]:
    found = run(sql(select, **{"by": ("none",), **chosen}), rows(), until=3600 * SECOND)
    assert found.out.rejected() == []
    frame = {"window_start", "window_end", "count", "late", "complete"}
    return [{name: value for name, value in each.values.items() if name not in frame} for each in found.emitted]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        (
            "SELECT line, max(rms) AS most FROM input GROUP BY line",
            [{"line": "l1", "most": 2.0}, {"line": "l2", "most": 3.0}],
        ),
        ("SELECT key, time FROM input WHERE rms = 3", [{"key": "p/l2", "time": 3.0}]),
        ("SELECT sum(pos ->> 'x') AS x, sum([on]) AS ons FROM input", [{"x": 6, "ons": 2}]),
        ("SELECT max(nope) AS n FROM input", [{"n": None}]),
        ("SELECT a.rms - b.rms AS d FROM input a JOIN input b ON a.rowid = b.rowid + 1", [{"d": 1.0}] * 3),
        (
            "WITH x AS (SELECT rms FROM input) SELECT rms, lag(rms) OVER (ORDER BY rms) AS was FROM x LIMIT 2",
            [{"rms": 0.0, "was": None}, {"rms": 1.0, "was": 0.0}],
        ),
        (
            "SELECT datetime(time, 'unixepoch') AS t, strftime('%S', time, 'unixepoch') AS s FROM input WHERE rms = 3",
            [{"t": "1970-01-01 00:00:03", "s": "03"}],
        ),
        ("SELECT rms FROM input WHERE rms > 100", []),
    ],
)
def test_what_a_select_sees(select: str, expected: list[dict[str, Any]]) -> None:
    assert results(select) == expected


@pytest.mark.parametrize(
    "select", ["SELECT count(*), max(rms) AS most FROM input", "SELECT max(rms) AS most FROM input i"]
)
def test_fields_that_a_select_does_not_name_cost_it_nothing(select: str) -> None:
    wide = [row(at, {f"f{at}_{i}": i for i in range(600)}, b"p/l1", at) for at in range(4, 6)]
    found = run(sql(select, by=("none",)), [*rows(), *wide], until=3600 * SECOND)
    assert found.out.rejected() == []
    assert [each.values["most"] for each in found.emitted] == [3.0]


def test_a_star_has_all_fields() -> None:
    assert results("SELECT * FROM input LIMIT 1") == [
        {"key": "p/l1", "time": 0.0, "line": "l1", "rms": 0.0, "on": 1, "pos": '{"x":0}'}
    ]


@pytest.mark.parametrize(
    ("select", "error"),
    [
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT * FROM other", "no such table: other"),
        ("DELETE FROM input", "only a SELECT over the table input may run here"),
        ("UPDATE input SET rms = 1", "only a SELECT"),
        ("CREATE TABLE x (y)", "only a SELECT"),
        ("ATTACH '/etc/passwd' AS x", "only a SELECT"),
        ("PRAGMA database_list", "only a SELECT"),
        ("BEGIN", "only a SELECT"),
        ("VACUUM INTO '/tmp/x'", "SELECT"),
        ("SELECT * FROM sqlite_master", "sqlite_master is not there"),
        ("SELECT * FROM pragma_table_info('input')", "only a SELECT"),
        ("SELECT load_extension('x')", "load_extension is not allowed"),
        ("SELECT random()", "random is not allowed"),
        ("SELECT current_timestamp", "current_timestamp is not allowed"),
        ("SELECT date('now')", "date of now, localtime or utc"),
        ("SELECT datetime()", "datetime of now, localtime or utc"),
        ("SELECT strftime('%s')", "strftime of now, localtime or utc"),
        ("SELECT datetime(0, 'unixepoch', 'LocalTime ')", "datetime of now, localtime or utc"),
        ("SELECT readfile('/etc/passwd')", "no such function: readfile"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n", "without WITH REC"),
    ],
)
def test_what_a_select_may_not_do_is_refused_at_the_start(select: str, error: str) -> None:
    with pytest.raises(WindowError) as caught:
        sql(select)()
    assert error in str(caught.value)


@pytest.mark.parametrize(
    ("select", "chosen", "error"),
    [
        (
            "SELECT count(*) FROM input a, input b, input c, input d",
            {"steps_max": 5000},
            "more than 5,000 steps (steps_max)",
        ),
        ("SELECT rms FROM input", {"results_max": 2}, "more than 2 rows (results_max)"),
        ("SELECT replace(printf('%1000000d', rms), ' ', 'abc') FROM input", {}, "string or blob too big"),
        ("SELECT abs(-9223372036854775808 + rms * 0) + json(key) FROM input", {}, "malformed JSON"),
        ("SELECT datetime(key || 'now', 'localtime') FROM input", {}, "datetime of now"),
    ],
)
def test_a_select_that_fails_gives_no_rows_and_says_why(select: str, chosen: dict[str, Any], error: str) -> None:
    found = run(sql(select, by=("none",), **chosen), rows(10), until=3600 * SECOND)
    assert found.emitted == []
    (reason,) = found.out.rejected()
    assert error in reason


def test_work_is_bounded_on_the_clock_as_well() -> None:
    stopwatch = Stopwatch()
    many = "SELECT count(*) FROM input a, input b, input c, input d"
    found = run(sql(many, by=("none",)), rows(120), until=3600 * SECOND)
    assert found.out.rejected()
    assert stopwatch.seconds() < 60


def test_rows_beyond_the_bounds_go_to_the_errors_and_the_window_says_so() -> None:
    found = run(sql("SELECT count(*) AS n FROM input", by=("none",), rows_max=3), rows(5), until=3600 * SECOND)
    assert [(each.values["n"], each.values["complete"], each.values["missing"]) for each in found.emitted] == [
        (3, False, "2 rows beyond rows_max, size_max or memory: p/l1 1, p/l2 1")
    ]
    assert len(found.out.rejected()) == 2
    small = run(
        sql("SELECT count(*) AS n FROM input", by=("none",), bytes_max=4096), rows(59) * 10, until=3600 * SECOND
    )
    assert [each.values["complete"] for each in small.emitted] == [False]
    assert len(small.out.rejected()) + small.emitted[0].values["n"] == 590


@pytest.mark.parametrize("by", ["key", "none"])
@pytest.mark.parametrize("times", [SHAPES[0], SHAPES[4], SHAPES[7]], ids=str)
@given(data=st.data(), few=3, many=10)
def test_restarts_change_no_byte(times: Times, by: str, data: st.DataObject) -> None:
    given = data.draw(inputs())
    make = sql(
        "SELECT group_concat(x) AS xs, min(time) AS t, count(*) AS n FROM input",
        every_s=float(times.every) or None,
        size_s=float(times.size) or None,
        gap_s=float(times.gap) or None,
        time="ts" if times.event else None,
        lateness_s=float(times.lateness),
        idle_s=float(times.idle) or None,
        rows_max=5,
        by=(by,),
    )
    same_after_restarts(make, given, data.draw(cuts(len(given))), until=UNTIL)


async def test_a_long_select_does_not_hold_up_the_loop() -> None:
    function = sql(
        "SELECT count(*) AS n FROM input a, input b, input c, input d", by=("none",), steps_max=100_000_000
    )()
    out = Recorder()
    await function.process_async(rows(45), out)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    (result,) = await function.tick_async(60 * SECOND, out)
    counting.cancel()
    await function.close()
    assert result.values["n"] == 45**4
    assert turns > 100


GREEDY = "SELECT rms FROM (SELECT a.rms, printf('%100000d', a.rms + b.rms) AS p FROM input a, input b ORDER BY p)"


@pytest.mark.parametrize(
    "select",
    [GREEDY, pytest.param("SELECT printf('%1000000d', a.rms) FROM input a, input b, input c", marks=pytest.mark.slow)],
)
async def test_a_select_that_takes_much_memory_costs_its_window_and_not_the_node(
    select: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEMORY_BYTES", 64 << 20)
    monkeypatch.setattr(module, "ROW_MEMORY_FACTOR", 0)
    function = sql(f"{select} LIMIT 1000", by=("none",))()
    out, before = Recorder(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await function.process_async(rows(40), out)
    assert await function.tick_async(60 * SECOND, out) == []
    assert out.rejected() == ["select: needed more memory than 64 MiB"]
    # The next window has its result.
    await function.process_async([row(61 * SECOND, {"rms": 7.0}, b"p/l1", 1)], out)
    assert len(await function.tick_async(120 * SECOND, out)) == 1
    await function.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


async def test_a_select_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of SQLite's may take as long as it likes, so steps alone do not bound the time."""
    monkeypatch.setattr(module, "TIME_S", 0.3)
    monkeypatch.setattr(module, "STEPS_A_SECOND", 1 << 60)
    function = sql(
        "SELECT sum(length(replace(printf('%900000d', a.rms), ' ', ''))) FROM input a, input b, input c", by=("none",)
    )()
    out = Recorder()
    await function.process_async(rows(40), out)
    ticking = asyncio.create_task(function.tick_async(60 * SECOND, out))
    await asyncio.wait({ticking}, timeout=PATIENCE_S)
    assert ticking.done()
    (reason,) = out.rejected()
    assert reason in ("select: took longer than 0.3 s", "select: it took too long")
    await function.close()


async def test_a_stream_that_ends_does_not_wait_for_its_select() -> None:
    function = sql("SELECT count(*) FROM input a, input b, input c, input d, input e", by=("none",), steps_max=10**12)()
    out = Recorder()
    await function.process_async(rows(200), out)
    ticking = asyncio.create_task(function.tick_async(60 * SECOND, out))
    await asyncio.sleep(0.1)
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    stopwatch = Stopwatch()
    await function.close()
    assert stopwatch.seconds() < 10
    assert "weft-sql" not in {thread.name.rstrip("_0") for thread in threading.enumerate()}


async def test_a_select_that_is_much_work_over_no_rows_does_not_hold_up_the_start() -> None:
    ten = "(VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10))"
    began = time.thread_time()
    made = sql(f"SELECT count(*) FROM input, {ten}, {ten}, {ten}, {ten}, {ten}, {ten}, {ten}, {ten}")
    sql(f"SELECT count(*) FROM {', '.join([ten] * 8)}", steps_max=10**12)()
    assert made() is not None
    assert time.thread_time() - began < 1
