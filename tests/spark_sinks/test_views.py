"""Views of all streams: SQL that names them, from a store and through a hub, with and without a declared schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from spark_sinks import ReadError, register
from tests.spark_sinks.conftest import EDGES, STREAM, Hub, records
from tests.spark_sinks.source.test_hub import Serving
from weft.cli import cli
from weft.cloud_hub.facts.streams import set_schema
from weft.commands import spark as sql
from weft.config.load import parse_schema
from weft.config.payload_schema.model import PayloadSchema
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import open_store
from weft.storage.table.typed_columns import beside

pytestmark = pytest.mark.spark
Weft = Callable[..., Result]


def _reading(edge: str, seq: int) -> bytes:
    return json.dumps({"temperature": seq / 2, "machine": f"{edge}/{seq % 2}"}).encode()


def declare(root: str, schema: str | PayloadSchema) -> int:
    """Declare a schema of the stream in the store, as ``weft hub schema set`` does. Return its version."""

    async def appended() -> int:
        store = open_store(root)
        log = ClusterLog(store, (await open_cluster(store, None)).cluster_id)
        declared = parse_schema(schema) if isinstance(schema, str) else schema
        return (await log.append(set_schema(("default", STREAM), declared), Author(0, "test", ""))).n

    return asyncio.run(appended())


def test_sql_names_streams_and_their_declared_columns(spark: SparkSession, hub: Hub) -> None:
    hub.payload = _reading
    hub.write(2)
    hub.tier()
    hub.write(1)
    declare(hub.root, "temperature float, machine string")
    assert register(spark, hub.root) == {STREAM: f"weft.{STREAM}"}
    rows = spark.sql(
        f"SELECT machine, machine_2, count(*) AS n, max(temperature) AS hottest FROM weft.{STREAM} "
        "WHERE _edge = 'press-1' GROUP BY ALL ORDER BY machine_2"
    ).collect()
    assert [tuple(row) for row in rows] == [("m0", "press-1/0", 15, 14.0), ("m1", "press-1/1", 15, 14.5)], (
        "of table and log, also rows from before the declaration; the topic level keeps its name"
    )
    hub.write(1)
    again = spark.sql(f"SELECT count(*) FROM weft.{STREAM}")
    assert again.first()[0] == 30 * len(EDGES), "a view stays as it was"
    register(spark, hub.root, prefix="now_")
    assert spark.sql(f"SELECT count(*) FROM weft.now_{STREAM}").first()[0] == 40 * len(EDGES)


def test_a_hub_gives_the_rows_as_they_come(spark: SparkSession, hub: Hub) -> None:
    hub.write(1)
    with Serving(hub.root) as served:
        views = register(spark, hub=served.url, streams=[STREAM], prefix="far-")
        assert views == {STREAM: f"weft.`far-{STREAM}`"}
        assert records(spark.sql(f"SELECT * FROM {views[STREAM]}")) == hub.expected()


def test_what_cannot_be_viewed_is_said(spark: SparkSession, hub: Hub) -> None:
    hub.write(1)
    with pytest.raises(ReadError, match=f"no stream 'telemetri' .* it has {STREAM}"):
        register(spark, hub.root, streams=["telemetri"])
    with pytest.raises(ReadError, match="A and a would be one view"):
        register(spark, hub="http://127.0.0.1:1", streams=["A", "a"])
    with pytest.raises(ReadError, match="name the streams to read through a hub"):
        register(spark, hub="http://127.0.0.1:1")
    with pytest.raises(ReadError, match="leave one of them out"):
        register(spark, hub.root, hub="http://127.0.0.1:1")


def test_fields_beside_levels_have_names_that_nothing_else_has() -> None:
    schema = parse_schema("fields: {Machine: string, machine_2: int, line: {type: string, from: a.b}}")
    found = beside(schema, ["machine", "line"])
    assert [(name, each.path(name)) for name, each in found.fields.items()] == [
        ("Machine_3", ("Machine",)),
        ("machine_2", ("machine_2",)),
        ("line_2", ("a", "b")),
    ]


@pytest.fixture
def weft(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Weft:
    @contextmanager
    def shared(*_: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(sql, "spark_session", shared)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["spark", "sql", *arguments])

    return run


def test_a_command_asks_without_code(weft: Weft, hub: Hub, tmp_path: Path) -> None:
    hub.write(1)
    hub.tier()
    asked = weft(hub.root, f"SELECT _edge, _seq, payload FROM weft.{STREAM} ORDER BY _edge, _seq", "--rows", "2")
    assert asked.exit_code == 0, asked.output
    assert asked.stdout.splitlines() == ["_edge\t_seq\tpayload", "paint-1\t0\tpaint-1:0", "paint-1\t1\tpaint-1:1"]
    assert "more than 2 rows" in asked.stderr
    one = weft(hub.root, f"SELECT payload, _time, named_struct('n', _seq) AS s FROM weft.`{STREAM}` LIMIT 1", "--json")
    found = json.loads(one.stdout)
    assert (found.keys(), found["s"].keys()) == ({"payload", "_time", "s"}, {"n"})
    shown = weft(hub.root, "SHOW TABLES IN weft", "--json")
    assert STREAM in [json.loads(line)["tableName"] for line in shown.stdout.splitlines()]
    wrong = weft(hub.root, "SELECT * FROM weft.nothing")
    assert (wrong.exit_code, f"it has {STREAM}" in wrong.stderr) == (1, True), wrong.stderr
    bad = weft(hub.root, f"SELECT nothing FROM weft.{STREAM}")
    assert bad.exit_code == 1
    assert "nothing" in bad.stderr
    assert "Traceback" not in bad.stderr
