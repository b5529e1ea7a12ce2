"""A latest table has what a recount of the log gives, whatever dies, and whatever the collector deleted."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.cloud_hub.live import get, running_hub
from tests.cloud_hub.tables.latest_tables import drain_latest, latest, new_latest, opened, recounted
from tests.cloud_hub.tables.logs import LANE, OTHER, SECOND, START, TOPICS, LogWriter, Run, rows
from tests.cloud_hub.tables.test_crashes import Boundaries, Crash, WatchedStore, watch_delta
from tests.cloud_hub.tables.test_tiering import drain, new_tierer
from tests.hub_api.answers import check_answer
from tests.support.processes import weft
from tests.support.waiting import until
from weft.cloud_hub.facts.streams import LatestDocument, TableDocument, wrong_part
from weft.cloud_hub.tables import buckets as tables_module
from weft.cloud_hub.tables import latest as module
from weft.cloud_hub.tables.buckets import HIDDEN_US, Bucket, BucketFiles, Key, Merged, hashes, merged, newest
from weft.cloud_hub.tables.erasure import Author, Choice, Eraser, erasures
from weft.cloud_hub.tables.service import DeclaredTableWork
from weft.proofs.audit.audit import audit
from weft.proofs.backup.backup import make_backup, restore
from weft.proofs.backup.view import open_backup
from weft.protocols import batch
from weft.protocols.batch import ClockReading, ClockState
from weft.storage.chunk_log import ShardLog, changed
from weft.storage.hub_keys import chunk_key, latest_key, table_key
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import Action, AddedFile, TableError
from weft.storage.table.delta_log import TableLog
from weft.storage.table.latest import INSTEAD_PROPERTY
from weft.storage.table.rows import TIMESTAMP
from weft.storage.table_writer.maintenance import Maintenance
from weft.storage.table_writer.service import TableService
from weft.storage.table_writer.settings import TableSettings, TableTerms

Appended = dict[int, list[Run]]


async def fill(log: LogWriter, runs: Appended, seed: int, chunks: int = 8) -> None:
    """Lanes of several edges, out of order, with keys in common, in two shards; some records delete their key."""
    rnd = random.Random(seed)
    for _ in range(chunks):
        shard = rnd.randrange(2)
        lane = rnd.choice([LANE, LANE._replace(log_id=9)] if shard == 0 else [OTHER])
        taken = {each.first for each in runs[shard] if each.lane == lane}
        first = rnd.choice([first for first in range(0, 600, 10) if first not in taken])
        payloads = [b"" if rnd.random() < 0.3 else b"%d" % seq for seq in range(first, first + 5)]
        run = Run(lane, first, 5, key=b"plant/a/m%d/telemetry" % rnd.randrange(6), topics=TOPICS, payloads=payloads)
        # The places of runs in `recounted` are times at which the hub received them.
        log.created += SECOND
        while len(runs[shard]) < max(map(len, runs.values())):
            await _append(log, runs, shard, Run(lane._replace(edge="idle"), len(runs[shard]), 1, key=b"idle"))
        await _append(log, runs, shard, run)


async def _append(log: LogWriter, runs: Appended, shard: int, run: Run) -> None:
    await log.append(shard, run)
    runs[shard].append(run)


async def test_the_newest_row_of_each_key_is_there_and_deleted_ones_are_not(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    runs = {
        0: [
            Run(LANE, 0, 3, key=b"plant/a/m1/telemetry", topics=TOPICS),
            Run(LANE, 3, 2, key=b"plant/a/m2/telemetry"),
            Run(LANE, 5, 1, key=b"plant/a/m2/telemetry", payloads=[b""]),
            Run(OTHER, 0, 2, key=b"plant/a/m1/telemetry"),
            Run(LANE, 6, 1, key=b"plant/a/m3/telemetry"),
        ]
    }
    for run in runs[0]:
        log.created += SECOND
        await log.append(0, run)
    tierer = await new_latest(directory, log)
    await drain_latest(tierer)
    assert latest(directory) == recounted(runs)
    assert sorted(latest(directory)) == ["plant/a/m1/telemetry", "plant/a/m3/telemetry"]
    version = opened(directory).version()
    assert await tierer.step() == 0
    assert opened(directory).version() == version, "without records there is no version"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_buckets_divide_and_steps_of_any_size_agree(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(module, "BUCKET_ROWS_MAX", 2)
    log, runs = await LogWriter.open(directory), dict[int, list[Run]]({0: [], 1: []})
    for part in range(3):
        await fill(log, runs, seed + 100 * part, chunks=5)
        await drain_latest(await new_latest(directory, log, settings=TableSettings(file_rows_max=7)))
        assert latest(directory) == recounted(runs)
    assert len(opened(directory).file_uris()) > 1


async def die_at(log: LogWriter, runs: dict[int, list[Run]], fatal: int | None, after: bool) -> list[str]:
    """Run a step that dies at boundary ``fatal``, then a new tierer; returns the boundaries that were crossed."""
    store, boundaries = log.store, Boundaries(fatal, after)
    with pytest.MonkeyPatch.context() as patch:
        watch_delta(patch, boundaries)
        patch.setattr(module, "BUCKET_ROWS_MAX", 2)
        watched: Any = WatchedStore(store, boundaries)
        tierer = await new_latest(store, log)
        tierer._store, tierer.log._store = watched, watched
        try:
            await tierer.step()
            crashed = False
        except Crash:
            crashed = True
        assert crashed == (fatal is not None)
    await drain_latest(await new_latest(store, log))
    assert latest(store) == recounted(runs)
    return boundaries.calls


@pytest.mark.slow
async def test_dying_at_any_step_leaves_what_a_recount_gives(tmp_path: Path) -> None:
    made = await LogWriter.open(open_store(str(tmp_path / "prepared")))
    runs: dict[int, list[Run]] = {0: [], 1: []}
    await fill(made, runs, 5, chunks=4)
    await drain_latest(await new_latest(made.store, made))
    await fill(made, runs, 6, chunks=6)

    async def die(fatal: int | None, after: bool) -> list[str]:
        log = await LogWriter.of_copy(tmp_path / "prepared", tmp_path / f"{fatal}-{after}")
        return await die_at(log, runs, fatal, after)

    calls = await die(None, False)
    assert calls.count("create") >= 3, "two files and a version"
    for fatal in range(len(calls)):
        for after in (False, True):
            await die(fatal, after)


@pytest.mark.slow
@pytest.mark.parametrize("has_begun", [False, True])
async def test_records_of_deleted_chunks_come_from_the_table_of_all_rows(
    directory: ObjectStore, has_begun: bool
) -> None:
    log, runs = await LogWriter.open(directory), dict[int, list[Run]]({0: [], 1: []})
    await fill(log, runs, 11, chunks=6)
    if has_begun:
        await drain_latest(await new_latest(directory, log))
    await fill(log, runs, 12, chunks=6)
    await drain(await new_tierer(directory, log))
    for shard in (0, 1):
        await log.snapshot(shard)
        shard_log = ShardLog(directory, log.cluster, shard)
        manifest, etag = await shard_log.manifest()
        assert await shard_log.swap_manifest(changed(manifest, watermark=log.states[shard].n), etag)
        for n in range(log.states[shard].n):
            await directory.delete(chunk_key(shard, n))
    await fill(log, runs, 13, chunks=4)
    await drain_latest(await new_latest(directory, log))
    assert latest(directory) == recounted(runs)


async def test_another_key_and_a_level_that_no_edge_names_are_refused(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    await log.append(0, Run(LANE, 0, 3, topics=TOPICS))
    with pytest.raises(TableError, match="newest rows by hall, and no edge names such a topic level"):
        await (await new_latest(directory, log, ["hall"])).step()
    await directory.delete("latest/default/telemetry/_delta_log/00000000000000000000.json")
    await drain_latest(await new_latest(directory, log, ["machine", "line"]))
    assert [(row["machine"], row["line"]) for row in opened(directory).to_pyarrow_table().to_pylist()] == [("m1", "a")]
    with pytest.raises(TableError, match=r'newest rows by \["machine","line"\], and \["_key"\] is declared'):
        await (await new_latest(directory, log)).step()


async def test_files_of_hidden_rows_go_once_no_version_names_them(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    tierer = await new_latest(directory, log)
    for seq in range(3):
        log.created += SECOND
        await log.append(0, Run(LANE, seq, 1, payloads=[b""]))
        for view in tierer._views:
            await view.log.extend(view.state)
        await drain_latest(tierer)
    listed = f"{tierer.key}/_weft"
    assert len(await directory.list(listed)) == 3
    state = await tierer.take()
    assert (await tierer.forget_hidden(state), await tierer.forget_hidden(state)) == (0, 2)
    assert len(await directory.list(listed)) == 1
    assert latest(directory) == {}


async def test_tombstones_of_keys_that_never_come_again_go_after_a_week(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory)
    for seq, day in enumerate((0, 5, 10)):
        log.created = START + day * 86_400 * SECOND
        await log.append(0, Run(LANE, seq, 1, key=b"order-%d" % seq, payloads=[b""]))
        await drain_latest(await new_latest(directory, log))
    tierer = await new_latest(directory, log)
    hidden = await tierer._read_hidden(await tierer.take())
    assert hidden.column("_key").to_pylist() == ["order-1", "order-2"]


async def test_a_step_holds_no_more_than_one_buckets_rows(
    directory: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUCKET_ROWS_MAX", 2)
    log, held = await LogWriter.open(directory), list[weakref.ref[pa.Table]]()
    for n in range(12):
        await log.append(0, Run(LANE, n, 1, key=b"machine-%d" % n))
    await drain_latest(await new_latest(directory, log))

    def watched(*arguments: Any) -> Merged:
        found = merged(*arguments)
        assert sum(each() is not None for each in held) <= 1, "that of the bucket before may still have a name"
        held.append(weakref.ref(found.visible))
        return found

    monkeypatch.setattr(module, "merged", watched)
    for n in range(12):
        await log.append(0, Run(LANE, 100 + n, 1, key=b"machine-%d" % n))
    await drain_latest(await new_latest(directory, log))
    assert len(held) > 3
    assert {seq for _, seq, _ in latest(directory).values()} == {*range(100, 112)}


@pytest.mark.slow
async def test_two_makers_at_once_agree(directory: ObjectStore) -> None:
    log, runs = await LogWriter.open(directory), dict[int, list[Run]]({0: [], 1: []})
    one, two = await new_latest(directory, log), await new_latest(directory, log)
    for part in range(4):
        await fill(log, runs, 20 + part, chunks=3)
        for tierer in (one, two):
            for view in tierer._views:
                await view.log.extend(view.state)
        first, second = (one, two) if part % 2 else (two, one)
        await first.step()
        await second.step()
    for tierer in (one, two):
        await drain_latest(tierer)
    assert latest(directory) == recounted(runs)


@pytest.mark.slow
async def test_the_change_feed_leads_from_each_version_to_the_next(directory: ObjectStore) -> None:
    log, runs = await LogWriter.open(directory), dict[int, list[Run]]({0: [], 1: []})
    state: dict[str, int] = {}
    seen = 0
    for part in range(5):
        await fill(log, runs, 30 + part, chunks=3)
        await drain_latest(await new_latest(directory, log, feed=True))
        found = opened(directory)
        rows = pa.table(found.load_cdf(starting_version=seen + 1).read_all()).to_pylist()
        seen = found.version()
        for row in sorted(rows, key=lambda row: row["_commit_version"]):
            if row["_change_type"] in ("delete", "update_preimage"):
                assert state.pop(row["_key"]) == row["_seq"], "a change says what was there"
        for row in rows:
            if row["_change_type"] in ("insert", "update_postimage"):
                assert row["_key"] not in state
                state[row["_key"]] = row["_seq"]
        assert state == {key: seq for key, (_, seq, _) in latest(directory).items()}
    changes = pa.table(opened(directory).load_cdf(starting_version=1).read_all()).to_pylist()
    kinds = {row["_change_type"] for row in changes}
    assert kinds == {"insert", "update_preimage", "update_postimage", "delete"}

    files = list(Path(directory.location(f"{latest_key('default', 'telemetry')}/_change_data")[0]).iterdir())
    assert files
    for file in files:
        os.utime(file, (0, 0))
    tierer = await new_latest(directory, log, feed=True)
    await tierer.take()
    await Maintenance(directory, tierer).vacuum()
    assert not [file for file in files if file.exists()], "changes are kept for as long as replaced files"


# --- Which row of a key counts: a pure function of the rows, however they come


SCHEMA = pa.schema(
    [
        ("_key", pa.string()),
        ("_edge", pa.string()),
        ("_log", pa.string()),
        ("_seq", pa.int64()),
        ("_received", TIMESTAMP),
        ("_shard", pa.int32()),
        ("_offset", pa.int64()),
        ("_tombstone", pa.bool_()),
    ]
)
NOW_US = 100 * HIDDEN_US
Row = tuple[str | None, str, str, int, int, int, int, bool]


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def recount(rows: list[Row]) -> set[Row]:
    """The rows that a reader finds, row by row in Python."""
    lanes: dict[str, dict[tuple[str, str], Row]] = defaultdict(dict)
    for row in rows:
        key, edge, log, seq, *_ = row
        assert key is not None
        if (edge, log) not in lanes[key] or lanes[key][edge, log][3] < seq:
            lanes[key][edge, log] = row
    winners = [max(found.values(), key=lambda row: row[4:7]) for found in lanes.values() if found]
    return {row for row in winners if not row[7]}


def made(seed: int) -> list[Row]:
    rnd = random.Random(seed)
    rows: list[Row] = []
    offsets = [0, 0]
    seqs: dict[tuple[str, str], list[int]] = defaultdict(lambda: [*rnd.sample(range(40), 40)])
    for received in range(60):
        lane, shard = rnd.choice([("a", "1"), ("a", "2"), ("b", "1"), ("c", "3")]), rnd.randrange(2)
        key = rnd.choice(["x", "y", "z", "w"])
        seq = seqs[lane].pop() if seqs[lane] else 100 + received
        rows.append((key, *lane, seq, received // 3, shard, offsets[shard], rnd.random() < 0.2))
        offsets[shard] += 1
    return rows


def as_rows(found: pa.Table) -> set[Row]:
    return {
        (row["_key"], row["_edge"], row["_log"], row["_seq"], _us(row["_received"]), *_rest(row))
        for row in found.to_pylist()
    }


def _us(moment: object) -> int:
    return int(pa.scalar(moment, TIMESTAMP).value)


def _rest(row: dict[str, object]) -> tuple[int, int, bool]:
    return row["_shard"], row["_offset"], row["_tombstone"]  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(20))
def test_portions_in_any_order_and_more_than_once_give_what_a_recount_gives(seed: int) -> None:
    rows, rnd = made(seed), random.Random(seed)
    wanted = recount(rows)
    assert as_rows(_visible(table(rows))) == wanted
    rnd.shuffle(rows)
    state = SCHEMA.empty_table()
    while rows:
        portion = [rows.pop() for _ in range(min(len(rows), rnd.randrange(1, 9)))]
        rows += [portion[0]] if rnd.random() < 0.2 else []  # a portion that is taken again in part
        both = pa.concat_tables([state, table(portion)])
        found = newest(both, ["_key"], NOW_US)
        state = both.take([*found.visible, *found.hidden])
    assert as_rows(_visible(state)) == wanted


def _visible(rows: pa.Table) -> pa.Table:
    return rows.take(newest(rows, ["_key"], NOW_US).visible)


def test_rows_without_a_key_have_no_row() -> None:
    found = newest(table([(None, "a", "1", 1, 1, 0, 0, False), ("x", "a", "1", 2, 2, 0, 1, False)]), ["_key"], NOW_US)
    assert (found.visible.tolist(), found.hidden.tolist()) == ([1], [])


def test_tombstones_are_forgotten_after_a_week_and_many_lanes_of_a_key_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, young = ("x", "a", "1", 1, 0, 0, 0, True), ("y", "a", "1", 2, HIDDEN_US, 0, 1, True)
    assert newest(table([old, young]), ["_key"], 2 * HIDDEN_US).hidden.tolist() == [1]
    assert newest(table([old, young]), ["_key"], HIDDEN_US - 1).hidden.tolist() == [0, 1], "a chunk was ahead"
    assert tables_module.young(table([old]), table([young]), 2 * HIDDEN_US).num_rows == 0
    assert tables_module.young(table([old]), table([young]), HIDDEN_US - 1).num_rows == 1
    monkeypatch.setattr(tables_module, "LANES_PER_KEY_MAX", 2)
    rows: list[Row] = [("x", f"edge-{n}", "1", 0, n, 0, n, False) for n in range(6)]
    found = newest(table(rows), ["_key"], NOW_US)
    assert (found.visible.tolist(), sorted(found.hidden.tolist())) == ([5], [3, 4]), "the last ones are kept"


def test_a_hash_is_in_one_bucket_also_where_none_has_a_file() -> None:
    files, rnd = BucketFiles("latest/default/x"), random.Random(7)
    low, high = Bucket(0, 0).halves()
    for bucket in (low, high.halves()[1]):
        files.take(Action(add=AddedFile(bucket.path("7"), 10)))
    values = table([(f"k{n}", "a", "1", n, n, 0, n, False) for n in range(200)])
    found = files.of(hashes(values, ["_key"]))
    assert set(found) <= {low, *high.halves()}
    assert sorted(number for numbers in found.values() for number in numbers) == [*range(200)]
    assert all(
        bucket.first <= value < bucket.end
        for bucket, numbers in found.items()
        for value in hashes(values, ["_key"])[numbers].tolist()
    )
    with pytest.raises(TableError, match="which is none of the hub's files"):
        files.take(Action(add=AddedFile(f"part-{rnd.random()}.parquet", 10)))


def test_a_key_may_be_fields_of_payloads() -> None:
    key = Key(["payload.order.id", "_edge"])
    rows = table([(None, "a", "1", n, n, 0, n, False) for n in range(5)])
    payloads = ['{"order": {"id": 7}}', '{"order": {"id": "7"}}', '{"order": []}', "no JSON", None]
    rows = rows.append_column("payload", pa.array(payloads)).append_column("_by_order_id", pa.nulls(5, pa.string()))
    found = key.filled(rows)
    assert found.column("_by_order_id").to_pylist() == ["7", "7", None, None, None]
    assert key.is_complete(found).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "1 to 8 parts"),
        (["a"] * 9, "1 to 8 parts"),
        (["a", "A"], "differ in case"),
        (["_seq"], "'_seq' cannot"),
        (["payload"], "'payload' cannot"),
        (["payload.a", "payload.a"], "are the same"),
        (["a b"], "'a b' cannot"),
    ],
)
def test_what_cannot_be_a_key_is_said(parts: list[str], why: str) -> None:
    assert why in str(wrong_part(parts))
    with pytest.raises(ValueError, match=why):
        Key(parts)


# --- A latest table instead of the table of all rows: what is made, what the collector may delete, and what is said


STREAM = ("default", "telemetry")


class Clock:
    """Seconds that pass when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


