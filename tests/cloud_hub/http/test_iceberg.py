"""``/iceberg``: what engines find by name, with real pyiceberg against a hub that makes tables and metadata."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from deltalake import DeltaTable

from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.cloud_hub.tables.logs import LANE, LogWriter, Run, rows
from tests.support.tokens import create_token, declare_tokens
from tests.support.waiting import until
from weft.cloud_hub.facts.streams import LatestDocument, set_table
from weft.cloud_hub.hub import Hub
from weft.hub_api.rights import Scope
from weft.protocols.batch import decode_header
from weft.protocols.lane import Lane
from weft.replication.runner import LinkIdentity
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.hub_keys import latest_key, table_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table import iceberg

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install weft-fabric[iceberg]")

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

ACME = Lane("acme", "press-1", 7, "telemetry")
MAKES = {"table_interval_s": 0.05, "iceberg": True, "iceberg_interval_s": 0.05, "shards": 1}


@pytest.fixture
async def store(tmp_path: Path) -> ObjectStore:
    store = open_store(str(tmp_path / "store"))
    log = await LogWriter.open(store, shards=1)
    await log.append(0, Run(LANE, 0, 7), Run(LANE._replace(stream="alarms"), 0, 2), Run(ACME, 0, 3))
    return store


@pytest.fixture
async def tokens(tmp_path: Path, store: ObjectStore) -> dict[str, str]:
    path = str(tmp_path / "tokens.yaml")
    made = {
        "reader": create_token(path, "reader", Scope.READER),
        "acme": create_token(path, "acme", Scope.READER, "acme"),
        "one": create_token(path, "one", Scope.GRANTED, grants=("read:tele*",)),
        "pull": create_token(path, "pull", Scope.PULL),
        "admin": create_token(path, "admin", Scope.ADMIN),
    }
    await declare_tokens(store, path, shards=1)
    return made


@pytest.fixture
async def hub(store: ObjectStore, tokens: dict[str, str]) -> AsyncIterator[Hub]:
    async with running_hub(store, **MAKES) as hub:
        for key in (("default", "telemetry"), ("default", "alarms"), ("acme", "telemetry")):
            await until(partial(is_there, store, table_key(*key)))
        yield hub


async def is_there(store: ObjectStore, table: str) -> bool:
    return await iceberg.current(store, table) is not None


def catalogue(hub: Hub, token: str) -> Any:
    return load_catalog("weft", type="rest", uri=f"{hub.url}/iceberg", token=token)


async def test_pyiceberg_finds_and_reads_the_tables_of_its_token(
    hub: Hub, store: ObjectStore, tokens: dict[str, str]
) -> None:
    def read(token: str) -> tuple[list[Any], list[Any], dict[str, Any]]:
        found = catalogue(hub, tokens[token])
        namespaces = found.list_namespaces()
        assert not found.table_exists("default.nothing")
        names = [name for namespace in namespaces for name in found.list_tables(namespace)]
        return namespaces, names, {".".join(name): found.load_table(name).scan().to_arrow() for name in names}

    namespaces, names, tables = await asyncio.to_thread(read, "reader")
    assert (namespaces, names) == ([("default",)], [("default", "alarms"), ("default", "telemetry")])
    wanted = rows(store)
    assert tables["default.telemetry"].select(wanted.column_names).to_pylist() == wanted.to_pylist()
    assert tables["default.alarms"].num_rows == 2
    namespaces, names, tables = await asyncio.to_thread(read, "acme")
    assert (namespaces, names, tables["acme.telemetry"].num_rows) == ([("acme",)], [("acme", "telemetry")], 3)
    _, names, _ = await asyncio.to_thread(read, "one")
    assert names == [("default", "telemetry")]
    namespaces, _, _ = await asyncio.to_thread(read, "admin")
    assert {("acme",), ("default",)} <= set(namespaces)
    with pytest.raises(NoSuchTableError):
        await asyncio.to_thread(lambda: catalogue(hub, tokens["acme"]).load_table("default.telemetry"))


async def test_what_a_token_may_not_read_is_refused_in_the_protocols_form(hub: Hub, tokens: dict[str, str]) -> None:
    async def ask(token: str, path: str, method: str = "GET") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.request(method, f"{hub.url}/iceberg/v1{path}") as answer:
                return answer.status, await answer.json() if method != "HEAD" and answer.content_length else None

    telemetry = "/namespaces/default/tables/telemetry"
    for token, path, status, kind in (
        ("wrong", "/config", 401, "NotAuthorizedException"),
        (tokens["pull"], "/config", 403, "ForbiddenException"),
        (tokens["pull"], telemetry, 403, "ForbiddenException"),
        (tokens["acme"], telemetry, 404, "NoSuchTableException"),
        (tokens["acme"], "/namespaces/default", 404, "NoSuchNamespaceException"),
        (tokens["acme"], "/namespaces/default/tables", 404, "NoSuchNamespaceException"),
        (tokens["one"], "/namespaces/default/tables/alarms", 404, "NoSuchTableException"),
        (tokens["admin"], "/namespaces/nobody", 404, "NoSuchNamespaceException"),
        (tokens["reader"], "/namespaces/default/tables?pageSize=0", 400, "BadRequestException"),
    ):
        found, body = await ask(token, path)
        assert (found, body["error"]["type"], body["error"]["code"]) == (status, kind, status), path
    assert (await ask(tokens["reader"], telemetry, "HEAD"))[0] == 200
    assert (await ask(tokens["acme"], telemetry, "HEAD"))[0] == 404
    assert (await ask(tokens["admin"], telemetry, "DELETE"))[0] == 405, "it is read-only"
    status, page = await ask(tokens["reader"], "/namespaces/default/tables?pageSize=1")
    assert ([each["name"] for each in page["identifiers"]], page["next-page-token"]) == (["alarms"], "alarms")
    status, page = await ask(tokens["reader"], "/namespaces/default/tables?pageSize=1&pageToken=alarms")
    assert [each["name"] for each in page["identifiers"]] == ["telemetry"]
    assert "next-page-token" not in page


async def test_the_newest_snapshot_says_up_to_when_it_is_complete(tmp_path: Path) -> None:
    store, log, began = open_store(str(tmp_path / "store")), EdgeLog(), time.time_ns()
    data = Run(LANE, 0, 5).encode()
    log.append(decode_header(data), data)
    link = LinkIdentity("default", "press-1", 7, "test")
    async with running_hub(store, **MAKES) as hub, running_link(hub, log, link):
        summary: dict[str, str] = {}

        async def has_rows(count: int) -> bool:
            found = await iceberg.current(store, table_key("default", "telemetry"))
            if found is not None:
                summary.update(found.metadata().snapshots[-1].summary)
            return summary.get("total-records") == str(count)

        first = 5
        while iceberg.COMPLETE_PROPERTY not in summary:
            # A claim is about records that the table has by the next snapshot, and that has to have something new.
            data = Run(LANE, first, 1).encode()
            log.append(decode_header(data), data)
            first += 1
            await until(lambda: has_rows(first))
    moment = datetime.fromisoformat(summary[iceberg.COMPLETE_PROPERTY])
    assert datetime.fromtimestamp(began / 1e9 - 1, UTC) < moment < datetime.now(UTC)


async def test_a_hub_has_no_catalogue_unless_it_is_told_to(store: ObjectStore) -> None:
    async with running_hub(store, shards=1) as hub, aiohttp.ClientSession() as session:
        assert (await session.get(f"{hub.url}/iceberg/v1/config")).status == 404


async def test_a_stream_has_the_formats_that_are_declared_of_it(store: ObjectStore, tokens: dict[str, str]) -> None:
    decisions = [
        set_table(("default", "telemetry"), formats=("delta", "iceberg"), latest=LatestDocument(("_edge",), 1.0)),
        set_table(("acme", "telemetry"), formats=("delta",)),
    ]
    cluster = await open_cluster(store, 1)
    await ClusterLog(store, cluster.cluster_id).append_all(decisions, Author(time.time_ns(), "test", ""))

    def read(hub: Hub) -> tuple[Any, ...]:
        found = catalogue(hub, tokens["reader"])
        spaces = [*found.list_namespaces(), *found.list_namespaces("default")]
        return spaces, [name for space in spaces for name in found.list_tables(space)]

    async with running_hub(store, **MAKES | {"iceberg": False}) as hub:
        for key in (latest_key, table_key):
            await until(partial(is_there, store, key("default", "telemetry")))
        spaces, names = await asyncio.to_thread(read, hub)
        assert spaces == [("default",), ("default", "latest")]
        assert names == [("default", "telemetry"), ("default", "latest", "telemetry")], (
            "alarms are of the hub's formats"
        )
        newest = await asyncio.to_thread(
            lambda: catalogue(hub, tokens["reader"]).load_table("default.latest.telemetry").scan().to_arrow()
        )
        delta = DeltaTable(store.location(latest_key("default", "telemetry"))[0]).to_pyarrow_table()
        assert newest.select(delta.column_names).to_pylist() == delta.to_pylist()
        assert newest.num_rows == 1
        with pytest.raises(NoSuchTableError):
            await asyncio.to_thread(lambda: catalogue(hub, tokens["acme"]).load_table("acme.telemetry"))
        assert not await is_there(store, table_key("acme", "telemetry"))


async def test_metadata_that_cannot_be_written_is_in_status_metrics_and_log(
    hub: Hub, store: ObjectStore, tokens: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(store.location(table_key("default", "telemetry"))[0]) / "_delta_log"
    lines = (folder / f"{0:020d}.json").read_text().splitlines()
    (metadata,) = [json.loads(line) for line in lines if "metaData" in line]
    metadata["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    (folder / f"{len([*folder.glob('*.json')]):020d}.json").write_text(json.dumps(metadata))
    headers = {"Authorization": f"Bearer {tokens['admin']}"}
    async with aiohttp.ClientSession(hub.url, headers=headers) as session:

        async def failing() -> list[Any]:
            status = await (await session.get("/v1/status")).json()
            return [each for each in status["iceberg_tables"] if each["error"]]

        await until(failing)
        ((found,), text) = await failing(), await (await session.get("/metrics")).text()
    assert found["path"] == table_key("default", "telemetry")
    assert "columnMapping" in found["error"]
    assert "weft_hub_iceberg_failing 1" in text
    assert "the Iceberg metadata of tables/default/telemetry is not being updated: the table has" in caplog.text


async def test_the_page_reads_a_table(hub: Hub, tokens: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/read-by-iceberg.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace("http://127.0.0.1:8090", hub.url).replace("press-shop-7", "press-1")
    code = code.replace('os.environ.get("WEFT_TOKEN")', repr(tokens["reader"]))
    await asyncio.to_thread(exec, code, {})
    out = capfd.readouterr().out
    assert "[('default', 'alarms'), ('default', 'telemetry')]" in out
    assert '{"0":7}' in out
    for name in (iceberg.VERSION_PROPERTY, iceberg.POSITIONS_PROPERTY, iceberg.COMPLETE_PROPERTY, iceberg.FOLDER):
        assert re.search(rf"`[^`]*{re.escape(name)}[^`]*`", page), name
