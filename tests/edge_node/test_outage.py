"""How long an outage the node survives."""

from __future__ import annotations

import pytest

from edge_node.outage import SAMPLE_INTERVAL_S, WINDOW_SAMPLES_MAX, OutageEstimate


def test_nothing_is_known_at_the_start_and_nothing_is_promised_when_nothing_comes_in() -> None:
    estimate = OutageEstimate()
    assert estimate.seconds_left(0, 0, 1000) is None
    estimate.sample(0, 0)
    assert estimate.seconds_left(0.5, 100, 1000) is None
    assert estimate.seconds_left(10, 0, 1000) is None


def test_the_free_space_over_the_rate() -> None:
    estimate = OutageEstimate()
    estimate.sample(0, 0)
    assert estimate.seconds_left(10, 1000, 5000) == pytest.approx(50)
    assert estimate.seconds_left(10, 1000, -1) == 0


def test_the_rate_is_that_of_the_last_hour() -> None:
    estimate = OutageEstimate()
    for step in range(WINDOW_SAMPLES_MAX * 2):
        estimate.sample(step * SAMPLE_INTERVAL_S, 0)
    now = WINDOW_SAMPLES_MAX * 2 * SAMPLE_INTERVAL_S
    assert estimate.bytes_per_second(now, 3600) == pytest.approx(1, rel=0.01)
