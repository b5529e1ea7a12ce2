"""Steps and aggregates made at random of Spark's functions and operators: those that the check lets through make the
same windows in one run as in many, and of rows in any order."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_sinks import complete_windows
from spark_sinks.completeness.row_steps import (
    OtherRows,
    OtherTime,
    check_aggregates,
    check_rows,
    check_text,
    source_rows,
)
from tests.spark_sinks.completeness.conftest import EDGES, MIDNIGHT, PER_HOUR, SECOND, STREAM, Fleet
from tests.support.outcomes import outcome
from tests.support.slices import SLICE

FAILURES = (PySparkException, Py4JJavaError)
"""Errors of a query; PySpark leaves some as they came from Java."""
CHAINS = SLICE.amount(ci=6, night=120)
"""Number of chains of steps that are made; the check lets a third of them through."""
AGGREGATES = SLICE.amount(ci=60, night=1000)
"""Number of aggregates that are made; the check lets half of them through."""
MAY_DIFFER = re.compile(r"\b(?:max_by|min_by|approx_top_k\w*|histogram_numeric|kll_\w+|tuple_\w+|nth_value)\b")
"""Aggregates that docs/how-to/complete-windows.md says may differ, which few rows show: by ties, or approximate."""
AT_ONCE = 40
"""Number of chains of one query."""
TRIES = 6
"""Number of steps that are tried until Spark takes one."""
COLUMNS = ("machine", "_edge", "_seq", "v", "_time", "_received", "payload", "array(v, _seq)", "map(machine, v)")
LITERAL = re.compile(r"'[^']*'|\b\d+(?:\.\d+)?\b|\b(?:col|[abcxy])\d?\b")
HALLS = "SELECT * FROM VALUES ('m0', 'north'), ('m1', 'south'), ('m1', 'west') AS halls(machine, hall)"
JOINS = ("INNER", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI", "CROSS")
STEPS = (
    *["SELECT *, {value} AS x{n} FROM {{rows}}"] * 20,
    *["SELECT * FROM {{rows}} WHERE {some}"] * 6,
    "SELECT * FROM {{rows}} UNION ALL SELECT * FROM {{rows}} WHERE {some}",
    "SELECT *, explode(sequence(0, _seq % 3)) AS x{n} FROM {{rows}}",
    "SELECT *, stack(2, v, _seq) AS x{n} FROM {{rows}}",
    "SELECT *, inline(array(named_struct('x{n}', v), named_struct('x{n}', _seq))) FROM {{rows}}",
    "SELECT * FROM {{rows}} LATERAL VIEW OUTER posexplode(array({value}, {value})) AS x{n}, x{n}b",
    "SELECT r.* FROM {{rows}} r {join} JOIN {{halls}} h ON h.machine = r.machine",
    "SELECT r.*, h.hall AS x{n} FROM {{rows}} r {join} JOIN {{halls}} h ON h.machine = r.machine",
    "SELECT r.*, h.hall AS x{n} FROM {{halls}} h {join} JOIN {{rows}} r ON h.machine = r.machine",
    "SELECT r.*, p.v AS x{n} FROM {{rows}} r {join} JOIN {{rows}} p ON r._edge = p._edge AND r._seq = p._seq + 1",
    "SELECT p.* EXCEPT (window_start), r.window_start FROM {{rows}} r JOIN {{rows}} p ON r._seq = p._seq + 6",
    "SELECT *, (SELECT {group} FROM {{rows}}) AS x{n} FROM {{rows}}",
    "SELECT *, (SELECT {group} FROM (SELECT machine, 1 AS v, 2 AS _seq FROM {{halls}})) AS x{n} FROM {{rows}}",
    "SELECT *, (SELECT max(hall) FROM {{halls}} h WHERE h.machine = r.machine) AS x{n} FROM {{rows}} r",
    "SELECT * FROM {{rows}} WHERE _seq IN (SELECT 2 * _seq FROM {{rows}} WHERE {some})",
    "SELECT * FROM {{rows}} WHERE machine NOT IN (SELECT machine FROM {{halls}} WHERE {some})",
    "SELECT r.*, l.x AS x{n} FROM {{rows}} r, LATERAL (SELECT {value} AS x) l",
    "SELECT r.*, l.x AS x{n} FROM {{rows}} r, LATERAL (SELECT count(*) AS x FROM {{halls}} h WHERE hall > r.machine) l",
    "SELECT *, {group} OVER (PARTITION BY machine ORDER BY _time) AS x{n} FROM {{rows}}",
    "SELECT *, lag(v) OVER (PARTITION BY _edge ORDER BY _seq) AS x{n} FROM {{rows}}",
    "SELECT window_start, window_end, machine, v, _seq, {group} AS x{n} FROM {{rows}} GROUP BY 1, 2, 3, 4, 5",
    "SELECT * FROM {{rows}} ORDER BY v DESC",
    "SELECT * FROM {{rows}} ORDER BY v DESC LIMIT 10",
    "SELECT * FROM {{rows}} LIMIT 10 OFFSET 2",
    "SELECT * FROM {{rows}} TABLESAMPLE (50 PERCENT) REPEATABLE (7)",
    "SELECT /*+ REPARTITION(3) */ * FROM {{rows}}",
    "SELECT DISTINCT * FROM {{rows}}",
    "SELECT * FROM {{rows}} EXCEPT SELECT * FROM {{rows}} WHERE {some}",
    "SELECT * EXCEPT (window_start), window_start + INTERVAL 1 HOUR AS window_start FROM {{rows}}",
    "SELECT * EXCEPT (machine), upper(machine) AS machine FROM {{rows}}",
    "WITH few AS (SELECT * FROM {{rows}} WHERE {some}) SELECT * FROM few UNION ALL SELECT * FROM few",
)


class Chains:
    """Chains of steps, of the examples that Spark has of its functions: some of their values become columns."""

    def __init__(self, seed: int, spark: SparkSession) -> None:
        self._random = random.Random(seed)
        self._spark = spark
        names = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
        self._functions = [name for name in names if name.isidentifier() and name != "raise_error"]

    def chain(self, rows: DataFrame, halls: DataFrame) -> list[str]:
        """A chain that Spark takes; it may have no step."""
        found: list[str] = []
        for number in range(self._random.randint(1, 3)):
            for _ in range(TRIES):
                step = self._step(number)
                try:
                    rows = applied([step], rows, halls)
                except PySparkException:
                    continue
                found.append(step)
                break
        return found

    def _step(self, number: int) -> str:
        draw = self._random
        some, group = f"xxhash64(to_json(struct({self._value()}))) % 3 != 0", self._value()
        return draw.choice(STEPS).format(value=self._value(), join=draw.choice(JOINS), n=number, some=some, group=group)

    def aggregates(self) -> Iterator[str]:
        """Aggregates without an end, of one function after the other."""
        found = [name for name in self._functions if ".aggregate." in self._about(name)]
        while True:
            yield from map(self._value, self._random.sample(found, len(found)))

    def _about(self, name: str) -> str:
        return "\n".join(row[0] for row in self._spark.sql(f"DESCRIBE FUNCTION EXTENDED {name}").collect())

    def _value(self, name: str | None = None) -> str:
        draw = self._random
        text = self._about(name or draw.choice(self._functions))
        examples = [each.partition(" FROM ")[0] for each in re.findall(r"> SELECT (.*);", text)]
        example = draw.choice(examples or ["v"]).replace("{", "{{").replace("}", "}}")
        return LITERAL.sub(lambda found: draw.choice((*COLUMNS, *[found[0]] * 12)), example)


def applied(chain: list[str], rows: DataFrame, halls: DataFrame) -> DataFrame:
    for text in chain:
        rows = rows.sparkSession.sql(text, rows=rows, halls=halls)
    return rows


def made_of(chain: list[str], rows: DataFrame, halls: DataFrame, number: int) -> DataFrame:
    """The rows of a chain, with one value that all its columns have a part in."""
    found = applied(chain, rows, halls)
    names = ["v", *(name for name in found.columns if name.startswith("x"))]
    value = f"CAST(xxhash64(to_json(struct({', '.join(names)}))) AS DECIMAL(38, 0)) AS value"
    return found.selectExpr("window_start", "window_end", "machine", f"{number} AS chain", value)


def let_through(chains: Chains, rows: DataFrame, halls: DataFrame) -> Iterator[list[str]]:
    """Chains that the check lets through, of those that Spark can run.

    Args:
        rows: have what the rows of the fleet have, so that a value with which a function fails is found.
    """
    for _ in range(CHAINS):
        chain = chains.chain(rows, halls)
        try:
            for text in chain:
                check_text(text)
            made = made_of(chain, source_rows(rows), halls, 0)
            check_rows(made, ["window_start", "window_end"])
            made.collect()
        except (OtherRows, OtherTime, *FAILURES):
            continue
        yield chain


def windows(
    spark: SparkSession, fleet: Fleet, chains: list[list[str]], state: Path | None, found: dict[Any, Row]
) -> None:
    halls = spark.sql(HALLS)

    def prepare(rows: DataFrame) -> DataFrame:
        rows = rows.selectExpr("*", "CAST(CAST(payload AS STRING) AS BIGINT) AS v")
        return reduce(DataFrame.union, (made_of(chain, rows, halls, number) for number, chain in enumerate(chains)))

    def sink(frame: DataFrame, batch_id: int) -> None:
        found.update({(row.window_start, row.machine, row.chain): row for row in frame.collect()})

    complete_windows(
        spark,
        STREAM,
        store=fleet.root,
        every="1h",
        by=["machine", "chain"],
        prepare=prepare,
        sink=sink,
        aggregate={"n": "count(*)", "total": "sum(value)"},
        checkpoint=state,
        trigger=None,
    ).awaitTermination()


def is_let_through(made: DataFrame) -> bool:
    try:
        check_aggregates(made, "window_start")
    except OtherRows:
        return False
    return True


def results(rows: DataFrame, aggregates: list[str]) -> dict[str, str]:
    """The results of aggregates, without those that fail with these rows."""
    columns = [F.to_json(F.struct(F.expr(text))).alias(str(at)) for at, text in enumerate(aggregates)]
    try:
        return dict(zip(aggregates, rows.agg(*columns).collect()[0], strict=True))
    except FAILURES:
        half = len(aggregates) // 2
        return results(rows, aggregates[:half]) | results(rows, aggregates[half:]) if half else {}


def differs(text: str, given: list[dict[str, str]]) -> bool:
    """Whether an aggregate has several results, but for the last digits of sums of doubles."""

    def rounded(number: re.Match[str]) -> str:
        value = float(number[0])
        return f"{value:.8g}" if abs(value) > 1e-9 else "0"  # what cancels out leaves the last digits alone

    return len({re.sub(r"-?\d+\.\d+(?:E-?\d+)?", rounded, str(each.get(text))) for each in given}) > 1


def sample_of(spark: SparkSession) -> DataFrame:
    taken_in = [f"('{edge}', {number})" for edge in EDGES for number in range(3 * PER_HOUR)]
    moments = ", ".join(
        f"timestamp_seconds({MIDNIGHT // SECOND} + 600 * n) AS {name}"
        for name in ("window_start", "window_end", "_time", "_received")
    )
    others = "concat('m', n % 2) AS machine, edge AS _edge, bigint(n) AS _seq, binary(string(n)) AS payload"
    return spark.sql(f"SELECT {moments}, {others}, bigint(n) AS v FROM VALUES {', '.join(taken_in)} AS t(edge, n)")


@pytest.fixture
def lenient(spark: SparkSession) -> Iterator[None]:
    """An odd argument of a function is null, and no end of the query."""
    ansi = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    yield
    spark.conf.set("spark.sql.ansi.enabled", ansi)


@pytest.mark.search
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("lenient")
def test_aggregates_that_are_let_through_are_the_same_for_rows_in_any_order(spark: SparkSession) -> None:
    sample = sample_of(spark).withColumn("window_start", F.lit("all"))
    rows, draw = sample.collect(), random.Random(SLICE.seed)
    orders = [spark.createDataFrame(draw.sample(rows, len(rows)), sample.schema).coalesce(1) for _ in range(3)]
    known: dict[str, bool] = {}
    for text in islice(Chains(SLICE.seed, spark).aggregates(), AGGREGATES):
        if not MAY_DIFFER.search(text):
            with suppress(PySparkException):
                made = source_rows(sample).groupBy("window_start").agg(F.expr(text).alias("x"))
                known[text] = is_let_through(made)
    given = [results(frame, [*known]) for frame in orders]
    different = {let: [text for text in known if known[text] is let and differs(text, given)] for let in (True, False)}
    with outcome():
        assert different[True] == []
    assert different[False], "what is refused would be found"


@pytest.mark.search
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("lenient")
def test_steps_that_are_let_through_make_the_same_windows_in_one_run_as_in_many(
    spark: SparkSession, tmp_path: Path
) -> None:
    sample = sample_of(spark)
    halls = spark.sql(HALLS)
    chains = list(let_through(Chains(SLICE.seed, spark), sample, halls))
    for first in range(0, len(chains), AT_ONCE):
        fleet, state = Fleet(str(tmp_path / f"hub-{first}")), tmp_path / f"state-{first}"
        _compare(spark, fleet, chains[first : first + AT_ONCE], state)


def _compare(spark: SparkSession, fleet: Fleet, chains: list[list[str]], state: Path) -> None:
    many: dict[Any, Row] = {}
    for hour, edges in enumerate((EDGES, EDGES[:2], EDGES)):
        fleet.hours(hour, hour + 1, edges)
        windows(spark, fleet, chains, state, many)
    one: dict[Any, Row] = {}
    windows(spark, fleet, chains, None, one)
    with outcome():
        for key in one | many:
            given = [(each[key].n, each[key].total, each[key]._complete) for each in (one, many) if key in each]
            assert given == [given[0]] * 2, (chains[key[2]], key)
            assert given[0][2], key
