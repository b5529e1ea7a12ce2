"""A hub makes the tables that the cluster log declares, while records come, and says how far they are."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cloud_hub.tables.latest_tables import latest
from tests.cloud_hub.tables.logs import LANE, START, TOPICS, LogWriter, Run, rows
from tests.cloud_hub.tables.test_retention import filled
from tests.hub_api.answers import check_answer
from tests.support.processes import weft
from tests.support.waiting import wait_until
from weft.cloud_hub.facts.streams import LatestDocument, TableDocument
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.settings import HubSettings
from weft.cloud_hub.tables.latest import LatestTierer
from weft.cloud_hub.tables.service import DeclaredTableWork
from weft.output import Refused
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table_writer.shards import load_shards


async def test_a_bug_that_shows_with_one_stream_does_not_stop_the_next_ones(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await LogWriter.open(directory)
    for stream in ("broken", "telemetry"):
        await log.append(0, Run(LANE._replace(stream=stream), 0, 5))
    step = LatestTierer.step

    async def fail(self: LatestTierer) -> int:
        if self.key.endswith("broken"):
            raise ValueError("a payload that nobody thought of")
        return await step(self)

    monkeypatch.setattr(LatestTierer, "step", fail)
    documents = {("default", each): TableDocument(LatestDocument(("_key",))) for each in ("broken", "telemetry")}
    tables: Any = SimpleNamespace(views=await load_shards(directory, log.cluster), keeps_beside=lambda key: True)
    declared: Any = SimpleNamespace(documents=documents)
    clock: Any = SimpleNamespace(now=lambda: START, wrong=lambda: None)
    work = DeclaredTableWork(directory, log.cluster, tables, declared, clock)
    await work.look()
    assert [(each.stream, each.lag_records, each.error) for each in work.status()] == [
        ("broken", 5, "a payload that nobody thought of"),
        ("telemetry", 0, None),
    ]


@pytest.mark.slow
async def test_a_hub_makes_a_declared_table_and_ends_it_when_it_is_withdrawn(tmp_path: Path) -> None:
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path / 'store'}\n")
    store = open_store(str(tmp_path / "store"))
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 5, topics=TOPICS))

    async def run(*arguments: object) -> Any:
        result = await asyncio.to_thread(weft, "hub", "table", *arguments)
        if result.exception is not None:
            raise result.exception
        return result.output

    hub = await Hub.open(HubSettings(str(tmp_path / "store"), port=0, table_interval_s=0.2, cluster_log_interval_s=0.1))
    try:
        await run("set", config, "telemetry", "--latest", "_key", "--every", "1s", "--retain", "30d")
        config.write_text(f"store: {tmp_path / 'store'}\nretain_log: 1d\n")
        await run("set", config, "telemetry", "--retain-log", "90d", "--sort", "machine,_edge")
        (reported,) = json.loads(await run("list", config, "--json"))
        assert reported["sort"] == ["machine", "_edge"]
        assert "machine, _edge" in await run("list", config)
        assert [reported[name] for name in ("stream", "latest", "every", "retain", "retain_log")] == [
            "default/telemetry",
            ["_key"],
            "1s",
            "30d",
            "90d",
        ]

        def is_there() -> bool:
            found = _status(hub.url)
            return [(each["key"], each["lag_records"], each["error"]) for each in found] == [(["_key"], 0, None)]

        await asyncio.to_thread(wait_until, is_there)
        assert [row[1] for row in latest(store).values()] == [4]
        await log.follow(0)
        await log.append(0, Run(LANE, 5, 3))

        def is_newer() -> bool:
            return [row[1] for row in latest(store).values()] == [7]

        await asyncio.to_thread(wait_until, is_newer)
        await run("remove", config, "telemetry")

        def is_gone() -> bool:
            return _status(hub.url) == []

        await asyncio.to_thread(wait_until, is_gone)
    finally:
        await hub.close()


def _status(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/v1/status") as answer:
        status = json.loads(answer.read())
    check_answer("GET", "/v1/status", status)
    found: list[dict[str, Any]] = status["latest_tables"]
    return found


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "name what to declare"),
        (("--latest", "_seq"), "'_seq' cannot be part of a key"),
        (("--every", "1m"), "--every is the interval of a latest table"),
        (("--latest", "_key", "--every", "25h"), "not between 1s and 24h"),
        (("--retain", "5m"), "less than an hour"),
        (("--retain-size", "7 cats"), "--retain-size: expected"),
        (("--sort", "payload"), "rows cannot be sorted by 'payload'"),
        (("--sort", "machine,payload.order.id"), "'payload.order.id'"),
        (("--sort", "machine, machine"), "each column once"),
        (("--sort", ",".join(f"c{n}" for n in range(9))), "at most 8 columns"),
    ],
)
def test_what_cannot_be_declared_is_refused_before_the_store_is_opened(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    result = weft("hub", "table", "set", tmp_path / "hub.yaml", "telemetry", *options)
    assert isinstance(result.exception, Refused)
    assert why in str(result.exception)


def test_a_term_of_the_log_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    def said(retain_log: str) -> str:
        (tmp_path / "hub.yaml").write_text(f"store: {tmp_path / 'store'}\n{retain_log}")
        return str(weft("hub", "table", "set", tmp_path / "hub.yaml", "telemetry", "--retain-log", "30d").exception)

    assert "the hub keeps its log for good" in said("")
    assert "for 60d (`retain_log`), and a term of a stream can only be longer" in said("retain_log: 60d\n")


@pytest.mark.slow
async def test_answers_say_up_to_when_rows_were_removed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    log = await filled(store)
    hub = await Hub.open(HubSettings(str(tmp_path / "store"), port=0, table_interval_s=0.2, cluster_log_interval_s=0.1))
    try:
        before = await asyncio.to_thread(_answer, hub.url, "/records?limit=1000")
        assert "removed_until" not in before
        config = tmp_path / "hub.yaml"
        config.write_text(f"store: {tmp_path / 'store'}\n")
        await asyncio.to_thread(weft, "hub", "table", "set", config, "telemetry", "--retain", "30d")
        wanted = "2023-11-15T02:13:20.000000000Z"  # all rows are older than 30 days

        def is_said() -> bool:
            table = _answer(hub.url, "")["table"]  # None until the hub has looked at it
            return table is not None and table.get("removed_until") == wanted

        await asyncio.to_thread(wait_until, is_said)
        for path in ("/completeness", "/records?limit=1000"):
            assert (await asyncio.to_thread(_answer, hub.url, path))["removed_until"] == wanted
        assert rows(store).num_rows == 0
        assert log.cluster is not None
    finally:
        await hub.close()


def _answer(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}/v1/streams/telemetry{path}") as answer:
        document = json.loads(answer.read())
    check_answer("GET", "/v1/streams/{stream}" + path.partition("?")[0], document)
    return document
