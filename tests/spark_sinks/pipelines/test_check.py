"""Each mistake in a pipeline is found before it starts: one sentence at its line and setting."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_sinks.completeness.row_steps import (
    OtherRows,
    OtherTime,
    check_aggregates,
    check_rows,
    check_text,
    source_rows,
)
from spark_sinks.pipelines.check import check
from spark_sinks.pipelines.job import Report, make_sink, rule_of, start
from spark_sinks.pipelines.steps import Context, select
from spark_sinks.sinks import DeltaSink
from tests.spark_sinks.conftest import Hub
from weft.commands.spark import located_pipeline
from weft.config.errors import ConfigError, format_path
from weft.config.load import Loaded, parse
from weft.config.pipelines import Pipeline, check_pipeline

pytestmark = pytest.mark.spark

SOURCE = "name: warm\nsource: {store: <hub>, stream: telemetry}\n"
CONSOLE = "sink: {console: {}}\n"
TABLE = "sink: {delta: <dir>/table}\ncheckpoint: <dir>/checkpoint\n"
WINDOWS = SOURCE + "steps: [window: {every: 1h, by: [machine], emit: {n: count(*)}}]\n"
HOURS = "sink: {delta: {path: <dir>/t, mode: upsert}}\ncheckpoint: <dir>/c\n"
STEPS = """\
from pyspark.sql import functions as F

def warm(frame, above=20):
    return frame.where(F.length("payload") > above)

def lost(frame):
    frame.where("true")

def wrong_column(frame):
    return frame.select("temprature")

def broken(frame):
    return frame.count(1, 2)

def leaves(frame):
    raise SystemExit("no model here")

def sorted_rows(frame):
    return frame.orderBy("_time")

def counted(frame):
    return frame.limit(frame.count())

def with_history(frame, context):
    return frame.join(context.history(frame.sparkSession, columns=["machine"]), "machine")

def made_up(frame):
    return frame.sparkSession.range(3)
