"""Commits to a table's log without its list of files: they are right beside any other writer, and engines read them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.cloud_hub.faulty_store import Faults, FaultyStore
from tests.storage.table.tables import KEY, SCHEMA, checkpointed, create, new_file, reading, stats, table
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from tests.support.speed import slowness
from weft.storage.object_store import NotFound, ObjectStore, StoreError, open_store
from weft.storage.object_store.directory import MemoryStore
from weft.storage.table.actions import AddedFile, DataFile, TableConflict, TableError, TableSize
from weft.storage.table.delta_log import TableLog
from weft.storage.table.files import SmallFiles, TableFile, checkpoint_files

APP = "weft/00/telemetry/0"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def log(store: ObjectStore) -> TableLog:
    create(store)
    return TableLog(store, KEY)


async def append(store: ObjectStore, log: TableLog, first: int, end: int) -> None:
    await log.append(await reading(log), [await new_file(store, first, end)], {APP: end}, 1)


def by_engine(store: ObjectStore, version: int | None = None) -> dict[str, list[int]]:
    """The offsets that each engine reads at a version. DuckDB reads the dataset of delta-rs: its extension for Delta is
    not in its wheel."""
    uri, _ = store.location(KEY)
    rows = DeltaTable(uri, version).to_pyarrow_dataset()
    found = {
        "delta-rs": DeltaTable(uri, version).to_pyarrow_table().column("_offset").to_pylist(),
        "Polars": pl.scan_delta(uri, version=version).collect()["_offset"].to_list(),
        "DuckDB": [row[0] for row in duckdb.connect().from_arrow(rows).project("_offset").fetchall()],
    }
    return {name: sorted(offsets) for name, offsets in found.items()}


def read_by_all(store: ObjectStore, offsets: range, version: int | None = None) -> None:
    assert by_engine(store, version) == {name: list(offsets) for name in ("delta-rs", "Polars", "DuckDB")}


async def test_every_version_is_read_by_every_engine(store: ObjectStore, log: TableLog) -> None:
    for first in (0, 3):
        await append(store, log, first, first + 3)
    table(store).create_checkpoint()
    await append(store, log, 6, 9)
    state = await reading(log)
    small = SmallFiles(1 << 20)
    await log.follow(small)
    both = await new_file(store, 0, 6)
    old = sorted(file for file in small.files.values() if file.end_offset <= 6)
    assert len(old) == 2
    state = await log.replace(state, old, both, 2, listed=small.version)
    state = await log.alter(state, "ADD COLUMN", state.with_text_columns(["line"]), 3)
    await append(store, log, 9, 12)
    for version, end in enumerate((0, 3, 6, 9, 9, 9, 12)):
        read_by_all(store, range(end), version)
    history = [(entry["operation"], entry.get("isBlindAppend")) for entry in table(store).history()]
    assert history[:3] == [("WRITE", True), ("ADD COLUMN", False), ("OPTIMIZE", False)]
    assert [name for name, _ in (await reading(log)).columns()] == ["_shard", "_offset", "text", "line"]
    assert table(store).transaction_version(APP) == (await reading(log)).transactions[APP] == 12
    sizes = pa.table(table(store).get_add_actions()).column("size_bytes").to_pylist()
    for follower in (small, SmallFiles(1)):
        await log.follow(follower)
        assert follower.size == TableSize(len(sizes), sum(sizes)), "of large files too, from checkpoint and entries"


class TestBesideOthers:
    async def test_appends_at_once_are_all_there(self, store: ObjectStore, log: TableLog) -> None:
        """Writers with positions of their own, which do not concern each other."""
        state = await reading(log)
        files = [await new_file(store, 3 * n, 3 * n + 3, shard=n) for n in range(8)]
        logs = [TableLog(store, KEY) for _ in files]
        await asyncio.gather(
            *(
                each.append(state, [file], {f"weft/00/telemetry/{file.shard}": 3}, 1)
                for each, file in zip(logs, files, strict=True)
            )
        )
        read_by_all(store, range(24))
        assert table(store).version() == 8

    async def test_the_same_position_is_moved_once(self, store: ObjectStore, log: TableLog) -> None:
        state = await reading(log)
        file = await new_file(store, 0, 3)
        outcomes = await asyncio.gather(
            *(TableLog(store, KEY).append(state, [file], {APP: 3}, 1) for _ in range(5)), return_exceptions=True
        )
        assert sum(isinstance(each, TableConflict) for each in outcomes) == 4
        read_by_all(store, range(3))

    async def test_an_optimize_and_a_delete_of_others_do_not_concern_an_append(
        self, store: ObjectStore, log: TableLog
    ) -> None:
        await append(store, log, 0, 3)
        await append(store, log, 3, 6)
        state, file = await reading(log), await new_file(store, 6, 9)
        table(store).optimize.compact()
        table(store).delete("_offset = 0")
        await log.append(state, [file], {APP: 9}, 1)
        read_by_all(store, range(1, 9))

    async def test_a_join_of_files_that_another_removed_is_refused(self, store: ObjectStore, log: TableLog) -> None:
        await append(store, log, 0, 3)
        await append(store, log, 3, 6)
        state, both, small = await reading(log), await new_file(store, 0, 6), SmallFiles(1 << 20)
        await log.follow(small)
        await append(store, log, 6, 9)
        table(store).delete("_offset = 0")
        with pytest.raises(TableConflict, match="removed"):
            await log.replace(state, [*small.files.values()], both, 2, listed=small.version)
        read_by_all(store, range(1, 9))

    async def test_a_join_of_files_that_were_listed_before_the_version_is_refused(
        self, store: ObjectStore, log: TableLog
    ) -> None:
        await append(store, log, 0, 3)
        await append(store, log, 3, 6)
        both, small = await new_file(store, 0, 6), SmallFiles(1 << 20)
        await log.follow(small)
        await log.replace(await reading(log), [*small.files.values()], both, 2, listed=small.version)
        with pytest.raises(TableConflict, match="files of version 2"):
            await log.replace(await reading(log), [*small.files.values()], both, 2, listed=small.version)
        read_by_all(store, range(6))

    async def test_a_join_goes_on_beside_appends(self, store: ObjectStore, log: TableLog) -> None:
        await append(store, log, 0, 3)
        await append(store, log, 3, 6)
        state, both, small = await reading(log), await new_file(store, 0, 6), SmallFiles(1 << 20)
        await log.follow(small)
        await append(store, log, 6, 9)
        await log.replace(state, [*small.files.values()], both, 2, listed=small.version)
        read_by_all(store, range(9))
        assert len(table(store).file_uris()) == 2

    async def test_another_schema_is_read_before_the_commit(self, store: ObjectStore, log: TableLog) -> None:
        state = await reading(log)
        fields = DeltaTable(store.location(KEY)[0]).schema().fields[:1]
        renamed = json.loads(fields[0].to_json()) | {"name": "more"}
        table(store).alter.add_columns([type(fields[0]).from_json(json.dumps(renamed))])
        with pytest.raises(TableConflict, match="schema"):
            await log.append(state, [await new_file(store, 0, 3)], {APP: 3}, 1)

    async def test_transactions_of_others_cost_no_memory(self, store: ObjectStore, log: TableLog) -> None:
        uri, _ = store.location(KEY)
        for number in range(3):
            rows = table(store).to_pyarrow_table()
            others = CommitProperties(app_transactions=[Transaction(f"query-{number}", 1)])
            write_deltalake(uri, rows, mode="append", commit_properties=others)
        assert (await reading(log)).transactions == {}


class TestWhatOthersDemand:
    @pytest.mark.parametrize(
        ("properties", "text"),
        [
            ({"delta.constraints.positive": "_offset >= 0"}, "delta.constraints.positive"),
            ({"delta.columnMapping.mode": "name"}, "delta.columnMapping.mode"),
        ],
    )
    async def test_what_a_writer_must_check_or_rename(
        self, store: ObjectStore, log: TableLog, properties: dict[str, str], text: str
    ) -> None:
        state = await reading(log)
        state = await log.alter(state, "SET TBLPROPERTIES", state.with_properties(properties), 1)
        with pytest.raises(TableError, match=rf"{text}.*move the table away"):
            await log.append(state, [], {APP: 3}, 1)

    @pytest.mark.parametrize(
        ("actions", "text"),
        [
            (
                {
                    "protocol": {
                        "minReaderVersion": 3,
                        "minWriterVersion": 7,
                        "readerFeatures": ["v2Checkpoint"],
                        "writerFeatures": ["v2Checkpoint", "rowTracking"],
                    }
                },
                "rowTracking, v2Checkpoint",
            ),
            ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}}, "minWriterVersion 8"),
        ],
    )
    async def test_unknown_features(self, store: ObjectStore, log: TableLog, actions: Any, text: str) -> None:
        await store.create(f"{KEY}/_delta_log/{1:020d}.json", json.dumps(actions).encode())
        with pytest.raises(TableError, match=text):
            await log.append(await reading(log), [], {APP: 3}, 1)

    async def test_a_partitioned_table(self, tmp_path: Path, store: ObjectStore) -> None:
        DeltaTable.create(store.location(KEY)[0], SCHEMA, partition_by=["text"])
        log = TableLog(store, KEY)
        with pytest.raises(TableError, match="partition by text"):
            await log.append(await reading(log), [], {APP: 3}, 1)


class TestReading:
    async def test_a_checkpoint_of_any_engine_and_of_several_parts(self, store: ObjectStore, log: TableLog) -> None:
        await append(store, log, 0, 3)
        table(store).create_checkpoint()
        folder = Path(store.location(KEY)[0]) / "_delta_log"
        for version in (0, 1):
            (folder / f"{version:020d}.json").unlink()
        (whole,) = folder.glob("*.checkpoint.parquet")
        (folder / "_last_checkpoint").write_text(json.dumps({"version": 1, "size": 5, "parts": 2}))
        (folder / f"{1:020d}.checkpoint.{1:010d}.{2:010d}.parquet").write_bytes(whole.read_bytes())
        (folder / f"{1:020d}.checkpoint.{2:010d}.{2:010d}.parquet").write_bytes(whole.read_bytes())
        whole.unlink()
        state = await reading(TableLog(store, KEY))
        assert (state.version, state.transactions) == (1, {APP: 3})
        (folder / f"{1:020d}.checkpoint.{2:010d}.{2:010d}.parquet").unlink()
        with pytest.raises(TableError, match="checkpoint of version 1"):
            await TableLog(store, KEY).read()

    async def test_a_log_whose_pointer_to_its_checkpoint_is_lost(self, store: ObjectStore, log: TableLog) -> None:
        await append(store, log, 0, 3)
        table(store).create_checkpoint()
        folder = Path(store.location(KEY)[0]) / "_delta_log"
        for name in (f"{0:020d}.json", f"{1:020d}.json", "_last_checkpoint"):
            (folder / name).unlink()
        assert (await reading(log)).version == 1

    async def test_a_log_that_is_cleaned_up_while_it_is_read(self, store: ObjectStore, log: TableLog) -> None:
        """Entries after an old checkpoint vanish, and a newer checkpoint has them: no version is made twice."""
        for first in range(0, 15, 3):
            await append(store, log, first, first + 3)
        folder = Path(store.location(KEY)[0]) / "_delta_log"
        cleaned: list[str] = []

        class Cleaning:
            def __getattr__(self, name: str) -> Any:
                call = getattr(store, name)

                async def get(key: str) -> Any:
                    found = await call(key) if not key.endswith("_last_checkpoint") or cleaned else None
                    if found is not None:
                        return found
                    cleaned.append(key)
                    table(store).create_checkpoint()
                    for version in range(2, 5):
                        (folder / f"{version:020d}.json").unlink()
                    raise NotFound(key)

                return get if name == "get" else call

        state = await reading(TableLog(Cleaning(), KEY))
        assert (state.version, state.transactions) == (5, {APP: 15})


MEASURE = """
import asyncio, json, sys, time
from pathlib import Path
from weft.storage.object_store import open_store
from weft.storage.table.delta_log import TableLog
from weft.storage.table.actions import DataFile

