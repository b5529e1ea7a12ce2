"""Several keepers of one table on a store that loses, delays and misreports: each record is in the table once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from itertools import pairwise

import pytest

from tests.cloud_hub.faulty_store import Faults, FaultyStore
from tests.storage.table.delta.tables import KEY, reading, stats
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from weft.storage.object_store import ObjectStore, StoreError
from weft.storage.object_store.directory import MemoryStore
from weft.storage.table.actions import DataFile, TableConflict, TableSize
from weft.storage.table.delta_log import TableLog
from weft.storage.table.files import SmallFiles

APP = "weft/00/telemetry/0"
END = 60
STORM = Faults(lost=0.08, unreported=0.1, misreported=0.08, late=0.12, late_s=0.02, read=0.03, latency_s=0.0005)


def made_file(name: str, first: int, end: int) -> DataFile:
    return DataFile(f"{name}.parquet", 10 * (end - first), end - first, 0, first, end, 1, stats(0, first, end))


def in_order(small: SmallFiles) -> list[DataFile]:
    """The files of a version, checked: every record below its end is in one of them."""
    files = sorted(small.files.values(), key=lambda file: file.first_offset)
    assert all(left.end_offset == right.first_offset for left, right in pairwise(files))
    return files


async def create(store: ObjectStore) -> None:
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
    await create(inner)
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
