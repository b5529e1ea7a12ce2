"""*anomalies*: alerts are a function of the log, and on a real series they find the failures that are known."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from spark_sinks.pipelines.catalog import PipelineError, located
from spark_sinks.pipelines.shipped.anomalies import AlertRule, find_alerts
from spark_sinks.pipelines.steps import Context
from tests.spark_sinks.pipelines.shipped.conftest import Machines, Reading

pytestmark = pytest.mark.spark
HOUR_US = 3_600_000_000
OPTIONS = {"history": "30m", "threshold": 6.0, "warm_up": 20, "quiet": "10m"}
SERIES = Path("examples/demo/data/machine_temperature_system_failure.csv.gz")
LABELS = [
    ("2013-12-10 06:25", "2013-12-12 05:35"),
    ("2013-12-15 17:50", "2013-12-17 17:00"),
    ("2014-01-27 14:20", "2014-01-29 13:30"),
    ("2014-02-07 14:55", "2014-02-09 14:05"),
]
"""Labelled windows of the series: github.com/numenta/NAB, labels/combined_windows.json, commit 450b94906d3e."""
PAGE = Path("docs/how-to/shipped-pipelines.md")


def readings(seed: int, count: int) -> list[Reading]:
    """Two machines with noise, and now and then a jump that lasts for some records."""
    chance, made, jump = random.Random(seed), [], 0.0
    for at in range(count):
        if chance.random() < 0.03:
            jump = chance.choice([0.0, 0.0, 40.0, -40.0])
        made.append((20.0 * at, f"m{at % 2}", 50 + chance.gauss(0, 1) + jump))
    return made


def by_a_loop(all_of_it: list[Reading]) -> list[tuple[str, float]]:
    """Alerts as a person would find them in the order of the log: (machine, value)."""
    found = []
    for machine in {each[1] for each in all_of_it}:
        own = [each for each in all_of_it if each[1] == machine]
        over: list[float] = []
        for at, (seconds, _, value) in enumerate(own):
            past = [each[2] for each in own[:at] if seconds - 1800 <= each[0] <= seconds]
            if len(past) >= 20:
                deviation = 1.4826 * np.median(np.abs(np.array(past) - np.median(past)))
                if abs(value - np.median(past)) > 6 * deviation:
                    if not any(seconds - 600 <= each <= seconds for each in over):
                        found.append((machine, value))
                    over.append(seconds)
    return sorted(found)


@pytest.mark.slow
def test_any_cut_a_lost_checkpoint_and_an_outage_give_the_same_alerts(machines: Machines) -> None:
    near, away = readings(1, 300), [(at, "m2" if name == "m0" else "m3", value) for at, name, value in readings(2, 300)]
    machines.write("e1", near[:150])
    machines.run("anomalies", "cut", options=OPTIONS, records_max=80)
    shutil.rmtree(machines.checkpoint("cut"))
    machines.write("e1", near[150:])
    machines.write("e2", away)  # The edge node was offline: all of it comes now, with its own times.
    machines.run("anomalies", "cut", options=OPTIONS, records_max=360)
    machines.run("anomalies", "whole", options=OPTIONS)
    whole = machines.rows("whole")
    assert machines.rows("cut") == whole
    assert sorted((row["machine"], row["value"]) for row in whole if row["machine"] < "m2") == by_a_loop(near)
    late = [(row["machine"], row["value"]) for row in whole if row["machine"] > "m1"]
    assert sorted(late) == by_a_loop(away)
    assert len(whole) > 5
    for row in whole:
        assert not row["expected_low"] <= row["value"] <= row["expected_high"]
        assert json.loads(row["payload"])["machine"] == row["machine"]
        assert sum(part["count"] for part in row["_from"]) == row["records"] + 1


def alerts_of_a_real_machine(threshold: float) -> list[dict[str, Any]]:
    """The payloads of all alerts on 79 days of a machine's temperature, with the other options as they are shipped."""
    with gzip.open(SERIES, "rt") as file:
        series = pd.read_csv(file)
    moments = pd.to_datetime(series["timestamp"]).astype("datetime64[us]").astype("int64")
    own = [[{"edge": "e", "log": "1", "first": n, "last": n, "count": 1}] for n in range(len(series))]
    rows = pd.DataFrame(
        {
            "_shard": 0,
            "_offset": range(len(series)),
            "_time": moments,
            "machine": "m1",
            "value": series["value"],
            "_new": True,
            "_from": own,
        }
    )
    options = located("anomalies").config.steps[1].options
    assert (options["history"], options["quiet"]) == ("1d", "6h")
    rule = AlertRule(24 * HOUR_US, 6 * HOUR_US, threshold, options["warm_up"], options["deviation_min"])
    return [json.loads(payload) for payload in rule.alerts(rows)["payload"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threshold", "in_windows", "outside"),
    [(10, [0, 1, 0, 1], 5), pytest.param(8, [1, 1, 0, 1], 10, marks=pytest.mark.slow)],
)
def test_what_is_found_of_the_failures_of_a_real_machine(threshold: float, in_windows: list[int], outside: int) -> None:
    """What the page says of the shipped threshold, and of a lower one. One alert outside is early and not false."""
    alerts = alerts_of_a_real_machine(threshold)
    times = [each["time"].replace("T", " ")[:16] for each in alerts]
    assert [sum(start <= each <= end for each in times) for start, end in LABELS] == in_windows
    assert len(times) - sum(in_windows) == outside
    if threshold == located("anomalies").config.steps[1].options["threshold"]:
        early = alerts[times.index("2014-01-27 12:45")]
        assert json.dumps(early, separators=(",", ":")) in PAGE.read_text()


def test_mistakes_have_their_place(spark: Any) -> None:
    context = Context(located("anomalies").config)
    frame = spark.createDataFrame(
        [], "_shard int, _offset bigint, _edge string, _time timestamp, _from array<int>, machine string, value double"
    )
    for options, said in (
        ({"threshold": "high"}, r"options\.threshold: expected a number from 1 to 1000, got 'high'"),
        ({"warm_up": 0}, r"options\.warm_up: expected a number from 5 to 10000, got 0"),
        ({"history": "yesterday"}, r"options\.history: expected a duration"),
    ):
        with pytest.raises(PipelineError, match=said):
            find_alerts(frame, context, **options)
    with pytest.raises(PipelineError, match="needs the column value"):
        find_alerts(frame.drop("value"), context)
