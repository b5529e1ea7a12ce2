"""``read`` and ``table``: history and tail as one DataFrame, from one consistent snapshot."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_sinks import ReadError, read, table
from tests.spark_sinks.conftest import EDGES, START, STREAM, Hub, records

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("tiered", "more"), [(0, 4), (4, 0), (3, 2)], ids=["tail only", "table only", "both"])
def test_history_and_tail_are_one(spark: SparkSession, hub: Hub, tiered: int, more: int) -> None:
    hub.write(tiered)
    if tiered:
        hub.tier()
    hub.write(more)
    assert records(read(spark, STREAM, store=hub.root)) == hub.expected()


def test_a_stream_without_a_tail_is_planned_as_plain_parquet(spark: SparkSession, hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    ours, theirs = read(spark, STREAM, store=hub.root), table(spark, STREAM, store=hub.root)

    def plan(frame: DataFrame) -> str:
        return re.sub(r"#\d+", "", frame._jdf.queryExecution().analyzed().toString())

    assert plan(ours) == plan(theirs)
    assert "Relation" in plan(ours)
    assert "Project" not in plan(ours)


@pytest.mark.slow
def test_files_without_and_with_numbers_of_columns_are_read_together(
    spark: SparkSession, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:  # releases before had none
        earlier.setattr("weft.storage.table_writer.parquet_file.with_field_ids", lambda schema: schema)
        hub.write(1)
        hub.tier()
    hub.write(1)
    hub.tier()
    for frame in (read(spark, STREAM, store=hub.root), hub.load(spark)):
        assert records(frame) == hub.expected()


@pytest.mark.slow
def test_it_is_what_the_source_reads(spark: SparkSession, hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    hub.write(1)
    ours = read(spark, STREAM, store=hub.root)
    theirs = hub.load(spark)
    assert ours.columns == theirs.columns
    order = ["_shard", "_offset"]
    assert ours.orderBy(*order).collect() == theirs.orderBy(*order).collect()


def test_a_table_step_between_read_and_use_makes_no_double_and_no_hole(spark: SparkSession, hub: Hub) -> None:
    hub.write(2)
    hub.tier()
    hub.write(2)
    frame = read(spark, STREAM, store=hub.root)
    hub.tier()
    hub.write(1)
    assert records(frame) == hub.expected(range(4))


@pytest.mark.slow
def test_levels_that_are_named_later_are_null_before(spark: SparkSession, hub: Hub) -> None:
    hub.write(1, "plant/{line}/+/telemetry")
    hub.tier()
    hub.write(1)
    ours, theirs = read(spark, STREAM, store=hub.root), hub.load(spark)
    for frame in (ours, theirs):
        assert frame.where("machine is null").count() == 10 * len(EDGES)
        assert frame.where("line is null").count() == 0
        assert records(frame) == hub.expected()
    assert ours.columns == theirs.columns
    hub.tier()
    assert read(spark, STREAM, store=hub.root).where("machine is null").count() == 10 * len(EDGES)
    assert records(hub.load(spark)) == hub.expected()


@pytest.mark.slow
def test_since_edges_and_columns(spark: SparkSession, hub: Hub) -> None:
    hub.write(3)
    hub.tier()
    hub.write(3)
    since = datetime.fromtimestamp(START / 10**9 + 1.5, UTC)
    frame = read(spark, STREAM, store=hub.root, since=since, edges=["press-2"], columns=["payload", "_seq", "_edge"])
    assert frame.columns == ["payload", "_seq", "_edge"]
    assert records(frame) == [row for row in hub.expected() if row[0] == "press-2" and row[1] >= 15]
    texts = read(
        spark, STREAM, store=Path(hub.root), since=since.isoformat(), edges="press-2", columns="payload, _seq, _edge"
    )
    assert texts.columns == frame.columns
    assert records(texts) == records(frame)


def test_since_skips_files_that_end_before_it(spark: SparkSession, hub: Hub) -> None:
    for _ in range(4):
        hub.write()
        hub.tier()
    whole = read(spark, STREAM, store=hub.root)
    late = read(spark, STREAM, store=hub.root, since=datetime.fromtimestamp(START // 10**9 + 3, UTC))
    assert 0 < len(late.inputFiles()) < len(whole.inputFiles())
    assert records(late) == hub.expected(range(3, 4))


@pytest.mark.slow
def test_the_table_alone_and_at_an_earlier_version(spark: SparkSession, hub: Hub) -> None:
    hub.write(1)
    with pytest.raises(ReadError, match="has no table yet"):
        table(spark, STREAM, store=hub.root)
    hub.tier()
    earlier = len(hub.expected())
    hub.write(1)
    assert table(spark, STREAM, store=hub.root).count() == earlier
    hub.tier()
    assert records(table(spark, STREAM, store=hub.root)) == hub.expected()
    assert table(spark, STREAM, store=hub.root, version=0).count() < 2 * earlier
    with pytest.raises(ReadError, match="version: the table of telemetry has none 99; its newest is"):
        table(spark, STREAM, store=hub.root, version=99)
    with pytest.raises(ReadError, match="has no stream 'telemetri'"):
        table(spark, "telemetri", store=hub.root)


def test_a_stream_without_a_record_is_empty(spark: SparkSession, hub: Hub) -> None:
    hub.announce()
    for frame in (read(spark, STREAM, store=hub.root), hub.load(spark)):
        assert frame.columns[9:11] == ["line", "machine"]
        assert frame.count() == 0
    with pytest.raises(ReadError, match="has no table yet: the hub makes it for the first record"):
        table(spark, STREAM, store=hub.root)


@pytest.mark.slow
def test_spellings_of_a_level_that_differ_in_case_are_one_column(spark: SparkSession, hub: Hub) -> None:
    hub.write(1, "plant/{LINE}/+/telemetry", [EDGES[-1]])
    hub.tier()
    hub.write(1, "plant/{line}/+/telemetry")
    frame = read(spark, STREAM, store=hub.root)
    assert frame.where("line is null").count() == 0


def test_errors_say_what_to_do(spark: SparkSession, hub: Hub) -> None:
    hub.write()
    with pytest.raises(ReadError, match="has no stream 'telemetri'"):
        read(spark, "telemetri", store=hub.root)
    with pytest.raises(ReadError, match="the stream has no colour"):
        read(spark, STREAM, store=hub.root, columns=["colour"])
    with pytest.raises(ReadError, match="columns: expected one name or more"):
        read(spark, STREAM, store=hub.root, columns=[])
    with pytest.raises(ReadError, match=r"since: expected a time such as .*Z; got 'latest'"):
        read(spark, STREAM, store=hub.root, since="latest")
    with pytest.raises(ReadError, match="the store holds no hub"):
        read(spark, STREAM, store="/nowhere/at/all")


async def test_it_works_where_an_event_loop_runs(spark: SparkSession, hub: Hub) -> None:
    """As in a notebook."""
    import asyncio

    await asyncio.to_thread(hub.write)
    assert read(spark, STREAM, store=hub.root).count() == 10 * len(EDGES)


@pytest.mark.parametrize(
    "tiered", [0, 3, pytest.param(6, marks=pytest.mark.slow)], ids=["tail only", "both", "table only"]
)
def test_offsets_bound_a_read_whatever_was_tiered(spark: SparkSession, hub: Hub, tiered: int) -> None:
    hub.write(2)
    start = {int(shard): offset for shard, offset in hub.heads().items()}
    hub.write(1)
    hub.tier() if tiered else None
    hub.write(1)
    end = {int(shard): offset for shard, offset in hub.heads().items()}
    hub.write(2)
    hub.tier() if tiered == 6 else None
    assert records(read(spark, STREAM, store=hub.root, ending=end)) == hub.expected(range(4))
    assert records(read(spark, STREAM, store=hub.root, starting=start, ending=end)) == hub.expected(range(2, 4))
    shard = next(shard for shard, offset in end.items() if offset)
    of_one = read(spark, STREAM, store=hub.root, ending={shard: 5})
    assert of_one.select("_shard", "_offset").orderBy("_offset").collect() == [(shard, at) for at in range(5)]


def test_rows_are_selected_alike_from_chunks_and_from_table_files(spark: SparkSession, hub: Hub) -> None:
    """By each way that a row can come: Spark's Parquet reader, our own of table files, and chunks."""
    since, until = (datetime.fromtimestamp(START / 10**9 + at, UTC) for at in (0.5, 1.3))
    options: dict[str, Any] = {"since": since, "until": until, "edges": ["press-2"], "keys": ["plant/+/m1/#"]}
    texts = {"since": since.isoformat(), "until": until.isoformat(), "edges": "press-2", "keys": "plant/+/m1/#"}
    hub.write(3)
    wanted = [row for row in hub.expected() if row[0] == "press-2" and 5 <= row[1] < 13 and row[1] % 2]
    for _ in range(2):
        assert records(read(spark, STREAM, store=hub.root, **options)) == wanted
        assert records(hub.load(spark, **texts)) == wanted
        hub.tier()
