"""Rows of table files are sorted, a slice of the log at a time, and each is there exactly once."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloud_hub.tables.logs import LANE, TOPICS, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_statistics import Row, batch_of
from tests.cloud_hub.tables.test_tierer import new_tierer
from weft.cloud_hub.facts.fact import TABLE, encode
from weft.cloud_hub.facts.streams import DeclaredTables, TableDocument, set_table
from weft.storage.cluster_log import Author, Change, ClusterLog
from weft.storage.object_store import ObjectStore
from weft.storage.table.parquet import group_slices
from weft.storage.table.rows import row_schema
from weft.storage.table.schemas import FollowedDeclarations
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.parquet_file import ParquetFile
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings, TableTerms

SLICE, GROUP = 4000, 250
SCHEMA = row_schema(["line", "machine"])
LINES, MACHINES = 20, 200


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.storage.table_writer.parquet_file.SLICE_ROWS_MAX", SLICE)
    monkeypatch.setattr("weft.storage.table_writer.parquet_file.GROUP_ROWS_MAX", GROUP)


def plant(count: int, first: int = 0, schema: pa.Schema = SCHEMA) -> Iterator[pa.RecordBatch]:
    """Readings of 200 machines of 20 lines, an edge node for each, as they come."""
    chance = random.Random(first)
    for at in range(first, first + count, 500):
        machines = [chance.randrange(MACHINES) for _ in range(min(500, first + count - at))]
        made = [
            Row(1000 * (at + i), f"edge-{n % LINES:02d}", f"line-{n % LINES:02d}", f"m{n // LINES:02d}")
            for i, n in enumerate(machines)
        ]
        keys = pa.array([f"plant/{row.line}/{row.machine}/telemetry" for row in made])
        batch = batch_of(made, at)
        batch = batch.set_column(batch.schema.get_field_index("_key"), batch.schema.field("_key"), keys)
        yield batch.select(schema.names)


def written(batches: Iterator[pa.RecordBatch], schema: pa.Schema = SCHEMA, declared: Sequence[str] = ()) -> bytes:
    out = ParquetFile(schema, declared)
    out.add(batches)
    return bytes(out.groups.finish())


def share(data: bytes, column: str, value: Any) -> float:
    """The part of a file's bytes in row groups whose bounds do not exclude a value."""
    metadata = pq.read_metadata(io.BytesIO(data))
    read = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        known = columns[column].statistics
        if known.min <= value <= known.max:
            read += sum(each.total_compressed_size for each in columns.values())
    return read / len(data)


def test_a_machine_an_edge_node_and_a_key_are_in_few_row_groups() -> None:
    data = written(plant(5 * SLICE + 777))
    assert share(data, "line", "line-07") <= 0.1
    assert share(data, "_edge", "edge-07") <= 0.1
    assert share(data, "_key", "plant/line-07/m03/telemetry") <= 0.1
    # An instant is in one slice of six, as a short range of offsets is.
    assert share(data, "_offset", 2 * SLICE) <= 0.2
    found = pq.read_table(io.BytesIO(data)).sort_by("_offset")
    assert found.equals(pa.Table.from_batches(plant(5 * SLICE + 777), SCHEMA))


def test_a_stream_without_levels_is_sorted_by_edge_node_and_key() -> None:
    schema = row_schema([])
    data = written(plant(2 * SLICE, schema=schema), schema)
    assert share(data, "_edge", "edge-07") <= 0.1
    assert share(data, "_key", "plant/line-07/m03/telemetry") <= 0.1


def test_an_operator_can_name_the_columns() -> None:
    data = written(plant(2 * SLICE), declared=["machine", "no such column"])
    assert share(data, "machine", "m03") <= 0.2
    assert share(written(plant(2 * SLICE)), "machine", "m03") > 0.5


