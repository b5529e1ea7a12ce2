"""``weft spark test``: sample rows in, the difference from expected rows out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from spark_sinks.pipelines.sample import BadRows, compared, read_rows, sample_table
from weft.cli import cli
from weft.commands import spark as pipeline_test
from weft.config.load import parse
from weft.config.pipelines import Pipeline, check_pipeline

pytestmark = pytest.mark.spark
Weft = Callable[..., Result]
WARM = """\
name: warm
source: {store: nowhere, stream: telemetry, schema: {fields: {t: float, at: timestamp(ms)}}}
tables: {machines: {csv: machines.csv, columns: {limit: float}}}
steps:
  - sql: SELECT _shard, _offset, _from, _time, machine, t, _misfit FROM input
  - sql: SELECT input.*, name FROM input JOIN machines USING (machine) WHERE t > limit
sink: {delta: warm}
checkpoint: c
"""
MINUTES = """\
name: minutes
source: {store: nowhere, streams: [ovens, presses], schema: {fields: {t: float}}}
steps:
  - {mode: batch, sql: 'SELECT _stream, max(t) AS hottest, count(*) AS n, max(_time) AS last FROM input GROUP BY 1'}
sink: {console: {}}
"""
HOURS = """\
name: hours
source: {store: nowhere, stream: telemetry, schema: {fields: {t: float}}}
steps: [{window: {every: 1h, by: [machine], emit: {mean: avg(t)}}}]
sink: {console: {}}
"""


@pytest.fixture
def weft(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Weft:
    @contextmanager
    def shared(*_: Any) -> Iterator[SparkSession]:
        yield spark

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, ["spark", "test", *arguments], standalone_mode=False)

    monkeypatch.setattr(pipeline_test, "spark_session", shared)
    monkeypatch.chdir(tmp_path)
    return run


def lines(path: str, *rows: dict[str, Any]) -> None:
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_a_pipeline_with_a_table_is_tested_without_a_store(weft: Weft) -> None:
    Path("warm.yaml").write_text(WARM)
    Path("machines.csv").write_text("machine,limit,name\nm1,20,Anna\nm2,50,Berta\n")
    lines(
        "in.jsonl",
        {"machine": "m1", "payload": {"t": 21.5}, "_time": "2026-03-01T06:00:00Z"},
        {"machine": "m1", "payload": {"t": "hot"}},
        {"machine": "m2", "t": 50.5},
        {"machine": "m1", "t": 3},
    )
    made = weft("warm.yaml", "--input", "in.jsonl")
    assert made.return_value == 0, made.output
    rows = [json.loads(line) for line in made.stdout.splitlines()]
    assert [(row["machine"], row["t"], row["name"], row["_offset"]) for row in rows] == [
        ("m1", 21.5, "Anna", 0),
        ("m2", 50.5, "Berta", 2),
    ]
    assert rows[0]["_time"] == "2026-03-01T06:00:00Z"
    Path("expected.jsonl").write_text("\n".join(reversed(made.stdout.splitlines())))
    assert weft("warm.yaml", "--input", "in.jsonl", "--expected", "expected.jsonl").stdout == "2 rows as expected\n"

    lines("expected.jsonl", {"machine": "m1", "t": 21.5}, {"machine": "m1", "t": 99})
    differs = weft("warm.yaml", "--input", "in.jsonl", "--expected", "expected.jsonl")
    assert differs.return_value == 1
    assert differs.stdout.splitlines() == [
        '- {"machine": "m1", "t": 99.0}',
        '+ {"machine": "m2", "t": 50.5}',
        "1 row as expected, 1 missing (-), 1 not expected (+)",
    ]
    answer = json.loads(weft("warm.yaml", "--input", "in.jsonl", "--expected", "expected.jsonl", "--json").stdout)
    assert (answer["good"], answer["same"], len(answer["missing"])) == (False, 1, 1)
    assert not Path("warm").exists()
    assert not Path("c").exists()


def test_rows_of_several_streams_come_from_csv_and_parquet(weft: Weft) -> None:
    Path("minutes.yaml").write_text(MINUTES)
    Path("ovens.csv").write_text("_time,oven,t\n2026-03-01T06:00:00,o1,180\n2026-03-01T06:00:01+01:00,o1,\n")
    pq.write_table(pa.table({"press": ["p1"], "t": [0.1 + 0.2]}), "presses.parquet")
    Path("expected.csv").write_text("_stream,hottest,n,last\novens,180,2,2026-03-01T06:00:00Z\n")
    given = ("minutes.yaml", "--input", "ovens=ovens.csv", "--input", "presses=presses.parquet")
    done = weft(*given, "--expected", "expected.csv")
    assert done.stdout.splitlines()[0] == (
        '+ {"_stream": "presses", "hottest": 0.3, "n": 1, "last": "2026-01-01T00:00:00Z"}'
    ), done.output
    assert done.stdout.splitlines()[1:] == ["1 row as expected, 0 missing (-), 1 not expected (+)"]
    refused = weft("minutes.yaml", "--input", "ovens.csv")
    assert "expected STREAM=FILE with one of ovens, presses" in str(refused.exception)


def test_windows_of_a_sample_are_complete(weft: Weft) -> None:
    Path("hours.yaml").write_text(HOURS)
    lines("in.jsonl", *({"machine": "m1", "t": t, "_time": f"2026-03-01T0{6 + t // 3}:30:00Z"} for t in range(6)))
    lines(
        "expected.jsonl",
        *({"window_start": f"2026-03-01T0{6 + n}:00:00Z", "mean": 1 + 3 * n, "_complete": True} for n in (0, 1)),
    )
    done = weft("hours.yaml", "--input", "in.jsonl", "--expected", "expected.jsonl")
    assert (done.return_value, done.stdout) == (0, "2 rows as expected\n"), done.output


def test_a_mistake_in_a_step_has_its_line(weft: Weft) -> None:
    Path("hours.yaml").write_text(HOURS.replace("avg(t)", "avg(temp)"))
    lines("in.jsonl", {"machine": "m1", "t": 1})
    done = weft("hours.yaml", "--input", "in.jsonl")
    assert str(done.exception).startswith("hours.yaml:3: steps[0].window.emit.mean: there is no column temp here")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("a.jsonl", "{", r"a\.jsonl:1: expected a row as a JSON object: "),
        ("a.jsonl", "[1]", r"a\.jsonl:1: expected a row as a JSON object such as"),
        ("a.csv", "", r"a\.csv: Empty CSV file"),
        ("a.txt", "", r"a\.txt: expected a file \.jsonl, \.csv or \.parquet"),
        ("b.csv", None, r"b\.csv: No such file"),
        ("a.parquet", "x", r"a\.parquet: "),
    ],
)
def test_a_file_that_is_no_sample(file: str, text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / file
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadRows, match=said) as error:
        read_rows(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"t": "hot"}, "row 1 of telemetry: t: expected double, got 'hot'"),
        ({"limit": 3}, r"row 1 of telemetry: limit: expected string, got '3'\. Declare it in source\.schema"),
        ({"_time": "today"}, "row 1 of telemetry: _time: expected timestamp"),
        ({"_seq": 1.5}, "row 1 of telemetry: _seq: expected int64, got '1.5'$"),
    ],
)
def test_a_value_that_does_not_fit_its_column(row: dict[str, Any], said: str) -> None:
    pipeline = parse(HOURS, "hours.yaml", Pipeline, check_pipeline).config
    with pytest.raises(BadRows, match=said):
        sample_table(pipeline, {"telemetry": [row]})


def test_rows_are_compared_by_their_values() -> None:
    made = pa.table(
        {
            "d": pa.array([Decimal("1.50")], pa.decimal128(6, 2)),
            "l": pa.array([[1.0, None]], pa.list_(pa.float64())),
            "s": pa.array([{"a": 1}], pa.struct([("a", pa.int64())])),
            "b": pa.array([b"x"]),
            "n": pa.array([float("nan")]),
        }
    )
    same = {"d": 1.5, "l": [1, None], "s": {"a": 1}, "b": "x", "n": "nan"}
    assert compared(made, [same]) == (1, [], [])
    assert compared(made, [same, same]).missing == [
        '{"d": "1.50", "l": [1.0, null], "s": {"a": 1}, "b": "x", "n": "nan"}'
    ]
    assert compared(made, [{"d": "1.50", "l": "[1, null]"}]) == (1, [], [])
    with pytest.raises(BadRows, match=r"column x is not made by the last step\. It makes d, l, s, b, n"):
        compared(made, [{"x": 1}])
    with pytest.raises(BadRows, match="expected row 1: s: expected struct"):
        compared(made, [{"s": [1]}])