"""


class Wrong(NamedTuple):
    did: str
    text: str
    setting: str
    line: int
    message: str


def steps(*texts: str) -> str:
    return SOURCE + "steps:\n" + "".join(f"  - {text}\n" for text in texts) + CONSOLE


TABLE_OF_MISTAKES = [
    Wrong(
        "no such stream",
        SOURCE.replace("telemetry", "telemetri") + CONSOLE,
        "source.stream",
        2,
        "the store has no stream 'telemetri' of tenant 'default'; it has telemetry",
    ),
    Wrong(
        "no such store",
        SOURCE.replace("<hub>", "/nowhere/hub") + CONSOLE,
        "source.store",
        2,
        "store '/nowhere/hub': the store holds no hub: check the store's address, or start a hub on it first",
    ),
    Wrong(
        "a misspelt column",
        steps("sql: SELECT machin FROM input"),
        "steps[0].sql",
        4,
        "there is no column machin here. Did you mean machine or ",
    ),
    Wrong(
        "a misspelt column in the third line",
        steps("sql: |\n      SELECT\n      lin\n      FROM input"),
        "steps[0].sql",
        4,
        "there is no column lin here. Did you mean line",
    ),
    Wrong(
        "a table that is none",
        steps("sql: SELECT * FROM readings"),
        "steps[0].sql",
        4,
        "there is no table readings. A step can read input",
    ),
    Wrong(
        "a later step's table",
        steps("{name: first, sql: SELECT * FROM second}", "{name: second, sql: SELECT 1}"),
        "steps[0].sql",
        4,
        "there is no table second. A step can read input",
    ),
    Wrong(
        "a sum of text and time",
        steps("sql: SELECT machine + _time AS x FROM input"),
        "steps[0].sql",
        4,
        "Cannot resolve ",
    ),
    Wrong(
        "no SQL",
        steps("sql: SELEC * FROM input"),
        "steps[0].sql",
        4,
        "Syntax error at or near '*' (line 1, column 7 of the SQL). Expected a SELECT, such as `SELECT line",
    ),
    Wrong(
        "groups without an end",
        steps("sql: SELECT machine, count(*) AS n FROM input GROUP BY machine"),
        "steps[0].sql",
        4,
        "groups rows of a stream, which has no end at which a group is complete. Use the step "
        "`window`, whose windows end, or",
    ),
    Wrong(
        "session windows of Spark",
        SOURCE + 'steps: [{sql: \'SELECT machine, session_window(_time, "5 minutes") AS s, count(*) AS n FROM input '
        "GROUP BY ALL'}]\n" + HOURS.replace("upsert", "upsert, keys: [machine]"),
        "steps[0].sql",
        3,
        "makes session windows of Spark, which cannot be written again when late rows come. Use",
    ),
    Wrong(
        "a command in place of a SELECT", steps("sql: DROP TABLE input"), "steps[0].sql", 4, "Syntax error at or near"
    ),
    Wrong(
        "a function of SQL that is none",
        steps("sql: SELECT temprature(machine) FROM input"),
        "steps[0].sql",
        4,
        "Cannot resolve routine `temprature`",
    ),
    Wrong(
        "the second step's column",
        steps("sql: SELECT machine, _from FROM input", "sql: SELECT payload FROM input"),
        "steps[1].sql",
        5,
        "there is no column payload here. Did you mean ",
    ),
    Wrong(
        "a module that is none",
        steps("python: nowhere:warm"),
        "steps[0].python",
        4,
        "there is no module nowhere. Put nowhere.py into the pipeline's folder, or install its package",
    ),
    Wrong(
        "a function that is none",
        steps("python: plant_steps:wram"),
        "steps[0].python",
        4,
        "module plant_steps has no function wram. It has warm, lost, wrong_column, broken, leaves, sorted_rows, "
        "counted, with_history, made_up",
    ),
    Wrong(
        "an option that is none",
        steps("{python: plant_steps:warm, options: {below: 3}}"),
        "steps[0].options",
        4,
        "plant_steps:warm cannot be called with these options: got an unexpected keyword argument 'below'. "
        "It takes the DataFrame and above=20",
    ),
    Wrong(
        "a function without return",
        steps("python: plant_steps:lost"),
        "steps[0].python",
        4,
        "plant_steps:lost returned None. Return a DataFrame of Spark",
    ),
    Wrong(
        "a function with a misspelt column",
        steps("python: plant_steps:wrong_column"),
        "steps[0].python",
        4,
        "plant_steps:wrong_column failed: there is no column temprature here",
    ),
    Wrong(
        "a function that fails",
        steps("python: plant_steps:broken"),
        "steps[0].python",
        4,
        "plant_steps:broken failed: TypeError: ",
    ),
    Wrong(
        "a function that ends the process",
        steps("python: plant_steps:leaves"),
        "steps[0].python",
        4,
        "plant_steps:leaves failed: SystemExit: no model here (",
    ),
    Wrong(
        "a module with a fault of syntax",
        steps("python: faulty_steps:warm"),
        "steps[0].python",
        4,
        "module faulty_steps cannot be imported: ",
    ),
    Wrong(
        "rows of elsewhere",
        steps("python: plant_steps:made_up"),
        "steps[0].python",
        4,
        "returns a DataFrame that is not a stream",
    ),
    Wrong(
        "a function that asks for rows",
        steps("python: plant_steps:counted"),
        "steps[0].python",
        4,
        "plant_steps:counted failed: it asks for rows, and a streaming DataFrame has none before the query runs. "
        "Give the step `mode: batch`",
    ),
    Wrong(
        "a field with the name of a topic level",
        SOURCE.replace("telemetry}", "telemetry, schema: {format: json, fields: {machine: string}}}") + CONSOLE,
        "source.schema.fields.machine",
        2,
        "schema: fields.machine: the stream has a topic level machine",
    ),
    Wrong(
        "a time of windows as text",
        WINDOWS.replace("[window", "[sql: 'SELECT machine, _from, string(_time) _time FROM input', window") + HOURS,
        "steps[0]",
        3,
        "makes _time a string, and windows are made of it",
    ),
    Wrong(
        "a time of the payload as _time",
        WINDOWS.replace("telemetry}", "telemetry, schema: {fields: {ts: timestamp}}}").replace(
            "[window", "[sql: 'SELECT ts AS _time, machine, _from FROM input', window"
        )
        + HOURS,
        "steps[0]",
        3,
        "makes a _time that is not the source's own, or is not seen to be",
    ),
    Wrong(
        "a join of rows with each other before windows",
        WINDOWS.replace("[window", "[sql: SELECT a.* FROM input a LEFT JOIN input b USING (machine), window") + HOURS,
        "steps[0].sql",
        3,
        "joins rows of the stream with other rows of it (Join). A step before windows may look",
    ),
    Wrong(
        "a function before windows that asks for rows",
        WINDOWS.replace("[window", "[{python: plant_steps:counted, mode: batch}, window") + HOURS,
        "steps[0].python",
        3,
        "plant_steps:counted failed: it asks for rows, and would get those of a few windows",
    ),
    Wrong(
        "the history before windows",
        WINDOWS.replace("[window", "[python: plant_steps:with_history, window") + HOURS,
        "steps[0].python",
        3,
        "joins what another read of a stream gives at this moment",
    ),
    Wrong(
        "an aggregate of other rows",
        (WINDOWS + HOURS).replace("count(*)", "'count_if(_time < now())'"),
        "steps[0].window.emit.n",
        3,
        "uses `now`, which is another one in each run",
    ),
    Wrong(
        "a table with other partitions",
        SOURCE + TABLE.replace("<dir>/table", "<dir>/parted"),
        "sink.delta.path",
        3,
        "table <dir>/parted is partitioned by line, not by nothing; give partition_by as",
    ),
    Wrong(
        "a table with a column of another type",
        SOURCE
        + "steps: [sql: 'SELECT _shard, _offset, _from, 1.5D AS line FROM input']\n"
        + TABLE.replace("<dir>/table", "{path: <dir>/parted, partition_by: [line]}"),
        "sink.delta.path",
        4,
        "column line is double in the rows and string in the table: cast it",
    ),
    Wrong(
        "a file for a table",
        SOURCE + TABLE.replace("<dir>/table", "<dir>/plant_steps.py"),
        "sink.delta.path",
        3,
        "<dir>/plant_steps.py cannot be read as a Delta table: Generic LocalFileSystem error: ",
    ),
    Wrong(
        "the hub's own table",
        SOURCE + TABLE.replace("<dir>/table", "<hub>/tables/default/telemetry"),
        "sink.delta",
        3,
        "table <hub>/tables/default/telemetry is in the store of the hub, which alone writes",
    ),
    Wrong(
        "a stream that is sorted",
        steps("sql: SELECT * FROM input ORDER BY _time"),
        "steps[0].sql",
        4,
        "Sorting is not supported on streaming DataFrames",
    ),
    Wrong(
        "a table without positions",
        SOURCE + "steps: [sql: 'SELECT machine, _from FROM input']\n" + TABLE,
        "sink.delta",
        4,
        "writing each row once needs the column _shard, _offset, which the last step does not make. "
        "It makes machine, _from",
    ),
    Wrong(
        "a key that is none",
        SOURCE + "sink: {delta: {path: <dir>/t, mode: upsert, keys: [machin]}}\ncheckpoint: <dir>/c\n",
        "sink.delta.keys",
        3,
        "keys needs the column machin, which the last step does not make",
    ),
    Wrong(
        "one name for two columns",
        SOURCE + "steps: [sql: 'SELECT *, 1 AS Machine FROM input']\n" + TABLE,
        "sink.delta",
        4,
        "two columns are called machine. Name each of them once (AS)",
    ),
    Wrong(
        "a column without a type",
        SOURCE + "steps: [sql: 'SELECT *, NULL AS x FROM input']\n" + TABLE,
        "sink.delta",
        4,
        "column x has no type. Cast it",
    ),
    Wrong(
        "a folder with files for a table",
        SOURCE + "sink: {delta: <hub>}\ncheckpoint: <dir>/checkpoint\n",
        "sink.delta.path",
        3,
        "<hub> has files and is not a Delta table. Name another place",
    ),
    Wrong(
        "a checkpoint that is a file",
        SOURCE + "sink: {delta: <dir>/t}\ncheckpoint: <dir>/plant_steps.py\n",
        "checkpoint",
        4,
        "<dir>/plant_steps.py is not a folder. Name another place",
    ),
    Wrong(
        "a checkpoint where Spark cannot write",
        SOURCE + TABLE.replace("<dir>/checkpoint", "s3://plant/checkpoint"),
        "checkpoint",
        4,
        "this Spark has no file system for s3://",
    ),
    Wrong(
        "a checkpoint of windows where no store is",
        WINDOWS + HOURS.replace("<dir>/c", "hdfs://plant/c"),
        "checkpoint",
        5,
        "'hdfs://plant/c' is not a store",
    ),
    Wrong(
        "an aggregate over other groups",
        (WINDOWS + HOURS).replace("count(*)", "count(*) OVER ()"),
        "steps[0].window.emit.n",
        3,
        "looks at the rows of other groups",
    ),
    Wrong(
        "an aggregate of several rows",
        (WINDOWS + HOURS).replace("count(*)", "explode(collect_list(_seq))"),
        "steps[0].window.emit.n",
        3,
        "makes several rows of one",
    ),
    Wrong(
        "a name that Delta does not take",
        SOURCE + "steps: [sql: 'SELECT *, 1 AS `a b` FROM input']\n" + TABLE,
        "sink.delta",
        4,
        "column 'a b': Delta allows none of space",
    ),
    Wrong(
        "a position as text",
        SOURCE + "steps: [sql: 'SELECT _shard, CAST(_offset AS STRING) AS _offset, _from FROM input']\n" + TABLE,
        "sink.delta",
        4,
        "column _offset is a string; leave it as the source has it",
    ),
    Wrong(
        "a list as key",
        SOURCE + "sink: {delta: {path: <dir>/t, mode: upsert, keys: [_from]}}\ncheckpoint: <dir>/c\n",
        "sink.delta",
        3,
        "keys: _from is a ",
    ),
    Wrong(
        "a partition by bytes",
        SOURCE + TABLE.replace("<dir>/table", "{path: <dir>/t, partition_by: [payload]}"),
        "sink.delta",
        3,
        "partition_by: payload is a binary",
    ),
    Wrong(
        "an order of the database by no column",
        SOURCE + "sink: {jdbc: {url: 'jdbc:postgresql://localhost/x', "
        "table: t, keys: [machine], order_by: at}}\ncheckpoint: <dir>/c\n",
        "sink.jdbc",
        3,
        "order_by needs the column at, which the last step does not make",
    ),
    Wrong(
        "a key of messages by no column",
        SOURCE + "sink: {kafka: {brokers: 'localhost:9', topic: t, key: machin}}\ncheckpoint: <dir>/c\n",
        "sink.kafka",
        3,
        "there is no column machin here. Did you mean machine",
    ),
]


@pytest.fixture(scope="module")
def place(shared_plant: Hub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "plant_steps.py").write_text(STEPS)
    parted = pa.table({"_shard": pa.array([], pa.int64()), "_offset": pa.array([], pa.int64())})
    write_deltalake(
        str(folder / "parted"), parted.append_column("line", pa.array([], pa.string())), partition_by="line"
    )
    (folder / "faulty_steps.py").write_text("def warm(frame)\n    return frame\n")
    sys.path.insert(0, str(folder))
    return {"<hub>": shared_plant.root, "<dir>": str(folder)}


def test_files_beside_a_pipeline_take_no_module_s_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "warm.yaml").write_text(SOURCE + "steps: [python: own_steps:warm]\n" + CONSOLE)
    for name in ("own_steps", "this", "deltalake"):
        (tmp_path / f"{name}.py").write_text(STEPS)
    located_pipeline(str(tmp_path / "warm.yaml"), [])
    found = {name: PathFinder.find_spec(name) for name in ("own_steps", "this", "deltalake")}
    beside = {name for name, spec in found.items() if spec and Path(str(spec.origin)).parent == tmp_path}
    assert beside == {"own_steps"}


def loaded(text: str, place: dict[str, str]) -> Loaded[Pipeline]:
    for name, value in place.items():
        text = text.replace(name, value)
    return parse(text, "warm.yaml", Pipeline, check_pipeline)


def checked(text: str, place: dict[str, str], spark: SparkSession) -> Report:
    return check(loaded(text, place).config, spark)


@pytest.mark.parametrize("wrong", TABLE_OF_MISTAKES, ids=lambda wrong: wrong.did.replace(" ", "-"))
def test_a_mistake(wrong: Wrong, place: dict[str, str], spark: SparkSession) -> None:
    pipeline = loaded(wrong.text, place)
    (problem,) = pipeline.refuse(check(pipeline.config, spark).errors).problems
    message = wrong.message
    for name, value in place.items():
        message = message.replace(name, value)
    assert problem.message.startswith(message), problem.message
    assert (format_path(problem.path).startswith(wrong.setting), problem.line) == (True, wrong.line), problem
    assert "SQLSTATE" not in problem.message
    assert "\n" not in problem.message


APART = [
    "SELECT machine, _time, _from FROM input",
    "SELECT i._time AS at, * FROM input i WHERE machine > 'm' ORDER BY _time",
    "WITH few AS (SELECT _time AS t FROM input) SELECT t AS _time FROM few UNION ALL SELECT t FROM few",
    "SELECT _time FROM input UNION ALL SELECT _time FROM input WHERE line = 'a'",
    "SELECT _time, explode(array(1, 2)) AS x FROM input",
    "SELECT _time, y.col FROM input LATERAL VIEW explode(array(1, 2)) y",
    "SELECT input.*, hall FROM input LEFT JOIN halls USING (machine)",
    "SELECT input.*, n FROM input JOIN (SELECT machine m, count(*) n FROM halls GROUP BY 1) ON m = machine",
    "SELECT input.*, hall FROM halls RIGHT JOIN input USING (machine)",
    "SELECT * FROM input WHERE machine NOT IN (SELECT machine FROM halls)",
    "SELECT *, (SELECT max(hall) FROM halls h WHERE h.machine = input.machine) AS hall FROM input",
    "SELECT * FROM input WHERE _time > TIMESTAMP '2026-01-01 00:00:00' AND hash(machine) % 2 = 0",
    "FROM input |> EXTEND upper(machine) AS up |> WHERE up > 'M'",
    "SELECT *, aes_encrypt(machine, 'abcdefghijklmnop', 'ECB') AS secret FROM input",
    "SELECT *, aes_encrypt(machine, 'abcdefghijklmnop', 'GCM', 'DEFAULT', left(md5(machine), 12)) AS s FROM input",
    "SELECT input.*, h FROM input JOIN (SELECT machine m, max_by(hall, at) h FROM halls GROUP BY 1) ON m = machine",
]
OTHER_TIMES = [
    "SELECT ts AS _time FROM input",
    "SELECT _time + INTERVAL 1 SECOND AS _time FROM input",
    "SELECT _time FROM input UNION ALL SELECT ts FROM input",
    "SELECT _time FROM input UNION ALL SELECT at FROM halls",
    "WITH few AS (SELECT ts AS _time FROM input) SELECT _time FROM few",
    "SELECT coalesce(_time, ts) AS _time FROM input",
]
OTHER_ROWS = {
    "SELECT a.*, b.v - a.v AS used FROM input a LEFT JOIN input b ON a.machine = b.machine": "with other rows of it",
    "SELECT c.* EXCEPT (_time), p._time FROM input c JOIN input p USING (machine)": "with other rows of it",
    "SELECT input.*, n FROM input LEFT JOIN (SELECT machine m, avg(v) n FROM input GROUP BY 1) ON m = machine": "Join",
    "WITH few AS (SELECT * FROM input WHERE v > 1) SELECT a.* FROM few a JOIN few b USING (machine)": "Join",
    "SELECT *, v - (SELECT avg(v) FROM input) AS off FROM input": "in a subquery",
    "SELECT * FROM input WHERE machine IN (SELECT machine FROM input WHERE v > 5)": "in a subquery",
    "SELECT i.*, l.v AS most FROM input i, LATERAL (SELECT max(v) v FROM input j WHERE j.line = i.line) l": "subquery",
    "SELECT input.*, hall FROM input RIGHT JOIN halls USING (machine)": "RIGHT OUTER",
    "SELECT input.*, hall FROM input FULL JOIN halls USING (machine)": "FULL OUTER",
    "SELECT input.*, hall FROM input JOIN (SELECT * FROM halls LIMIT 1) USING (machine)": "a part of a table",
    "SELECT * FROM input ORDER BY v DESC LIMIT 10": "takes a number of rows",
    "SELECT * FROM input TABLESAMPLE (10 PERCENT)": "draws rows at random",
    "SELECT DISTINCT * FROM input": "drops rows that equal others",
    "SELECT _time, count(*) AS n FROM input GROUP BY _time": "groups rows",
    "SELECT *, lag(v) OVER (PARTITION BY machine ORDER BY _time) AS before FROM input": "looks at other rows",
    "SELECT * FROM input EXCEPT SELECT * FROM input WHERE v > 1": "may look at several rows (Except)",
    "SELECT * FROM input WHERE rand() < 0.5": "uses `rand`",
    "SELECT *, uuid() AS id FROM input": "uses `uuid`",
    "SELECT * FROM input WHERE _time > current_timestamp() - INTERVAL 1 DAY": "uses `current_timestamp`",
    "SELECT * FROM input JOIN (SELECT machine FROM halls WHERE at < now()) USING (machine)": "uses `now`",
    "SELECT * FROM input WHERE _time > 'yesterday'": "a time such as 'now' or 'today'",
    "SELECT * FROM input WHERE _time > TIMESTAMP 'today'": "TIMESTAMP 'today'",
    "SELECT * FROM input WHERE _time > TIMESTAMP 'today Europe/Berlin'": "'today Europe/Berlin'",
    "SELECT * FROM input WHERE _time > TIMESTAMP /* so */ r'now'": "r'now'",
    "SELECT * FROM input JOIN (SELECT machine FROM halls WHERE at > (SELECT CAST('today' AS TIMESTAMP))) "
    "USING (machine)": "a time such as 'now' or 'today'",
    "SELECT *, base64(aes_encrypt(machine, 'abcdefghijklmnop')) AS secret FROM input": "uses `aes_encrypt`",
    "SELECT * FROM input WHERE machine IN (SELECT string(aes_encrypt(hall, repeat('k', 16))) FROM halls)": "`aes_encr",
    "SELECT * FROM input WHERE v > most": "uses the variable `most` of the session",
    "SELECT i.*, h FROM input i JOIN (SELECT machine m, first(hall) h FROM halls GROUP BY 1) ON m = machine": "`first`",
}
IN_ANY_ORDER = """max(v) - min(v); sum(v); count(DISTINCT machine); percentile(v, 0.9); approx_percentile(v, 0.9)
max_by(v, _time); min_by(v, struct(_time, machine)); mode(v, true); mode() WITHIN GROUP (ORDER BY v); every(v > 1)
sort_array(collect_list(v)); array_sort(array_agg(v)); array_join(sort_array(collect_set(machine)), ',')
size(collect_set(machine)); array_max(collect_list(v)); listagg(machine, ',') WITHIN GROUP (ORDER BY machine)
array_sort(array_distinct(flatten(collect_list(array(v))))); count_if(v > 1)
transform(array_sort(collect_list(struct(_time, v))), each -> each.v)""".replace("\n", "; ").split("; ")
IN_ONE_ORDER = {
    "first(v)": "uses `first`",
    "last(v)": "uses `last`",
    "any_value(v)": "uses `first`",
    "first(v, true)": "`min_by",
    "first(v) FILTER (WHERE v > 1)": "uses `first`",
    "max(v) - first(v)": "uses `first`",
    "collect_list(v)": "uses `collect_list`",
    "array_join(collect_set(machine), ',')": "Sort it",
    "element_at(array_agg(v), 1)": "uses `collect_list`",
    "listagg(machine, ',')": "WITHIN GROUP",
    "sort_array(slice(collect_list(v), 1, 2))": "Sort it",
    "string_agg(machine)": "uses `string_agg`",
    "mode(v)": "uses `mode`",
    "max(v) > most": "uses the variable `most`",
}


def off_mean(values: pd.Series) -> pd.Series:
    return values - values.mean()


def columns_of_input(spark: SparkSession) -> DataFrame:
    rows = "line string, machine string, v double, ts timestamp, _time timestamp, _from string"
    return source_rows(spark.createDataFrame([], rows))


@pytest.fixture
def variable(spark: SparkSession) -> Iterator[None]:
    """One of the session, whose value other sessions set, or have not."""
    spark.sql("DECLARE VARIABLE most DOUBLE DEFAULT 5")
    yield
    spark.sql("DROP TEMPORARY VARIABLE most")


@pytest.mark.usefixtures("variable")
def test_aggregates_do_not_depend_on_the_order_of_rows(spark: SparkSession) -> None:
    frame = columns_of_input(spark).withColumn("window_start", F.col("_time"))
    windows = source_rows(frame).groupBy("window_start")

    def refusal(made: DataFrame) -> str:
        try:
            check_aggregates(made, "window_start")
        except OtherRows as error:
            return str(error)
        return ""

    def of(expression: str) -> str:
        return refusal(windows.agg(F.expr(expression).alias("x")))

    assert {text: of(text) for text in IN_ANY_ORDER} == dict.fromkeys(IN_ANY_ORDER, "")
    assert not {text: of(text) for text, said in IN_ONE_ORDER.items() if said not in of(text)}
    spark_sql = "SELECT window_start, {0} OVER (PARTITION BY window_start{1}) AS x FROM {{rows}}"
    for value, order, said in (
        ("first_value(v)", " ORDER BY _time", ""),
        ("collect_list(v)", " ORDER BY _time", ""),
        ("max(v)", "", ""),
        ("first_value(v)", "", "uses `first_value`"),
        ("collect_list(v)", "", "uses `collect_list`"),
    ):
        made = spark.sql(spark_sql.format(value, order), rows=source_rows(frame))
        assert (refusal(made) == said) if not said else (said in refusal(made)), (value, order)
    rows = source_rows(frame)
    assert refusal(rows.dropDuplicates().groupBy("window_start").count()) == ""
    few = rows.dropDuplicates(["window_start", "machine"])
    assert "keeps one of the rows" in refusal(few.groupBy("window_start").sum("v"))
    assert refusal(rows.select("window_start", "machine").dropDuplicates().groupBy("window_start").count()) == ""


@pytest.mark.usefixtures("variable")
def test_steps_before_windows_look_at_one_row_with_its_own_time(spark: SparkSession) -> None:
    frame = columns_of_input(spark)
    halls = {"halls": spark.createDataFrame([], "machine string, hall string, at timestamp")}

    def refusal(text: str) -> str:
        try:
            check_text(text)
            check_rows(select(text, frame, halls, ()), ["_time"])
        except (OtherRows, OtherTime) as error:
            return str(error)
        return ""

    assert {text: refusal(text) for text in APART} == dict.fromkeys(APART, "")
    for text in OTHER_TIMES:
        assert refusal(text).startswith("makes a _time that is not the source's own"), text
    assert not {text: refusal(text) for text, said in OTHER_ROWS.items() if said not in refusal(text)}


def test_steps_of_python_before_windows_look_at_one_row(spark: SparkSession) -> None:
    frame = columns_of_input(spark)
    plain, batches = F.udf(len, "int"), F.pandas_udf(off_mean, "double")

    def refusal(made: DataFrame) -> str:
        try:
            check_rows(made, ["_time"])
        except (OtherRows, OtherTime) as error:
            return str(error)
        return ""

    for apart in (
        frame.withColumn("n", plain("machine")).na.fill(0).where("n > 1"),
        frame.where("v > 1").union(frame.where("v <= 1")).repartition(2),
        frame.select("_time", "v").unpivot("_time", ["v"], "name", "value"),
    ):
        assert refusal(apart) == ""
    for made, said in (
        (frame.withColumn("n", plain.asNondeterministic()("machine")), "uses `len`"),
        (frame.withColumn("off", batches("v")), "with batches of rows"),
        (frame.withColumn("_time", F.col("ts").alias("_time", metadata=frame.schema["_time"].metadata)), "a _time"),
        (frame.mapInArrow(lambda batches: batches, frame.schema), "in batches"),
        (frame.dropDuplicates(["machine"]), "drops rows that equal others"),
        (frame.sampleBy("machine", {"m1": 0.5}), "uses `rand`"),
        (frame.localCheckpoint(), "a _time"),
        (frame.sparkSession.createDataFrame([], frame.schema), "a _time"),
    ):
        assert said in refusal(made)


def test_the_columns_of_each_step_are_shown(place: dict[str, str], spark: SparkSession) -> None:
    text = steps("{name: named, sql: 'SELECT _from, machine, 1.5D AS x FROM input'}", "sql: SELECT x FROM named")
    report = checked(text, place, spark)
    assert report.is_good
    assert [(step.step, [*step.columns]) for step in report.steps[1:]] == [
        ("step 1 (named)", ["_from", "machine", "x"]),
        ("step 2", ["x"]),
    ]
    assert report.steps[-1].columns == {"x": "double"}
    assert {"_shard": "int", "_offset": "bigint"}.items() <= report.steps[0].columns.items()
    (doubt,) = report.warnings
    assert doubt.message.startswith("loses _from")


def test_an_int_fits_a_table_of_longs(place: dict[str, str], spark: SparkSession) -> None:
    text = SOURCE + TABLE.replace("<dir>/table", "{path: <dir>/parted, partition_by: [line]}")
    assert not checked(text, place, spark).errors


@pytest.mark.parametrize("checkpoint", ["t", "t/c", "."])
def test_a_checkpoint_in_the_folder_of_the_table(checkpoint: str, place: dict[str, str]) -> None:
    """VACUUM deletes what it does not know in a table's folder."""
    with pytest.raises(ConfigError, match=r"checkpoint: and the table are one folder"):
        loaded(SOURCE + f"sink: {{delta: <dir>/t}}\ncheckpoint: <dir>/{checkpoint}\n", place)