Works = tuple[TableService, DeclaredTableWork]


async def works(store: ObjectStore, log: LogWriter, clock: Clock, is_instead: Callable[[], bool]) -> Works:
    """The two works of a hub process that makes tables."""

    class Declared:
        @property
        def documents(self) -> dict[tuple[str, str], TableDocument]:
            return {STREAM: TableDocument(LatestDocument(("_key",), 1.0, instead=is_instead()))}

    declared: Any = Declared()
    tables = TableService(
        store, log.cluster, monotonic=clock, terms=TableTerms(instead=lambda key: is_instead() and key == STREAM)
    )
    tables._makes_all = True
    hub_clock: Any = SimpleNamespace(now=lambda: START, wrong=lambda: None)
    return tables, DeclaredTableWork(store, log.cluster, tables, declared, hub_clock, monotonic=clock)


async def work(of: Works, clock: Clock) -> None:
    """Rounds of both, until each has seen what the other did."""
    tables, beside = of
    for _ in range(3):
        await tables.run_once()
        await beside.look()
        clock.now += 20


async def filled(store: ObjectStore) -> LogWriter:
    """A log of one shard whose chunks have the records of one key each."""
    log = await LogWriter.open(store, shards=1)
    for n in range(3):
        await log.append(0, Run(LANE, 4 * n, 4, key=b"plant/a/m%d/telemetry" % n, topics=TOPICS))
    return log


