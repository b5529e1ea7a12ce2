"""Plans: each offset in exactly one task, from the table below its position and from chunks above it."""

from __future__ import annotations

import asyncio
import os
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from spark_sinks.errors import ReadError
from spark_sinks.source import readers as planning
from spark_sinks.source.options import Offsets, parse_options
from spark_sinks.source.partitions import TablePart, Task, read_partition
from spark_sinks.source.stream_log import StreamLog
from spark_sinks.source.tables import FileIndex, TableSnapshot
from tests.spark_sinks.conftest import EDGES, SHARDS, STREAM, Hub
from weft.config.load import parse_schema
from weft.protocols.shard.placement import shard_of
from weft.storage.table.files import TableFile
from weft.storage.table.rows import row_schema
from weft.storage.table.schemas import StreamSchema

SCHEMA = row_schema(["line", "machine"])


async def planned(hub: Hub, start: Offsets | None = None) -> tuple[StreamLog, TableSnapshot | None, list[Task]]:
    log = await StreamLog.open(parse_options({"store": hub.root, "stream": STREAM}))
    table = await log.table()
    start = dict.fromkeys(range(SHARDS), 0) if start is None else start
    return log, table, await planning.plan(log, table, start, log.heads)


def read_all(partitions: list[Task]) -> list[tuple[int, int]]:
    """(shard, offset) of every row, as executors would read them."""
    found: list[tuple[int, int]] = []
    for partition in partitions:
        shipped = pickle.loads(pickle.dumps(partition))
        for rows in read_partition(shipped, SCHEMA):
            assert rows.schema.equals(SCHEMA)
            found += zip(rows.column("_shard").to_pylist(), rows.column("_offset").to_pylist(), strict=True)
    return sorted(found)


def every_offset(heads: Offsets) -> list[tuple[int, int]]:
    return [(shard, offset) for shard, end in sorted(heads.items()) for offset in range(end)]


@pytest.mark.parametrize("part_bytes", [1, 1500, 1 << 30])
def test_any_size_of_task_reads_every_offset_once(hub: Hub, monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    for name in ("PARTITION_BYTES", "TABLE_PARTITION_BYTES"):
        monkeypatch.setattr(planning, name, part_bytes)
    hub.write(6)
    hub.tier()
    hub.write(5)
    log, table, partitions = asyncio.run(planned(hub))
    assert table is not None
    assert read_all(partitions) == every_offset(log.heads)
    if part_bytes == 1:
        assert len(partitions) > 2 * SHARDS
    if part_bytes == 1 << 30:
        assert len(partitions) == 1, "parts of all shards and of both tiers share a task"


def test_a_table_file_that_was_deleted_since_is_named(hub: Hub) -> None:
    hub.write()
    hub.tier()
    _, table, partitions = asyncio.run(planned(hub))
    assert table is not None
    for file in table.files:
        os.remove(f"{table.uri}/{file.path}")
    with pytest.raises(ReadError, match=r"\.parquet was deleted after .*; load this DataFrame again"):
        read_all(partitions)


def test_spellings_of_a_level_that_differ_in_case_are_one_column_everywhere(hub: Hub) -> None:
    """The table has the spelling that came first, a reader's view of the log begins with shard 0."""
    first, *_, last = sorted(EDGES, key=lambda edge: shard_of("default", edge, SHARDS))
    hub.write(1, "plant/{LINE}/+/telemetry", [last])
    hub.tier()
    hub.write(1, "plant/{line}/+/telemetry", [first])
    hub.tier()
    hub.write(1, "plant/{Line}/+/telemetry", [last])
    log, table, partitions = asyncio.run(planned(hub))
    assert table is not None
    assert (log.fields, table.columns["line"]) == (["line"], "LINE")
    found = [
        line
        for partition in partitions
        for rows in read_partition(partition, row_schema(log.fields))
        for line in rows.column("line").to_pylist()
    ]
    assert sorted(found) == sorted(10 * [first[:5]] + 20 * [last[:5]])


def test_history_comes_from_the_table_and_only_the_tail_from_chunks(hub: Hub) -> None:
    hub.write(3)
    hub.tier()
    hub.write(2)
    _, table, partitions = asyncio.run(planned(hub))
    assert table is not None
    for part in (part for partition in partitions for part in partition.parts):
        if isinstance(part, TablePart):
            assert part.end <= table.ends[part.shard]
        else:
            assert part.first >= table.ends[part.shard]


def test_a_file_without_statistics_is_read_wherever_it_may_matter(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other engines may rewrite files and leave the statistics out."""
    for name in ("PARTITION_BYTES", "TABLE_PARTITION_BYTES"):
        monkeypatch.setattr(planning, name, 1)
    hub.write(2)
    hub.tier()

    async def without_statistics() -> tuple[Offsets, list[Task]]:
        log, table, _ = await planned(hub)
        assert table is not None
        bare = FileIndex(
            file._replace(
                shard_min=None, shard_max=None, offset_min=None, offset_max=None, time_min=None, time_max=None
            )
            for file in table.files
        )
        start = dict.fromkeys(log.heads, 0)
        return log.heads, await planning.plan(log, table._replace(files=bare), start, log.heads)

    heads, partitions = asyncio.run(without_statistics())
    assert read_all(partitions) == every_offset(heads)


def test_statistics_are_cut_to_milliseconds_and_no_row_is_skipped_for_it() -> None:
    stated = datetime(2024, 5, 1, 6, 0, 0, 123_000, UTC)
    file = TableFile("a.parquet", 1, 0, 0, 0, 9, stated, stated)
    assert file.may_reach(stated + timedelta(microseconds=999))
    assert not file.may_reach(stated + timedelta(milliseconds=2))


def test_a_plan_of_nothing_is_empty(hub: Hub) -> None:
    hub.write(2)
    heads = {int(shard): end for shard, end in hub.heads().items()}
    assert asyncio.run(planned(hub, heads))[2] == []


def test_a_level_with_the_name_of_a_typed_column_is_not_read_from_it(hub: Hub) -> None:
    hub.write(1, topic="plant/+/+/telemetry")
    hub.tier(StreamSchema(3, parse_schema("line float")))
    hub.write(1)
    log, table, partitions = asyncio.run(planned(hub))
    assert table is not None
    assert log.fields == ["machine"]
    read = [rows for each in partitions for rows in read_partition(each, row_schema(log.fields))]
    assert sum(rows.num_rows for rows in read) == len(hub.expected())
