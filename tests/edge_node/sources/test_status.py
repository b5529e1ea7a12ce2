"""The status of a source: how many values it takes, and how far behind the machine they are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from weft.config.metrics.edge import SOURCE_METRICS
from weft.edge_node.sources.notices import Gaps
from weft.edge_node.sources.part import source_samples
from weft.edge_node.sources.status import GAPS_SHOWN, Now, Rate, Reading, SourceState, SourceStatus

SECOND = 10**9
NOW = Now(1_796_000_000 * SECOND, 100.0, is_synchronised=True)


def test_a_rate_is_that_of_late_and_falls_to_nothing() -> None:
    rate = Rate()
    assert rate.per_second(0.0) == 0
    for second in range(1, 41):
        rate.count(5, float(second))
    assert rate.total == 200
    assert rate.per_second(40.0) == pytest.approx(5, rel=0.1)
    assert rate.per_second(50.0) < 5
    rate.per_second(60.0)
    assert rate.per_second(70.0) == 0


@pytest.mark.parametrize(
    ("status", "now", "lag_s", "why"),
    [
        ({}, NOW, None, ""),
        ({"value_time": NOW.wall_ns - 3 * SECOND}, NOW, 3.0, ""),
        ({"value_time": NOW.wall_ns + SECOND // 2}, NOW, 0.0, ""),
        ({"value_time": NOW.wall_ns + 65 * SECOND}, NOW, None, "the server's clock is 0:01:05 ahead of the node's"),
        (
            {"value_time": NOW.wall_ns, "implausible_time": datetime(1601, 1, 1, tzinfo=UTC)},
            NOW,
            None,
            "the server's clock is not set: 1601-01-01",
        ),
        (
            {"value_time": NOW.wall_ns},
            NOW._replace(is_synchronised=False),
            None,
            "no time source vouches for the node's clock",
        ),
        (
            {"value_time": NOW.wall_ns - SECOND, "reading": Reading(Gaps("line"))},
            NOW._replace(is_synchronised=False),
            1.0,
            "",
        ),
    ],
)
def test_a_lag_is_a_number_only_if_both_clocks_can_be_trusted(
    status: dict[str, Any], now: Now, lag_s: float | None, why: str
) -> None:
    found = SourceStatus("press", "opcua", **status)
    facts = found.facts(now)
    assert (facts["lag_seconds"], facts["lag_unknown"]) == (lag_s, why)
    samples = {each.name: each.value for each in source_samples(found, now)}
    assert samples.get("weft_edge_source_lag_seconds") == lag_s


def test_the_trouble_of_a_source_is_what_is_wrong_now() -> None:
    gaps = Gaps("line")
    status = SourceStatus("line", "modbus", Reading(gaps), last_error="connection refused")
    assert status.trouble() == "connection refused"
    status.state = SourceState.CONNECTED
    assert status.trouble() == ""
    for number in range(GAPS_SHOWN + 2):
        gaps.miss(f"meter{number}", (f"meter{number}/power",), "no answer within 1 s", 0, 4)
    assert status.trouble().startswith("meter0: no answer within 1 s, 4 polls missed; meter1: ")
    assert status.trouble().endswith("; and 2 more")
    press = SourceStatus("press", "opcua", state=SourceState.CONNECTED, last_error="press/v1: gone", nodes_missing=1)
    assert press.trouble() == "press/v1: gone"


def test_each_metric_of_a_source_is_exported_by_some_kind() -> None:
    line = SourceStatus("line", "modbus", Reading(Gaps("line")), connected_since=1, values=Rate(), value_time=1)
    press = SourceStatus("press", "opcua", waiting=0, gaps=0, overflows=0, bad_values=0, nodes=1, nodes_missing=0)
    exported = {each.name for status in (line, press) for each in source_samples(status, NOW)}
    assert exported == {each.name for each in SOURCE_METRICS}
