"""The work on quarantines of a hub process: what is due is done, whatever happens to one of them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from tests.cloud_hub.tables.logs import START, LogWriter
from tests.cloud_hub.tables.test_quality import Maker, quality
from tests.cloud_hub.tables.test_quarantine import BAD, RULES, quarantined
from tests.cloud_hub.tables.test_typed import readings
from weft.cloud_hub.facts.streams import DeclaredTables, TableDocument
from weft.cloud_hub.tables.erasure import Author, Choice, Eraser
from weft.cloud_hub.tables.quarantine import Quarantine, quarantines
from weft.cloud_hub.tables.service import DeclaredTableWork
from weft.protocols.chunk_index import StreamKey
from weft.storage.hub_keys import quarantine_key
from weft.storage.object_store import ObjectStore
from weft.storage.table.schemas import DeclaredQuality
from weft.storage.table_writer.service import TableService

KEY: StreamKey = ("default", "telemetry")
DAY_S = 86_400.0


class Work:
    """The work, with a clock that the test sets."""

    def __init__(self, store: ObjectStore, log: LogWriter, *keys: StreamKey) -> None:
        self.now, self.version, self.at = 0.0, 0, START
        self.declared, self.retained = DeclaredQuality(), DeclaredTables()
        self.declared.streams = {key: quality(1, RULES) for key in keys}
        tables = SimpleNamespace(
            tierer=lambda _key: SimpleNamespace(version=self.version), keeps_beside=lambda _key: True, views=()
        )
        clock: Any = SimpleNamespace(now=lambda: self.at, wrong=lambda: None)
        self.work = DeclaredTableWork(
            store,
            log.cluster,
            cast(TableService, tables),
            self.retained,
            clock,
            quality=self.declared,
            monotonic=lambda: self.now,
        )

    async def look(self, version: int) -> None:
        self.version = version
        await self.work.look()
        await self.work.look()


async def senders(store: ObjectStore) -> set[str]:
    """The values of ``s`` in all files of the quarantine, also in those that no version names."""
    found: set[str] = set()
    for item in await store.list(quarantine_key(*KEY), after=None, limit=1000):
        if item.key.endswith(".parquet") and "_delta_log" not in item.key:
            data = await store.get(item.key)
            found |= {*pq.read_table(io.BytesIO(data.data)).column("s").to_pylist()}
    return found


@pytest.mark.slow
async def test_what_was_erased_leaves_the_store_though_the_stream_is_quiet(
    directory: ObjectStore, tmp_path: Path
) -> None:
    log = await LogWriter.open(directory)
    maker, work = await Maker.start(directory, log, quality(1, RULES)), Work(directory, log, KEY)
    await log.append(0, readings({**BAD, "s": "anna"}, BAD))
    await maker.write()
    await work.look(1)
    eraser = Eraser(
        directory,
        log.cluster,
        KEY,
        clock=lambda: START,
        monotonic=lambda: 0.0,
        nonce=iter(map(str, range(100))).__next__,
    )
    assert (await eraser.erase(Choice([("s", "anna")]), Author("mara", "asked", START))).rows == 1
    await work.look(2)
    assert [row["s"] for row in quarantined(directory)] == ["x"]
    assert await senders(directory) == {"anna", "x"}, "for readers of earlier versions"
    for file in (tmp_path / "store" / quarantine_key(*KEY)).glob("*.parquet"):
        os.utime(file, (0, 0))  # as if the time for readers of earlier versions were over
    work.now += 2 * DAY_S
    await work.look(2)
    assert await senders(directory) == {"x"}


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_rows_become_old_though_the_rules_are_gone(directory: ObjectStore, *, is_restarted: bool) -> None:
    log = await LogWriter.open(directory)
    maker, work = await Maker.start(directory, log, quality(1, RULES)), Work(directory, log, KEY)
    await log.append(0, readings(BAD))
    await maker.write()
    await work.look(1)
    assert len(quarantined(directory)) == 1
    if is_restarted:
        work = Work(directory, log)
    work.declared.streams = {}
    work.retained.documents = {KEY: TableDocument(retain_s=3600)}
    work.at += 2 * 3600 * 1_000_000_000
    work.now += 3601
    await work.look(1)
    assert quarantined(directory) == []
    assert work.work.quarantine_of(KEY) is not None


async def test_quarantines_are_found_by_their_logs(directory: ObjectStore) -> None:
    keys = "a/s/_delta_log/0", "a/s/shard-0.parquet", "a/s-2/_delta_log/0", "a/s2/x.parquet", "b/s/_delta_log/1"
    for key in keys:
        await directory.create(f"quarantine/{key}", b"{}")
    assert await quarantines(directory) == {("a", "s"), ("a", "s-2"), ("b", "s")}


async def test_an_error_that_nobody_expects_stops_one_quarantine(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await LogWriter.open(directory)
    bad, good = ("default", "bad"), ("default", "good")
    stepped = []

    async def step(quarantine: Quarantine) -> bool:
        if quarantine.key == quarantine_key(*bad):
            raise ValueError("a footer that makes no sense")
        stepped.append(quarantine.key)
        return False

    monkeypatch.setattr(Quarantine, "step", step)
    work = Work(directory, log, bad, good)
    await work.look(1)
    assert stepped == [quarantine_key(*good)]
    reported: Any = work.work.quarantine_of(bad)
    assert reported.error == "a footer that makes no sense"