async def collect(store: ObjectStore, log: LogWriter, end: int) -> None:
    """Delete the chunks before ``end``, as the collector does."""
    await log.snapshot(0)
    shard_log = ShardLog(store, log.cluster, 0)
    manifest, etag = await shard_log.manifest()
    assert await shard_log.swap_manifest(changed(manifest, watermark=end), etag)
    for n in range(end):
        await store.delete(chunk_key(0, n))


async def test_no_table_of_all_rows_is_made_and_the_log_may_go_once_the_latest_table_has_it(
    directory: ObjectStore,
) -> None:
    log, clock = await filled(directory), Clock()
    tables, beside = of = await works(directory, log, clock, lambda: True)
    await tables.run_once()
    assert await tables.first_untabled(0) is None, "no table has the records yet"
    await work(of, clock)
    assert await TableLog(directory, table_key(*STREAM)).read() is None
    assert len(latest(directory)) == 3
    assert opened(directory).metadata().configuration[INSTEAD_PROPERTY] == "true"
    (reported,) = tables.status()
    assert (reported.kind, reported.lag_records, reported.error) == ("latest", 0, None)
    assert [(each.instead, each.gone) for each in beside.status()] == [(True, 0)]
    assert await tables.first_untabled(0) == log.states[0].n + 1
    assert tables.tierer(STREAM) is None, "nobody counts rows of a table that is not there"