def test_a_checkpoint_of_another_store_is_refused(place: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    text = SOURCE + f"sink: {{delta: <dir>/t}}\ncheckpoint: {tmp_path}/checkpoint\n"
    (offsets / "7").write_text('v1\n{}\n{"0":99999,"1":0,"2":0,"3":0}')
    (finding,) = checked(text, place, spark).errors
    assert "past the end of the log" in finding.message
    (offsets / "8").write_text('v1\n{}\n{"logOffset":3}\n{"0":1}')
    (finding,) = checked(text, place, spark).errors
    assert "is the checkpoint of another query: it has 2 sources" in finding.message


@pytest.mark.slow
@pytest.mark.parametrize("windows", [False, True], ids=["rows", "windows"])
def test_a_checkpoint_whose_table_is_gone_is_refused(
    windows: bool, place: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    delta = f"delta: {{path: {tmp_path}/t, mode: {'upsert' if windows else 'append'}}}"
    steps = WINDOWS.replace("every: 1h", "every: 1s") + "complete: {grace: 1s}\n" if windows else SOURCE
    text = f"{steps}sink: {{{delta}}}\ncheckpoint: {tmp_path}/c\n"
    start(loaded(text, place).config, spark, once=True).awaitTermination()
    assert not checked(text, place, spark).errors
    (tmp_path / "t").rename(tmp_path / "away")
    (finding,) = checked(text, place, spark).errors
    assert finding.path == ("sink", "delta", "path")
    assert finding.message.startswith(f"there is no table {tmp_path}/t, and checkpoint {tmp_path}/c is of a pipeline")


@pytest.mark.slow
def test_windows_of_another_length_or_definition_in_the_checkpoint_are_refused(
    place: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    text = (WINDOWS + HOURS).replace("<dir>/c", str(tmp_path / "c"))
    start(loaded(text, place).config, spark, once=True).awaitTermination()
    assert not checked(text, place, spark).errors
    (finding,) = checked(text.replace("every: 1h", "every: 30m"), place, spark).errors
    assert finding.path == ("checkpoint",)
    assert "the sink has windows of 3600 s, and this query makes windows of 1800 s" in finding.message
    edited = text.replace("n: count(*)", "n: count(payload)").replace(
        "stream: telemetry", "stream: telemetry, keys: [a]"
    )
    (finding,) = checked(edited, place, spark).errors
    assert finding.path == ("checkpoint",)
    assert finding.message.startswith("emit and source.keys changed since the sink's windows were written")
    assert not check(loaded(edited, place).config, spark, if_changed="recompute").errors
    assert not checked(text + "trigger: 5s\n", place, spark).errors


@pytest.mark.parametrize(
    ("wrong", "setting", "message"),
    [
        ("{_complete: count(*)}", "emit._complete", "_complete is a column that every window has"),
        ("{Machine: max(line)}", "emit.Machine", "Machine is in `by` already"),
        ("{n: count(*), N: max(line)}", "emit.N", "N is in `emit` already"),
    ],
)
def test_a_column_of_windows_that_hides_another(wrong: str, setting: str, message: str, place: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        loaded((WINDOWS + HOURS).replace("{n: count(*)}", wrong), place)
    assert format_path(error.value.problems[0].path) == f"steps[0].window.{setting}"


@pytest.mark.parametrize("by", ["[machine, machine]", "[machine, window_start]"])
def test_a_group_that_is_named_twice(by: str, place: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"Remove it"):
        loaded((WINDOWS + HOURS).replace("[machine]", by), place)


def test_windows_are_ordered_by_their_log_in_a_pipeline_as_in_python(place: dict[str, str]) -> None:
    text = WINDOWS + HOURS
    for order_by in ("[_log_end]", "[_log_end, n]", "[n]"):
        given = text.replace("upsert", f"upsert, order_by: {order_by}")
        if order_by == "[_log_end]":
            sink = make_sink(loaded(given, place).config)
            assert isinstance(sink, DeltaSink)
            assert sink.order_by == ("_log_end",)
            continue
        with pytest.raises(ConfigError, match=r"order_by: expected _log_end, by which windows replace each other; got"):
            loaded(given, place)


def test_windows_by_keys_that_let_one_replace_another(place: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"keys: expected window_start, machine, .* got machine\b"):
        loaded((WINDOWS + HOURS).replace("upsert", "upsert, keys: [machine]"), place)
    loaded((WINDOWS + HOURS).replace("upsert", "upsert, keys: [machine, window_start]"), place)


def test_all_edges_and_some(place: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"complete\.edges: expected `all`, or names"):
        loaded(WINDOWS + HOURS + "complete: {edges: [all, press-1]}\n", place)


def test_a_source_that_ends_at_a_moment(place: dict[str, str]) -> None:
    """A day is filled in again without what came later."""
    day = SOURCE.replace("telemetry}", "telemetry, since: 2026-11-01, until: 2026-11-02}")
    options = Context(loaded(day + CONSOLE, place).config).options()
    assert (options["since"], options["until"]) == ("2026-11-01", "2026-11-02")
    with pytest.raises(ConfigError, match=r"source\.until: expected a time such as"):
        loaded(day.replace("2026-11-02", "tomorrow") + CONSOLE, place)
    with pytest.raises(ConfigError, match=r"source\.until: cuts the last window"):
        loaded(WINDOWS.replace("telemetry}", "telemetry, until: 2026-11-02}") + HOURS, place)


def test_windows_wait_for_records_that_a_peer_may_have(place: dict[str, str]) -> None:
    assert not rule_of(loaded(WINDOWS + HOURS, place).config).peers
    assert rule_of(loaded(WINDOWS + HOURS + "complete: {peers: true}\n", place).config).peers


def test_options_that_aliases_blow_up(place: dict[str, str]) -> None:
    doubled = "".join(f"      a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 14))
    text = SOURCE + "steps:\n  - python: plant_steps:warm\n    options:\n      a0: &a0 [1]\n" + doubled + CONSOLE
    with pytest.raises(ConfigError, match="is one value too many: at most 10000 are allowed here"):
        loaded(text, place)
