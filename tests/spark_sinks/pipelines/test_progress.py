"""A micro-batch that takes long says so; one that hangs looks different from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spark_sinks.pipelines.progress import RUNNING_S, Watcher


def test_a_long_micro_batch_is_told_of_each_half_minute() -> None:
    now = 0.0
    watcher = Watcher(lambda: now)
    query: Any = SimpleNamespace(isActive=True, status={"message": "Processing new data"}, recentProgress=[])

    def at(seconds: float) -> float | None:
        nonlocal now
        now = seconds
        return watcher.running(query)

    assert [at(5), at(5 + RUNNING_S - 1)] == [None, None]
    assert [at(5 + RUNNING_S), at(6 + RUNNING_S), at(5 + 2 * RUNNING_S)] == [RUNNING_S, None, 2 * RUNNING_S]
    facts = '{"batchId": 0, "sources": [{"startOffset": null, "endOffset": {"0": 7}, "latestOffset": {"0": 7}}]}'
    query.recentProgress.append(SimpleNamespace(json=facts))
    assert [each[1] for each in watcher.new(query)] == [7]
    assert at(100) is None, "the next one has just begun"
    query.status = {"message": "Waiting for next trigger"}
    assert [at(200), at(300)] == [None, None]
