"""What a table step asks of a store, counted: the number of streams must not multiply it."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.tables.logs import LANE, LogWriter, Run, contents, expected
from weft.cloud_hub.splits import split
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import read_cluster
from weft.storage.object_store import ObjectStore, StoreError, open_store
from weft.storage.table_writer import shards
from weft.storage.table_writer.service import TableService

CHUNKS = 40


class CountingStore:
    """A store that counts calls by kind, and by the kind of object."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.others: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name == "location":
            return call

        async def counted(key: str, *arguments: Any, **named: Any) -> Any:
            kind = "chunk" if "/chunk/" in key else "other"
            self.calls[f"{name} {kind}"] += 1
            if kind == "other":
                self.others.append(f"{name} {key}")
            return await call(key, *arguments, **named)

        return counted

    def count(self, *kinds: str) -> int:
        return sum(self.calls[kind] for kind in kinds)

    @property
    def chunk_gets(self) -> int:
        return self.count("get chunk", "get_range chunk")


class AnswersNoCreate(CountingStore):
    """A store that takes new objects, and ends to answer before it says so."""

    async def create(self, key: str, data: bytes) -> str:
        await self._inner.create(key, data)
        raise StoreError("no answer")


def runs(streams: int, number: int) -> list[Run]:
    lanes = [LANE._replace(stream=f"s{i:02d}") for i in range(streams)]
    return [Run(lane, 3 * number, 3, payload_bytes=70_000 // streams) for lane in lanes]


async def behind(store: Any, streams: int) -> TableService:
    """A service that has made the tables of one shard, whose log has ``CHUNKS`` chunks more by now."""
    log = await LogWriter.open(store, 1)
    await log.append(0, *runs(streams, 0))
    service = TableService(store, log.cluster)
    await service.run_once()
    for number in range(1, CHUNKS + 1):
        await log.append(0, *runs(streams, number))
    return service


@pytest.mark.parametrize("streams", [1, 20])
async def test_each_chunk_is_read_once_for_all_streams(tmp_path: Path, streams: int) -> None:
    store = CountingStore(open_store(str(tmp_path)))
    service = await behind(store, streams)
    store.calls.clear()
    store.others.clear()
    assert await service.run_once() == 3 * CHUNKS * streams
    # One for each chunk, and those that were asked for beyond the head.
    assert store.chunk_gets <= CHUNKS + 5
    assert store.count("list chunk", "list other") == 0
    assert store.count("create other") == 2 * streams, "one Parquet file and one version each"
    assert store.count("get other", "get_range other") <= 3 * streams, ("more than the newest entry", store.others)
    store.calls.clear()
    assert await service.run_once() == 0
    assert store.chunk_gets == 1, "an idle round asks each shard for one chunk"
    assert sum(store.calls.values()) == 1
    assert contents(store, "s00") == expected({0: [runs(streams, n)[0] for n in range(CHUNKS + 1)]})


class WatchedFooter:
    """A footer that counts the walks over all its lanes or sections."""

    walks = 0

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in {"lanes", "streams"}:
            WatchedFooter.walks += 1
        return getattr(self._inner, name)


@pytest.mark.parametrize("streams", [1, 20])
async def test_a_round_walks_over_the_index_of_a_chunk_once_for_all_streams(
    tmp_path: Path, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proof q1: each stream looked through all lanes and sections of each chunk."""
    whole = ShardLog.whole

    async def watched(self: ShardLog, n: int) -> Any:
        found = await whole(self, n)
        footer: Any = found and WatchedFooter(found[0].footer)
        return found and (found[0]._replace(footer=footer), found[1])

    store = open_store(str(tmp_path))
    service = await behind(store, streams)
    monkeypatch.setattr(ShardLog, "whole", watched)
    monkeypatch.setattr(WatchedFooter, "walks", 0)
    assert await service.run_once() == 3 * CHUNKS * streams
    assert CHUNKS <= WatchedFooter.walks <= 8 * CHUNKS


async def test_more_than_fits_in_memory_is_taken_in_several_passes_and_each_chunk_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "CHUNK_BYTES_MAX", 4_000_000)  # about twenty chunks
    store = CountingStore(open_store(str(tmp_path)))
    service = await behind(store, 5)
    store.calls.clear()
    assert await service.run_once() == 3 * CHUNKS * 5
    assert store.chunk_gets <= CHUNKS * 1.3
    for stream in range(5):
        assert contents(store, f"s{stream:02d}") == expected({0: [runs(5, n)[stream] for n in range(CHUNKS + 1)]})


async def test_shards_that_splits_make_share_the_memory_for_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "CHUNK_BYTES_MAX", 4_000_000)
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    await log.append(0, Run(LANE, 0, 5))
    service = TableService(store, log.cluster)
    await service.run_once()
    for shard in (0, 0, 1):
        cluster = await read_cluster(store)
        await split(store, cluster, shard, wall_clock=time.time_ns, random_bits=random.getrandbits)
    await service.run_once()
    assert [view.chunks.bytes_max for view in service._views] == [1_000_000] * 4


async def test_a_table_that_is_moved_away_while_the_hub_runs_is_made_again(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = await LogWriter.open(store, 1)
    await log.append(0, Run(LANE, 0, 5))
    service = TableService(store, log.cluster)
    await service.run_once()
    (tmp_path / "tables/default/telemetry").rename(tmp_path / "moved")
    await log.append(0, Run(LANE, 5, 5))
    await service.run_once()
    await service.run_once()
    assert contents(store) == expected({0: [Run(LANE, 0, 10)]})
