"""Rows into a real PostgreSQL: exactly once, by keys, whole, and without a password where it can be read."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from spark_sinks.errors import SinkError
from spark_sinks.replaced import Replaced
from spark_sinks.sinks import JdbcSink
from tests.spark_sinks.conftest import STREAM, Hub
from tests.support.postgresql import PASSWORD, PostgreSql, needs_postgresql, postgresql

psycopg = pytest.importorskip("psycopg")
pytestmark = [pytest.mark.spark, needs_postgresql]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with postgresql() as running:
        yield running


class Database:
    """A schema of a test's own, and what is in it."""

    def __init__(self, server: PostgreSql, schema: str) -> None:
        self.server, self.schema = server, schema
        self.run(f"CREATE SCHEMA {schema}")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        address = self.server.url.removeprefix("jdbc:")
        with psycopg.connect(address, password=PASSWORD) as connection:
            done = connection.execute(statement.replace("$", f"{self.schema}."))
            return done.fetchall() if done.description else []

    def sink(self, table: str = "readings", **arguments: Any) -> JdbcSink:
        return JdbcSink(self.server.url, f"{self.schema}.{table}", **arguments)


@pytest.fixture
def database(server: PostgreSql, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    return Database(server, f"t{abs(hash(request.node.name))}")


def rows(spark: SparkSession, *offsets: tuple[int, int]) -> DataFrame:
    found = [(shard, offset, f"{shard}-{offset}") for shard, offset in offsets]
    return spark.createDataFrame(found, "_shard int, _offset long, text string")


@pytest.mark.slow
def test_rows_are_appended_once_whatever_the_batches_are(spark: SparkSession, database: Database) -> None:
    """A lost checkpoint gives the same records in other batches, under batch ids that were used before."""
    sink = database.sink(name="copy")
    sink(rows(spark, (0, 0), (0, 1), (1, 0)), 0)
    sink(rows(spark, (0, 0), (0, 1), (1, 0)), 0)
    sink(rows(spark, (0, 2), (0, 2)), 1)  # two rows of one record
    sink(rows(spark, (0, 0), (0, 1), (0, 2), (0, 2), (0, 3), (1, 0), (1, 1)), 0)
    found = database.run("SELECT text FROM $readings ORDER BY _shard, _offset")
    assert [text for (text,) in found] == ["0-0", "0-1", "0-2", "0-2", "0-3", "1-0", "1-1"]
    assert database.run("SELECT query, target, shard, next_offset FROM $weft_positions ORDER BY shard") == [
        ("copy", "readings", 0, 4),
        ("copy", "readings", 1, 2),
    ]


@pytest.mark.slow
def test_another_table_and_one_that_was_dropped_get_all_rows(spark: SparkSession, database: Database) -> None:
    """Positions are those of a table: what one has says nothing of what another one has."""
    frame = rows(spark, (0, 0), (0, 1))
    database.sink(name="copy")(frame, 0)
    database.sink("more", name="copy")(frame, 0)
    assert database.run("SELECT count(*) FROM $more") == [(2,)]
    database.run("DROP TABLE $readings")
    for _ in range(2):
        database.sink(name="copy")(frame, 0)
    assert database.run("SELECT count(*) FROM $readings") == [(2,)]


def test_a_table_that_was_dropped_beside_the_checkpoint_is_not_made_with_a_hole(
    spark: SparkSession, database: Database
) -> None:
    sink = database.sink(name="copy")
    sink(rows(spark, (0, 0), (0, 1)), 0)
    database.run("DROP TABLE $readings")
    with pytest.raises(SinkError, match=r"readings is gone, and query copy has written earlier batches .* checkpoint"):
        sink(rows(spark, (0, 2)), 1)
    assert database.run("SELECT to_regclass('$readings')") == [(None,)]
    sink(rows(spark, (0, 0), (0, 1), (0, 2)), 0)
    assert database.run("SELECT count(*) FROM $readings") == [(3,)]


def test_a_batch_that_fails_leaves_nothing(spark: SparkSession, database: Database) -> None:
    sink = database.sink(name="copy")
    sink(rows(spark, (0, 0)), 0)
    database.run("ALTER TABLE $readings ADD CHECK (text <> '0-2')")
    with pytest.raises(SinkError, match="violates check constraint"):
        sink(rows(spark, (0, 1), (0, 2)), 1)
    assert database.run("SELECT count(*) FROM $readings") == [(1,)]
    assert database.run("SELECT next_offset FROM $weft_positions") == [(1,)]


@pytest.mark.java
def test_every_type_arrives_whole(spark: SparkSession, database: Database) -> None:
    schema = (
        "_shard int, _offset long, text string, bytes binary, time timestamp, day date, price decimal(20,6), "
        "yes boolean, small short, tiny byte, single float, double double, headers map<string,string>,"
        "_from array<struct<edge:string,first:bigint>>"
    )
    nasty = 'a "quoted", ; \\.\n\\.\nline ☃ \\N'
    time = datetime(2026, 11, 1, 12, 0, 0, 123457, tzinfo=UTC)
    full = [
        0,
        0,
        nasty,
        b"\x00\xff\\",
        time,
        date(1969, 12, 31),
        Decimal("12345678901234.000001"),
        True,
        -5,
        7,
        0.1,
        float("nan"),
        {"k": 'v"\\u0000\0'},
        [Row(edge="e", first=1)],
    ]
    empty = [0, 1, "", b"", datetime(1960, 1, 1, tzinfo=UTC), None, None, None, None, None, None, None, None, []]
    nul = [0, 2, "a\0b", *[None] * 11]
    database.sink(name="types")(spark.createDataFrame([full, empty, nul], schema), 0)
    got, second, third = database.run("SELECT * FROM $readings ORDER BY _offset")
    assert got[2:9] == (nasty, b"\x00\xff\\", time, date(1969, 12, 31), Decimal("12345678901234.000001"), True, -5)
    assert got[9:11] == (7, 0.1)
    assert str(got[11]) == "nan"
    assert got[12:] == ({"k": 'v"\\u0000\ufffd'}, [{"edge": "e", "first": 1}])
    assert second[2:6] == ("", b"", datetime(1960, 1, 1, tzinfo=UTC), None)
    assert second[12:] == (None, [])
    assert third[2:4] == ("a\ufffdb", None)


def test_rows_replace_those_with_their_keys(spark: SparkSession, database: Database) -> None:
    def batch(*values: tuple[str, int, float]) -> DataFrame:
        return spark.createDataFrame(list(values), "machine string, n int, mean double")

    sink = database.sink(keys=["machine"])
    sink(batch(("m1", 1, 1.0), ("m2", 1, 2.0)), 0)
    sink(batch(("m1", 2, 1.5), ("m3", 1, 3.0)), 1)
    sink(batch(("m1", 2, 1.5), ("m3", 1, 3.0)), 1)
    expected = [("m1", 2, 1.5), ("m2", 1, 2.0), ("m3", 1, 3.0)]
    assert database.run("SELECT * FROM $readings ORDER BY machine") == expected
    newest = database.sink(keys=["machine"], order_by="n")
    newest(batch(("m1", 1, 9.9), ("m2", 3, 2.3), ("m2", 2, 2.2)), 2)
    expected[1] = ("m2", 3, 2.3)
    assert database.run("SELECT * FROM $readings ORDER BY machine") == expected
    with pytest.raises(SinkError, match="share the keys machine='m2', and nothing orders them: set order_by"):
        sink(batch(("m2", 3, 2.3), ("m2", 2, 2.2)), 3)
    assert database.run("SELECT * FROM $readings ORDER BY machine") == expected


def test_a_key_may_be_null(spark: SparkSession, database: Database) -> None:
    """Records without a key have one row of their own in each hour."""

    def batch(*values: tuple[str | None, int, float]) -> DataFrame:
        return spark.createDataFrame(list(values), "machine string, hour int, mean double")

    sink = database.sink(keys=["machine", "hour"])
    for mean in (1.0, 2.0):
        sink(batch((None, 1, mean), ("m1", 1, mean), (None, 2, mean)), 0)
    expected = [("m1", 1, 2.0), (None, 1, 2.0), (None, 2, 2.0)]
    assert database.run("SELECT * FROM $readings ORDER BY machine, hour") == expected
    with pytest.raises(SinkError, match="share the keys machine=None, hour=1, and nothing orders them"):
        sink(batch((None, 1, 3.0), (None, 1, 4.0)), 1)
    database.run("CREATE TABLE $own (machine text, hour int, mean float8)")
    database.run("CREATE UNIQUE INDEX ON $own (hour, machine)")
    own = database.sink("own", keys=["machine", "hour"])
    own(batch(("m1", 1, 1.0)), 0)
    with pytest.raises(SinkError, match=r"machine, one of the keys, is null in 1 rows.* NULLS NOT DISTINCT"):
        own(batch((None, 1, 1.0)), 1)
    database.run("CREATE UNIQUE INDEX ON $own (machine, hour) NULLS NOT DISTINCT")
    for mean in (1.0, 2.0):
        own(batch((None, 1, mean)), 1)
    assert database.run("SELECT * FROM $own ORDER BY machine") == [("m1", 1, 1.0), (None, 1, 2.0)]


def test_rows_from_behind_are_refused(
    spark: SparkSession, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """They would be left out as rows that the table has. Those of a repetition are, and are counted."""
    sink = database.sink(name="copy")
    sink(rows(spark, (0, 5), (1, 0)), 0)
    with pytest.raises(SinkError, match=r"a row of offset 3 of shard 0 comes after rows of .*, which ended at 6"):
        sink(rows(spark, (0, 3), (0, 6)), 1)
    sink(rows(spark, (0, 5), (1, 0), (1, 1)), 0)
    assert "batch 0: left out 2 rows that" in caplog.text
    pickle.loads(pickle.dumps(sink))(rows(spark, (0, 4)), 7)
    assert database.run("SELECT count(*) FROM $readings") == [(3,)]


@pytest.mark.slow
def test_a_log_that_was_restored_from_a_backup_is_refused(spark: SparkSession, hub: Hub, database: Database) -> None:
    def sink(**changes: Any) -> JdbcSink:
        return database.sink(**{"name": "100%", "store": hub.root, "stream": STREAM, **changes})

    hub.write(1)
    restore = hub.backup()
    hub.write(1)
    sink()(hub.load(spark), 0)
    with pytest.raises(SinkError, match=r"telemetry under this name, and the batch is of .*/other .hub/tenant/stream"):
        sink(stream="other")(hub.load(spark), 0)
    restore()
    with pytest.raises(SinkError, match=r"rows up to offset \d+ of shard \d of telemetry, and the log lacks chunk 1"):
        sink()(hub.load(spark), 0)
    hub.payload = lambda edge, seq: b"since the restore"
    hub.write(3)
    with pytest.raises(SinkError, match=r"and the log has another chunk 1: .*Rename the table"):
        sink()(hub.load(spark), 0)
    database.run("ALTER TABLE $readings RENAME TO away")
    for _ in range(2):
        sink()(hub.load(spark), 0)
    assert database.run("SELECT count(*) FROM $readings") == [(hub.load(spark).count(),)]


def test_rows_of_one_shard_replace_each_other_in_the_order_of_the_log(spark: SparkSession, database: Database) -> None:
    schema = "_shard int, _offset long, machine string, value int"
    sink = database.sink(keys=["machine"])
    sink(spark.createDataFrame([(0, 8, "m1", 8), (0, 9, "m1", 9), (0, 7, "m1", 7)], schema), 0)
    assert database.run("SELECT value FROM $readings") == [(9,)]
    with pytest.raises(SinkError, match="nothing orders them"):
        sink(spark.createDataFrame([(0, 8, "m1", 8), (1, 9, "m1", 9)], schema), 1)


def test_a_table_that_does_not_suit_says_what_to_do(spark: SparkSession, database: Database) -> None:
    database.run("CREATE TABLE $readings (_shard integer, _offset bigint, text integer)")
    frame = rows(spark, (0, 0))
    with pytest.raises(SinkError, match=r'column "text" is of type integer .*; cast the column to the table'):
        database.sink(name="q")(frame, 0)
    database.run("CREATE TABLE $keyless (_shard integer, _offset bigint, text text)")
    with pytest.raises(SinkError, match=r"CREATE UNIQUE INDEX ON .*keyless .text"):
        database.sink("keyless", keys=["text"])(frame, 0)
    with pytest.raises(SinkError, match="does not exist; add the column to the table, or drop it"):
        database.sink(name="q")(frame.selectExpr("*", "1 AS more"), 0)
    with pytest.raises(SinkError, match="the rows lack _offset"):
        database.sink(name="q")(frame.drop("_offset"), 0)
    with pytest.raises(SinkError, match=r"column gap: the type interval .* cannot be written; cast it"):
        database.sink(name="q")(frame.selectExpr("*", "INTERVAL '1' DAY AS gap"), 0)
    with pytest.raises(SinkError, match="rename it"):
        database.sink(name="q")(frame.withColumnRenamed("text", "t" * 64), 0)


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://u:s3cret@db/plant",
        "jdbc:postgresql://db/plant?user=u&password=s3cret",
        "postgresql://db/plant?sslpassword=s3cret",
        "jdbc:mysql://u:s3cret@db/plant",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SinkError) as refused:
        JdbcSink(url, "t", name="q")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "name: rows that are appended need a name"),
        ({"keys": "machine"}, r"write \['machine'\]"),
        ({"name": "q", "order_by": "n"}, "give keys too"),
        ({"name": "q", "table": "a.b.c"}, "expected NAME or SCHEMA.NAME"),
        ({"name": "q", "table": "a." + "t" * 64}, "names have 1 to 63 bytes"),
    ],
)
def test_arguments_are_checked_before_anything_starts(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SinkError, match=sentence):
        JdbcSink(**{"url": "jdbc:postgresql://db/plant", "table": "t", **arguments})


