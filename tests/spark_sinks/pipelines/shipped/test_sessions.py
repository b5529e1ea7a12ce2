"""*sessions*: its table is a function of the log, however it was cut, and equals what a plain loop finds."""

from __future__ import annotations

import random
import shutil
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spark_sinks.pipelines.catalog import PipelineError
from spark_sinks.pipelines.shipped.sessions import find_sessions
from spark_sinks.pipelines.steps import Context
from tests.spark_sinks.pipelines.shipped.conftest import START, Machines, Reading
from weft.config.load import parse
from weft.config.pipelines import Pipeline

pytestmark = pytest.mark.spark
SILENCE_S, REMEMBER_S = 300, 86_400


def state(value: float) -> str:
    return "running" if value > 70 else "idle" if value > 30 else "down"


def readings(seed: int, days: float, *, begin_s: float = 0) -> list[Reading]:
    """A machine that continues and off, is silent for minutes, and for days at last."""
    chance, at, value, made = random.Random(seed), begin_s, 80.0, []
    while at < begin_s + days * 86_400:
        if chance.random() < 0.1:
            value = chance.choice([80.0, 50.0, 10.0])
        made.append((at, "m1", value))
        at += chance.choice([200.0, 250.0, 299.0, 300.0, 301.0, 4000.0])
        if chance.random() < 0.02:
            at += chance.choice([0.5, 0.99, 1.01, 2.2]) * 86_400
    return made


def by_a_loop(all_of_it: list[Reading]) -> list[tuple[Any, ...]]:
    """Sessions as a person would find them: (state, start, end, records, is open), in order."""
    runs: list[list[Reading]] = []
    found: list[tuple[Any, ...]] = []
    ordered = sorted(all_of_it)
    for at, now in enumerate(ordered):
        before = ordered[at - 1] if at else (-1e9, "", 0.0)
        gap = now[0] - before[0]
        is_same_day = moment(before).date() == moment(now).date()
        if gap > SILENCE_S or state(before[2]) != state(now[2]) or not is_same_day:
            runs.append([])
        runs[-1].append(now)
        if SILENCE_S < gap <= REMEMBER_S:
            found.append(("down", moment(before), moment(now), 0, False))
    for at, run in enumerate(runs):
        gap = runs[at + 1][0][0] - run[-1][0] if at + 1 < len(runs) else 1e9
        end = moment(runs[at + 1][0]) if gap <= SILENCE_S else moment(run[-1])
        found.append((state(run[0][2]), moment(run[0]), end, len(run), gap > REMEMBER_S))
    return sorted(found)


def moment(reading: Reading) -> datetime:
    return START + timedelta(seconds=reading[0])


def utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def reported(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            row["state"],
            row["started_at"].astimezone(UTC),
            row["ended_at"].astimezone(UTC),
            row["records"],
            row["is_open"],
        )
        for row in rows
        if not row["is_void"]
    )


@pytest.mark.slow
def test_any_cut_a_lost_checkpoint_and_late_records_give_the_same_table(machines: Machines) -> None:
    """An old disk comes back: a third of the records of the past arrive last, between the others."""
    everything = readings(1, 6)
    late = everything[100:400:3]
    in_time = [each for each in everything if each not in late]
    machines.write("e1", in_time[:150])
    machines.run("sessions", "cut", records_max=90)
    machines.write("e1", in_time[150:])
    machines.run("sessions", "cut", records_max=400)
    shutil.rmtree(machines.checkpoint("cut"))
    machines.write("e1", late, log_id=2)
    machines.run("sessions", "cut", records_max=len(everything) - 60)
    machines.run("sessions", "whole")
    whole = machines.rows("whole", "session_id")
    assert machines.rows("cut", "session_id") == whole
    assert reported(whole) == by_a_loop(everything)
    assert len(whole) > 20
    assert any(row["is_void"] for row in whole)
    for row in whole:
        if row["records"]:
            assert sum(part["count"] for part in row["_from"]) == row["records"]
            assert row["duration_s"] == (row["ended_at"] - row["started_at"]).total_seconds()


def test_mistakes_have_their_place(spark: Any) -> None:
    text = (
        "name: s\nsource: {store: s, stream: t}\nsink: {console: {}}\n"
        "steps: [python: spark_sinks.pipelines.shipped.sessions:find_sessions]\n"
    )
    context = Context(parse(text, "s.yaml", Pipeline).config)
    frame = spark.createDataFrame(
        [], "_shard int, _offset bigint, _edge string, _time timestamp, _from array<int>, machine string, state string"
    )
    with pytest.raises(PipelineError, match=r"options\.remember: expected at least the silence of 1h, got '5m'"):
        find_sessions(frame, context, silence="1h", remember="5m")
    with pytest.raises(PipelineError, match=r"options\.silence: expected a duration"):
        find_sessions(frame, context, silence="an hour")
    with pytest.raises(PipelineError, match="needs the column state"):
        find_sessions(frame.drop("state"), context)