async def test_a_table_of_all_rows_that_is_there_is_kept_until_it_is_moved_away(
    directory: ObjectStore, tmp_path: Path
) -> None:
    log, clock, is_instead = await filled(directory), Clock(), False
    tables, beside = of = await works(directory, log, clock, lambda: is_instead)
    await work(of, clock)
    is_instead = True
    await log.append(0, Run(LANE, 12, 4, key=b"plant/a/m1/telemetry"))
    await work(of, clock)
    assert rows(directory).num_rows == 16, "it continues"
    assert [each.instead for each in beside.status()] == [False]
    folder = Path(directory.location(table_key(*STREAM))[0])
    folder.rename(tmp_path / "moved")
    await log.append(0, Run(LANE, 16, 4, key=b"plant/a/m1/telemetry"))
    await work(of, clock)
    assert not folder.exists(), "the hub makes no other"
    assert [(each.instead, each.lag_records) for each in beside.status()] == [(True, 0)]
    assert [each.kind for each in tables.status()] == ["latest"]
    await log.append(0, Run(LANE, 20, 4, key=b"plant/a/m1/telemetry"))
    (tmp_path / "moved").rename(folder)
    await work(of, clock)
    assert rows(directory).num_rows == 24, "back again, it is caught up"
    assert [each.kind for each in tables.status()] == ["all"]


