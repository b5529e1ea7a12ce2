"""Typed columns of the hub's tables: by a declared schema, whichever process knows which version of it."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import QueryBuilder

from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, rows, table
from tests.cloud_hub.tables.test_tierer import drain
from weft.config.load import parse_schema
from weft.protocols.payloads import PayloadKind
from weft.storage.object_store import ObjectStore
from weft.storage.table import typed_columns
from weft.storage.table.schemas import StreamSchema
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.settings import STATISTICS_PROPERTY, TableSettings
from weft.storage.table_writer.shards import load_shards
from weft.storage.table_writer.tiering import Tierer

FIRST = StreamSchema(3, parse_schema("temperature float, unit string, n int not null"))
SECOND = StreamSchema(9, parse_schema("temperature string, n int"))
THIRD = StreamSchema(12, parse_schema({"fields": {"temperature": {"type": "float", "unit": "°C", "from": "t.value"}}}))


class Process:
    """A hub process with what it knows of the schema."""

    tierer: Tierer

    def __init__(self, knows: StreamSchema | None) -> None:
        self.knows = knows

    @classmethod
    async def start(cls, store: ObjectStore, log: LogWriter, knows: StreamSchema | None = None) -> Process:
        made, views = cls(knows), await load_shards(store, log.cluster)
        made.tierer = Tierer(store, log.cluster, "default", "telemetry", views, schema=lambda: made.knows)
        return made

    async def write(self, knows: StreamSchema | None) -> int:
        """Write what is new, by a version."""
        self.knows = knows
        for view in self.tierer._views:
            await view.log.extend(view.state)
        return await drain(self.tierer)


def readings(*values: Any, first: int = 0, lane: Any = LANE, kind: int | None = PayloadKind.JSON) -> Run:
    payloads = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return Run(lane, first, len(payloads), topics=TOPICS, payloads=payloads, kind=kind)


def columns(store: ObjectStore, *names: str) -> list[tuple[Any, ...]]:
    found = rows(store, columns=["_shard", "_offset", *names])
    return list(zip(*(found.column(name).to_pylist() for name in names), strict=True))


@pytest.mark.parametrize("kind", [PayloadKind.JSON, PayloadKind.BYTES])
async def test_a_declared_field_is_a_column_and_what_does_not_fit_is_kept_with_its_reason(
    directory: ObjectStore, kind: PayloadKind
) -> None:
    log = await LogWriter.open(directory)
    hot = b'{"temperature": "hot", "n": 2}'
    await log.append(0, readings({"temperature": 21.5, "unit": "C", "n": 1}, hot, {"unit": "F"}, b"\xff", kind=kind))
    await (await Process.start(directory, log)).write(FIRST)
    assert columns(directory, "temperature", "unit", "n", "_schema") == [
        (21.5, "C", 1, 3),
        (None, None, 2, 3),
        (None, "F", None, 3),
        (None, None, None, 3),
    ]
    fits, of_type, missing, unreadable = (dict(row[0] or ()) for row in columns(directory, "_misfit"))
    assert (fits, of_type) == ({}, {"temperature": 'expected a number of 64 bits, got "hot"'})
    assert missing == {"n": "required, and missing"}
    assert list(unreadable) == ["payload"]
    raw = [row[0] or row[-1] for row in columns(directory, "payload", *(["_payload_bytes"] if kind else []))]
    assert (raw[1], raw[3]) == (hot.decode() if kind else hot, b"\xff"), "payloads stay as they were sent"


async def test_old_rows_stay_as_they_were_and_a_changed_type_is_a_new_column(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    process = await Process.start(directory, log)
    for number, known in enumerate((None, FIRST, SECOND, FIRST, None)):
        await log.append(0, readings({"temperature": float(number), "n": number}, first=number))
        await process.write(known)
    found = columns(directory, "_schema", "temperature", "temperature_2", "n")
    assert found == [
        (None, None, None, None),
        (3, 1.0, None, 1),
        (9, None, None, 2),
        (3, 3.0, None, 3),
        (None, None, None, None),
    ]
    assert columns(directory, "_misfit")[2] == ([("temperature", "expected text, got 2.0")],)
    kinds = {name: kind for name, kind in process.tierer.columns if name.startswith("temp")}
    assert kinds == {"temperature": "double", "temperature_2": "string"}


async def test_unit_and_description_are_comments_and_another_unit_is_another_column(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    process = await Process.start(directory, log)

    def declared(version: int, **settings: str) -> StreamSchema:
        return StreamSchema(version, parse_schema({"fields": {"t": {"type": "float", **settings}}}))

    older = declared(5, unit="°C", description="Oil")
    versions = [declared(3), older, declared(6, unit="°C", description="Oil at the valve"), declared(8, unit="K")]
    for number, known in enumerate(versions):
        await log.append(0, readings({"t": number}, first=number))
        await process.write(known)
    comments = {field.name: field.metadata.get("comment") for field in table(directory).schema().fields}
    assert (comments["t"], comments["t_2"]) == ("Oil at the valve [°C]", "[K]")
    assert columns(directory, "t", "t_2") == [(0, None), (1, None), (2, None), (None, 3)]
    version = table(directory).version()
    await log.append(0, readings({"t": 9}, first=4))
    await process.write(older)
    assert table(directory).version() == version + 1, "who knows an older version takes no words of a newer one back"
    assert columns(directory, "t", "_schema")[-1] == (9, 5)


async def test_two_processes_with_different_versions_write_their_rows_right(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory, shards=1)
    processes = [await Process.start(directory, log) for _ in range(3)]
    known: list[int | None] = []
    for number in range(9):
        await log.append(0, readings({"temperature": number, "t": {"value": number}}, first=number))
        knows = (FIRST, None, THIRD)[number % 3]
        assert await processes[number % 3].write(knows) == 1
        known.append(knows.version if knows else None)
    found = columns(directory, "_schema", "temperature", "_seq")
    # The unit that the third version adds is a word about the same column.
    assert found == [(version, number if version else None, number) for number, version in enumerate(known)]


async def test_a_step_that_loses_the_race_to_a_new_column_writes_its_rows_all_the_same(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory, shards=1)
    first = await Process.start(directory, log)
    await log.append(0, readings({"temperature": 1, "n": 1}))
    await first.write(FIRST)
    await log.append(0, readings({"temperature": 2, "n": 2}, first=1))
    other = await Process.start(directory, log, SECOND)
    alter = first.tierer.log.append

    async def raced(*given: Any) -> Any:
        first.tierer.log.append = alter  # type: ignore[method-assign]
        state = await other.tierer.open()
        await other.tierer._grow(state)
        return await alter(*given)

    first.tierer.log.append = raced  # type: ignore[method-assign, assignment]
    assert await first.write(FIRST) == 1
    assert columns(directory, "_schema", "temperature", "temperature_2") == [(3, 1.0, None), (3, 2.0, None)]


async def test_a_topic_level_of_the_same_name_stays_a_level(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, readings({"machine": "a", "line": 3, "payload_": 1}))
    schema = StreamSchema(4, parse_schema("machine string, line float"))
    await (await Process.start(directory, log)).write(schema)
    assert columns(directory, "line", "machine", "machine_2", "line_2") == [("a", "m1", "a", 3.0)]
    await log.append(1, Run(OTHER, 0, 1, topics=["plant/{x}/{machine_2}/telemetry"], payloads=[b'{"machine": "b"}']))
    await (await Process.start(directory, log)).write(schema)
    assert columns(directory, "x", "machine", "machine_2")[-1] == ("a", None, "b"), "its values remain in _key"


async def test_engines_agree_on_every_version_and_on_joined_files(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory, shards=1)
    process = await Process.start(directory, log)
    for number, known in enumerate((None, FIRST, SECOND, THIRD, FIRST)):
        values = [{"temperature": number + at / 4, "n": at, "unit": "é" * at, "t": {"value": at}} for at in range(4)]
        await log.append(0, readings(*values, first=number * 4))
        await process.write(known)
    settings = TableSettings(compact_files_min=2)
    before = columns(directory, "_seq", "temperature", "temperature_2", "n", "_schema", "_misfit")
    await Maintenance(directory, process.tierer, settings=settings).maintain()
    opened = table(directory)
    assert len(opened.file_uris()) == 1
    assert columns(directory, "_seq", "temperature", "temperature_2", "n", "_schema", "_misfit") == before
    wanted = ["_offset", "temperature", "n", "unit", "_schema"]
    for version in range(opened.version() + 1):
        opened.load_as_version(version)
        names = [name for name in wanted if name in [field.name for field in opened.schema().fields]]
        if not opened.file_uris():
            continue
        by_delta = opened.to_pyarrow_table(columns=names).sort_by("_offset").to_pylist()
        assert pl.scan_delta(opened).select(names).sort("_offset").collect().to_dicts() == by_delta
        database = duckdb.connect()
        database.register("telemetry", opened.to_pyarrow_dataset())
        query = f"SELECT {', '.join(names)} FROM telemetry ORDER BY _offset"
        assert database.sql(query).to_arrow_table().to_pylist() == by_delta
        if "temperature" in names:
            assert database.execute("SELECT count(*) FROM telemetry WHERE temperature IS NULL").fetchone() == (
                sum(row["temperature"] is None for row in by_delta),
            )


async def test_files_of_a_new_table_have_bounds_of_typed_columns(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory, shards=1)
    process = await Process.start(directory, log)
    fields = "t float, n int, s string, b bool, d decimal(10,2), at timestamp(s), a array<float>"
    schema = StreamSchema(2, parse_schema(fields, payload_format="msgpack"))
    for number, value in enumerate((1.5, float("nan"), float("-inf"))):
        payload = msgspec.msgpack.encode({"t": value, "n": number, "s": "x" * 100, "at": 1, "a": [1.0]})
        await log.append(0, readings(payload, first=number, kind=None))
        await process.write(schema)
    opened = table(directory)
    named = opened.metadata().configuration[STATISTICS_PROPERTY].split(",")
    assert named[-4:] == ["t", "n", "s", "at"], "bounds of other types cannot stand in the log"
    actions = pa.table(opened.get_add_actions(flatten=True)).sort_by("min._offset").to_pydict()
    assert actions["min.n"] == actions["max.n"] == [0, 1, 2]
    assert actions["null_count.t"] == [0, 0, 0]
    bounds = list(zip(actions["min.t"], actions["max.t"], strict=True))
    assert bounds[0] == (1.5, 1.5)
    assert bounds[1][1] > 1e300, "engines that order NaN behind all numbers must not skip it"
    assert bounds[2][0] < -1e300
    found = opened.to_pyarrow_dataset().to_table(["n"], ds.field("t") < 0)
    assert found["n"].to_pylist() == [2]
    footer = pq.ParquetFile(opened.file_uris()[0].removeprefix("file://")).metadata.row_group(0)
    kept = {footer.column(at).path_in_schema for at in range(footer.num_columns) if footer.column(at).is_stats_set}
    assert {"n", "s"} <= kept


DAYS = StreamSchema(4, parse_schema("day date, local local_timestamp, at timestamp, days array<date>, m array<int>"))
WROTE = {"day": "2026-11-01", "local": "2026-11-01T12:00:00.000001", "at": "2026-11-01T12:00:00+01:00", "m": [1, None]}
LOCAL = datetime(2026, 11, 1, 12, 0, 0, 1)  # noqa: DTZ001


async def joined(store: ObjectStore, process: Process) -> int:
    """Join the files of a table. Return its version."""
    maintenance = Maintenance(store, process.tierer, settings=TableSettings(compact_files_max=2))
    return (await maintenance.compact(await process.tierer.take())).version


@pytest.mark.parametrize("is_there", [False, True], ids=["new table", "table of before"])
async def test_days_and_local_times_are_columns_in_every_engine(directory: ObjectStore, is_there: bool) -> None:
    log = await LogWriter.open(directory, shards=1)
    process = await Process.start(directory, log)
    if is_there:
        await log.append(0, readings({"m": [0]}))
        await process.write(FIRST)
        assert table(directory).protocol().min_reader_version == 1, "no reader is asked for what no table needs"
    await log.append(0, readings(WROTE, WROTE | {"day": "soon", "local": "2026-11-01T12:00:00Z"}, first=1))
    await process.write(DAYS)
    await log.append(0, readings({"day": "2026-11-02"}, first=3))
    await process.write(DAYS)
    opened = table(directory)
    protocol = opened.protocol()
    assert {"timestampNtz"} == {*(protocol.reader_features or ())}, "engines refuse such a column without it"
    assert {"timestampNtz", "appendOnly", "invariants"} >= {*(protocol.writer_features or ())}
    kinds = {field.name: field.type.type for field in opened.schema().fields if field.name in DAYS.schema.fields}
    assert kinds == {"day": "date", "local": "timestamp_ntz", "at": "timestamp", "days": "array", "m": "array"}
    wanted = [(date(2026, 11, 1), LOCAL), (None, None), (date(2026, 11, 2), None)]
    assert columns(directory, "day", "local")[-3:] == wanted
    misfits = [dict(row[0] or ()).keys() for row in columns(directory, "_misfit")][-3:]
    assert misfits == [set(), {"day", "local"}, set()]
    lazy = pl.scan_delta(opened).filter(pl.col("day") < date(2026, 11, 2)).select("day", "local").collect()
    assert lazy.rows() == wanted[:1]
    database = duckdb.connect()
    database.register("telemetry", opened.to_pyarrow_dataset())
    query = "SELECT day, local FROM telemetry WHERE local >= TIMESTAMP '2026-11-01 12:00:00'"
    assert database.execute(query).fetchall() == wanted[:1]
    by_delta = QueryBuilder().register("t", opened).execute(f"SELECT m FROM t WHERE day = '{wanted[2][0]}'")
    assert len(pa.table(by_delta)) == 1
    version = opened.version()
    assert await joined(directory, process) > version
    assert columns(directory, "day", "local")[-3:] == wanted


async def test_a_release_leaves_columns_of_a_type_that_it_does_not_know(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await LogWriter.open(directory, shards=1)
    process = await Process.start(directory, log)
    await log.append(0, readings(WROTE))
    await process.write(DAYS)
    with monkeypatch.context() as earlier:
        earlier.delitem(typed_columns._SIMPLE, "timestamp_ntz")
        await log.append(0, readings(WROTE | {"n": 1}, first=1))
        await process.write(FIRST)
        before = {*table(directory).file_uris()}
        await joined(directory, process)
        assert {*table(directory).file_uris()} == before, "joined files would lose its values"
    assert columns(directory, "local", "n", "_schema") == [(LOCAL, None, 4), (None, 1, 3)]


def element_ids(file: str) -> tuple[int, int]:
    """The numbers of an array and of its elements in a file; -1 for one that has none."""
    array = pq.ParquetFile(file.removeprefix("file://")).schema_arrow.field("m")
    parts = (array, array.type.value_field)
    return tuple(int((each.metadata or {}).get(b"PARQUET:field_id", -1)) for each in parts)  # type: ignore[return-value]


async def test_elements_of_arrays_have_numbers_for_good(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg goes by them, and its readers refuse a file whose arrays have elements without one."""
    log = await LogWriter.open(directory, shards=1)
    process = await Process.start(directory, log)
    versions = [StreamSchema(3, parse_schema("m array<int>")), DAYS, StreamSchema(9, parse_schema("a array<int>"))]
    for number, known in enumerate([versions[0], *versions]):
        with monkeypatch.context() as earlier:
            if not number:  # as the first release wrote it
                earlier.setattr("weft.storage.table.parquet._with_ids", lambda _column, kind, _taken: kind)
            await log.append(0, readings({"m": [number, None]}, first=number))
            await process.write(known)
    files = [uri for uri in table(directory).file_uris() if "m" in pq.read_schema(uri.removeprefix("file://")).names]
    numbers = {element_ids(file) for file in files}
    assert numbers == {(845_743_027, -1), (845_743_027, 312_391_012)}
    wanted = [([0, None],), ([1, None],), ([2, None],), (None,)]
    assert columns(directory, "m") == wanted
    assert pl.scan_delta(table(directory)).sort("_offset").select("m").collect().rows() == wanted
    await joined(directory, process)
    (file,) = table(directory).file_uris()
    assert element_ids(file) == (845_743_027, 312_391_012)
    assert columns(directory, "m") == wanted
