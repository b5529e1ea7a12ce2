"""How long an outage the node survives."""

from __future__ import annotations

import pytest

from weft.config.units import YEAR_S, approximate_duration
from weft.edge_node.status.facts import SAMPLE_INTERVAL_S, WINDOW_SAMPLES_MAX, OutageEstimate, outage_left
from weft.text.status import show_files


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
    assert OutageEstimate().seconds_left(0, 0, 0) == 0, "a full log is full at whatever rate"


def test_the_rate_is_that_of_the_last_hour() -> None:
    estimate = OutageEstimate()
    for step in range(WINDOW_SAMPLES_MAX * 2):
        estimate.sample(step * SAMPLE_INTERVAL_S, 0)
    now = WINDOW_SAMPLES_MAX * 2 * SAMPLE_INTERVAL_S
    assert estimate.bytes_per_second(now, 3600) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"),
        (1.2, "1 second"),
        (119, "119 seconds"),
        (120, "2.0 minutes"),
        (7200, "2.0 hours"),
        (86_400 * 3.5, "3.5 days"),
        (86_400 * 365 * 9, "9.0 years"),
    ],
)
def test_a_duration_for_people(seconds: float, text: str) -> None:
    assert approximate_duration(seconds) == text


@pytest.mark.parametrize(
    ("left", "rate", "full", "error", "text"),
    [
        (None, None, None, None, "unknown yet"),
        (None, 0.0, None, None, "unlimited while no records arrive"),
        (36_000, 10.0, None, None, "10.0 hours at the rate of the last hour"),
        (YEAR_S, 10.0, None, None, "365.0 days at the rate of the last hour"),
        (300 * YEAR_S, 0.001, None, None, "more than a year at the rate of the last hour"),
        (0, None, None, None, "none: the log is full"),
        (36_000, 10.0, "the log uses it all", None, "none: the log is full"),
        (36_000, 10.0, None, "a write failed", "none: the log has stopped"),
    ],
)
def test_what_people_are_told(
    left: float | None, rate: float | None, full: str | None, error: str | None, text: str
) -> None:
    disk = {"outage_seconds_left": left, "bytes_per_second": rate}
    assert outage_left({"disk": disk, "log_full": full, "log_error": error}) == text


def test_the_files_of_a_node_that_does_not_run_promise_no_centuries(capsys: pytest.CaptureFixture[str]) -> None:
    disk = {"bytes": 1, "budget_bytes": 1 << 30, "newest": None, "outage_seconds_left": 300 * YEAR_S}
    facts = {
        "node": None,
        "tenant": None,
        "owner": None,
        "wrong_name": None,
        "data_dir": "data",
        "log_id": "1",
        "running": False,
        "not_asked": "no answer",
    }
    show_files(facts | {"disk": disk, "records_lost": 0, "next_start": None, "damage": [], "streams": {}})
    assert "at least more than a year" not in (shown := capsys.readouterr().out)
    assert "more than a year at the rate of its last hour with records" in shown