async def test_records_that_left_the_log_before_are_counted_and_the_others_taken(directory: ObjectStore) -> None:
    log = await filled(directory)
    await drain_latest(await new_latest(directory, log, instead=True))
    await collect(directory, log, 2)
    for path in await directory.list("latest"):
        await directory.delete(path.key)
    await log.append(0, Run(LANE, 12, 4, key=b"plant/a/m7/telemetry"))
    tierer = await new_latest(directory, log, instead=True)
    with pytest.raises(Exception, match="offsets 0 to 7 of shard 0 cannot become rows: their chunks were deleted"):
        await drain_latest(await new_latest(directory, log))
    await drain_latest(tierer)
    assert sorted(latest(directory)) == ["plant/a/m2/telemetry", "plant/a/m7/telemetry"]
    assert tierer.gone == 8
    again = await new_latest(directory, log, instead=True)
    await again.open()
    assert again.gone == 8, "the table itself says it"


@pytest.mark.parametrize("is_collected", [False, True])
async def test_an_audit_says_what_it_cannot_know(directory: ObjectStore, is_collected: bool) -> None:
    log = await filled(directory)
    await drain_latest(await new_latest(directory, log, instead=True))
    if is_collected:
        await collect(directory, log, 2)
    await log.append(0, Run(LANE, 12, 4, key=b"plant/a/m7/telemetry"))
    found = await audit(directory, *STREAM, payloads=True)
    assert (found.problems, found.only_latest) == ([], True)
    totals = {name: found.total(name) for name in ("records", "table_records", "waiting", "missing", "replaced")}
    assert totals == {"records": 16, "table_records": 3, "waiting": 4, "missing": 0, "replaced": 9}


