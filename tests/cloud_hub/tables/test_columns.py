"""Typed columns of the hub's tables: by a declared schema, whichever process knows which version of it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import QueryBuilder

from bench.log_writer import Delivery
from bench.log_writer import LogWriter as LogWriterLogWriter
from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.tables.drift import COLUMNS, DRIFTS, SCHEMA, expected, page, shown, silent_nulls
from tests.cloud_hub.tables.logs import LANE, OTHER, TOPICS, LogWriter, Run, contents, rows, table
from tests.cloud_hub.tables.logs import expected as logs_expected
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.support.waiting import PATIENCE_S, until
from weft.client import Client
from weft.cloud_hub.facts.streams import set_schema
from weft.cloud_hub.hub import Hub
from weft.config.links import Link as LinkConfig
from weft.config.load import parse, parse_schema
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.edge_node.links.links import Links
from weft.edge_node.timing import clock_reader, wall_clock
from weft.proofs.audit.audit import audit
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.protocols.lane import Origin, OriginKind
from weft.protocols.payloads import PayloadKind
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.payloads.check import PayloadCheck
from weft.storage.segment_log import LogSettings, SegmentLog
from weft.storage.table import typed_columns
from weft.storage.table.actions import PAYLOAD_PROPERTY
from weft.storage.table.delta import DeltaHandle
from weft.storage.table.rows import row_schema
from weft.storage.table.schemas import StreamSchema
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.service import TableService
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
    assert {"timestampNtz", "appendOnly", "invariants"} == {*(protocol.writer_features or ())}, "delta-spark wants all"
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


# --- A table whose stream says `payload: json` or `text`: strings that engines open, and no byte lost


PAYLOADS = [b'{"t": 21.5}', b"\xff\x00", b"plain", b"", b'{"t": "\xc3\xa9"}', b'{"t": 1']
JSON, TEXT, BYTES = PayloadKind.JSON, PayloadKind.TEXT, PayloadKind.BYTES


def run(first: int = 0, kind: int | None = None, lane: object = LANE, payloads: list[bytes] = PAYLOADS) -> Run:
    return Run(lane, first, len(payloads), topics=TOPICS, payloads=payloads, kind=kind)  # type: ignore[arg-type]


def payloads(store: ObjectStore) -> list[tuple[object, object]]:
    found = rows(store, columns=["_shard", "_offset", "payload", "_payload_bytes"]).to_pylist()
    return [(row["payload"], row["_payload_bytes"]) for row in found]


def payloads_columns(store: ObjectStore) -> dict[str, pa.DataType]:
    schema = pa.schema(table(store).schema())
    return {name: schema.field(name).type for name in schema.names if "payload" in name}


AS_JSON = [
    ('{"t": 21.5}', None),
    (None, b"\xff\x00"),
    (None, b"plain"),
    (None, b""),
    ('{"t": "é"}', None),
    (None, b'{"t": 1'),
]
AS_TEXT = [
    ('{"t": 21.5}', None),
    (None, b"\xff\x00"),
    ("plain", None),
    ("", None),
    ('{"t": "é"}', None),
    ('{"t": 1', None),
]


@pytest.mark.parametrize(("kind", "expected"), [(JSON, AS_JSON), (TEXT, AS_TEXT)])
async def test_payloads_are_strings_and_what_is_none_keeps_its_bytes(
    store: ObjectStore, kind: PayloadKind, expected: list[tuple[object, object]]
) -> None:
    log = await LogWriter.open(store)
    await log.append(0, run(kind=kind))
    await drain(tierer := await new_tierer(store, log))
    assert payloads(store) == expected
    assert payloads_columns(store) == {"payload": pa.string(), "_payload_bytes": pa.binary()}
    assert (tierer.payload, table(store).metadata().configuration[PAYLOAD_PROPERTY]) == (kind, kind.label)
    protocol = table(store).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


async def test_engines_open_the_json_of_a_table_that_has_other_bytes_too(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run(kind=JSON))
    await drain(await new_tierer(directory, log))
    files = table(directory).file_uris()
    query = "SELECT (payload->>'$.t') AS t FROM read_parquet(?) WHERE payload->>'$.t' IS NOT NULL ORDER BY t"
    assert duckdb.execute(query, [files]).fetchall() == [("21.5",), ("é",)]
    database = duckdb.connect()
    database.register("telemetry", table(directory).to_pyarrow_dataset())
    assert database.execute("SELECT count(payload::JSON) FROM telemetry").fetchall() == [(2,)]
    found = pl.scan_delta(table(directory)).select(pl.col("payload").str.json_path_match("$.t")).collect()
    assert sorted(found["payload"].drop_nulls()) == ["21.5", "é"]


async def test_a_rewrite_and_a_restart_keep_payloads_as_they_were(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    for number in range(3):
        await log.append(0, run(number * len(PAYLOADS), JSON if number == 0 else None))
        await drain(tierer := await new_tierer(directory, log))
    await Maintenance(directory, tierer, settings=TableSettings(compact_files_min=2)).maintain()
    assert len(table(directory).file_uris()) == 1
    assert payloads(directory) == AS_JSON * 3


@pytest.mark.parametrize("order", [(JSON, TEXT), (TEXT, JSON), (BYTES, JSON), (99, JSON)])
async def test_of_edges_that_differ_the_strictest_counts_in_any_order(directory: ObjectStore, order: list[int]) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run(kind=order[0]), run(kind=order[1], lane=OTHER))
    await drain(await new_tierer(directory, log))
    assert payloads(directory) == AS_JSON * 2


async def test_a_table_of_bytes_stays_one_and_the_hub_says_so_once(
    directory: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run())
    await drain(await new_tierer(directory, log))
    await log.append(0, run(6, JSON))
    await log.append(0, run(0, JSON, OTHER))
    tierer = await new_tierer(directory, log)
    with caplog.at_level(logging.WARNING):
        await drain(tierer)
    assert payloads_columns(directory) == {"payload": pa.binary()}
    assert rows(directory).column("payload").to_pylist() == PAYLOADS * 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "the table of default/telemetry has payloads as bytes and keeps them; edge press-1 has payload: json. "
        "To change the table, move it away: the hub makes it again from the log"
    )


async def test_a_table_of_json_stays_one_when_edges_say_something_else(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run(kind=JSON))
    await drain(await new_tierer(directory, log))
    await log.append(0, run(6, BYTES))
    await log.append(1, run(0, TEXT, OTHER))
    await drain(await new_tierer(directory, log))
    assert payloads(directory) == AS_JSON * 3


async def test_a_table_moved_away_is_made_for_what_edges_say_now(directory: ObjectStore, tmp_path: Path) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, run())
    service = TableService(directory, log.cluster)
    await service.run_once()
    assert service.payload("default", "telemetry") is BYTES
    await log.append(0, run(6, JSON))
    await service.run_once()
    assert payloads_columns(directory) == {"payload": pa.binary()}
    shutil.move(tmp_path / "store/tables/default/telemetry", tmp_path / "moved")
    await drain(await new_tierer(directory, log))
    assert payloads(directory) == AS_JSON * 2


async def test_a_level_that_is_called_like_our_column_changes_nothing(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 2, b"a/b", ["{_payload_bytes}/{line}"], payloads=[b"1", b"\xff"], kind=JSON))
    await drain(await new_tierer(directory, log))
    assert payloads(directory) == [("1", None), (None, b"\xff")]


# --- Drift of payloads through edge, hub and engines: each value is in its column, or has a reason, in all alike


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "typed-tables.md"


async def test_all_kinds_of_drift_show_the_same_in_edge_hub_and_engines(directory: ObjectStore) -> None:
    assert silent_nulls() == []
    log = await LogWriter.open(directory, shards=1)
    await log.append(0, readings(*(each.payload.encode() for each in DRIFTS)))
    await (await Process.start(directory, log)).write(SCHEMA)
    names = ["_offset", *COLUMNS, "_misfit"]
    check = PayloadCheck(SCHEMA.schema)
    at_the_edge = [tuple(sorted(dict(check.misfits(each.payload.encode())))) for each in DRIFTS]
    assert at_the_edge == [misfits for _, misfits in expected()]
    assert [shown(row) for row in rows(directory).to_pylist()] == expected()
    by_polars = pl.scan_delta(table(directory)).select(names).sort("_offset").collect()
    assert [shown(row) for row in by_polars.to_dicts()] == expected()
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.register("telemetry", table(directory).to_pyarrow_dataset())
    columns = ", ".join(f'"{name}"' for name in names)  # `at` is a word of its own there
    (file,) = (path.removeprefix("file://") for path in table(directory).file_uris())
    for source in ("telemetry", f"read_parquet('{file}')"):
        found = database.sql(f"SELECT {columns} FROM {source} ORDER BY _offset").fetchall()
        assert [shown(dict(zip(names, row, strict=True))) for row in found] == expected(), source


async def test_rows_through_a_hub_have_the_columns_of_the_declared_schema(directory: ObjectStore) -> None:
    """With a token and no key of the store, a program sees what the engines see, in Arrow, pandas and polars."""
    log = await LogWriter.open(directory, shards=1)
    await log.append(0, readings(*(each.payload.encode() for each in DRIFTS)))
    declared = ClusterLog(directory, log.cluster.cluster_id)
    before = await declared.append(set_schema(("default", "telemetry"), SCHEMA.schema), Author(0, "mara", ""))
    async with running_hub(directory, shards=1) as hub:
        client = Client(hub.url)
        (found,) = await asyncio.to_thread(lambda: list(client.all_rows("telemetry", 0)))
        plain = await asyncio.to_thread(lambda: client.rows("telemetry", shard=0, columns=None))
        status, looked = await get(hub, "/v1/streams/telemetry/rows?shard=0&format=json&columns=typed&limit=9")
    assert [shown(row) for row in found.arrow().to_pylist()] == expected()
    assert [shown(row) for row in found.polars().to_dicts()] == expected()
    assert found.pandas()["t"].count() == sum("t" in (each.shows or {}) for each in DRIFTS)
    assert set(found.arrow()["_schema"].to_pylist()) == {before.n}
    assert found.arrow().schema.field("t").metadata[b"comment"] == "[°C]".encode()
    assert not {*COLUMNS, "_misfit", "_schema"} & set(plain.arrow().column_names), "older readers make their own"
    assert (status, [row.get("t") for row in looked["rows"]]) == (
        200,
        [(each.shows or {}).get("t") for each in DRIFTS[:9]],
    )


def test_the_page_shows_what_was_found() -> None:
    text = PAGE.read_text()
    missing = [line for line in page() if line not in text]
    assert not missing, "rows for the table of drift in docs/how-to/typed-tables.md:\n" + "\n".join(page())


# --- Column ``_origin``: which version of which function made a row, whatever its number meant before


FUNCTION = OriginKind.FUNCTION
ORIGINS_FIRST, ORIGINS_SECOND = (Origin(1, FUNCTION, "calm", version, bytes([7] * 8)) for version in ("1", "2"))


def origins(store: ObjectStore) -> list[str | None]:
    found: list[str | None] = rows(store).column("_origin").to_pylist()
    return found


@pytest.fixture
def origins_store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    loop = asyncio.new_event_loop()
    log = SegmentLog.open(
        str(tmp_path / "data"),
        LogSettings(segment_bytes=1 << 20),
        wall_clock=wall_clock,
        clock_reading=clock_reader(),
        random_bits=random.getrandbits,
        post=lambda callback: callback(),
        start_writer=False,
    )
    yield log
    log.close()
    loop.close()


def append(log: SegmentLog, *payloads: bytes, origin: int = 0) -> None:
    log.append(
        log.stream("telemetry"), wall_clock(), [b"plant/a/m1/telemetry"] * len(payloads), list(payloads), origin=origin
    )
    log.committer.run_once()


async def deliver(log: SegmentLog, hub: Hub, folder: Path, records: int) -> None:
    """Replicate a log, until this many records of it were acknowledged to this link."""
    link = LinkConfig(to=(hub.url,), retry_min_s=0.01, retry_max_s=0.05)
    streams = {"telemetry": Stream(from_=("plant/{line}/{machine}/telemetry",))}
    config = EdgeConfig(node="press-1", data_dir=str(folder), streams=streams, links={"cloud": link})
    links = Links(config, log, wall_clock=wall_clock)
    links.start()
    await until(lambda: links.statuses[0].records_acked == records)
    await links.close()


@pytest.mark.slow
async def test_two_versions_of_a_function_and_a_device_share_a_table(
    tmp_path: Path, origins_store: ObjectStore, log: SegmentLog
) -> None:
    """From the edge's log over a link to a hub, and into DuckDB. A second link tells the numbers again."""
    first = log.origin(FUNCTION, "calm", "1", bytes.fromhex("8a1f03c4aa"))
    append(log, b"1", b"2")
    append(log, b"3", origin=first)
    async with running_hub(origins_store, table_interval_s=0.05) as hub:
        await deliver(log, hub, tmp_path / "data", 3)
        second = log.origin(FUNCTION, "calm", "2", bytes.fromhex("ffeeddcc"))
        append(log, b"4", b"5", origin=second)
        append(log, b"6", origin=first)
        await deliver(log, hub, tmp_path / "data", 3)
        made = tmp_path / "store/tables/default/telemetry/_delta_log/00000000000000000000.json"
        await until(lambda: made.exists() and rows(origins_store).num_rows == 6)
    telemetry = table(origins_store).to_pyarrow_dataset()
    assert telemetry.count_rows() == 6
    found = duckdb.sql("SELECT payload::VARCHAR, _origin FROM telemetry ORDER BY _seq").fetchall()
    one, two = "calm@1#8a1f03c4", "calm@2#ffeeddcc"
    assert found == [("1", None), ("2", None), ("3", one), ("4", two), ("5", two), ("6", one)]
    report = await audit(origins_store, "default", "telemetry", payloads=True)
    assert (report.agrees, report.origins()) == (True, {one: 2, two: 2})


