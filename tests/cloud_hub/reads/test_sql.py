"""Queries in SQL: what they may reach, and how much they may take, by a hub over real tables."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cloud_hub.http.test_application import records
from tests.cloud_hub.http.test_sharing import plant, tokens  # noqa: F401
from tests.cloud_hub.live import EdgeLog, running_hub, running_link
from tests.cloud_hub.tables.latest_tables import drain_latest, new_latest
from tests.cloud_hub.tables.logs import START, rows
from tests.support.processes import weft
from tests.support.waiting import until
from weft.cloud_hub.facts.streams import LatestDocument, set_table
from weft.cloud_hub.http import sql as requests
from weft.cloud_hub.http.sql import QueryProcess
from weft.cloud_hub.hub import Hub
from weft.cloud_hub.reads.sql import SqlTask, TablePlace, answer, encoded, possible_names
from weft.hub_api.answers import ApiError
from weft.replication.runner import LinkIdentity
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.hub_keys import table_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import TableError
from weft.storage.table_writer.service import TableService

pytest.importorskip("duckdb")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time for queries, which yield to everything else, beside all other tests."""
    monkeypatch.setattr(requests, "SECONDS", 240.0)
    monkeypatch.setattr(requests, "WAIT_S", 240.0)


@pytest.fixture
async def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
async def hub(store: ObjectStore) -> AsyncIterator[Hub]:
    log = await plant(store)
    await drain_latest(await new_latest(store, log))
    decision = set_table(("default", "telemetry"), latest=LatestDocument(("_key",)))
    await ClusterLog(store, log.cluster.cluster_id).append_all([decision], Author(START, "test", ""))
    async with running_hub(store, shards=1, sql=True) as hub:
        yield hub


async def ask(hub: Hub, query: str, token: str = "", limit: int = 1000) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    body = {"query": query, "limit": limit}
    async with aiohttp.ClientSession(headers=headers) as session, session.post(f"{hub.url}/v1/sql", json=body) as got:
        return got.status, json.loads(await got.read())


async def test_a_query_has_the_rows_of_the_tables(hub: Hub, store: ObjectStore) -> None:
    status, found = await ask(hub, "SELECT _shard, _offset, _edge, _seq FROM telemetry ORDER BY 1, 2")
    assert (status, found["is_whole"]) == (200, True), found
    wanted = rows(store).select(["_shard", "_offset", "_edge", "_seq"])
    assert found["rows"] == [[*row.values()] for row in wanted.to_pylist()]
    assert [each["name"] for each in found["columns"]] == wanted.column_names
    assert [each["name"] for each in found["tables"]] == ["streams.telemetry"]
    _, found = await ask(
        hub,
        "WITH newest AS (FROM latest.telemetry) SELECT t._key, max(t._offset) = any_value(n._offset), "
        "sum(t._offset), min(t._time) FROM streams.telemetry t JOIN newest n USING (_key) GROUP BY ALL ORDER BY ALL",
    )
    assert [row[1] for row in found["rows"]] == [True, True]
    assert all(isinstance(row[2], int) and row[3].endswith("Z") for row in found["rows"])


async def test_a_query_says_up_to_when_streams_are_complete(hub: Hub) -> None:
    _, found = await ask(hub, "SELECT stream, complete_up_to, lag_records FROM weft.completeness ORDER BY 1")
    async with aiohttp.ClientSession() as session, session.get(f"{hub.url}/v1/streams") as got:
        (stream,) = (await got.json())["streams"]
    lag = None if stream["table"] is None else stream["table"]["lag_records"]
    assert found["rows"] == [["telemetry", stream["complete_up_to"], lag]]


