"""What a node says of itself: how long an outage it survives, its health, its figures and its functions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.storage.fakes import FakeFileSystem
from tests.storage.segment_log.helpers import open_log
from tests.support import live_node
from weft.config.metrics.edge import EDGE_METRICS
from weft.config.units import YEAR_S, approximate_duration
from weft.edge_node.derived.counters import FunctionCounters, FunctionFacts, function_facts, function_samples
from weft.edge_node.status.facts import (
    DAY_POINTS_MAX,
    HOUR_POINTS_MAX,
    SAMPLE_INTERVAL_S,
    SAMPLES_OF_POINT,
    WINDOW_SAMPLES_MAX,
    Health,
    History,
    OutageEstimate,
    ShortageLog,
    outage_left,
    percentile,
)
from weft.storage.histogram import Histogram
from weft.text.edge_status import show_files, show_functions

# --- How long an outage the node survives


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


# --- When a node says that it is not well, or not ready


CONFIG = """\
node: a
data_dir: data
http: null
listeners: {mqtt: {bind: "127.0.0.1:0"}}
streams: {t: {from: "t/#"}}
"""


def test_a_failed_log_is_a_reason_to_start_again() -> None:
    log = open_log(FakeFileSystem())
    health = Health(log, lambda: False, lambda: True)
    assert (health.unhealthy(), health.unready()) == ([], [])
    log.committer.poison(OSError("the disk is gone"))
    (reason,) = health.unhealthy()
    assert "a write to the log failed" in reason
    assert health.unready() == [reason]
    assert "/" not in reason, "a probe learns no paths"
    log.close()


def test_a_failed_database_is_a_reason_to_start_again() -> None:
    log = open_log(FakeFileSystem())
    assert "the database of sessions failed" in Health(log, lambda: True, lambda: True).unhealthy()[0]
    log.close()


async def test_a_node_is_ready_from_its_start_until_its_listeners_close(tmp_path: Path) -> None:
    async with live_node.running(tmp_path, CONFIG) as node:
        health = Health(node.log, lambda: False, lambda: node.listeners.is_open)
        assert health.unready() == []
        node.listeners.stop()
        assert health.unready() == ["the listeners are not open"]
        assert health.unhealthy() == []


# --- Figures of the last hour and day


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


# --- A full log is reported when it begins, now and then, and when it is over; one that flaps fills no disk


FULL = "the log uses 16 MiB of 16 MiB: restore the link to the hub"


def test_it_begins_goes_on_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    log = ShortageLog(0)
    for now in range(7200):
        log.full(FULL if 100 <= now < 7000 else None, now)
    first, *others, last = caplog.messages
    assert first == f"devices get no acknowledgements: {FULL}"
    assert 3 <= len(others) <= 8
    assert others[0] == f"devices get no acknowledgements, for 60 seconds now: {FULL}"
    assert last == "the log has room again: devices are acknowledged, after 115.0 minutes"


def test_a_log_with_room_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = ShortageLog(0)
    for now in range(600):
        log.full(None, now)
        log.low(None, now)
    assert caplog.messages == []


def test_a_log_that_is_full_every_other_second_is_some_lines_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    log = ShortageLog(0)
    for now in range(3601):
        log.full(None if now % 2 else FULL, now)
        log.low(None if now % 2 else "3 MiB are left", now)
    log.full(None, 3602)
    assert len(caplog.messages) < 40
    assert caplog.messages[0] == f"devices get no acknowledgements: {FULL}"
    full = [line for line in caplog.messages if "left" not in line]
    assert "has room again" in full[-1]


# --- What the status and the metrics say of derived streams


NOW = 1_700_000_000_000_000_000
COUNTERS = FunctionCounters(
    rows_in=1000,
    rows_out=37,
    rows_rejected=5,
    rows_routed=2,
    alerts=1,
    gaps=3,
    bytes_in=50_000,
    bytes_out=1800,
    steps=9,
    failures=4,
    lag=12,
    until=NOW - 90 * 10**9,
    state_bytes=4 << 20,
    version="8a1f03c4",
    trouble="waits",
    refused="the former functions remain in use",
)


def test_every_metric_of_functions_is_exported_with_what_was_counted() -> None:
    samples = {sample.name: sample for sample in function_samples("calm", function_facts(COUNTERS, NOW))}
    catalogue = {metric.name: metric for metric in EDGE_METRICS if metric.name.startswith("weft_edge_function_")}
    assert samples.keys() == catalogue.keys()
    for name, sample in samples.items():
        assert len(sample.labels) == len(catalogue[name].labels)
        assert sample.labels[0] == "calm"
    values = {name.removeprefix("weft_edge_function_"): sample.value for name, sample in samples.items()}
    assert values["rows_in_total"] == 1000
    assert (values["lag_records"], values["lag_seconds"], values["in_trouble"]) == (12, 90.0, True)
    assert values["version_refused"] is True
    held = function_samples("calm", function_facts(msgspec.structs.replace(COUNTERS, trouble=""), NOW))
    shown = {sample.name: sample.value for sample in held}
    assert shown["weft_edge_function_in_trouble"] is False, "they continue"
    assert samples["weft_edge_function_info"].labels == ("calm", "8a1f03c4")


def test_functions_that_have_seen_nothing_are_not_decades_behind() -> None:
    facts = function_facts(FunctionCounters(), NOW)
    assert (facts["lag_records"], facts["lag_seconds"], facts["trouble"]) == (None, None, ""), "unknown is not 0"
    samples = {each.name for each in function_samples("calm", facts)}
    assert not samples & {"weft_edge_function_lag_records", "weft_edge_function_lag_seconds"}
    assert function_facts(FunctionCounters(until=NOW + 10**9), NOW)["lag_seconds"] == 0.0


def test_the_status_of_a_node_tells_people(capsys: pytest.CaptureFixture[str]) -> None:
    facts: FunctionFacts = function_facts(COUNTERS, NOW)
    show_functions(msgspec.to_builtins({"calm": facts}))
    shown = capsys.readouterr().out
    for text in ("calm", "1000", "37", "90 seconds", "8a1f03c4", "4 MiB", "remembers", "waits"):
        assert text in shown
