"""Sessions of a stream: equal to a batch over all rows, written while they continue, complete when nothing joins
them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_sinks import ReadError, complete_windows, read
from spark_sinks.sinks import DeltaSink
from tests.spark_sinks.completeness.buffering import Buffering
from tests.spark_sinks.completeness.conftest import HOUR, MIDNIGHT, SECOND, STREAM
from weft.config.functions.windows import HOUR_US, Grid

GAP_MINUTES = 15
EVERY = Grid(8 * HOUR_US)
Session = tuple[str, int, int, int, int]
"""Machine, window, first and last row in seconds, and number of rows."""


def runs(fleet: Buffering, machines: int, hours: int, seed: int) -> None:
    """Machines that run for a while and then rest. A third of the rows comes up to two hours late."""
    drawn = random.Random(seed)
    for machine in range(machines):
        at = MIDNIGHT
        while at < MIDNIGHT + hours * HOUR:
            for _ in range(drawn.randrange(1, 30)):
                event = at // 1_000_000
                late = drawn.choice([0, 0, drawn.randrange(2 * HOUR - SECOND)])
                fleet.add("press-1", at + late, msgspec.json.encode({"ts": event, "v": 1}), f"m{machine}")
                at += drawn.randrange(60, 300) * SECOND
            at += drawn.choice([14, 15, 16, 90]) * 60 * SECOND


def look(spark: SparkSession, fleet: Buffering, folder: Path, **options: Any) -> int:
    keys = ["window_start", "machine", "session_start"]
    named = {
        "every": "8h",
        "time": {"column": "ts", "late": "2h"},
        "by": ["machine"],
        "gap": f"{GAP_MINUTES}m",
        **options,
    }
    query = complete_windows(
        spark,
        STREAM,
        store=fleet.root,
        checkpoint=folder / "state",
        schema="ts timestamp(ms), v int",
        trigger=None,
        sink=DeltaSink(folder / "sessions", keys=keys, order_by="_log_end"),
        aggregate={"n": "count(*)"},
        **named,
    )
    query.awaitTermination()
    return int(query.lastProgress["windowsGiven"])


def written(folder: Path) -> dict[Session, bool | None]:
    rows = DeltaTable(str(folder / "sessions")).to_pyarrow_table().to_pylist()
    return {
        (
            row["machine"],
            *(int(row[name].timestamp()) for name in ("window_start", "session_start", "session_end")),
            row["n"],
        ): row["_complete"]
        for row in rows
    }


def batch_of(spark: SparkSession, fleet: Buffering) -> set[Session]:
    rows = read(spark, STREAM, store=fleet.root, schema="ts timestamp(ms), v int").where("ts IS NOT NULL")
    found: set[Session] = set()
    run: list[int] = []
    before = ("", 0, 0)
    times = sorted((row[0], row[1]) for row in rows.select("machine", F.unix_micros("ts")).collect())
    for machine, at in [*times, ("", 0)]:
        window = EVERY.start(EVERY.number(at)) // 1_000_000
        if run and ((machine, window) != before[:2] or at - before[2] >= GAP_MINUTES * 60_000_000):
            found.add((*before[:2], run[0] // 1_000_000, run[-1] // 1_000_000, len(run)))
            run = []
        run.append(at)
        before = machine, window, at
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sessions_equal_a_batch_and_none_that_is_complete_changes(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 0, only=["press-1"])
    runs(fleet, 3, 20, seed=7)
    claimed: set[Session] = set()
    for hour in (1, 3, 4, 9, 12, 23):
        fleet.until(hour)
        look(spark, fleet, tmp_path)
        found = written(tmp_path)
        assert found.keys() == batch_of(spark, fleet), "also of the window that continues"
        whole = {each for each, complete in found.items() if complete}
        assert claimed <= whole, "what was complete stays as it was"
        claimed = whole
        end = (MIDNIGHT + (hour - 2) * HOUR) // SECOND - GAP_MINUTES * 60
        assert {each for each in found if each[3] <= end} <= whole, "complete within its window, not at its end"
    assert look(spark, fleet, tmp_path) == 0
    fleet.until(27)
    look(spark, fleet, tmp_path)
    assert set(written(tmp_path).values()) == {True}


@pytest.mark.slow
def test_a_late_row_joins_two_sessions_and_the_second_one_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 0, only=["press-1"])

    def add(minute: int, at: float) -> None:
        event = MIDNIGHT // 1_000_000 + minute * 60_000
        fleet.add("press-1", MIDNIGHT + int(at * HOUR), b'{"ts": %d, "v": 1}' % event, "m0")

    for minute in (0, 10, 35, 40):
        add(minute, 0.7)
    fleet.until(1)
    look(spark, fleet, tmp_path)
    assert [each[4] for each in written(tmp_path)] == [2, 2]
    add(24, 1.5)
    add(25, 1.5)
    fleet.until(2)
    look(spark, fleet, tmp_path)
    assert [each[4] for each in written(tmp_path)] == [6]
    fleet.until(3)
    assert look(spark, fleet, tmp_path) == 1, "the moment has passed the session, and no row came with it"
    assert set(written(tmp_path).values()) == {True}
    assert look(spark, fleet, tmp_path) == 0


@pytest.mark.slow
def test_a_session_that_changes_behind_the_bound_says_so_and_others_stay_complete(
    spark: SparkSession, tmp_path: Path
) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 0, only=["press-1"])

    def add(minute: int, at: float) -> None:
        event = MIDNIGHT // 1_000_000 + minute * 60_000
        fleet.add("press-1", MIDNIGHT + int(at * HOUR), b'{"ts": %d, "v": 1}' % event, "m0")

    for minute in (0, 10, 60):
        add(minute, 1.1)
    fleet.until(4)
    look(spark, fleet, tmp_path)
    assert {each[4]: complete for each, complete in written(tmp_path).items()} == {2: True, 1: True}
    add(12, 5)  # the bound is two hours, and the window continues for three hours more
    fleet.until(6)
    look(spark, fleet, tmp_path)
    assert {each[4]: complete for each, complete in written(tmp_path).items()} == {3: None, 1: True}
    rows = DeltaTable(str(tmp_path / "sessions")).to_pyarrow_table().to_pylist()
    assert {row["n"]: row["_late"] for row in rows} == {3: 1, 1: 0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gap": "8h"}, "gap: expected a silence shorter than every"),
        ({"gap": "0s"}, "gap: expected a silence shorter than every"),
        ({"gap": "soon"}, "gap: "),
    ],
)
def test_gaps_that_do_not_fit_are_named(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 0)
    with pytest.raises(ReadError, match=said):
        look(None, fleet, tmp_path, **options)