def memory():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024

async def measure(folder):
    store = open_store(folder)
    await store.list("")
    before, opened, commits = memory(), [], []
    log = TableLog(store, "tables/default/telemetry")
    for _ in range(5):
        began = time.process_time()
        state = await log.read()
        opened.append(time.process_time() - began)
    for number in range(20):
        file = DataFile(f"new-{number}.parquet", 10, 1, 0, number, number + 1, 0, '{"numRecords": 1}')
        began = time.process_time()
        assert await log.is_current(state)
        state = await log.append(state, [file], {"weft/00/telemetry/0": 2_000_000 + number}, 1)
        commits.append(time.process_time() - began)
    return {"opened": min(opened), "commit": min(commits), "mib": memory() - before}

async def main():
    print(json.dumps([await measure(folder) for folder in sys.argv[1:]]))

asyncio.run(main())
"""


def measured(tmp_path: Path, *files: int) -> list[dict[str, float]]:
    """Return, for a table of each number of files, the least processor time of an opening and of a commit in seconds,
    and the memory that both took in MiB, all in one process."""
    for number in files:
        checkpointed(tmp_path / str(number) / KEY, number, 7, APP, 1_000_000)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *(str(tmp_path / str(number)) for number in files)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    return list(json.loads(done.stdout))


@pytest.mark.processes
@pytest.mark.parametrize("files", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_commit_does_not_depend_on_the_number_of_files(tmp_path: Path, files: int) -> None:
    """Proof q4: 0.24 s and 320 MB with 80,000 files."""
    few, many = measured(tmp_path, 20, files)
    assert many["commit"] < 5 * few["commit"] + 0.005
    assert many["mib"] < 100
    assert many["opened"] < 2.0 * slowness()


# --- Several keepers of one table on a store that loses, delays and misreports: each record is in the table once


END = 60
STORM = Faults(lost=0.08, unreported=0.1, misreported=0.08, late=0.12, late_s=0.02, read=0.03, latency_s=0.0005)


def made_file(name: str, first: int, end: int) -> DataFile:
    return DataFile(f"{name}.parquet", 10 * (end - first), end - first, 0, first, end, 1, stats(0, first, end))


def in_order(small: SmallFiles) -> list[DataFile]:
    """The files of a version, checked: every record below its end is in one of them."""
    files = sorted(small.files.values(), key=lambda file: file.first_offset)
    assert all(left.end_offset == right.first_offset for left, right in pairwise(files))
    return files


async def storms_create(store: ObjectStore) -> None:
    schema = json.dumps({"type": "struct", "fields": []})
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": {},
    }
    lines = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    await store.create(f"{KEY}/_delta_log/{0:020d}.json", "\n".join(map(json.dumps, lines)).encode())


async def keep(store: ObjectStore, name: str, chance: random.Random) -> None:
    """Move records into the table as a tierer does, from a held reading while it holds."""
    log, state, number = TableLog(store, KEY), None, 0
    while True:
        with contextlib.suppress(TableConflict, StoreError):
            held, state = state, None
            state = held if held is not None and await log.is_current(held) else await reading(log)
            first = state.transactions.get(APP, 0)
            if first >= END:
                return
            number, end = number + 1, min(END, first + chance.randint(1, 4))
            state = await log.append(state, [made_file(f"{name}-{number}", first, end)], {APP: end}, 1)


async def join(store: ObjectStore, name: str, stop: asyncio.Event) -> None:
    log, small, number = TableLog(store, KEY), SmallFiles(1 << 20), 0
    while not stop.is_set():
        await asyncio.sleep(0.001)
        with contextlib.suppress(TableConflict, StoreError):
            state = await reading(log)
            await log.follow(small)
            files = in_order(small)[:6]
            if len(files) > 2:
                number += 1
                await asyncio.sleep(0.01)  # reading and writing rows: another one may join the same files
                joined = made_file(f"{name}-{number}", files[0].first_offset, files[-1].end_offset)
                await log.replace(state, files, joined, 1, listed=small.version)


async def storm(seed: int) -> int:
    inner, chance = MemoryStore(), random.Random(seed)
    await storms_create(inner)
    stores = [FaultyStore(inner, random.Random(chance.random()), STORM) for _ in range(5)]
    stop = asyncio.Event()
    joiners = [asyncio.create_task(join(store, f"join{n}", stop)) for n, store in enumerate(stores[3:])]
    async with asyncio.timeout(60):
        await asyncio.gather(*(keep(store, f"keep{n}", chance) for n, store in enumerate(stores[:3])))
    stop.set()
    await asyncio.gather(*joiners)
    for store in stores:
        await asyncio.gather(*store.late)
    small = SmallFiles(1 << 30)
    await TableLog(inner, KEY).follow(small)
    files = in_order(small)
    with outcome():
        assert (files[0].first_offset, files[-1].end_offset) == (0, END)
        assert small.size == TableSize(len(files), sum(file.size for file in files))
        versions = [item.key for item in await inner.list(f"{KEY}/_delta_log")]
        assert versions == [f"{KEY}/_delta_log/{version:020d}.json" for version in range(len(versions))]
    return len(files)


@pytest.mark.slow
async def test_no_record_is_lost_or_doubled_in_a_storm() -> None:
    assert await storm(1) < 30, "some were joined"


@pytest.mark.search
@pytest.mark.parametrize("seed", SLICE.seeds(ci=5, night=100))
async def test_no_record_is_lost_or_doubled_in_any_storm(seed: int) -> None:
    await storm(seed)


@pytest.mark.parametrize("odd", ['"_time": "1234"', '"_time": "+10000-01-01T00:00:00Z"', '"_edge": 7'])
def test_one_bound_in_another_engines_form_costs_no_other(odd: str) -> None:
    stats = f'{{"numRecords": 5, "minValues": {{"_shard": 1, {odd}}}, "maxValues": {{"_shard": 2, {odd}}}}}'
    found = TableFile.of(AddedFile("a.parquet", 10, stats))
    assert (found.rows, found.shard_min, found.shard_max, found.time_min) == (5, 1, 2, None)


@pytest.mark.parametrize("names_others", [False, True])
def test_a_checkpoint_that_has_its_files_elsewhere_is_not_taken_for_an_empty_table(names_others: bool) -> None:
    """V2 checkpoints of other engines; a file of that form without sidecars is read as any other."""
    added = {"path": "a.parquet", "size": 3, "stats": None, "deletionVector": None}
    of_files = pa.struct(
        {"path": "string", "size": "int64", "stats": "string", "deletionVector": pa.struct({"storageType": "string"})}
    )
    sidecar = {"path": "b.parquet", "sizeInBytes": 3}
    of_sidecars = pa.struct({"path": "string", "sizeInBytes": "int64"})
    rows = pa.table(
        {
            "add": pa.array([None if names_others else added], of_files),
            "sidecar": pa.array([sidecar if names_others else None], of_sidecars),
        }
    )
    file = io.BytesIO()
    pq.write_table(rows, file)
    if names_others:
        with pytest.raises(TableError, match=r"the checkpoint has its list of files in others \(sidecars\)"):
            list(checkpoint_files(file, "the checkpoint"))
    else:
        assert [each.path for each in checkpoint_files(file, "the checkpoint")] == ["a.parquet"]
