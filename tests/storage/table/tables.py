"""Delta tables made by hand, small ones by deltalake and large ones as nothing but a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from weft.storage.object_store import ObjectStore
from weft.storage.table.actions import DataFile, DeltaState
from weft.storage.table.delta_log import TableLog

KEY = "tables/default/telemetry"
SCHEMA = pa.schema([("_shard", pa.int32()), ("_offset", pa.int64()), ("text", pa.string())])


def stats(shard: int, first: int, end: int) -> str:
    low, high = {"_shard": shard, "_offset": first}, {"_shard": shard, "_offset": end - 1}
    return json.dumps({"numRecords": end - first, "minValues": low, "maxValues": high, "nullCount": {}})


async def new_file(store: ObjectStore, first: int, end: int, shard: int = 0) -> DataFile:
    """A file of rows in the store that no version has yet."""
    rows = pa.table(
        {"_shard": [shard] * (end - first), "_offset": range(first, end), "text": [f"{n}" for n in range(first, end)]},
        SCHEMA,
    )
    out = pa.BufferOutputStream()
    pq.write_table(rows, out)
    data = out.getvalue().to_pybytes()
    path = f"shard-{shard}-{first}-{end}.parquet"
    await store.create(f"{KEY}/{path}", data)
    return DataFile(path, len(data), end - first, shard, first, end, 1_700_000_000_000, stats(shard, first, end))


def table(store: ObjectStore) -> DeltaTable:
    uri, options = store.location(KEY)
    return DeltaTable(uri, storage_options=options)


def create(store: ObjectStore) -> None:
    uri, options = store.location(KEY)
    DeltaTable.create(uri, SCHEMA, storage_options=options)


async def reading(log: TableLog) -> DeltaState:
    state = await log.read()
    assert state is not None
    return state


def checkpointed(folder: Path, files: int, version: int, app: str, position: int) -> None:
    """A table whose log is one checkpoint with some number of files of 512 MiB, and the entry that it stands for."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    fields = [
        {"name": each.name, "type": kind, "nullable": True, "metadata": {}}
        for each, kind in zip(SCHEMA, ("integer", "long", "string"), strict=True)
    ]
    metadata = {
        "id": "4ac6f9c5-2a6e-4b23-8a1a-3f1f3f1f3f1f",
        "name": None,
        "description": None,
        "format": {"provider": "parquet", "options": []},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "createdTime": 0,
        "configuration": [("delta.appendOnly", "false")],
    }
    paths = [f"shard-0-{n:020d}-{n + 1:020d}-0123456789abcdef.parquet" for n in range(files)]
    bounds = [stats(0, n, n + 1) for n in range(files)]
    pairs = pa.map_(pa.string(), pa.string())
    adds = pa.StructArray.from_arrays(
        [
            pa.array(paths),
            pa.array([[]], pairs).take(pa.array([0] * files)),
            pa.array([512 << 20] * files, pa.int64()),
            pa.array([0] * files, pa.int64()),
            pa.array([True] * files),
            pa.array(bounds),
        ],
        names=["path", "partitionValues", "size", "modificationTime", "dataChange", "stats"],
    )
    first = pa.array([{"minReaderVersion": 1, "minWriterVersion": 2}, None, None])
    kinds = {
        "protocol": pa.array(first, pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])),
        "metaData": pa.array(
            [None, metadata, None],
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", pairs)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("createdTime", pa.int64()),
                    ("configuration", pairs),
                ]
            ),
        ),
        "txn": pa.array(
            [None, None, {"appId": app, "version": position}],
            pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
        ),
    }
    facts = pa.table(kinds | {"add": pa.nulls(3, adds.type)})
    rest = pa.table({name: pa.nulls(files, column.type) for name, column in kinds.items()} | {"add": adds})
    whole = pa.concat_tables([rest.slice(0, files // 2), facts, rest.slice(files // 2)]).combine_chunks()
    pq.write_table(whole, log / f"{version:020d}.checkpoint.parquet", row_group_size=1 << 20, compression="zstd")
    (log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": len(whole)}))
    (log / f"{version:020d}.json").write_text('{"commitInfo":{"operation":"WRITE"}}\n')
