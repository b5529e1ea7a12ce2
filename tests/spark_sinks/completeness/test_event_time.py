"""Windows by the time of events: equal to a batch over all rows, and complete only when they are."""

from __future__ import annotations

import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_sinks import Checkpoint, ReadError, complete_windows, read
from spark_sinks.sinks import DeltaSink
from tests.spark_sinks.completeness.buffering import BUFFER_HOURS, Buffering
from tests.spark_sinks.completeness.conftest import HOUR, MIDNIGHT, SECOND, STREAM
from weft.config.functions.windows import HOUR_US, Grid

SCHEMA = "ts timestamp(ms), v int"
AGGREGATE = {"n": "count(*)", "total": "sum(v)", "machines": "count(DISTINCT machine)"}
BERLIN = "Europe/Berlin"
Values = tuple[int, ...]


class EventWindows:
    """A sink in memory: windows by their start in seconds since 1970, and what was ever claimed of them."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.claimed: list[tuple[int, Values]] = []
        self.given = 0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        seconds = {name: F.unix_seconds(name) for name in ("window_start", "window_end")}
        for row in frame.withColumns(seconds).collect():
            self.given += 1
            self.rows[row.window_start] = row.asDict()
            if row._complete:
                self.claimed.append((row.window_start, _values(row.asDict())))

    @property
    def values(self) -> dict[int, Values]:
        return {start: _values(row) for start, row in self.rows.items()}

    def complete(self, start: int, hours: int) -> list[bool | None]:
        return [self.rows[start // SECOND + hour * 3600]["_complete"] for hour in range(hours)]


def _values(row: dict[str, Any]) -> Values:
    return tuple(row[name] for name in AGGREGATE)


def look(
    spark: SparkSession, fleet: Buffering, sink: Any, state: Path | Checkpoint | None, **options: Any
) -> dict[str, Any]:
    named = {"every": "1h", "time": {"column": "ts", "late": f"{BUFFER_HOURS}h"}, "aggregate": AGGREGATE, **options}
    query = complete_windows(
        spark, STREAM, store=fleet.root, sink=sink, checkpoint=state, schema=SCHEMA, trigger=None, **named
    )
    query.awaitTermination()
    return query.lastProgress


def batch_of(spark: SparkSession, fleet: Buffering, grid: Grid) -> dict[int, Values]:
    """All rows by the time of their events, put into windows by Python."""
    rows = read(spark, STREAM, store=fleet.root, schema=SCHEMA).where("ts IS NOT NULL")
    found: dict[int, list[tuple[int, str]]] = {}
    for event, value, machine in rows.select(F.unix_micros("ts"), "v", "machine").collect():
        found.setdefault(grid.start(grid.number(event)) // 1_000_000, []).append((value, machine))
    return {
        start: (len(each), sum(value for value, _ in each), len({machine for _, machine in each}))
        for start, each in found.items()
    }


SQL_BY_MACHINE = "SELECT window_start, window_end, machine, count(*) AS _late FROM {rows} GROUP BY ALL"


def by_machine_in(found: dict[str, tuple[bool | None, int]], start: int) -> Any:
    """A sink that keeps `_complete` and `_late` of each machine in one window."""

    def sink(frame: DataFrame, batch_id: int) -> None:
        for row in frame.where(F.unix_seconds("window_start") == start).collect():
            found[row.machine] = (row._complete, row._late)

    return sink


HOURLY = Grid(3_600_000_000)


@pytest.mark.search(turns=2)
@pytest.mark.timeout(900)
def test_two_days_of_devices_that_buffer_equal_a_batch_and_no_window_is_complete_too_early(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One edge is cut off for five hours, the query is killed between its steps, and its state is lost once."""
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 48)
    table, state = EventWindows(), tmp_path / "state"
    edges = [*fleet._waiting]
    for hour in range(3, 61, 3):
        fleet.until(hour, edges[:2] if 18 <= hour < 23 else None)
        if hour == 30:
            shutil.rmtree(state)
        look(spark, fleet, table, state)
        whole = [start for start, row in table.rows.items() if row["_complete"]]
        assert all(start + 3600 + BUFFER_HOURS * 3600 <= MIDNIGHT // SECOND + hour * 3600 for start in whole)
    final = batch_of(spark, fleet, HOURLY)
    assert table.values == final
    assert table.complete(MIDNIGHT, 48) == [True] * 48
    assert {start for start, _ in table.claimed} == final.keys()
    assert all(values == final[start] for start, values in table.claimed), "complete only when it was"
    assert {row["_late"] for row in table.rows.values()} == {0}


@pytest.mark.search(turns=2)
def test_without_a_bound_no_window_is_ever_complete_and_late_rows_still_count(
    spark: SparkSession, tmp_path: Path
) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 8, devices=2, only=["press-1", "press-2"])
    table, state = EventWindows(), tmp_path / "state"
    fleet.until(5)
    fleet.until(6, ["press-1"])
    look(spark, fleet, table, state, time="ts")
    assert table.complete(MIDNIGHT, 5) == [None] * 5, "whether a device holds more is not known"
    fleet.until(16, ["press-1"])
    look(spark, fleet, table, state, time="ts")
    assert table.complete(MIDNIGHT, 8) == [None] * 5 + [False] * 3, "an edge is missing, and that is known"
    fleet.until(17)
    progress = look(spark, fleet, table, state, time="ts")
    assert table.complete(MIDNIGHT, 8) == [None] * 8
    assert table.values == batch_of(spark, fleet, HOURLY)
    assert progress["rejected"] == {}
    given = table.given
    look(spark, fleet, table, state, time="ts")
    assert table.given == given, "nothing new, nothing written"