async def test_a_number_means_what_its_chunk_says(origins_store: ObjectStore) -> None:
    """The lane forgets, and learns another meaning, before the table gets to the first chunk."""
    writer = await LogWriter.open(origins_store)
    await writer.append(0, Run(LANE, 0, 2, origin=ORIGINS_FIRST))
    await writer.append(0, Run(LANE, 2, 2, origin=ORIGINS_SECOND))
    await writer.append(0, Run(LANE, 4, 1))
    await drain(await new_tierer(origins_store, writer))
    assert origins(origins_store) == ["calm@1#07070707"] * 2 + ["calm@2#07070707"] * 2 + [None]


async def test_a_number_that_nothing_explains_stays_a_number(origins_store: ObjectStore) -> None:
    writer = await LogWriter.open(origins_store)
    await writer.append(0, Run(LANE, 0, 1, origin=ORIGINS_FIRST, explained=False))
    await drain(await new_tierer(origins_store, writer))
    assert origins(origins_store) == ["#1"]


def made_before(store: ObjectStore, **columns: pa.DataType) -> None:
    """Make a table as a release without the column did, or one whose owner added columns."""
    uri, options = store.location("tables/default/telemetry")
    schema = row_schema([])
    schema = schema.remove(schema.get_field_index("_origin"))
    for name, kind in columns.items():
        schema = schema.append(pa.field(name, kind))
    DeltaHandle.create(uri, options, schema, {})


