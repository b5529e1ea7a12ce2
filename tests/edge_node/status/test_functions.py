"""What the status and the metrics say of derived streams."""

from __future__ import annotations

import msgspec
import pytest

from weft.config.metrics.edge import EDGE_METRICS
from weft.edge_node.derived.counters import FunctionCounters, FunctionFacts, function_facts, function_samples
from weft.text.status import show_functions

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
    assert (facts["lag_seconds"], facts["trouble"]) == (0.0, "")
    assert function_facts(FunctionCounters(until=NOW + 10**9), NOW)["lag_seconds"] == 0.0


def test_the_status_of_a_node_tells_people(capsys: pytest.CaptureFixture[str]) -> None:
    facts: FunctionFacts = function_facts(COUNTERS, NOW)
    show_functions(msgspec.to_builtins({"calm": facts}))
    shown = capsys.readouterr().out
    for text in ("calm", "1000", "37", "90 seconds", "8a1f03c4", "4 MiB", "remembers", "waits"):
        assert text in shown
