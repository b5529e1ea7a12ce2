"""SQL as people write it: comments, semicolons, quotes, common table expressions."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark_sinks.pipelines.catalog import PipelineError, one_statement
from spark_sinks.pipelines.steps import select

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