async def test_a_table_made_before_gets_the_column_once(origins_store: ObjectStore) -> None:
    writer = await LogWriter.open(origins_store)
    made_before(origins_store)
    tierer = await new_tierer(origins_store, writer)
    for number in range(4):
        await writer.append(0, Run(LANE, number, 1, origin=ORIGINS_FIRST if number > 1 else None))
        for view in tierer._views:
            await view.log.extend(view.state)
        await drain(tierer)
    assert origins(origins_store) == [None, None, "calm@1#07070707", "calm@1#07070707"]
    operations = [entry["operation"] for entry in table(origins_store).history()]
    assert operations.count("ADD COLUMN") == 1


async def test_files_without_and_with_numbers_of_columns_are_read_together(
    origins_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What releases without the numbers wrote, and later files: every reader goes by the names."""
    writer = await LogWriter.open(origins_store)
    with monkeypatch.context() as earlier:
        earlier.setattr("weft.storage.table_writer.parquet_file.with_field_ids", lambda schema: schema)
        await writer.append(0, Run(LANE, 0, 3))
        await drain(await new_tierer(origins_store, writer))
    await writer.append(0, Run(LANE, 3, 2, origin=ORIGINS_SECOND))
    tierer = await new_tierer(origins_store, writer)
    await drain(tierer)
    wanted = [(None, 0), (None, 1), (None, 2), ("calm@2#07070707", 3), ("calm@2#07070707", 4)]
    for joined in (False, True):
        if joined:
            maintenance = Maintenance(origins_store, tierer, settings=TableSettings(compact_files_max=2))
            await maintenance.compact(await tierer.take())
        files = table(origins_store).file_uris()
        numbered = sorted(pq.read_schema(file).field("_seq").metadata is not None for file in files)
        assert numbered == ([True] if joined else [False, True])
        telemetry = table(origins_store).to_pyarrow_dataset()
        assert telemetry.count_rows() == 5
        assert duckdb.sql("SELECT _origin, _seq FROM telemetry ORDER BY _seq").fetchall() == wanted
        by_files = f"SELECT _origin, _seq FROM read_parquet({files}) ORDER BY _seq"
        assert duckdb.sql(by_files).fetchall() == wanted
        assert pl.scan_delta(table(origins_store)).select("_origin", "_seq").sort("_seq").collect().rows() == wanted
        assert pl.scan_parquet(files).select("_origin", "_seq").sort("_seq").collect().rows() == wanted
        assert contents(origins_store) == logs_expected({0: [Run(LANE, 0, 3), Run(LANE, 3, 2)]})


async def test_files_of_before_and_after_are_joined(
    origins_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that a release without the column wrote, and later ones, in one file after maintenance."""
    writer = await LogWriter.open(origins_store)
    made_before(origins_store)
    settings = TableSettings(compact_files_max=2)
    with monkeypatch.context() as earlier:
        earlier.setattr("weft.storage.table_writer.tiering.lacking", lambda _: [])
        await writer.append(0, Run(LANE, 0, 3))
        await drain(await new_tierer(origins_store, writer))
    assert "_origin" not in rows(origins_store).column_names
    await writer.append(0, Run(LANE, 3, 2, origin=ORIGINS_SECOND))
    tierer = await new_tierer(origins_store, writer)
    await drain(tierer)
    await Maintenance(origins_store, tierer, settings=settings).compact(await tierer.take())
    assert len(table(origins_store).file_uris()) == 1
    assert origins(origins_store) == [None] * 3 + ["calm@2#07070707"] * 2
    assert contents(origins_store) == logs_expected({0: [Run(LANE, 0, 3), Run(LANE, 3, 2)]})


@pytest.mark.parametrize("column", [{"_Origin": pa.string()}, {"_origin": pa.int64()}])
async def test_a_column_of_the_owner_by_that_name_is_left_alone(
    origins_store: ObjectStore, column: dict[str, pa.DataType]
) -> None:
    writer = await LogWriter.open(origins_store)
    made_before(origins_store, **column)
    await writer.append(0, Run(LANE, 0, 3, origin=ORIGINS_FIRST))
    await drain(await new_tierer(origins_store, writer))
    assert contents(origins_store) == logs_expected({0: [Run(LANE, 0, 3)]})
    assert rows(origins_store).column(*column).to_pylist() == [None] * 3


async def test_an_audit_counts_what_functions_made_in_a_table_that_was_made_before(origins_store: ObjectStore) -> None:
    writer = await LogWriter.open(origins_store)
    made_before(origins_store)
    await writer.append(0, Run(LANE, 0, 3), Run(LANE, 3, 2, origin=ORIGINS_FIRST))
    report = await audit(origins_store, "default", "telemetry")
    assert (report.agrees, report.origins()) == (True, {"calm@1#07070707": 2})


# --- docs/how-to/open-the-table.md: its queries of JSON run as they stand, on a table that its own settings made


ROOT = Path(__file__).parents[3]
OPEN_THE_TABLE_PAGE = (ROOT / "docs/how-to/open-the-table.md").read_text("utf-8")
BLOCKS = re.findall(r"needs a stream of payload: json -->\n```python\n(.*?)```", OPEN_THE_TABLE_PAGE, re.DOTALL)
SETTINGS = re.findall(r"```yaml\n(.*?)```", OPEN_THE_TABLE_PAGE, re.DOTALL)
AT = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp()) * 1_000_000_000


