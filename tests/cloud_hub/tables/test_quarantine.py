"""Quarantines: a copy of each marked row, once, through kills, races, joins and erasures."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, LogWriter, rows
from tests.cloud_hub.tables.test_columns import readings
from tests.cloud_hub.tables.test_crashes import Boundaries, Crash, WatchedStore, watch_delta
from tests.cloud_hub.tables.test_quality import Maker, quality
from weft.cloud_hub.facts.streams import DeclaredTables, TableDocument
from weft.cloud_hub.tables import quarantine as module
from weft.cloud_hub.tables.erasure import Author, Choice, Eraser, tidy
from weft.cloud_hub.tables.quarantine import Quarantine, quarantines
from weft.cloud_hub.tables.retention import Retention
from weft.cloud_hub.tables.service import DeclaredTableWork
from weft.config.load import parse_schema
from weft.protocols.chunk_index import StreamKey
from weft.storage.hub_keys import quarantine_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import TableConflict
from weft.storage.table.delta import open_table
from weft.storage.table.schemas import DeclaredQuality, StreamSchema
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings

RULES = "quarantine: true\nrules: {odd: {range: {field: n, max: 9}}, there: {not_null: s}}"
GOOD: dict[str, Any] = {"n": 1, "s": "x"}
BAD: dict[str, Any] = {"n": 10, "s": "x"}


def quarantined(store: ObjectStore) -> list[dict[str, Any]]:
    """The rows of the quarantine, by shard and offset, as any reader finds them."""
    uri, options = store.location(quarantine_key("default", "telemetry"))
    table = open_table(uri, options)
    if table is None:
        return []
    found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["_shard"], row["_offset"]))


def marked(store: ObjectStore) -> list[dict[str, Any]]:
    """The marked rows of the table of all rows."""
    return [row for row in rows(store).to_pylist() if row["_failed"] is not None]


def new(store: ObjectStore, log: LogWriter) -> Quarantine:
    return Quarantine(store, log.cluster, ("default", "telemetry"), clock=lambda: START)


async def drain(quarantine: Quarantine) -> None:
    while await quarantine.step():
        pass


async def test_each_row_that_fails_is_in_the_quarantine_once(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker, quarantine = await Maker.start(directory, log), new(directory, log)
    assert not await quarantine.step(), "there is no table yet"
    await log.append(0, readings(BAD, GOOD))
    await maker.write()
    maker.knows = quality(1, RULES)
    await drain(quarantine)
    await log.append(0, readings(BAD, GOOD, {"n": 10}, first=2))
    await log.append(1, readings(GOOD, {}, lane=OTHER))
    await maker.write()
    await drain(quarantine)
    found = quarantined(directory)
    assert [(row["_shard"], row["_offset"], row["_failed"]) for row in found] == [
        (0, 2, "odd"),
        (0, 4, "odd, there"),
        (1, 1, "there"),
    ]
    assert found == marked(directory), "with all columns"
    version = quarantine.version
    await log.append(0, readings(GOOD, GOOD, first=5))
    await maker.write()
    await drain(quarantine)
    assert quarantine.version == version, "good rows cost no version"
    maker.schema = StreamSchema(9, parse_schema("n int, s string, more float"))
    await log.append(0, readings({**BAD, "more": 1.5}, first=7))
    await maker.write()
    await drain(new(directory, log))
    assert quarantined(directory) == marked(directory)
    assert (quarantined(directory)[-2]["more"], len(quarantined(directory))) == (1.5, 4)


@pytest.mark.slow
async def test_makers_that_take_turns_and_joined_files_double_nothing(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES_PER_STEP", 2)
    log = await LogWriter.open(directory)
    maker = await Maker.start(directory, log, quality(1, RULES))
    makers = [new(directory, log) for _ in range(2)]
    few = TableSettings(compact_files_min=2)
    for turn in range(8):
        for part in range(3):
            await log.append(turn % 2, readings(BAD, GOOD, first=6 * turn + 2 * part, lane=(LANE, OTHER)[turn % 2]))
            await maker.write()
        if turn % 3 == 2:
            await Maintenance(directory, maker.tierer, settings=few).maintain()
        if turn % 2:
            await makers[turn // 2 % 2].step()
    await drain(makers[0])
    await drain(makers[1])
    assert quarantined(directory) == marked(directory)
    assert len(quarantined(directory)) == 24


@pytest.mark.slow
async def test_a_maker_that_loses_the_race_copies_nothing_twice(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker = await Maker.start(directory, log, quality(1, RULES))
    first, other = new(directory, log), new(directory, log)
    await log.append(0, readings(BAD, GOOD))
    await maker.write()
    append = first.log.append

    async def raced(*given: Any) -> Any:
        await drain(other)
        return await append(*given)

    await first.step()  # which makes the table
    await log.append(0, readings(BAD, first=2))
    await maker.write()
    first.log.append = raced  # type: ignore[method-assign, assignment]
    with pytest.raises(TableConflict):
        await first.step()
    first.log.append = append  # type: ignore[method-assign]
    await drain(first)
    assert [row["_offset"] for row in quarantined(directory)] == [0, 2]
    assert first.rows == 2


@pytest.mark.slow
async def test_a_quarantine_that_was_moved_away_is_made_again_from_the_marks(
    directory: ObjectStore, tmp_path: Path
) -> None:
    log = await LogWriter.open(directory)
    maker, quarantine = await Maker.start(directory, log, quality(1, RULES)), new(directory, log)
    for first in range(0, 6, 2):
        await log.append(0, readings(BAD, GOOD, first=first))
        await maker.write()
        await drain(quarantine)
    shutil.rmtree(tmp_path / "store" / quarantine_key("default", "telemetry"))
    await drain(new(directory, log))
    assert [row["_offset"] for row in quarantined(directory)] == [0, 2, 4]


async def die_at(root: Path, fatal: int | None, after: bool) -> list[str]:
    """Run a maker that dies at a call, then another one. Return the calls."""
    store = open_store(str(root))
    log = await LogWriter.open(store)
    maker = await Maker.start(store, log, quality(1, RULES))
    boundaries = Boundaries(fatal, after)
    with pytest.MonkeyPatch.context() as patch:
        watch_delta(patch, boundaries)
        watched: Any = WatchedStore(store, boundaries)
        crashed = False
        dying = new(watched, log)
        for turn in range(2):
            await log.append(0, readings(BAD, GOOD, BAD, first=3 * turn))
            await log.append(1, readings(GOOD, BAD, first=2 * turn, lane=OTHER))
            with patch.context() as unwatched:
                unwatched.setattr(boundaries, "crossing", lambda _: False)
                await maker.write()
            try:
                await drain(dying)
            except Crash:
                crashed = True
                break
        assert crashed == (fatal is not None)
    await drain(new(store, log))
    assert quarantined(store) == marked(store)
    return boundaries.calls


@pytest.mark.slow
async def test_dying_at_any_call_loses_and_doubles_nothing(tmp_path: Path) -> None:
    calls = await die_at(tmp_path / "whole", None, False)
    assert "create_from" in calls
    for fatal in range(len(calls)):
        for after in (False, True):
            await die_at(tmp_path / f"{fatal}-{after}", fatal, after)


async def test_what_is_erased_leaves_the_quarantine_too(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker = await Maker.start(directory, log, quality(1, RULES))
    await log.append(0, readings({**BAD, "s": "anna"}, BAD, {**GOOD, "s": "anna"}, {"n": 11, "s": "anna"}))
    await maker.write()
    await drain(new(directory, log))
    assert len(quarantined(directory)) == 3
    eraser = Eraser(
        directory,
        log.cluster,
        ("default", "telemetry"),
        clock=lambda: START,
        monotonic=lambda: 0.0,
        nonce=iter(map(str, range(100))).__next__,
    )
    choice = Choice([("s", "anna")])
    assert (await eraser.erase(choice, Author("mara", "asked", START))).rows == 3
    assert [row["s"] for row in quarantined(directory)] == ["x"]
    await tidy(directory, log.cluster, ("default", "telemetry"), START + 400 * 86_400 * SECOND)


@pytest.mark.slow
async def test_a_maker_that_had_read_what_is_erased_does_not_bring_it_back(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker, quarantine = await Maker.start(directory, log, quality(1, RULES)), new(directory, log)
    await log.append(0, readings({**BAD, "s": "anna"}, BAD))
    await maker.write()
    await drain(quarantine)
    await log.append(0, readings({**BAD, "s": "anna"}, BAD, first=2))
    await maker.write()
    eraser = Eraser(
        directory,
        log.cluster,
        ("default", "telemetry"),
        clock=lambda: START,
        monotonic=lambda: 0.0,
        nonce=iter(map(str, range(100))).__next__,
    )
    append = quarantine.log.append

    async def raced(*given: Any) -> Any:
        assert (await eraser.erase(Choice([("s", "anna")]), Author("mara", "asked", START))).rows == 2
        return await append(*given)

    quarantine.log.append = raced  # type: ignore[method-assign, assignment]
    with pytest.raises(TableConflict):
        await quarantine.step()
    quarantine.log.append = append  # type: ignore[method-assign]
    await drain(quarantine)
    assert [(row["_offset"], row["s"]) for row in quarantined(directory)] == [(1, "x"), (3, "x")]


@pytest.mark.slow
async def test_rows_leave_the_quarantine_at_the_age_at_which_they_leave_the_table(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    maker, quarantine = await Maker.start(directory, log, quality(1, RULES)), new(directory, log)
    for turn in range(2):
        log.created = START + turn * 86_400 * SECOND
        await log.append(0, readings(BAD, first=turn))
        await maker.write()
        await drain(quarantine)
    retention = Retention(
        directory, log.cluster, ("default", "telemetry"), lambda: START + 90_000 * SECOND, quarantine.key
    )
    assert await retention.look(TableDocument(retain_s=3600 * 2)) == 1
    assert [row["_offset"] for row in quarantined(directory)] == [1]


# --- The work on quarantines of a hub process: what is due is done, whatever happens to one of them


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
