"""Figures of the last hour and day."""

from __future__ import annotations

import pytest

from weft.edge_node.status.facts import DAY_POINTS_MAX, HOUR_POINTS_MAX, SAMPLES_OF_POINT, History, percentile
from weft.storage.histogram import Histogram

PRESENT = {"disk_bytes": 100.0, "waiting_records": 0.0, "waiting_seconds": 0.0, "connections": 2.0}


def test_rates_and_percentiles_are_those_of_their_interval() -> None:
    history, ack = History(10.0), Histogram()
    for step in range(3):
        for _ in range(10 * step):
            ack.observe(0.0015 if step == 1 else 0.15)
        totals = {"records_per_second": 500 * step * step, "bytes_per_second": 1000 * step}
        history.sample(10.0 * step, 1000.0 + 10 * step, totals, ack.copy(), PRESENT)
    hour = history.view(of_day=False)
    assert hour["times"] == [1000.0, 1010.0, 1020.0]
    figures = hour["figures"]
    assert figures["records_per_second"] == [None, 50.0, 150.0]
    assert figures["bytes_per_second"] == [None, 100.0, 100.0]
    assert figures["disk_bytes"] == [100.0] * 3
    assert figures["ack_p50_seconds"] == [None, pytest.approx(0.0015), pytest.approx(0.15)]
    assert history.view(of_day=True)["times"] == []


def test_a_week_takes_the_memory_of_an_hour_and_a_day() -> None:
    history = History(10.0)
    for step in range(7 * 8640):
        present = PRESENT | {"waiting_records": float(step % SAMPLES_OF_POINT)}
        totals = {"records_per_second": 20 * step, "bytes_per_second": 0}
        history.sample(10.0 * step, 10.0 * step, totals, Histogram(), present)
    hour, day = history.view(of_day=False), history.view(of_day=True)
    assert hour["times"] == [10.0 * step for step in range(7 * 8640 - HOUR_POINTS_MAX, 7 * 8640)]
    assert len(day["times"]) == DAY_POINTS_MAX
    assert day["times"][-1] - day["times"][0] == 300.0 * (DAY_POINTS_MAX - 1)
    assert set(day["figures"]["records_per_second"]) == {2.0}
    assert set(day["figures"]["waiting_records"]) == {SAMPLES_OF_POINT - 1.0}
    assert set(day["figures"]["ack_p99_seconds"]) == {None}


def test_a_duration_beyond_all_buckets_is_the_last_bound() -> None:
    assert percentile((1.0, 2.0), [0, 0, 5], 0.5) == 2.0
    assert percentile((1.0, 2.0), [2, 2, 0], 0.75) == 1.5