def reading(number: int) -> bytes:
    return json.dumps({"temperature": 20 + number}).encode()


@pytest.fixture
def open_the_table_store(tmp_path: Path) -> Path:
    log = LogWriterLogWriter(str(tmp_path / "store"))
    keys = [b"plant/press/m%d/telemetry" % (number % 2) for number in range(6)]
    payloads = [*map(reading, range(4)), b"not JSON", b"\xff"]
    columns = batch.columns_from_lists(struct.pack("<6q", *[AT] * 6), keys, payloads)
    data = batch.encode(1, 0, columns, ClockReading(1, 1, ClockState.SYNCED))
    said = parse(SETTINGS[0], str(tmp_path / "edge.yaml"), EdgeConfig).config
    telemetry = said.streams["telemetry"]
    assert telemetry.payload is not None
    kind = PayloadKind[telemetry.payload.kind.upper()]
    log.write(Delivery("press-1", [data], topics=telemetry.from_, payload=kind), received=AT)
    asyncio.run(TableService(log.store, log.cluster).run_once())
    return tmp_path


def open_the_table_run(block: str, store: Path) -> str:
    """Run a block in its folder, one with Spark in a process of its own, and return what it prints."""
    if "spark_sinks" not in block:
        printed = io.StringIO()
        with contextlib.chdir(store), contextlib.redirect_stdout(printed):
            exec(block, {})
        return printed.getvalue()
    command = [sys.executable, "-c", block]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=store, env=path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "engine", ["duckdb", "polars", pytest.param("spark_sinks", marks=[pytest.mark.spark, pytest.mark.slow])]
)
def test_a_query_gives_the_mean_of_the_json(open_the_table_store: Path, engine: str) -> None:
    block = next(block for block in BLOCKS if engine in block)
    found = open_the_table_run(block, open_the_table_store)
    assert re.search(r"m0\W+21\.0", found)
    assert re.search(r"m1\W+22\.0", found)


def test_what_is_not_json_is_found(open_the_table_store: Path) -> None:
    (block,) = (block for block in BLOCKS if "_payload_bytes" in block)
    found = open_the_table_run(block, open_the_table_store)
    assert "plant/press/m0/telemetry" in found
    assert "plant/press/m1/telemetry" in found


def test_every_block_is_run_by_a_test() -> None:
    assert len(BLOCKS) == 4