async def test_an_erasure_ends_with_the_chunks_that_are_there(directory: ObjectStore) -> None:
    log = await filled(directory)
    await drain_latest(await new_latest(directory, log, instead=True))
    eraser = Eraser(
        directory, log.cluster, STREAM, clock=time.time_ns, monotonic=time.monotonic, nonce=lambda: "abcdef0123456789"
    )
    done = await eraser.erase(Choice([("_key", "plant/a/m1/telemetry")]), Author("anna", "case 12", START))
    assert (done.rows, done.latest, done.recorded) == (0, 1, 1)
    assert sorted(latest(directory)) == ["plant/a/m0/telemetry", "plant/a/m2/telemetry"]
    assert await TableLog(directory, table_key(*STREAM)).read() is None
    (reported,) = await erasures(directory, STREAM)
    assert any("the log of shard 0 has chunks up to 2" in wait for wait in reported.waits)
    assert (await audit(directory, *STREAM)).problems == []


@pytest.mark.slow
async def test_a_hub_answers_for_a_stream_without_a_table_of_all_rows(tmp_path: Path) -> None:
    config = tmp_path / "hub.yaml"
    config.write_text(f"store: {tmp_path / 'store'}\n")
    store = open_store(str(tmp_path / "store"))
    log = await filled(store)

    async def run(*arguments: object) -> str:
        result = await asyncio.to_thread(weft, "hub", *arguments)
        return result.output if result.exception is None else str(result.exception)

    await run("table", "set", config, "telemetry", "--latest", "_key", "--every", "1s", "--instead")
    assert "retention of the table of all rows" in await run("table", "set", config, "telemetry", "--retain", "30d")
    (tmp_path / "rules.yaml").write_text("rules: {topic: {not_null: machine}}\n")
    reported = await run("quality", "set", config, "telemetry", tmp_path / "rules.yaml")
    assert "latest table instead of a table of all rows" in reported
    settings: dict[str, Any] = {"shards": 1, "table_interval_s": 0.2, "cluster_log_interval_s": 0.1}
    async with running_hub(store, **settings) as hub:

        async def is_made() -> bool:
            found = (await get(hub, "/v1/status"))[1]["latest_tables"]
            return [(each["instead"], each["lag_records"]) for each in found] == [(True, 0)]

        await until(is_made)

        async def is_known() -> bool:
            table = (await get(hub, "/v1/streams/telemetry"))[1]["table"]
            return table is not None and (table["kind"], table["lag_records"]) == ("latest", 0)

        await until(is_known)
        status = (await get(hub, "/v1/status"))[1]
        check_answer("GET", "/v1/status", status)
        (table,) = [each for each in status["tables"] if each["stream"] == "telemetry"]
        assert (table["kind"], table["version"] >= 0, table["error"]) == ("latest", True, None)
        found = (await get(hub, "/v1/streams/telemetry"))[1]
        check_answer("GET", "/v1/streams/{stream}", found)
        assert (found["table"]["path"], found["table_rows"]) == ("latest/default/telemetry", 12)
        await collect(store, log, 2)
        code, records = await get(hub, "/v1/streams/telemetry/records?since=1&limit=100")
        check_answer("GET", "/v1/streams/{stream}/records", records)
        assert ([each["seq"] for each in records["records"]], records["only_latest"]) == ([8, 9, 10, 11], True)
        code, refused = await get(hub, "/v1/streams/telemetry/records?shard=0&offset=0")
        assert (code, "if that has all rows" in refused["advice"]) == (410, True)
        complete = (await get(hub, "/v1/streams/telemetry/completeness"))[1]
        check_answer("GET", "/v1/streams/{stream}/completeness", complete)
        assert complete["only_latest"]
    assert not (tmp_path / "store" / "tables" / "default").exists()
    assert "can no longer be made" in await run("table", "remove", config, "telemetry")
    reported = await run("table", "list", config)
    assert "_key, and no other table" in reported
    place = open_store(str(tmp_path / "backup"))
    lines: list[str] = []
    await make_backup(store, place, clock=time.time_ns, note=lines.append)
    assert any("latest/default/telemetry, the only table" in line for line in lines)
    view = await open_backup(place)
    assert view is not None
    target = open_store(str(tmp_path / "restored"))
    await restore(view, target, clock=time.time_ns, note=lambda line: None)
    async with running_hub(target, **settings) as hub:

        async def is_again() -> bool:
            found = (await get(hub, "/v1/status"))[1]["latest_tables"]
            return [(each["gone"], each["lag_records"], each["error"]) for each in found] == [(8, 0, None)]

        await until(is_again)
    assert sorted(latest(target)) == ["plant/a/m2/telemetry"]