async def test_a_table_lacks_what_its_maker_has_not_seen_yet(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, query = EdgeLog(), "SELECT lag_records, complete_up_to IS NOT NULL FROM weft.completeness"
    log.append(*records(0, [b"x"] * 30))
    async with (
        running_hub(store, shards=1, sql=True, table_interval_s=0.05) as hub,
        running_link(hub, log, LinkIdentity("default", "press-1", 0xABC, "test")),
    ):
        await log.until_released(30)

        async def has_all_rows() -> bool:
            return bool((await ask(hub, query))[1]["rows"] == [[0, True]])

        await until(has_all_rows)

        async def nothing(*_: object) -> int:
            return 0

        monkeypatch.setattr(TableService, "run_once", nothing)
        monkeypatch.setattr(TableService, "_follow", nothing)
        log.append(*records(30, [b"x"] * 20))
        await log.until_released(50)

        async def has_read_on() -> bool:
            async with aiohttp.ClientSession() as session, session.get(f"{hub.url}/v1/streams/telemetry") as got:
                return bool((await got.json())["next_offset"] == {"0": 50})

        await until(has_read_on)
        assert (await ask(hub, query))[1]["rows"] == [[20, True]]


async def test_a_hub_answers_no_queries_unless_it_is_told_to(store: ObjectStore) -> None:
    async with running_hub(store) as hub:
        status, said = await ask(hub, "SELECT 1")
        assert (status, "answers no queries" in said["detail"]) == (404, True)


async def test_a_query_reaches_the_tables_that_its_token_may_read(
    tokens: dict[str, str],  # noqa: F811
    store: ObjectStore,
) -> None:
    count = "SELECT count(*) FROM telemetry"
    async with running_hub(store, shards=1, sql=True) as hub:
        assert (await ask(hub, count, tokens["reader"]))[1]["rows"] == [[45]]
        status, said = await ask(hub, count, tokens["acme"])
        assert (status, "does not exist" in said["detail"]) == (400, True), "its own stream has none"
        for name in ('"default".telemetry', '"default".streams.telemetry', "temp._0", "streams.default.telemetry"):
            assert (await ask(hub, f"SELECT count(*) FROM {name}", tokens["acme"]))[0] == 400, name
        _, seen = await ask(hub, "SELECT stream FROM weft.completeness", tokens["acme"])
        assert seen["rows"] == [["telemetry"]]
        for name in ("share", "other", "pull", "wrong"):
            assert (await ask(hub, count, tokens.get(name, name)))[0] in (401, 403)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('{store}/tables/acme/**')",
        "SELECT * FROM read_parquet('http://127.0.0.1:1/x')",
        "SELECT * FROM task",
        "SELECT * FROM sys",
        "COPY telemetry TO '{store}/out'",
        "EXPORT DATABASE '{store}'",
        "ATTACH '{store}/db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "CREATE TABLE x AS SELECT 1",
        "SELECT 1; DROP VIEW telemetry",
        "SELEC 1",
        "",
        "-- nothing",
    ],
)
def test_a_query_reaches_no_file_and_no_network(query: str, store: ObjectStore, tmp_path: Path) -> None:
    task = SqlTask(query=query.format(store=tmp_path), tables={}, rows_max=10, bytes_max=1 << 20, memory_bytes=64 << 20)
    with pytest.raises(ApiError) as refused:
        answer(task)
    assert refused.value.status == 400
    assert [*tmp_path.iterdir()] == []


def asked(query: str, tables: Mapping[str, TablePlace] = {}) -> Any:
    """Return what a query has, as JSON, or its refusal."""
    task = SqlTask(query=query, tables=tables, rows_max=10, bytes_max=1 << 20, memory_bytes=64 << 20)
    try:
        return json.loads(encoded(answer(task)))["rows"]
    except ApiError as refused:
        return refused.status, refused.error


@pytest.mark.parametrize(
    ("query", "rows_of"),
    [
        ("SELECT 'nan'::DOUBLE, '-inf'::FLOAT, {'a': 'inf'::DOUBLE}", [[None, None, {"a": None}]]),
        ("SELECT 1.50::DECIMAL(4,2), sum(2**62::BIGINT) FROM range(4)", None),
        ("SELECT 18446744073709551615::UBIGINT, 3::DECIMAL(38,0)", [[18446744073709551615, 3]]),
        ("SELECT '\\x00\\xff'::BLOB, NULL, map {'a': 1}", [["AP8=", None, [["a", 1]]]]),
        ("SELECT TIMESTAMPTZ '2020-01-01 01:00:00+01', DATE '2020-01-01'", [["2020-01-01T00:00:00Z", "2020-01-01"]]),
    ],
)
def test_values_are_those_of_json(query: str, rows_of: Any) -> None:
    assert rows_of is None or asked(query) == rows_of
    assert isinstance(asked(query), list)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT TIMESTAMPTZ 'infinity' AS t", "the column 't' has a time that is not in the years 1 to 9999"),
        ("SELECT [DATE '20000-01-01']", "years 1 to 9999"),
        ("FROM test_all_types()", "years 1 to 9999"),
        ("SELECT uuid() FROM range(1) UNION ALL SELECT 'x'", "Could not convert"),
        ("SELECT CASE WHEN range > 9000 THEN error('late') END FROM range(10_000)", "late"),
        ("SELECT error(repeat('x', 1_000_000))", "xxx"),
    ],
)
def test_an_error_in_a_row_is_told_in_words(query: str, words: str) -> None:
    task = SqlTask(query=query, tables={}, rows_max=10_000, bytes_max=1 << 20, memory_bytes=64 << 20)
    with pytest.raises(ApiError, match=words) as refused:
        answer(task)
    assert refused.value.status == 400
    assert len(refused.value.error) <= 1_000


def test_columns_are_bounded_too() -> None:
    steps = ", ".join(f"t{at + 1} AS (SELECT {{a: x, b: x}} AS x FROM t{at})" for at in range(8))
    query = f"WITH t0 AS (SELECT {{{'a' * 100}: 1}} AS x), {steps} FROM t8"
    task = SqlTask(query=query, tables={}, rows_max=10, bytes_max=10_000, memory_bytes=64 << 20)
    with pytest.raises(ApiError, match="the columns of the answer have") as refused:
        answer(task)
    assert refused.value.status == 400


