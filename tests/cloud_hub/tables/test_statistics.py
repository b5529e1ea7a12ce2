"""No engine may miss a row because of a file's statistics, and engines do skip files by them."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.schema import Field, PrimitiveType
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, table
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import DataFile
from weft.storage.table.delta import DeltaHandle
from weft.storage.table.delta_log import TableLog
from weft.storage.table.parquet import FileStatistics
from weft.storage.table.rows import LATER_COLUMNS, TIMESTAMP, row_schema
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.parquet_file import ParquetFile
from weft.storage.table_writer.settings import STATISTICS_PROPERTY, TableSettings, statistics_columns

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEVELS = ["line", "machine"]
SCHEMA = row_schema(LEVELS)
LONG = "x" * 64
PLAIN = ["", "a", "b", "é", "\uffff", "\U0001f600", 'quote"\\', "\0nul", "line\nbreak"]
LAST = "\U0010ffff"
CUT = [LONG, LONG + "a", LONG[:-1] + "\ud7ff" + "z", LONG[:-1] + LAST + "z", LAST * 65, LAST * 70]
TEXTS = st.sampled_from([*PLAIN, *CUT])


class Row(NamedTuple):
    time: int
    """Microseconds."""
    edge: str
    line: str | None
    machine: str | None


TIMES = st.integers(-3_000_000, 3_000_000) | st.sampled_from(
    [-(2**63) // 1000, (2**63 - 1) // 1000, 1_999, 2_000, 2_001]
)
ROWS = st.builds(Row, TIMES, TEXTS, st.none() | TEXTS, st.none() | st.sampled_from(["m1", "m2"]))
FILES = st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=1, max_size=5)


def batch_of(rows: Sequence[Row], first: int, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    count = len(rows)
    columns: dict[str, Any] = {
        "_offset": list(range(first, first + count)),
        "_shard": [0] * count,
        "_edge": [row.edge for row in rows],
        "_log": ["0" * 16] * count,
        "_seq": list(range(first, first + count)),
        "_time": pa.array([row.time for row in rows], pa.int64()).cast(TIMESTAMP),
        "_clock": ["synced"] * count,
        "_received": pa.array([0] * count, pa.int64()).cast(TIMESTAMP),
        "_key": ["k"] * count,
        "line": [row.line for row in rows],
        "machine": [row.machine for row in rows],
        "_resent": [False] * count,
        "_headers": [None] * count,
        "_edge_time": [None] * count,
        **dict.fromkeys(LATER_COLUMNS, [None] * count),
        "payload": [b"%d" % number for number in range(first, first + count)],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def write(folder: Path, rows: Sequence[Row], first: int) -> DataFile:
    out = ParquetFile(SCHEMA)
    out.add([batch_of(rows, first)])
    data = out.groups.finish()
    (folder / f"{first}.parquet").write_bytes(data)
    return out.data_file(f"{first}.parquet", len(data), 0)


async def commit_each(folder: Path, files: Sequence[DataFile]) -> None:
    log = TableLog(open_store(str(folder.parent)), folder.name)
    state = await log.read()
    assert state is not None
    for file in files:
        state = await log.append(state, [file], {}, 0)


def new_table(folder: Path, files: Sequence[Sequence[Row]]) -> DeltaTable:
    DeltaHandle.create(str(folder), {}, SCHEMA, {STATISTICS_PROPERTY: ",".join(statistics_columns(LEVELS))})
    firsts = itertools.accumulate(map(len, files), initial=0)
    asyncio.run(commit_each(folder, [write(folder, rows, first) for rows, first in zip(files, firsts, strict=False)]))
    return DeltaTable(str(folder))


def predicates(row: Row) -> dict[str, tuple[ds.Expression, pl.Expr]]:
    """Filters around the values of a row, as pyarrow and Polars have them."""
    moment = pa.scalar(row.time, pa.int64()).cast(TIMESTAMP)
    time = pl.lit(row.time, pl.Int64).cast(pl.Datetime("us", "UTC"))
    found: dict[str, tuple[ds.Expression, pl.Expr]] = {
        "time =": (ds.field("_time") == moment, pl.col("_time") == time),
        "time >": (ds.field("_time") > moment, pl.col("_time") > time),
        "time >=": (ds.field("_time") >= moment, pl.col("_time") >= time),
        "time <": (ds.field("_time") < moment, pl.col("_time") < time),
        "edge =": (ds.field("_edge") == row.edge, pl.col("_edge") == row.edge),
        "edge >": (ds.field("_edge") > row.edge, pl.col("_edge") > row.edge),
        "edge <>": (ds.field("_edge") != row.edge, pl.col("_edge") != row.edge),
        "machine null": (ds.field("machine").is_null(), pl.col("machine").is_null()),
        "line not null": (ds.field("line").is_valid(), pl.col("line").is_not_null()),
    }
    if row.line is not None:
        found["line ="] = ds.field("line") == row.line, pl.col("line") == row.line
        found["line >="] = ds.field("line") >= row.line, pl.col("line") >= row.line
        found["line <="] = ds.field("line") <= row.line, pl.col("line") <= row.line
        both = ds.field("line") == row.line, pl.col("line") == row.line
        found["or"] = both[0] | (ds.field("_time") == moment), both[1] | (pl.col("_time") == time)
    return found


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(FILES, st.data())
def test_a_filter_finds_the_same_rows_with_pruning_as_without(files: list[list[Row]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = f"{root}/table"  # the store is around it
        found = new_table(Path(folder), files)
        everything = pa.concat_tables([pq.read_table(uri, schema=SCHEMA) for uri in found.file_uris()])
        row = data.draw(st.sampled_from([row for part in files for row in part]))
        dataset, lazy, database = found.to_pyarrow_dataset(), pl.scan_delta(folder), duckdb.connect()
        for name, (expression, polars) in predicates(row).items():
            wanted = sorted(everything.filter(expression).column("_offset").to_pylist())
            assert sorted(dataset.to_table(["_offset"], filter=expression)[0].to_pylist()) == wanted, (
                f"deltalake {name}"
            )
            assert sorted(lazy.filter(polars).select("_offset").collect()["_offset"]) == wanted, f"polars {name}"
        database.register("weft", dataset)
        for column, value in (("_edge", row.edge), ("line", row.line)):
            query = f"SELECT _offset FROM weft WHERE {column} IS NOT DISTINCT FROM ?"
            rows = [getattr(row, column.strip("_")) for part in files for row in part]
            wanted = [offset for offset, each in enumerate(rows) if each == value]
            assert sorted(offset for (offset,) in database.execute(query, [value]).fetchall()) == wanted


@settings(max_examples=200, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=8))
def test_bounds_hold_every_value_and_are_short(rows: list[Row]) -> None:
    statistics = FileStatistics(statistics_columns(LEVELS))
    for at in range(0, len(rows), 3):
        statistics.add(batch_of(rows[at : at + 3], at))
    found = json.loads(statistics.to_json())
    low, high = (datetime.fromisoformat(found[bound]["_time"]) for bound in ("minValues", "maxValues"))
    assert all(low <= EPOCH + timedelta(microseconds=row.time) <= high for row in rows)
    for name in ("edge", "line", "machine"):
        column = name if name != "edge" else "_edge"
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        assert found["nullCount"][column] == len(rows) - len(values)
        for bounds in (found["minValues"], found["maxValues"]):
            assert (column in bounds) == bool(values)
        for value in values:
            assert found["minValues"][column].encode() <= value.encode() <= found["maxValues"][column].encode()
        if values and not any(value.startswith(LAST * 64) for value in values):
            assert max(len(found[bound][column]) for bound in ("minValues", "maxValues")) <= 64


def skipped(found: DeltaTable, expression: ds.Expression) -> int:
    """How many files deltalake's dataset leaves unread for a filter."""
    dataset = found.to_pyarrow_dataset()
    return len(list(dataset.get_fragments())) - len(list(dataset.get_fragments(filter=expression)))


