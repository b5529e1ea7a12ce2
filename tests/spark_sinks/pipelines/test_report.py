"""A query tells a hub of itself, and continues whatever the hub does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_sinks.pipelines.progress import EVERY_S, Reporter
from spark_sinks.source.options import HubAccess
from tests.cloud_hub.live import get, running_hub
from tests.support.tokens import create_token
from tests.support.waiting import until
from weft.hub_api.rights import Scope
from weft.storage.object_store.directory import MemoryStore

pytest.importorskip("pyspark")


class Query:
    """A query as Spark shows it, without Spark."""

    def __init__(self) -> None:
        self.isActive = True
        self.error: BaseException | None = None
        self.recentProgress: list[Any] = []

    @property
    def lastProgress(self) -> Any:
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> BaseException | None:
        return self.error

    def batch(self, number: int, start: int, end: int, latest: int) -> None:
        offsets = {"startOffset": {"0": start}, "endOffset": {"0": end}, "latestOffset": {"0": latest}}
        facts = {"batchId": number, "durationMs": {"triggerExecution": 500}, "sources": [offsets]}
        self.recentProgress.append(SimpleNamespace(json=json.dumps(facts)))


async def test_rate_lag_batch_and_end_of_a_query_are_at_the_hub(tmp_path: Path) -> None:
    tokens, now = str(tmp_path / "tokens"), 100.0
    job = create_token(tokens, "job", Scope.GRANTED, "default", grants=("report:hours", "read"))
    async with running_hub(MemoryStore(), tokens=tokens) as hub:

        async def seen() -> dict[str, Any]:
            found = (await get(hub, "/v1/pipelines", job))[1]["pipelines"]
            return found[0] if found else {}

        reporter = Reporter(HubAccess((hub.url,), job), "hours", "telemetry", clock=lambda: now)
        query = Query()
        reporter(query)
        await until(lambda: seen_state(seen, "state", "running"))
        query.batch(4, 0, 90, 100)
        reporter(query)  # it is not due
        now += EVERY_S
        reporter(query)
        await until(lambda: seen_state(seen, "batch", 4))
        reported = await seen()
        assert (reported["rate"], reported["lag"], reported["records"], reported["seconds"]) == (
            90 / EVERY_S,
            10,
            90,
            0.5,
        )
        query.isActive, query.error = False, RuntimeError("no such column")
        await asyncio.to_thread(reporter, query)
        reported = await seen()
        assert (reported["state"], "no such column" in reported["error"]) == ("failed", True)


async def seen_state(seen: Any, field: str, value: Any) -> bool:
    return bool((await seen()).get(field) == value)


def test_a_hub_that_is_away_or_refuses_costs_a_warning_and_nothing_else() -> None:
    reports: list[str] = []
    now = 0.0
    reporter = Reporter(
        HubAccess(("http://127.0.0.1:1",)), "hours", "telemetry", on_failure=reports.append, clock=lambda: now
    )
    query = Query()
    for _ in range(5):
        reporter(query)
        now += EVERY_S
    query.isActive = False
    reporter(query)  # waits for the last one
    assert len(reports) == 1
    assert "http://127.0.0.1:1 rejects reports of this pipeline" in reports[0]