async def test_files_that_cannot_be_read_are_no_fault_of_the_query(store: ObjectStore, tmp_path: Path) -> None:
    await plant(store)
    tables = {"streams.telemetry": TablePlace(*store.location(table_key("default", "telemetry")))}
    for each in tmp_path.rglob("*.parquet"):
        each.rename(f"{each}.away")
    for query in ("SELECT max(_offset) FROM telemetry", "FROM telemetry"):
        with pytest.raises(TableError, match="not found"):
            asked(query, tables)


async def test_the_query_of_a_client_that_has_left_ends(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LOOK_S", 0.05)
    await plant(store)
    async with running_hub(store, shards=1, sql=True) as hub:
        query = asyncio.create_task(ask(hub, "SELECT count(*) FROM range(1_000_000_000_000) WHERE hash(range) = 1"))
        await until(lambda: hub._sql._running)
        query.cancel()
        await asyncio.gather(query, return_exceptions=True)
        await until(lambda: not hub._sql._running)


@pytest.mark.parametrize(("limit", "rows_of"), [(7, 7), (45, 45), (1000, 45)])
async def test_an_answer_ends_with_its_limit_and_says_so(hub: Hub, limit: int, rows_of: int) -> None:
    _, found = await ask(hub, "FROM telemetry", limit=limit)
    assert (len(found["rows"]), found["is_whole"]) == (rows_of, rows_of == 45)


async def test_an_answer_has_no_more_bytes_than_the_limit(store: ObjectStore) -> None:
    await plant(store)
    async with running_hub(store, shards=1, sql=True, response_bytes_max=10_000) as hub:
        status, found = await ask(hub, "SELECT repeat('x', 1000) FROM range(100)")
        assert (status, len(found["rows"]), found["is_whole"]) == (200, 9, False)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT count(*) FROM range(1_000_000_000_000) WHERE hash(range) = 1", "takes longer than"),
        ("SELECT list(range) FROM range(100_000_000)", "needs more memory"),
        ("SELECT repeat('x', 2_000_000_000)", "needs more memory"),
    ],
)
async def test_a_query_that_takes_too_much_is_ended(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, query: str, words: str
) -> None:
    if "longer" in words:
        monkeypatch.setattr(requests, "SECONDS", 0.5)
    status, said = await ask(hub, query)
    assert (status, words in said["detail"]) == (413, True), said


async def test_queries_that_wait_do_not_keep_the_api_waiting_and_end_with_the_hub(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ends = list[QueryProcess](), threading.Event()
    run, kill = QueryProcess.run, QueryProcess.kill

    def slow(self: QueryProcess) -> bytes:
        began.append(self)
        ends.wait()
        return run(self)

    def killed(self: QueryProcess) -> None:
        kill(self)
        ends.set()

    monkeypatch.setattr(QueryProcess, "run", slow)
    monkeypatch.setattr(QueryProcess, "kill", killed)
    await plant(store)
    async with running_hub(store, shards=1, sql=True) as hub:
        queries = [asyncio.create_task(ask(hub, "SELECT 1")) for _ in range(4)]
        await until(lambda: len(began) == 2)
        async with aiohttp.ClientSession() as session, session.get(f"{hub.url}/v1/streams") as got:
            assert got.status == 200
        assert len(began) == 2
    await asyncio.gather(*queries, return_exceptions=True)
    await until(lambda: all(each._process.poll() is not None for each in began))


def test_words_that_may_be_tables() -> None:
    query = 'SELECT a FROM Telemetry--note\nJOIN latest."press-1" USING (k)'
    assert {"telemetry", "press-1", "latest"} <= possible_names(query)


async def test_a_command_asks_the_tables_of_a_store(hub: Hub, store: ObjectStore, tmp_path: Path) -> None:
    query = "SELECT _edge, count(*) AS n FROM telemetry GROUP BY ALL ORDER BY ALL"
    shown = await asyncio.to_thread(weft, "sql", query, "--store", tmp_path / "store")
    assert shown.output == "_edge\tn\npress-1\t30\npress-2\t15\n", shown
    of_hub = await asyncio.to_thread(weft, "sql", query, "--hub", hub.url)
    assert of_hub.output == shown.output
    short = await asyncio.to_thread(
        weft, "sql", "FROM telemetry", "--store", tmp_path / "store", "--limit", "2", "--json"
    )
    assert len(json.loads(short.stdout)["rows"]) == 2
    assert "there are more rows" in short.stderr
    wrong = await asyncio.to_thread(weft, "sql", "FROM nothing", "--store", tmp_path / "store")
    assert "nothing does not exist" in str(wrong.exception)