async def two_files(store: ObjectStore, log: LogWriter) -> None:
    """A table of two files of one shard: another edge, line and time in each."""
    await log.append(0, Run(LANE, 0, 3, b"plant/a/m1/telemetry", TOPICS))
    await drain(await new_tierer(store, log))
    await log.append(0, Run(OTHER, 100, 3, b"plant/b/m2/telemetry", TOPICS))
    await drain(await new_tierer(store, log))


FILTERS = {
    "edge": ds.field("_edge") == "press-2",
    "line": ds.field("line") == "b",
    "machine": ds.field("machine") > "m1",
    "time": ds.field("_time") > pa.scalar(1_700_000_050_000_000, pa.int64()).cast(TIMESTAMP),
}


@pytest.mark.parametrize("name", FILTERS)
async def test_files_are_skipped_by_what_people_filter_by(directory: ObjectStore, name: str) -> None:
    await two_files(directory, await LogWriter.open(directory))
    found = table(directory)
    assert skipped(found, FILTERS[name]) == 1
    assert found.to_pyarrow_dataset().to_table(["_seq"], filter=FILTERS[name])[0].to_pylist() == [100, 101, 102]
    assert found.file_uris() == sorted(found.file_uris(), reverse=True)
    for uri in found.file_uris():
        group = pq.ParquetFile(uri).metadata.row_group(0)
        kept = {group.column(i).path_in_schema for i in range(group.num_columns) if group.column(i).is_stats_set}
        assert {"_edge", "_time", "line", "machine"} <= kept
        assert "payload" not in kept


async def test_joined_files_keep_statistics(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await two_files(directory, log)
    await log.append(1, Run(OTHER, 200, 3, b"plant/c/m3/telemetry", TOPICS))
    await drain(tierer := await new_tierer(directory, log))
    await Maintenance(directory, tierer, settings=TableSettings(compact_files_min=2)).maintain()
    actions = pa.table(table(directory).get_add_actions(flatten=True)).sort_by("min._shard").to_pylist()
    assert [(each["min._edge"], each["max._edge"]) for each in actions] == [
        ("press-1", "press-2"),
        ("press-2", "press-2"),
    ]
    assert [(each["min.line"], each["max.line"]) for each in actions] == [("a", "b"), ("c", "c")]
    assert [each["null_count.machine"] for each in actions] == [0, 0]
    assert skipped(table(directory), ds.field("line") == "c") == 1


async def test_a_level_that_comes_later_hides_no_row(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 3, topics=["plant/{line}/+/telemetry"]))
    await drain(await new_tierer(directory, log))
    await log.append(0, Run(LANE, 3, 3, topics=TOPICS))
    await drain(await new_tierer(directory, log))
    dataset = table(directory).to_pyarrow_dataset()
    assert dataset.to_table(filter=ds.field("machine").is_null()).num_rows == 3
    assert dataset.to_table(filter=ds.field("machine") == "m1").num_rows == 3
    assert dataset.to_table(filter=ds.field("machine") != "m1").num_rows == 0


async def test_a_column_of_the_tables_owner_does_no_harm(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await two_files(directory, log)
    table(directory).alter.add_columns([Field("note", PrimitiveType("string"))])
    assert table(directory).to_pyarrow_dataset().to_table(filter=ds.field("note").is_null()).num_rows == 6


def test_the_number_of_columns_with_statistics_is_bounded() -> None:
    levels = ["l" * 65, *(f"level{number}" for number in range(100))]
    assert statistics_columns(levels)[5:] == [f"level{number}" for number in range(32)]