@pytest.mark.search(turns=2)
def test_rows_after_the_bound_count_and_take_the_claim_back_and_odd_times_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 4, devices=1, only=["press-1"])
    table, state = EventWindows(), tmp_path / "state"
    fleet.until(12)
    look(spark, fleet, table, state)
    assert table.complete(MIDNIGHT, 4) == [True] * 4
    event = (MIDNIGHT + HOUR + 1) // 1_000_000
    fleet.add("press-1", MIDNIGHT + 13 * HOUR, b'{"ts": %d, "v": 5}' % event)
    fleet.add("press-1", MIDNIGHT + 13 * HOUR, b'{"ts": "yesterday", "v": 5}')
    fleet.add("press-1", MIDNIGHT + 13 * HOUR, b'{"v": 5}')
    fleet.add("press-1", MIDNIGHT + 13 * HOUR, b'{"ts": 0.5, "v": 5}')
    fleet.add("press-1", MIDNIGHT + 13 * HOUR, b'{"ts": -1, "v": 5}')
    fleet.add("press-1", MIDNIGHT + 13 * HOUR, b'{"ts": %d, "v": 5}' % (event + 14 * 86_400_000))
    fleet.until(14)
    progress = look(spark, fleet, table, state)
    start = MIDNIGHT // SECOND
    assert table.complete(MIDNIGHT, 4) == [True, None, True, True]
    assert [table.rows[start + hour * 3600]["_late"] for hour in range(4)] == [0, 1, 0, 0]
    assert table.rows[start + 3600]["n"] == 7, "six and the late one"
    assert table.rows[0]["n"] == 1, "half a millisecond after 1970 is a time"
    assert sum(progress["rejected"].values()) == 4
    assert progress["rejected"] == {
        "ts is missing, null or no time": 2,
        "ts is outside 1970 to 2250": 1,
        "ts is more than 1d after the record was received": 1,
    }
    assert progress["windowsLate"] == 2
    by_machine: dict[str, tuple[bool | None, int]] = {}
    look(spark, fleet, by_machine_in(by_machine, start + 3600), None, by=["machine"])
    assert by_machine == {"odd": (None, 1), "e0m0": (True, 0)}, "the other machine has kept the bound"
    look(spark, fleet, by_machine_in(by_machine, start + 3600), None, aggregate=SQL_BY_MACHINE)
    assert by_machine == {"odd": (None, 1), "e0m0": (None, 6)}, "SQL does not say which rows are late"
    shutil.rmtree(state)
    again = EventWindows()
    assert look(spark, fleet, again, state)["rejected"] == progress["rejected"], "counted again from the log"
    found = [
        {at: (row["n"], row["_complete"], row["_late"]) for at, row in each.rows.items()} for each in (table, again)
    ]
    assert found[0] == found[1]