# --- A latest table keeps up with 10,000 updates a second over 100,000 keys on a part of one core


KEYS, EDGES, ROUND = 100_000, 20, 100_000


@dataclass(frozen=True)
class Updates(Run):
    """Updates of random keys."""

    def encode(self) -> bytes:
        rnd = random.Random(f"{self.lane.edge}/{self.first}")
        seqs = range(self.first, self.first + self.count)
        times = struct.pack(f"<{self.count}q", *(START + seq * SECOND for seq in seqs))
        keys = [b"plant/a/m%d/telemetry" % rnd.randrange(KEYS) for _ in seqs]
        payloads = [b'{"temperature": %d.5, "state": "running"}' % (seq % 90) for seq in seqs]
        columns = batch.columns_from_lists(times, keys, payloads)
        return batch.encode(1, self.first, columns, ClockReading(1, 2, ClockState.SYNCED))


@pytest.mark.slow
async def test_ten_thousand_updates_a_second_over_a_hundred_thousand_keys(directory: ObjectStore) -> None:
    log = await LogWriter.open(directory, 1)
    tierer, used = await new_latest(directory, log), 0.0
    for part in range(3):
        for edge in range(EDGES):
            lane, count = LANE._replace(edge=f"edge-{edge}"), ROUND // EDGES
            await log.append(0, Updates(lane, part * count, count))
        for view in tierer._views:
            await view.log.extend(view.state)
        began = time.process_time()
        await drain_latest(tierer)
        used = time.process_time() - began
    assert opened(directory).to_pyarrow_dataset().count_rows() > 0.9 * KEYS
    assert used < ROUND / 10_000, f"a round of ten seconds took {used:.1f} s of a core"