@pytest.mark.parametrize("declared", [(), ("machine", "no such column")])
async def test_joined_files_are_sorted_in_slices_of_the_log_and_say_so(
    directory: ObjectStore, declared: Sequence[str]
) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 1, topics=TOPICS))
    tierer = await new_tierer(directory, log)
    await tierer.step()
    state, files, first = await tierer.take(), [], 1
    # Some are full slices already, some are smaller than a row group, and some were written in the log's order.
    for number, count in enumerate([SLICE + 700, 60, 60, 2900, SLICE, 1300, 2 * SLICE, 100]):
        out = ParquetFile(SCHEMA)  # made before the order was declared
        out.add(plant(count, first))
        data = out.groups.finish()
        await directory.create(f"{tierer.key}/{number}.parquet", data)
        files.append(out.data_file(f"{number}.parquet", len(data), 0))
        first += count
    tierer.keep(await tierer.log.append(state, files, {}, 1))
    before = rows(directory)
    settings = TableSettings(compact_files_min=2)
    await Maintenance(directory, tierer, settings=settings, sort=lambda: declared).maintain()
    assert rows(directory).equals(before)
    added = table(directory).get_add_actions(flatten=True)
    assert added.num_rows == 1
    path = added.column("path")[0].as_py()
    joined = bytes((await directory.get(f"{tierer.key}/{path}")).data)
    assert share(joined, *(("machine", "m03") if declared else ("line", "line-07"))) <= 0.2
    metadata = pq.read_metadata(io.BytesIO(joined))
    slices = list(group_slices(metadata))
    assert sum(each.rows for each in slices) == first
    assert all(each.rows <= SLICE for each in slices), "a slice that was sorted is not torn"
    assert len(slices) <= 2 * first / SLICE
    entry = bytes((await directory.get(f"{tierer.key}/_delta_log/{tierer.version:020d}.json")).data)
    [add] = [json.loads(line)["add"] for line in entry.splitlines() if b'"add"' in line]
    assert json.loads(add["tags"]["weft.sortedBy"]) == [
        *(["machine", "line"] if declared else ["line", "machine"]),
        "_edge",
        "_key",
        "_time",
    ]


async def test_new_rows_are_sorted_by_what_is_declared_since(directory: ObjectStore) -> None:
    """A hub, and a pipeline that follows the cluster log, see a change without a restart."""
    log = await LogWriter.open(directory)
    cluster_log = ClusterLog(directory, log.cluster.cluster_id)
    declared, tables = FollowedDeclarations(directory, log.cluster.cluster_id), DeclaredTables()
    await declared.start()
    service = TableService(directory, log.cluster, terms=TableTerms(sort=declared.sort_of))
    # No release declares the second of them.
    steps = [(), ("_key", "payload_is_no_column", "_headers"), ("machine",), ()]
    odd = Change(TABLE, "default/telemetry", encode(TableDocument(sort=steps[1])))
    orders = []
    for number, columns in enumerate(steps):
        if number:
            decide = (lambda _: odd) if number == 1 else set_table(("default", "telemetry"), sort=columns)
            await cluster_log.append(decide, Author(0, "mara", ""))
        await declared._follower.look()
        tables.refresh(declared._follower.state)
        assert tables.sort_of(("default", "telemetry")) == declared.sort_of(("default", "telemetry")) == columns
        await log.append(0, Run(LANE, 600 * number, 600, topics=TOPICS))
        await service.catch_up()
        tierer = await new_tierer(directory, log)
        version = (await tierer.take()).version
        entry = bytes((await directory.get(f"{tierer.key}/_delta_log/{version:020d}.json")).data)
        [add] = [json.loads(line)["add"] for line in entry.splitlines() if b'"add"' in line]
        orders.append(json.loads(add["tags"]["weft.sortedBy"])[:2])
    await declared.close()
    assert orders == [["line", "machine"], ["_key", "line"], ["machine", "line"], ["line", "machine"]]
    assert table(directory).to_pyarrow_table().num_rows == 2400