def test_the_password_comes_from_a_file_and_goes_nowhere(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD")
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    sink = database.sink(name="q", password_file=str(file))
    sink(rows(spark, (0, 0)), 0)
    assert database.run("SELECT count(*) FROM $readings") == [(1,)]
    assert PASSWORD.encode() not in pickle.dumps(sink)
    assert PASSWORD not in repr(sink)
    file.write_text("wrong-one")
    with pytest.raises(SinkError, match="Check the address, the user, and that the password is in") as refused:
        sink(rows(spark, (0, 1)), 1)
    assert "wrong-one" not in str(refused.value)
    with pytest.raises(SinkError, match="password_file: /nowhere cannot be read: No such file"):
        database.sink(name="q", password_file="/nowhere")(rows(spark, (0, 1)), 1)


@pytest.mark.slow
def test_a_stream_is_in_the_table_once_after_its_checkpoint_is_lost(
    spark: SparkSession, hub: Hub, database: Database, tmp_path: Path
) -> None:
    def drain(checkpoint: str) -> None:
        frame = spark.readStream.format("weft").options(store=hub.root, stream=STREAM).load()
        writer = frame.writeStream.foreachBatch(database.sink(name="copy")).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination()

    hub.write(2)
    drain("first")
    hub.write(1)
    drain("second")
    found = database.run("SELECT _edge, _seq, payload FROM $readings ORDER BY 1, 2")
    assert [(edge, seq, bytes(payload)) for edge, seq, payload in found] == hub.expected()
    (levels,) = database.run("SELECT DISTINCT line FROM $readings WHERE _edge = 'paint-1'")
    assert levels == ("paint",)


def test_ranges_are_replaced_whole_but_for_newer_rows(spark: SparkSession, database: Database) -> None:
    sink = database.sink("hours", keys=["window_start", "machine"], order_by="_log_end")
    hour_us, schema = 3_600_000_000, "window_start timestamp, machine string, _log_end long"

    def hours(*values: tuple[int, str, int]) -> DataFrame:
        return spark.createDataFrame([(datetime.fromtimestamp(3600 * at, UTC), *rest) for at, *rest in values], schema)

    def found() -> list[tuple[Any, ...]]:
        return database.run("SELECT extract(epoch FROM window_start)::int / 3600, machine FROM $hours ORDER BY 1, 2")

    sink(hours((-1, "m1", 10), (1, "m1", 10), (2, "m1", 10), (2, "newer", 30), (3, "m1", 10), (5, "m1", 10)), 0)
    sink.replace(hours((2, "m2", 20)), 1, Replaced("window_start", ((2 * hour_us, 3 * hour_us),), "_log_end", 20))
    assert found() == [(-1, "m1"), (1, "m1"), (2, "m2"), (2, "newer"), (3, "m1"), (5, "m1")]
    ranges = ((-hour_us, 0), (3 * hour_us, 5 * hour_us))
    sink.replace(hours(), 2, Replaced("window_start", ranges, "_log_end", 20))
    assert found() == [(1, "m1"), (2, "m2"), (2, "newer"), (5, "m1")]
    database.run("DROP TABLE $hours")
    with pytest.raises(SinkError, match=r"hours is gone, and this query has written earlier batches"):
        sink.replace(hours((6, "m1", 30)), 3, Replaced("window_start", ranges, "_log_end", 30, continues=True))
    sink.replace(hours((6, "m1", 30)), 0, Replaced("window_start", ranges, "_log_end", 30))
    assert found() == [(6, "m1")]