@pytest.mark.search(turns=2)
def test_a_smaller_bound_loses_no_row_and_edges_that_are_not_read_break_no_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 3, devices=1, only=["press-1", "press-2"])
    event = MIDNIGHT // 1_000_000
    fleet.add("press-1", MIDNIGHT + 5 * HOUR, b'{"ts": %d, "v": 5}' % event)
    fleet.add("press-2", MIDNIGHT + 9 * HOUR, b'{"ts": %d, "v": 5}' % event)
    fleet.add("press-2", MIDNIGHT + 9 * HOUR, b'{"v": 5}')
    fleet.until(10)
    table, state = EventWindows(), tmp_path / "state"
    progress = look(spark, fleet, table, state, edges=["press-1"])
    assert table.complete(MIDNIGHT, 3) == [True] * 3
    assert (progress["rejected"], progress["windowsLate"]) == ({}, 0)
    before = table.rows[MIDNIGHT // SECOND]["n"]
    assert before == 7
    fleet.add("press-1", MIDNIGHT + 11 * HOUR, b'{"ts": %d, "v": 5}' % event)
    fleet.until(12)
    kept = Checkpoint(state, if_changed="keep")
    look(spark, fleet, table, kept, edges=["press-1"], time={"column": "ts", "late": "1h"})
    assert table.rows[MIDNIGHT // SECOND]["n"] == before + 1, "the row of five hours later is read as well"
    with pytest.raises(ReadError, match="time ts, and this query makes windows with no offset, zone UTC, time _time"):
        look(spark, fleet, table, kept, edges=["press-1"], time=None)


@pytest.mark.search(turns=2)
@pytest.mark.parametrize(("day", "night"), [("2026-03-29", 7), ("2026-10-25", 9)])
def test_shifts_of_a_zone_have_the_hours_that_its_clocks_show(
    spark: SparkSession, tmp_path: Path, day: str, night: int
) -> None:
    """The clocks are set in the night shift; `every: 8h`, `offset: 6h`."""
    first = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(BERLIN)) - timedelta(days=1)
    start = int(first.timestamp()) * SECOND
    fleet = Buffering(str(tmp_path / "hub"), start, 72, only=["paint-1"])
    shifts, days = EventWindows(), EventWindows()
    for hour in range(8, 89, 16):
        fleet.until(hour)
        look(spark, fleet, shifts, tmp_path / "shifts", every="8h", offset="6h", zone=BERLIN)
        look(spark, fleet, days, tmp_path / "days", every="1d", zone=BERLIN)
    grid = Grid(8 * 3_600_000_000, 6 * 3_600_000_000, BERLIN)
    final = batch_of(spark, fleet, grid)
    assert shifts.values == final
    assert all(values == final[at] for at, values in shifts.claimed)
    lengths = {(row["window_end"] - row["window_start"]) // 3600 for row in shifts.rows.values()}
    assert lengths == {8, night}
    begun = {datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(BERLIN)).hour for at in shifts.rows}
    assert begun == {6, 14, 22}
    whole = days.rows[int(datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(BERLIN)).timestamp())]
    assert (whole["window_end"] - whole["window_start"]) // 3600 == 16 + night
    assert whole["n"] == (16 + night) * 6 * 10
    assert whole["_complete"] is True


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": "v"}, "time: expected a field of the schema with type timestamp, .* 'v' is int"),
        ({"time": {"late": "1h"}}, "time: expected the name of a field of the schema as column"),
        ({"time": "when"}, "'when' is not a field of it"),
        ({"time": {"field": "ts"}}, "time: no such setting field; the settings are column, late, ahead"),
        ({"zone": "Europe/Atlantis"}, "zone: expected a time zone of this machine's database"),
        ({"zone": BERLIN}, "zone: has a meaning for windows of 2h and more"),
        ({"offset": "1h"}, "offset: is not shorter than every"),
        ({"time": {"column": "ts", "late": "soon"}}, "late: "),
    ],
)
def test_settings_that_do_not_fit_are_named(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    fleet = Buffering(str(tmp_path / "hub"), MIDNIGHT, 0)
    with pytest.raises(ReadError, match=said):
        look(None, fleet, EventWindows(), None, **options)


# --- Sessions of a stream: equal to a batch over all rows, written while they continue, complete when nothing joins
# them


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


def sessions_look(spark: SparkSession, fleet: Buffering, folder: Path, **options: Any) -> int:
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


def sessions_batch_of(spark: SparkSession, fleet: Buffering) -> set[Session]:
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
        sessions_look(spark, fleet, tmp_path)
        found = written(tmp_path)
        assert found.keys() == sessions_batch_of(spark, fleet), "also of the window that continues"
        whole = {each for each, complete in found.items() if complete}
        assert claimed <= whole, "what was complete stays as it was"
        claimed = whole
        end = (MIDNIGHT + (hour - 2) * HOUR) // SECOND - GAP_MINUTES * 60
        assert {each for each in found if each[3] <= end} <= whole, "complete within its window, not at its end"
    assert sessions_look(spark, fleet, tmp_path) == 0
    fleet.until(27)
    sessions_look(spark, fleet, tmp_path)
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
    sessions_look(spark, fleet, tmp_path)
    assert [each[4] for each in written(tmp_path)] == [2, 2]
    add(24, 1.5)
    add(25, 1.5)
    fleet.until(2)
    sessions_look(spark, fleet, tmp_path)
    assert [each[4] for each in written(tmp_path)] == [6]
    fleet.until(3)
    assert sessions_look(spark, fleet, tmp_path) == 1, "the moment has passed the session, and no row came with it"
    assert set(written(tmp_path).values()) == {True}
    assert sessions_look(spark, fleet, tmp_path) == 0


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
    sessions_look(spark, fleet, tmp_path)
    assert {each[4]: complete for each, complete in written(tmp_path).items()} == {2: True, 1: True}
    add(12, 5)  # the bound is two hours, and the window continues for three hours more
    fleet.until(6)
    sessions_look(spark, fleet, tmp_path)
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
        sessions_look(None, fleet, tmp_path, **options)
