"""Pipelines over several streams, and with tables beside them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from spark_sinks.pipelines.catalog import PipelineError, one_statement
from spark_sinks.pipelines.check import check
from spark_sinks.pipelines.job import start
from spark_sinks.pipelines.steps import Context, read_table, select, sentence_of
from tests.spark_sinks.conftest import EDGES, Hub
from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.pipelines import DimensionTable, Pipeline, check_pipeline
from weft.storage.object_store import NotFound, StoreError

HEAD = "name: joined\nsource: {store: %(hub)s, streams: [telemetry, ovens], max_records_per_trigger: 30}\n"
JOIN = """\
tables:
  machines: {csv: %(folder)s/machines.csv, delimiter: ;, columns: {limit: float}}
  lines: {delta: %(folder)s/lines}
steps:
  - sql: SELECT _stream, _shard, _offset, _edge, _seq, _from, machine, line FROM input
  - sql: SELECT * FROM input LEFT JOIN machines m USING (machine) LEFT JOIN lines USING (line)
"""
TABLE = "sink: {delta: %(folder)s/joined}\ncheckpoint: %(folder)s/checkpoint\n"


def pipeline(text: str, **places: object) -> Pipeline:
    return parse(text % places, "joined.yaml", Pipeline, check_pipeline).config


def rows(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    table = DeltaTable(str(folder / "joined")).to_pyarrow_table(columns=list(columns))
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True), key=str)


@pytest.mark.spark
@pytest.mark.slow
def test_rows_of_several_streams_are_in_the_table_once_with_what_the_tables_said_then(
    spark: SparkSession, tmp_path: Path, plant: Hub
) -> None:
    ovens = plant.another("ovens")
    ovens.write(1, topic="plant/{line}/{machine}/telemetry")
    (tmp_path / "machines.csv").write_text("machine;limit;maker\nm0;3.5;Acme\nm1;;\n")
    lines = pa.table({"line": sorted({edge[:5] for edge in EDGES}), "floor": [1, 2]})
    write_deltalake(str(tmp_path / "lines"), lines)
    joined = pipeline(HEAD + JOIN + TABLE, hub=plant.root, folder=tmp_path)
    report = check(joined, spark)
    assert not report.errors
    assert report.steps[-1].columns.items() >= {"limit": "double", "maker": "string", "floor": "bigint"}.items()
    start(joined, spark, once=True).awaitTermination()
    first = [(hub.stream, edge, seq) for hub in (plant, ovens) for edge, seq, _ in hub.expected()]
    assert rows(tmp_path, "_stream", "_edge", "_seq") == sorted(first, key=str)
    assert set(rows(tmp_path, "machine", "limit", "maker")) == {("m0", 3.5, "Acme"), ("m1", None, None)}
    assert {row[0] for row in rows(tmp_path, "floor")} == {1, 2}

    (tmp_path / "machines.csv").write_text("machine;limit;maker\nm0;4;Acme\nm1;9;Bolt\n")
    shutil.rmtree(tmp_path / "checkpoint")
    plant.write(1)
    start(joined, spark, once=True).awaitTermination()
    then = [(hub.stream, edge, seq) for hub in (plant, ovens) for edge, seq, _ in hub.expected()]
    assert rows(tmp_path, "_stream", "_edge", "_seq") == sorted(then, key=str)
    changed = rows(tmp_path, "machine", "limit")
    assert changed.count(("m1", 9.0)) == (len(then) - len(first)) // 2, "new rows alone have the new limit"
    assert changed.count(("m1", None)) == len(first) // 2


@pytest.mark.spark
@pytest.mark.slow
def test_windows_are_computed_with_the_tables_of_their_time(spark: SparkSession, tmp_path: Path, plant: Hub) -> None:
    (tmp_path / "machines.csv").write_text("machine,hall\nm0,north\nm1,south\n")
    text = (
        "name: halls\nsource: {store: %(hub)s, stream: telemetry}\ntables: {machines: {csv: %(folder)s/machines.csv}}\n"
        "steps:\n  - sql: SELECT i.*, hall FROM input i JOIN machines USING (machine)\n"
        "  - window: {every: 1s, by: [hall], emit: {n: count(*)}}\n"
        "sink: {delta: {path: %(folder)s/joined, mode: upsert}}\ncheckpoint: %(folder)s/checkpoint\n"
    )
    halls = pipeline(text, hub=plant.root, folder=tmp_path)
    assert not check(halls, spark).errors
    start(halls, spark, once=True).awaitTermination()
    counts = rows(tmp_path, "hall", "n")
    assert {hall for hall, _ in counts} == {"north", "south"}
    assert {n for _, n in counts} == {5 * len(EDGES)}
    moved = pipeline(text.replace("machines.csv", "others.csv"), hub=plant.root, folder=tmp_path)
    (tmp_path / "others.csv").write_text("machine,hall\nm0,east\n")
    (finding,) = check(moved, spark).errors
    assert finding.message.startswith("tables changed since the sink's windows were written")


@pytest.mark.spark
def test_a_step_has_the_history_of_all_streams(spark: SparkSession, plant: Hub) -> None:
    ovens = plant.another("ovens")
    ovens.write(1)
    context = Context(pipeline(HEAD + "sink: {console: {}}\n", hub=plant.root))
    found = {row["_stream"]: row["count"] for row in context.history(spark).groupBy("_stream").count().collect()}
    assert found == {"telemetry": len(plant.expected()), "ovens": len(ovens.expected())}
    assert context.history(spark, columns=["_stream", "_seq"]).columns == ["_stream", "_seq"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        (None, {}, r"tables\.m\.csv: .*m\.csv cannot be read: No such file or directory"),
        ("", {}, r"tables\.m\.csv: .* is not a CSV table with a header line: Empty CSV file"),
        ("a,b\n1\n", {}, "is not a CSV table with a header line: CSV parse error: Expected 2 columns, got 1"),
        ("a,\n1,2\n", {}, "column 2 has no name"),
        ("a,A\n1,2\n", {}, "two columns are called a"),
        ("a,b\n1,2\n", {"c": "int"}, r"tables\.m\.columns\.c: .* has no such column. It has a, b"),
        ("a,b\n1,2\nx,3\n", {"a": "int"}, r"tables\.m\.columns\.a: row 2 has 'x', which is not a valid int"),
        ("a,b\n1,today\n", {"b": "timestamp"}, "row 1 has 'today', which is not a valid timestamp"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_sentence(
    text: str | None, settings: dict[str, str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PipelineError, match=said) as error:
        read_table("m", DimensionTable(csv=str(path), columns=settings or None))
    assert "\n" not in str(error.value)


@pytest.mark.spark
def test_a_table_has_its_types_and_nulls(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(b'\xef\xbb\xbfid,since,rate,name\n007,2026-01-02T03:04:05+01:00,1.50,""\n,,,\n')
    columns = {"since": "timestamp", "rate": "decimal(6,2)"}
    first, second = read_table("m", DimensionTable(csv=str(path), columns=columns)).to_pylist()
    assert (first["id"], first["since"].isoformat(), str(first["rate"]), first["name"]) == (
        "007",
        "2026-01-02T02:04:05+00:00",
        "1.50",
        "",
    )
    assert set(second.values()) == {None}


@pytest.mark.spark
def test_a_delta_table_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"tables\.m\.delta: .*/nothing is not a Delta table. Correct the path"):
        read_table("m", DimensionTable(delta=str(tmp_path / "nothing")))
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(PipelineError, match=r"tables\.m\.delta: .*/t cannot be read as a Delta table: ") as error:
        read_table("m", DimensionTable(delta=str(tmp_path / "t")))
    assert "\n" not in str(error.value)


SEVERAL = "name: a\nsource: {store: hub, streams: [a, b]}\n"
ONE = "name: a\nsource: {store: hub, stream: a}\n"
CONSOLE = "sink: {console: {}}\n"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nsource: {store: hub}\n" + CONSOLE, "source.stream: is missing. Name the stream, or several"),
        (SEVERAL.replace("streams", "stream: c, streams") + CONSOLE, "source.streams: excludes `stream`"),
        (SEVERAL.replace("b]", "a]") + CONSOLE, "source.streams: names a twice"),
        (SEVERAL.replace("b]", "b-*]") + CONSOLE, "source.streams: expected names, got"),
        (SEVERAL + "steps: [{window: {every: 1h, emit: {n: count(*)}}}]\n" + CONSOLE, "source.streams: has no meaning"),
        (
            SEVERAL + "sink: {stream: {hub: 'http://h', stream: c}}\ncheckpoint: c\n",
            "sink.stream: writes the rows of one",
        ),
        (SEVERAL + "sink: {tables: {}}\n", "sink.tables: writes the rows of one stream"),
        (SEVERAL + "sink: {jdbc: {url: 'jdbc:postgresql://h/x', table: t}}\ncheckpoint: c\n", "name `keys` and"),
        (
            SEVERAL + "sink: {delta: {path: t, mode: upsert, keys: [machine]}}\ncheckpoint: c\n",
            "sink.delta.order_by: is",
        ),
        (ONE + "tables: {input: {csv: a.csv}}\n" + CONSOLE, "tables.input: `input` always is"),
        (ONE + "tables: {a-b: {csv: a.csv}}\n" + CONSOLE, "tables.a-b: expected a name of letters"),
        (ONE + "tables: {a: {csv: a.csv}, A: {csv: a.csv}}\n" + CONSOLE, "tables.A: is the same table as a"),
        (ONE + "tables: {a: {csv: a.csv, delta: b}}\n" + CONSOLE, "tables.a: "),
        (ONE + "tables: {a: {delta: b, columns: {c: int}}}\n" + CONSOLE, "tables.a.columns: is for `csv` only"),
        (ONE + "tables: {a: {csv: b, columns: {c: array<int>}}}\n" + CONSOLE, "tables.a.columns.c: expected bool"),
        (ONE + "tables: {a: {csv: b}}\nsteps: [{name: A, sql: SELECT 1}]\n" + CONSOLE, "steps[0].name: is the name of"),
    ],
)
def test_a_mistake_in_the_file(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "a.yaml", Pipeline, check_pipeline)
    assert said in str(error.value)


@pytest.mark.spark
def test_upserts_of_several_streams_have_an_order() -> None:
    for keys in ("keys: [_stream, machine]", "keys: [machine], order_by: [_received]"):
        sink = f"sink: {{delta: {{path: t, mode: upsert, {keys}}}}}\ncheckpoint: c\n"
        assert parse(SEVERAL + sink, "a.yaml", Pipeline, check_pipeline).config.source.all_streams == ("a", "b")


# --- SQL as people write it: comments, semicolons, quotes, common table expressions


PATH = ("steps", 0, "sql")


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("SELECT 1;", "SELECT 1"),
        ("SELECT 1 -- the one; and no more", "SELECT 1"),
        ("SELECT 1; -- done\n;\n", "SELECT 1"),
        ("SELECT 1 /* a; /* nested; */ b */ ;", "SELECT 1"),
        ("-- a\nSELECT ';--' AS `a;``b` /* c */, \"it's;\"\n -- d", "-- a\nSELECT ';--' AS `a;``b` /* c */, \"it's;\""),
        (r"SELECT 'it\'s; -- ' AS a, r'\' AS b; -- c", r"SELECT 'it\'s; -- ' AS a, r'\' AS b"),
        ("SELECT 2 - -1", "SELECT 2 - -1"),
        ("  ", ""),
    ],
)
def test_what_stands_behind_a_statement_is_left_out(text: str, statement: str) -> None:
    assert one_statement(text) == statement


@pytest.mark.spark
def test_spark_takes_sql_as_people_write_it(spark: SparkSession) -> None:
    frame = spark.range(3).withColumnRenamed("id", "a b")

    def rows(text: str) -> list[int]:
        return sorted(row[0] for row in select(text, frame, {}, PATH).collect())

    assert rows("SELECT `a b` FROM input -- all of them") == [0, 1, 2]
    assert rows("SELECT `a b` FROM input; -- all of them\n") == [0, 1, 2]
    with_some = "WITH some AS (SELECT `a b` AS n FROM input WHERE `a b` > 0)\n-- of these\nSELECT n FROM some;"
    assert rows(with_some) == [1, 2]
    assert rows("SELECT `a b` FROM input /* b */ ORDER BY 1 DESC LIMIT 1 /* ; */") == [2]
    assert select("SELECT ';' AS text, '--' AS dashes FROM input", frame, {}, PATH).first() == (";", "--")
    for wrong, said in (
        ("SELECT 1; SELECT 2", "several statements. Write one SELECT"),
        ("SELECT 1; DROP TABLE input", "several statements"),
        ("DROP TABLE input -- gone", "Syntax error"),
        ("-- nothing", "no SELECT"),
        ("SELECT `a b FROM input", "[Ss]yntax error|PARSE"),
    ):
        with pytest.raises(PipelineError, match=said):
            select(wrong, frame, {}, PATH)


# --- The sentence in which a run ends, out of Spark's traces


TRACE = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
{}
	at org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        ("ValueError: no number: 'hot'", "ValueError: no number: 'hot'"),
        ("spark_sinks.errors.SinkError: the table is gone. Make it", "the table is gone. Make it"),
        (
            f"{NotFound.__module__}.{NotFound.__qualname__}: shard-0/chunk/7",
            "the store lacks shard-0/chunk/7. Check that it exists and has room, and start the pipeline again",
        ),
        (f"{StoreError.__module__}.{StoreError.__qualname__}: timed out", "a store failed: timed out. Check that"),
        (
            "pyspark.errors.PySparkRuntimeError: [X] Python worker failed to connect back.",
            "took more than 10 s to start",
        ),
    ],
)
def test_the_innermost_error_is_told_and_what_to_do(raised: str, sentence: str) -> None:
    assert sentence in sentence_of(RuntimeError(TRACE.format(raised)))
