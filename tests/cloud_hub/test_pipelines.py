"""Reports of queries of Spark: kept over restarts, seen through every process, bounded, and apart by tenants."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.auth.test_tokens import call
from tests.cloud_hub.live import get, running_hub
from tests.support.tokens import create_token
from weft.cloud_hub.http import pipelines
from weft.cloud_hub.hub import Hub
from weft.hub_api.rights import Scope
from weft.storage.hub_keys import PIPELINES
from weft.storage.object_store.directory import MemoryStore
from weft.storage.object_store.protocol import Listing

RUNNING = {"stream": "telemetry", "state": "running", "batch": 7, "records": 90, "rate": 12.5, "lag": 3}


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    path = str(tmp_path / "tokens")
    return {
        "file": path,
        "job": create_token(path, "job", Scope.GRANTED, "default", grants=("report:machine-*",)),
        "reader": create_token(path, "reader", Scope.READER, "default"),
        "some": create_token(path, "some", Scope.GRANTED, "default", grants=("read:other",)),
        "foreign": create_token(path, "foreign", Scope.READER, "acme"),
    }


async def seen(hub: Hub, token: str) -> list[tuple[str, str, Any]]:
    status, answer = await get(hub, "/v1/pipelines", token)
    assert status == 200, answer
    return [(each["pipeline"], each["state"], each["batch"]) for each in answer["pipelines"]]


async def test_a_report_is_seen_by_readers_of_its_stream_at_every_process_and_after_a_restart(
    tokens: dict[str, str],
) -> None:
    store = MemoryStore()
    async with running_hub(store, tokens=tokens["file"]) as hub, running_hub(store, tokens=tokens["file"]) as other:
        assert (await call(hub, "PUT", "/v1/pipelines/machine-hours", tokens["job"], RUNNING))[0] == 200
        for each in (hub, other):
            assert await seen(each, tokens["reader"]) == [("machine-hours", "running", 7)]
        assert await seen(hub, tokens["some"]) == await seen(hub, tokens["foreign"]) == []
        assert (await call(hub, "PUT", "/v1/pipelines/machine-hours", tokens["job"], RUNNING | {"batch": 8}))[0] == 200
        assert await seen(hub, tokens["reader"]) == [("machine-hours", "running", 8)]
        failed = RUNNING | {"state": "failed", "error": "no such column", "batch": 9}
        assert (await call(other, "PUT", "/v1/pipelines/machine-hours", tokens["job"], failed))[0] == 200
    async with running_hub(store, tokens=tokens["file"]) as hub:
        assert await seen(hub, tokens["reader"]) == [("machine-hours", "failed", 9)]
        assert (await call(hub, "DELETE", "/v1/pipelines/machine-hours", tokens["job"]))[0] == 200
        assert await seen(hub, tokens["reader"]) == []


async def figures(hub: Hub) -> dict[str, float]:
    """Figure -> value, of the pipeline in the metrics."""
    status, text = await get(hub, "/metrics")
    assert status == 200
    found = re.findall(r'^weft_hub_pipeline_(\w+){pipeline="machine-hours",tenant="default"} (.*)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found if name != "seen_seconds"}


async def test_metrics_have_the_last_report_whichever_process_got_it_until_it_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipelines, "FIGURES_AGE_S", 0.0)
    monkeypatch.setattr(pipelines, "READ_AGE_S", 0.0)
    store = MemoryStore()
    async with running_hub(store) as hub, running_hub(store) as other:
        assert await figures(hub) == {}
        assert (await call(hub, "PUT", "/v1/pipelines/machine-hours", "", RUNNING))[0] == 200
        for each in (hub, other):
            assert await figures(each) == {"trouble": 0, "lag_records": 3, "records_per_second": 12.5}
        failed = RUNNING | {"state": "failed", "error": "no such column"}
        assert (await call(other, "PUT", "/v1/pipelines/machine-hours", "", failed))[0] == 200
        for each in (hub, other):
            assert await figures(each) == {"trouble": 1}
        assert (await call(other, "DELETE", "/v1/pipelines/machine-hours", ""))[0] == 200
        for each in (hub, other):
            assert await figures(each) == {}
            assert await seen(each, "") == []


class Hanging(MemoryStore):
    """A store that does not answer listings of reports."""

    async def list(self, prefix: str, after: str | None = None, limit: int | None = None) -> Listing:
        if prefix == PIPELINES:
            await asyncio.Event().wait()
        return await super().list(prefix, after, limit)


async def test_a_store_that_hangs_keeps_no_metrics_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "FIGURES_READ_S", 0.01)
    async with running_hub(Hanging()) as hub:
        assert (await call(hub, "PUT", "/v1/pipelines/machine-hours", "", RUNNING))[0] == 200
        assert (await figures(hub))["lag_records"] == 3


async def test_a_query_that_says_nothing_any_more_is_silent(
    tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "WRITE_NS", 0)
    async with running_hub(MemoryStore(), tokens=tokens["file"]) as hub:
        for every, state in ((10.0, "running"), (0.0, "silent")):
            report = RUNNING | {"every_seconds": every}
            assert (await call(hub, "PUT", "/v1/pipelines/machine-hours", tokens["job"], report))[0] == 200
            assert await seen(hub, tokens["reader"]) == [("machine-hours", state, 7)]


async def test_what_is_no_report_is_refused_and_a_tenant_has_room_for_some(
    tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "PIPELINES_MAX", 2)
    async with running_hub(MemoryStore(), tokens=tokens["file"]) as hub:
        for name, body, status in (
            ("other", RUNNING, 403),
            ("machine-a", {"state": "running"}, 400),
            ("Machine", RUNNING, 400),
            ("machine-a", RUNNING | {"error": "x" * 501}, 400),
            ("machine-a", RUNNING | {"stream": "../x"}, 400),
            ("machine-a", RUNNING, 200),
            ("machine-b", RUNNING, 200),
            ("machine-c", RUNNING, 409),
            ("machine-a", RUNNING | {"state": "ended"}, 200),
        ):
            got, reported = await call(hub, "PUT", f"/v1/pipelines/{name}", tokens["job"], body)
            assert got == status, (name, reported)
        assert await seen(hub, tokens["reader"]) == [("machine-a", "ended", 7), ("machine-b", "running", 7)]
